"""Sparse post-training of tiny models, for tests."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from tiny import VOCABULARY, tiny, tiny_tokenizer

from headlab import Model
from headlab.sparse.corpus import Corpus, cut
from headlab.sparse.settings import make_settings
from headlab.sparse.training import Trainer

QUICK = {"steps": 6, "batch": 4, "context": 8, "warmup": 2, "start": 1.0, "levels": (50.0,)}


def corpus(n: int = 40, context: int = 8) -> Corpus:
    """Text with a pattern that can be learned: each token follows from the one before."""
    random = np.random.default_rng(0)
    ids = np.zeros(n * context, np.int32)
    for place in range(1, len(ids)):
        ids[place] = (ids[place - 1] * 5 + 7 + random.integers(2)) % (VOCABULARY - 3) + 3
    return cut(ids, context)


def loader(name: str = "llama", dtype: torch.dtype = torch.float64) -> Callable[[], Model]:
    return lambda: Model(copy.deepcopy(tiny(name)).to(dtype), tiny_tokenizer(), name=name)


def trainer(
    twin: bool = False,
    name: str = "llama",
    load: Callable[[], Model] | None = None,
    dtype: torch.dtype = torch.float32,
    **given: object,
) -> Trainer:
    settings = make_settings(**{**QUICK, **given})
    return Trainer(load or loader(name), corpus(), settings, twin, dtype)


def steps(one: Trainer, n: int) -> None:
    for _ in range(n):
        one.step()
