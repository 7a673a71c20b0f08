"""What beginnings save on the built-in tasks.

    python bench/beginnings.py                        # SmolLM2, on a CPU some ten minutes
    python bench/beginnings.py --tasks commonsense,math,cogqa --prompts 60 --masks 20
    python bench/beginnings.py --model gpt2 --tasks ioi,greater-than --prompts 100

Where there are counterfactuals: that passes begin where a prompt and its own part. Of questions:
that what they begin with alike is run once for each mask. The same work with and without, in turns;
medians. Numbers must be the same, to rounding.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from typing import Any

import numpy as np
import torch
from common import plainly, timed
from torch import Tensor

import headlab
from headlab import Gates, Model, measure
from headlab.gatefits.rows import Rows
from headlab.gatefits.slopes import graph_budget, summed_slopes
from headlab.gates import ZERO
from headlab.gradients import gate_gradients
from headlab.tasks import is_generated, make_examples

_ALLOWED = {torch.float32: 1e-3, torch.float64: 1e-9}  # nats; of other dtypes it is only shown


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="smollm2")
    options.add_argument("--tasks", default="ioi,ioi-long,greater-than,docstring")
    options.add_argument("--prompts", type=int, default=12)
    options.add_argument("--heads", type=int, default=90, help="patched, evenly spaced")
    options.add_argument("--masks", type=int, default=30, help="random, half of the heads kept")
    options.add_argument("--repeats", type=int, default=3)
    asked = options.parse_args()
    model = headlab.load(asked.model)
    same = True
    for task in asked.tasks.split(","):
        paired = is_generated(task)
        way = "begins_late" if paired else "shares"
        if not getattr(model.restart, way, False):
            raise headlab.HeadlabError(f"{model.name} cannot do that: headlab check says why")
        examples = make_examples(model, task, asked.prompts)
        reference = "counterfactual" if paired else "zero"
        works = _works(model, examples, asked.heads, asked.masks, reference)
        if not paired:
            works["fit"] = _fit(model, examples)
        for name, work in works.items():
            seconds, difference = _compared(model, work, way, asked.repeats)
            same &= difference <= _ALLOWED.get(model.dtype, float("inf"))
            whole, late = seconds
            print(
                f"{task:20}{name:10}whole {whole:7.2f} s  now {late:7.2f} s  "
                f"{whole / late:5.2f}x  difference {difference:.1g}",
                flush=True,
            )
    if not same:
        sys.exit("numbers differ")


def _works(
    model: Model, examples: list[Any], heads: int, masks: int, reference: Any
) -> dict[str, Any]:
    each = Gates.each_head(model).values
    off = Gates(each[:: max(1, len(each) // heads), 0, :, :, 0])
    random = torch.Generator().manual_seed(0)
    shape = model.n_layers, model.n_heads
    kept = Gates((torch.rand(masks, *shape, generator=random) > 0.5).float())
    steps = Gates(((torch.arange(5) + 0.5) / 5)[:, None, None].repeat(1, *shape))
    given = "log-prob", reference
    works = {
        "off" if reference == "zero" else "patch": lambda: (
            measure(model, examples, off, *given).values
        ),
        "keep": lambda: measure(model, examples, kept, *given).values,
    }
    if reference == "counterfactual":
        works["attribute"] = lambda: gate_gradients(model, examples, steps, *given).gradient
    return works


def _fit(model: Model, examples: list[Any]) -> Any:
    """The slopes of one update of one gate fit."""
    batch = min(64, len(examples))
    numbers = np.random.default_rng(0).permutation(len(examples))[:batch]
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(1, model.n_layers, model.n_heads, generator=drawn).to(model.device)

    def slopes() -> Tensor:
        rows = Rows(model, examples, batch)
        given = rows, ZERO, logits, numbers, graph_budget(model, rows)
        return summed_slopes(model, *given, lambda log_probs, _: -log_probs)[1].cpu()

    return slopes


def _compared(model: Model, work: Any, way: str, repeats: int) -> tuple[list[float], float]:
    """Seconds without and with this way, and how far their numbers are apart."""
    assert model.restart is not None
    ways = [dataclasses.replace(model.restart, **{way: on}) for on in (False, True)]
    times: list[list[float]] = [[], []]
    found: list[Tensor] = [torch.empty(0)] * 2
    for turn in range(repeats + 1):
        for number, model.restart in enumerate(ways):
            seconds, found[number] = timed(work, model.device.type)
            if turn:  # after a warm-up
                times[number].append(seconds)
    return [statistics.median(each) for each in times], float((found[0] - found[1]).abs().max())


if __name__ == "__main__":
    plainly(main)
