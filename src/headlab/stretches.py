"""A stretch of a batch: some rows over some positions, and what passes over them start from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.chunks import room
from headlab.gates import AXES, Gates, Reference
from headlab.restart import CleanPass, restarted
from headlab.tokens import Beginning, Tokens

if TYPE_CHECKING:
    from headlab.alike import Alike
    from headlab.batches import Batch
    from headlab.model import Model


@dataclass(frozen=True)
class Stretch:
    """All that passes under masks need, but for the masks."""

    tokens: Tokens  # of one mask, [row, position]; some may be run already
    owners: list[int]  # the example of each row
    rows: Tensor  # [place] where logits are wanted
    positions: Tensor  # [place], of the tokens
    clean: CleanPass  # of the positions that run
    reference: Reference  # likewise
    begin: int = 0  # the first of them

    @classmethod
    def of(
        cls,
        batch: Batch,
        examples: Sequence[int],
        clean: CleanPass,
        reference: Reference,
        begin: int,
    ) -> Stretch:
        """All of a batch, from where something changes on; its examples by their numbers."""
        owners = [examples[number] for number in batch.owners]
        places = batch.rows, batch.positions
        return cls(batch.tokens, owners, *places, clean, reference, begin)

    def first(self, rows: list[int], end: int) -> Stretch:
        """What these rows run up to there; of their logits one is computed and nothing read."""
        picked = torch.tensor(rows, device=self.rows.device)
        tokens = self.tokens.picked(picked)
        some = torch.zeros(1, dtype=torch.long, device=self.rows.device)
        ran = slice(0, end - self.begin)
        return replace(
            self,
            tokens=Tokens(tokens.ids[:, :end], tokens.mask[:, :end], right=True),
            owners=[self.owners[row] for row in rows],
            rows=some,
            positions=some + self.begin,
            clean=self.clean.part(ran, picked),
            reference=self.reference.part(ran, picked),
        )

    def rest(self, begin: int) -> Stretch:
        """What all rows run from there on."""
        left = slice(begin - self.begin, None)
        clean, reference = self.clean.part(left), self.reference.part(left)
        return replace(self, clean=clean, reference=reference, begin=begin)

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.tokens.ids.shape[1]

    @property
    def room(self) -> int:
        """How many tokens a mask takes in a pass."""
        rows, length = self.tokens.ids.shape
        return room(rows, length, self.begin)

    def repeated(
        self, masks: int, beginning: Beginning | None = None, keeps: Beginning | None = None
    ) -> tuple[Tokens, Tensor, Tensor]:
        """All rows once for every mask, and where logits are wanted: row = mask · rows + row."""
        tokens = self.tokens
        beginning = beginning or self.clean.beginning
        if beginning is not None:
            tokens = tokens.behind(beginning)
        if keeps is not None:
            tokens = tokens.keeping(keeps)
        shift = torch.arange(masks, device=self.rows.device) * len(tokens.ids)
        rows = (shift[:, None] + self.rows).flatten()
        return tokens.repeated(masks), rows, (self.positions - self.begin).repeat(masks)

    def pass_(
        self,
        model: Model,
        gates: Tensor,
        layers: Sequence[int],
        starts: Counter[int] | None,
        beginning: Beginning | None = None,
        keeps: Beginning | None = None,
    ) -> Tensor:
        """Logits [mask, place, vocabulary] under gates [mask, example|1, layer, head, position|1],
        which are 1 but in these layers.

        `starts` says how many masks begin in which layer, None that all run from the bottom. Rows
        follow a `beginning`, and leave for others what `keeps` wants.
        """
        if gates.shape[1] > 1:
            gates = gates[:, self.owners]
        if gates.shape[-1] > 1:
            gates = gates[..., self.begin : self.end]
        each = len(self.tokens.ids)
        with ExitStack() as stack:
            there = Gates(gates, " ".join(AXES)).to(model.device)
            stack.enter_context(model.gated(there, self.reference, layers, rows_of_a_mask=each))
            if starts is not None:
                stack.enter_context(restarted(model, starts, self.clean))
            logits = model.logits_at(*self.repeated(len(gates), beginning, keeps))
        return logits.view(len(gates), len(self.rows), -1)


def _joined(stretches: Sequence[Stretch]) -> Stretch:
    """The rows of all of them; they begin and end at the same positions."""
    one = stretches[0]
    if len(stretches) == 1:
        return one
    return replace(
        one,
        tokens=Tokens(
            torch.cat([each.tokens.ids for each in stretches]),
            torch.cat([each.tokens.mask for each in stretches]),
            right=True,
        ),
        owners=[owner for each in stretches for owner in each.owners],
        clean=CleanPass.joined([each.clean for each in stretches]),
        reference=Reference.joined([each.reference for each in stretches]),
    )


class Ahead:
    """What rows begin with alike: one row of each group runs it, for many masks at a time, ahead of
    the passes of all rows, which follow."""

    def __init__(self, stretches: Sequence[Stretch], alike: Alike):
        begin = stretches[0].begin
        ran = alike.length - begin
        self.rests: list[Stretch] = []  # what is left of each stretch
        self._groups: list[Tensor] = []
        firsts = []
        places, groups = list(alike.firsts), list(alike.groups)
        for each in stretches:
            n = len(each.tokens.ids)
            own = [place for place in places if place < n]
            if own:
                firsts.append(each.first(own, alike.length))
            self.rests.append(each.rest(alike.length))
            self._groups.append(torch.tensor(groups[:n], device=each.rows.device))
            places, groups = [place - n for place in places if place >= n], groups[n:]
        self._first = _joined(firsts)
        self.room = len(alike.firsts) * ran  # tokens that run for a mask
        self.kept = len(alike.firsts) * alike.length  # that leave their keys and values
        self._masks = range(0)  # whose beginnings are there
        self._beginning: Beginning | None = None

    def run(self, masks: range, run: Callable[..., Tensor]) -> None:
        """The beginnings of these masks, instead of those before."""
        self._beginning = None  # the room is needed
        beginning = Beginning(self._first.end, len(self._first.tokens.ids))
        run(self._first, masks, keeps=beginning)
        self._masks, self._beginning = masks, beginning

    def of(self, number: int, masks: range) -> Beginning:
        """For some of the masks, and the rows of the stretch of this number."""
        assert self._beginning is not None
        skipped = masks.start - self._masks.start
        return replace(self._beginning, of=self._groups[number], skipped=skipped)
