"""Keys and values of the tokens so far, in buffers that have room for those to come.

A cache that grows by joining copies all it holds at every token. Here a token is written into its
place, and rows that have ended are left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

if TYPE_CHECKING:
    from headlab.model import Model


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [row, head, position, width], with room for `room` positions."""

    def __init__(self, room: int):
        super().__init__()
        self._room = room
        self._buffers: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [_empty(each, self._room) for each in (key_states, value_states)]
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:stop] = new
        self._show(stop)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows, some perhaps many times."""
        filled = self.get_seq_length()
        rows = [each[indices] for each in (self.keys, self.values)]
        self._buffers = [_empty(each, self._room) for each in rows]
        for buffer, kept in zip(self._buffers, rows, strict=True):
            buffer[:, :, :filled] = kept
        self._show(filled)

    def _show(self, filled: int) -> None:
        self.keys, self.values = (buffer[:, :, :filled] for buffer in self._buffers)


def _empty(like: Tensor, room: int) -> Tensor:
    rows, heads, _, width = like.shape
    return torch.empty(rows, heads, room, width, dtype=like.dtype, device=like.device)


def make_cache(model: Model, room: int) -> DynamicCache:
    """An empty cache of the model's own kinds of layers; plain ones get room for all tokens."""
    cache = DynamicCache(config=model.hf.config)
    cache.layers = [
        RoomyLayer(room) if type(each) is DynamicLayer else each for each in cache.layers
    ]
    return cache


def bytes_per_token(model: Model) -> int:
    """What a token's keys and values take in all layers."""
    seam = model.seam
    heads = seam.kv_heads or seam.heads
    return 2 * model.n_layers * heads * seam.width * model.dtype.itemsize
