"""headlab run fillers"""

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
from headlab.errors import HeadlabError


@run_app.command(
    "fillers",
    epilog="Example: headlab run fillers --models smollm2 --conditions none,mless,mful --n 20",
)
def run_fillers(
    models: Models = None,
    conditions: Annotated[
        str | None,
        typer.Option(
            help="Of none, mless, mful, gap, random, arm, with commas between; others are written "
            "in a study file (headlab new fillers)."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", "--tasks", help="arithmetic (built in), math500, gsm8k, with commas between."
        ),
    ] = None,
    size: Size = None,
    seeds: Seeds = None,
    data: Annotated[
        str | None, typer.Option(help="A folder with math500/test.jsonl or gsm8k's, or hub.")
    ] = None,
    n: Annotated[int | None, typer.Option(help="Problems; default: of the size.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Each condition also in the model's chat template.")
    ] = False,
    heads: Annotated[
        str | None,
        typer.Option(help="Whose attention is looked at: L0H13, or L0 (default): a whole layer."),
    ] = None,
    attention_n: Annotated[
        int | None, typer.Option(help="Problems on which heads are looked at; 0: none.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Of an answer.")] = None,
    temperature: Annotated[
        str | None,
        typer.Option(
            help="Draw tokens at this temperature, once for each of --seeds; model: as the model's "
            "own settings say. Default: greedy."
        ),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the likeliest that have so much together.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A text that ends an answer; may be given again.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float32 up to 1B parameters.")] = None,
    bos: Annotated[str | None, typer.Option(help="Start prompts with BOS: auto, yes, no.")] = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Do filler tokens before a question help? Accuracy with paired tests, and attention."""
    from headlab.studies.spec import make_spec

    lists = {"models": models, "conditions": conditions, "tasks": task, "seeds": seeds}
    lists |= {"heads": heads}
    single = {
        "size": size,
        "data": data if data in (None, "hub") else str(Path(data).expanduser().absolute()),
        "n": n,
        "chat": chat or None,
        "attention_n": attention_n,
        "max_new_tokens": max_new_tokens,
        "temperature": _temperature(temperature),
        "top_p": top_p,
        "stop": stop or None,
        "dtype": dtype,
        "bos": bos,
    }
    spec = make_spec({"study": "fillers", **given(lists, single)})
    run_spec(spec, folder, device, trust_remote_code, dry_run, quiet)


def _temperature(text: str | None) -> float | str | None:
    if text in (None, "greedy", "model"):
        return text
    try:
        return float(text)
    except ValueError:
        raise HeadlabError(
            f"--temperature is a number such as 0.6, model or greedy, not {text!r}"
        ) from None
