"""headlab run roles, headlab run contrastive: the studies of learned gates"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headlab.cli.options import Quiet
from headlab.cli.run import (
    Device,
    DryRun,
    Models,
    Out,
    Seeds,
    Size,
    Tasks,
    Trust,
    given,
    run_app,
    run_spec,
)

Updates = Annotated[int | None, typer.Option(help="Of each fit.")]
Batch = Annotated[int | None, typer.Option(help="Examples of an update.")]
Clip = Annotated[float | None, typer.Option(help="Largest gradient norm. Default: 1")]
Reference = Annotated[str | None, typer.Option(help="What a closed gate gives: zero or mean.")]
Dtype = Annotated[str | None, typer.Option(help="Default: float32 up to 1B parameters.")]
Bos = Annotated[
    str | None,
    typer.Option(help="Start prompts with BOS: no (default), as in the paper; yes, auto."),
]


@run_app.command(
    "roles", epilog="Example: headlab run roles --models smollm2 --tasks syntax --size smoke"
)
def run_roles(
    models: Models = None,
    tasks: Tasks = None,
    size: Size = None,
    seeds: Seeds = None,
    data: Annotated[
        str | None, typer.Option(help="A folder with the published question files, or hub.")
    ] = None,
    train: Annotated[int | None, typer.Option(help="Examples to fit on. Default: all.")] = None,
    n: Annotated[int | None, typer.Option(help="Other examples to test on.")] = None,
    updates: Updates = None,
    batch: Batch = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--lambda", help="Of G+, and minus that of G- (strength in study files). Default: 0.1"
        ),
    ] = None,
    clip: Clip = None,
    reference: Reference = None,
    base: Annotated[
        str | None, typer.Option(help="Heads are ablated against: plus (G+), ones or raw.")
    ] = None,
    aggregated: Annotated[
        bool, typer.Option("--aggregated", help="One order for all seeds, by their mean score.")
    ] = False,
    random_orders: Annotated[int | None, typer.Option(help="The baseline.")] = None,
    dtype: Dtype = None,
    bos: Bos = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Which heads help, hurt, or do nothing? Learned gates, three roles, log-prob against heads."""
    lists = {"models": models, "tasks": tasks, "seeds": seeds}
    own = {"base": base, "aggregated": aggregated or None, "random_orders": random_orders}
    shared = _shared(size, data, train, n, updates, batch, strength, clip, reference, dtype, bos)
    _run("roles", lists, {**own, **shared}, folder, device, trust_remote_code, dry_run, quiet)


@run_app.command(
    "contrastive",
    epilog="Example: headlab run contrastive --models smollm2 --keep icl --size smoke",
)
def run_contrastive(
    models: Models = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Word tasks, each left out once, with commas between. Default: all six."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="The format kept: icl, instruction. Default: both in turn.")
    ] = None,
    size: Size = None,
    seeds: Seeds = None,
    data: Annotated[
        str | None, typer.Option(help="A folder with antonym.json and its like.")
    ] = None,
    train: Annotated[
        int | None, typer.Option(help="Pairs of each other task to fit on, at most.")
    ] = None,
    n: Annotated[int | None, typer.Option(help="Pairs of the task left out, at most.")] = None,
    updates: Updates = None,
    batch: Batch = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--lambda", help="How much open gates are preferred (strength in study files)."
        ),
    ] = None,
    clip: Clip = None,
    reference: Reference = None,
    dtype: Dtype = None,
    bos: Bos = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Can gates keep one prompt format and forget the other? Fitted on all tasks but one."""
    lists = {"models": models, "tasks": tasks, "keep": keep, "seeds": seeds}
    shared = _shared(size, data, train, n, updates, batch, strength, clip, reference, dtype, bos)
    _run("contrastive", lists, shared, folder, device, trust_remote_code, dry_run, quiet)


_SHARED = ("size", "data", "train", "n", "updates", "batch", "strength", "clip", "reference")


def _shared(*values: Any) -> dict[str, Any]:
    """What fits of all kinds are told, in the order of _SHARED, dtype and BOS last."""
    told = dict(zip((*_SHARED, "dtype", "bos"), values, strict=True))
    if told["data"] not in (None, "hub"):
        told["data"] = str(Path(told["data"]).expanduser().absolute())
    return told


def _run(study: str, lists: dict[str, Any], single: dict[str, Any], *how: Any) -> None:
    from headlab.studies.spec import make_spec

    run_spec(make_spec({"study": study, **given(lists, single)}), *how)
