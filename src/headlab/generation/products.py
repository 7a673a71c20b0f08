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

from headlab.restart import standing_in

if TYPE_CHECKING:
    from headlab.model import Model

_KIN = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # as models call them, in turn
_SHARE = 8  # copies take at most one in so many free bytes


class Joined:
    """Linear maps of one input, in the order in which they are asked."""

    def __init__(self, parts: Sequence[nn.Linear]):
        self._sizes: list[int] = [part.out_features for part in parts]
        self._weight = torch.cat([part.weight.detach() for part in parts])
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._given: tuple[Tensor, int] | None = None  # an input, and which of its states
        self._found: tuple[Tensor, ...] = ()  # what it gives the parts

    def standing_for(self, number: int, own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The forward of one part. The first part computes for all; the others take what is theirs,
        or, given anything else, are asked themselves."""

        def forward(x: Tensor, *rest: Any, **named: Any) -> Tensor:
            if rest or named or x.is_inference():
                return own(x, *rest, **named)
            if number == 0:
                self._given = x, x._version
                self._found = torch.split(linear(x, self._weight, self._bias), self._sizes, -1)
                return self._found[0]
            if self._given is None or self._given[0] is not x or self._given[1] != x._version:
                return own(x)
            mine = self._found[number]
            if number == len(self._sizes) - 1:
                self._given, self._found = None, ()  # nothing is kept longer than it is needed
            return mine

        return forward


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
    return not (part._forward_hooks or part._forward_pre_hooks) and not part.weight.is_meta


def _are_alike(parts: Sequence[nn.Linear]) -> bool:
    kinds = {
        (part.in_features, part.weight.dtype, part.weight.device, part.bias is None)
        for part in parts
    }
    return len(kinds) == 1


@contextmanager
def joined_products(network: nn.Module) -> Iterator[None]:
    """Within the block maps of one input are one product, without gradients."""
    with ExitStack() as stack:
        for parts in find_kin(network):
            joined = Joined(parts)
            for number, part in enumerate(parts):
                forward = joined.standing_for(number, part.forward)
                stack.enter_context(standing_in(part, forward))
        yield


def has_room(model: Model) -> bool:
    """Whether copies of the weights take only a small part of what is free."""
    wanted = sum(
        part.weight.numel() * part.weight.element_size()
        for parts in find_kin(model.hf)
        for part in parts
    )
    device = model.device
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _SHARE * wanted < torch.cuda.mem_get_info(device)[0] + kept
