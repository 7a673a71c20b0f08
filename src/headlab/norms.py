"""RMS norms in one kernel: models write them as six, each a trip through the GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from headlab.restart import standing_in

if TYPE_CHECKING:
    from headlab.model import Model


@dataclass(frozen=True)
class Norm:
    """A module that is an RMS norm: x / sqrt(mean(x²) + eps) times a scale, last axis."""

    name: str
    module: nn.Module
    eps: float
    from_one: bool  # the scale is 1 + weight, as in Gemma

    def __call__(self, hidden: Tensor) -> Tensor:
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        scale = 1 + weight if self.from_one else weight
        return functional.rms_norm(hidden, weight.shape, scale, self.eps)

    def excess(self) -> float:
        """Its largest error on random input beyond what is allowed: the module's own rounding."""
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        random = torch.Generator().manual_seed(0)
        rows = torch.randn(8, len(weight), generator=random)
        rows *= torch.logspace(-3, 3, 8)[:, None]  # the smallest shows eps, the largest overflow
        hidden = rows.to(weight.device, weight.dtype)
        exact = self.module(hidden.float()).float()
        own, ours = (f(hidden).float() - exact for f in (self.module, self))
        allowed = max(1.5 * float(own.abs().max()), 1e-6 * float(exact.abs().max()))
        return float(ours.abs().max()) - allowed


def find_norms(network: nn.Module) -> list[Norm]:
    """The RMS norms among a model's modules, by name and attributes; nothing is proved yet."""
    norms = []
    for name, module in network.named_modules():
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if "RMSNorm" not in type(module).__name__ or not isinstance(eps, float):
            continue
        if isinstance(weight, Tensor) and weight.ndim == 1 and not weight.is_meta:
            candidates = (Norm(name, module, eps, from_one) for from_one in (False, True))
            norms.append(min(candidates, key=Norm.excess))
    return norms


@contextmanager
def one_kernel(model: Model) -> Iterator[None]:
    """Within the block the model's proved norms run in one kernel each."""
    with ExitStack() as stack:
        for norm in model.norms:
            stack.enter_context(standing_in(norm.module, norm))
        yield
