"""Maps of one input as one product: queries, keys and values, an MLP's gate and its other half.

A product of a few hundred rows leaves part of a GPU idle, in its last round more than in the others
and between one product and the next. Of fewer and wider products there is less of that. For the
time of a call the weights lie side by side in a copy, where there is room for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from headlab.generation.planning import beside_weights
from headlab.restart import standing_in

if TYPE_CHECKING:
    from headlab.model import Model

_KIN = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # as models call them
_SHARE = 8  # copies take at most one in so many bytes beside the weights


class _Slot:
    """What the last joined product gave, until all parts have theirs. A network has one, so that
    nothing is kept longer than to the next product."""

    def __init__(self) -> None:
        self.owner: Joined | None = None
        self.given: tuple[Tensor, int] | None = None  # an input, and which of its states
        self.parts: dict[int, Tensor] = {}  # that nobody has asked for

    def holds(self, owner: Joined, number: int, x: Tensor) -> bool:
        if self.owner is not owner or self.given is None or number not in self.parts:
            return False
        return self.given[0] is x and self.given[1] == x._version

    def clear(self) -> None:
        self.owner, self.given, self.parts = None, None, {}


class Joined:
    """Linear maps of one input. Whichever is asked first computes for all, the others take what is
    theirs. Where one is not asked, or for something else, all go on by themselves."""

    def __init__(self, parts: Sequence[nn.Linear], slot: _Slot):
        self._sizes: list[int] = [part.out_features for part in parts]
        self._weight = torch.cat([part.weight.detach() for part in parts])
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._slot = slot
        self._apart = False

    def standing_for(self, number: int, own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The forward of one part."""

        def forward(*given: Any, **named: Any) -> Tensor:
            if named or len(given) != 1 or given[0].is_inference():
                return own(*given, **named)
            return self._ask(number, given[0], own)

        return forward

    def _ask(self, number: int, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        slot = self._slot
        if slot.holds(self, number, x):
            mine = slot.parts.pop(number)
            if not slot.parts:
                slot.clear()
            return mine
        if slot.owner is not None:  # somebody was not asked
            slot.owner._apart = True
            slot.clear()
        if self._apart:
            return own(x)
        every = torch.split(linear(x, self._weight, self._bias), self._sizes, -1)
        slot.owner, slot.given = self, (x, x._version)
        slot.parts = {n: part for n, part in enumerate(every) if n != number}
        return every[number]


def find_kin(network: nn.Module) -> list[list[nn.Linear]]:
    """Plain linear maps that stand beside each other under the usual names, and that nobody looks
    at or has changed."""
    found = []
    for module in network.modules():
        for names in _KIN:
            parts: list[Any] = [module._modules.get(name) for name in names]
            if all(_is_plain(part) for part in parts) and _are_alike(parts):
                found.append(parts)
    return found


def _is_plain(part: nn.Module | None) -> bool:
    if type(part) is not nn.Linear or "forward" in part.__dict__:
        return False
    if part._forward_hooks or part._forward_pre_hooks:
        return False
    numbers = (part.weight,) if part.bias is None else (part.weight, part.bias)
    # Quantised weights may be of a class of their own that does not join.
    return all(type(each) is nn.Parameter and not each.is_meta for each in numbers)


def _are_alike(parts: Sequence[nn.Linear]) -> bool:
    kinds = {
        (part.in_features, part.weight.dtype, part.weight.device, part.bias is None)
        for part in parts
    }
    return len(kinds) == 1


@contextmanager
def joined_products(network: nn.Module) -> Iterator[None]:
    """Within the block maps of one input are one product, without gradients; where memory does not
    suffice after all, they are not."""
    kin, slot = find_kin(network), _Slot()
    try:
        groups = [Joined(parts, slot) for parts in kin]
    except torch.OutOfMemoryError:
        groups = []
    with ExitStack() as stack:
        for joined, parts in zip(groups, kin, strict=False):
            for number, part in enumerate(parts):
                forward = joined.standing_for(number, part.forward)
                stack.enter_context(standing_in(part, forward))
        stack.callback(slot.clear)
        yield


def is_worth_joining(model: Model) -> bool:
    """Whether copies of the weights take only a small part of a GPU's memory. (Of the memory there
    is, not of what is free: the same texts in every run.)"""
    wanted = sum(
        part.weight.numel() * part.weight.element_size()
        for parts in find_kin(model.hf)
        for part in parts
    )
    return _SHARE * wanted < beside_weights(model)
