"""Numbers that say how sparse and how large one token's activations are."""

from __future__ import annotations

import torch
from torch import Tensor

STATISTICS = {
    "near zero": "share of |x| at or below the threshold",
    "L1": "sum of |x|",
    "L2": "root of the sum of x²",
    "Gini": "of |x|: 0 all alike, 1 all in one value",
    "variance": "of x over the width",
}


def describe_tokens(x: Tensor, threshold: float) -> Tensor:
    """Each statistic of each token: [token, width] -> [statistic, token], in float64.

    >>> describe_tokens(torch.tensor([[0.0, -3.0, 4.0, 0.0]]), 0.1)[:3, 0].tolist()
    [0.5, 7.0, 5.0]
    """
    size = x.double().abs()
    near = (x.abs() <= threshold).double().mean(-1)  # in x's own numbers, as a user would count
    total = size.sum(-1)
    ordered = size.sort(dim=-1).values
    width = x.shape[-1]
    ranks = torch.arange(1, width + 1, dtype=torch.float64, device=x.device)
    gini = 2 * (ordered * ranks).sum(-1) / (width * total) - (width + 1) / width
    gini = gini.where(total > 0, 0.0)  # nothing but zeros: all alike
    spread = x.double().var(-1, correction=0)
    return torch.stack([near, total, size.square().sum(-1).sqrt(), gini, spread])
