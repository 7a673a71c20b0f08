"""Which heads are worth a run: slopes pick some, and a few of the others, drawn by lot, are run as
well, which shows what the slopes miss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headlab.engine import Progress, ReferenceLike
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import Gates
from headlab.gradients import ALL_HEADS, gate_gradients, warn_of_hard_gates
from headlab.heads import Head
from headlab.measures import Measure
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.model import Model
    from headlab.scores import HeadScores

# Slopes are taken where all gates are 1, and where all have gone a quarter of the way: a head that
# the model has more than enough of shows no slope until some is gone. Further on than for a gate
# that closes, slopes are of a broken model.
_STEPS = (0.0, 0.25)
CHECKED = 20  # of the others: at least one of the 14 % that are farthest off is among them, by 95 %


def masks_run(n_heads: int, exact: int | None) -> int:
    """How many masks a ranking runs: a head each, and those for the slopes.

    >>> masks_run(270, None), masks_run(270, 40), masks_run(270, 260)
    (270, 62, 270)
    """
    return n_heads if exact is None else min(n_heads, exact + CHECKED + len(_STEPS))


@dataclass(frozen=True)
class Screen:
    """Heads by their numbers, layer by layer."""

    estimates: Tensor  # [head, example], how the measure would change by the slope of the gate
    picked: list[int]  # the largest mean slopes, whatever their sign
    checked: list[int]  # some of the others, by lot

    @property
    def run(self) -> list[int]:
        return sorted([*self.picked, *self.checked])

    def filled(self, change: Tensor) -> Tensor:
        """What the heads that were run change, [head, example], and estimates of all others."""
        full = self.estimates.to(change.dtype).clone()
        full[self.run] = change
        return full

    def told(self, sign: int, n_heads: int) -> tuple[list[str], dict[str, float]]:
        """The heads that keep their estimate; and what it was of those that were checked, as a
        score: the change, or with -1 the opposite."""
        names = [str(Head(*divmod(number, n_heads))) for number in range(len(self.estimates))]
        ran = set(self.run)
        means = self.estimates.double().mean(1)
        return (
            [name for number, name in enumerate(names) if number not in ran],
            {names[number]: sign * float(means[number]) for number in sorted(self.checked)},
        )


def screen(
    model: Model,
    examples: Sequence[Example],
    chosen: Measure,
    reference: ReferenceLike,
    exact: int,
    scale: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Screen | None:
    """The `exact` heads with the largest slopes, where all gates are 1 or a step on, and some
    others; estimates are by the slope where all are 1. None where that would be all heads."""
    n_heads = model.n_layers * model.n_heads
    if masks_run(n_heads, exact) == n_heads:
        return None
    require_slopes(chosen)
    warn_of_hard_gates(model, ALL_HEADS)
    at = 1 + max(-1.0, min(scale - 1, 1.0)) * torch.tensor(_STEPS)
    gates = Gates(at[:, None, None].expand(-1, model.n_layers, model.n_heads).contiguous())
    found = gate_gradients(model, examples, gates, chosen, reference, progress=progress)
    slopes = found.gradient.flatten(2)  # [step, example, head]
    largest = slopes.double().mean(1).abs().amax(0)
    order = largest.argsort(descending=True, stable=True).tolist()
    estimates = (scale - 1) * slopes[0].T
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(n_heads - exact, generator=random)[:CHECKED].tolist()
    rest = sorted(order[exact:])
    return Screen(estimates, order[:exact], [rest[number] for number in drawn])


def require_slopes(chosen: Measure) -> None:
    """Refuse a measure that cannot pick heads."""
    if chosen.is_distance or not chosen.differentiable:
        raise HeadlabError(
            f"exact picks heads by slopes where nothing is changed, and {chosen.name} has none "
            "there; run all heads, or take another measure"
        )


def ranked_by(method: str, settings: Mapping[str, Any]) -> str:
    """A ranking's method, and where not all heads were run, how many were.

    >>> ranked_by("patch", {"exact": 40}), ranked_by("patch", {})
    ('patch (40 heads picked by gradients and 20 by lot, the others by estimates)', 'patch')
    """
    exact = settings.get("exact")
    if exact is None:
        return method
    picked = f"{count(exact, 'head')} picked by gradients and {CHECKED} by lot"
    return f"{method} ({picked}, the others by estimates)"


def ran(scores: HeadScores) -> str:
    """Which heads were run, where not all were.

    >>> ran(scores)                                                           # doctest: +SKIP
    '60 of 270 heads were run: 40 picked by gradients, 20 of the others by lot'
    """
    total = scores.score.numel()
    n, by_lot = total - len(scores.estimated), len(scores.checked)
    if not scores.checked:
        return f"{n} of {total} heads were run with every seed"
    return (
        f"{n} of {total} heads were run: {n - by_lot} picked by gradients, {by_lot} of the others "
        "by lot"
    )


def may_be_missed(unrun: int, drawn: int) -> int:
    """How many of those not run may be larger than all that were drawn: were there more, one of
    them would have been drawn in 95 of 100 draws.

    >>> may_be_missed(210, 20), may_be_missed(22, 20), may_be_missed(2, 20)
    (30, 4, 1)
    """
    all_of_them, larger = unrun + drawn, 0
    chance = 1.0  # that none of the larger ones is drawn
    while larger < unrun:
        chance *= 1 - drawn / (all_of_them - larger)
        if chance <= 0.05:
            break
        larger += 1
    return larger


def missed(scores: HeadScores) -> str:
    """What those that were run by lot say about those that were not run; nothing of several seeds
    together."""
    if not scores.checked:
        return ""
    size = {head: abs(float(scores.score[head])) for head in scores.heads}
    known = [head for head in scores.heads if not scores.is_estimated[head]]
    known.sort(key=lambda head: -size[head])
    by_lot = {Head.parse(name): estimate for name, estimate in scores.checked.items()}
    largest = max(by_lot, key=lambda head: size[head])
    off = [abs(float(scores.score[head]) - estimate) for head, estimate in by_lot.items()]
    unrun = len(scores.estimated)
    return (
        f"; of those by lot the largest, {largest}, is number {1 + known.index(largest)} of the "
        f"{len(known)} by size: with 95 % confidence at most {may_be_missed(unrun, len(off))} of "
        f"the {unrun} not run are larger. Gradients were off by {sum(off) / len(off):.2g} on "
        f"average, {max(off):.2g} at most{_estimated_high(scores, size, len(known) - len(off))}"
    )


def _estimated_high(scores: HeadScores, size: Mapping[Head, float], picked: int) -> str:
    """Those whose estimate is among the largest: picked by the larger of two slopes, heads may
    leave one out whose first slope is larger than their scores."""
    first = sorted(scores.heads, key=lambda head: -size[head])[:picked]
    high = [
        f"{head} ({float(scores.score[head]):.2g})" for head in first if scores.is_estimated[head]
    ]
    if not high:
        return ""
    return f". Not run, and by its estimate among the {picked} largest: {', '.join(high)}"
