"""Formulas as one GPU kernel each, in Triton, which torch brings along where it brings CUDA.

A chain of elementwise operations goes through the GPU's memory once for each of them, and rounds
each time. Here numbers are read once, computed with in float32, and written once. Attention of one
new token reads the keys and values that its row may see, and no others. Where a kernel cannot be
built, or gives something else than torch (`trials.py`), nothing of this is used.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headlab.fused.trials import works

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU's torch comes without
    triton = None

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_BLOCK = 1024  # numbers that a program works on
MOST_PLACES = 32768  # whose mask a program looks at
SHORT = 64  # places that a program holds at once

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _swiglu(gate, up, out, width, gate_row, up_row, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * block + tl.arange(0, block)
        there = at < width
        g = tl.load(gate + row * gate_row + at, mask=there).to(tl.float32)
        u = tl.load(up + row * up_row + at, mask=there).to(tl.float32)
        tl.store(out + row * width + at, g * tl.sigmoid(g) * u, mask=there)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _swiglu_back(slope, gate, up, to_gate, to_up, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        there = at < size
        d = tl.load(slope + at, mask=there).to(tl.float32)
        g = tl.load(gate + at, mask=there).to(tl.float32)
        u = tl.load(up + at, mask=there).to(tl.float32)
        s = tl.sigmoid(g)
        tl.store(to_gate + at, d * u * s * (1 + g * tl.sigmoid(-g)), mask=there)
        tl.store(to_up + at, d * g * s, mask=there)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _turn(  # type: ignore[no-untyped-def]
        x, cos, sin, out, heads, length, half,
        x_row, x_head, x_place, out_row, out_head, out_place,
        table_row, table_place,
        block_heads: tl.constexpr, block_half: tl.constexpr,
    ):  # fmt: skip
        """One program for all heads of a row at a position."""
        row = (tl.program_id(0) // length).to(tl.int64)
        place = (tl.program_id(0) % length).to(tl.int64)
        head = tl.arange(0, block_heads).to(tl.int64)[:, None]
        at = tl.arange(0, block_half)[None, :]
        there = (head < heads) & (at < half)
        table = row * table_row + place * table_place + at
        c_low = tl.load(cos + table, mask=at < half).to(tl.float32)
        c_high = tl.load(cos + table + half, mask=at < half).to(tl.float32)
        s_low = tl.load(sin + table, mask=at < half).to(tl.float32)
        s_high = tl.load(sin + table + half, mask=at < half).to(tl.float32)
        own = x + row * x_row + place * x_place + head * x_head + at
        low = tl.load(own, mask=there).to(tl.float32)
        high = tl.load(own + half, mask=there).to(tl.float32)
        to = out + row * out_row + place * out_place + head * out_head + at
        tl.store(to, low * c_low - high * s_low, mask=there)
        tl.store(to + half, high * c_high + low * s_high, mask=there)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _gate(  # type: ignore[no-untyped-def]
        z, g, r, out, length, size, width, g_row, g_place, g_head, r_rows, r_row, r_place, r_head,
        has_reference: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """One program for some numbers of a row at a position."""
        token = tl.program_id(0).to(tl.int64)
        row, place = token // length, token % length
        at = tl.program_id(1) * block + tl.arange(0, block)
        there = at < size
        head = (at // width).to(tl.int64)
        own = tl.load(z + token * size + at, mask=there).to(tl.float32)
        gate = tl.load(g + row * g_row + place * g_place + head * g_head, mask=there)
        found = gate * own
        if has_reference:
            where = r + (row % r_rows) * r_row + place * r_place + head * r_head + at % width
            found += (1 - gate) * tl.load(where, mask=there).to(tl.float32)
        tl.store(out + token * size + at, found, mask=there)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _gate_back(  # type: ignore[no-untyped-def]
        slope, z, g, r, to_z, to_g, length, heads, width,
        g_row, g_place, g_head, r_rows, r_row, r_place, r_head,
        has_reference: tl.constexpr, block_heads: tl.constexpr, block_width: tl.constexpr,
    ):  # fmt: skip
        """One program for some heads of a row at a position."""
        token = tl.program_id(0).to(tl.int64)
        row, place = token // length, token % length
        head = (tl.program_id(1) * block_heads + tl.arange(0, block_heads)).to(tl.int64)
        at = tl.arange(0, block_width)[None, :]
        there = (head < heads)[:, None] & (at < width)
        own = token * heads * width + head[:, None] * width + at
        d = tl.load(slope + own, mask=there, other=0.0).to(tl.float32)
        moved = tl.load(z + own, mask=there, other=0.0).to(tl.float32)
        if has_reference:
            where = (row % r_rows) * r_row + place * r_place + head[:, None] * r_head + at
            moved -= tl.load(r + where, mask=there, other=0.0).to(tl.float32)
        gate = tl.load(g + row * g_row + place * g_place + head * g_head, mask=head < heads)
        tl.store(to_z + own, d * gate[:, None], mask=there)
        tl.store(to_g + token * heads + head, tl.sum(d * moved, 1), mask=head < heads)

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

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _log_sum(x, tops, sums, width, x_row, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """One program for a row; every lane counts from its own highest number."""
        row = tl.program_id(0).to(tl.int64)
        top = tl.full([block], float("-inf"), tl.float32)
        total = tl.zeros([block], tl.float32)
        for start in range(0, width, block):
            at = start + tl.arange(0, block)
            own = tl.load(x + row * x_row + at, mask=at < width, other=float("-inf"))
            own = own.to(tl.float32)
            higher = tl.maximum(top, own)
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(top - base) + tl.exp(own - base)
            top = higher
        best = tl.max(top, 0)
        base = tl.where(best == float("-inf"), 0.0, best)
        tl.store(tops + row, best)
        tl.store(sums + row, tl.log(tl.sum(total * tl.exp(top - base), 0)))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, both of one shape, each row of numbers close together."""
    width = gate.shape[-1]
    rows = [_rows(each) for each in (gate, up)]
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    grid = len(rows[0]), triton.cdiv(width, _BLOCK)
    with _where(gate):
        _swiglu[grid](*rows, out, width, *(each.stride(0) for each in rows), _BLOCK)
    return out


def _rows(numbers: Tensor) -> Tensor:
    """[row, number], where that needs no copy."""
    return numbers.view(-1, numbers.shape[-1])


def swiglu_back(slope: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """What the slope of `swiglu` is for gate and for up."""
    to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
    with _where(gate):
        _swiglu_back[_grid(gate)](slope, gate, up, to_gate, to_up, gate.numel(), _BLOCK)
    return to_gate, to_up


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [row, head, position, width] turned, half against half; cos and sin [row|1, 1, position,
    width]. The last axes lie close."""
    rows, heads, length, width = x.shape
    out = torch.empty_like(x)
    table = cos.stride(0) if cos.shape[0] > 1 else 0
    with _where(x):
        _turn[(rows * length,)](
            *(x, cos, sin, out, heads, length, width // 2),
            *(x.stride(0), x.stride(1), x.stride(2)),
            *(out.stride(0), out.stride(1), out.stride(2)),
            *(table, cos.stride(2)),
            *(triton.next_power_of_2(heads), triton.next_power_of_2(width // 2)),
        )
    return out


def gate(z: Tensor, g: Tensor, r: Tensor | None) -> Tensor:
    """g · z + (1 − g) · r: z [row, position, head, width], g [row|1, position|1, head, 1] in
    float32, r [rows that come again and again, position|1, head, width] or zero."""
    length, heads, width = z.shape[1:]
    size = heads * width
    out = torch.empty_like(z)
    with _where(z):
        _gate[(len(z) * length, triton.cdiv(size, _BLOCK))](
            *(z, g, z if r is None else r, out, length, size, width),
            *_strides(g, r),
            has_reference=r is not None,
            block=_BLOCK,
        )
    return out


def gate_back(slope: Tensor, z: Tensor, g: Tensor, r: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the slope of `gate` is for z, and for a gate of every row and position."""
    rows, length, heads, width = z.shape
    to_z, to_g = (
        torch.empty_like(z),
        torch.empty(rows, length, heads, 1, device=z.device, dtype=torch.float32),
    )
    block_width = triton.next_power_of_2(width)
    block_heads = max(1, min(triton.next_power_of_2(heads), 2 * _BLOCK // block_width))
    with _where(z):
        _gate_back[(rows * length, triton.cdiv(heads, block_heads))](
            *(slope, z, g, z if r is None else r, to_z, to_g, length, heads, width),
            *_strides(g, r),
            has_reference=r is not None,
            block_heads=block_heads,
            block_width=block_width,
        )
    return to_z, to_g


def _strides(g: Tensor, r: Tensor | None) -> tuple[int, ...]:
    """Steps through gates and reference; none along an axis on which all are one."""

    def steps(each: Tensor) -> list[int]:
        return [0 if n == 1 else step for n, step in zip(each.shape, each.stride(), strict=True)]

    return (*steps(g)[:3], *((1, 0, 0, 0) if r is None else (len(r), *steps(r)[:3])))


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of one token a row, [row, head, 1, width]; keys and values [row, key head, place,
    width], and what a row sees of them, mask [row, 1, 1, place], at least one place."""
    rows, heads, _, width = query.shape
    key_heads, places = key.shape[1:3]
    group = heads // key_heads
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    with _where(query):
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
    block = min(64, max(16, triton.next_power_of_2(group * length)))
    with _where(query):
        _attend_all[(rows * key_heads, triton.cdiv(group * length, block))](
            *(query, key, value, out, key_heads, group, places - length, length, width, scale),
            *(*query.stride()[:3], *key.stride()[:3], *value.stride()[:3]),
            *(out.stride(0), out.stride(2), out.stride(1)),
            block_queries=block,
            block_places=max(16, triton.next_power_of_2(places)),
            block_width=max(16, triton.next_power_of_2(width)),
            precision="ieee",
        )
    return out


def log_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """The highest number of each row, and the log of the sum of exp(x - highest); in float32."""
    rows = _rows(x)
    tops, sums = torch.empty(2, *x.shape[:-1], dtype=torch.float32, device=x.device)
    with _where(x):
        _log_sum[(len(rows),)](rows, tops, sums, rows.shape[1], rows.stride(0), _BLOCK)
    return tops, sums


def can_gate(z: Tensor, g: Tensor, r: Tensor | None, slope: Tensor | None = None) -> bool:
    """Whether `gate`, or with a slope `gate_back`, takes these."""
    rows, length, heads, width = z.shape
    if g.dtype != torch.float32 or g.shape[2:] != (heads, 1):
        return False
    if g.shape[0] not in (1, rows) or g.shape[1] not in (1, length):
        return False
    if r is not None:
        if r.dtype not in DTYPES or r.stride(-1) != 1 or r.shape[2:] != (heads, width):
            return False
        if not len(r) or rows % len(r) or r.shape[1] not in (1, length) or r.device != z.device:
            return False
    whole = [z] if slope is None else [z, slope]
    return _suit("gate", *whole) and all(each.is_contiguous() for each in whole)


def can_attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether `attend` takes these."""
    if mask is None or mask.dtype != torch.bool or query.shape[2] != 1:
        return False
    if mask.shape != (len(query), 1, 1, key.shape[2]) or query.shape[1] % key.shape[1]:
        return False
    if _wants_slopes(query, key, value):
        return False
    close = all(each.stride(-1) == 1 for each in (query, key, value, mask))
    narrow = key.shape[2] <= MOST_PLACES and query.shape[-1] == value.shape[-1]
    if not close or not narrow:
        return False
    sizes = query.shape[1] // key.shape[1], query.shape[-1]
    return _suit("attend", query, key, value, sizes=sizes)


def can_attend_all(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `attend_all` takes these: rows too short for torch's attention, which is made for
    blocks of more queries than they have."""
    if key.shape != value.shape or len(query) != len(key) or query.shape[2] > key.shape[2]:
        return False
    if key.shape[2] > SHORT or query.shape[1] % key.shape[1] or query.shape[3] != key.shape[3]:
        return False
    if _wants_slopes(query, key, value):
        return False
    sizes = query.shape[1] // key.shape[1], *query.shape[2:], key.shape[2]
    close = all(each.stride(-1) == 1 for each in (query, key, value))
    return close and _suit("attend_all", query, key, value, sizes=sizes)


def _wants_slopes(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def can_turn(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether `turn` takes these."""
    tables = cos.shape == sin.shape and cos.stride() == sin.stride()
    close = x.stride(-1) == cos.stride(-1) == 1
    return _suit("turn", x, cos, sin) and tables and close and x.shape[2] == cos.shape[2]


def can_log_sum(x: Tensor) -> bool:
    """Whether `log_sum` takes these."""
    return not _wants_slopes(x) and _has_rows(x) and _suit("log_sum", x)


def can_swiglu(*tensors: Tensor) -> bool:
    """Whether `swiglu` takes gate and up, or `swiglu_back` slope, gate and up."""
    fit = all(each.is_contiguous() for each in tensors)
    if len(tensors) == 2:
        fit = all(_has_rows(each) for each in tensors)
    return fit and _suit("swiglu", *tensors) and len({each.shape for each in tensors}) == 1


def _has_rows(numbers: Tensor) -> bool:
    """Whether it is rows of numbers that lie close together, the rows evenly apart."""
    if numbers.ndim < 2 or numbers.stride(-1) != 1:
        return False
    sizes, steps = numbers.shape[:-1], numbers.stride()[:-1]
    wide = [(size, step) for size, step in zip(sizes, steps, strict=True) if size > 1]
    return all(step == n * close for (_, step), (n, close) in pairwise(wide))


def _suit(kernel: str, *tensors: Tensor, sizes: tuple[int, ...] = ()) -> bool:
    """On a GPU where it works, of one dtype that float32 holds, and not empty."""
    first = tensors[0]
    if not first.numel() or first.dtype not in DTYPES:
        return False
    alike = all(each.dtype == first.dtype and each.device == first.device for each in tensors)
    return alike and works(kernel, first.device, first.dtype, *sizes)


def _where(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current GPU, whichever its inputs are on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _grid(numbers: Tensor) -> Any:
    return (triton.cdiv(numbers.numel(), _BLOCK),)
