"""What a study will cost here: cells, time and memory, before anything runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from headlab.budgets import CPU_BUDGET, largest_budget
from headlab.errors import HeadlabError
from headlab.loading import Blueprint, ShapeUnknown, load_texts, read_blueprint
from headlab.studies import find_study
from headlab.studies.cells import Cell
from headlab.studies.spec import Spec, split_revision

_OVERHEAD = 1.35  # the engine against the arithmetic alone, as measured (docs/benchmarks.md)
_RUNTIME = 0.5e9  # bytes
_SAMPLE = 16  # prompts whose length is looked at


@dataclass(frozen=True)
class Planned:
    """A cell and what it will take; seconds and bytes are None where its model is not here."""

    cell: Cell
    pairs: int = 0  # of a mask and an example, what the progress counts
    seconds: float | None = None
    memory: float | None = None  # bytes, at the peak
    reason: str | None = None  # why there is no estimate
    is_lost: bool = False  # its model cannot be had: the cell cannot run


def plan(spec: Spec, device: str | None = None, trust_remote_code: bool = False) -> list[Planned]:
    """An estimate for every cell, from the model's shape, the prompts' lengths and this machine's
    matrix rate. Right to a factor of two."""
    study = find_study(spec.study)
    rates: dict[torch.dtype, float] = {}
    seen: dict[str, Blueprint | str] = {}
    lengths: dict[tuple[str, str], float] = {}
    gone: set[str] = set()
    planned = []
    for cell in study.cells(spec):
        bare, revision = split_revision(cell.model)
        try:
            if cell.model not in seen:
                seen[cell.model] = read_blueprint(
                    bare,
                    revision=revision,
                    dtype=spec.dtype,
                    device=device,
                    trust_remote_code=trust_remote_code,
                )
            shape = seen[cell.model]
            if isinstance(shape, str):
                raise HeadlabError(shape)
            if (key := (cell.model, cell.task)) not in lengths:
                texts = load_texts(
                    bare, revision=revision, bos=spec.bos, trust_remote_code=trust_remote_code
                )
                with _raised():
                    study.check(cell, texts, (shape.layers, shape.heads))
                sample = study.sample(cell, texts, _SAMPLE)
                lengths[key] = statistics.mean(len(texts.ids(each)) for each in sample)
        except _Wrong as wrong:
            raise HeadlabError(str(wrong)) from None
        except HeadlabError as error:
            lost = cell.model not in seen and not isinstance(error, ShapeUnknown)
            lost = lost or cell.model in gone
            gone |= {cell.model} if lost else set()
            seen.setdefault(cell.model, str(error))
            planned.append(Planned(cell, reason=str(error), is_lost=lost))
            continue
        if shape.dtype not in rates:
            rates[shape.dtype] = matrix_rate(shape.dtype, shape.device)
        work = study.work(cell, shape.layers * shape.heads)
        operations = 2.0 * shape.block_parameters * lengths[key] * work.passes
        weights = shape.parameters * shape.dtype.itemsize
        # Weights, the wider copy that the noise floor is measured with, a stored clean pass (each
        # layer's input and head outputs), a pass itself, and what Python and torch take.
        tokens = CPU_BUDGET
        if shape.device.type == "cuda":
            tokens = largest_budget(shape.block_parameters // shape.layers)
        per_token = shape.dtype.itemsize * shape.d_model * (2 * shape.layers + 24)
        memory = 3.0 * weights + tokens * per_token + _RUNTIME
        seconds = _OVERHEAD * operations / rates[shape.dtype]
        planned.append(Planned(cell, work.pairs, seconds, memory))
    return planned


class _Wrong(Exception):  # noqa: N818, it says what is asked wrongly
    """What no model is to blame for: nothing runs."""


@contextmanager
def _raised() -> Iterator[None]:
    try:
        yield
    except HeadlabError as error:
        raise _Wrong(str(error)) from None


def matrix_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a matrix product on this machine."""
    n = 8192 if device.type == "cuda" else 768
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / min(seconds)  # the least disturbed
