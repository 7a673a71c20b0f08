"""Run a command as a user types it."""

from __future__ import annotations

from typer.testing import CliRunner

from headlab.cli import app


def run(*args: str):
    return CliRunner().invoke(app, list(args), catch_exceptions=False)


def error_of(result) -> str:
    """The one sentence on stderr, nothing on stdout."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    told = result.stderr.strip().splitlines()
    lines = [line for line in told if not line.startswith("loading ")]  # on a slow machine
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
