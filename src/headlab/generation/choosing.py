"""The next token of each row: the likeliest, or one drawn from the row's own random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.luck import generator_of


@dataclass(frozen=True)
class Choice:
    """How a token is chosen. Greedy without a temperature."""

    temperature: float | None = None
    top_p: float = 1.0  # only the likeliest tokens that together have so much
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise HeadlabError(
                f"the temperature is above 0, not {self.temperature:g}; leave it out for greedy"
            )
        if self.seed < 0:
            raise HeadlabError(f"a seed is 0 or more, not {self.seed}")
        if not 0 < self.top_p <= 1:
            raise HeadlabError(f"top-p is above 0 and at most 1, not {self.top_p:g}")
        if self.top_p < 1 and self.temperature is None:
            raise HeadlabError("top-p needs a temperature; without one the likeliest is taken")

    @property
    def wide_copies(self) -> int:
        """How many arrays of the logits' shape and 8 bytes an element `choose` holds at a time."""
        if self.temperature is None:
            return 0
        return 4 if self.top_p == 1 else 8

    def numbers(self, prompts: Sequence[Tensor], steps: int) -> Tensor:
        """One number between 0 and 1 for each prompt and step, [prompt, step].

        They depend on the seed and the prompt's tokens alone: not on what else is in the batch,
        and not on the mask, so that masks on one prompt are compared under the same luck.
        """
        rows = [generator_of(self.seed, prompt).random(steps) for prompt in prompts]
        return torch.from_numpy(np.stack(rows))

    def choose(self, logits: Tensor, number: Tensor) -> Tensor:
        """The next token of each row, [row], from logits [row, vocabulary] and numbers [row]."""
        if self.temperature is None:
            return logits.argmax(-1)
        wide = logits.double()
        shares = ((wide - wide.amax(-1, keepdim=True)) / self.temperature).softmax(-1)
        if self.top_p < 1:
            ordered, places = shares.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            ordered = ordered.where(before < self.top_p, 0.0)
            shares = torch.zeros_like(shares).scatter(-1, places, ordered)
        up_to = shares.cumsum(-1)
        wanted = number[:, None] * up_to[:, -1:]
        return torch.searchsorted(up_to, wanted, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
