"""Orders of heads as ranks, and random ones to compare them with."""

from __future__ import annotations

import torch
from torch import Tensor


def ranks_of(score: Tensor) -> Tensor:
    """Each head's place in the order, 0 the best: [layer, head]."""
    order = score.flatten().argsort(descending=True, stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order))
    return ranks.view(score.shape)


def shuffled(ranks: Tensor, random: torch.Generator) -> Tensor:
    """Other places for all heads, for each example anew where it has its own order."""
    n = ranks[0].numel()
    rows = [torch.randperm(n, generator=random).view(ranks[0].shape) for _ in range(len(ranks))]
    return torch.stack(rows)


def shuffled_in_layers(ranks: Tensor, random: torch.Generator) -> Tensor:
    """Other places for the heads of each layer among themselves: each k has as many of a layer."""
    mixed = torch.empty_like(ranks)
    for example in range(len(ranks)):
        for layer in range(ranks.shape[1]):
            order = torch.randperm(ranks.shape[2], generator=random)
            mixed[example, layer] = ranks[example, layer, order]
    return mixed
