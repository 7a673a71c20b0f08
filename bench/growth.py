"""How the time and memory of a sweep over all heads grow, and the largest sweeps that must run.

    python bench/growth.py --shape llama-3.2-1b --out growth.json
    python bench/growth.py --large all                   # the 8B shape, one GPU

Random weights; prompts, tokens, layers and heads are doubled one after the other, all else fixed.
Slopes are of log seconds, and of log GiB beside the weights, against the log of what was doubled.
With more heads each is narrower, so that the weights stay as many.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from common import GIB, SHAPES, Kept, model_of, plainly, timed
from works import Ablate

import headlab
from headlab import Gates
from headlab.loading import DTYPES

AXES = {
    "prompts": [16, 32, 64, 128],
    "tokens": [16, 32, 64, 128],
    "layers": [4, 8, 16, 32],
    "heads": [8, 16, 32, 64],
}
LARGE = {"one": "one head a layer", "every": "every head"}
SMALL = {
    "prompts": [4, 8, 16],
    "tokens": [8, 16, 32],
    "layers": [4, 8, 16],
    "heads": [4, 8, 16],
}


def measured(
    shape: str, dtype: str, device: str, repeats: int, **changed: int
) -> tuple[float, float]:
    """Seconds of a sweep, and GiB beside the weights."""
    config = SHAPES[shape]()
    if "layers" in changed:
        config.num_hidden_layers = changed["layers"]
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:1] * changed["layers"]
    if "heads" in changed:
        config.num_attention_heads = changed["heads"]
        config.num_key_value_heads = max(1, changed["heads"] // 4)
        config.head_dim = config.hidden_size // changed["heads"]
    model = model_of(config, shape, dtype, device)
    small = shape == "small"
    work = Ablate(
        model,
        changed.get("prompts", 8 if small else 32),
        changed.get("tokens", 16 if small else 32),
    )
    work.ours()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(timed(work.ours, device)[0] for _ in range(repeats))
    peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else math.nan
    return seconds, peak / GIB


def slope(xs: list[int], ys: list[float]) -> float:
    """Of log y against log x."""
    x, y = ([math.log(each) for each in own] for own in (xs, ys))
    return statistics.linear_regression(x, y).slope


def grow(asked: argparse.Namespace) -> Iterator[tuple[str, dict]]:
    for axis, sizes in (SMALL if asked.shape == "small" else AXES).items():
        rows = [
            measured(asked.shape, asked.dtype, asked.device, asked.repeats, **{axis: n})
            for n in sizes
        ]
        seconds, memory = [row[0] for row in rows], [row[1] for row in rows]
        steep = slope(sizes, seconds)
        line = f"{axis:8} {sizes}: {[round(each, 3) for each in seconds]} s, slope {steep:.2f}"
        if not math.isnan(memory[0]):
            line += f"; {[round(each, 2) for each in memory]} GiB, slope {slope(sizes, memory):.2f}"
        print(line, flush=True)
        yield axis, {"sizes": sizes, "seconds": seconds, "memory": memory}


def large(asked: argparse.Namespace) -> Iterator[tuple[str, dict]]:
    """One head a layer on many long prompts, and every head on middling ones."""
    model = model_of(SHAPES["llama-3.1-8b"](), "llama-3.1-8b", asked.dtype, asked.device)
    every = Gates.each_head(model)
    one = Gates(every.values[:: model.n_heads, 0, :, :, 0])
    for part, gates, prompts, length in (("one", one, 256, 512), ("every", every, 64, 128)):
        if asked.large not in (part, "all"):
            continue
        name = LARGE[part]
        work = Ablate(model, prompts, length)
        if asked.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds, table = timed(
            lambda gates=gates, work=work: headlab.measure(model, work.examples, gates),
            asked.device,
        )
        peak = torch.cuda.max_memory_allocated() / GIB if asked.device == "cuda" else math.nan
        print(
            f"{name}, {prompts} x {length}: {seconds:.1f} s, {peak:.1f} GiB at most with the "
            f"weights, passes of {table.budget} tokens"
            f"{', made smaller on the way' if table.backed_off else ''}",
            flush=True,
        )
        yield name, {"size": [prompts, length], "seconds": seconds, "memory": peak}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", choices=SHAPES, default="small")
    options.add_argument(
        "--large", choices=[*LARGE, "all"], help="instead, of the 8B shape: large sweeps"
    )
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--dtype", choices=DTYPES)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--out", type=Path, help="results as JSON, added to those in it")
    asked = options.parse_args()
    asked.dtype = asked.dtype or ("bfloat16" if asked.device == "cuda" else "float32")
    kept = Kept(asked.out)
    own = kept.found.setdefault("large" if asked.large else asked.shape, {})
    for name, found in large(asked) if asked.large else grow(asked):
        own[name] = found
        kept.write()


if __name__ == "__main__":
    plainly(main)
