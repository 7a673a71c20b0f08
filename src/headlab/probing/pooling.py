"""What every head gives while a model writes an answer: z, averaged over the answer's tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.budgets import find_budget, make_room
from headlab.chunks import by_length
from headlab.engine import Progress
from headlab.errors import HeadlabError
from headlab.generation import Written
from headlab.grading.answers import find_answer
from headlab.standins import gpu_kernels
from headlab.texts import Prompt

if TYPE_CHECKING:
    from headlab.model import Model

_VALUE = re.compile(r'"answer"\s*:\s*"?')


@dataclass(frozen=True)
class Pooled:
    """Of every answer, the mean of each head's output over its tokens."""

    z: Tensor  # [answer, layer, head, width], on the CPU
    tokens: Tensor  # [answer], how many were averaged
    in_json: Tensor  # [answer], whether an answer stood in JSON; if not, or empty: all tokens


def pool(
    model: Model,
    prompts: Sequence[Prompt],
    written: Sequence[Written],
    progress: Progress | None = None,
) -> Pooled:
    """One clean pass over prompt and text gives what the heads gave where each token was read.

    >>> written = headlab.generate(model, prompts, stop="]").rows[0]          # doctest: +SKIP
    >>> pool(model, prompts, written).z.shape                                 # doctest: +SKIP
    torch.Size([2689, 30, 9, 64])
    """
    if len(prompts) != len(written):
        raise HeadlabError(f"{len(prompts)} prompts do not fit {len(written)} texts")
    runs, places = [], []
    for prompt, text in zip(prompts, written, strict=True):
        ids = model.ids(prompt)
        runs.append(torch.cat([ids, torch.tensor(text.ids, dtype=ids.dtype)]))
        places.append([len(ids) + number for number in answer_tokens(model, text)])
    shape = (len(runs), model.n_layers, model.n_heads, model.head_width)
    pooled = torch.zeros(shape, dtype=model.dtype)
    for rows in by_length([len(run) for run in runs], find_budget(model)):
        _pool_in_memory(model, runs, places, rows, pooled)
        if progress is not None:
            progress(len(rows))
    return Pooled(
        pooled,
        torch.tensor([len(own) for own in places]),
        torch.tensor([find_answer(text.text) is not None for text in written]),
    )


def _pool_in_memory(
    model: Model, runs: list[Tensor], places: list[list[int]], rows: list[int], into: Tensor
) -> None:
    """Some rows; in halves where memory runs out."""
    try:
        own = [runs[row] for row in rows], [places[row] for row in rows]
        _pool_some(model, *own, rows, into)
        return
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise HeadlabError(
                f"an answer of {len(runs[rows[0]])} tokens does not fit into memory, even alone"
            ) from None
    make_room(model)
    half = len(rows) // 2
    _pool_in_memory(model, runs, places, rows[:half], into)
    _pool_in_memory(model, runs, places, rows[half:], into)


def _pool_some(
    model: Model, runs: list[Tensor], places: list[list[int]], rows: list[int], into: Tensor
) -> None:
    tokens = model.tokens(runs)
    weights = torch.zeros(tokens.ids.shape)
    for number, own in enumerate(places):
        weights[number, own] = 1 / len(own)
    weights = weights.to(model.device)
    where = torch.tensor(rows)

    def visit(layer: int, z: Tensor) -> None:
        here = weights.to(z.device)
        mean = torch.einsum("nphw,np->nhw", z.to(torch.promote_types(z.dtype, here.dtype)), here)
        into[where, layer] = mean.to(into.device, into.dtype)

    with gpu_kernels(model):
        model.observe(tokens, visit)


def answer_tokens(model: Model, written: Written) -> list[int]:
    """Which of the written tokens make the answer: those of the value in `{"answer": ...}`; all
    of them where there is no such, or nothing in it."""
    everything = list(range(len(written.ids)))
    span = _value_span(written.text)
    if span is None:
        return everything
    start, stop = span
    ends = [len(model.continuation(written.ids[: number + 1])) for number in everything]
    begins = [0, *ends[:-1]]
    inside = [
        number
        for number, (first, last) in enumerate(zip(begins, ends, strict=True))
        if first < stop and last > start
    ]
    return inside or everything


def _value_span(text: str) -> tuple[int, int] | None:
    """Where the answer stands in a text; None where it stands in no JSON, or is empty.

    >>> _value_span('[ {"answer": "Paris"} ]'), _value_span('[ {"answer": 36} ]')
    ((14, 19), (13, 15))
    >>> _value_span("Paris") is None, _value_span('{"answer": ""}') is None
    (True, True)
    """
    value = find_answer(text)
    starts = [found.end() for found in _VALUE.finditer(text)]
    if not value or not starts:
        return None
    for start in starts:
        if text.startswith(value, start):
            return start, start + len(value)
    stop = text.find("}", starts[0])  # written with escapes: up to what closes it
    return starts[0], stop if stop > starts[0] else len(text)
