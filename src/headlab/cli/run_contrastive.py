"""headlab run contrastive"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlab.cli.options import Quiet
from headlab.cli.run import (
    Device,
    DryRun,
    Models,
    Out,
    Seeds,
    Size,
    Trust,
    given,
    run_app,
    run_spec,
)


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
    updates: Annotated[int | None, typer.Option(help="Of the fit.")] = None,
    batch: Annotated[int | None, typer.Option(help="Pairs of an update.")] = None,
    strength: Annotated[
        float | None, typer.Option("--lambda", help="How much open gates are preferred.")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm. Default: 1")] = None,
    reference: Annotated[
        str | None, typer.Option(help="What a closed gate gives: zero or mean.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float32 up to 1B parameters.")] = None,
    bos: Annotated[str | None, typer.Option(help="Start prompts with BOS: auto, yes, no.")] = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Can gates keep one prompt format and forget the other? Fitted on all tasks but one."""
    from headlab.studies.spec import make_spec

    lists = {"models": models, "tasks": tasks, "keep": keep, "seeds": seeds}
    single = {
        "size": size,
        "data": data if data in (None, "hub") else str(Path(data).expanduser().absolute()),
        "train": train,
        "n": n,
        "updates": updates,
        "batch": batch,
        "strength": strength,
        "clip": clip,
        "reference": reference,
        "dtype": dtype,
        "bos": bos,
    }
    spec = make_spec({"study": "contrastive", **given(lists, single)})
    run_spec(spec, folder, device, trust_remote_code, dry_run, quiet)
