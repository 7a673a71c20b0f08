"""headlab run masking"""

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
    "masking",
    epilog="Example: headlab run masking --models smollm2 --functions retrieval --size smoke",
)
def run_masking(
    models: Models = None,
    functions: Annotated[
        str | None,
        typer.Option(
            help="Cognitive functions, with commas between. Default: retrieval, knowledge-recall, "
            "math-calculation, inference."
        ),
    ] = None,
    ks: Annotated[
        str | None,
        typer.Option(
            help="Heads masked: 16,32,64 (also elbow), or shares (default): 1.6 to 12.5 % of all."
        ),
    ] = None,
    rank_by: Annotated[
        str | None,
        typer.Option(help="probe (default), gates, ablate, attribute, with commas between."),
    ] = None,
    size: Size = None,
    seeds: Seeds = None,
    data: Annotated[
        str | None, typer.Option(help="A folder with CogQA's train.json and test.json.")
    ] = None,
    train: Annotated[
        int | None, typer.Option(help="Questions of each function to rank on, at most.")
    ] = None,
    n: Annotated[
        int | None, typer.Option(help="Questions of each function to test on, at most.")
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="Random heads for each K, the baseline.")
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(help="Masks act on generated tokens (default), or on all: the prompt too."),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="What z of a masked head is multiplied by. Default: 0.0001")
    ] = None,
    boost: Annotated[
        float | None,
        typer.Option(help="Also push the top heads towards right answers, so strongly: 5."),
    ] = None,
    cross: Annotated[
        bool | None,
        typer.Option(
            "--cross/--no-cross", help="Also one function's heads on another's questions."
        ),
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Of an answer.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Of the probe. Default: 100")] = None,
    updates: Annotated[int | None, typer.Option(help="Of the gates, where they rank.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float32 up to 1B parameters.")] = None,
    bos: Annotated[str | None, typer.Option(help="Start prompts with BOS: auto, yes, no.")] = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Do the top heads of a function carry it? Accuracy and text quality against masked heads."""
    from headlab.studies.spec import make_spec

    lists = {"models": models, "functions": functions, "rank_by": rank_by, "seeds": seeds}
    lists |= {"ks": ks if ks != "shares" else None}
    single = {
        "size": size,
        "ks": "shares" if ks == "shares" else None,
        "data": None if data is None else str(Path(data).expanduser().absolute()),
        "train": train,
        "n": n,
        "draws": draws,
        "positions": positions,
        "scale": scale,
        "boost": boost,
        "cross": cross,
        "max_new_tokens": max_new_tokens,
        "epochs": epochs,
        "updates": updates,
        "dtype": dtype,
        "bos": bos,
    }
    spec = make_spec({"study": "masking", **given(lists, single)})
    run_spec(spec, folder, device, trust_remote_code, dry_run, quiet)
