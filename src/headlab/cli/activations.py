"""headlab activations"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, err
from headlab.cli.app import out as screen
from headlab.cli.options import AsJson, ModelName, Quiet, load_model, loads_a_model, progress
from headlab.cli.printing import new_table, print_json, print_table
from headlab.errors import HeadlabError
from headlab.files import require_folder
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.activations.measuring import Activations

Conditions = Annotated[
    str, typer.Option(help="Of none, mless, mful, gap, random, arm; the first is the baseline.")
]
Instruction = Annotated[
    str | None, typer.Option(help="What stands before the question. Default: the paper's.")
]


@app.command(epilog="Example: headlab activations smollm2 --conditions none,mless,mful --n 20")
@loads_a_model
def activations(
    model: ModelName,
    loading: dict[str, Any],
    data: Annotated[
        Path | None,
        typer.Option(help="Questions: one a line, or JSONL. Default: built-in word problems."),
    ] = None,
    conditions: Conditions = "none,mless,mful",
    instruction: Instruction = None,
    n: Annotated[int, typer.Option(help="The first so many questions.", min=1)] = 100,
    tokens: Annotated[
        str, typer.Option(help="Measured: original (all that conditions share), or question.")
    ] = "original",
    threshold: Annotated[
        float | None,
        typer.Option(help="Of near zero. Default: ARM's with c = 0.13 in the first condition."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for figure and tables.")] = Path(
        "headlab-activations"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """What fillers do to the first MLP's activations: sparsity and size on the same tokens."""
    from headlab.fillers import INSTRUCTION, parse_conditions

    chosen = parse_conditions(conditions)
    if tokens not in ("original", "question"):
        raise HeadlabError(f"--tokens is original or question, not {tokens}")
    require_folder(out)
    questions = _questions(data, n)
    silent = quiet or as_json
    loaded = load_model(model, loading, silent)
    from headlab.activations.figure import save_activations
    from headlab.activations.measuring import measure_activations

    passes = len(chosen) + (threshold is None)
    with progress("measuring", passes * len(questions), silent) as advance:
        found = measure_activations(
            loaded,
            questions,
            chosen,
            instruction=INSTRUCTION if instruction is None else instruction,
            which=tokens,  # type: ignore[arg-type]
            threshold=threshold,
            progress=advance,
        )
    picture = save_activations(found, out)
    if as_json:
        print_json(found.as_dict())
        return
    if not quiet:
        _print(found)
    print(picture)


def _questions(data: Path | None, n: int) -> list[str]:
    from headlab.prompts import read_prompts
    from headlab.tasks.word_problems import builtin

    if data is not None:
        return read_prompts(data)[:n]
    return [item.question for item in builtin(n)]


def _print(found: Activations) -> None:
    from headlab.activations.statistics import STATISTICS

    first = found.names[0]
    screen.print(
        f"{found.model}, {found.path}, {count(found.n, 'prompt')}, {sum(found.tokens)} tokens; "
        f"near zero: |x| <= {found.threshold:.4g} ({found.threshold_from})",
        highlight=False,
        soft_wrap=True,
    )
    table = new_table("", "condition", "mean", "95 % interval", f"minus {first}", "interval", "")
    for column in table.columns[2:6]:
        column.justify = "right"
    previous = ""
    for row in found.table():
        name, is_first = row["statistic"], row["condition"] == first
        low, high = row["difference_low"], row["difference_high"]
        table.add_row(
            name if name != previous else "",
            escape(row["condition"]),
            f"{row['mean']:.5g}",
            _span(row["low"], row["high"]),
            "" if is_first else f"{row['difference']:+.3g}",
            "" if is_first else _span(low, high, "+.3g"),
            "may be chance" if not is_first and low <= 0 <= high else "",
        )
        previous = name
    print_table(table)
    for name in STATISTICS:
        screen.print(f"[dim]{name}: {escape(STATISTICS[name])}[/]", highlight=False)
    if found.is_deaf:
        err.print(
            f"[yellow]note:[/] nothing moves: the first MLP of {escape(found.model)} stands beside "
            "its attention, not after it, and reads each token by itself",
            soft_wrap=True,
        )


def _span(low: float, high: float, form: str = ".5g") -> str:
    if low != low:  # one prompt: nothing to resample
        return "-"
    return f"{low:{form}} to {high:{form}}"
