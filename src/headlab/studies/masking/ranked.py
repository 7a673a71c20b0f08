"""A ranking of heads for every function, by the probe or by one of the other methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.gatefits import Schedule, fit_gates
from headlab.gatefits.files import read_state, write_state
from headlab.generation import Written
from headlab.model import Model
from headlab.probing import Training, fit_probe, pool
from headlab.ranking import rank
from headlab.studies.cells import Cell
from headlab.studies.masking.judging import is_right
from headlab.tasks.cogqa import FUNCTIONS, SubQuestion, as_example

if TYPE_CHECKING:
    from headlab.studies.masking.cell import Answering

_GATE_SEEDS = 3
_KEEP = 50  # updates between two that a stopped fit goes on from
GATE_BATCH = 32


@dataclass(frozen=True)
class Answered:
    """Training questions, what the whole model answers, and whether that is right."""

    items: list[SubQuestion]
    written: list[Written]
    hits: np.ndarray  # [answer]

    @property
    def labels(self) -> np.ndarray:
        """[answer], functions."""
        return np.array([item.function for item in self.items], dtype=object)

    @property
    def right(self) -> dict[str, float]:
        """By function, the share of right answers."""
        labels = self.labels
        return {
            name: float(self.hits[labels == name].mean()) for name in FUNCTIONS if name in labels
        }


@dataclass(frozen=True)
class Ranked:
    """Scores by function, and what a probe was trained on."""

    method: str
    scores: dict[str, Tensor]  # [layer, head]
    answered: Answered
    probe: dict[str, Any] | None = None
    pooled: Tensor | None = None  # [answer, layer, head, width]

    def sizes(self, name: str) -> Tensor:
        """[layer, head], what heads are ordered by: of a probe's importance its size."""
        scores = self.scores[name]
        return scores.abs() if self.method == "probe" else scores

    def order(self, name: str) -> Tensor:
        """[rank], numbers of heads."""
        return self.sizes(name).flatten().argsort(descending=True, stable=True)


def rank_functions(
    cell: Cell,
    model: Model,
    train: list[SubQuestion],
    test: Sequence[SubQuestion],
    writer: Answering,
) -> Ranked:
    """On training questions alone; the test questions only tell how well the probe does."""
    written = writer.answers("train", train)
    hits = [is_right(item, text.text) for item, text in zip(train, written, strict=True)]
    answered = Answered(train, written, np.array(hits))
    pooled = None
    if cell.method == "probe" or cell.settings["boost"]:
        pooled = _pooled("train", model, train, written, writer)
    if cell.method == "probe":
        assert pooled is not None
        scores, told = _by_probe(cell, model, answered, pooled, test, writer)
        return Ranked("probe", scores, answered, told, pooled)
    scores = {}
    for name in cell.settings["functions"]:
        own = [item for item in train if item.function == name]
        if len(own) < 2:
            raise HeadlabError(f"{len(own)} questions of {name} are too few to rank heads on")
        make = partial(_score, cell, model, own, name, writer)
        scores[name] = writer.scratch.tensor(f"rank-{name}", make, fit_pairs(cell))
    return Ranked(cell.method, scores, answered, pooled=pooled)


def _pooled(
    split: str,
    model: Model,
    items: Sequence[SubQuestion],
    written: list[Written],
    writer: Answering,
) -> Tensor:
    """[answer, layer, head, width]"""
    prompts = [item.prompt for item in items]
    return writer.scratch.tensor(f"pooled-{split}", lambda: pool(model, prompts, written).z)


def fit_pairs(cell: Cell) -> int:
    """What the fit of gates for one function counts as, where they rank."""
    fits = 3 * _GATE_SEEDS  # the free one and both that start from it
    return fits * cell.settings["updates"] * GATE_BATCH if cell.method == "gates" else 0


def _score(
    cell: Cell, model: Model, items: list[SubQuestion], name: str, writer: Answering
) -> Tensor:
    examples = [as_example(item) for item in items]
    if cell.method == "gates":
        schedule = Schedule(updates=cell.settings["updates"], batch=min(GATE_BATCH, len(examples)))
        seeds = range(_GATE_SEEDS * cell.seed, _GATE_SEEDS * (cell.seed + 1))
        kept, key = writer.scratch.folder / f"fit-{name}.safetensors", writer.scratch.key
        state = read_state(kept, key, model.device)
        if state is not None:  # of a stopped run: the free fit, and two from it, have come so far
            done = state.step if state.stage == 0 else schedule.updates + 2 * state.step
            writer.progress(len(seeds) * done * GATE_BATCH)
        fit = fit_gates(
            model,
            examples,
            seeds,
            schedule,
            task=name,
            state=state,
            on_state=lambda state: write_state(state, kept, key),
            state_every=_KEEP,
            progress=lambda fits: writer.progress(fits * GATE_BATCH),
        )
        return fit.minus.double().sigmoid().mean(0)  # F; wide, since gates saturate
    return rank(model, examples, cell.method, "log-prob", reference="zero", task=name).score


def _by_probe(
    cell: Cell,
    model: Model,
    answered: Answered,
    pooled: Tensor,
    test: Sequence[SubQuestion],
    writer: Answering,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    labels = list(answered.labels)
    classes = [name for name in FUNCTIONS if name in labels]
    if len(classes) < 2:
        raise HeadlabError("a probe tells functions apart; the training questions have only one")
    missing = [name for name in cell.settings["functions"] if name not in classes]
    if missing:
        raise HeadlabError(f"no question of {missing[0]} is there to train a probe on")
    others = [item for item in test if item.function in classes]
    held_out = _pooled("test", model, others, writer.answers("probe-test", others), writer)

    def fitted() -> dict[str, Any]:
        found = fit_probe(
            (pooled, labels),
            (held_out, [item.function for item in others]),
            classes,
            Training(epochs=cell.settings["epochs"]),
            seeds=[cell.seed],
            device=model.device,
        )
        return {"importance": found.importance.tolist(), "told": found.summary()}

    kept = writer.scratch.values("probe", fitted)
    importance = torch.tensor(kept["importance"], dtype=torch.float64)
    return dict(zip(classes, importance, strict=True)), kept["told"]
