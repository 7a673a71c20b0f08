"""Do the heads that find_types names matter? Log-prob of random tokens said twice, without them.

    python bench/head_types.py --model smollm2

The heads are named on sequences of seed 0 and taken away (set to zero) on others, of seed 1; as
many random ones of the rest stand beside them, 20 draws.
"""

from __future__ import annotations

import argparse
import random

import torch

import headlab
from headlab import Gates
from headlab.attention import find_types
from headlab.attention.types import repeated


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="smollm2")
    options.add_argument("--heads", type=int, default=5)
    options.add_argument("--length", type=int, default=64)
    asked = options.parse_args()
    model = headlab.load(asked.model)
    types = find_types(model, length=asked.length, seed=0)
    ids = repeated(model, 8, asked.length, seed=1)
    start = ids.shape[1] - 2 * asked.length

    def halves(heads: list[headlab.Head]) -> tuple[float, float]:
        gates = Gates.ablate(model, heads) if heads else Gates.ones(model)
        with torch.no_grad(), model.gated(gates):
            told = torch.cat([model([row]).log_softmax(-1) for row in ids])
        each = told[:, :-1].gather(-1, ids[:, 1:, None].to(told.device))[..., 0]
        middle = start + asked.length
        return float(each[:, start : middle - 1].mean()), float(each[:, middle:].mean())

    print("all heads: first half {:.2f}, repetition {:.2f}".format(*halves([])), flush=True)
    named = {name: [head for head, _ in types.top(name, asked.heads)] for name in types.scores}
    for name in ("induction", "previous-token", "duplicate-token"):
        first, second = halves(named[name])
        told = f"without {asked.heads} {name} heads: first half {first:.2f}"
        print(f"{told}, repetition {second:.2f}", flush=True)
    some = types.as_head_scores("induction").heads
    rest = [head for head in some if not any(head in own for own in named.values())]
    draw = random.Random(0)
    found = [halves(draw.sample(rest, asked.heads))[1] for _ in range(20)]
    print(
        f"without {asked.heads} others: repetition {sum(found) / 20:.2f} ({min(found):.2f} to "
        f"{max(found):.2f}, 20 draws)"
    )


if __name__ == "__main__":
    main()
