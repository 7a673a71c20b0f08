"""Every mask on every example: `measure(model, examples, gates, measure)` -> [mask, example].

A mask changes nothing below the first layer where one of its gates is not 1. So one clean pass
keeps what later passes start from: each needed layer's input and its heads' outputs. Then masks run
together, as many as fit, from the first layer that one of them touches; its attention, which they
share, is not computed again, and those that begin in a later layer join the pass there. Positions
before which no mask changes anything, as where an example and its counterfactual begin alike, are
not run again either. The vocabulary is projected to only where an answer is read.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

import torch
from torch import Tensor

from headlab.batches import (
    Batch,
    Chunk,
    Flight,
    Readings,
    chunks,
    encode_all,
    first_changes,
)
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import AXES, ZERO, Gates, Reference
from headlab.measures import Encoded, Measure, find_measure
from headlab.restart import CleanPass, clean_pass, restarted
from headlab.sdpa import short_rows_behind_beginnings
from headlab.standins import gpu_kernels
from headlab.tokens import Tokens

if TYPE_CHECKING:
    from headlab.model import Model

Progress = Callable[[int], None]  # called with the number of (mask, example) pairs just done
ReferenceLike = Reference | Literal["zero", "counterfactual"]

LARGEST_BUDGET = 32768  # tokens in a pass on a GPU: past this, larger matrices are no faster
CPU_BUDGET = 4096
_NOWHERE = -1  # the first layer of a mask whose gates are all 1
_STORED_BYTES = 4 * 2**30  # of clean inputs and head outputs kept for restarts
_LOGIT_BYTES = 2 * 2**30  # of logits in one pass, in float32, on a CPU
_LOGIT_SHARE = 32  # one in so many bytes of a GPU's memory


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
        forms = model.restart
        late = restart and forms is not None and forms.begins_late
        self.begins = first_changes(self.encoded, values, own) if late else None

    def run(self) -> None:
        largest = min(self.budget, _STORED_BYTES // self._stored_per_token)
        for chunk in chunks(self.encoded, largest, len(self.firsts), self.begins):
            self._run_chunk(chunk)

    @property
    def _stored_per_token(self) -> int:
        """Bytes kept for a restart at every layer: its input, its z, the reference's z; or keys and
        values, which are hardly wider."""
        hidden = self.model.hf.get_input_embeddings().weight.shape[1]
        width = self.model.n_heads * self.model.head_width
        return self.model.n_layers * (hidden + 2 * width) * self.model.dtype.itemsize

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
        self.model.back_offs += 1
        gc.collect()
        if _on_gpu(self.model):
            torch.cuda.empty_cache()

    def _measure_chunk(self, chunk: Chunk) -> None:
        indices, begin = chunk.examples, chunk.begin
        batch = Batch(self.model, [self.encoded[index] for index in indices])
        starts = sorted(set(self.firsts) - {_NOWHERE}) if self.restart else []
        clean = clean_pass(self.model, batch.tokens, starts, batch.rows, batch.positions, begin)
        reference = batch.reference() if self.reference is None else self.reference
        reference = reference.behind(begin)
        wide = self.clean.dtype
        compared = clean.logits.log_softmax(-1, dtype=wide) if self.measure.needs_kl else None
        readings = batch.read(clean.logits[None], compared, self.measure)
        untouched = Flight(readings, clean.logits.device)
        # A pass that runs while the next one is prepared: its masks, and what it reads.
        launched: tuple[range, Flight[Readings]] | None = None
        whole = self.firsts.count(_NOWHERE)  # nothing is gated: the clean pass is the answer
        masks = range(whole, len(self.firsts))
        while masks:
            part = self._part(masks, batch, begin)
            try:
                gates = self._gates_of(part, chunk, batch)
                logits = self._pass(batch, gates, part, clean, reference)
                readings = batch.read(logits, compared, self.measure)
                following = part, Flight(readings, logits.device)
                del logits, readings  # the next pass needs the room
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self._back_off()
                continue
            if launched is not None:
                self._put(launched[0], indices, batch.values(launched[1].land(), self.measure))
            launched = following
            masks = masks[len(part) :]
        if launched is not None:
            self._put(launched[0], indices, batch.values(launched[1].land(), self.measure))
        self.clean[indices] = batch.values(untouched.land(), self.measure)[0].to(wide)
        if whole:
            self._put(range(whole), indices, self.clean[indices].expand(whole, -1))

    def _part(self, masks: range, batch: Batch, begin: int) -> range:
        """As many of the masks as fit into a pass, of one start where others may not join."""
        logits = 4 * len(batch.positions) * self.model.vocabulary
        room = _room_for_logits(self.model)
        n = max(1, min(self.budget // batch.room(begin), room // logits))
        forms = self.model.restart
        if self.restart and forms is not None and not forms.joins:
            ahead = self.firsts[masks.start :]
            n = min(n, ahead.count(ahead[0]))
        return masks[:n]

    def _gates_of(self, masks: range, chunk: Chunk, batch: Batch) -> Gates:
        """Some masks on this batch: [mask, sequence|1, layer, head, position|1]."""
        values = self.gates[masks.start : masks.stop]
        if values.shape[1] > 1:
            values = values[:, chunk.examples][:, batch.owners]
        if values.shape[-1] > 1:
            values = values[..., chunk.begin : batch.tokens.ids.shape[1]]
        return Gates(values, " ".join(AXES))

    def _layers_of(self, masks: range) -> list[int]:
        """The layers that any of the masks touches."""
        return self.touched[masks.start : masks.stop].any(0).nonzero().flatten().tolist()

    def _pass(
        self, batch: Batch, gates: Gates, masks: range, clean: CleanPass, reference: Reference
    ) -> Tensor:
        """Logits [mask, place, vocabulary]."""
        n = gates.n_masks
        with ExitStack() as stack:
            there = gates.to(self.model.device)
            gated = self.model.gated(
                there, reference, self._layers_of(masks), rows_of_a_mask=len(batch.tokens.ids)
            )
            stack.enter_context(gated)
            if self.restart:
                starts = Counter(self.firsts[masks.start : masks.stop])
                stack.enter_context(restarted(self.model, starts, clean))
            logits = self.model.logits_at(*batch.repeated(n, clean.beginning))
        return logits.view(n, len(batch.positions), -1)

    def _put(self, masks: range, indices: list[int], values: Tensor) -> None:
        where = self.order[masks.start : masks.stop, None], torch.tensor(indices)[None]
        fresh = int(self.values[where].isnan().sum())
        self.values[where] = values.to(self.values.dtype)
        if self._progress is not None:
            self._progress(fresh)


def find_budget(model: Model) -> int:
    """How many tokens a pass may have: a power of two that fits twice into what is free.

    Found once for a model and kept there, so that its later runs are cut into the same passes.
    """
    if model.budget is None:
        model.budget = _probe_budget(model) if _on_gpu(model) else CPU_BUDGET
    return model.budget


def _room_for_logits(model: Model) -> int:
    """Bytes: of the memory there is, not of what is free, for the same passes in every run."""
    if not _on_gpu(model):
        return _LOGIT_BYTES
    return torch.cuda.get_device_properties(model.device).total_memory // _LOGIT_SHARE


def _on_gpu(model: Model) -> bool:
    return model.device.type == "cuda"


def _probe_budget(model: Model) -> int:
    tokens = Tokens(
        torch.zeros(16, 64, dtype=torch.long, device=model.device),
        torch.ones(16, 64, dtype=torch.bool, device=model.device),
    )
    zeros = torch.zeros(1, dtype=torch.long)
    model.logits_at(tokens, zeros, zeros)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    model.logits_at(tokens, zeros, zeros)
    per_token = max(1, torch.cuda.max_memory_allocated(model.device) - before) / tokens.ids.numel()
    free, _ = torch.cuda.mem_get_info(model.device)
    budget = 1024
    while budget < LARGEST_BUDGET and 2 * (2 * budget) * per_token < free:
        budget *= 2
    return budget


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
