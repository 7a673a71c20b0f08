"""Random numbers that a seed and a prompt's tokens decide alone: the same in any batch."""

from __future__ import annotations

import hashlib

import numpy as np
from torch import Tensor


def generator_of(seed: int, ids: Tensor) -> np.random.Generator:
    """A generator of a prompt's own; ids [position]."""
    return np.random.default_rng([seed, *np.frombuffer(_digest(ids), dtype="<u4").tolist()])


def key_of(seed: int, ids: Tensor) -> int:
    """A whole number of 63 bits of a prompt's own."""
    own = hashlib.sha256(_digest(ids) + seed.to_bytes(16, "little")).digest()
    return int.from_bytes(own[:8], "little") >> 1


def _digest(ids: Tensor) -> bytes:
    return hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).digest()
