"""Attention as transformers asks torch for it, in better ways where there are some.

Rows of different lengths are padded, so each step of a text has a mask, and transformers then
repeats keys and values until every query head has its own: for three queries a key, three times the
cache, written and read in every layer of every step. A step has one query position, so the queries
that share a key may stand beside each other as positions instead: the same products, the mask as it
is. (It also looks whether the mask masks anything, which waits for a GPU once a step; next to a
step that is little.) On a GPU a kernel of our own reads each row's keys and values where the mask
shows them, and nowhere else.

Rows of a few tokens leave most of torch's attention idle: it works on 128 queries at a time. On a
GPU a kernel of our own puts the queries of all heads that share a key into one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from headlab import fused

_NAME = "sdpa"  # what transformers calls torch's attention
_MORE = ("softcap", "position_bias", "cache")  # of what an attention may be asked beside
Attend = Callable[..., tuple[Tensor, Tensor | None]]


@contextmanager
def grouped_queries() -> Iterator[None]:
    """Within the block steps under a mask go without repeated keys; all else as transformers does
    it."""
    own: Attend = AttentionInterface()[_NAME]

    def attend(
        module: nn.Module,
        query: Tensor,  # [row, head, position, width]
        key: Tensor,  # [row, key head, position, width]
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        heads, keys = query.shape[1], key.shape[1]
        plain = _is_plain(dropout, more)
        if plain and fused.can_attend(query, key, value, attention_mask):
            assert attention_mask is not None
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            return fused.attend(query, key, value, attention_mask, scale).transpose(1, 2), None
        shared = attention_mask is not None and attention_mask.shape[1:3] == (1, 1)
        if not shared or heads == keys or query.shape[2] > 1 or not plain:
            return own(module, query, key, value, attention_mask, dropout, scaling, **more)
        rows, _, _, width = query.shape
        found = scaled_dot_product_attention(
            query.reshape(rows, keys, heads // keys, width),
            key,
            value,
            attn_mask=attention_mask,
            scale=scaling,
        )  # [row, key head, queries of the key, width]
        return found.reshape(rows, 1, heads, value.shape[-1]), None

    with _registered(attend, own):
        yield


@contextmanager
def short_rows() -> Iterator[None]:
    """Within the block rows of a few tokens have attention of their own on a GPU, where no slopes
    are wanted; all else as transformers does it. Nobody who looks for torch's attention sees it."""
    own: Attend = AttentionInterface()[_NAME]

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        plain = attention_mask is None and causal and _is_plain(dropout, more)
        if plain and fused.can_attend_all(query, key, value):
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            return fused.attend_all(query, key, value, scale), None
        asked = {"is_causal": is_causal, **more}
        return own(module, query, key, value, attention_mask, dropout, scaling, **asked)

    with _registered(attend, own):
        yield


def _is_plain(dropout: float, more: dict[str, Any]) -> bool:
    """Whether nothing unusual is asked for."""
    return not dropout and not any(more.get(name) is not None for name in _MORE)


@contextmanager
def _registered(attend: Attend, own: Attend) -> Iterator[None]:
    AttentionInterface.register(_NAME, attend)
    try:
        yield
    finally:
        AttentionInterface.register(_NAME, own)
