"""What `headlab rank --exact N` saves, and what it misses, against a ranking that runs every head.

    python bench/screening.py                         # SmolLM2, on a CPU some twenty minutes
    python bench/screening.py --model gpt2 --tasks ioi,greater-than --prompts 100
    python bench/screening.py --shape llama-3.1-8b --exact 64     # random weights: only the time

For each number of heads: seconds in the same run, how many of the ten largest scores (whatever
their sign) and of the ten first heads of the order were run, rank correlation, the largest score
that was not run and its place; with --curves, how many heads explain 90 % of the effect on as many
other prompts, by either order.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from common import SHAPES, plainly, random_model, timed
from scipy.stats import spearmanr
from works import Patch

import headlab
from headlab import Example, HeadScores, Model
from headlab.curves import NoEffect
from headlab.files import as_json, require_folder, write_whole
from headlab.loading import DTYPES
from headlab.tasks import TASKS


def heads_needed(
    model: Model, others: Sequence[Example], scores: HeadScores, by: str
) -> int | None:
    """How many explain 90 %."""
    try:
        return headlab.curve(model, others, scores, measure_by=by).crossing(0.9)
    except NoEffect:
        return None


def compared(whole: HeadScores, some: HeadScores) -> dict[str, float | str]:
    """What is found of the whole, and what is not."""
    size = whole.score.abs()
    by_size = sorted(whole.heads, key=lambda head: -float(size[head]))
    unrun = {head for head in whole.heads if some.is_estimated[head]}
    missed = next(number for number, head in enumerate(by_size) if head in unrun)
    return {
        "run": len(by_size) - len(unrun),
        "ten largest": sum(head not in unrun for head in by_size[:10]),
        "ten first": len(set(whole.order()[:10]) & set(some.order()[:10])),
        "spearman": float(spearmanr(whole.score.flatten(), some.score.flatten()).statistic),
        "first not run": missed + 1,
        "its share of the largest": float(size[by_size[missed]] / size[by_size[0]]),
        "its head": str(by_size[missed]),
    }


def study(
    model: Model,
    examples: Sequence[Example],
    numbers: list[int],
    by: str,
    others: Sequence[Example] = (),
) -> dict[str, object]:
    device = model.device.type
    headlab.rank(model, examples[:4], "patch", by, exact=1)  # a warm-up
    seconds, whole = timed(lambda: headlab.rank(model, examples, "patch", by), device)
    print(f"  all {model.n_layers * model.n_heads} heads: {seconds:.2f} s", flush=True)
    found: dict[str, object] = {"seconds": seconds}
    if others:
        found["k90"] = heads_needed(model, others, whole, by)
        print(f"  k90 {found['k90']}", flush=True)
    rows: dict[str, dict[str, object]] = {}
    for n in numbers:
        spent, some = timed(lambda n=n: headlab.rank(model, examples, "patch", by, exact=n), device)
        if not some.estimated:
            continue
        row: dict[str, object] = {
            "seconds": spent,
            "ratio": seconds / spent,
            **compared(whole, some),
        }
        if others:
            row["k90"] = heads_needed(model, others, some, by)
        told = ", ".join(
            f"{name} {each:.2f}" if isinstance(each, float) else f"{name} {each}"
            for name, each in row.items()
        )
        print(f"  exact {n}: {told}", flush=True)
        rows[str(n)] = row
    return {**found, "exact": rows}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="smollm2")
    options.add_argument("--tasks", default="ioi,ioi-long,greater-than,docstring")
    options.add_argument("--shape", choices=SHAPES, help="instead: random weights and prompts")
    options.add_argument("--prompts", type=int, default=32)
    options.add_argument("--length", type=int, default=64, help="of a prompt of --shape, in tokens")
    options.add_argument("--exact", default="10,20,40,80")
    options.add_argument("--curves", action="store_true")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--dtype", choices=DTYPES)
    options.add_argument("--out", type=Path, help="results as JSON")
    asked = options.parse_args()
    numbers = [int(each) for each in asked.exact.split(",")]
    if asked.out is not None:
        require_folder(asked.out.parent)
    dtype = asked.dtype or ("bfloat16" if asked.shape and asked.device == "cuda" else "float32")
    found = {}
    if asked.shape:
        model = random_model(asked.shape, dtype, asked.device)
        print(f"{asked.shape}, {asked.prompts} x {asked.length}", flush=True)
        examples = Patch(model, asked.prompts, asked.length).examples
        found[asked.shape] = study(model, examples, numbers, "log-prob")
    else:
        model = headlab.load(asked.model, device=asked.device, dtype=dtype)
        for task in asked.tasks.split(","):
            print(f"{task}, {asked.prompts} prompts", flush=True)
            examples = headlab.make_examples(model, task, asked.prompts)
            others = []
            if asked.curves:
                ranked = {each.fingerprint for each in examples}
                others = headlab.make_examples(model, task, asked.prompts, without=ranked)
            found[task] = study(model, examples, numbers, TASKS[task].measure, others)
    if asked.out is not None:
        write_whole(asked.out, as_json(found) + "\n")


if __name__ == "__main__":
    plainly(main)
