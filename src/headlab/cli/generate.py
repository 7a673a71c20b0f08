"""headlab generate"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, out
from headlab.cli.options import AsJson, ModelName, Quiet, load_model, loads_a_model, progress
from headlab.cli.printing import print_json
from headlab.errors import HeadlabError
from headlab.wording import count

if TYPE_CHECKING:
    from torch import Tensor

    from headlab.activations import Arm
    from headlab.gates import Gates
    from headlab.heads import Head
    from headlab.model import Model

_LONG = 80  # letters of a mask's name on the screen
_SHOWN = 5  # prompts whose texts are printed; a file has them all


@app.command(epilog="Example: headlab generate smollm2 --prompt 'The sky is' --heads L23H4,L11H7")
@loads_a_model
def generate(
    model: ModelName,
    loading: dict[str, Any],
    prompt: Annotated[
        str | None, typer.Option(help="The text to write on from.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Many: one a line, or JSONL with prompt (id, gold ...).")
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(help="A mask: L5H1,L7H2. Give it again for another.", show_default=False),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Gate all other heads instead.")] = False,
    scale: Annotated[
        float | None, typer.Option(help="The gate: 0 removes (default), 0.5 halves, 2 doubles.")
    ] = None,
    positions: Annotated[
        str, typer.Option(help="Where gates act: generated tokens, or all, the prompt as well.")
    ] = "generated",
    max_new_tokens: Annotated[int, typer.Option(help="The longest text.")] = 128,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End after this text or special token. May be given again.", show_default=False
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sample; default: the likeliest token.")
    ] = None,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest that have this.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampling; the same text in any batch.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Say it in the model's chat template.")
    ] = False,
    reference: Annotated[
        str, typer.Option(help="What stands in for a head: zero, or mean of --reference-data.")
    ] = "zero",
    reference_data: Annotated[
        Path | None, typer.Option(help="Prompts for the mean: one a line, or JSONL.")
    ] = None,
    boost: Annotated[
        Path | None,
        typer.Option(
            help="Add directions to heads: safetensors with boost, layers x heads x width."
        ),
    ] = None,
    alpha: Annotated[float, typer.Option(help="The boost, so many times.")] = 1.0,
    arm: Annotated[
        str | None,
        typer.Option(
            help="Redraw the first MLP's near-zero activations: c=0.13,p1=99.5,seed=0.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        Path | None, typer.Option("--out", help="All texts as JSONL, as headlab grade reads it.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write on from a prompt with heads switched off, beside the text with all heads."""
    from headlab.files import require_folder, write_whole
    from headlab.grading.rows import write_lines
    from headlab.heads import parse_heads
    from headlab.prompts import read_prompts, read_questions

    if (prompt is None) == (data is None):
        both = ", not both" if data is not None else ""
        raise HeadlabError(f"give the text to write on from: --prompt TEXT, or --data FILE{both}")
    if prompt == "":
        raise HeadlabError("the prompt is empty; give at least one word")
    if scale is not None and not math.isfinite(scale):
        raise HeadlabError(f"gates must be finite numbers, not {scale}")
    if not math.isfinite(alpha):
        raise HeadlabError(f"alpha must be a finite number, not {alpha}")
    if reference not in ("zero", "mean") or (reference == "mean") != (reference_data is not None):
        raise HeadlabError("--reference is zero, or mean together with --reference-data FILE")
    if boost is None and alpha != 1:
        raise HeadlabError("--alpha goes with --boost")
    if boost is not None and (keep or (reference == "mean" and scale is None)):
        raise HeadlabError(
            "a boost is added to heads as they are: --keep and a mean do not go with it"
        )
    if path is not None:
        require_folder(path.parent)
        if path.is_dir():
            raise HeadlabError(f"{path} is a folder; give a file, e.g. {path / 'texts.jsonl'}")
        if data is not None and path.exists() and path.samefile(data):
            raise HeadlabError(f"{path} is the file of prompts; give another name")
    named = [parse_heads(each) for each in heads or []]
    if not named and (keep or scale is not None):
        raise HeadlabError("--keep and --scale go with --heads")
    questions = [{"prompt": prompt}] if data is None else read_questions(data)
    averaged = read_prompts(reference_data) if reference_data else []
    redrawn = None if arm is None else _read_arm(arm)
    silent = quiet or as_json
    loaded = load_model(model, loading, silent)
    from headlab.gates import ZERO, mean_reference
    from headlab.generation import generate as write

    said = [str(question["prompt"]) for question in questions]
    prompts = [loaded.chat(text) if chat else text for text in said]
    gates, pushes, names = _masks(loaded, named, keep, scale, boost, alpha)
    total = len(names) * len(prompts) * max(max_new_tokens, 1)
    with progress("writing", total, silent) as advance:
        found = write(
            loaded,
            prompts,
            gates,
            positions=positions,  # type: ignore[arg-type]
            max_new_tokens=max_new_tokens,
            stop=stop or (),
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            reference=mean_reference(loaded, averaged) if averaged else ZERO,
            boost=pushes,
            arm=redrawn,
            progress=advance,
        )
    rows = [
        {
            **question,
            "mask": names[mask],
            "positions": positions,
            "reference": reference,
            **({} if redrawn is None else {"arm": str(redrawn)}),
            "prediction": written.text,
            "completion": True,
            **({"unmasked": found.rows[0][number].text} if len(names) > 1 else {}),
            "end": written.end,
            "tokens": len(written.ids),
        }
        for mask in range(len(names))
        for number, (question, written) in enumerate(zip(questions, found.rows[mask], strict=True))
    ]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, write_lines(rows))
    if as_json:
        print_json({"model": loaded.name, "settings": found.settings, "rows": rows})
        return
    if not quiet:
        for number, text in enumerate(said[:_SHOWN]):
            out.print(f"[dim]{escape(text)}[/dim]", highlight=False, soft_wrap=True)
            for mask, name in enumerate(names):
                written = found.rows[mask][number]
                where = ", also in the prompt" if mask and positions == "all" else ""
                where += f", ARM {redrawn}" if redrawn else ""
                shown = name if len(name) < _LONG else f"{name[:_LONG]} ..."
                told = f"[bold]{escape(shown)}[/bold] ({written.end}{where})"
                out.print(told, highlight=False)
                out.print(escape(written.text), highlight=False, soft_wrap=True)
            out.print()
        if len(said) > _SHOWN and path is None:
            more = count(len(said) - _SHOWN, "more prompt")
            out.print(f"{more}; --out FILE.jsonl keeps all texts", highlight=False)
    if path is not None:
        print(path.resolve())
    elif quiet:
        for row in rows[len(said) :] or rows:  # of masks, where there are any
            print(row["prediction"])


def _masks(
    model: Model,
    named: list[list[Head]],
    keep: bool,
    scale: float | None,
    boost: Path | None,
    alpha: float,
) -> tuple[Gates, Tensor | None, list[str]]:
    """Gates of every mask, the first with all heads as they are; boosts; what each is called."""
    import torch

    from headlab.gates import Gates

    ones = Gates.ones(model)
    if boost is not None:
        directions = _read_boost(boost, model) * alpha
        if not named:
            pushes = torch.stack([torch.zeros_like(directions), directions])
            by = "" if alpha == 1 else f" {alpha:g} times"
            return Gates.stack([ones, ones]), pushes, ["all heads", f"boosted{by}"]
        chosen = []
        for heads in named:
            own = torch.zeros_like(directions)
            for head in heads:
                own[head] = directions[head]
            chosen.append(own)
        kept = 1.0 if scale is None else scale
        gates = [Gates.ablate(model, heads, kept) for heads in named]
        by = "" if alpha == 1 else f" {alpha:g} times"
        gated = "" if scale is None else f" at {scale:g}"
        names = [f"boosted{by}{gated}: {_listed(heads)}" for heads in named]
        pushes = torch.stack([torch.zeros_like(directions), *chosen])
        return Gates.stack([ones, *gates]), pushes, ["all heads", *names]
    at = 0.0 if scale is None else scale
    make = Gates.keep if keep else Gates.ablate
    word = "only" if keep else "without" if at == 0 else f"at {at:g}:"
    if keep and at != 0:
        word = f"others at {at:g}:"
    masks = [make(model, heads, at) for heads in named]
    names = [f"{word} {_listed(heads)}" for heads in named]
    return Gates.stack([ones, *masks]), None, ["all heads", *names]


def _read_arm(given: str) -> Arm:
    from headlab.activations import parse_arm

    return parse_arm(given)


def _listed(heads: list[Head]) -> str:
    return ", ".join(map(str, heads))


def _read_boost(path: Path, model: Model) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            directions: Tensor = file.get_tensor("boost").float()
    except FileNotFoundError:
        raise HeadlabError(f"no file {path}") from None
    except (OSError, SafetensorError) as error:
        raise HeadlabError(
            f"{path} is no safetensors file with a tensor `boost`: {error}"
        ) from None
    shape = (model.n_layers, model.n_heads, model.head_width)
    if tuple(directions.shape) != shape:
        raise HeadlabError(
            f"{path} holds directions of shape {list(directions.shape)}; {model.name} has "
            f"{list(shape)} (layers, heads, width)"
        )
    return directions
