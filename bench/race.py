"""Headlab against plain hooks, TransformerLens, nnsight and pyvene, on the same work.

    python bench/race.py --small                          # CPU, a few minutes (make bench)
    python bench/race.py --rows all --out race.json       # one GPU: the rows of docs/benchmarks.md
    python bench/race.py --rows ablate-8b --peers hooks
    python bench/race.py --work fit --shape llama-3.2-1b --size prompts=64,length=256,target=128

Random weights of published shapes. Every way has frozen weights, SDPA where the library allows
it, the same dtype, all prompts in one batch and its default full logits. After a warm-up the ways
run in turns; medians are shown. Slow ones do an even sample of heads, and their seconds are scaled;
Headlab always runs whole. Peers that are not installed, or that cannot do a work, are listed with
the reason. In float32 numbers must be equal (that a peer edits the right head shows there); in
bfloat16 our error against float32, on a part of the work, must be at most 1.5 times the other's,
and the other's at most 4 times ours.
Memory is the weights and what a way takes beside them.
"""

from __future__ import annotations

import argparse
import copy
import gc
import inspect
import statistics
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import GIB, SHAPES, Kept, bandwidth, here, matrix_rate, plainly, random_model, timed
from peers import PEERS, Cannot, load
from torch import Tensor
from works import WORKS, Work

from headlab import HeadlabError
from headlab.loading import DTYPES, usable_device

# name: work, shape, its size; sample: heads that others do; alike: tokens that prompt and
# counterfactual begin with; masks that hooks, and others, do
ROWS: dict[str, tuple[str, str, dict[str, int]]] = {
    "ablate-135m": ("ablate", "smollm2-135m", {"prompts": 32, "length": 16, "sample": 64}),
    "ablate-1b": ("ablate", "llama-3.2-1b", {"prompts": 32, "length": 16, "sample": 64}),
    "ablate-8b": ("ablate", "llama-3.1-8b", {"prompts": 32, "length": 64, "sample": 32}),
    "ablate-shared-8b": (
        "ablate",
        "llama-3.1-8b",
        {"prompts": 32, "length": 64, "shared": 32, "sample": 32},
    ),
    "patch-8b": ("patch", "llama-3.1-8b", {"prompts": 32, "length": 64, "sample": 32}),
    "patch-late-8b": (
        "patch",
        "llama-3.1-8b",
        {"prompts": 32, "length": 64, "alike": 32, "sample": 32},
    ),
    "attribute-8b": ("attribute", "llama-3.1-8b", {"prompts": 32, "length": 64, "steps": 5}),
    "keep-1b": ("keep", "llama-3.2-1b", {"prompts": 64, "length": 32, "ks": 20, "orders": 6}),
    "fit-135m": ("fit", "smollm2-135m", {"prompts": 64, "length": 40, "target": 4}),
    "generate-8b": (
        "generate",
        "llama-3.1-8b",
        {"prompts": 64, "length": 64, "masks": 9, "new": 128, "hooks": 3, "sample": 1},
    ),
}
SMALL: dict[str, tuple[str, str, dict[str, int]]] = {
    "ablate": ("ablate", "small", {"prompts": 8, "length": 16, "sample": 32}),
    "ablate-shared": ("ablate", "small", {"prompts": 8, "length": 16, "shared": 8, "sample": 16}),
    "patch": ("patch", "small", {"prompts": 8, "length": 16, "sample": 32}),
    "patch-late": ("patch", "small", {"prompts": 8, "length": 16, "alike": 8, "sample": 16}),
    "attribute": ("attribute", "small", {"prompts": 16, "length": 16, "steps": 5}),
    "keep": ("keep", "small", {"prompts": 16, "length": 16, "ks": 10, "orders": 3}),
    "fit": ("fit", "small", {"prompts": 8, "length": 16, "target": 4, "updates": 2}),
    "generate": (
        "generate",
        "small",
        {"prompts": 8, "length": 16, "masks": 4, "new": 16, "sample": 2},
    ),
}
_WORSE = 1.5  # times another's error against float32
_OTHER = 4.0  # times ours: more, and it does another work
_EQUAL = 1e-4  # of the largest number, in float32


@dataclass
class Result:
    """One way of one work."""

    row: str
    way: str
    seconds: float
    times: list[float] = field(default_factory=list)
    ratio: float = 1.0  # its seconds over ours
    memory: float | None = None  # GiB at most, weights included
    scaled: float = 1.0  # from a sample
    numbers: str = ""  # how they compare


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--small", action="store_true", help="small works, for a CPU")
    told = f"of {', '.join(ROWS)}; with --small of {', '.join(SMALL)}; or all"
    options.add_argument("--rows", help=told + " (the default)")
    options.add_argument(
        "--work", choices=WORKS, help="instead of rows: this, of --shape and --size"
    )
    options.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    told = "; ".join(f"{name}: {', '.join(_sizes(work))}" for name, work in WORKS.items())
    options.add_argument("--size", default="prompts=32,length=16", help=f"numbers of {told}")
    options.add_argument(
        "--peers", default="all", help=f"of {', '.join(PEERS)}; or all (the default), or none"
    )
    options.add_argument("--dtype", choices=DTYPES)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--out", type=Path, help="results as JSON, added to those in it")
    asked = options.parse_args()
    rows = _rows_of(asked)
    known = {"all": list(PEERS), "none": []}
    peers = known.get(asked.peers, asked.peers.split(","))
    if unknown := [name for name in peers if name not in PEERS]:
        raise HeadlabError(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    if asked.repeats < 1:
        raise HeadlabError(f"at least one run, not {asked.repeats}")
    usable_device(asked.device)
    kept = Kept(asked.out)
    dtype = asked.dtype or ("bfloat16" if asked.device == "cuda" else "float32")
    rate, wide = matrix_rate(DTYPES[dtype], asked.device), bandwidth(asked.device)
    print(
        f"{asked.device}, {dtype}: a large matrix product {rate / 1e12:.2f} TFLOP/s, "
        f"a large sum {wide / 1e12:.3f} TB/s",
        flush=True,
    )
    agreed = True
    for name, (kind, shape, size) in rows.items():
        model = random_model(shape, dtype, asked.device)
        work = WORKS[kind](model, **size)
        race = Race(name, work, asked.device, asked.repeats)
        race.run(peers)
        agreed = agreed and race.agrees
        kept.found[name] = {
            "shape": shape,
            "size": size,
            "dtype": dtype,
            "floor": work.floor(rate, wide),
            "ways": [asdict(each) for each in race.results],
            "cannot": race.cannot,
            "machine": {**here(), "rate": rate, "bandwidth": wide},
        }
        kept.write()
        race.show(shape, work.floor(rate, wide))
        del race, work, model
        tidy(asked.device)
    if not agreed:
        sys.exit("numbers differ")


def _rows_of(asked: argparse.Namespace) -> dict[str, tuple[str, str, dict[str, int]]]:
    """What is to be raced, by name."""
    rows = SMALL if asked.small else ROWS
    if asked.work:
        if asked.small or asked.rows:
            raise HeadlabError("--work comes instead of --rows and --small")
        size = _size(asked.work, asked.size)
        return {f"{asked.work}-{asked.shape} {asked.size}": (asked.work, asked.shape, size)}
    if asked.rows in (None, "all"):
        if not asked.small and asked.device == "cpu":
            raise HeadlabError("these rows are for a GPU; --small has some for a CPU")
        return rows
    for name in (names := asked.rows.split(",")):
        if name not in rows:
            raise HeadlabError(f"no row {name!r}; there are {', '.join(rows)}")
    return {name: rows[name] for name in names}


def _sizes(work: type[Work]) -> list[str]:
    """The numbers that make up its size."""
    return [name for name in inspect.signature(work).parameters if name != "model"]


def _size(work: str, told: str) -> dict[str, int]:
    size = {}
    for each in told.split(","):
        name, _, number = each.partition("=")
        if name not in _sizes(WORKS[work]) or not number.isdigit() or int(number) < 1:
            known = ", ".join(_sizes(WORKS[work]))
            raise HeadlabError(f"{each!r} is no size of {work}: NAME=NUMBER, from 1, of {known}")
        size[name] = int(number)
    if missing := {"prompts", "length"} - set(size):
        raise HeadlabError(f"the size has no {min(missing)}, e.g. prompts=32,length=16")
    return size


class Race:
    """One work, done by Headlab and by every peer that can."""

    def __init__(self, name: str, work: Work, device: str, repeats: int):
        self.name, self.work, self.device, self.repeats = name, work, device, repeats
        self.results: list[Result] = []
        self.cannot: dict[str, str] = {}
        self.agrees = True

    def run(self, names: list[str]) -> None:
        ways = self._ways(names)
        answers, times, memory, few = {}, {name: [] for name in ways}, {}, {}
        for name, way in list(ways.items()):  # a warm-up
            try:
                few[name] = way(True)
            except Cannot as reason:
                self.cannot[name] = str(reason)
            except Exception as error:
                if name == "headlab":
                    raise
                self.cannot[name] = _broken(error)  # another library's; the race goes on
            if name in self.cannot:
                del ways[name]
        weights = sum(p.numel() * p.element_size() for p in self.work.model.hf.parameters())
        for _ in range(self.repeats):
            for name, way in ways.items():
                gc.collect()  # torch keeps the GPU's memory, as it does for a user
                if self.device == "cuda":
                    before = torch.cuda.memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                seconds, answers[name] = timed(lambda way=way: way(False), self.device)
                times[name].append(seconds)
                if self.device == "cuda":
                    peak = torch.cuda.max_memory_allocated() - before + weights
                    memory[name] = max(memory.get(name, 0.0), peak / GIB)
        ours = statistics.median(times["headlab"])
        narrow = self.work.model.dtype != torch.float32
        exact = self._exact() if narrow and len(ways) > 1 else None
        for name in ways:
            scaled = 1.0 if name == "headlab" else self.work.scale(name)
            seconds = statistics.median(times[name]) * scaled
            told = "" if name == "headlab" else self._compared(answers, few, name, exact)
            self.results.append(
                Result(
                    *(self.name, name, seconds, times[name], seconds / ours),
                    *(memory.get(name), scaled, told),
                )
            )

    def _ways(self, names: list[str]) -> dict[str, Any]:
        """What is timed, by name; with True only a little of it."""
        work = self.work
        ways: dict[str, Any] = {"headlab": lambda little: work.ours(little)}
        for name in names:
            try:
                peer = load(name, work.model.hf)
            except Cannot as reason:
                self.cannot[name] = str(reason)
                continue
            except Exception as error:
                self.cannot[name] = _broken(error)
                continue
            for how, way in work.ways(peer).items():
                ways[peer.name + how] = lambda little, way=way: work.theirs(way, little)
        return ways

    def _exact(self) -> Tensor:
        """A part of the answer in float32."""
        tidy(self.device)
        try:
            whole = load("hooks", copy.deepcopy(self.work.model.hf).float())
        except Cannot as reason:
            raise HeadlabError(
                f"narrow numbers are compared with hooks' in float32: {reason}; take "
                "--dtype float32, or --peers none"
            ) from None
        found = self.work.theirs(whole, little=True)
        del whole
        tidy(self.device)
        return found

    def _compared(
        self, answers: dict[str, Tensor], few: dict[str, Tensor], name: str, exact: Tensor | None
    ) -> str:
        work, whole = self.work, answers["headlab"]
        if exact is None:
            theirs = answers[name]
            ours = work.same(whole)[: len(theirs)]
            difference = _error(ours, theirs, work.is_text, largest=True)
            self.agrees &= difference <= _EQUAL * max(1.0, float(theirs.abs().max()))
            return f"difference {difference:.1g}"
        mine, other = (
            _error(each, exact, work.is_text) for each in (work.same(whole, little=True), few[name])
        )
        slack = 0.02 if work.is_text else 0.0
        self.agrees &= mine <= _WORSE * other + slack and other <= _OTHER * mine + slack
        what = "share of other texts" if work.is_text else "error"
        return f"{what} {mine:.2g}, its own {other:.2g}"

    def show(self, shape: str, floor: float) -> None:
        work = self.work
        print(f"\n{self.name}: {work.kind}, {shape}, {work.size}; floor {floor:.3g} s", flush=True)
        for each in sorted(self.results, key=lambda each: each.seconds):
            memory = "" if each.memory is None else f"{each.memory:7.1f} GiB"
            sample = "" if each.scaled == 1 else f" (from 1/{each.scaled:.0f})"
            print(
                f"  {each.way:38} {each.seconds:9.3g} s  {each.ratio:7.2f}x {memory}  "
                f"{each.seconds / floor:7.2f} floors  {each.numbers}{sample}",
                flush=True,
            )
        for name, reason in self.cannot.items():
            print(f"  {name:38} cannot: {reason}", flush=True)


def _broken(error: Exception) -> str:
    return f"breaks down: {type(error).__name__}: {error}"[:300]


def _error(found: Tensor, exact: Tensor, is_text: bool, largest: bool = False) -> float:
    """Between numbers their root mean square, or the largest; between texts the share of rows."""
    if is_text:
        return float((found != exact).any(-1).double().mean())
    difference = (found - exact).double().abs()
    return float(difference.max() if largest else difference.square().mean().sqrt())


def tidy(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    plainly(main)
