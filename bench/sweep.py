"""Every head ablated once: Headlab's engine against one hooked pass a head, on the same work.

    python bench/sweep.py --shape llama-3.2-1b --prompts 32 --length 16

Random weights of a published shape, random prompts, the log-prob of one target token each. The
plain way has frozen weights, SDPA, the same dtype, all prompts in one batch and the model's default
full logits; it may be timed on evenly spaced heads and scaled (--plain-heads). Runs are interleaved
after a warm-up; medians are shown. The floor is half the dense arithmetic (a mask skips, on
average, half of the layers) at the matrix rate measured in the same run.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from contextlib import contextmanager

import torch
import transformers as hf
from check_shapes import SHAPES
from tokenizers import Tokenizer, models, pre_tokenizers

import headlab
from headlab import Example, Gates, Model
from headlab.loading import DTYPES


def words(size: int) -> hf.PreTrainedTokenizerFast:
    """A tokenizer whose n-th token is the word "w<n>"."""
    core = Tokenizer(models.WordLevel({f"w{n}": n for n in range(size)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=core)


@contextmanager
def hooked_off(model: Model, number: int):
    """A head off by a plain hook."""
    layer, head = divmod(number, model.n_heads)
    width = model.head_width

    def ablate(_, args):
        z = args[0].clone()
        z[..., head * width : (head + 1) * width] = 0
        return (z, *args[1:])

    handle = model.seam.projections[layer].register_forward_pre_hook(ablate)
    try:
        yield
    finally:
        handle.remove()


def plain_sweep(model: Model, examples: list[Example], heads: list[int]) -> torch.Tensor:
    """What a user would write: [head, example]."""
    ids = torch.stack([model.ids(example.prompt) for example in examples]).to(model.device)
    targets = torch.stack([model.ids(example.target)[0] for example in examples]).to(model.device)
    found = []
    for number in heads:
        with hooked_off(model, number), torch.no_grad():
            logits = model.hf(ids).logits[:, -1].float()
        found.append(logits.log_softmax(-1).gather(1, targets[:, None])[:, 0])
    return torch.stack(found).cpu()


def timed(work, device: str):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def matrix_rate(dtype: torch.dtype, device: str) -> float:
    """Operations a second of a large matrix product."""
    n = 8192 if device == "cuda" else 1536
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    seconds = [timed(lambda: a @ b, device)[0] for _ in range(12)]
    return 2 * n**3 / statistics.median(seconds[2:])


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    options.add_argument("--prompts", type=int, default=32)
    options.add_argument("--length", type=int, default=16)
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--plain-heads", type=int, default=0, help="0: all")
    options.add_argument("--repeats", type=int, default=3)
    asked = options.parse_args()
    device = asked.device
    torch.manual_seed(0)
    with torch.device(device):
        network = hf.AutoModelForCausalLM.from_config(
            SHAPES[asked.shape](), dtype=DTYPES[asked.dtype]
        )
    network.requires_grad_(False)
    model = Model(network, words(network.config.vocab_size), name=asked.shape)
    headlab.check(model).require()
    draw = torch.randint(1, model.vocabulary, (asked.prompts, asked.length + 1))
    examples = [
        Example(" ".join(f"w{n}" for n in row[:-1]), f" w{row[-1]}", id=str(number))
        for number, row in enumerate(draw.tolist())
    ]
    total = model.n_layers * model.n_heads
    step = max(1, total // asked.plain_heads) if asked.plain_heads else 1
    heads = list(range(0, total, step))
    gates = Gates.each_head(model)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ours: list[float] = []
    theirs: list[float] = []
    for round_ in range(asked.repeats + 1):
        fast, table = timed(lambda: headlab.measure(model, examples, gates), device)
        slow, plain = timed(lambda: plain_sweep(model, examples, heads), device)
        if round_:  # the first warms up
            ours.append(fast)
            theirs.append(slow * total / len(heads))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    values = table.values[heads]
    line = (
        f"{asked.shape} {asked.dtype}, {asked.prompts} x {asked.length}, {total} heads, "
        f"budget {table.budget}: headlab {statistics.median(ours):.2f} s, "
        f"plain {statistics.median(theirs):.2f} s"
    )
    if len(heads) < total:
        line += f" (scaled from {len(heads)} heads)"
    line += f", {statistics.median(theirs) / statistics.median(ours):.1f}x"
    sizes = [p.numel() for block in model.seam.blocks for p in block.parameters()]
    work = total * asked.prompts * asked.length * 2 * sum(sizes) / 2
    floor = work / matrix_rate(DTYPES[asked.dtype], device)
    line += f"; floor {floor:.2f} s, {statistics.median(ours) / floor:.2f}x of it"
    line += f"; peak {peak:.1f} GiB; largest difference {(values - plain).abs().max():.2g}"
    if asked.dtype != "float32":
        model.hf = copy.deepcopy(network).float()
        model = Model(model.hf, model.tokenizer, name=asked.shape)
        exact = plain_sweep(model, examples, heads)
        errors = [float((each - exact).square().mean().sqrt()) for each in (values, plain)]
        line += f"; error to float32 {errors[0]:.2g}, plain's {errors[1]:.2g}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
