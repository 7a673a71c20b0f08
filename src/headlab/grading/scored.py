"""What a grader gives back: a score for every row it was given, and what went wrong where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")


@dataclass
class Scored:
    scores: list[float]
    timed_out: set[int] = field(default_factory=set)  # rows, by their place; each scores 0
    failed: set[int] = field(default_factory=set)  # the worker died of them; each scores 0
    unparsed: set[int] = field(default_factory=set)  # nothing to compare was found; 0 as well


def score_each(
    items: Iterable[Item],
    score: Callable[[Item], float | None],
    progress: Callable[[int], None] | None = None,
) -> Scored:
    """One by one; None from `score` says that the prediction holds nothing to compare."""
    scored = Scored([])
    for place, item in enumerate(items):
        value = score(item)
        if value is None:
            scored.unparsed.add(place)
        scored.scores.append(value or 0.0)
        if progress:
            progress(1)
    return scored
