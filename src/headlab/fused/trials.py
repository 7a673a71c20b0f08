"""Each kernel against torch's own operations, on the machine, in the dtype and of the sizes that it
is wanted for, before it is used: Triton wants a C compiler, for one, and memory within the chip."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import silu

_EPSILONS = 8  # by which ours may differ, of the largest number
Pairs = list[tuple[Tensor, Tensor]]  # what ours gives, and what it should


@cache
def works(kernel: str, device: torch.device, dtype: torch.dtype, *sizes: int) -> bool:
    """Whether it can be built and run there, and gives what torch gives; whatever it is that fails,
    torch's operations remain. Memory that has run out is no answer."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    random = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    try:
        with torch.no_grad():
            return all(_like(*pair) for pair in TRIALS[kernel](drawn, *sizes))
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return False


def _like(ours: Tensor, right: Tensor) -> bool:
    allowed = _EPSILONS * torch.finfo(ours.dtype).eps * max(1.0, float(right.abs().max()))
    return bool((ours - right).abs().max() <= allowed)


def _swiglu(drawn: Callable[..., Tensor]) -> Pairs:
    from headlab import fused

    d, gate, up = drawn(3, 5, 7, 333)
    wide = [each.double().requires_grad_() for each in (gate, up)]
    with torch.enable_grad():
        exact = silu(wide[0]) * wide[1]
        slopes = torch.autograd.grad(exact, wide, d.double())
    ours = fused.swiglu(gate, up), *fused.swiglu_back(d, gate, up)
    apart = torch.split(torch.cat([gate, up], -1), gate.shape[-1], -1)  # as of one product
    return [
        *zip(ours, (exact.detach(), *slopes), strict=True),
        (fused.swiglu(*apart), exact.detach()),
    ]


def _turn(drawn: Callable[..., Tensor]) -> Pairs:
    from headlab import fused

    x = drawn(3, 6, 9, 24).transpose(1, 2)  # as models have them: heads after positions
    cos, sin = drawn(2, 3, 1, 6, 24)
    slope, wide = torch.empty_like(x).copy_(drawn(3, 9, 6, 24)), x.double().requires_grad_()
    with torch.enable_grad():
        low, high = wide.chunk(2, -1)
        turned = wide * cos + torch.cat([-high, low], -1) * sin
        (back,) = torch.autograd.grad(turned, wide, slope.double())
    return [
        (fused.turn(x, cos, sin), turned.detach()),
        (fused.turn(slope, cos, sin, back=True), back),
    ]


def _gate(drawn: Callable[..., Tensor]) -> Pairs:
    from headlab import fused

    d, z = drawn(2, 6, 5, 9, 24)
    r, g = drawn(2, 5, 9, 24), drawn(6, 1, 9, 1).float()
    again = r.double().repeat(3, 1, 1, 1)
    to_z, to_g = fused.gate_back(d, z, g, r)
    return [
        (fused.gate(z, g, r), g * z.double() + (1 - g) * again),
        (fused.gate(z, g[:1], None), g[:1] * z.double()),
        (to_z, g * d.double()),
        (to_g, (d.double() * (z.double() - again)).sum(-1, keepdim=True)),
    ]


def _attend(drawn: Callable[..., Tensor], group: int, width: int) -> Pairs:
    from headlab import fused

    rows, keys, places = 3, 2, 200  # several blocks of places, some with nothing to see
    query = drawn(rows, 1, keys * group, width).transpose(1, 2)
    key, value = drawn(2, rows, keys, places, width)
    mask = drawn(rows, 1, 1, places) > 0
    mask[0, ..., :100] = mask[1, ..., 70:] = mask[2, ..., 20:180] = False
    mask[0, ..., 101] = mask[1, ..., 3] = mask[2, ..., 181] = True
    scale = width**-0.5
    scores = scale * query.double() @ key.double().repeat_interleave(group, 1).mT
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    exact = weights @ value.double().repeat_interleave(group, 1)
    return [(fused.attend(query, key, value, mask, scale), exact)]


def _attend_all(
    drawn: Callable[..., Tensor], group: int, length: int, width: int, places: int
) -> Pairs:
    from headlab import fused

    given, scale = _short_rows(drawn, group, length, width, places), width**-0.5
    query, key, value = (each.double() for each in given)
    exact = _looking_back(query, key, value, scale)
    return [(fused.attend_all(*given, scale), exact)]


def _attend_all_back(
    drawn: Callable[..., Tensor], group: int, length: int, width: int, places: int
) -> Pairs:
    from headlab import fused

    given, scale = _short_rows(drawn, group, length, width, places), width**-0.5
    slope = drawn(len(given[0]), given[0].shape[1], length, width).transpose(1, 2)
    query, key, value = (each.double().requires_grad_() for each in given)
    with torch.enable_grad():
        exact = _looking_back(query, key, value, scale)
        slopes = torch.autograd.grad(exact, [query, key, value], slope.double())
    return list(zip(fused.attend_all_back(slope, *given, scale), slopes, strict=True))


def _short_rows(
    drawn: Callable[..., Tensor], group: int, length: int, width: int, places: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows, keys = 3, 2
    query = drawn(rows, length, keys * group, width).transpose(1, 2)
    key, value = drawn(rows, places, keys, width), drawn(rows, places, keys, 2 * width)
    return query, key.transpose(1, 2), value[..., :width].transpose(1, 2)


def _looking_back(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention of each to all up to it, [row, place, head, width]."""
    length, places = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    scores = scale * query @ key.repeat_interleave(group, 1).mT
    later = torch.ones(length, places, dtype=torch.bool, device=query.device)
    weights = scores.masked_fill(later.triu(1 + places - length), float("-inf")).softmax(-1)
    return (weights @ value.repeat_interleave(group, 1)).transpose(1, 2)


def _log_sum(drawn: Callable[..., Tensor]) -> Pairs:
    from headlab import fused

    x = 9 * drawn(2, 3, 3001)
    x[0, 1, :1500] = float("-inf")  # as models have it for words they do not know
    tops, sums = fused.log_sum(x)
    highest = x.double().amax(-1)
    return [(tops, highest), (sums, x.double().logsumexp(-1) - highest)]


TRIALS: dict[str, Callable[..., Pairs]] = {
    "swiglu": _swiglu,
    "turn": _turn,
    "gate": _gate,
    "attend": _attend,
    "attend_all": _attend_all,
    "attend_all_back": _attend_all_back,
    "log_sum": _log_sum,
}
