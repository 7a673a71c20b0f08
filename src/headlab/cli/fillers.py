"""headlab fillers show"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, out
from headlab.cli.options import AsJson, ModelName, Quiet, be_quiet, status
from headlab.cli.printing import print_json, printable
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.fillers import Built

fillers = typer.Typer(
    help="Filler tokens around a question: show the tokens of each condition.",
    epilog="Example: headlab fillers show smollm2 --conditions none,mless,mful",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
app.add_typer(fillers, name="fillers")

_QUESTION = "Natalia sold 48 clips in April, and half as many in May. How many did she sell?"
_ALL = "none,mless,mful,gap,random"
_AROUND = 4  # original tokens shown on each side of a join
_SHOWN = 3  # of the inserted ones


@fillers.callback()
def _fillers() -> None:
    pass


@fillers.command(epilog="Example: headlab fillers show smollm2 --conditions mless --question 'Hi'")
def show(
    model: ModelName,
    conditions: Annotated[
        str, typer.Option(help="Of none, mless, mful, gap, random, arm; or a study file.")
    ] = _ALL,
    question: Annotated[str, typer.Option(help="What is asked.")] = _QUESTION,
    instruction: Annotated[
        str | None, typer.Option(help="What stands before the question. Default: the paper's.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Say it in the model's chat template.")
    ] = False,
    bos: Annotated[
        str, typer.Option(help="Start prompts with BOS: auto (the tokenizer's own), yes, no.")
    ] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Print the tokens of each condition around the join, with counts. Loads no weights."""
    from dataclasses import replace

    from headlab.fillers import INSTRUCTION, build, parse_conditions

    if conditions.endswith((".yaml", ".yml")):
        from headlab.studies.spec import read_spec

        chosen = parse_conditions(read_spec(conditions).settings().get("conditions", []))
    else:
        chosen = parse_conditions(conditions)
    if chat:
        chosen = [replace(condition, template="chat") for condition in chosen]
    with status("loading the tokenizer", quiet or as_json):
        be_quiet()
        from headlab.loading import load_texts

        texts = load_texts(model, bos=bos, trust_remote_code=trust_remote_code)  # type: ignore[arg-type]
    said = INSTRUCTION if instruction is None else instruction
    built = [build(texts, condition, question, said) for condition in chosen]
    if as_json:
        print_json([_as_dict(each) for each in built])
        return
    for each in built:
        inserted = int(each.inserted.sum())
        tokens = count(len(each.ids), "token")
        told = f"{escape(each.condition.says)}: {tokens}, {inserted} of them put in"
        out.print(f"[bold]{escape(each.condition.name)}[/]  {told}", highlight=False)
        out.print(f"  {_around(each)}", highlight=False, soft_wrap=True)


def _as_dict(built: Built) -> dict[str, Any]:
    return {
        "condition": built.condition.as_dict(),
        "tokens": built.pieces,
        "ids": built.ids.tolist(),
        "inserted": built.inserted.tolist(),
        "positions": built.positions.tolist(),
    }


def _around(built: Built) -> str:
    """The tokens near what was put in; where nothing was, near the question's start."""
    at = built.inserted.nonzero().flatten().tolist()
    start = int(built.question.nonzero()[0])
    first, last = (at[0], at[-1]) if at else (start, start - 1)
    shown: list[str] = []
    skipped = 0
    for place, piece in enumerate(built.pieces):
        near = first - _AROUND <= place <= last + _AROUND
        run = at and built.condition.position != "random"
        middle = run and first + _SHOWN <= place <= last - 1
        if not near or middle:
            skipped += 1
            continue
        if skipped:
            shown.append(f"[dim]({skipped} more)[/]")
            skipped = 0
        if built.has_gap and place == start:
            shown.append(f"[cyan](position {int(built.positions[start])})[/]")
        text = escape(repr(printable(piece)))
        shown.append(f"[bold cyan]{text}[/]" if built.inserted[place] else text)
    if skipped:
        shown.append(f"[dim]({skipped} more)[/]")
    return " ".join(shown)
