"""Which examples run together, from where on, and which of their rows begin for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from torch import Tensor

from headlab import fused
from headlab.alike import Alike, ways_to_share
from headlab.measures import Encoded
from headlab.measures import Sequence as Run

# Of a run's length: to begin behind fewer tokens saves less than it costs. Behind a beginning there
# is a mask, for which torch's attention of long rows is slower.
_LATE, _LATE_IF_LONG = 1 / 8, 1 / 4
_APART = 4  # running examples apart costs as much as one in so many parts of a pass
KEYS = 4  # a token of the beginning takes one in so many parts of the room of one that runs


def first_changes(encoded: Sequence[Encoded], gates: Tensor, counterfactual: bool) -> list[int]:
    """Of each example the position before which no mask changes anything, at most the first read.

    There all gates are 1, or an example and its counterfactual are still the same: then so are a
    head and its reference. `gates` are [mask, example|1, layer, head, position|1].
    """
    gated = 0
    if gates.shape[-1] > 1:
        moved = (gates != 1).flatten(0, 3).any(0)
        gated = int(moved.int().argmax()) if moved.any() else len(moved)
    begins = []
    for each in encoded:
        changes = [max(gated, run.parting if counterfactual else 0) for run in each.sequences]
        starts = [run.start for run in each.sequences]
        begins.append(min(*changes, *starts))
    return begins


@dataclass(frozen=True)
class Chunk:
    """Examples that run together."""

    examples: list[int]  # their numbers
    begin: int = 0  # the position before which no mask changes anything

    def halves(self) -> tuple[Chunk, Chunk]:
        half = len(self.examples) // 2
        return Chunk(self.examples[:half], self.begin), Chunk(self.examples[half:], self.begin)


@dataclass(frozen=True)
class Family:
    """Chunks whose runs share what they begin with, or one whose runs do not."""

    chunks: list[Chunk]
    alike: Alike | None = None  # all runs, chunk by chunk


@dataclass(frozen=True)
class Sharing:
    """That runs under the same mask may share their beginnings."""

    start: int  # to start a pass takes the time of so many tokens
    largest: int  # tokens of a family
    across: bool = True  # also runs of different examples


def families(
    encoded: list[Encoded],
    tokens: int,
    masks: int = 1,
    begins: Sequence[int] | None = None,
    sharing: Sharing | None = None,
) -> Iterator[Family]:
    """Examples of similar length, each chunk of at most so many tokens when padded.

    `begins` are the positions before which none of so many masks changes anything: examples that
    begin late run apart from those that begin early, where that saves more than it costs. With
    `sharing`, so do runs that begin alike from what they begin with.
    """
    n_rows = [len(each.sequences) for each in encoded]
    lengths = [each.length for each in encoded]
    begins = [0] * len(encoded) if begins is None else begins
    for begin, members in _by_beginning(begins, lengths, n_rows, masks, tokens // _APART):
        yield from _Plan(encoded, tokens, masks, begin, sharing).cheapest(members)


@dataclass(frozen=True)
class _Plan:
    """How examples may run together."""

    encoded: list[Encoded]
    tokens: int  # in a pass
    masks: int
    begin: int
    sharing: Sharing | None

    def cheapest(self, members: list[int]) -> list[Family]:
        """By length, each chunk by itself; or many chunks together, behind what they share."""
        by_length = [each for part in self._cut(members) for each in self._families([part])]
        if self.sharing is None or not self.sharing.across:
            return by_length
        together = []
        for some in self._cut_by_beginning(members, self.sharing.largest):
            together += self._families(list(self._cut(some)))
        return min(by_length, together, key=lambda found: sum(map(self._cost, found)))

    def _cut(self, members: list[int]) -> Iterator[list[int]]:
        lengths = [self.encoded[number].length for number in members]
        n_rows = [len(self.encoded[number].sequences) for number in members]
        order = sorted(range(len(members)), key=lengths.__getitem__)
        for part in _cut(order, lengths, self.tokens, n_rows):
            yield [members[place] for place in part]

    def _cut_by_beginning(self, members: list[int], largest: int) -> Iterator[list[int]]:
        """Parts of at most so many tokens, those that begin alike together; shorter ones first."""
        rows, limit = _compared(self.encoded[number].sequences[0] for number in members)
        ways = ways_to_share(rows, limit)
        best = max(ways, key=lambda way: way.length * (len(rows) - len(way.firsts)), default=None)
        groups = range(len(rows)) if best is None else best.groups
        lengths = [self.encoded[number].length for number in members]
        own: dict[int, list[int]] = {}
        for group, length in zip(groups, lengths, strict=True):
            own.setdefault(group, []).append(length)
        means = {group: fmean(each) for group, each in own.items()}
        keys = [(means[group], group) for group in groups]
        n_rows = [len(self.encoded[number].sequences) for number in members]
        for part in _cut(sorted(range(len(rows)), key=keys.__getitem__), lengths, largest, n_rows):
            yield [members[place] for place in part]

    def _families(self, parts: list[list[int]]) -> list[Family]:
        """Chunks that share what they begin with, where that saves enough; else each by itself."""
        apart = []
        for part in parts:
            longest = max(self.encoded[number].length for number in part)
            late = self.begin >= worth_while(longest) * longest
            apart.append(Family([Chunk(part, self.begin if late else 0)]))
        if self.sharing is None:
            return apart
        members = [number for part in parts for number in part]
        rows, limit = _compared(run for number in members for run in self.encoded[number].sequences)
        owners = [number for number in members for _ in self.encoded[number].sequences]
        begin = min(each.chunks[0].begin for each in apart)
        best = min(
            (
                Family([Chunk(part, begin) for part in parts], way)
                for way in ways_to_share(rows, limit, None if self.sharing.across else owners)
                if way.length > begin and len(way.firsts) < len(rows)
            ),
            key=self._cost,
            default=None,
        )
        whole = sum(map(self._cost, apart))
        if best is None or self._cost(best) > (1 - worth_while(longest)) * whole:
            return apart
        return [best]

    def _cost(self, family: Family) -> int:
        """In tokens that run."""
        passes = []  # tokens of each pass under one mask
        for chunk in family.chunks:
            runs = [run for number in chunk.examples for run in self.encoded[number].sequences]
            begin = chunk.begin if family.alike is None else family.alike.length
            passes.append(room(len(runs), max(len(run.ids) for run in runs), begin))
        if family.alike is not None:
            begin = family.chunks[0].begin
            passes.append(len(family.alike.firsts) * (family.alike.length - begin))
        start = 0 if self.sharing is None else self.sharing.start
        return sum(
            self.masks * n + start * -(-self.masks // max(1, self.tokens // n)) for n in passes
        )


def _compared(runs: Iterable[Run]) -> tuple[list[list[Any]], int]:
    """In what runs, and their counterfactuals, are alike or not; and up to where they may share:
    where they are read each is by itself."""
    rows: list[list[Any]] = []
    limits = []
    for run in runs:
        own = run.ids.tolist()
        twin = None if run.corrupt is None else run.corrupt.tolist()
        rows.append(own if twin is None else [*zip(own, twin, strict=True)])
        limits.append(run.start)
    return rows, min(limits)


def room(rows: int, length: int, begin: int = 0) -> int:
    """How many tokens rows take in a pass that begins there, keys and values before it too."""
    return rows * max(length - begin, length // KEYS)


def worth_while(length: int) -> float:
    """Which part of their tokens a beginning must save rows of this length."""
    return _LATE if length <= fused.SHORT else _LATE_IF_LONG


def _by_beginning(
    begins: Sequence[int], lengths: Sequence[int], n_rows: Sequence[int], masks: int, overhead: int
) -> list[tuple[int, list[int]]]:
    """Where each group begins, and its members: the grouping with the fewest tokens to run, a group
    by itself costing as much as `overhead` tokens.

    >>> _by_beginning([2, 9, 8], [10, 10, 10], [1, 1, 1], masks=50, overhead=100)
    [(2, [0]), (8, [2, 1])]
    """
    members: dict[int, list[int]] = {step: [] for step in sorted(set(begins))}
    for number, begin in enumerate(begins):
        members[begin].append(number)
    steps = list(members)
    # Rows and tokens of the first so many steps.
    rows = [0, *accumulate(sum(n_rows[n] for n in members[step]) for step in steps)]
    whole = [0, *accumulate(sum(n_rows[n] * lengths[n] for n in members[step]) for step in steps)]
    # The cheapest way to cut the first so many steps into groups: its cost, where its last begins.
    best = [(0, 0)]
    for stop in range(1, len(steps) + 1):
        ways = []
        for start in range(stop):
            left = whole[stop] - whole[start] - steps[start] * (rows[stop] - rows[start])
            ways.append((best[start][0] + masks * left + overhead, start))
        best.append(min(ways))
    groups: list[tuple[int, list[int]]] = []
    stop = len(steps)
    while stop:
        start = best[stop][1]
        groups.append((steps[start], [n for step in steps[start:stop] for n in members[step]]))
        stop = start
    return groups[::-1]


def by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Numbers of similar lengths, each chunk of at most so many tokens when padded.

    >>> list(by_length([9, 2, 8, 3], tokens=18))
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    return _cut(order, lengths, tokens, [1] * len(lengths))


def _cut(
    order: Sequence[int], lengths: Sequence[int], tokens: int, rows: Sequence[int]
) -> Iterator[list[int]]:
    """Numbers in this order, each standing for so many rows."""
    chunk: list[int] = []
    wide = longest = 0
    for number in order:
        longest = max(longest, lengths[number])
        if chunk and (wide + rows[number]) * longest > tokens:
            yield chunk
            chunk, wide, longest = [], 0, lengths[number]
        chunk.append(number)
        wide += rows[number]
    if chunk:
        yield chunk
