"""From a model and examples to a score for every head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headlab import __version__
from headlab.engine import Progress, ReferenceLike, measure
from headlab.errors import HeadlabError
from headlab.examples import Example, name_examples
from headlab.gates import ZERO, Gates, Reference
from headlab.measures import Measure, find_measure
from headlab.noise import noise_floor
from headlab.scores import HeadScores

if TYPE_CHECKING:
    from headlab.model import Model


def ablate_each(
    model: Model,
    examples: Sequence[Example],
    measure_by: str | Measure | None = None,
    reference: ReferenceLike = ZERO,
    *,
    scale: float = 0.0,
    progress: Progress | None = None,
) -> HeadScores:
    """Every head switched off in turn, all others as they are; exact.

    >>> ablate_each(model, examples).order()[:3]                              # doctest: +SKIP
    [Head(layer=0, head=6), Head(layer=1, head=3), Head(layer=29, head=1)]
    """
    if scale == 1:
        raise HeadlabError("a gate of 1 changes nothing; give another scale")
    chosen = find_measure(measure_by or default_measure(examples))
    gates = Gates.each_head(model, scale)
    named = name_examples(examples)
    table = measure(model, named, gates, chosen, reference, progress=progress)
    values = table.change if chosen.is_distance else -table.change
    return HeadScores(
        model=model.name,
        method="ablate",
        measure=chosen.name,
        reference=reference.kind if isinstance(reference, Reference) else reference,
        examples=[example.id for example in named],
        values=values.view(model.n_layers, model.n_heads, -1),
        clean=table.clean,
        noise_floor=_noise(model, named, gates, chosen, reference),
        scale=scale,
        is_distance=chosen.is_distance,
        settings={
            "dtype": str(model.dtype).removeprefix("torch."),
            "bos": model.bos,
            "budget": table.budget,
            "headlab": __version__,
        },
    )


def default_measure(examples: Sequence[Example]) -> str:
    """The logit difference where every example has a wrong answer, else the target's log-prob."""
    return "logit-diff" if examples and all(each.wrong for each in examples) else "log-prob"


def _noise(
    model: Model,
    examples: Sequence[Example],
    gates: Gates,
    measure_by: Measure,
    reference: ReferenceLike,
) -> float | None:
    try:
        return noise_floor(model, examples, gates, measure_by, reference)
    except (HeadlabError, RuntimeError, ValueError):
        return None  # no room for a wider copy, or none can be made of quantised weights
