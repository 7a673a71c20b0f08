"""headlab ablate"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headlab.cli.app import app
from headlab.cli.options import AsJson, ModelName, Quiet, load_model, loads_a_model, status
from headlab.cli.printing import print_ablation, print_json
from headlab.errors import HeadlabError


# Short enough not to be wrapped inside its quotes.
@app.command(epilog="Example: headlab ablate smollm2 --prompt 'The sky is' --heads L23H4,5.1")
@loads_a_model
def ablate(
    model: ModelName,
    loading: dict[str, Any],
    prompt: Annotated[str, typer.Option(help="The text before the target.", show_default=False)],
    heads: Annotated[
        str, typer.Option(help="Comma-separated: L5H1, 5.1 or a5.h1.", show_default=False)
    ],
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
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Switch heads off (or keep only some) and compare the answer before and after."""
    from headlab.heads import parse_heads
    from headlab.prompts import read_prompts

    named = parse_heads(heads)  # what the user typed is read before a model is loaded
    _require_reference(reference, reference_data, counterfactual, per_position)
    if not prompt:
        raise HeadlabError("the prompt is empty; give at least one word")
    if target == "":
        raise HeadlabError("the target is empty; give the text whose log-prob you want")
    data = read_prompts(reference_data) if reference_data else []
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
            reference_data=data,
            per_position=per_position,
            counterfactual=counterfactual,
        )
    if as_json:
        print_json(result.as_dict())
    elif quiet:
        print(f"{result.before.log_prob:.6f}\t{result.after.log_prob:.6f}\t{result.change:.6f}")
    else:
        print_ablation(result)


def _require_reference(
    kind: str, data: Path | None, counterfactual: str | None, per_position: bool
) -> None:
    """Refuse options that do not belong together, before a model is loaded."""
    if kind not in ("zero", "mean", "counterfactual"):
        raise HeadlabError(f"--reference is zero, mean or counterfactual, not {kind!r}")
    if (kind == "mean") != (data is not None):
        raise HeadlabError("--reference mean and --reference-data FILE go together")
    if (kind == "counterfactual") != bool(counterfactual):
        raise HeadlabError("--reference counterfactual and --counterfactual TEXT go together")
    if per_position and kind != "mean":
        raise HeadlabError("--per-position goes with --reference mean")
