"""A curve: the effect explained with k heads kept, or ablated, and what it says.

explained(k) = (mean m(k) − mean m(none)) / (mean m(all) − mean m(none)), means over prompts: a
ratio of means, never a mean of ratios. With the counterfactual as reference, m(none) is the measure
on the counterfactual prompts themselves: no head explains 0, all heads explain 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from torch import Tensor

from headlab.stats import bootstrap_weights, mean_interval, resampled_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the heads, as in MIB
THRESHOLDS = (0.8, 0.9, 0.95)
Mode = Literal["keep", "ablate"]


@dataclass(frozen=True)
class Curve:
    """A measure against the number of heads kept (or ablated), beside random orders."""

    model: str
    task: str
    mode: Mode
    method: str  # that ranked the heads
    measure: str
    reference: str
    examples: list[str]  # their ids
    n_heads: int
    ks: list[int]
    values: Tensor  # [k, example]
    random_ks: list[int]
    random: Tensor  # [order, k, example], random orders
    matched: Tensor  # [order, k, example], random heads, as many of each layer as the order has
    clean: Tensor  # [example], all heads
    none: Tensor  # [example], no head
    in_sample: bool | None  # the heads were ranked on these examples; None: not known
    per_prompt: bool = False  # for each example by its own scores
    threshold: float = 0.9
    settings: dict[str, Any] = field(default_factory=dict)

    # --- explained effect ---

    @cached_property
    def explained(self) -> Tensor:
        """[k]"""
        return self._ratio(self.values.double().mean(-1))

    @cached_property
    def band(self) -> tuple[Tensor, Tensor]:
        """95 % bootstrap interval over prompts, [k] twice."""
        again = self.resampled(bootstrap_weights(len(self.examples)))
        return resampled_interval(self.explained, again, len(self.examples))

    @cached_property
    def random_explained(self) -> Tensor:
        """[order, k] of `random_ks`"""
        return self._ratio(self.random.double().mean(-1))

    @cached_property
    def matched_explained(self) -> Tensor:
        return self._ratio(self.matched.double().mean(-1))

    def _ratio(self, mean: Tensor) -> Tensor:
        none = self.none.double().mean()
        return (mean - none) / (self.clean.double().mean() - none)

    def resampled(self, weights: Tensor) -> Tensor:
        """[resample, k]: prompts drawn again by [resample, example] weights, the same in all three
        means."""
        rows = torch.cat(
            [self.values.double(), self.clean.double()[None], self.none.double()[None]]
        )
        means = weights @ rows.T / weights.sum(1, keepdim=True)  # [resample, k + 2]
        clean, none = means[:, -2:-1], means[:, -1:]
        return (means[:, :-2] - none) / (clean - none)

    # --- how many heads ---

    def crossing(self, threshold: float | None = None, stay: bool = False) -> int | None:
        """The smallest k that explains the threshold (with `ablate`, that removes it); with `stay`,
        the smallest from which on it always does. None if no k does."""
        return self._crossing(self.explained, threshold or self.threshold, stay)

    def crossing_interval(
        self, threshold: float | None = None, stay: bool = False
    ) -> tuple[int | None, int | None]:
        """Where the ends of the 95 % band cross; None for "at no k"."""
        low, high = self.band
        early, late = (high, low) if self.mode == "keep" else (low, high)
        level = threshold or self.threshold
        return self._crossing(early, level, stay), self._crossing(late, level, stay)

    def _crossing(self, explained: Tensor, threshold: float, stay: bool) -> int | None:
        limit = threshold - 1e-9  # 1 is reached up to rounding
        done = explained >= limit if self.mode == "keep" else explained <= 1 - limit
        if stay:
            done = done.flip(0).cumprod(0).bool().flip(0)
        first = done.nonzero()
        return self.ks[int(first[0])] if len(first) else None

    # --- areas, as in MIB ---

    @property
    def cpr(self) -> float:
        """Area under the curve over the share of heads: how much of the model's performance."""
        return _area(self._at_shares(self.ks, self.explained[None]))[0]

    @property
    def cmd(self) -> float:
        """Area between the curve and 1: how far from the model's behaviour."""
        return _area((1 - self._at_shares(self.ks, self.explained[None])).abs())[0]

    @property
    def random_cpr(self) -> list[float]:
        return _area(self._at_shares(self.random_ks, self.random_explained))

    @property
    def matched_cpr(self) -> list[float]:
        return _area(self._at_shares(self.random_ks, self.matched_explained))

    @property
    def beats_random(self) -> float:
        """The share of random orders that this order beats by area."""
        return self._beats(self.random_cpr)

    @property
    def beats_matched(self) -> float:
        return self._beats(self.matched_cpr)

    def _beats(self, areas: list[float]) -> float:
        better = [self.cpr > area if self.mode == "keep" else self.cpr < area for area in areas]
        return sum(better) / len(better)

    def _at_shares(self, ks: list[int], explained: Tensor) -> Tensor:
        """[order, share]"""
        return explained[:, [ks.index(k) for k in share_ks(self.n_heads)]]

    # --- for people ---

    @property
    def sample(self) -> str:
        """Whether the heads were ranked on these prompts, in words."""
        if self.in_sample is None:
            return "ranked on prompts that are not known"
        return "in-sample: ranked on the same prompts" if self.in_sample else "held out"

    def table(self) -> pd.DataFrame:
        """A row a line and k: line, order, k, explained, low, high, measure."""
        low, high = self.band
        rows = [
            {
                "line": self.method,
                "order": 0,
                "k": k,
                "explained": float(self.explained[i]),
                "low": float(low[i]),
                "high": float(high[i]),
                self.measure: float(self.values[i].double().mean()),
            }
            for i, k in enumerate(self.ks)
        ]
        for line, values, explained in (
            ("random", self.random, self.random_explained),
            ("layer-matched random", self.matched, self.matched_explained),
        ):
            for order in range(len(values)):
                for i, k in enumerate(self.random_ks):
                    rows.append(
                        {
                            "line": line,
                            "order": order,
                            "k": k,
                            "explained": float(explained[order, i]),
                            self.measure: float(values[order, i].double().mean()),
                        }
                    )
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        from headlab.figures import plot_curve

        return plot_curve(self)

    def as_dict(self) -> dict[str, Any]:
        """The summary, for JSON."""
        effect = self.clean.double() - self.none.double()
        low, high = mean_interval(effect)
        return {
            "model": self.model,
            "task": self.task,
            "mode": self.mode,
            "method": self.method,
            "measure": self.measure,
            "reference": self.reference,
            "in_sample": self.in_sample,
            "per_prompt": self.per_prompt,
            "n": len(self.examples),
            "examples": self.examples,
            "heads": self.n_heads,
            "clean": float(self.clean.double().mean()),
            "none": float(self.none.double().mean()),
            "effect": {"mean": float(effect.mean()), "low": float(low), "high": float(high)},
            "crossings": {
                f"k{100 * level:g}": {
                    "first": self.crossing(level),
                    "interval": self.crossing_interval(level),
                    "stay": self.crossing(level, stay=True),
                    "stay_interval": self.crossing_interval(level, stay=True),
                }
                for level in sorted({*THRESHOLDS, self.threshold})
            },
            "cpr": self.cpr,
            "cmd": self.cmd,
            "random_cpr": self.random_cpr,
            "matched_cpr": self.matched_cpr,
            "beats_random": self.beats_random,
            "beats_matched": self.beats_matched,
            "orders": len(self.random),
            "settings": self.settings,
        }


def share_ks(n_heads: int) -> list[int]:
    """The numbers of heads at MIB's ten shares."""
    return [round(share * n_heads) for share in SHARES]


def _area(at_shares: Tensor) -> list[float]:
    """Trapezoids over the share of heads, [order, share] -> a number an order."""
    return torch.trapezoid(at_shares, torch.tensor(SHARES, dtype=at_shares.dtype), dim=1).tolist()
