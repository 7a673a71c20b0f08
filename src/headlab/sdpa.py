"""Attention as transformers asks torch for it, in better ways where there are some.

Rows of different lengths are padded, so each step of a text has a mask, and transformers then
repeats keys and values until every query head has its own: for three queries a key, three times the
cache, written and read in every layer of every step. The queries that share a key may stand beside
each other as positions instead: the same products, the mask as it is. (transformers also looks
whether the mask masks anything, which waits for a GPU once a step; next to a step that is little.)
On a GPU a kernel of our own reads each row's keys and values where the mask shows them, and nowhere
else.

Rows of a few tokens leave most of torch's attention idle: it works on 128 queries at a time. On a
GPU a kernel of our own puts the queries of all heads that share a key into one block, and one more
does the way back. So they do with the last tokens of such rows, behind a beginning that has been
run before, where a whole row has shown that no window hides it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from headlab import fused

_NAME = "sdpa"  # what transformers calls torch's attention
_FEW = 256  # tokens, whose mask is smaller than what repeated keys would take
_MORE = ("softcap", "position_bias", "cache")  # of what an attention may be asked beside
Attend = Callable[..., tuple[Tensor, Tensor | None]]


class _Wanted(threading.local):
    """Which ways of our own this thread wants; others may run models meanwhile."""

    def __init__(self) -> None:
        self.grouped = self.short = False
        # Of a sweep: modules seen to need no mask, each token looking at all before it, and the
        # numbers of places.
        self.causal: dict[nn.Module, set[int]] | None = None


_wanted = _Wanted()
_users = 0  # blocks, of all threads, for which ours stands in
_lock = threading.Lock()


def grouped_queries() -> AbstractContextManager[None]:
    """Within the block the last tokens of rows with a mask go without repeated keys; all else as
    transformers does it."""
    return _ours(grouped=True)


def short_rows() -> AbstractContextManager[None]:
    """Within the block rows of a few tokens have attention of their own on a GPU; all else as
    transformers does it."""
    return _ours(short=True)


def short_rows_behind_beginnings() -> AbstractContextManager[None]:
    """Likewise, also for the last tokens of rows; on a CPU, or of longer rows, these go without
    repeated keys. Only where all rows are of one length or padded on the right: then a mask says
    the same for all of them."""
    return _ours(short=True, grouped=True, causal={})


def plain_attention() -> AbstractContextManager[None]:
    """Within the block all is as transformers does it, for those who look at torch's attention."""
    return _ours(grouped=False, short=False)


@contextmanager
def _ours(**wanted: Any) -> Iterator[None]:
    """Ours stands in for transformers' own; where somebody else's does, that is left alone."""
    global _users
    before = {name: getattr(_wanted, name) for name in wanted}
    with _lock:
        if not _users and AttentionInterface()[_NAME] is sdpa_attention_forward:
            AttentionInterface.register(_NAME, _attend)
        _users += 1
    vars(_wanted).update(wanted)
    try:
        yield
    finally:
        vars(_wanted).update(before)
        with _lock:
            _users -= 1
            if not _users and AttentionInterface()[_NAME] is _attend:
                AttentionInterface.register(_NAME, sdpa_attention_forward)


def _attend(
    module: nn.Module,
    query: Tensor,  # [row, head, position, width]
    key: Tensor,  # [row, key head, position, width]
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    found = None
    if not dropout and not any(more.get(name) is not None for name in _MORE):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if _wanted.short and _looks_back(module, query, key, attention_mask, more):
            found = _short(query, key, value, scale)
        if found is None and _wanted.grouped and attention_mask is not None:
            found = _masked(query, key, value, attention_mask, scale)
    if found is not None:
        return found, None
    own: Attend = sdpa_attention_forward
    return own(module, query, key, value, attention_mask, dropout, scaling, **more)


def _masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor | None:
    """Attention of the last tokens of rows, under one mask for all heads,
    [row, position, head, width]; None of others."""
    if fused.can_attend(query, key, value, mask):
        return fused.attend(query, key, value, mask, scale).transpose(1, 2)
    rows, heads, length, width = query.shape
    keys, places = key.shape[1:3]
    group = heads // keys
    last = length == 1 or length < min(places, _FEW)
    if mask.shape[1:3] != (1, length) or group == 1 or not last:
        return None
    if length > 1:
        mask = mask[:1] if not mask.stride(0) else mask  # transformers expands one for all rows
        mask = mask.repeat(1, 1, group, 1).expand(rows, -1, -1, -1)
    found = scaled_dot_product_attention(
        query.reshape(rows, keys, group * length, width), key, value, attn_mask=mask, scale=scale
    )  # [row, key head, query head of the key · position, width]
    return found.reshape(rows, heads, length, value.shape[-1]).transpose(1, 2).contiguous()


def _short(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
    """Attention of short rows, or of their last tokens, to all before them,
    [row, position, head, width]; None of longer ones."""
    if not fused.can_attend_all(query, key, value):
        return None
    if fused.wants_slopes(query, key, value):
        found: Tensor = _Short.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
        return found
    return fused.attend_all(query, key, value, scale)


class _Short(torch.autograd.Function):
    """Where slopes are wanted: nothing is kept for the way back but what was given."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        return fused.attend_all(query, key, value, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        slope = slope if slope.stride(-1) == 1 else slope.contiguous()
        return *fused.attend_all_back(slope, query, key, value, ctx.scale), None


def _looks_back(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, more: dict[str, Any]
) -> bool:
    """Whether each token looks at itself and all before it. The last tokens of rows have a mask to
    say so; in a sweep, what it says is known from a pass over as many places that needed none."""
    length, places = query.shape[2], key.shape[2]
    seen = {} if _wanted.causal is None else _wanted.causal
    if mask is not None:
        return length < places and places in seen.get(module, ())
    asked = more.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if asked is None else asked)
    if causal and length == places:
        seen.setdefault(module, set()).add(places)
        return True
    return False
