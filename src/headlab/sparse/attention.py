"""Gated attention: an edge from a query to a key is open where its own logit says so.

    s = q·k / √width        weights = softmax(s over all keys) · 1[s + b > 0]

The gate comes after the softmax, which is not made up again, so that a query may look at nothing
and give 0. In training a gate is drawn, 1[s + b + logit(u) > 0] with u even between 0 and 1, and
has the slope of sigmoid(s + b + logit(u)).

Logits are float32 whatever the model's dtype: near 0 a rounding would open or close an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**28}  # of one block of logits


class Edges(NamedTuple):
    """Edges of some queries of one layer, summed over keys."""

    first: int  # the first query
    open: Tensor  # [row, head, query]
    allowed: Tensor  # [row|1, 1, query], how many there could be


def gated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    seen: Callable[[Edges], None] | None = None,
) -> Tensor:
    """Attention with hard gates, [row, head, query, width].

    query [row, head, query, width]; key and value [row, key head, key, width]; bias [head];
    attn_mask, True where a query may look, [row, 1, query, key]; without one queries are the last
    of the keys and look back. A block of queries at a time: memory grows with the keys, not with
    their square. `seen` is told the edges of each block.
    """
    if has_torch_function_unary(query):  # somebody watches attention
        return handle_torch_function(
            gated_attention,
            (query,),
            *(query, key, value, bias, attn_mask, scale, softcap, seen),
        )
    parts = []
    # The last block has the most keys: what it takes and leaves has room for all others.
    for first, last in reversed(list(blocks(query, key))):
        mask = None if attn_mask is None else attn_mask[:, :, first:last]
        s, allowed = logits(query, key, first, last, mask, scale, softcap)
        is_open = opened(s, allowed, bias)
        if seen is not None:
            seen(Edges(first, is_open.sum(-1), allowed.sum(-1)))
        weights = (s.softmax(-1) * is_open).to(value.dtype)
        parts.append(weigh(weights, value))
    return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], 2)


class Drawn(NamedTuple):
    """Attention with gates that were drawn."""

    output: Tensor  # [row, head, query, width]
    penalty: Tensor  # [head], Σ sigmoid(s + b) over the edges that are allowed; has a slope
    open: Tensor  # [head], edges that hard gates would leave open
    allowed: Tensor  # [], edges of one head


def drawn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    generator: torch.Generator,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Drawn:
    """Attention with gates drawn for training; arguments as of `gated_attention`."""
    s, allowed = logits(query, key, 0, query.shape[2], attn_mask, scale, softcap)
    gate = s + bias[:, None, None].to(s.dtype)
    u = torch.rand(s.shape, generator=generator, device=s.device, dtype=s.dtype)
    # Where a query may not look s is the least number there is, and so its gate is closed.
    drawn = _Gate.apply(gate + u.logit(1e-6))  # type: ignore[no-untyped-call]
    weights = (s.softmax(-1) * drawn).to(value.dtype)
    rows = s.shape[0] // allowed.shape[0]
    return Drawn(
        weigh(weights, value),
        gate.sigmoid().sum((0, 2, 3)),
        ((gate.detach() > 0) & allowed).sum((0, 2, 3)),
        allowed.sum() * rows,
    )


class _Gate(torch.autograd.Function):
    """1[x > 0] with the slope of sigmoid(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.sigmoid())
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (soft,) = ctx.saved_tensors
        found: Tensor = slopes[0] * soft * (1 - soft)
        return found


def opened(s: Tensor, allowed: Tensor, bias: Tensor) -> Tensor:
    """Where hard gates are open, [row, head, query, key]."""
    return (s + bias[:, None, None].to(s.device, s.dtype) > 0) & allowed


def logits(
    query: Tensor,
    key: Tensor,
    first: int,
    last: int,
    mask: Tensor | None,
    scale: float | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """s of some queries, [row, head, query, key], and where they may look, [row|1, 1, query, key].

    Elsewhere s is the least number there is: its weight is 0, and where a query may look at
    nothing, as before a padded prompt, no NaN comes of it. Without a mask, keys after the last
    query are left out.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    if mask is None:
        before = key.shape[2] - query.shape[2]
        key = key[:, :, : before + last]
        places = torch.arange(key.shape[2], device=query.device)
        mask = (places[before + first : before + last, None] >= places)[None, None]
    asked = by_key_head(query[:, :, first:last].to(wide), key.shape[1])
    with torch.autocast(query.device.type, enabled=False):  # it would narrow the product
        s = asked @ key.to(wide).transpose(-1, -2)
    s = s.reshape(*query.shape[:2], last - first, -1)
    s = s * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = (s / softcap).tanh() * softcap
    return s.masked_fill(~mask, torch.finfo(wide).min), mask


def weigh(weights: Tensor, value: Tensor) -> Tensor:
    """Values by their weights; of keys after the last that has a weight nothing is taken."""
    found = by_key_head(weights, value.shape[1]) @ value[:, :, : weights.shape[-1]]
    return found.reshape(*weights.shape[:3], value.shape[-1])


def by_key_head(x: Tensor, keys: int) -> Tensor:
    """Queries that share a key stand beside each other as positions: no key is copied."""
    rows, heads, positions, width = x.shape
    return x.reshape(rows, keys, heads // keys * positions, width)


def blocks(query: Tensor, key: Tensor) -> Iterator[tuple[int, int]]:
    """Queries from, to: as many as have room."""
    rows, heads, positions, _ = query.shape
    room = BLOCK_BYTES.get(query.device.type, BLOCK_BYTES["cpu"])
    size = max(1, room // (4 * rows * heads * key.shape[2]))
    for first in range(0, positions, size):
        yield first, min(positions, first + size)
