"""Formulas as one GPU kernel each, in Triton, which torch brings along where it brings CUDA.

A chain of elementwise operations goes through the GPU's memory once for each of them, and rounds
each time. Here numbers are read once, computed with in float32, and written once. Where a kernel
cannot be built, or gives something else than torch (`trials.py`), nothing of this is used.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headlab.fused.launching import DTYPES, suits, wants_slopes, where_it_is

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU's torch comes without
    triton = None

_BLOCK = 1024  # numbers that a program works on

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
        block_heads: tl.constexpr, block_half: tl.constexpr, back: tl.constexpr,
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
        if back:
            s_low, s_high = -s_high, -s_low
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
    with where_it_is(gate):
        _swiglu[grid](*rows, out, width, *(each.stride(0) for each in rows), _BLOCK)
    return out


def _rows(numbers: Tensor) -> Tensor:
    """[row, number], where that needs no copy."""
    return numbers.view(-1, numbers.shape[-1])


def swiglu_back(slope: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """What the slope of `swiglu` is for gate and for up."""
    to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
    with where_it_is(gate):
        _swiglu_back[_grid(gate)](slope, gate, up, to_gate, to_up, gate.numel(), _BLOCK)
    return to_gate, to_up


def turn(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """x [row, head, position, width] turned, half against half, or a slope turned back; cos and sin
    [row|1, 1, position, width]. The last axes lie close."""
    rows, heads, length, width = x.shape
    out = torch.empty_like(x)
    table = cos.stride(0) if cos.shape[0] > 1 else 0
    with where_it_is(x):
        _turn[(rows * length,)](
            *(x, cos, sin, out, heads, length, width // 2),
            *(x.stride(0), x.stride(1), x.stride(2)),
            *(out.stride(0), out.stride(1), out.stride(2)),
            *(table, cos.stride(2)),
            *(triton.next_power_of_2(heads), triton.next_power_of_2(width // 2), back),
        )
    return out


def gate(z: Tensor, g: Tensor, r: Tensor | None) -> Tensor:
    """g · z + (1 − g) · r: z [row, position, head, width], g [row|1, position|1, head, 1] in
    float32, r [rows that come again and again, position|1, head, width] or zero."""
    length, heads, width = z.shape[1:]
    size = heads * width
    out = torch.empty_like(z)
    with where_it_is(z):
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
    with where_it_is(z):
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


def log_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """The highest number of each row, and the log of the sum of exp(x - highest); in float32."""
    rows = _rows(x)
    tops, sums = torch.empty(2, *x.shape[:-1], dtype=torch.float32, device=x.device)
    with where_it_is(x):
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
    return suits("gate", *whole) and all(each.is_contiguous() for each in whole)


def can_turn(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether `turn` takes these."""
    tables = cos.shape == sin.shape and cos.stride() == sin.stride()
    close = x.stride(-1) == cos.stride(-1) == 1
    return suits("turn", x, cos, sin) and tables and close and x.shape[2] == cos.shape[2]


def can_log_sum(x: Tensor) -> bool:
    """Whether `log_sum` takes these."""
    return not wants_slopes(x) and _has_rows(x) and suits("log_sum", x)


def can_swiglu(*tensors: Tensor) -> bool:
    """Whether `swiglu` takes gate and up, or `swiglu_back` slope, gate and up."""
    fit = all(each.is_contiguous() for each in tensors)
    if len(tensors) == 2:
        fit = all(_has_rows(each) for each in tensors)
    return fit and suits("swiglu", *tensors) and len({each.shape for each in tensors}) == 1


def _has_rows(numbers: Tensor) -> bool:
    """Whether it is rows of numbers that lie close together, the rows evenly apart."""
    if numbers.ndim < 2 or numbers.stride(-1) != 1:
        return False
    sizes, steps = numbers.shape[:-1], numbers.stride()[:-1]
    wide = [(size, step) for size, step in zip(sizes, steps, strict=True) if size > 1]
    return all(step == n * close for (_, step), (n, close) in pairwise(wide))


def _grid(numbers: Tensor) -> Any:
    return (triton.cdiv(numbers.numel(), _BLOCK),)
