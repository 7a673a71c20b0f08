"""A score for every head, with its interval: what a ranking gives and a head map shows."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    the head: a head that helps has a positive score. Of a distance (kl), of which less is better,
    it is the other way round.
    """

    model: str
    task: str
    method: str
    measure: str
    reference: str
    examples: list[str]  # their ids
    values: Tensor  # [layer, head, example]
    clean: Tensor  # [example], the measure with all heads
    noise_floor: float | None = None  # a smaller mean says nothing; None where not measured
    scale: float = 0.0  # the gate of the head that is taken away
    is_distance: bool = False  # the measure is one: scores cannot be negative
    settings: dict[str, Any] = field(default_factory=dict)  # what else it takes to do it again

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
        """[layer, head], True where the interval leaves out 0 and the score is above the noise.
        A distance is above 0 anyway: there only the noise counts."""
        if self.is_distance:
            return ~self.in_noise
        return leaves_out_zero(self.values) & ~self.in_noise

    @property
    def change(self) -> Tensor:
        """[layer, head], how the measure changes without the head."""
        return self.score if self.is_distance else -self.score

    @property
    def change_interval(self) -> tuple[Tensor, Tensor]:
        low, high = self.interval
        return (low, high) if self.is_distance else (-high, -low)

    @cached_property
    def n_by_chance(self) -> float:
        """How many heads would be `beyond_chance` if none did anything, signs drawn by lot."""
        return expected_by_chance(self.values)

    def order(self, by_size: bool = False) -> list[Head]:
        """The heads from the largest score down; `by_size` without regard to the sign."""
        score = self.score.abs() if by_size else self.score
        ranks = score.flatten().argsort(descending=True, stable=True).tolist()
        return [Head(*divmod(number, self.shape[1])) for number in ranks]

    @property
    def heads(self) -> list[Head]:
        """All of them, layer by layer."""
        layers, heads = self.shape
        return [Head(layer, head) for layer in range(layers) for head in range(heads)]

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Per-example values are not in it."""
        low, high = self.interval
        heads = {
            str(head): {
                "score": float(self.score[head]),
                "low": float(low[head]),
                "high": float(high[head]),
            }
            for head in self.heads
        }
        return {
            "model": self.model,
            "task": self.task,
            "method": self.method,
            "measure": self.measure,
            "reference": self.reference,
            "scale": self.scale,
            "settings": self.settings,
            "examples": self.examples,
            "clean": float(torch.mean(self.clean.double())),
            "noise_floor": self.noise_floor,
            "heads": heads,
        }
