"""A padded batch of tokens, and the keys and values of those that stand before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache


@dataclass(frozen=True)
class Beginning:
    """The first positions of some rows, as a pass has left them."""

    length: int
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    # keys and values, [row, key head, position, width]


class Tokens(NamedTuple):
    """A padded batch."""

    ids: Tensor  # [example, position]
    mask: Tensor  # [example, position], True at real tokens
    right: bool = False  # known to have all pads on the right
    given: Tensor | None = None  # [example, position], positions other than 0, 1, 2 ...
    hidden: Tensor | None = None  # [example, position], True where nobody may look
    cache: DynamicCache | None = None  # what keeps, or brings, keys and values

    @property
    def start(self) -> int:
        """How many tokens stand before these."""
        return 0 if self.cache is None else int(self.cache.get_seq_length())

    @property
    def positions(self) -> Tensor:
        """Each real token's own position, whatever the padding side. [example, position]"""
        if self.given is not None:
            return self.given
        return (self.mask.long().cumsum(1) - 1).clamp(min=0) + self.start

    @property
    def keys(self) -> Tensor:
        """True at tokens that others may look at, those before these among them.
        [example, position]"""
        own = self.mask if self.hidden is None else self.mask & ~self.hidden
        return torch.nn.functional.pad(own, (self.start, 0), value=True)

    def picked(self, rows: Tensor) -> Tokens:
        """These rows, some perhaps many times."""
        assert self.cache is None, "which keys and values are whose is not known here"
        return Tokens(
            self.ids[rows],
            self.mask[rows],
            self.right,
            None if self.given is None else self.given[rows],
            None if self.hidden is None else self.hidden[rows],
        )

    def repeated(self, copies: int) -> Tokens:
        """All rows, so many times over."""
        rows = torch.arange(len(self.ids), device=self.ids.device).repeat(copies)
        return self._replace(cache=None).picked(rows)._replace(cache=self.cache)

    def keeping(self, beginning: Beginning, layer: int = 0) -> Tokens:
        """The same; a pass over them leaves its first positions there, from this layer on."""
        return self._replace(cache=_Keeping(beginning, layer))

    def behind(self, beginning: Beginning) -> Tokens:
        """What follows the first positions, which are not run again."""
        assert self.given is self.hidden is None, "of the beginning nothing is known"
        rest = Tokens(self.ids[:, beginning.length :], self.mask[:, beginning.length :], self.right)
        return rest._replace(cache=_Following(beginning))


class Forgetful(DynamicCache):  # type: ignore[misc]
    """A cache that keeps nothing."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states


class _Keeping(Forgetful):
    """Puts keys and values of the first positions away, and shows none to those that follow."""

    def __init__(self, beginning: Beginning, layer: int):
        super().__init__()
        self._beginning, self._from = beginning, layer

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if layer_idx >= self._from:
            n = self._beginning.length
            kept = key_states[:, :, :n].contiguous(), value_states[:, :, :n].contiguous()
            self._beginning.layers[layer_idx] = kept
        return key_states, value_states


class _Following(DynamicCache):  # type: ignore[misc]
    """Shows every token its row's beginning; all rows come once for each mask that runs."""

    def __init__(self, beginning: Beginning):
        super().__init__()
        self._beginning = beginning

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self._beginning.layers[layer_idx]
        return _joined(keys, key_states), _joined(values, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._beginning.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._beginning.length + query_length, 0


def _joined(before: Tensor, own: Tensor) -> Tensor:
    """[row, head, position, width], `before` as often as there are rows for it."""
    rows, heads, length, width = own.shape
    n = before.shape[2]
    joined = own.new_empty(rows, heads, n + length, width)
    joined.view(-1, len(before), heads, n + length, width)[:, :, :, :n] = before
    joined[:, :, n:] = own
    return joined
