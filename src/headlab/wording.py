"""Numbers as people say them: 1 seed, 2 seeds, 3 min."""

from __future__ import annotations

import math


def count(n: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "cell"), count(2, "cell")
    ('1 cell', '2 cells')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def percent(share: float, digits: int = 0) -> str:
    """A share of 1.

    >>> percent(0.125), percent(0.125, 1)
    ('12 %', '12.5 %')
    """
    return f"{100 * share:.{digits}f} %"


def points(apart: float, digits: int = 0) -> str:
    """A difference of shares, with its sign; ? where there is none.

    >>> points(0.05), points(-0.012, 1), points(math.nan)
    ('+5', '-1.2', '?')
    """
    return f"{100 * apart:+.{digits}f}" if math.isfinite(apart) else "?"


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(42), in_words(200), in_words(9000)
    ('42 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
