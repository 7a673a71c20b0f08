"""ARM written out with loops, number by number."""

from __future__ import annotations

import hashlib
import math
import struct
from statistics import median

import torch
from torch import Tensor

_ALL = 2**64 - 1


def transcribed(x: list[float], ids: list[int], position: int, c, p1, seed=0) -> list[float]:
    """What ARM makes of one token's activations."""
    sizes = [abs(value) for value in x]
    middle = median(sizes)
    epsilon = 1.4826 * median([abs(size - middle) for size in sizes]) * c
    near = sum(size <= epsilon for size in sizes)
    number = min(max(near, round(0.02 * len(x))), round(0.25 * len(x)))
    ordered = sorted(x)
    place = p1 / 100 * (len(x) - 1)
    low = ordered[math.floor(place)]
    high = ordered[min(math.floor(place) + 1, len(x) - 1)]
    most = max(0.0, low + (high - low) * (place - math.floor(place)))
    new = list(x)
    for column in sorted(range(len(x)), key=lambda n: sizes[n])[:number]:
        luck = drawn(ids, position, column, seed)
        if x[column] > 0:
            new[column] = luck * most
        elif x[column] < 0:
            new[column] = -luck * abs(min(x))
    return new


def drawn(ids: list[int], position: int, column: int, seed: int) -> float:
    digest = hashlib.sha256(b"".join(struct.pack("<q", number) for number in ids)).digest()
    own = hashlib.sha256(digest + seed.to_bytes(16, "little")).digest()
    key = int.from_bytes(own[:8], "little") >> 1
    return (splitmix(splitmix(key, position + 1), column + 1) >> 40) / 2**24


def splitmix(start: int, steps: int) -> int:
    z = (start + steps * 0x9E3779B97F4A7C15) & _ALL
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _ALL
    return z ^ (z >> 31)


def transcribed_rows(x: Tensor, ids: list[int], c: float, p1: float, seed: int = 0) -> Tensor:
    """All positions of one prompt and its text, x [position, width]; ids are the prompt's."""
    rows = [transcribed(row.tolist(), ids, at, c, p1, seed) for at, row in enumerate(x.double())]
    return torch.tensor(rows, dtype=x.dtype)
