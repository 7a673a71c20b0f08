"""Text under many masks: Headlab's writer against transformers' `generate` with hooks.

    python bench/generation.py --shape smollm2-135m --prompts 64 --length 64 --masks 9 --new 128

Random weights of a published shape, random prompts of one length, masks of random heads at 0 on
generated tokens. The plain way has frozen weights, SDPA, the same dtype and all prompts in one
batch, and runs one mask at a time. Runs are interleaved after a warm-up; medians are shown. The
floor is, for every step, the larger of the bytes that must be read (weights once, each row's keys
and values) over the measured bandwidth and the arithmetic over the measured matrix rate.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from contextlib import ExitStack

import torch
import transformers as hf
from check_shapes import SHAPES
from sweep import matrix_rate, timed, words

import headlab
from headlab import Gates, Model
from headlab.generation.keys import bytes_per_token
from headlab.loading import DTYPES


def plain_generate(model: Model, ids: torch.Tensor, mask: torch.Tensor, new: int) -> torch.Tensor:
    """What a user would write for one mask [layer, head]: tokens [prompt, new]."""
    with ExitStack() as stack:
        for layer, projection in enumerate(model.seam.projections):
            by_head = mask[layer].repeat_interleave(model.head_width).to(ids.device, model.dtype)

            def gate(_, args, by_head=by_head):
                if args[0].shape[1] > 1:  # the prompt
                    return None
                return (args[0] * by_head, *args[1:])

            stack.callback(projection.register_forward_pre_hook(gate).remove)
        found = model.hf.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
    return found[:, ids.shape[1] :]


def bandwidth(device: str) -> float:
    """Bytes a second that are read in a large sum."""
    n = 2**30 if device == "cuda" else 2**26
    numbers = torch.ones(n, device=device, dtype=torch.bfloat16)
    seconds = [timed(numbers.sum, device)[0] for _ in range(8)]
    return 2 * n / statistics.median(seconds[2:])


def diverging(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The share of rows that differ in any token."""
    return float((ours != theirs).any(-1).double().mean())


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    options.add_argument("--prompts", type=int, default=64)
    options.add_argument("--length", type=int, default=64)
    options.add_argument("--masks", type=int, default=9)
    options.add_argument("--new", type=int, default=128)
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--exact", action="store_true", help="compare with float32 as well")
    asked = options.parse_args()
    device, dtype = asked.device, DTYPES[asked.dtype]
    torch.manual_seed(0)
    with torch.device(device):
        network = hf.AutoModelForCausalLM.from_config(SHAPES[asked.shape](), dtype=dtype)
    network.requires_grad_(False)
    network.generation_config.eos_token_id = None
    network.config.eos_token_id = None
    model = Model(network, words(network.config.vocab_size), name=asked.shape)
    headlab.check(model).require()
    ids = torch.randint(1, model.vocabulary, (asked.prompts, asked.length))
    masks = (torch.rand(asked.masks, model.n_layers, model.n_heads) > 0.1).float()
    masks[0] = 1

    def ours(of: Model = model, rows: int | None = None, new: int = asked.new) -> torch.Tensor:
        found = headlab.generate(
            of, list(ids), Gates(masks), max_new_tokens=new, rows_at_a_time=rows
        )
        return torch.tensor([[written.ids for written in row] for row in found.rows])

    def theirs(new: int = asked.new) -> torch.Tensor:
        there = ids.to(device)
        return torch.stack([plain_generate(model, there, mask, new) for mask in masks]).cpu()

    fast, slow = [], []
    for few in (2, max(2, asked.new // 8)):  # a warm-up
        ours(new=few)
        theirs(new=few)
    for _ in range(asked.repeats):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds, mine = timed(ours, device)
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
        other, plain = timed(theirs, device)
        fast.append(seconds)
        slow.append(other)
    quick, plainly = statistics.median(fast), statistics.median(slow)
    rows = asked.masks * asked.prompts
    sizes = sum(p.numel() for block in model.seam.blocks for p in block.parameters())
    sizes += model.hf.get_output_embeddings().weight.numel()
    wide, rate = bandwidth(device), matrix_rate(dtype, device)
    floor = 2 * sizes * asked.prompts * asked.length / rate
    for step in range(1, asked.new):
        tokens = rows * (asked.length + step)
        moved = sizes * dtype.itemsize + tokens * bytes_per_token(model)
        floor += max(moved / wide, 2 * sizes * rows / rate)
    print(
        f"{asked.shape} {asked.dtype}, {asked.prompts} prompts x {asked.length}, {asked.masks} "
        f"masks, {asked.new} new: headlab {quick:.2f} s ({rows * asked.new / quick:,.0f} tokens/s, "
        f"peak {peak:.1f} GiB), generate with hooks {plainly:.2f} s, {plainly / quick:.1f}x; floor "
        f"{floor:.2f} s, {quick / floor:.2f}x of it ({wide / 1e12:.2f} TB/s, "
        f"{rate / 1e12:.0f} TFLOP/s)",
        flush=True,
    )
    print(
        f"  rows that differ in some token: headlab and generate {diverging(mine, plain):.3f}; "
        f"headlab at another batch size {diverging(mine, ours(rows=rows // 3)):.3f}",
        flush=True,
    )
    if asked.exact:
        whole = Model(copy.deepcopy(network).float(), words(model.vocabulary), name="float32")
        headlab.check(whole).require()
        exact = ours(whole)
        print(
            f"  against float32: headlab {diverging(mine, exact):.3f}, generate "
            f"{diverging(plain, exact):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
