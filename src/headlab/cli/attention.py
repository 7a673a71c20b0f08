"""headlab attention"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, out
from headlab.cli.options import (
    AsJson,
    ModelName,
    Quiet,
    Seed,
    load_model,
    loads_a_model,
    progress,
)
from headlab.cli.printing import new_table, print_json, print_table
from headlab.errors import HeadlabError
from headlab.files import require_folder
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.attention import HeadTypes, Profiles
    from headlab.model import Model


@app.command(epilog="Example: headlab attention smollm2 --prompt 'The sky is blue' --heads L0H4")
@loads_a_model
def attention(
    model: ModelName,
    loading: dict[str, Any],
    prompt: Annotated[
        str | None, typer.Option(help="The text whose tokens are looked at.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Many: one a line, or JSONL with prompt (and inserted, for --rows)."),
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="L0H4,L5H1: those looked at.", show_default=False)
    ] = None,
    rows: Annotated[
        str, typer.Option(help="all tokens, or original: without those that were inserted.")
    ] = "all",
    n: Annotated[
        int | None, typer.Option(help="Prompts of --data, at most. Default: 100", min=1)
    ] = None,
    types: Annotated[
        bool, typer.Option("--types", help="Every head's type: previous-token, induction ...")
    ] = False,
    length: Annotated[
        int | None, typer.Option(help="--types: random tokens that are said twice. Default: 64")
    ] = None,
    sequences: Annotated[int | None, typer.Option(help="--types: how often. Default: 16")] = None,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(help="--types: heads of each type.", min=1)] = 5,
    folder: Annotated[
        Path, typer.Option("--out", help="The folder for figures, tables and page.")
    ] = Path("headlab-attention"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """What do heads attend to? Profiles over positions, beside even attention; types of heads."""
    silent = quiet or as_json
    if types == (heads is not None):
        raise HeadlabError("give --heads to look at some, or --types to name the types of all")
    others = (prompt, data, n, None if rows == "all" else rows)
    if types and any(each is not None for each in others):
        raise HeadlabError(
            "--types makes its own sequences; --prompt, --data, --n and --rows are for --heads"
        )
    if not types and (length is not None or sequences is not None):
        raise HeadlabError("--length and --sequences are for --types")
    if n is not None and data is None:
        raise HeadlabError("--n is for --data")
    if rows not in ("all", "original"):
        raise HeadlabError(f"--rows is all or original, not {rows!r}")
    require_folder(folder)
    if types:
        loaded = load_model(model, loading, silent)
        asked = (16 if sequences is None else sequences, 64 if length is None else length)
        _types(loaded, *asked, seed, top, folder, as_json, silent)
        return
    from headlab.heads import parse_heads
    from headlab.prompts import read_questions

    named = parse_heads(heads or "")
    if (prompt is None) == (data is None):
        raise HeadlabError("give --prompt with a text, or --data with a file of them")
    questions = [{"prompt": prompt}] if data is None else read_questions(data)[: n or 100]
    loaded = load_model(model, loading, silent)
    from headlab.attention import profile
    from headlab.attention.figures import save_profiles
    from headlab.attention.maps import inserted_tokens

    prompts = [str(question["prompt"]) for question in questions]
    inserted = None
    if rows == "original":
        if not any(question.get("inserted") for question in questions):
            raise HeadlabError('--rows original needs "inserted" beside the prompts of --data')
        inserted = [
            inserted_tokens(loaded, text, question["inserted"])
            if question.get("inserted")
            else _none_inserted(loaded, text)
            for text, question in zip(prompts, questions, strict=True)
        ]
    with progress(f"looking at {count(len(prompts), 'prompt')}", len(prompts), silent) as advance:
        found = profile(loaded, prompts, named, inserted, progress=advance)
    path = save_profiles(found, folder)
    page = _page(loaded, found, prompts[0], folder)
    if as_json:
        print_json(_summary(found))
        return
    if not quiet:
        _print(found)
        print(path)
    print(page)


def _none_inserted(model: Model, text: str) -> Any:
    import torch

    return torch.zeros(len(model.ids(text)), dtype=torch.bool)


def _page(model: Model, found: Profiles, prompt: str, folder: Path) -> Path:
    from headlab.attention.page import write_page

    return write_page(model, found, prompt, folder)


def _summary(found: Profiles) -> dict[str, Any]:
    """Means over prompts and positions, beside even attention."""
    told: dict[str, Any] = {"model": found.model, "prompts": len(found.lengths), "heads": {}}
    for number, head in enumerate(found.heads):
        own: dict[str, Any] = {}
        for name in ("received", "given", "entropy", "first"):
            mean = float(found.mean(name)[number].nanmean())
            even = float(found.mean(name, null=True)[number].nanmean())
            own[name] = {"mean": mean, "uniform": even, "ratio": mean / even if even else None}
        before = found.mean("distance")[number]
        own["nearest"] = {str(d): float(before[d]) for d in range(min(4, len(before)))}
        told["heads"][str(head)] = own
    return told


def _print(found: Profiles) -> None:
    told = _summary(found)
    prompts = count(told["prompts"], "prompt")
    out.print(
        escape(f"{found.model}, {prompts}: mean over positions (even attention)"), highlight=False
    )
    table = new_table("head", "received", "given", "entropy", "on the first", "on the one before")
    for head, own in told["heads"].items():
        table.add_row(
            head,
            *(
                f"{own[name]['mean']:.3g} ({own[name]['uniform']:.3g})"
                for name in ("received", "given", "entropy", "first")
            ),
            f"{own['nearest'].get('1', float('nan')):.3g}",
        )
    print_table(table)


def _types(
    model: Model,
    n: int,
    length: int,
    seed: int,
    top: int,
    folder: Path,
    as_json: bool,
    silent: bool,
) -> None:
    from headlab.attention import find_types
    from headlab.attention.figures import save_types

    with progress(f"{count(n, 'sequence')} of {length} tokens, twice", n, silent) as advance:
        found = find_types(model, n, length, seed, progress=advance)
    path = save_types(found, folder)
    if as_json:
        print_json(_types_summary(found, top))
        return
    if not silent:
        _print_types(found, top)
    print(path)


def _types_summary(found: HeadTypes, top: int) -> dict[str, Any]:
    return {
        "model": found.model,
        "length": found.length,
        "types": {
            name: {
                "uniform": float(found.null[name].mean()),
                "heads": {str(head): score for head, score in found.top(name, top)},
            }
            for name in found.scores
        },
    }


def _print_types(found: HeadTypes, top: int) -> None:
    out.print(
        escape(f"{found.model}: weight on {found.length} random tokens said twice"), highlight=False
    )
    table = new_table("type", "heads", "even attention")
    for name in found.scores:
        listed = "  ".join(f"{head} {score:.2f}" for head, score in found.top(name, top))
        table.add_row(name, listed, f"{float(found.null[name].mean()):.3f}")
    print_table(table)
