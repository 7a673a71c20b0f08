"""headlab grade"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, err
from headlab.cli.app import out as screen
from headlab.cli.options import AsJson, Quiet, be_quiet, progress
from headlab.cli.printing import new_table, print_json, printable
from headlab.errors import HeadlabError
from headlab.files import require_folder, write_whole
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.grading import Graded


@app.command(epilog="Example: headlab grade answers.jsonl --with exact,numeric,f1")
def grade(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSONL: prediction, gold, unmasked?, prompt?, id? a line."
        ),
    ],
    graders: Annotated[
        str,
        typer.Option(
            "--with",
            help="Of exact, numeric, f1, rouge, rouge-l, chrf, bleu, cosine, math, math-strict, "
            "math-published, comet, quality, published.",
        ),
    ] = "exact,numeric,f1",
    out: Annotated[
        Path, typer.Option("--out", help="The same rows with a field for each score.")
    ] = Path("graded.jsonl"),
    time_limit: Annotated[float, typer.Option(help="math: seconds for one row.")] = 5.0,
    workers: Annotated[
        int | None, typer.Option(help="math: processes. Default: the cores, at most 4.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="comet: a hub id or a local path.")] = None,
    by: Annotated[
        str | None, typer.Option(help="A summary for each value of a field, e.g. mask.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score predictions against what is right, each score by its own name."""
    from headlab.grading import find_graders
    from headlab.grading import grade as run
    from headlab.grading.registry import Options
    from headlab.grading.rows import read_rows, write_lines

    chosen = find_graders(graders)
    for grader in chosen:  # what is missing is said before a file is read
        grader.require(Options(time_limit, workers, checkpoint))
    rows, left_out = read_rows(file)
    _require_fields(rows, file)
    if by is not None and not any(by in row for row in rows):
        raise HeadlabError(f"no line of {file} has the field {by!r}")
    require_folder(out.parent)
    if out.is_dir():
        raise HeadlabError(f"{out} is a folder; give a file, e.g. {out / 'graded.jsonl'}")
    if out.exists() and out.samefile(file.expanduser()):
        raise HeadlabError(f"{out} is the file with the predictions; give --out another name")
    silent = quiet or as_json
    if any(grader.embeds for grader in chosen):
        be_quiet()
    told = f"grading {count(len(rows), 'row')}"
    with progress(told, len(rows) * len(chosen), silent) as advance:
        graded = run(
            rows,
            [grader.name for grader in chosen],
            time_limit=time_limit,
            workers=workers,
            checkpoint=checkpoint,
            progress=advance,
        )
    if left_out:
        graded.notes.insert(0, left_out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, write_lines(graded.as_rows()))
    groups = {} if by is None else graded.by(by)
    if as_json:
        parts = {} if by is None else {"by": groups}
        print_json({**graded.as_dict(), **parts, "out": str(out.resolve())})
        return
    if not quiet:
        for value, summary in groups.items():
            screen.print(f"{by}: {value}", highlight=False, markup=False, soft_wrap=True)
            _print_summary(summary)
        if by is not None:
            screen.print("all rows", highlight=False)
        _print(graded)
    print(out.resolve())


def _require_fields(rows: list[dict[str, Any]], file: Path) -> None:
    if not any("prediction" in row and "gold" in row for row in rows):
        found = list(dict.fromkeys(printable(field) for row in rows[:100] for field in row))[:10]
        raise HeadlabError(
            f"no line of {file} has both 'prediction' and 'gold'; its fields are "
            f"{', '.join(found) or 'none'}"
        )


def _print_summary(summary: dict[str, dict[str, Any]]) -> None:
    table = new_table("", "n", "mean", "95 % interval", "")
    for label, found in summary.items():
        troubles = {
            "timed out": found["timed_out"],
            "failed": found["failed"],
            "with nothing to compare": found["unparsed"],
            "not scored": found["not_scored"],
        }
        said = ", ".join(f"{rows:,} {what}" for what, rows in troubles.items() if rows)
        mean = f"{found['mean']:.3f}" if found["n"] else "-"
        known = found["low"] == found["low"]  # not of one row
        span = f"{found['low']:.3f} to {found['high']:.3f}" if known else "-"
        table.add_row(escape(label), f"{found['n']:,}", mean, span, said)
    screen.print(table)


def _print(graded: Graded) -> None:
    _print_summary(graded.summary())
    for note in graded.notes:
        err.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True, highlight=False)
