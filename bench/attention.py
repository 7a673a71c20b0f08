"""Attention profiles of long prompts: time and memory above the model, by number of tokens.

    python bench/attention.py --tokens 1024,2048,4096,8192 --heads L0H4,L15H3

Random tokens, the embedded model, profiles of the heads named. Memory is the process's highest
resident size above what the loaded model takes.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

import headlab
from headlab.attention import profile
from headlab.heads import parse_heads


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Peak:
    """The highest resident size while it runs."""

    def __enter__(self) -> Peak:
        self.start = self.most = resident()
        self._going = True
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while self._going:
            self.most = max(self.most, resident())
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self._going = False
        self._thread.join()

    @property
    def above(self) -> float:
        return (self.most - self.start) / 2**30


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="smollm2")
    options.add_argument("--tokens", default="1024,2048,4096,8192")
    options.add_argument("--heads", default="L0H4,L15H3")
    asked = options.parse_args()
    sizes = asked.tokens.split(",")
    if len(sizes) > 1:  # a process for each: memory that one has freed would serve the next
        for size in sizes:
            own = ["--model", asked.model, "--heads", asked.heads, "--tokens", size]
            subprocess.run([sys.executable, __file__, *own], check=True)
        return
    model = headlab.load(asked.model)
    heads = parse_heads(asked.heads)
    profile(model, [torch.arange(3, 67)], heads)  # a warm-up
    tokens = int(sizes[0])
    ids = torch.randint(3, 40_000, (tokens,), generator=torch.Generator().manual_seed(0))
    with Peak() as peak:
        start = time.perf_counter()
        profile(model, [ids], heads)
        seconds = time.perf_counter() - start
    print(
        f"{asked.model}, {asked.heads}, {tokens} tokens: {seconds:.1f} s, "
        f"{peak.above:.2f} GiB above the model",
        flush=True,
    )


if __name__ == "__main__":
    main()
