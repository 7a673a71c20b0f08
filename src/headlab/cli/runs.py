"""headlab ls, headlab report, headlab compare"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, out
from headlab.cli.options import AsJson, Quiet, status
from headlab.cli.printing import new_table, print_findings, print_json, print_table
from headlab.cli.progress import progress
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.store import Run

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)
]


@app.command("ls", epilog="Example: headlab ls runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look.")] = Path("."),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder and how far they are."""
    from headlab.store import find_runs

    if not folder.is_dir():
        raise HeadlabError(f"no folder {folder}")
    rows = [
        _row(found) if not isinstance(found, str) else _unreadable(found)
        for found in find_runs(folder)
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        out.print(
            f"no runs in {escape(str(folder))}; headlab run circuits --size smoke makes one",
            highlight=False,
        )
        return
    table = new_table("run", "study", "models", "tasks", "cells", "state", "started")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    print_table(table, spare=("started", "models", "tasks"))


def _unreadable(folder: str) -> dict[str, Any]:
    gone = dict.fromkeys(("study", "models", "tasks", "cells"), "")
    return {"run": folder, **gone, "state": "cannot be read", "started": ""}


def _row(run: Run) -> dict[str, Any]:
    from headlab.studies.cells import labels

    done = sum(run.has(cell) for cell in run.cells)
    sessions = run.manifest["sessions"]
    started = sessions[0]["started"] if sessions else ""
    return {
        "run": str(run.folder),
        "study": f"{run.spec.study}, {run.spec.size}",
        "models": ", ".join(labels(run.spec.models).values()),
        "tasks": ", ".join(labels(run.spec.tasks).values()),
        "cells": f"{done}/{len(run.cells)}",
        "state": run.state,
        "started": str(started).replace("T", " ").replace("+00:00", " UTC"),
    }


@app.command(epilog="Example: headlab report runs/circuits-1; headlab report runs")
def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run's folder, or one that holds runs.", show_default=False
        ),
    ],
    quiet: Quiet = False,
) -> None:
    """Draw a run's figures and write its report again, from its cells alone. Of a folder that
    holds runs: one page over them all."""
    from headlab.store import Run, is_run

    if run.is_dir() and not is_run(run):
        from headlab.studies.front import write_front

        with status("writing the page over all runs", quiet):
            path = write_front(run)
        print(path)
        return
    opened = Run.read(run)
    with opened.locked():
        with progress("grading the texts", 1000, quiet) as move:
            opened.grade(_thousandths(move))
        with status("drawing figures, writing the report", quiet):
            path = opened.write_report()
    print_findings(opened, quiet)
    print(path)


def _thousandths(move: Callable[[int], None]) -> Callable[[float], None]:
    """A bar of 1,000 steps that is told how much is done."""
    done = 0

    def told(share: float) -> None:
        nonlocal done
        move(round(1000 * share) - done)
        done = round(1000 * share)

    return told


@app.command(epilog="Example: headlab compare runs/circuits-1 runs/circuits-2")
def compare(
    first: RunFolder,
    second: Annotated[Path, typer.Argument(metavar="RUN", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Two runs of a study side by side: heads needed, their ratio, whether the heads agree."""
    from headlab.store import Run

    one, other = Run.read(first), Run.read(second)
    if one.spec.study != other.spec.study:
        raise HeadlabError(
            f"{first} is a run of {one.spec.study}, {second} of {other.spec.study}; two runs of "
            "one study can be compared"
        )
    rows = one.study.compare(one, other)
    settings, others = one.spec.model_dump(mode="json"), other.spec.model_dump(mode="json")
    differ = {k: (v, others[k]) for k, v in settings.items() if v != others[k]}
    if as_json:
        print_json({"rows": rows, "settings": {k: list(v) for k, v in differ.items()}})
        return
    if not rows:
        raise HeadlabError(
            f"{first} and {second} have no finished cell in common (same task, method and model)"
        )
    table = new_table(*rows[0])
    for row in rows:
        table.add_row(*(escape(value) for value in row.values()))
    print_table(table)
    for name, (mine, theirs) in differ.items():
        told = f"{name}: {_in_words(mine)} in the first, {_in_words(theirs)} in the second"
        out.print(escape(told), highlight=False, soft_wrap=True)


def _in_words(value: Any) -> str:
    """A setting as a user would write it.

    >>> _in_words([{"name": "mless", "count": 55}, "none"]), _in_words([["a", "b"]]), _in_words([])
    ('mless, none', 'a:b', 'none')
    """
    if isinstance(value, dict):
        return str(value.get("name", value))
    if isinstance(value, list) and value and all(isinstance(each, list) for each in value):
        return ", ".join(":".join(map(str, each)) for each in value)  # pairs
    if value is None or value == []:
        return "none"
    return ", ".join(map(_in_words, value)) if isinstance(value, list) else str(value)
