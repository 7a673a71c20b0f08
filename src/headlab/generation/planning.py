"""Which rows go forward together: as many as memory and a pass over their prompts allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from headlab.budgets import find_budget
from headlab.generation.choosing import Choice
from headlab.generation.keys import bytes_per_token

if TYPE_CHECKING:
    from headlab.model import Model

_CPU_ROOM = 2 * 2**30  # bytes of keys, values and logits at a time
_GPU_ROOM = 0.5  # of the memory beside the weights


class Plan:
    """The limits of a call, found once, and its batches. Memory that runs out lowers the limit of
    rows for the rest of the call."""

    def __init__(
        self,
        model: Model,
        new: int,
        choice: Choice,
        *,
        shares_prompts: bool,
        cuts_logits: bool,
        rows_at_a_time: int | None = None,
    ):
        self.rows = rows_at_a_time  # at most; None: what fits
        self._new = new
        self._longest = model.max_length
        self._shares_prompts = shares_prompts  # one pass over a prompt for all masks
        self._room = _room(model)
        self._per_token = bytes_per_token(model)
        wide = model.vocabulary * (model.dtype.itemsize + 4)  # as they come and in float32
        self._per_row = wide + model.vocabulary * 8 * choice.wide_copies
        self._tokens = find_budget(model)  # in the pass over prompts
        if not cuts_logits:  # the model projects every position to the vocabulary
            self._tokens = min(self._tokens, self._room // wide)

    def batches(
        self, lengths: Sequence[int], n_masks: int
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Prompts and masks by their numbers, prompts of like length together."""
        order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
        masks = list(range(n_masks))
        start = 0
        while start < len(order):
            length = lengths[order[start]]
            rows = self._rows_of(length)
            width = min(n_masks, rows)  # masks beside each other
            if not self._shares_prompts:
                width = max(1, min(width, self._tokens // length))
            passes = 1 if self._shares_prompts else width
            count = max(1, min(rows // width, self._tokens // (length * passes)))
            own = order[start : start + count]
            for first in range(0, n_masks, width):
                yield own, masks[first : first + width]
            start += count

    def _rows_of(self, length: int) -> int:
        """How many rows fit whose prompts have at most so many tokens."""
        whole = length + self._new
        if self._longest is not None:
            whole = min(whole, self._longest)
        fit = max(1, self._room // (whole * self._per_token + self._per_row))
        return min(fit, self.rows or fit)

    def allows(self, rows: int) -> bool:
        return self.rows is None or rows <= self.rows

    def shrink(self, rows: int) -> None:
        """So many did not fit."""
        self.rows = max(1, rows // 2)


def _room(model: Model) -> int:
    """Bytes: of the memory there is beside the weights, not of what happens to be free, for the
    same batches in every run. Where others use it, memory runs out and batches are halved."""
    if model.device.type != "cuda":
        return _CPU_ROOM
    return int(beside_weights(model) * _GPU_ROOM)


def beside_weights(model: Model) -> int:
    """Bytes of a GPU's memory that a model's weights leave."""
    total = torch.cuda.get_device_properties(model.device).total_memory
    weights = sum(each.numel() * each.element_size() for each in model.hf.parameters())
    return max(0, total - weights)
