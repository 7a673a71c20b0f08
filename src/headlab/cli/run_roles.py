"""headlab run roles"""

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
    Tasks,
    Trust,
    given,
    run_app,
    run_spec,
)


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
    updates: Annotated[int | None, typer.Option(help="Of each of the three fits.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples of an update.")] = None,
    strength: Annotated[
        float | None, typer.Option("--lambda", help="Of G+, and minus that of G-. Default: 0.1")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm. Default: 1")] = None,
    reference: Annotated[
        str | None, typer.Option(help="What a closed gate gives: zero or mean.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Heads are ablated against: plus (G+), ones or raw.")
    ] = None,
    aggregated: Annotated[
        bool, typer.Option("--aggregated", help="One order for all seeds, by their mean score.")
    ] = False,
    random_orders: Annotated[int | None, typer.Option(help="The baseline.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float32 up to 1B parameters.")] = None,
    bos: Annotated[str | None, typer.Option(help="Start prompts with BOS: auto, yes, no.")] = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Which heads help, hurt, or do nothing? Learned gates, three roles, log-prob against heads."""
    from headlab.studies.spec import make_spec

    lists = {"models": models, "tasks": tasks, "seeds": seeds}
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
        "base": base,
        "aggregated": aggregated or None,
        "random_orders": random_orders,
        "dtype": dtype,
        "bos": bos,
    }
    spec = make_spec({"study": "roles", **given(lists, single)})
    run_spec(spec, folder, device, trust_remote_code, dry_run, quiet)
