"""Δ log-prob of the target against heads ablated, in the order of a role's score.

Δ_k = log p(target | base with the k best heads at 0) − log p(target | base with them at 1), summed
over the target's tokens. The base is G+: against all heads open an interfering head's harm would
be mixed with all others', against raw G+ its gate is near 0 already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from headlab.engine import Progress, measure
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gatefits.roles import METRICS, Roles
from headlab.gates import ZERO, Reference
from headlab.stats import mean_interval

if TYPE_CHECKING:
    from headlab.model import Model

Base = Literal["plus", "ones", "raw"]
# Of a name, a way to make the values and their number: what was kept, or is made now.
Keep = Callable[[str, Callable[[], Tensor], int], Tensor]
LINES = (*METRICS, "random")


@dataclass(frozen=True)
class Deltas:
    """Δ log-prob of each line, [order, k, example]: an order a seed, of random ones several."""

    ks: list[int]
    lines: dict[str, Tensor]
    examples: list[str]

    def mean(self, line: str) -> Tensor:
        """[k], over orders and prompts."""
        return self.lines[line].double().mean((0, 2))

    def band(self, line: str) -> tuple[Tensor, Tensor]:
        """95 % interval over orders, [k] twice; NaN for one."""
        return mean_interval(self.lines[line].double().mean(2).T)


def ablation_deltas(
    model: Model,
    examples: Sequence[Example],
    roles: Roles,
    ks: Sequence[int] | None = None,
    *,
    base: Base = "plus",
    aggregated: bool = False,
    reference: Reference = ZERO,
    random_orders: int = 20,
    keep: Keep | None = None,
    progress: Progress | None = None,
) -> Deltas:
    """Every line at every k, each seed on its own gates and order. Every order's values go through
    `keep`, which may have them from before.

    >>> ablation_deltas(model, examples, roles).mean("F")[-1]                  # doctest: +SKIP
    tensor(-2.4)
    """
    if base not in get_args(Base):
        raise HeadlabError(f"the base is {', '.join(get_args(Base))}, not {base!r}")
    layers, heads = roles.shape
    total, seeds = layers * heads, len(roles.fit.seeds)
    ks = sorted(set(ks if ks is not None else range(min(50, total) + 1)))
    if not ks or ks[0] < 0 or ks[-1] > total:
        raise HeadlabError(f"k runs from 0 to {total}, the number of heads")
    plus = roles.fit.g_plus.flatten(1)  # [seed, head]
    orders = {metric: (range(seeds), roles.order(metric, aggregated)) for metric in METRICS}
    owners = [number % seeds for number in range(max(seeds, random_orders))]
    random = torch.Generator().manual_seed(0)
    drawn = torch.stack([torch.randperm(total, generator=random) for _ in owners])
    lines = {}
    for line, (own, order) in {**orders, "random": (owners, drawn)}.items():
        found = []
        for number, seed in enumerate(own):
            closed, opened = _masks(plus[seed], order[number], ks, base)
            make = partial(_difference, model, examples, closed, opened, reference, progress)
            pairs = (len(closed) + len(opened)) * len(examples)
            found.append(make() if keep is None else keep(f"{line}-{number}", make, pairs))
        lines[line] = torch.stack(found)  # [order, k, example]
    return Deltas(list(ks), lines, [example.id for example in examples])


def _masks(plus: Tensor, order: Tensor, ks: Sequence[int], base: Base) -> tuple[Tensor, Tensor]:
    """The first k heads of an order closed, [k, head], and open, [k|1, head]."""
    ground = torch.ones_like(plus) if base == "ones" else plus
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    top = torch.stack([place < k for k in ks])  # [k, head]
    return (
        torch.where(top, 0.0, ground),
        torch.where(top, 1.0, ground) if base == "plus" else ground[None],
    )


def _difference(
    model: Model,
    examples: Sequence[Example],
    closed: Tensor,
    opened: Tensor,
    reference: Reference,
    progress: Progress | None,
) -> Tensor:
    """[k, example]"""
    masks = torch.cat([closed, opened]).view(-1, model.n_layers, model.n_heads)
    values = measure(model, examples, masks, "log-prob", reference, progress=progress).values
    return values[: len(closed)] - values[len(closed) :]
