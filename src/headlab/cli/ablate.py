"""headlab ablate"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headlab.cli.app import app
from headlab.cli.options import (
    AsJson,
    ModelName,
    Quiet,
    load_model,
    loads_a_model,
    progress,
    status,
)
from headlab.cli.printing import print_ablation, print_json, print_scores
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.examples import Example


# Short enough not to be wrapped inside its quotes.
@app.command(epilog="Example: headlab ablate smollm2 --prompt 'The sky is' --heads L23H4,5.1")
@loads_a_model
def ablate(
    model: ModelName,
    loading: dict[str, Any],
    prompt: Annotated[
        str | None, typer.Option(help="The text before the target.", show_default=False)
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Comma-separated: L5H1, 5.1 or a5.h1.", show_default=False)
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every head in turn: a head map and a table.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="With --all: JSONL with prompt, target, wrong, counterfactual ..."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The text to score, usually with its leading space. Default: the likeliest token."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Gate all other heads instead.")] = False,
    scale: Annotated[float, typer.Option(help="The gate: 0 removes, 0.5 halves, 2 doubles.")] = 0.0,
    reference: Annotated[
        str, typer.Option(help="What stands in for a head: zero, mean or counterfactual.")
    ] = "zero",
    reference_data: Annotated[
        Path | None,
        typer.Option(help="Prompts for the mean: one a line, or JSONL with a prompt field."),
    ] = None,
    per_position: Annotated[
        bool,
        typer.Option("--per-position", help="Mean at each position; one template and length only."),
    ] = False,
    counterfactual: Annotated[
        str | None, typer.Option(help="A prompt of the same length in tokens.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="With --all. Default: logit-diff if there are wrong answers, log-prob."),
    ] = None,
    top: Annotated[int, typer.Option(help="With --all: rows of the table.", min=1)] = 10,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="With --all: where the head map goes. Default: headlab-ablate."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Switch heads off (or keep only some) and compare the answer before and after.

    With --all, every head by itself: headlab ablate smollm2 --all --data prompts.jsonl
    """
    from headlab.heads import parse_heads
    from headlab.prompts import read_prompts

    # What the user typed is read before a model is loaded.
    if every and heads is not None:
        raise HeadlabError("give --heads or --all, not both")
    if not every and heads is None:
        raise HeadlabError("give the heads to switch off (--heads L5H1,L7H2), or --all")
    if not math.isfinite(scale):
        raise HeadlabError(f"gates must be finite numbers, not {scale}")
    if every and scale == 1:
        raise HeadlabError("a gate of 1 changes nothing; give another --scale")
    if every and keep:
        raise HeadlabError("--keep goes with --heads, not with --all")
    if prompt == "":
        raise HeadlabError("the prompt is empty; give at least one word")
    if target == "":
        raise HeadlabError("the target is empty; give the text whose log-prob you want")
    own = counterfactual if data is None else str(data)  # a file brings one for each example
    _require_reference(reference, reference_data, own, per_position, data is not None)
    averaged = read_prompts(reference_data) if reference_data else []
    if every:
        examples = _examples(prompt, target, counterfactual, data)
        _ablate_each(
            model,
            loading,
            examples,
            measure,
            scale,
            reference,
            averaged,
            per_position,
            top,
            folder or Path("headlab-ablate"),
            as_json,
            quiet,
        )
        return
    if any(option is not None for option in (data, measure, folder)):
        raise HeadlabError("--data, --measure and --out go with --all")
    if prompt is None:
        raise HeadlabError("give the text before the target: --prompt TEXT")
    named = parse_heads(heads or "")
    loaded = load_model(model, loading, quiet or as_json)
    with status("running", quiet or as_json):
        from headlab.ablation import ablate as run

        result = run(
            loaded,
            prompt,
            named,
            target,
            keep=keep,
            scale=scale,
            reference=reference,
            reference_data=averaged,
            per_position=per_position,
            counterfactual=counterfactual,
        )
    if as_json:
        print_json(result.as_dict())
    elif quiet:
        print(f"{result.before.log_prob:.6f}\t{result.after.log_prob:.6f}\t{result.change:.6f}")
    else:
        print_ablation(result)


def _examples(
    prompt: str | None, target: str | None, counterfactual: str | None, data: Path | None
) -> list[Example]:
    from headlab.examples import Example
    from headlab.tasks.jsonl import read_examples

    if prompt is not None and data is not None:
        raise HeadlabError("give --data FILE, or --prompt and --target, not both")
    if prompt is None and data is None:
        raise HeadlabError("--all takes --data FILE, or --prompt and --target")
    if data is not None:
        if target is not None or counterfactual is not None:
            raise HeadlabError("with --data, targets and counterfactuals stand in the file")
        return read_examples(data)
    if prompt is None or target is None:
        raise HeadlabError("--all needs the text to score: --target TEXT")
    return [Example(prompt, target, counterfactual)]


def _ablate_each(
    name: str,
    loading: dict[str, Any],
    examples: list[Example],
    measure: str | None,
    scale: float,
    reference: str,
    averaged: list[str],
    per_position: bool,
    top: int,
    folder: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    from headlab.files import require_folder
    from headlab.measures import find_measure
    from headlab.ranking import default_measure, rank

    chosen = find_measure(measure or default_measure(examples))
    for example in examples:
        chosen.require(example)
        if reference == "counterfactual" and example.counterfactual is None:
            raise HeadlabError(f"{example.name} has no counterfactual")
    require_folder(folder)
    silent = quiet or as_json
    model = load_model(name, loading, silent)
    from headlab.gates import mean_reference

    stand_in: Any = reference
    if reference == "mean":
        with status("taking the mean", silent):
            stand_in = mean_reference(model, averaged, per_position)
    total = model.n_layers * model.n_heads * len(examples)
    with progress("switching heads off", total, silent) as advance:
        scores = rank(
            model,
            examples,
            "ablate",
            chosen,
            reference=stand_in,
            scale=scale,
            progress=advance,
        )
    from headlab.figures import save_head_map

    path = save_head_map(scores, folder)
    if as_json:
        print_json({**scores.as_dict(), "head_map": str(path)})
        return
    if not quiet:
        print_scores(scores, top)
    print(path)


def _require_reference(
    kind: str,
    data: Path | None,
    counterfactual: str | None,
    per_position: bool,
    from_file: bool = False,
) -> None:
    """Refuse options that do not belong together, before a model is loaded."""
    if kind not in ("zero", "mean", "counterfactual"):
        raise HeadlabError(f"--reference is zero, mean or counterfactual, not {kind!r}")
    if (kind == "mean") != (data is not None):
        raise HeadlabError("--reference mean and --reference-data FILE go together")
    if (kind == "counterfactual") != bool(counterfactual) and not from_file:
        raise HeadlabError("--reference counterfactual and --counterfactual TEXT go together")
    if per_position and kind != "mean":
        raise HeadlabError("--per-position goes with --reference mean")
