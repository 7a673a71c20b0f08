"""Rows that begin alike, as questions behind the same instruction or examples: what a mask does to
their beginning it does to all of them, so that one row can run it for all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Alike:
    """Rows in groups that begin with the same tokens."""

    length: int  # so many
    groups: list[int]  # of each row, numbered in the order of their first rows

    @cached_property
    def firsts(self) -> list[int]:
        """The first row of each group."""
        firsts: dict[int, int] = {}
        for row, group in enumerate(self.groups):
            firsts.setdefault(group, row)
        return list(firsts.values())


def ways_to_share(
    rows: Sequence[Sequence[Hashable]], limit: int, apart: Sequence[Hashable] | None = None
) -> Iterator[Alike]:
    """For each number of groups the longest beginning, of at most `limit` tokens, which every row
    has. Rows whose `apart` differs share nothing.

    >>> [(way.length, way.groups) for way in ways_to_share(["abcd", "abx", "abcf"], limit=3)]
    [(2, [0, 0, 0]), (3, [0, 1, 0])]
    """
    groups = _numbered([0] * len(rows) if apart is None else apart)
    for length in range(limit):
        finer = _numbered([(group, row[length]) for group, row in zip(groups, rows, strict=True)])
        if length and max(finer) > max(groups):
            yield Alike(length, groups)
        groups = finer
        if max(groups) == len(rows) - 1:
            return  # every row by itself
    if limit:
        yield Alike(limit, groups)


def _numbered(labels: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]
