"""Intervals by the bootstrap over examples."""

from __future__ import annotations

import math

import torch
from scipy.stats import norm as normal
from scipy.stats import t as student_t
from torch import Tensor

N_RESAMPLES = 2000


def bootstrap_means(values: Tensor, n: int = N_RESAMPLES, seed: int = 0) -> Tensor:
    """Means over resampled examples: [..., example] -> [resample, ...].

    Every row of `values` sees the same resamples, so that rows can be compared.
    """
    count = values.shape[-1]
    flat = values.double().reshape(-1, count)
    return (bootstrap_weights(count, n, seed) @ flat.T / count).view(n, *values.shape[:-1])


def bootstrap_weights(count: int, n: int = N_RESAMPLES, seed: int = 0) -> Tensor:
    """How often each of `count` examples is drawn in each of n resamples: [resample, example]."""
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (n, count), generator=random)
    weights = torch.zeros(n, count, dtype=torch.float64)
    return weights.scatter_add_(1, drawn, torch.ones_like(weights))


def leaves_out_zero(values: Tensor, n: int = N_RESAMPLES) -> Tensor:
    """Where the mean's 95 % interval does not contain 0: [..., example] -> [...]."""
    low, high = mean_interval(values, n=n)
    return (low > 0) | (high < 0)


def expected_by_chance(values: Tensor, flips: int = 32, seed: int = 0) -> float:
    """How many of the rows [..., example] would leave out 0 if none had a mean other than 0.

    Counted with the sign of every example drawn by lot: no assumption about the shape of the
    values, nor that rows are independent.
    """
    count = values.shape[-1]
    if 2**count <= flips:
        signs = torch.cartesian_prod(*[torch.tensor([-1, 1])] * count).view(-1, count)
    else:
        random = torch.Generator().manual_seed(seed)
        signs = torch.randint(2, (flips, count), generator=random) * 2 - 1
    counts = [int(leaves_out_zero(values * sign, n=400).sum()) for sign in signs]
    return sum(counts) / len(counts)


def mean_interval(
    values: Tensor, level: float = 0.95, seed: int = 0, n: int = N_RESAMPLES
) -> tuple[Tensor, Tensor]:
    """Bootstrap interval of the mean over examples: [..., example] -> low and high, [...].

    Percentiles of resampled means, widened about the mean as Student's t is against the normal:
    plain percentiles of 3 examples miss the mean a quarter of the time, of 16 still in 7 %. With
    one example there is nothing to resample: NaN.

    >>> low, high = mean_interval(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> bool(low < 2.5 < high)
    True
    """
    if values.shape[-1] < 2:
        nothing = torch.full(values.shape[:-1], torch.nan, dtype=torch.float64)
        return nothing, nothing.clone()
    means = bootstrap_means(values, n, seed)
    return resampled_interval(values.double().mean(-1), means, values.shape[-1], level)


def resampled_interval(
    estimate: Tensor, resampled: Tensor, count: int, level: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Percentiles of [resample, ...] about the estimate [...], widened as for `count` examples."""
    tail = (1 - level) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=resampled.dtype)
    low, high = torch.quantile(resampled, ends, dim=0)
    widen = math.sqrt(count / (count - 1)) * float(
        student_t.ppf(1 - tail, count - 1) / normal.ppf(1 - tail)
    )
    return estimate + widen * (low - estimate), estimate + widen * (high - estimate)


def share_interval(hits: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share: unlike the bootstrap's, of some width for 0 and for all.

    >>> low, high = share_interval(16, 16)
    >>> round(low, 2), high
    (0.81, 1.0)
    >>> share_interval(0, 100)[0]
    0.0
    """
    z = float(normal.ppf((1 + level) / 2))
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = z / (1 + z * z / count)
    spread *= math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = max(0.0, middle - spread), min(1.0, middle + spread)
    return 0.0 if hits == 0 else low, 1.0 if hits == count else high
