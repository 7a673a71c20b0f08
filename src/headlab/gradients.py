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

from headlab.batches import Batch, Flight, encode_all
from headlab.budgets import GRAPH, LARGEST, find_budget, start_in_tokens
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
    shared, own = fixed_reference(reference)
    encoded = encode_all(model, examples, measure, counterfactual=own)
    require_lengths(encoded, shared)
    wide = torch.promote_types(model.dtype, torch.float32)
    n_masks, n = gates.n_masks, len(examples)
    values = torch.full((n_masks, n), torch.nan, dtype=wide)
    gradient = torch.full((n_masks, n, model.n_layers, model.n_heads), torch.nan, dtype=wide)

    def put(masks: Tensor, indices: list[int], *flights: Flight[Tensor]) -> None:
        where = masks[:, None], torch.tensor(indices)[None]
        values[where], gradient[where] = (each.land() for each in flights)
        if not gradient[where].isfinite().all():
            raise HeadlabError(f"slopes of {model.name} are not finite; take a wider dtype")
        if progress is not None:
            progress(len(masks) * len(indices))

    with _frozen(model), gpu_kernels(model), short_rows_behind_beginnings():
        tokens = (budget or min(find_budget(model), LARGEST)) // GRAPH  # in a pass
        forms = model.restart
        late = forms is not None and forms.begins_late
        begins = first_changes(encoded, gates.values, own) if late else None
        sharing = None
        if forms is not None and forms.shares:  # each example has slopes of its own
            start = start_in_tokens(model, there_and_back=True)
            sharing = Sharing(start, tokens, across=False)
        for family in families(encoded, tokens, n_masks, begins, sharing):
            (chunk,) = family.chunks
            indices, begin = chunk.examples, chunk.begin
            batch = Batch(model, [encoded[index] for index in indices])
            reference = (batch.reference() if shared is None else shared).part(slice(begin, None))
            passed = NOTHING
            if measure.needs_kl or begin:
                with torch.no_grad():
                    places = batch.rows, batch.positions
                    passed = clean_pass(model, batch.tokens, [], *places, begin)
            clean = passed.logits.log_softmax(-1, dtype=wide) if measure.needs_kl else None
            stretch = Stretch.of(batch, range(len(indices)), passed, reference, begin)
            ahead = None if family.alike is None else Ahead([stretch], family.alike)
            room = stretch.room if ahead is None else ahead.rests[0].room + ahead.room
            passes = -(-n_masks // max(1, tokens // room))
            launched: tuple[Any, ...] = ()  # the pass before, read once the next is on its way
            for masks in torch.arange(n_masks).tensor_split(passes):  # all about as large
                at = gates.values[masks, :, :, :, 0].detach().to(wide)
                at = at.expand(-1, n, -1, -1)[:, indices]  # [mask, example, layer, head]
                found, slope = _slopes(model, batch, stretch, ahead, at, clean, measure)
                if launched:  # it has run by now
                    put(*launched)
                launched = masks, indices, *(Flight(each, each.device) for each in (found, slope))
            put(*launched)
    return Gradients(values, gradient, measure, list(examples))


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
