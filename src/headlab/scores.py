"""A score for every head, with its interval: what a ranking gives and a head map shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headlab.heads import Head
from headlab.stats import expected_by_chance, leaves_out_zero, mean_interval


@dataclass(frozen=True)
class HeadScores:
    """How much of a measure each head carries, on each example.

    Where heads are taken away, a score is the measure with all heads minus the measure without
    the head: a head that helps has a positive score.
    """

    model: str
    method: str
    measure: str
    reference: str
    examples: list[str]  # their ids
    values: Tensor  # [layer, head, example]
    clean: Tensor  # [example], the measure with all heads
    noise_floor: float | None = None  # a smaller mean says nothing; None where not measured

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @cached_property
    def score(self) -> Tensor:
        """[layer, head], the mean over examples."""
        return self.values.double().mean(-1)

    @cached_property
    def interval(self) -> tuple[Tensor, Tensor]:
        """95 % interval of each mean, [layer, head] twice; NaN for one example."""
        return mean_interval(self.values)

    @property
    def in_noise(self) -> Tensor:
        """[layer, head], True where the score is no larger than the run's own rounding."""
        return self.score.abs() <= (self.noise_floor or 0.0)

    @property
    def beyond_chance(self) -> Tensor:
        """[layer, head], True where the interval leaves out 0 and the score is above the noise."""
        return leaves_out_zero(self.values) & ~self.in_noise

    @cached_property
    def n_by_chance(self) -> float:
        """How many heads would be `beyond_chance` if none did anything, signs drawn by lot."""
        return expected_by_chance(self.values)

    def order(self, by_size: bool = False) -> list[Head]:
        """The heads from the largest score down; `by_size` without regard to the sign."""
        score = self.score.abs() if by_size else self.score
        ranks = score.flatten().argsort(descending=True, stable=True).tolist()
        return [Head(*divmod(number, self.shape[1])) for number in ranks]

    def rows(self) -> list[dict[str, Any]]:
        """One row a head, for a CSV or a table."""
        low, high = self.interval
        noise, beyond = self.in_noise, self.beyond_chance
        heads = [
            Head(layer, head) for layer in range(self.shape[0]) for head in range(self.shape[1])
        ]
        return [
            {
                "head": str(head),
                "layer": head.layer,
                "number": head.head,
                "score": float(self.score[head]),
                "low": float(low[head]),
                "high": float(high[head]),
                "in_noise": bool(noise[head]),
                "beyond_chance": bool(beyond[head]),
            }
            for head in heads
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Per-example values are not in it."""
        heads = {
            row["head"]: {key: row[key] for key in ("score", "low", "high")} for row in self.rows()
        }
        return {
            "model": self.model,
            "method": self.method,
            "measure": self.measure,
            "reference": self.reference,
            "examples": self.examples,
            "clean": float(torch.mean(self.clean.double())),
            "noise_floor": self.noise_floor,
            "heads": heads,
        }
