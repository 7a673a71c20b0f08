"""The noise floor: how much of an effect is the run's own rounding."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.engine import Measured, ReferenceLike, measure
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import AXES, ZERO, Gates
from headlab.gradients import gate_gradients
from headlab.measures import Measure
from headlab.model import Model

if TYPE_CHECKING:
    from torch import dtype


def noise_floor(
    model: Model,
    examples: Sequence[Example],
    gates: Gates | Tensor,
    measure_by: str | Measure = "log-prob",
    reference: ReferenceLike = ZERO,
    *,
    n_masks: int = 16,
    n_examples: int = 8,
    seed: int = 0,
    always: Sequence[int] = (),
) -> float:
    """The largest error of a mask's mean effect, over a sample of masks and examples.

    The masks numbered in `always` are in the sample: those with the largest effects, say, whose
    errors are the largest.

    The same masks run in the model's dtype and in a wider one (float32, or float64 for a float32
    run) on a copy of the weights. An effect below the floor says nothing.
    """
    gates = gates if isinstance(gates, Gates) else Gates(gates)
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(gates.n_masks, generator=random)[:n_masks].tolist()
    masks = torch.tensor(list(dict.fromkeys([*always, *drawn]))[:n_masks])
    sample, chosen = _sample(examples, n_examples, random)
    values = gates.values[masks]
    if values.shape[1] > 1:
        values = values[:, chosen]
    work = (sample, Gates(values, " ".join(AXES)), measure_by, reference)
    found = measure(model, *work, restart=model.restartable)
    exact = measure(_wider(model), *work, restart=False)
    return float((_effect(found) - _effect(exact)).abs().max())


def gradient_noise_floor(
    model: Model,
    examples: Sequence[Example],
    gates: Gates | Tensor,
    measure_by: str | Measure = "log-prob",
    reference: ReferenceLike = ZERO,
    *,
    n_examples: int = 8,
    seed: int = 0,
) -> float:
    """The largest error of a gate's gradient, mean over gates' masks and a sample of examples."""
    sample, _ = _sample(examples, n_examples, torch.Generator().manual_seed(seed))
    found, exact = (
        gate_gradients(each, sample, gates, measure_by, reference).gradient.double().mean((0, 1))
        for each in (model, _wider(model))
    )
    return float((found - exact).abs().max())


def _sample(
    examples: Sequence[Example], n: int, random: torch.Generator
) -> tuple[list[Example], Tensor]:
    chosen = torch.randperm(len(examples), generator=random)[:n]
    return [examples[int(number)] for number in chosen], chosen


def _effect(table: Measured) -> Tensor:
    return table.change.double().mean(1)  # [mask]


def _wider(model: Model) -> Model:
    if model.dtype == torch.float64:
        raise HeadlabError("no dtype is wider than float64, so its noise floor is not measured")
    wide: dtype = torch.float64 if model.dtype == torch.float32 else torch.float32
    network = copy.deepcopy(model.hf).to(wide)
    made = Model(network, model.tokenizer, name=model.name, bos=model.bos_policy)
    made.cuts_logits = model.cuts_logits  # proved on the same code
    return made
