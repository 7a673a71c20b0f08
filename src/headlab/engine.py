"""Every mask on every example: `measure(model, examples, gates, measure)` -> [mask, example].

A mask changes nothing below the first layer where one of its gates is not 1. So one clean pass
keeps what later passes start from: each needed layer's input and its heads' outputs. Then all masks
that begin in one layer run together, as many as fit, from that layer on; its attention, which they
share, is not computed again. The vocabulary is projected to only where an answer is read.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

import torch
from torch import Tensor

from headlab.batches import Batch, chunks, encode_all
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import AXES, ZERO, Gates, Reference
from headlab.measures import Measure, find_measure
from headlab.model import Tokens
from headlab.restart import CleanPass, clean_pass, restarted

if TYPE_CHECKING:
    from headlab.model import Model

Progress = Callable[[int], None]  # called with the number of (mask, example) pairs just done
ReferenceLike = Reference | Literal["zero", "counterfactual"]

_LARGEST_BUDGET = 32768  # tokens in a pass on a GPU: past this, larger matrices are no faster
_CPU_BUDGET = 4096
_STORED_BYTES = 4 * 2**30  # of clean inputs and head outputs kept for restarts
_LOGIT_BYTES = 2 * 2**30  # of logits in one pass, in float32


@dataclass(frozen=True)
class Measured:
    """A measure of every mask on every example, and how it was computed."""

    values: Tensor  # [mask, example], float32, on the CPU
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
    runs every pass from the bottom: the same numbers, more slowly.

    >>> table = headlab.measure(model, examples, Gates.each_head(model))      # doctest: +SKIP
    >>> table.values.shape                                                    # doctest: +SKIP
    torch.Size([270, 16])
    """
    gates = gates if isinstance(gates, Gates) else Gates(gates)
    if restart and not model.restartable:
        _tell_once(model)
        restart = False
    sweep = _Sweep(
        model, examples, gates, find_measure(measure), reference, budget, restart, progress
    )
    with torch.no_grad():
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
        self.model, self.gates, self.measure, self.restart = model, gates, measure, restart
        self.reference, own = fixed_reference(reference)
        self.encoded = encode_all(model, examples, measure, counterfactual=own)
        _require_fitting(gates, examples)
        self.budget = budget or find_budget(model)
        self.backed_off = False
        self.values = torch.full((gates.n_masks, len(examples)), torch.nan)
        self.clean = torch.full((len(examples),), torch.nan)
        self._progress = progress

    def run(self) -> None:
        largest = min(self.budget, _STORED_BYTES // self._stored_per_token)
        for indices in chunks(self.encoded, largest):
            self._run_chunk(indices)

    @property
    def _stored_per_token(self) -> int:
        """Bytes kept for a restart at every layer: its input, its z, the reference's z."""
        hidden = self.model.hf.get_input_embeddings().weight.shape[1]
        width = self.model.n_heads * self.model.head_width
        return self.model.n_layers * (hidden + 2 * width) * self.model.dtype.itemsize

    def _run_chunk(self, indices: list[int]) -> None:
        try:
            self._measure_chunk(indices)
            return
        except torch.OutOfMemoryError:
            self._back_off()
        if len(indices) == 1:
            raise HeadlabError(
                f"{self.encoded[indices[0]].example.name} does not fit into memory, even alone "
                "with one mask"
            )
        half = len(indices) // 2
        self._run_chunk(indices[:half])
        self._run_chunk(indices[half:])

    def _back_off(self) -> None:
        self.budget = max(1, self.budget // 2)
        self.backed_off = True
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _measure_chunk(self, indices: list[int]) -> None:
        batch = Batch(self.model, [self.encoded[index] for index in indices])
        gates = self._gates_of(indices, batch)
        firsts = _first_layers(gates)
        starts = sorted({layer for layer in firsts if layer is not None}) if self.restart else []
        clean = clean_pass(self.model, batch.tokens, starts, batch.rows, batch.positions)
        reference = batch.reference() if self.reference is None else self.reference
        clean_log_probs = clean.logits.float().log_softmax(-1)  # [read position, vocabulary]
        self.clean[indices] = batch.measure(clean_log_probs[None], clean_log_probs, self.measure)[0]
        for layer in dict.fromkeys(firsts):
            masks = [mask for mask, first in enumerate(firsts) if first == layer]
            if layer is None:  # nothing is gated: the clean pass is the answer
                self._put(masks, indices, self.clean[indices].expand(len(masks), -1))
                continue
            while masks:
                part = masks[: self._masks_in_a_pass(batch)]
                try:
                    log_probs = self._pass(batch, gates, part, layer, clean, reference)
                    values = batch.measure(log_probs, clean_log_probs, self.measure)
                except torch.OutOfMemoryError:
                    if len(part) == 1:
                        raise
                    self._back_off()
                    continue
                self._put(part, indices, values)
                masks = masks[len(part) :]

    def _masks_in_a_pass(self, batch: Batch) -> int:
        logits = 4 * len(batch.positions) * batch.vocabulary
        return max(1, min(self.budget // batch.tokens.ids.numel(), _LOGIT_BYTES // logits))

    def _gates_of(self, indices: list[int], batch: Batch) -> Tensor:
        """The gates of this batch: [mask, sequence|1, layer, head, position|1]."""
        values = self.gates.values
        if values.shape[1] > 1:
            values = values[:, indices][:, batch.owners]
        return values[..., : batch.tokens.ids.shape[1]]

    def _pass(
        self,
        batch: Batch,
        gates: Tensor,
        masks: list[int],
        first: int,
        clean: CleanPass,
        reference: Reference,
    ) -> Tensor:
        """Log-probs [mask, read position, vocabulary]."""
        part = Gates(gates[masks], " ".join(AXES))
        n = len(masks)
        with ExitStack() as stack:
            stack.enter_context(self.model.gated(part, reference, layers=_gated_layers(part)))
            if self.restart:
                stack.enter_context(restarted(self.model, first, clean, copies=n))
            logits = self.model.logits_at(*batch.repeated(n))
        return logits.float().log_softmax(-1).view(n, len(batch.positions), -1)

    def _put(self, masks: list[int], indices: list[int], values: Tensor) -> None:
        where = torch.tensor(masks)[:, None], torch.tensor(indices)[None]
        fresh = int(self.values[where].isnan().sum())
        self.values[where] = values.cpu()
        if self._progress is not None:
            self._progress(fresh)


def find_budget(model: Model) -> int:
    """How many tokens a pass may have: a power of two that fits twice into what is free."""
    if model.device.type != "cuda":
        return _CPU_BUDGET
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
    while budget < _LARGEST_BUDGET and 2 * (2 * budget) * per_token < free:
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


def _require_fitting(gates: Gates, examples: Sequence[Example]) -> None:
    if gates.values.shape[1] not in (1, len(examples)):
        raise HeadlabError(
            f"gates for {gates.values.shape[1]} examples do not fit {len(examples)} examples"
        )


def _first_layers(gates: Tensor) -> list[int | None]:
    """The first layer of each mask with a gate that is not 1; None where all are."""
    touched = (gates != 1).any(-1).any(-1).any(1)  # [mask, layer]
    first = touched.int().argmax(1).masked_fill(~touched.any(1), -1)
    return [None if layer < 0 else layer for layer in first.tolist()]


def _gated_layers(gates: Gates) -> list[int]:
    touched = (gates.values != 1).any(-1).any(-1).any(1).any(0)  # [layer]
    return touched.nonzero().flatten().tolist()


_TOLD: WeakSet[Model] = WeakSet()


def _tell_once(model: Model) -> None:
    if model not in _TOLD:
        _TOLD.add(model)
        warnings.warn(
            f"{model.name} cannot be restarted at a layer (headlab check says why); "
            "every pass runs from the bottom, about twice as slowly",
            stacklevel=3,
        )
