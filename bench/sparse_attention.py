"""Sparse attention in blocks against the whole square at once: time and memory by tokens.

    python bench/sparse_attention.py --tokens 1024,2048,4096,8192 --shape 9,3,64

One layer of random queries, keys and values of the shape heads, key heads, width; every way and
length in a process of its own. On a CPU memory is the highest resident size above the inputs, on a
GPU what torch has allocated at most. Beside them: plain attention without gates, by torch's own
kernel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import numpy as np
import torch
from attention import Peak
from torch.nn.functional import scaled_dot_product_attention

from headlab.sparse import attention
from headlab.sparse.attention import gated_attention

WAYS = ("blocks", "whole", "no gates")


def one(way: str, tokens: int, shape: list[int]) -> dict[str, float]:
    """Seconds (the least of 3) and GiB of one way."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads, keys, width = shape
    random = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(1, each, tokens, width, generator=random, device=device)
        for each in (heads, keys, keys)
    )
    bias = torch.zeros(heads, device=device)
    if way == "whole":
        attention.BLOCK_BYTES[device] = 4 * heads * tokens**2

    def run() -> torch.Tensor:
        if way == "no gates":
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return gated_attention(q, k, v, bias)

    gated_attention(*(each[:, :, :16] for each in (q, k, v)), bias)  # warm
    times, most = [], 0.0
    for _ in range(3):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad(), Peak() as peak:
            run()
            if device == "cuda":
                torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        above = peak.above
        if device == "cuda":
            above = (torch.cuda.max_memory_allocated() - before) / 2**30
        most = max(most, above)
    return {"seconds": min(times), "gib": most}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--tokens", default="1024,2048,4096,8192")
    options.add_argument("--shape", default="9,3,64")
    options.add_argument("--way", choices=WAYS, help="one of them alone, as JSON")
    given = options.parse_args()
    lengths = [int(each) for each in given.tokens.split(",")]
    shape = [int(each) for each in given.shape.split(",")]
    if given.way:
        print(json.dumps(one(given.way, lengths[0], shape)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    print("tokens  " + "".join(f"{way:>22}" for way in WAYS))
    for tokens in lengths:
        for way in WAYS:
            own = ["--way", way, "--tokens", str(tokens), "--shape", given.shape]
            said = subprocess.run(
                [sys.executable, __file__, *own], capture_output=True, text=True, check=True
            )
            found[way].append(json.loads(said.stdout))
        last = [found[way][-1] for way in WAYS]
        print(
            f"{tokens:<8}" + "".join(f"{e['seconds']:>10.4f} s {e['gib']:>6.3f} GiB" for e in last)
        )
    for what in ("seconds", "gib"):
        for way in WAYS:
            values = [max(each[what], 1e-6) for each in found[way]]
            slope = np.polyfit(np.log(lengths[-2:]), np.log(values[-2:]), 1)[0]
            print(f"{way}: {what} grow with tokens to the power {slope:.2f} (last two)")


if __name__ == "__main__":
    main()
