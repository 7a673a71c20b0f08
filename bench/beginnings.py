"""What it saves that passes begin where prompt and counterfactual part, on the built-in tasks.

    python bench/beginnings.py                        # SmolLM2, on a CPU some ten minutes
    python bench/beginnings.py --model gpt2 --tasks ioi,greater-than --prompts 100

The same work with and without, in turns; medians. Numbers must be the same, to rounding.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from typing import Any

import torch
from common import plainly, timed
from torch import Tensor

import headlab
from headlab import Gates, Model, measure
from headlab.gradients import gate_gradients
from headlab.tasks import make_examples

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
    if model.restart is None or not model.restart.begins_late:
        raise headlab.HeadlabError(f"passes of {model.name} cannot begin late: headlab check says")
    same = True
    for task in asked.tasks.split(","):
        examples = make_examples(model, task, asked.prompts)
        for name, work in _works(model, examples, asked.heads, asked.masks).items():
            seconds, difference = _compared(model, work, asked.repeats)
            same &= difference <= _ALLOWED.get(model.dtype, float("inf"))
            whole, late = seconds
            print(
                f"{task:14}{name:11}whole {whole:7.2f} s  late {late:7.2f} s  "
                f"{whole / late:5.2f}x  difference {difference:.1g}",
                flush=True,
            )
    if not same:
        sys.exit("numbers differ")


def _works(model: Model, examples: list[Any], heads: int, masks: int) -> dict[str, Any]:
    each = Gates.each_head(model).values
    patched = Gates(each[:: max(1, len(each) // heads), 0, :, :, 0])
    random = torch.Generator().manual_seed(0)
    shape = model.n_layers, model.n_heads
    kept = Gates((torch.rand(masks, *shape, generator=random) > 0.5).float())
    steps = Gates(((torch.arange(5) + 0.5) / 5)[:, None, None].repeat(1, *shape))
    given = "log-prob", "counterfactual"
    return {
        "patch": lambda: measure(model, examples, patched, *given).values,
        "keep": lambda: measure(model, examples, kept, *given).values,
        "attribute": lambda: gate_gradients(model, examples, steps, *given).gradient,
    }


def _compared(model: Model, work: Any, repeats: int) -> tuple[list[float], float]:
    """Seconds whole and late, and how far their numbers are apart."""
    assert model.restart is not None
    ways = [dataclasses.replace(model.restart, begins_late=late) for late in (False, True)]
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
