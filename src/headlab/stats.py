"""Intervals by the bootstrap over examples."""

from __future__ import annotations

import torch
from torch import Tensor

N_RESAMPLES = 2000


def bootstrap_means(values: Tensor, n: int = N_RESAMPLES, seed: int = 0) -> Tensor:
    """Means over resampled examples: [..., example] -> [resample, ...].

    Every row of `values` sees the same resamples, so that rows can be compared.
    """
    count = values.shape[-1]
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (n, count), generator=random)
    weights = torch.zeros(n, count, dtype=torch.float64)
    weights.scatter_add_(1, drawn, torch.ones_like(weights))
    flat = values.double().reshape(-1, count)
    return (weights @ flat.T / count).view(n, *values.shape[:-1])


def mean_interval(values: Tensor, level: float = 0.95, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Percentile interval of the mean over examples: [..., example] -> low and high, [...].

    With one example there is nothing to resample: NaN.

    >>> low, high = mean_interval(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> bool(low < 2.5 < high)
    True
    """
    if values.shape[-1] < 2:
        nothing = torch.full(values.shape[:-1], torch.nan, dtype=torch.float64)
        return nothing, nothing.clone()
    means = bootstrap_means(values, seed=seed)
    tail = (1 - level) / 2
    return torch.quantile(means, tail, dim=0), torch.quantile(means, 1 - tail, dim=0)
