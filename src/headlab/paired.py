"""Two conditions on the same problems: what changed, how sure that is, and several at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import binom

from headlab.errors import HeadlabError
from headlab.stats import mean_interval, share_interval


@dataclass(frozen=True)
class McNemar:
    """Problems that only one of two conditions solves."""

    gained: int  # wrong before, right after
    lost: int
    p: float  # of a split at least as uneven if either way were as likely; exact, two-sided


def mcnemar(before: ArrayLike, after: ArrayLike) -> McNemar:
    """McNemar's exact test: right or wrong under two conditions, [problem] each, in one order.

    >>> mcnemar([0, 0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 0])
    McNemar(gained=5, lost=1, p=0.21875)
    """
    first, second = _pairs(before, after)
    if not np.isin([first, second], (0, 1)).all():
        raise HeadlabError("McNemar's test takes right and wrong alone: 1 and 0")
    gained, lost = int((second > first).sum()), int((second < first).sum())
    # Twice the lesser tail; of an even split both tails hold the middle, so more than 1.
    p = min(1.0, 2 * float(binom.cdf(min(gained, lost), gained + lost, 0.5)))
    return McNemar(gained, lost, p)


def sign_flips(before: ArrayLike, after: ArrayLike, draws: int = 20_000, seed: int = 0) -> float:
    """How often problems whose two scores change places at random would lie as far apart on
    average; two-sided. Where scores are shares of several draws McNemar's test cannot be had.

    >>> sign_flips([0.0] * 12, [0.5] * 12) < 0.001, sign_flips([0, 1], [1, 0])
    (True, 1.0)
    """
    first, second = _pairs(before, after)
    apart = (second - first)[second != first]
    if not apart.size:
        return 1.0
    luck = np.random.default_rng(seed)
    seen = 0
    for start in range(0, draws, 1000):
        signs = luck.integers(0, 2, (min(1000, draws - start), apart.size)) * 2 - 1
        seen += int((np.abs(signs @ apart) >= abs(apart.sum()) - 1e-9).sum())
    return (1 + seen) / (1 + draws)


def paired_difference(
    before: ArrayLike, after: ArrayLike, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """How much more is right after than before, and the interval of that over problems.

    Scores are between 0 and 1, [problem] each, in one order: right or wrong, or a share of draws.

    >>> mean, low, high = paired_difference([0, 0, 1, 1] * 50, [1, 0, 1, 1] * 50)
    >>> mean, bool(0.15 < low < 0.25 < high < 0.35)
    (0.25, True)
    """
    first, second = _pairs(before, after)
    return mean_of_pairs(second - first, level, seed)


def mean_of_pairs(
    apart: np.ndarray, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """The mean of differences between -1 and 1, [problem], and its interval by the bootstrap. Where
    all are alike, or nearly, resampling sees no spread: it is never narrower than if as many as may
    not have been seen lay at either end.

    >>> tuple(round(each, 2) for each in mean_of_pairs(np.ones(3)))
    (1.0, -0.12, 1.0)
    """
    mean = float(apart.mean())
    unseen = 1 - share_interval(len(apart), len(apart), level)[0]
    low, high = ((1 - unseen) * mean + end * unseen for end in (-1, 1))
    if np.ptp(apart) > 0:
        ends = mean_interval(torch.from_numpy(apart), level, seed)
        low, high = max(-1.0, min(low, float(ends[0]))), min(1.0, max(high, float(ends[1])))
    return mean, low, high


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: those at most 0.05 hold together, with a
    chance of 5 % that any of them is false. A NaN was no test: it stays and does not count.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    tested = sorted((p, place) for place, p in enumerate(ps) if not math.isnan(p))
    if tested and not 0 <= tested[0][0] <= tested[-1][0] <= 1:
        raise HeadlabError(f"p-values lie between 0 and 1; given were {list(ps)}")
    adjusted = [math.nan] * len(ps)
    least = 0.0  # none below one that was smaller
    for rank, (p, place) in enumerate(tested):
        least = min(1.0, max(least, (len(tested) - rank) * p))
        adjusted[place] = least
    return adjusted


def _pairs(before: ArrayLike, after: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if first.ndim != 1 or first.shape != second.shape or not first.size:
        raise HeadlabError(
            f"pairs are two lists of one length, not {first.shape} and {second.shape}"
        )
    if not ((first >= 0) & (first <= 1) & (second >= 0) & (second <= 1)).all():
        raise HeadlabError("scores of pairs lie between 0 and 1, and none is missing")
    return first, second
