"""Heads pushed towards what they give in right answers, instead of taken away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def directions(pooled: Tensor, own: np.ndarray, hits: np.ndarray) -> Tensor | None:
    """[layer, head, width]: from the mean of wrong answers to that of right ones, as long as the
    answers of a half that was held out spread along it. From z [answer, layer, head, width] of
    the answers of one function; None where they are too few of either kind.
    """
    z = pooled[torch.from_numpy(np.flatnonzero(own))].double()
    right = torch.from_numpy(hits[own].copy())
    fitted, held_out = torch.arange(len(z)) % 2 == 0, torch.arange(len(z)) % 2 == 1
    if min(int((fitted & right).sum()), int((fitted & ~right).sum())) < 2 or held_out.sum() < 2:
        return None
    apart = z[fitted & right].mean(0) - z[fitted & ~right].mean(0)
    unit = apart / apart.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    along = (z[held_out] * unit).sum(-1)  # [answer, layer, head]
    return unit * along.std(0)[..., None]


def boosts_of(heads: Sequence[Sequence[int]], found: Tensor, strength: float) -> Tensor:
    """[mask, layer, head, width]: the directions of each mask's heads, 0 elsewhere."""
    flat = found.flatten(0, 1)
    boosts = torch.zeros(len(heads), *flat.shape)
    for row, own in zip(boosts, heads, strict=True):
        chosen = torch.tensor(own, dtype=torch.long)
        row[chosen] = (strength * flat[chosen]).float()
    return boosts.view(len(heads), *found.shape)
