"""The loss: the text's own tokens, and the distance to the dense model, in one pass over logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_ROWS = 2048  # places whose probabilities are held at once


class Losses(NamedTuple):
    """Sums over places, in nats."""

    objective: Tensor  # what is differentiated
    kl: Tensor  # from the dense model, where there is one
    loss: Tensor  # of the text's tokens
    dense: Tensor  # the dense model's loss of them


def distilled(
    logits: Tensor, dense: Tensor | None, targets: Tensor, kl_weight: float, loss_weight: float
) -> Losses:
    """Σ kl_weight · KL(dense ‖ model) + loss_weight · −log p(target), over places.

    logits and dense [place, vocabulary], targets [place]; without dense the text's loss alone. Both
    slopes are known, p − p_dense and p − 1[target], so that no more than the logits' own slope is
    kept for the way back.
    """
    return Losses(*_Distilled.apply(logits, dense, targets, kl_weight, loss_weight))  # type: ignore[no-untyped-call]


class _Distilled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        dense: Tensor | None,
        targets: Tensor,
        kl_weight: float,
        loss_weight: float,
    ) -> tuple[Tensor, ...]:
        slope = torch.empty_like(logits)
        wide = torch.promote_types(logits.dtype, torch.float32)
        sums = torch.zeros(3, dtype=torch.float64, device=logits.device)
        for first in range(0, len(logits), _ROWS):
            rows = slice(first, first + _ROWS)
            own = logits[rows].to(wide).log_softmax(-1)
            places = targets[rows][:, None]
            sums[1] -= own.gather(1, places).sum()
            part = (kl_weight + loss_weight) * own.exp()
            if dense is not None:
                theirs = dense[rows].to(wide).log_softmax(-1)
                q = theirs.exp()
                sums[0] += (q * (theirs - own)).sum()
                sums[2] -= theirs.gather(1, places).sum()
                part -= kl_weight * q
            part.scatter_add_(1, places, part.new_full(places.shape, -loss_weight))
            slope[rows] = part.to(slope.dtype)
        ctx.save_for_backward(slope)
        kl, loss, theirs_loss = sums.unbind()
        found = (kl_weight * kl + loss_weight * loss, kl, loss, theirs_loss)
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * slopes[0].to(slope.dtype), None, None, None, None
