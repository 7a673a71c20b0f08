"""Examples as rows of tokens on the device, ready to be drawn from thousands of times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headlab.alike import Alike, ways_to_share
from headlab.batches import encode_all
from headlab.chunks import KEYS, worth_while
from headlab.examples import Example
from headlab.measures import find_measure
from headlab.tokens import Tokens

if TYPE_CHECKING:
    from headlab.model import Model


@dataclass(frozen=True)
class Drawn:
    """Some rows in one pass, and where their targets are read."""

    tokens: Tokens  # [row, position]
    numbers: Tensor  # [row], which of the rows asked for each is
    rows: Tensor  # [read]
    positions: Tensor  # [read]
    targets: Tensor  # [read], token ids
    lengths: Tensor  # [row], tokens of its target


@dataclass(frozen=True)
class Begins:
    """What rows of each fit begin with."""

    tokens: Tokens  # [pair of a fit and a beginning, position]
    fits: Tensor  # [pair]
    of: Tensor  # of each of the rows asked for, its pair


@dataclass(frozen=True)
class Block:
    """Rows that share what they begin with, or do not."""

    members: np.ndarray  # which of the rows asked for
    tokens: int  # that a pass over them may have
    begins: Begins | None = None

    @property
    def begin(self) -> int:
        """The position from where on each runs by itself."""
        return 0 if self.begins is None else self.begins.tokens.ids.shape[1]


class Rows:
    """The prompts and targets of examples: only the target of each is read. In batches of so many,
    rows that begin alike may share that."""

    def __init__(self, model: Model, examples: Sequence[Example], batch: int):
        encoded = encode_all(model, list(examples), find_measure("log-prob"), counterfactual=False)
        runs = [each.sequences[0] for each in encoded]
        targets = [[read.token for read in each.reads[0]] for each in encoded]
        self.lengths = np.array([len(run.ids) for run in runs])  # of the whole run
        self.starts = np.array([run.start for run in runs])  # where the target's first is read
        self.n_targets = np.array([len(target) for target in targets])
        self._device = model.device
        ids = torch.zeros(len(runs), int(self.lengths.max()), dtype=torch.long)
        wanted = torch.zeros(len(runs), int(self.n_targets.max()), dtype=torch.long)
        for number, (run, target) in enumerate(zip(runs, targets, strict=True)):
            ids[number, : len(run.ids)] = run.ids
            wanted[number, : len(target)] = torch.tensor(target)
        self._ids, self._wanted = ids.to(self._device), wanted.to(self._device)
        self.fingerprints = [example.fingerprint for example in examples]
        self.alike: Alike | None = None
        if model.restart is not None and model.restart.shares:
            ways = ways_to_share([run.ids.tolist() for run in runs], int(self.starts.min()))
            self.alike = max(ways, key=partial(_saved, batch), default=None)
        self._groups = np.array([] if self.alike is None else self.alike.groups)

    def __len__(self) -> int:
        return len(self.lengths)

    def blocks(self, numbers: np.ndarray, batch: int, tokens: int, start: int) -> Iterator[Block]:
        """The rows of these numbers, batch by batch, all together; or where they share what they
        begin with and that saves more than it costs, as many at a time as have room for that."""
        whole = Block(np.arange(len(numbers)), tokens)
        if self.alike is None:
            yield whole
            return
        fits = np.arange(len(numbers)) // batch
        length, firsts = self.alike.length, np.array(self.alike.firsts)
        pairs, of = np.unique(fits * len(firsts) + self._groups[numbers], return_inverse=True)
        total = int(self.lengths[numbers].sum())
        shared = total - length * (len(numbers) - len(pairs))
        n_blocks = min(len(pairs), -(-shared // tokens))  # a pass ahead of each, and one behind it
        passes = 2 * n_blocks - -(-total // tokens)  # more than all together take
        if total - shared - start * passes < worth_while(int(self.lengths.max())) * total:
            yield whole
            return
        for some in np.array_split(np.arange(len(pairs)), n_blocks):
            own, ran = pairs[some], len(some) * length
            ids = self._ids[self._to(firsts[own % len(firsts)]), :length]
            tokens_of_pairs = Tokens(ids, torch.ones_like(ids, dtype=torch.bool), right=True)
            yield Block(
                np.flatnonzero((of >= some[0]) & (of <= some[-1])),
                max(1, tokens - ran),
                Begins(tokens_of_pairs, self._to(own // len(firsts)), self._to(of - some[0])),
            )

    def draw(
        self,
        numbers: np.ndarray,
        tokens: int,
        start: int,
        members: np.ndarray | None = None,
        begin: int = 0,
    ) -> Iterator[Drawn]:
        """The rows of these numbers, or some of them, in passes of at most so many tokens, rows of
        like length together. To start a pass costs as much as `start` tokens: so much padding is
        borne. Of each row what stands before `begin` is not run."""
        members = np.arange(len(numbers)) if members is None else members
        order = members[np.argsort(-self.lengths[numbers[members]], kind="stable")]
        lengths = self.lengths[numbers[order]]
        run = np.maximum(lengths - begin, lengths // KEYS)
        for first, last in _passes(run, tokens, start):
            yield self._pass(numbers, order[first:last], int(lengths[first]))

    def _pass(self, numbers: np.ndarray, order: np.ndarray, length: int) -> Drawn:
        own = numbers[order]
        picked = self._to(own)
        counts = self.n_targets[own]
        rows = np.repeat(np.arange(len(own)), counts)
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        mask = np.arange(length) < self.lengths[own][:, None]
        read_rows, read_steps = self._to(rows), self._to(steps)
        return Drawn(
            Tokens(self._ids[picked, :length], self._to(mask), right=True),
            self._to(order),
            read_rows,
            self._to(self.starts[own][rows] + steps),
            self._wanted[picked][read_rows, read_steps],
            self._to(counts),
        )

    def _to(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, non_blocking=True)


def _saved(batch: int, way: Alike) -> float:
    """How many tokens a batch need not run, on average."""
    shares = np.bincount(way.groups) / len(way.groups)
    groups = (1 - (1 - shares) ** batch).sum()  # in a batch
    return float(way.length * (batch - groups))


def _passes(lengths: np.ndarray, tokens: int, start: int) -> Iterator[tuple[int, int]]:
    """Where passes begin and end, of rows that are sorted, longest first.

    >>> list(_passes(np.array([9, 9, 3, 3, 3, 2]), tokens=100, start=10))
    [(0, 2), (2, 6)]
    """
    first = 0
    while first < len(lengths):
        longest = int(lengths[first])
        last = min(len(lengths), first + max(1, tokens // longest))
        while True:  # cut off what saves the most padding, while it saves more than a pass costs
            saved = (longest - lengths[first:last]) * np.arange(last - first, 0, -1)
            best = int(saved.argmax())
            if saved[best] <= start:
                break
            last = first + best
        yield first, last
        first = last


def order_of(n: int, batch: int, steps: range, key: Sequence[int]) -> np.ndarray:
    """Which examples each update takes, [update, batch]: epochs in orders of their own, drawn from
    `key` alone. The same whatever else runs beside, and wherever a fit goes on."""
    first, last = steps.start * batch, steps.stop * batch
    epochs = range(first // n, -(-last // n))
    drawn = [np.random.default_rng([*key, epoch]).permutation(n) for epoch in epochs]
    flat = np.concatenate(drawn) if drawn else np.zeros(0, dtype=int)
    skip = first - epochs.start * n
    return flat[skip : skip + last - first].reshape(len(steps), batch)
