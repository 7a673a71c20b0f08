"""Statistics of the first MLP's activations on the same original tokens under every condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from headlab.activations.arm import threshold as arm_threshold
from headlab.activations.finding import Activation, find_activation
from headlab.activations.statistics import STATISTICS, describe_tokens
from headlab.budgets import find_budget
from headlab.chunks import by_length
from headlab.errors import HeadlabError
from headlab.fillers import INSTRUCTION, Built, Condition, build, parse_conditions
from headlab.stats import mean_interval

if TYPE_CHECKING:
    from headlab.engine import Progress
    from headlab.model import Model

Which = Literal["original", "question"]
BASE_C = 0.13  # ARM's c that makes the threshold; published for a 1.5B model
_WIDE = 2**25  # numbers of one pass, at most: they are sorted in float64


@dataclass(frozen=True)
class Activations:
    """Each statistic of each prompt under each condition: the mean over its tokens."""

    values: Tensor  # [statistic, condition, prompt], float64
    conditions: list[Condition]
    threshold: float  # of "near zero"
    threshold_from: str
    model: str
    path: str  # of the activation function
    tokens: list[int]  # of each prompt that were measured
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [condition.name for condition in self.conditions]

    @property
    def n(self) -> int:
        return self.values.shape[-1]

    @property
    def is_deaf(self) -> bool:
        """Nothing moved, in no condition: this MLP does not hear other tokens."""
        change = (self.values - self.values[:, :1]).abs().amax()
        return len(self.conditions) > 1 and bool(change <= 1e-5 * self.values.abs().amax())

    def table(self) -> list[dict[str, Any]]:
        """A row for each statistic and condition: the mean over prompts with its 95 % interval,
        and the paired difference to the first condition with its own."""
        means, changes = self.values.mean(-1), (self.values - self.values[:, :1])
        low, high = mean_interval(self.values)
        below, above = mean_interval(changes)
        return [
            {
                "statistic": name,
                "condition": condition,
                "mean": float(means[s, c]),
                "low": float(low[s, c]),
                "high": float(high[s, c]),
                "difference": float(changes[s, c].mean()),
                "difference_low": float(below[s, c]),
                "difference_high": float(above[s, c]),
                "n": self.n,
            }
            for s, name in enumerate(STATISTICS)
            for c, condition in enumerate(self.names)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each prompt and condition."""
        return [
            {
                "prompt": prompt,
                "condition": condition,
                "tokens": self.tokens[prompt],
                **{name: float(self.values[s, c, prompt]) for s, name in enumerate(STATISTICS)},
            }
            for prompt in range(self.n)
            for c, condition in enumerate(self.names)
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "activation": self.path,
            "threshold": self.threshold,
            "threshold_from": self.threshold_from,
            **self.settings,
            "table": self.table(),
        }


def measure_activations(
    model: Model,
    questions: Sequence[str],
    conditions: str | Sequence[str | dict[str, Any] | Condition] = "none,mless,mful",
    *,
    instruction: str = INSTRUCTION,
    which: Which = "original",
    threshold: float | None = None,
    budget: int | None = None,
    progress: Progress | None = None,
) -> Activations:
    """Build every question under every condition, and describe the first MLP's activations on the
    tokens that all conditions share: all of them, or the question's alone.

    "Near zero" is at or below a threshold that is the same for every token and condition: as given,
    or ARM's ε with c = 0.13 in the first condition (the median over its tokens). `progress` counts
    prompts, those of the threshold's own passes, too.

    >>> found = measure_activations(model, questions, "none,mless")           # doctest: +SKIP
    >>> found.table()[1]["difference"]                                        # doctest: +SKIP
    -0.0012
    """
    if which not in get_args(Which):
        raise HeadlabError(f"measured are original or question tokens, not {which!r}")
    if threshold is not None and not 0 <= threshold < float("inf"):
        raise HeadlabError(f"the threshold is a finite number, 0 or more, not {threshold:g}")
    if isinstance(questions, str) or not len(questions):
        raise HeadlabError("questions come as a list with at least one")
    chosen = parse_conditions(conditions)
    model.require_clean()
    activation = find_activation(model)
    built = [
        [build(model, condition, question, instruction) for question in questions]
        for condition in chosen
    ]
    _require_same(built)
    reader = _Reader(model, activation, which, budget or find_budget(model), progress)
    source = "given"
    if threshold is None:
        epsilons = reader.read(built[0], chosen[0], lambda x: _epsilons(x)[None])
        threshold = float(torch.cat(epsilons, 1).median())
        source = f"the median over tokens of ARM's ε with c = {BASE_C} under {chosen[0].name}"
    level = threshold
    values = [
        torch.stack(
            [
                found.mean(-1)
                for found in reader.read(own, condition, lambda x: describe_tokens(x, level))
            ],
            -1,
        )
        for own, condition in zip(built, chosen, strict=True)
    ]
    return Activations(
        torch.stack(values, 1),
        chosen,
        threshold,
        source,
        model.name,
        activation.path,
        [int(reader.kept(each).sum()) for each in built[0]],
        {"instruction": instruction, "which": which, "n": len(questions)},
    )


def _epsilons(x: Tensor) -> Tensor:
    """ARM's ε of each token: [token, width] -> [token]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return arm_threshold(wide.abs().sort(dim=-1).values, BASE_C)[:, 0].double()


def _require_same(built: list[list[Built]]) -> None:
    for other in built[1:]:
        for first, each in zip(built[0], other, strict=True):
            if not torch.equal(first.original, each.original):
                raise HeadlabError(
                    f"{first.condition.name} and {each.condition.name} do not have the same "
                    "original tokens; compare conditions of one template"
                )


class _Enough(Exception):  # noqa: N818  (no error: the pass may end)
    """All that is wanted has been seen; the layers above need not run."""


class _Reader:
    """Passes that end at the first MLP, prompts of like length together."""

    def __init__(
        self,
        model: Model,
        activation: Activation,
        which: Which,
        budget: int,
        progress: Progress | None,
    ):
        self.model, self.activation, self.which = model, activation, which
        self.budget, self.progress = budget, progress

    def kept(self, built: Built) -> Tensor:
        """The tokens that are measured, [position]."""
        return built.question if self.which == "question" else ~built.inserted

    def read(
        self, built: list[Built], condition: Condition, describe: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """What `describe` makes of each prompt's measured tokens, [token, width] -> [..., token],
        on the CPU."""
        found: list[Tensor] = [torch.empty(0)] * len(built)
        lengths = [len(each.ids) for each in built]
        width = self._width(built[0])
        for numbers in by_length(lengths, min(self.budget, max(1, _WIDE // width))):
            own = [built[number] for number in numbers]
            x = self._activations(own)  # [prompt, position, width]
            if condition.arm is not None:
                keys = condition.arm.keys([each.ids for each in own])
                x = condition.arm.redistribute(x, keys, _padded(own))
            for number, each, row in zip(numbers, own, x, strict=True):
                kept = self.kept(each).to(row.device)
                found[number] = describe(row[: len(each.ids)][kept]).cpu()
            if self.progress is not None:
                self.progress(len(numbers))
        return found

    def _width(self, built: Built) -> int:
        return self._activations([built]).shape[-1]

    def _activations(self, built: list[Built]) -> Tensor:
        model = self.model
        ids = [each.ids for each in built]
        gaps = any(each.has_gap for each in built)
        given, _ = model.placed(ids, [each.positions for each in built] if gaps else None, None)
        inputs = model.inputs(model.tokens(ids, position_ids=given))
        seen: list[Tensor] = []

        def look(x: Tensor) -> None:
            seen.append(x.detach())
            raise _Enough

        with torch.no_grad(), self.activation.changed(look), suppress(_Enough):
            model.hf(**inputs)
        return seen[0]


def _padded(built: list[Built]) -> Tensor:
    """Positions [prompt, position], pads on the right."""
    longest = max(len(each.ids) for each in built)
    found = torch.zeros(len(built), longest, dtype=torch.long)
    for row, each in enumerate(built):
        found[row, : len(each.ids)] = each.positions
    return found
