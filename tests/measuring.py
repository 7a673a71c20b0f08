"""Examples, masks and references for tests of what is measured."""

from __future__ import annotations

import torch

from headlab import Model, mean_reference
from headlab.examples import Example

EXAMPLES = [
    Example("the cat", " sat", "the apple", wrong=(" on", " the"), id="short"),
    Example("the cat gave john the", " apple", "the mat gave mary the", wrong=(" mat",), id="long"),
    Example("the mat, the", " cat sat on", "the cat, the", wrong=(" mat", " apple the"), id="many"),
]


def random_masks(n: int, seed: int = 0) -> torch.Tensor:
    """Values 0, 1 and between; some masks begin high up, one is all ones."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(n, 3, 4, generator=generator)
    values = torch.where(values < 0.3, 0.0, torch.where(values > 0.6, 1.0, values))
    values[0] = 1
    values[1, :2] = 1
    values[2, 0] = 1
    return values


def references(model: Model) -> dict:
    return {
        "zero": "zero",
        "mean": mean_reference(model, ["the cat sat on the mat", "the apple"]),
        "counterfactual": "counterfactual",
    }
