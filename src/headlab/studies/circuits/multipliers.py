"""Multipliers: how many times as many heads one model needs as another, or why none is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headlab.measures import MEASURES
from headlab.studies.cells import labels
from headlab.studies.circuits.lines import Line
from headlab.studies.circuits.pairs import families

if TYPE_CHECKING:
    from headlab.studies.circuits.spec import CircuitsSpec

_LEVELS = (0.8, 0.9, 0.95)
_HALF = 0.5  # of the dense model's measure: below it the ability is lost, and with it the circuit
_SAID = {"logit-diff": "logit difference", "prob-diff": "probability difference"}


@dataclass(frozen=True)
class Multiplier:
    """Heads one model needs / heads another needs: above 1 the other needs fewer."""

    task: str
    method: str
    dense: str
    sparse: str
    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None  # why there is none
    brief: str | None = None  # the same in few words


class Loss(NamedTuple):
    """An ability that is gone, in a sentence's part and in few words."""

    says: str
    brief: str


def multiplier(dense: Line, sparse: Line, level: float) -> Multiplier:
    names = dense.task, dense.method, dense.model, sparse.model
    for line in (dense, sparse):
        if line.finding:
            return Multiplier(*names, None, reason=line.finding, brief="no effect seen")
        if not line.crossing(level):
            why = f"{line.model} does not explain {in_percent(level)} % with some of its heads"
            brief = f"{in_percent(level)} % not reached"
            return Multiplier(*names, None, reason=why, brief=brief)
    # The same resamples of prompts in both: paired where the prompts are the same.
    one, other = dense.crossings_again(level), sparse.crossings_again(level)
    low, high = np.quantile(one / np.maximum(other, 1), [0.025, 0.975])
    value = dense.crossing(level) / sparse.crossing(level)  # type: ignore[operator]
    return Multiplier(*names, float(value), float(low), float(high))


def lost_ability(dense: Line, other: Line) -> Loss | None:
    """The half rule: with less than half of the dense model's measure, all heads in place, a model
    has lost the task, and there is no circuit to compare.

    Of measures that have no zero to be half way to (log-probs, distances) nothing is said, nor
    where the dense model has nothing to lose.
    """
    full, left = dense.mean("clean"), other.mean("clean")
    by = MEASURES.get(dense.measure)
    if by is None or by.is_distance or full <= 0 or left >= _HALF * full:
        return None
    name = _SAID.get(dense.measure, dense.measure)
    return Loss(
        f"with all heads its {name}, {left:.3g}, is less than half of {dense.model}'s, {full:.3g}, "
        f"so {other.model} has lost the task",
        f"{name} {left:.3g} of {full:.3g}",
    )


def in_percent(level: float) -> str:
    """A level as tables and keys have it.

    >>> in_percent(0.95)
    '95'
    """
    return f"{100 * level:g}"


def _without(found: Multiplier, loss: Loss) -> Multiplier:
    return replace(found, value=None, low=None, high=None, reason=loss.says, brief=loss.brief)


def compared(one: Line, other: Line, level: float) -> Multiplier:
    """The multiplier of two lines of which nobody said how they belong together: the half rule is
    for a dense model and a sparse one, not for any two models."""
    found = multiplier(one, other, level)
    if (one.edges is None) == (other.edges is None):
        return found
    loss = lost_ability(one, other) if one.edges is None else lost_ability(other, one)
    return found if loss is None else _without(found, loss)


@dataclass(frozen=True)
class Pairing:
    """The lines of a run and the pairs that were declared, by the names that figures use."""

    lines: Sequence[Line]
    pairs: Sequence[Sequence[str]]
    _known: dict[tuple[str, str, str], Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known.update({(line.model, line.task, line.method): line for line in self.lines})

    def declared(self) -> list[tuple[Line, Line, bool]]:
        """Each dense line with each that is compared with it, and whether that is a twin."""
        return [
            (line, other, name in family.twins)
            for family in families(self.pairs)
            for line in self.lines
            if line.model == family.dense
            for name in family.others
            if (other := self._known.get((name, line.task, line.method)))
        ]

    def multiplier(self, one: Line, other: Line, level: float) -> Multiplier:
        """With the half rule between declared pairs, and between what shares a dense model."""
        found = multiplier(one, other, level)
        for dense, left in self._ruled(one, other):
            base = self._known.get((dense, one.task, one.method))
            loss = None if base is None else lost_ability(base, left)
            if loss is not None:
                return _without(found, loss)
        return found

    def _ruled(self, one: Line, other: Line) -> list[tuple[str, Line]]:
        """Dense models, and the lines that are held against them."""
        dense = {
            line.model: {each.dense for each in families(self.pairs) if line.model in each.others}
            for line in (one, other)
        }
        if one.model in dense[other.model]:
            return [(one.model, other)]
        if other.model in dense[one.model]:
            return [(other.model, one)]
        shared = sorted(dense[one.model] & dense[other.model])
        return [(name, line) for name in shared for line in (one, other)]

    def every(self, level: float, levels: Sequence[float]) -> list[dict[str, Any]]:
        """Of every two models that have a task and a method in common: at one level, and under
        "levels" at several."""
        return [
            {
                **vars(self.multiplier(one, other, level)),
                "levels": {
                    in_percent(each): _ends(self.multiplier(one, other, each)) for each in levels
                },
            }
            for one in self.lines
            for other in self.lines
            if one.model != other.model and (one.task, one.method) == (other.task, other.method)
        ]

    def rows(self, levels: Sequence[float]) -> list[dict[str, Any]]:
        """multipliers.csv: a row for each declared pair, task, method and level."""
        return [
            {
                "task": found.task,
                "method": found.method,
                "dense": found.dense,
                "model": found.sparse,
                "kind": "twin" if is_twin else "sparse",
                "percent": 100 * level,
                "dense_k": None if one.finding else one.crossing(level),
                "k": None if other.finding else other.crossing(level),
                "multiplier": found.value,
                "low": found.low,
                "high": found.high,
                "reason": found.reason,
            }
            for one, other, is_twin in self.declared()
            for level in levels
            for found in [self.multiplier(one, other, level)]
        ]


def pairing_of(spec: CircuitsSpec, lines: Sequence[Line]) -> Pairing:
    """The pairs whose dense and sparse models have lines, with twins that have."""
    names, there = labels(spec.models), {line.model for line in lines}
    pairs = [[names[model] for model in pair] for pair in spec.pairs]
    present = [pair[:2] + [twin for twin in pair[2:] if twin in there] for pair in pairs]
    return Pairing(lines, [pair for pair in present if there.issuperset(pair)])


def levels_of(spec: CircuitsSpec) -> list[float]:
    """The shares explained at which heads are counted."""
    return sorted({*_LEVELS, spec.threshold})


def _ends(found: Multiplier) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("value", "low", "high", "reason")}
