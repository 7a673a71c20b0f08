"""Every mask on every example: `measure(model, examples, gates, measure)` -> [mask, example].

A mask changes nothing below the first layer where one of its gates is not 1. So one clean pass
keeps what later passes start from: each needed layer's input and its heads' outputs. Then masks run
together, as many as fit, from the first layer that one of them touches; its attention, which they
share, is not computed again, and those that begin in a later layer join the pass there. Positions
before which no mask changes anything, as where an example and its counterfactual begin alike, are
not run again either. The vocabulary is projected to only where an answer is read.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

import torch
from torch import Tensor

from headlab.alike import Alike
from headlab.batches import Batch, Flight, Readings, encode_all
from headlab.budgets import find_budget, make_room, on_gpu, room_for_logits, start_in_tokens
from headlab.chunks import Chunk, Family, Sharing, families, first_changes
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import ZERO, Gates, Reference
from headlab.measures import Encoded, Measure, find_measure
from headlab.restart import clean_pass
from headlab.sdpa import short_rows_behind_beginnings
from headlab.standins import gpu_kernels
from headlab.stretches import Ahead, Stretch
from headlab.tokens import Beginning

if TYPE_CHECKING:
    from headlab.model import Model

Progress = Callable[[int], None]  # called with the number of (mask, example) pairs just done
ReferenceLike = Reference | Literal["zero", "counterfactual"]

_NOWHERE = -1  # the first layer of a mask whose gates are all 1
_STORED_BYTES, _STORED_ON_CPU = 4 * 2**30, 2**30  # of what is kept for restarts


@dataclass(frozen=True)
class Measured:
    """A measure of every mask on every example, and how it was computed."""

    values: Tensor  # [mask, example], float32 or wider, on the CPU
    clean: Tensor  # [example], without gates
    measure: Measure
    examples: list[Example]
    budget: int  # tokens in a pass
    backed_off: bool  # memory ran out, and the budget was halved
    restarted: bool  # False: every pass ran from the bottom

    @property
    def change(self) -> Tensor:
        """How far each mask moves the measure: [mask, example]."""
        return self.values - self.clean


def measure(
    model: Model,
    examples: Sequence[Example],
    gates: Gates | Tensor,
    measure: str | Measure = "log-prob",
    reference: ReferenceLike = ZERO,
    *,
    budget: int | None = None,
    restart: bool = True,
    progress: Progress | None = None,
) -> Measured:
    """Run every mask on every example and read the measure off.

    `reference` is zero, a fixed `Reference` (a mean), or "counterfactual": each example's own.
    `budget` is the number of tokens in a pass, found automatically if not given. `restart=False`
    runs every pass from the bottom and the first token: the same numbers, more slowly.

    >>> table = headlab.measure(model, examples, Gates.each_head(model))      # doctest: +SKIP
    >>> table.values.shape                                                    # doctest: +SKIP
    torch.Size([270, 16])
    """
    gates = gates if isinstance(gates, Gates) else Gates(gates)
    if restart and not model.restartable:
        _tell_once(model)
        restart = False
    with torch.no_grad(), gpu_kernels(model), short_rows_behind_beginnings():
        sweep = _Sweep(
            model, examples, gates, find_measure(measure), reference, budget, restart, progress
        )
        sweep.run()
    return Measured(
        sweep.values,
        sweep.clean,
        sweep.measure,
        list(examples),
        sweep.budget,
        sweep.backed_off,
        restart,
    )


@dataclass(frozen=True)
class _Work:
    """A chunk that is being measured."""

    examples: list[int]
    batch: Batch
    stretch: Stretch
    compared: Tensor | None  # log-probs without gates
    untouched: Flight[Readings]  # without gates


class _Sweep:
    """The state of one call of `measure`: the table being filled and the current budget."""

    def __init__(
        self,
        model: Model,
        examples: Sequence[Example],
        gates: Gates,
        measure: Measure,
        reference: ReferenceLike,
        budget: int | None,
        restart: bool,
        progress: Progress | None,
    ):
        self.model, self.measure, self.restart = model, measure, restart
        self.reference, own = fixed_reference(reference)
        self.encoded = encode_all(model, examples, measure, counterfactual=own)
        longest = max(each.length for each in self.encoded)
        _require_fitting(model, gates, examples, longest)
        require_lengths(self.encoded, self.reference)
        self.budget = budget or find_budget(model)
        self.backed_off = False
        wide = torch.promote_types(model.dtype, torch.float32)
        self.values = torch.full((gates.n_masks, len(examples)), torch.nan, dtype=wide)
        self.clean = torch.full((len(examples),), torch.nan, dtype=wide)
        self._progress = progress
        # Masks in the order of where they begin: those that run together stand together.
        values = gates.values.cpu()
        touched = _touched_layers(values)
        firsts, self.order = _first_layers(touched).sort(stable=True)
        sorted_already = torch.equal(self.order, torch.arange(len(self.order)))
        self.gates = values if sorted_already else values[self.order]
        self.touched = touched[self.order]
        self.firsts: list[int] = firsts.tolist()
        self.whole = self.firsts.count(_NOWHERE)  # nothing is gated: the clean pass is the answer
        forms = model.restart
        late = restart and forms is not None and forms.begins_late
        self.begins = first_changes(self.encoded, values, own) if late else None
        across = gates.values.shape[1] == 1  # the same gates for all examples
        shares = restart and forms is not None and forms.shares
        self.sharing = Sharing(start_in_tokens(model), self._largest, across) if shares else None

    def run(self) -> None:
        tokens = min(self.budget, self._largest)
        masks = len(self.firsts) - self.whole
        for family in families(self.encoded, tokens, masks, self.begins, self.sharing):
            self._run_family(family)

    @property
    def _largest(self) -> int:
        """Tokens whose clean inputs and outputs there is room for."""
        return max(1, self._stored // self._stored_per_token)

    @property
    def _stored(self) -> int:
        return _STORED_BYTES if on_gpu(self.model) else _STORED_ON_CPU

    @property
    def _stored_per_token(self) -> int:
        """Bytes kept for a restart at every layer: its input, its z, the reference's z; or keys and
        values, which are hardly wider. And log-probs, where masks are compared with them."""
        hidden = self.model.hf.get_input_embeddings().weight.shape[1]
        width = self.model.n_heads * self.model.head_width
        kept = self.model.n_layers * (hidden + 2 * width) * self.model.dtype.itemsize
        if self.measure.needs_kl:
            runs = [run for each in self.encoded for run in each.sequences]
            share = sum(run.n_read for run in runs) / sum(len(run.ids) for run in runs)
            kept += math.ceil(share * self.model.vocabulary * self.clean.dtype.itemsize)
        return kept

    @property
    def _kept_per_token(self) -> int:
        """Bytes of its keys and values."""
        width = self.model.seam.kv_heads * self.model.head_width
        return self.model.n_layers * 2 * width * self.model.dtype.itemsize

    def _run_family(self, family: Family) -> None:
        if family.alike is not None:
            try:
                self._measure_family(family.chunks, family.alike)
                return
            except torch.OutOfMemoryError:
                self._back_off()
        for chunk in family.chunks:
            self._run_chunk(chunk)

    def _run_chunk(self, chunk: Chunk) -> None:
        try:
            self._measure_chunk(chunk)
            return
        except torch.OutOfMemoryError:
            self._back_off()
        if len(chunk.examples) == 1:
            raise HeadlabError(
                f"{self.encoded[chunk.examples[0]].example.name} does not fit into memory, even "
                "alone with one mask"
            )
        for half in chunk.halves():
            self._run_chunk(half)

    def _back_off(self) -> None:
        self.budget = max(1, self.budget // 2)
        self.backed_off = True
        make_room(self.model)

    def _measure_chunk(self, chunk: Chunk) -> None:
        work = self._work(chunk)
        self._run_masks(work, range(self.whole, len(self.firsts)))
        self._finish(work)

    def _measure_family(self, chunks: list[Chunk], alike: Alike) -> None:
        """What rows begin with, for as many masks as fit, then the rows under these masks."""
        works = [self._work(chunk) for chunk in chunks]
        ahead = Ahead([work.stretch for work in works], alike)
        masks = range(self.whole, len(self.firsts))
        while masks:
            room = self._kept_per_token * ahead.kept
            n = max(1, min(self.budget // ahead.room, self._stored // room))
            begun = masks[: min(n, self._together(masks))]
            ahead.run(begun, self._pass)
            for number, work in enumerate(works):
                rest = dataclasses.replace(work, stretch=ahead.rests[number])
                self._run_masks(rest, begun, partial(ahead.of, number))
            masks = masks[len(begun) :]
        for work in works:
            self._finish(work)

    def _work(self, chunk: Chunk) -> _Work:
        batch = Batch(self.model, [self.encoded[index] for index in chunk.examples])
        starts = sorted(set(self.firsts) - {_NOWHERE}) if self.restart else []
        places = batch.rows, batch.positions
        clean = clean_pass(self.model, batch.tokens, starts, *places, chunk.begin)
        reference = batch.reference() if self.reference is None else self.reference
        reference = reference.part(slice(chunk.begin, None))
        compared = None
        if self.measure.needs_kl:
            compared = clean.logits.log_softmax(-1, dtype=self.clean.dtype)
        readings = batch.read(clean.logits[None], compared, self.measure)
        untouched = Flight(readings, clean.logits.device)
        clean = dataclasses.replace(clean, logits=clean.logits.new_empty(0))  # they are read
        stretch = Stretch.of(batch, chunk.examples, clean, reference, chunk.begin)
        return _Work(chunk.examples, batch, stretch, compared, untouched)

    def _run_masks(
        self, work: _Work, masks: range, begun: Callable[[range], Beginning | None] = lambda _: None
    ) -> None:
        batch = work.batch
        # A pass that runs while the next one is prepared: its masks, and what it reads.
        launched: tuple[range, Flight[Readings]] | None = None
        while masks:
            part = self._part(masks, work)
            try:
                logits = self._pass(work.stretch, part, begun(part))
                readings = batch.read(logits, work.compared, self.measure)
                following = part, Flight(readings, logits.device)
                del logits, readings  # the next pass needs the room
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self._back_off()
                continue
            if launched is not None:
                self._land(work, *launched)
            launched = following
            masks = masks[len(part) :]
        if launched is not None:
            self._land(work, *launched)

    def _land(self, work: _Work, masks: range, flight: Flight[Readings]) -> None:
        self._put(masks, work.examples, work.batch.values(flight.land(), self.measure))

    def _finish(self, work: _Work) -> None:
        """What no mask changes."""
        values = work.batch.values(work.untouched.land(), self.measure)[0]
        self.clean[work.examples] = values.to(self.clean.dtype)
        if self.whole:
            self._put(range(self.whole), work.examples, values.expand(self.whole, -1))

    def _part(self, masks: range, work: _Work) -> range:
        """As many of the masks as fit into a pass."""
        logits = 4 * len(work.batch.positions) * self.model.vocabulary
        n = min(self.budget // work.stretch.room, room_for_logits(self.model) // logits)
        return masks[: min(max(1, n), self._together(masks))]

    def _pass(
        self,
        stretch: Stretch,
        masks: range,
        beginning: Beginning | None = None,
        keeps: Beginning | None = None,
    ) -> Tensor:
        """Logits [mask, place, vocabulary]."""
        gates = self.gates[masks.start : masks.stop]
        layers = self.touched[masks.start : masks.stop].any(0).nonzero().flatten().tolist()
        starts = Counter(self.firsts[masks.start : masks.stop]) if self.restart else None
        return stretch.pass_(self.model, gates, layers, starts, beginning, keeps)

    def _together(self, masks: range) -> int:
        """How many of the masks may share a pass: those of one start where others may not join."""
        forms = self.model.restart
        if not self.restart or forms is None or forms.joins:
            return len(masks)
        first, *_ = ahead = self.firsts[masks.start : masks.stop]
        return ahead.count(first)

    def _put(self, masks: range, indices: list[int], values: Tensor) -> None:
        where = self.order[masks.start : masks.stop, None], torch.tensor(indices)[None]
        fresh = int(self.values[where].isnan().sum())
        self.values[where] = values.to(self.values.dtype)
        if self._progress is not None:
            self._progress(fresh)


def fixed_reference(reference: ReferenceLike) -> tuple[Reference | None, bool]:
    """The reference if it is one for all examples, and whether each example has its own."""
    if isinstance(reference, Reference):
        if reference.kind == "counterfactual":
            raise HeadlabError('give reference="counterfactual"; each example brings its own')
        return reference, False
    if reference == "zero":
        return ZERO, False
    if reference == "counterfactual":
        return None, True
    raise HeadlabError(f"the reference is zero, a mean, or counterfactual, not {reference!r}")


def require_lengths(encoded: list[Encoded], reference: Reference | None) -> None:
    """A reference of one value a position says nothing about examples of another length."""
    if reference is None or reference.values is None or reference.values.shape[2] == 1:
        return
    positions = reference.values.shape[2]
    for each in encoded:
        for sequence in each.sequences:
            if len(sequence.ids) != positions:
                raise HeadlabError(
                    f"a {reference.kind} reference of {positions} positions does not fit "
                    f"{each.example.name}, which runs over {len(sequence.ids)}"
                )


def _require_fitting(model: Model, gates: Gates, examples: Sequence[Example], longest: int) -> None:
    model.require_shape(gates)
    if gates.values.shape[1] not in (1, len(examples)):
        raise HeadlabError(
            f"gates for {gates.values.shape[1]} examples do not fit {len(examples)} examples"
        )
    if 1 < gates.values.shape[-1] < longest:
        raise HeadlabError(
            f"gates for {gates.values.shape[-1]} positions do not fit a pass over {longest} "
            "positions"
        )


def _touched_layers(gates: Tensor) -> Tensor:
    """[mask, layer], True where the mask has a gate that is not 1."""
    return (gates != 1).transpose(1, 2).flatten(2).any(-1)


def _first_layers(touched: Tensor) -> Tensor:
    """[mask], the first layer that each mask touches."""
    return touched.int().argmax(1).masked_fill(~touched.any(1), _NOWHERE)


_TOLD: WeakSet[Model] = WeakSet()


def _tell_once(model: Model) -> None:
    if model not in _TOLD:
        _TOLD.add(model)
        warnings.warn(
            f"{model.name} cannot be restarted at a layer (headlab check says why); "
            "every pass runs from the bottom, about twice as slowly",
            stacklevel=3,
        )
