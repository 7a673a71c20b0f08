"""Answers to a whole problem set under a condition, against plain `generate`, one at a time.

    python bench/fillers.py --data FOLDER --task math500 --new 256

Prompts of the real model and problems. The plain way has frozen weights, SDPA, the same dtype and
batches of one, and is timed on 8 problems drawn by a seed; Headlab writes all. Neither stops at an
end-of-text token, so that both write as many tokens each. Runs are interleaved after a warm-up;
medians are shown, as tokens a second.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

import torch
from common import timed

import headlab
from headlab import Model
from headlab.fillers import build, parse_conditions
from headlab.loading import DTYPES
from headlab.tasks.problems import load_problems, needs_data


def plain(model: Model, prompts: list[torch.Tensor], new: int) -> int:
    """What a user would write; gives the tokens written."""
    written = 0
    for ids in prompts:
        ids = ids.to(model.device)[None]
        found = model.hf.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        written += found.shape[1] - ids.shape[1]
    return written


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="smollm2")
    options.add_argument("--task", default="math500")
    options.add_argument("--data", help="a folder with math500/test.jsonl")
    options.add_argument("--condition", default="mless")
    options.add_argument("--n", type=int, help="problems; default: all")
    options.add_argument("--alone", type=int, default=8, help="problems of the plain way")
    options.add_argument("--new", type=int, default=256)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = options.parse_args()
    model = headlab.load(asked.model, dtype=asked.dtype, device=asked.device)
    model.hf.generation_config.eos_token_id = model.hf.config.eos_token_id = None
    problems = load_problems(asked.task, asked.data if needs_data(asked.task) else None, asked.n)
    (condition,) = parse_conditions(asked.condition)
    prompts = [build(model, condition, problem.question).ids for problem in problems]
    few = random.Random(0).sample(prompts, min(asked.alone, len(prompts)))

    def ours() -> int:
        found = headlab.generate(model, prompts, max_new_tokens=asked.new)
        return sum(len(each.ids) for each in found.rows[0])

    ways = {"headlab": ours, "plain": lambda: plain(model, few, asked.new)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    ours(), plain(model, few[:1], asked.new)  # warm-up
    for _ in range(asked.repeats):
        for name, way in ways.items():
            seconds, tokens = timed(way, asked.device)
            rates[name].append(tokens / seconds)
            print(f"{name} {rates[name][-1]:,.0f} tokens/s", file=sys.stderr, flush=True)
    middle = {name: statistics.median(own) for name, own in rates.items()}
    print(
        f"{asked.model} {asked.dtype}, {len(prompts)} prompts of {asked.task} with "
        f"{condition.name}, {asked.new} new tokens: Headlab {middle['headlab']:,.0f} tokens/s; "
        f"generate, one at a time ({len(few)} of them) {middle['plain']:,.0f} tokens/s; ratio "
        f"{middle['headlab'] / middle['plain']:.1f}x",
        flush=True,
    )


if __name__ == "__main__":
    main()
