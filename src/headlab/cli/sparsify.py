"""headlab sparsify"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, err, out
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

if TYPE_CHECKING:
    from headlab.sparse.running import Sparsified


@app.command(
    epilog="Example: headlab sparsify smollm2 --data novels.txt.gz --levels 30,10,3 --twin --out S"
)
@loads_a_model
def sparsify(
    model: ModelName,
    loading: dict[str, Any],
    data: Annotated[
        list[str],
        typer.Option(
            help=".txt or .jsonl (text), .gz of either; hub or hub:NAME:CONFIG. Again for more."
        ),
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for levels, final, twin, log.")],
    constraint: Annotated[
        str, typer.Option(help="kl: distance to the dense model; loss: above its loss.")
    ] = "kl",
    bound: Annotated[
        float | None, typer.Option(help="Nats a token. Default: 0.2 of kl, 0.05 of loss.")
    ] = None,
    levels: Annotated[
        str,
        typer.Option(
            help="Percent of edges at which a model is saved, the densest first; or none."
        ),
    ] = "30,10,3",
    steps: Annotated[int | None, typer.Option(help="Default: 1000")] = None,
    batch: Annotated[int | None, typer.Option(help="Contexts in a step. Default: 64")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens. Default: 128")] = None,
    rate: Annotated[float | None, typer.Option(help="Of weights. Default: 1e-4")] = None,
    gate_rate: Annotated[float | None, typer.Option(help="Of b. Default: 1e-2")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps. Default: 50, at most a tenth.")] = None,
    start: Annotated[
        float | None, typer.Option(help="b of every head at first. Default: 6")
    ] = None,
    distill: Annotated[
        float | None, typer.Option(help="Weight of the distance to the dense model. Default: 1")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Weight of the penalty on edges at first. Default: 0.01")
    ] = None,
    dual: Annotated[
        float | None, typer.Option(help="How fast β follows. Default: 0.02 of kl, 0.1 of loss.")
    ] = None,
    smooth: Annotated[
        float | None, typer.Option(help="Of the constraint's running mean. Default: 0.9")
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="Tune adapters of this rank instead of all weights.")
    ] = None,
    twin: Annotated[
        bool, typer.Option("--twin", help="Train the dense twin too, for as many steps.")
    ] = False,
    twin_only: Annotated[
        bool,
        typer.Option("--twin-only", help="The twin alone, beside a sparse training elsewhere."),
    ] = False,
    texts: Annotated[
        list[str] | None, typer.Option("--eval", help="More text to measure the loss on.")
    ] = None,
    watch: Annotated[
        str, typer.Option(help="Tasks measured on the way (headlab tasks), or none.")
    ] = "ioi,ioi-long",
    every: Annotated[int, typer.Option(help="Steps between two measurements.", min=1)] = 100,
    keep_every: Annotated[int, typer.Option(help="Steps between two states on disk.", min=1)] = 200,
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Turn a model into one with sparse attention: close edges while it stays near the dense one.

    An edge from a query to a key is open where the attention logit and the head's own b say so.
    Interrupted or killed, the same command goes on.
    """
    if twin and twin_only:
        raise HeadlabError("--twin is beside the sparse training, --twin-only alone: give one")
    from headlab.sparse.running import Order, sparsify
    from headlab.sparse.settings import make_settings
    from headlab.sparse.stopping import Interrupted

    settings = make_settings(
        constraint,
        **{
            "bound": bound,
            "levels": _numbers(levels),
            "steps": steps,
            "batch": batch,
            "context": context,
            "rate": rate,
            "gate_rate": gate_rate,
            "warmup": warmup,
            "start": start,
            "distill": distill,
            "beta": beta,
            "dual": dual,
            "smooth": smooth,
            "lora": lora,
            "seed": seed,
        },
    )
    _require(loading)
    order = Order(
        load=_loader(model, loading, full=lora is None, quiet=quiet),
        data=data,
        out=out_folder.expanduser(),
        twin=twin or twin_only,
        sparse=not twin_only,
        texts=texts or [],
        tasks=[] if watch == "none" else [name for name in watch.split(",") if name],
        dtype=_products(loading, full=lora is None),
        every=every,
        keep_every=keep_every,
        told=lambda line: (
            None if quiet else err.print(escape(line), highlight=False, soft_wrap=True)
        ),
    )
    total = settings.steps * (order.sparse + order.twin)
    try:
        with progress("training", total, quiet) as advance:
            found = sparsify(replace(order, progress=advance), settings)
    except Interrupted as stopped:
        err.print(f"interrupted; the same command goes on after step {stopped.step}")
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        err.print("interrupted; the same command goes on from the last state, if one was kept")
        raise typer.Exit(130) from None
    if as_json:
        print_json(
            {"model": found.model, "folder": str(found.folder.resolve()), "rows": found.rows}
        )
        return
    if not quiet:
        _print(found)
    print(found.folder.resolve())


def _numbers(text: str) -> tuple[float, ...]:
    if text == "none":
        return ()
    parts = [part for part in re.split(r"[,\s]+", text.strip()) if part]
    try:
        return tuple(float(part.removesuffix("%")) for part in parts)
    except ValueError:
        raise HeadlabError(f"levels are numbers like 30,10,3, not {text!r}") from None


def _require(loading: dict[str, Any]) -> None:
    if loading["attn_implementation"] is not None:
        raise HeadlabError("sparse attention is an implementation of its own; leave --attn out")
    if loading["device_map"] is not None:
        raise HeadlabError("training runs on one device; leave --device-map out")


def _products(loading: dict[str, Any], full: bool) -> Any:
    """The dtype of products in training: bfloat16 on a GPU unless another is given."""
    import torch

    from headlab.loading import DTYPES, usable_device

    device = loading["device"]
    on_gpu = usable_device(device).type == "cuda" if device else torch.cuda.is_available()
    name = loading["dtype"] or ("bfloat16" if on_gpu else "float32")
    if name not in DTYPES:
        raise HeadlabError(f"dtype is one of {', '.join(DTYPES)}, not {name!r}")
    if name == "float16":
        raise HeadlabError("float16 has too little room for slopes; train in bfloat16 or float32")
    if full and not on_gpu and name != "float32":
        raise HeadlabError(f"on a CPU all weights are trained in float32, not {name}")
    return DTYPES[name]


def _loader(model: str, loading: dict[str, Any], full: bool, quiet: bool) -> Any:
    """A new copy each time, checked the first time. Weights that are all trained are float32: small
    steps need it."""
    options = {**loading, "dtype": "float32"} if full else loading
    times = itertools.count()
    return lambda: load_model(model, options, quiet, check=next(times) == 0)


def _print(found: Sparsified) -> None:
    keys = [key for key in found.rows["dense"] if key not in ("map", "step", "name", "edges")]
    table = new_table("model", "step", "edges", *keys, "in bound")
    for name, row in found.rows.items():
        values = [f"{100 * row['edges']:.2f} %", *(f"{row[key]:.3f}" for key in keys)]
        within = {None: "", True: "yes", False: "no"}[row.get("in bound")]
        table.add_row(name, str(row["step"]), *values, within)
    print_table(table)
    for sentence in _told(found):
        out.print(sentence, highlight=False, soft_wrap=True)


def _told(found: Sparsified) -> list[str]:
    """What the columns are, and why a level is missing."""
    settings = found.settings
    told = [
        f"(edges: causal ones open on held-out text, {settings.context} tokens a context, mean "
        "over heads; kl from the dense model and losses: nats a token; tasks: their own measure, "
        f"all heads; bound: {settings.constraint} {settings.bound:g})"
    ]
    start = 100 * found.rows.get("start", {"edges": 1.0})["edges"]
    for level in found.missed:
        why = "not reached; more --steps or a larger --bound would help"
        if level >= start:
            why = f"none, since the start (--start) leaves {start:.1f} % open"
        told.append(f"level {level:g} %: {why}")
    return told
