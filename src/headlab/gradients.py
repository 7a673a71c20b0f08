"""The measure's gradient with respect to every gate, for every mask and example."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor

from headlab.alike import Alike
from headlab.batches import Batch, Flight, encode_all
from headlab.budgets import GRAPH, LARGEST, find_budget, make_room, start_in_tokens
from headlab.chunks import Sharing, families, first_changes
from headlab.engine import Progress, ReferenceLike, fixed_reference, require_lengths
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import AXES, ZERO, Gates
from headlab.measures import Measure, find_measure
from headlab.restart import NOTHING, clean_pass
from headlab.sdpa import short_rows_behind_beginnings
from headlab.standins import gpu_kernels
from headlab.stretches import Ahead, Stretch
from headlab.tokens import Beginning

if TYPE_CHECKING:
    from headlab.model import Model

NO_SLOPE = "A hard gate has no true gradient"  # said of sparse models
BY_PASSES = f"{NO_SLOPE}: rank heads of a sparse model by patching or ablation"
ALL_HEADS = f"{NO_SLOPE}, which may pick the wrong heads of a sparse model: run all of them"
_TOLD: WeakSet[Model] = WeakSet()


@dataclass(frozen=True)
class Gradients:
    """A measure and its gradient."""

    values: Tensor  # [mask, example]
    gradient: Tensor  # [mask, example, layer, head], float32 or wider
    measure: Measure
    examples: list[Example]


def warn_of_hard_gates(model: Model, advice: str) -> None:
    """Once for a model: gradients pass its hard gates by."""
    if model.sparse is not None and model not in _TOLD:
        _TOLD.add(model)
        warnings.warn(advice, stacklevel=3)


def gate_gradients(
    model: Model,
    examples: Sequence[Example],
    gates: Gates | Tensor,
    measure: str | Measure = "log-prob",
    reference: ReferenceLike = ZERO,
    *,
    budget: int | None = None,
    progress: Progress | None = None,
) -> Gradients:
    """∂measure/∂gate of every layer and head. Gates are in float32 whatever the weights are, and
    no gradient of a weight is computed.

    >>> gate_gradients(model, examples, Gates.ones(model)).gradient.shape          # doctest: +SKIP
    torch.Size([1, 16, 30, 9])
    """
    gates = gates if isinstance(gates, Gates) else Gates(gates)
    measure = find_measure(measure)
    if not measure.differentiable:
        raise HeadlabError(f"{measure.name} is a step function: it has no gradient")
    if gates.values.shape[-1] > 1:
        raise HeadlabError("gradients are of one gate per head; these gates differ by position")
    with _frozen(model), gpu_kernels(model), short_rows_behind_beginnings():
        work = _Attribution(model, examples, gates, measure, reference, budget, progress)
        work.run(range(len(examples)))
    return Gradients(work.values, work.gradient, measure, list(examples))


class _Attribution:
    """The state of one call: tables that are being filled, and the tokens of a pass."""

    def __init__(
        self,
        model: Model,
        examples: Sequence[Example],
        gates: Gates,
        measure: Measure,
        reference: ReferenceLike,
        budget: int | None,
        progress: Progress | None,
    ):
        self.model, self.gates, self.measure, self.progress = model, gates, measure, progress
        self.reference, own = fixed_reference(reference)
        self.encoded = encode_all(model, examples, measure, counterfactual=own)
        require_lengths(self.encoded, self.reference)
        found = budget or min(find_budget(model), LARGEST)  # more gained sweeps only, as tried
        self.tokens = max(1, found // GRAPH)  # in a pass
        self.tried = 0  # of them, in the largest pass of those that run
        self.smallest = False  # it is of one example under one mask
        forms = model.restart
        late = forms is not None and forms.begins_late
        self.begins = first_changes(self.encoded, gates.values, own) if late else None
        self.shares = forms is not None and forms.shares
        self.wide = torch.promote_types(model.dtype, torch.float32)
        shape = gates.n_masks, len(examples)
        self.values = torch.full(shape, torch.nan, dtype=self.wide)
        heads = model.n_layers, model.n_heads
        self.gradient = torch.full((*shape, *heads), torch.nan, dtype=self.wide)

    def run(self, members: Sequence[int]) -> None:
        """Some of the examples, by their numbers."""
        sharing, cut = None, self.tokens
        if self.shares:  # each example has slopes of its own
            start = start_in_tokens(self.model, there_and_back=True)
            sharing = Sharing(start, self.tokens, across=False)
        encoded = [self.encoded[member] for member in members]
        begins = None if self.begins is None else [self.begins[member] for member in members]
        for family in families(encoded, self.tokens, self.gates.n_masks, begins, sharing):
            (chunk,) = family.chunks
            own = [members[place] for place in chunk.examples]
            if self.tokens == cut:
                if self._fits(own, chunk.begin, family.alike):
                    continue
                self.tokens = max(1, min(self.tokens, self.tried) // 2)
                make_room(self.model)
            self.run(own)  # in smaller passes

    def _fits(self, members: list[int], begin: int, alike: Alike | None) -> bool:
        """Their slopes; False where memory has run out, and smaller passes may do."""
        try:
            self._measure(members, begin, alike)
            return True
        except torch.OutOfMemoryError:
            if not self.smallest:
                return False
            name = self.encoded[members[0]].example.name
        raise HeadlabError(f"the slopes of {name} do not fit into memory, even alone with one mask")

    def _measure(self, members: list[int], begin: int, alike: Alike | None) -> None:
        model, measure = self.model, self.measure
        self.tried, self.smallest = self.tokens, len(members) == 1
        batch = Batch(model, [self.encoded[member] for member in members])
        reference = batch.reference() if self.reference is None else self.reference
        reference = reference.part(slice(begin, None))
        passed = NOTHING
        if measure.needs_kl or begin:
            with torch.no_grad():
                places = batch.rows, batch.positions
                passed = clean_pass(model, batch.tokens, [], *places, begin)
        clean = passed.logits.log_softmax(-1, dtype=self.wide) if measure.needs_kl else None
        stretch = Stretch.of(batch, range(len(members)), passed, reference, begin)
        ahead = None if alike is None else Ahead([stretch], alike)
        room = stretch.room if ahead is None else ahead.rests[0].room + ahead.room
        n_masks = self.gates.n_masks
        passes = -(-n_masks // max(1, self.tokens // room))
        at_once = -(-n_masks // passes)
        # Examples are cut by whole lengths, of which `room` is a part where they begin late.
        self.tried = max(at_once * room, batch.tokens.ids.numel())
        self.smallest = self.smallest and at_once == 1
        launched: tuple[Any, ...] = ()  # the pass before, read once the next is on its way
        for masks in torch.arange(n_masks).tensor_split(passes):  # all about as large
            at = self.gates.values[masks, :, :, :, 0].detach().to(self.wide)
            at = at.expand(-1, len(self.encoded), -1, -1)[:, members]  # [mask, example, ...head]
            found, slope = _slopes(model, batch, stretch, ahead, at, clean, measure)
            if launched:  # it has run by now
                self._put(*launched)
            launched = masks, members, *(Flight(each, each.device) for each in (found, slope))
        self._put(*launched)

    def _put(self, masks: Tensor, members: list[int], *flights: Flight[Tensor]) -> None:
        where = masks[:, None], torch.tensor(members)[None]
        fresh = int(self.values[where].isnan().sum())  # others were there when memory ran out
        self.values[where], self.gradient[where] = (each.land() for each in flights)
        if not self.gradient[where].isfinite().all():
            raise HeadlabError(f"slopes of {self.model.name} are not finite; take a wider dtype")
        if self.progress is not None:
            self.progress(fresh)


def _slopes(
    model: Model,
    batch: Batch,
    stretch: Stretch,
    ahead: Ahead | None,
    at: Tensor,
    clean: Tensor | None,
    measure: Measure,
) -> tuple[Tensor, Tensor]:
    """The measure [mask, example] with gates `at` [mask, example, layer, head], and its slope."""
    masks = range(len(at))
    by_row: list[Tensor] = []  # gates of each pass, [mask, row, layer, head, 1]
    owners: list[int] = []  # the example of each of all rows

    def run(part: Stretch, _: range, *linked: Beginning | None, **keeps: Beginning) -> Tensor:
        there = Gates(at[:, part.owners, :, :, None], " ".join(AXES)).to(model.device)
        by_row.append(there.values.requires_grad_())
        owners.extend(part.owners)
        with model.gated(there, part.reference):
            return model.logits_at(*part.repeated(len(at), *linked, **keeps))

    with torch.enable_grad():
        if ahead is None:
            logits = run(stretch, masks)
        else:
            ahead.run(masks, run)
            logits = run(ahead.rests[0], masks, ahead.of(0, masks))
        logits = logits.view(len(at), len(batch.positions), -1)
        found = batch.values(batch.read(logits, clean, measure), measure)
        slopes = torch.autograd.grad(found.sum(), by_row, materialize_grads=True)
    whole = torch.zeros(at.shape, dtype=slopes[0].dtype, device=model.device)
    places = torch.tensor(owners, device=model.device)
    return found.detach(), whole.index_add_(1, places, torch.cat(slopes, 1)[..., 0])


@contextmanager
def _frozen(model: Model) -> Iterator[None]:
    """Within the block no weight learns."""
    learning = [weight for weight in model.hf.parameters() if weight.requires_grad]
    for weight in learning:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learning:
            weight.requires_grad_(True)
