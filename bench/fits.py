"""Ten seeds of a gate fit together, against ten single fits as one would write them.

    python bench/fits.py --shape smollm2-135m --length 40 --target 4

Random weights of a published shape, random prompts. The plain way has frozen weights, SDPA, the
same dtype, a hook that multiplies each head, full logits and torch's Adam; one of its fits is timed
and counted ten times. Updates are interleaved after a warm-up; medians are shown.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack

import torch
import transformers as hf
from check_shapes import SHAPES
from sweep import timed, words
from torch.nn.functional import cross_entropy

import headlab
from headlab import Example, Model
from headlab.gatefits import Schedule
from headlab.gatefits.fitting import FitWork, begin
from headlab.gatefits.rows import Rows
from headlab.gates import ZERO
from headlab.loading import DTYPES


class PlainFit:
    """A fit of one seed as one would write it."""

    def __init__(self, model: Model, examples: list[Example], batch: int):
        self.model, self.batch = model, batch
        pairs = [model.join(example.prompt, example.target) for example in examples]
        self.ids = torch.stack([ids for ids, _ in pairs]).to(model.device)
        self.start = pairs[0][1]
        self.logits = torch.zeros(model.n_layers, model.n_heads, device=model.device)
        self.logits.requires_grad_()
        self.adam = torch.optim.Adam([self.logits], lr=0.1)
        self.step = 0

    def update(self) -> float:
        first = self.step * self.batch % len(self.ids)
        ids = self.ids[first : first + self.batch]
        self.step += 1
        gates = self.logits.sigmoid().to(self.model.dtype)
        width = self.model.head_width
        with ExitStack() as stack:
            for layer, projection in enumerate(self.model.seam.projections):

                def gate(_, args, layer=layer):
                    return (args[0] * gates[layer].repeat_interleave(width), *args[1:])

                stack.callback(projection.register_forward_pre_hook(gate).remove)
            found = self.model.hf(ids, use_cache=False).logits
        wanted = found[:, self.start - 1 : -1].flatten(0, 1).float()
        nll = cross_entropy(wanted, ids[:, self.start :].flatten())
        (nll - 0.1 * self.logits.clamp(-4, 4).mean()).backward()
        torch.nn.utils.clip_grad_norm_([self.logits], 1.0)
        self.adam.step()
        self.adam.zero_grad()
        return float(nll.detach())


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    options.add_argument("--length", type=int, default=40, help="tokens, the target's among them")
    options.add_argument("--target", type=int, default=4)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--updates", type=int, default=5, help="in each repeat")
    options.add_argument("--no-plain", action="store_true")
    asked = options.parse_args()
    torch.manual_seed(0)
    with torch.device(asked.device):
        network = hf.AutoModelForCausalLM.from_config(
            SHAPES[asked.shape](), dtype=DTYPES[asked.dtype]
        )
    network.requires_grad_(False)
    model = Model(network, words(network.config.vocab_size), name=asked.shape)
    headlab.check(model).require()
    draw = torch.randint(1, model.vocabulary, (4 * asked.batch, asked.length)).tolist()
    split = asked.length - asked.target
    examples = [
        Example(
            " ".join(f"w{n}" for n in row[:split]),
            " " + " ".join(f"w{n}" for n in row[split:]),
            id=str(number),
        )
        for number, row in enumerate(draw)
    ]
    schedule = Schedule(batch=asked.batch)
    seeds = list(range(asked.seeds))
    work = FitWork(model, Rows(model, examples), schedule, ZERO)
    state = begin(model, seeds, schedule, 3 * len(seeds), work.budget())
    fits = [("free", seed) for seed in seeds]
    plain = PlainFit(model, examples, asked.batch)

    def ours() -> None:
        for _ in range(asked.updates):
            work.update(state, fits)

    def theirs() -> None:
        for _ in range(asked.updates):
            plain.update()

    fast, slow, peaks = [], [], [0.0, 0.0]
    for round_ in range(asked.repeats + 1):
        for number, (go, into) in enumerate(((ours, fast), (theirs, slow))):
            if go is theirs and asked.no_plain:
                continue
            if asked.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            seconds, _ = timed(go, asked.device)
            if asked.device == "cuda":
                peaks[number] = torch.cuda.max_memory_allocated() / 2**30
            if round_:  # the first warms up
                into.append(seconds / asked.updates)
    mine = statistics.median(fast)
    line = (
        f"{asked.shape} {asked.dtype}, {asked.batch} x {asked.length}, target {asked.target}, "
        f"{asked.seeds} seeds: an update of all {1000 * mine:.1f} ms ({state.tokens} tokens a "
        f"pass, {peaks[0]:.1f} GiB), 1,500 updates {1500 * mine / 60:.1f} min"
    )
    if slow:
        single = statistics.median(slow)
        line += (
            f"; a single plain fit {1000 * single:.1f} ms ({peaks[1]:.1f} GiB), "
            f"{asked.seeds} of them {asked.seeds * single / mine:.2f}x"
        )
    print(line, flush=True)


if __name__ == "__main__":
    main()
