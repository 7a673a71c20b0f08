"""What a terminal shows and what a log does: progress, and tables in which no word is broken."""

from __future__ import annotations

import io
import re
import time
import warnings

import pytest
from commands import run
from rich.console import Console

from headlab.cli import printing
from headlab.cli import progress as going
from headlab.cli.printing import fitted_widths, new_table, print_table
from headlab.cli.progress import Lines, progress, status
from headlab.errors import HeadlabError

# --- how far a command is ---


def said(lines: Lines, moments: list[tuple[float, float]]) -> list[str]:
    """What is said where so much is done after so many seconds."""
    begun, told = time.monotonic(), []
    for seconds, done in moments:
        lines.done = done
        line = lines.line(begun + seconds)
        told += [] if line is None else [line]
    return told


def test_a_log_gets_a_line_at_each_tenth_with_the_time_left():
    told = said(Lines("ranking", 1000), [(second, 5 * second) for second in range(201)])
    assert [int(re.search(r"(\d+) %", line)[1]) for line in told] == list(range(10, 101, 10))
    assert told[0] == "ranking: 10 %, about 3 min left"
    assert told[8] == "ranking: 90 %, about 20 s left"


def test_slow_work_is_heard_of_every_half_minute_and_short_work_not_at_all():
    slow = said(Lines("fitting", 10_000), [(second, second) for second in range(121)])
    assert len(slow) == 4
    assert slow[0].startswith("fitting: 0 %, about 2.8 h left")
    stuck = said(Lines("fitting", 10), [(second, 0) for second in range(61)])
    assert stuck == ["fitting: 0 %"] * 2
    assert said(Lines("grading", 10), [(0.5, 5), (2.5, 10)]) == []


def test_what_a_resumed_fit_brings_along_does_not_make_it_look_fast():
    told = said(Lines("fitting", 100), [(0, 50), (5, 60), (10, 70)])
    assert told == ["fitting: 60 %, about 20 s left", "fitting: 70 %, about 15 s left"]


@pytest.fixture
def log(monkeypatch, capsys):
    """What has come on stderr, which is no terminal, by a clock that does not make us wait."""
    monkeypatch.setattr(going, "_LOOK", 0.01)
    monkeypatch.setattr(going, "_SOONEST", 0.02)
    return lambda: capsys.readouterr().err


def test_progress_without_a_terminal_is_plain_text(log):
    with progress("ranking [4] heads", 4, quiet=False) as advance:
        for _ in range(4):
            time.sleep(0.06)
            advance(1)
    lines = log().splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == [
        "ranking [4] heads: 25 %",
        "ranking [4] heads: 50 %",
    ]
    assert all(line.isprintable() for line in lines)
    with status("loading", quiet=False):
        time.sleep(0.06)
    assert log() == "loading\n"


def test_quiet_commands_and_short_ones_say_nothing(log):
    with progress("ranking", 2, quiet=True) as advance:
        advance(1)
        time.sleep(0.06)
    with status("loading", quiet=True):
        time.sleep(0.06)
    with status("loading", quiet=False):
        pass
    time.sleep(0.06)
    assert log() == ""


# --- tables ---

WORDS = "rank correlation of facilitation"
ROW = ("circuits", WORDS, "interference everywhere", "uncharacteristically", "finished")
COLUMNS = ("study", "what it says", "where", "how", "state")


@pytest.fixture
def screen(monkeypatch):
    """A terminal of some width; gives what a table looks like on it."""

    def show(width: int, spare: tuple[str, ...] = (), terminal: bool = True) -> list[str]:
        file = io.StringIO()
        console = Console(file=file, width=width, force_terminal=terminal, no_color=True)
        monkeypatch.setattr(printing, "out", console)
        table = new_table(*COLUMNS)
        table.add_row(*ROW)
        print_table(table, spare)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
        return [line.rstrip() for line in plain.splitlines()]

    return show


def test_a_wide_table_is_one_line_a_row(screen):
    lines = screen(200)
    assert len(lines) == 2
    assert re.split(r"  +", lines[1]) == list(ROW)


@pytest.mark.parametrize("width", range(30, 120, 3))
def test_no_word_is_broken_at_any_width(screen, width):
    lines = screen(width)
    assert max(map(len, lines)) <= width
    note = re.search(r"\(no room for: (.*)\)$", " ".join(lines))
    gone = note[1].split(", ") if note else []
    shown = {word for line in lines for word in line.split()}
    for name, cell in zip(COLUMNS, ROW, strict=True):
        assert (name in gone) or set(cell.split()) <= shown, (width, lines)
    assert lines[0].startswith("study"), "the first column stays"


def test_the_least_important_columns_go_first(screen):
    assert screen(65, spare=("how", "where"))[-1] == "(no room for: how)"
    assert screen(45, spare=("how", "where"))[-1] == "(no room for: where, how)"
    assert screen(40)[-1] == "(no room for: how, state)"


def test_a_path_longer_than_a_column_may_be_broken(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(printing, "out", Console(file=file, width=60, force_terminal=True))
    table = new_table("run", "state")
    table.add_row("/home/someone/" + "deep/" * 20, "finished")
    print_table(table)
    assert "finished" in file.getvalue()


def test_widths_are_enough_for_every_word_and_no_more_than_is_needed():
    assert fitted_widths([3, 3], [5, 9], 100) == [5, 9]
    assert fitted_widths([3, 3], [5, 20], 14) == [5, 9]
    assert fitted_widths([8, 3], [8, 20], 11) == [8, 3]
    assert fitted_widths([8, 4], [8, 20], 11) is None


def test_nothing_is_wrapped_where_output_is_piped(capsys):
    from headlab.cli.app import err, out

    for console in (out, err):
        console.print("word " * 100)
    table = new_table("a", "b")
    table.add_row("word " * 100, "other " * 100)
    print_table(table)
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert len(captured.out.splitlines()) == 3


def test_a_warning_is_one_line_without_code(monkeypatch):
    def careful(*_, **__):
        warnings.warn("be careful [here]", stacklevel=1)
        raise HeadlabError("no model")

    monkeypatch.setattr("headlab.loading.load", careful)
    before = warnings.showwarning
    result = run("check", "smollm2", "-q")
    assert result.stderr.splitlines() == ["note: be careful [here]", "error: no model"]
    assert warnings.showwarning is before
