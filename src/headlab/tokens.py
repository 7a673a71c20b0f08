"""A padded batch of tokens, and the keys and values of those that stand before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache


@dataclass(frozen=True)
class Beginning:
    """The first positions of some rows, as a pass has left them: once for all masks, where none
    changes anything there, or under each mask."""

    length: int
    rows: int  # under each mask
    of: Tensor | None = None  # [row] of those that follow under a mask, the row that begins it
    skipped: int = 0  # masks that ran first and that do not follow
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    # keys and values, [row, key head, position, width]; higher up masks may have joined

    def picked(self, rows: Tensor) -> Beginning:
        """Of these rows only; it is the same under all masks."""
        layers = {layer: (k[rows], v[rows]) for layer, (k, v) in self.layers.items()}
        return Beginning(self.length, len(rows), layers=layers)

    @staticmethod
    def joined(parts: Sequence[Beginning]) -> Beginning:
        """The rows of all parts; they are the same under all masks."""
        layers = {
            layer: (
                torch.cat([each.layers[layer][0] for each in parts]),
                torch.cat([each.layers[layer][1] for each in parts]),
            )
            for layer in parts[0].layers
        }
        return Beginning(parts[0].length, sum(each.rows for each in parts), layers=layers)

    def before(self, layer: int, *own: Tensor) -> Iterator[Tensor]:
        """The keys of rows, and their values, behind those of their beginnings."""
        for kept, fresh in zip(self.layers[layer], own, strict=True):
            followers = self.rows if self.of is None else len(self.of)
            rows, heads, length, width = fresh.shape
            masks, n = rows // followers, self.length
            begun = kept.view(-1, self.rows, heads, n, width)[self.skipped :][:masks]
            begun = begun if self.of is None else begun[:, self.of]  # [mask|1, row, ...]
            joined = fresh.new_empty(rows, heads, n + length, width)
            joined.view(masks, followers, heads, n + length, width)[:, :, :, :n] = begun
            joined[:, :, n:] = fresh
            yield joined


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
        follows = self.cache.follows if isinstance(self.cache, _Linked) else None
        return self._replace(cache=_Linked(follows, beginning, layer))

    def behind(self, beginning: Beginning) -> Tokens:
        """What follows the first positions, which are not run again."""
        assert self.given is self.hidden is None, "of the beginning nothing is known"
        rest = Tokens(self.ids[:, beginning.length :], self.mask[:, beginning.length :], self.right)
        return rest._replace(cache=_Linked(beginning))


class Forgetful(DynamicCache):  # type: ignore[misc]
    """A cache that keeps nothing."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states


class _Linked(Forgetful):
    """Shows every token its row's beginning, if it has one, and puts the first positions away that
    another pass will follow."""

    def __init__(
        self, follows: Beginning | None, keeps: Beginning | None = None, from_layer: int = 0
    ):
        super().__init__()
        self.follows, self._keeps, self._from = follows, keeps, from_layer

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if self.follows is not None:
            key_states, value_states = self.follows.before(layer_idx, key_states, value_states)
        if self._keeps is not None and layer_idx >= self._from:
            n = self._keeps.length
            kept = key_states[:, :, :n].contiguous(), value_states[:, :, :n].contiguous()
            self._keeps.layers[layer_idx] = kept
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.follows is None else self.follows.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0
