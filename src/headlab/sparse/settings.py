"""What sparse post-training is asked for."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headlab.errors import HeadlabError

CONSTRAINTS = ("kl", "loss")
Constraint = Literal["kl", "loss"]
_BOUNDS = {"kl": 0.2, "loss": 0.05}  # nats a token
_DUALS = {"kl": 0.02, "loss": 0.1}


@dataclass(frozen=True)
class Settings:
    """Fewest edges such that a constraint holds: the distance to the dense model (kl), or the loss
    above the dense model's own on the same tokens (loss), at most `bound` nats a token.

    Learning rates go up over the warm-up and down to a tenth along a cosine.
    """

    constraint: Constraint = "kl"
    bound: float = 0.2
    levels: tuple[float, ...] = (30.0, 10.0, 3.0)  # percent of edges
    steps: int = 1000
    batch: int = 64
    context: int = 128
    rate: float = 1e-4  # of weights
    gate_rate: float = 1e-2  # of b
    warmup: int = 50
    start: float = 6.0  # b of every head at first: nearly all gates open
    distill: float = 1.0  # weight of the distance to the dense model
    beta: float = 1e-2  # of the penalty on edges, at first
    dual: float = 0.02  # how fast that weight follows the constraint
    smooth: float = 0.9  # of the constraint's running mean
    lora: int | None = None  # rank of adapters; None: all weights are tuned
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.constraint not in CONSTRAINTS:
            raise HeadlabError(f"a constraint is kl or loss, not {self.constraint!r}")
        numbers = [value for value in asdict(self).values() if isinstance(value, float)]
        if not all(math.isfinite(number) for number in (*numbers, *self.levels)):
            raise HeadlabError("settings of sparse training are finite numbers")
        if self.constraint == "kl" and self.bound <= 0:
            raise HeadlabError(
                f"the distance to the dense model is bound above 0, not {self.bound}"
            )
        if min(self.steps, self.batch) < 1 or self.context < 2:
            raise HeadlabError("training takes at least one step of one context of two tokens")
        if not all(0 < level < 100 for level in self.levels):
            raise HeadlabError("levels are percent of the edges, above 0 and below 100")
        if list(self.levels) != sorted(set(self.levels), reverse=True):
            raise HeadlabError("levels are named once each, the densest first")
        for name in ("rate", "gate_rate", "beta", "dual", "clip"):
            if getattr(self, name) <= 0:
                raise HeadlabError(f"{name} is above 0, not {getattr(self, name):g}")
        if not 0 <= self.smooth < 1:
            raise HeadlabError(f"smoothing is from 0 to below 1, not {self.smooth:g}")
        if self.distill < 0 or (self.constraint == "kl" and not self.distill):
            raise HeadlabError("the weight of distillation is above 0 (0 with constraint loss)")
        if self.lora is not None and self.lora < 1:
            raise HeadlabError(f"adapters have a rank of at least 1, not {self.lora}")
        if self.warmup < 0 or self.seed < 0:
            raise HeadlabError("warm-up and seed are not below 0")

    @property
    def own_loss(self) -> float:
        """The weight of the loss on the text itself: none where only the dense model is copied."""
        return 1.0 if self.constraint == "loss" else 0.0

    def scale(self, step: int) -> float:
        """Of learning rates at a step.

        >>> round(Settings(steps=100, warmup=10).scale(9), 3)
        1.0
        >>> round(Settings(steps=100, warmup=10).scale(99), 3)
        0.1
        """
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        return 0.1 + 0.9 * (1 + math.cos(math.pi * min(1.0, done))) / 2

    def next_beta(self, beta: float, value: float) -> float:
        """The penalty's weight after a step at which the constraint's running mean was `value`.

        It grows while there is room and shrinks beyond the bound; of a distance the room counts
        as a share of the bound.
        """
        room = self.bound - value
        room = room / self.bound if self.constraint == "kl" else room
        growth = math.exp(min(50.0, max(-50.0, self.dual * room)))
        return min(1e10, max(1e-10, beta * growth))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "levels": list(self.levels)}


def make_settings(constraint: str = "kl", **given: Any) -> Settings:
    """Settings from those that are given; bound and dual step as the constraint has them."""
    known = {name: value for name, value in given.items() if value is not None}
    if constraint in CONSTRAINTS:
        known = {"bound": _BOUNDS[constraint], "dual": _DUALS[constraint], **known}
    if "warmup" not in known:
        known["warmup"] = min(Settings.warmup, max(1, known.get("steps", Settings.steps) // 10))
    return Settings(constraint=constraint, **known)  # type: ignore[arg-type]
