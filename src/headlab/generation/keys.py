"""Keys and values of the tokens so far, in buffers that have room for those to come.

A cache that grows by joining copies all it holds at every token. Here a token is written into its
place, and rows that have ended are left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        self._slot: Tensor | None = None  # where the next token goes, if a tensor says so
        self._width = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [_zeros(each, self._room) for each in (key_states, value_states)]
        news = zip(self._buffers, (key_states, value_states), strict=True)
        if self._slot is not None:
            for buffer, new in news:
                buffer.index_copy_(2, self._slot, new)
            self.show(self._width)
            return self.keys, self.values
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        for buffer, new in news:
            buffer[:, :, start:stop] = new
        self.show(stop)
        return self.keys, self.values

    def fix(self, slot: Tensor | None, width: int) -> None:
        """From now on a token goes to the place that `slot` [1] holds, and the first `width` places
        are given out, written or not; None: as before."""
        self._slot, self._width = slot, width

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows, some perhaps many times."""
        filled = self.get_seq_length()
        rows = [each[indices] for each in (self.keys, self.values)]
        self._buffers = [_zeros(each, self._room) for each in rows]
        for buffer, kept in zip(self._buffers, rows, strict=True):
            buffer[:, :, :filled] = kept
        self.show(filled)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row so many times, beside each other."""
        filled, rows = self.get_seq_length(), (self.keys, self.values)
        self._buffers = [_zeros(each, self._room, repeats) for each in rows]
        for buffer, kept in zip(self._buffers, rows, strict=True):
            by_row = buffer.view(-1, repeats, *buffer.shape[1:])
            by_row[:, :, :, :filled] = kept[:, None]
        self.show(filled)

    def show(self, filled: int) -> None:
        """So many places are filled."""
        self.keys, self.values = (buffer[:, :, :filled] for buffer in self._buffers)


def _zeros(like: Tensor, room: int, repeats: int = 1) -> Tensor:
    """Room; hidden places are multiplied by 0, which leftovers in memory might not bear."""
    rows, heads, _, width = like.shape
    return like.new_zeros(repeats * rows, heads, room, width)


def make_cache(model: Model, room: int) -> DynamicCache:
    """An empty cache of the model's own kinds of layers; plain ones get room for all tokens."""
    cache = DynamicCache(config=model.hf.config)
    cache.layers = [
        RoomyLayer(room) if type(each) is DynamicLayer else each for each in cache.layers
    ]
    return cache


def has_room(cache: DynamicCache) -> bool:
    """Whether all its layers are plain ones."""
    return all(isinstance(each, RoomyLayer) for each in cache.layers)


def bytes_per_token(model: Model) -> int:
    """What a token's keys and values take in all layers."""
    seam = model.seam
    heads = seam.kv_heads or seam.heads
    return 2 * model.n_layers * heads * seam.width * model.dtype.itemsize
