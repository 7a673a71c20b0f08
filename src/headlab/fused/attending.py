"""Attention of one new token, and of short rows, as one GPU kernel each, in Triton.

A token's attention reads the keys and values that its row may see, and no others. Of a short row
all keys are held at once, and the queries of all heads that share a key stand in one block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headlab.fused.launching import suits, wants_slopes, where_it_is

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU's torch comes without
    triton = None

MOST_PLACES = 32768  # whose mask a program looks at
SHORT = 64  # places that a program holds at once
_WIDEST = 128  # head whose keys it holds in float32, or beside the two sums of the way back

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _attend(  # type: ignore[no-untyped-def]
        q, k, v, mask, out, key_heads, group, places, width, scale,
        q_row, q_head, k_row, k_head, k_place, v_row, v_head, v_place, mask_row, out_row, out_head,
        block_group: tl.constexpr, block_places: tl.constexpr, block_width: tl.constexpr,
        all_places: tl.constexpr, precision: tl.constexpr,
    ):  # fmt: skip
        """One program for the queries of a row that share a key head."""
        row = (tl.program_id(0) // key_heads).to(tl.int64)
        head = (tl.program_id(0) % key_heads).to(tl.int64)
        every = tl.arange(0, all_places)
        open_ = tl.load(mask + row * mask_row + every, mask=every < places, other=0) != 0
        first = tl.min(tl.where(open_, every, places))
        last = tl.max(tl.where(open_, every + 1, 0))
        query, at = tl.arange(0, block_group), tl.arange(0, block_width)
        there = (query < group)[:, None] & (at < width)[None, :]
        own = (head * group + query)[:, None]
        queries = tl.load(q + row * q_row + own * q_head + at[None, :], mask=there, other=0.0)
        top = tl.full([block_group], float("-inf"), tl.float32)
        total = tl.zeros([block_group], tl.float32)
        found = tl.zeros([block_group, block_width], tl.float32)
        k += row * k_row + head * k_head
        v += row * v_row + head * v_head
        for start in range(first, last, block_places):
            place = start + tl.arange(0, block_places)
            inside = place < last
            seen = tl.load(mask + row * mask_row + place, mask=inside, other=0) != 0
            kept = inside[:, None] & (at < width)[None, :]
            keys = tl.load(k + place[:, None] * k_place + at[None, :], mask=kept, other=0.0)
            values = tl.load(v + place[:, None] * v_place + at[None, :], mask=kept, other=0.0)
            scores = tl.dot(queries, tl.trans(keys), input_precision=precision) * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            # Until a place is seen there is no highest score to count from.
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp(scores - base[:, None])
            before = tl.exp(top - base)
            part = tl.dot(weights.to(values.dtype), values, input_precision=precision)
            found = found * before[:, None] + part
            total = total * before + tl.sum(weights, 1)
            top = higher
        to = out + row * out_row + own * out_head + at[None, :]
        tl.store(to, found / total[:, None], mask=there)

    # Rows of many lengths come, behind beginnings of many: one kernel for all.
    @triton.jit(do_not_specialize=["before", "length"])  # type: ignore[untyped-decorator, unused-ignore]
    def _attend_all(  # type: ignore[no-untyped-def]
        q, k, v, out, key_heads, group, before, length, width, scale,
        q_row, q_head, q_place, k_row, k_head, k_place, v_row, v_head, v_place,
        out_row, out_head, out_place,
        block_queries: tl.constexpr, block_places: tl.constexpr, block_width: tl.constexpr,
        precision: tl.constexpr,
    ):  # fmt: skip
        """One program for some of the queries of a row that share a key head."""
        row = (tl.program_id(0) // key_heads).to(tl.int64)
        head = (tl.program_id(0) % key_heads).to(tl.int64)
        # All places of the first query head, then of the next.
        query = tl.program_id(1) * block_queries + tl.arange(0, block_queries)
        own, now = (head * group + query // length)[:, None], (query % length)[:, None]
        place, at = tl.arange(0, block_places), tl.arange(0, block_width)[None, :]
        there = (query < group * length)[:, None] & (at < width)
        kept = (place < before + length)[:, None] & (at < width)
        keys = tl.load(
            k + row * k_row + head * k_head + place[:, None] * k_place + at, mask=kept, other=0.0
        )
        values = tl.load(
            v + row * v_row + head * v_head + place[:, None] * v_place + at, mask=kept, other=0.0
        )
        queries = tl.load(
            q + row * q_row + own * q_head + now * q_place + at, mask=there, other=0.0
        )
        scores = tl.dot(queries, tl.trans(keys), input_precision=precision) * scale
        scores = tl.where(place[None, :] <= before + now, scores, float("-inf"))
        weights = tl.exp(scores - tl.max(scores, 1)[:, None])
        found = tl.dot(weights.to(values.dtype), values, input_precision=precision)
        to = out + row * out_row + own * out_head + now * out_place + at
        tl.store(to, found / tl.sum(weights, 1)[:, None], mask=there)

    @triton.jit(do_not_specialize=["before", "length"])  # type: ignore[untyped-decorator, unused-ignore]
    def _attend_all_back(  # type: ignore[no-untyped-def]
        slope, q, k, v, to_q, to_k, to_v, key_heads, group, before, length, width, scale,
        slope_row, slope_head, slope_place,
        q_row, q_head, q_place, k_row, k_head, k_place, v_row, v_head, v_place,
        to_q_row, to_q_head, to_q_place, to_k_row, to_k_head, to_k_place,
        to_v_row, to_v_head, to_v_place,
        block_queries: tl.constexpr, block_places: tl.constexpr, block_width: tl.constexpr,
        precision: tl.constexpr,
    ):  # fmt: skip
        """One program for a key head of a row, and all queries that share it."""
        row = (tl.program_id(0) // key_heads).to(tl.int64)
        head = (tl.program_id(0) % key_heads).to(tl.int64)
        place, at = tl.arange(0, block_places), tl.arange(0, block_width)[None, :]
        kept = (place < before + length)[:, None] & (at < width)
        of_k = row * k_row + head * k_head + place[:, None] * k_place + at
        of_v = row * v_row + head * v_head + place[:, None] * v_place + at
        keys = tl.load(k + of_k, mask=kept, other=0.0)
        values = tl.load(v + of_v, mask=kept, other=0.0)
        for_keys = tl.zeros([block_places, block_width], tl.float32)
        for_values = tl.zeros([block_places, block_width], tl.float32)
        for first in range(0, group * length, block_queries):
            query = first + tl.arange(0, block_queries)
            own, now = (head * group + query // length)[:, None], (query % length)[:, None]
            there = (query < group * length)[:, None] & (at < width)
            queries = tl.load(
                q + row * q_row + own * q_head + now * q_place + at, mask=there, other=0.0
            )
            slopes = tl.load(
                slope + row * slope_row + own * slope_head + now * slope_place + at,
                mask=there,
                other=0.0,
            )
            scores = tl.dot(queries, tl.trans(keys), input_precision=precision) * scale
            scores = tl.where(place[None, :] <= before + now, scores, float("-inf"))
            weights = tl.exp(scores - tl.max(scores, 1)[:, None])
            weights = weights / tl.sum(weights, 1)[:, None]
            for_values += tl.dot(
                tl.trans(weights.to(values.dtype)), slopes, input_precision=precision
            )
            moved = tl.dot(slopes, tl.trans(values), input_precision=precision)
            moved = weights * (moved - tl.sum(weights * moved, 1)[:, None]) * scale
            moved = moved.to(keys.dtype)
            for_keys += tl.dot(tl.trans(moved), queries, input_precision=precision)
            to = to_q + row * to_q_row + own * to_q_head + now * to_q_place + at
            tl.store(to, tl.dot(moved, keys, input_precision=precision), mask=there)
        of_k = row * to_k_row + head * to_k_head + place[:, None] * to_k_place + at
        of_v = row * to_v_row + head * to_v_head + place[:, None] * to_v_place + at
        tl.store(to_k + of_k, for_keys, mask=kept)
        tl.store(to_v + of_v, for_values, mask=kept)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of one token a row, [row, head, 1, width]; keys and values [row, key head, place,
    width], and what a row sees of them, mask [row, 1, 1, place], at least one place."""
    rows, heads, _, width = query.shape
    key_heads, places = key.shape[1:3]
    group = heads // key_heads
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    with where_it_is(query):
        _attend[(rows * key_heads,)](
            *(query, key, value, mask.view(torch.uint8), out),
            *(key_heads, group, places, width, scale),
            *(query.stride(0), query.stride(1), *key.stride()[:3], *value.stride()[:3]),
            *(mask.stride(0), out.stride(0), out.stride(1)),
            block_group=max(16, triton.next_power_of_2(group)),
            block_width=max(16, triton.next_power_of_2(width)),
            all_places=triton.next_power_of_2(places),
            precision="ieee",
            **_few_places(width * query.element_size()),
        )
    return out


def _few_places(size: int) -> dict[str, int]:
    """How a program goes through places of so many bytes: the next ones on their way while it
    computes, where the memory within a chip has room for them."""
    if size <= 256:
        return {"block_places": 16, "num_warps": 2, "num_stages": 3}
    return {"block_places": 64 if size <= 512 else 32, "num_warps": 4, "num_stages": 1}


def attend_all(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention of every place to those up to it, of short rows: queries [row, head, place, width],
    of all places or of the last, keys and values [row, key head, place, width]. Given as
    [row, place, head, width]."""
    rows, heads, length, width = query.shape
    key_heads, places = key.shape[1:3]
    group = heads // key_heads
    out = torch.empty(rows, length, heads, width, dtype=query.dtype, device=query.device)
    blocks = _blocks(query, key)
    with where_it_is(query):
        _attend_all[(rows * key_heads, triton.cdiv(group * length, blocks["block_queries"]))](
            *(query, key, value, out, key_heads, group, places - length, length, width, scale),
            *(*query.stride()[:3], *key.stride()[:3], *value.stride()[:3]),
            *(out.stride(0), out.stride(2), out.stride(1)),
            precision="ieee",
            **blocks,
        )
    return out


def attend_all_back(
    slope: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What the slope of `attend_all`, [row, place, head, width], is for queries, keys and values.
    The weights are computed once more: nothing but these is kept."""
    rows, heads, length, width = query.shape
    key_heads, places = key.shape[1:3]
    group = heads // key_heads
    slopes = [_as_heads_lie(each) for each in (query, key, value)]
    with where_it_is(query):
        _attend_all_back[(rows * key_heads,)](
            *(slope, query, key, value, *slopes),
            *(key_heads, group, places - length, length, width, scale),
            *(slope.stride(0), slope.stride(2), slope.stride(1)),
            *(step for each in (query, key, value, *slopes) for step in each.stride()[:3]),
            precision="ieee",
            num_stages=1,
            **_blocks(query, key, back=True),
        )
    return slopes[0], slopes[1], slopes[2]


def _as_heads_lie(numbers: Tensor) -> Tensor:
    """Room for as many, [row, head, place, width]; in memory heads come after places."""
    rows, heads, places, width = numbers.shape
    return numbers.new_empty(rows, places, heads, width).transpose(1, 2)


def _blocks(query: Tensor, key: Tensor, back: bool = False) -> dict[str, int]:
    """What a program works on at once: as much as registers hold, by what the compiler says of it
    for an H100. Products of float32 take the most."""
    length, width = query.shape[2:]
    n = query.shape[1] // key.shape[1] * length
    places, width = (max(16, triton.next_power_of_2(each)) for each in (key.shape[2], width))
    most, warps = 64, 8 if back and width > 64 else 4
    if query.element_size() > 2:
        most, warps = 16, 8 if places * width > 2048 else 4
    return {
        "block_queries": min(most, max(16, triton.next_power_of_2(n))),
        "block_places": places,
        "block_width": width,
        "num_warps": warps,
    }


def can_attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether `attend` takes these."""
    if mask is None or mask.dtype != torch.bool or query.shape[2] != 1:
        return False
    if mask.shape != (len(query), 1, 1, key.shape[2]) or query.shape[1] % key.shape[1]:
        return False
    if wants_slopes(query, key, value):
        return False
    close = all(each.stride(-1) == 1 for each in (query, key, value, mask))
    narrow = key.shape[2] <= MOST_PLACES and query.shape[-1] == value.shape[-1]
    if not close or not narrow:
        return False
    sizes = query.shape[1] // key.shape[1], query.shape[-1]
    return suits("attend", query, key, value, sizes=sizes)


def can_attend_all(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `attend_all` takes these, and where slopes are wanted `attend_all_back`: rows too
    short for torch's attention, which is made for blocks of more queries than they have."""
    if key.shape != value.shape or len(query) != len(key) or query.shape[2] > key.shape[2]:
        return False
    if key.shape[2] > SHORT or query.shape[1] % key.shape[1] or query.shape[3] != key.shape[3]:
        return False
    sizes = query.shape[1] // key.shape[1], *query.shape[2:], key.shape[2]
    close = all(each.stride(-1) == 1 for each in (query, key, value))
    back = wants_slopes(query, key, value)
    if (back or query.element_size() > 2) and query.shape[3] > _WIDEST:
        return False
    kernels = ["attend_all", "attend_all_back"] if back else ["attend_all"]
    return close and all(suits(kernel, query, key, value, sizes=sizes) for kernel in kernels)
