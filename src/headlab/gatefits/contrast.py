"""Contrastive gates: one mask that forgets one set of prompts while it keeps another.

    −mean log p(keep) + mean clamp(log p(forget) − log p(keep), min −5) − λ · mean clamp(logit, ±4)

log p is the mean over an example's target tokens, and in the second term log p(keep) is a number,
not a way for gradients: forgetting may not be had by keeping less. The i-th example to keep and the
i-th to forget belong together: the same question in two formats, for instance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gatefits.fitting import FitWork, Schedule, State, begin, require_fit
from headlab.gatefits.rows import Rows
from headlab.gates import ZERO, Reference
from headlab.heads import Head
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.engine import Progress
    from headlab.model import Model

FLOOR = -5.0  # so much less likely than what is kept, and it is forgotten enough


@dataclass(frozen=True)
class ContrastFit:
    """Gates that keep and forget, a row a seed."""

    model: str
    seeds: list[int]
    logits: Tensor  # [seed, layer, head]
    losses: Tensor  # [seed, update]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def gates(self) -> Tensor:
        return self.logits.sigmoid()

    def table(self) -> pd.DataFrame:
        """A row a seed and head: its gate."""
        _, layers, heads = self.logits.shape
        names = [str(Head(layer, head)) for layer in range(layers) for head in range(heads)]
        return pd.DataFrame(
            {
                "seed": [seed for seed in self.seeds for _ in names],
                "head": names * len(self.seeds),
                "gate": self.gates.flatten().double().numpy(),
            }
        )


def fit_contrast(
    model: Model,
    keep: Sequence[Example],
    forget: Sequence[Example],
    seeds: Sequence[int] = range(10),
    schedule: Schedule | None = None,
    *,
    reference: Reference = ZERO,
    budget: int | None = None,
    state: State | None = None,
    on_state: Callable[[State], None] | None = None,
    state_every: int = 50,
    progress: Progress | None = None,
) -> ContrastFit:
    """Gates under which `keep` is answered as before and `forget` is not. `on_state` is given the
    state every so many updates; `state` goes on from one.

    >>> fit = fit_contrast(model, shown_ten, instructed)                      # doctest: +SKIP
    >>> fit.gates.shape                                                       # doctest: +SKIP
    torch.Size([10, 30, 9])
    """
    schedule = schedule or Schedule()
    seeds = list(seeds)
    if len(keep) != len(forget):
        raise HeadlabError(
            f"{count(len(keep), 'example')} to keep and {len(forget)} to forget; they come in pairs"
        )
    require_fit(len(keep), seeds, schedule)
    kept, forgotten = (Rows(model, each, schedule.batch) for each in (keep, forget))
    work = _Contrast(model, kept, forgotten, schedule, reference)
    state = state or begin(model, seeds, schedule, len(seeds), budget or work.budget())
    fits = [("contrast", seed) for seed in seeds]
    work.run(state, fits, on_state, state_every, progress)
    return ContrastFit(
        model=model.name,
        seeds=seeds,
        logits=state.logits.cpu(),
        losses=state.losses,
        settings={**vars(schedule), "reference": reference.kind},
    )


class _Contrast(FitWork):
    """Updates on pairs of rows."""

    def __init__(
        self,
        model: Model,
        keep: Rows,
        forget: Rows,
        schedule: Schedule,
        reference: Reference,
    ):
        super().__init__(model, keep, schedule, reference)
        self._forget = forget

    def slopes(self, logits: Tensor, numbers: np.ndarray, tokens: int) -> tuple[Tensor, Tensor]:
        kept = torch.zeros(len(numbers), device=logits.device)  # log p of each row

        def keeping(log_probs: Tensor, rows: Tensor) -> Tensor:
            kept[rows] = log_probs.detach()
            return -log_probs

        def forgetting(log_probs: Tensor, rows: Tensor) -> Tensor:
            return (log_probs - kept[rows]).clamp(min=FLOOR)

        one = self.summed(logits, self.rows, numbers, tokens, keeping)
        other = self.summed(logits, self._forget, numbers, tokens, forgetting)
        return one[0] + other[0], one[1] + other[1]
