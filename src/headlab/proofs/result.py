"""What a proof says, and how numbers are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.model import Model

# Largest allowed difference, relative to the largest number compared: some hundred roundings.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


@dataclass(frozen=True)
class Proof:
    """One claim, how far the numbers were from it, and how far they may be."""

    name: str
    claim: str
    difference: float | None  # the largest seen; None where it could not be measured
    tolerance: float
    layer: int | None = None  # where it was seen
    note: str = ""
    required: bool = True  # False: the model is still usable, something is switched off

    @property
    def passed(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance

    @property
    def refuses(self) -> bool:
        return self.required and self.difference is not None and not self.passed


@dataclass(frozen=True)
class Check:
    """All proofs of one model."""

    model: str
    proofs: list[Proof]

    @property
    def passed(self) -> bool:
        return not any(proof.refuses for proof in self.proofs)

    def require(self) -> Check:
        """Itself, or the first broken proof as an error."""
        for proof in self.proofs:
            if proof.refuses:
                where = "" if proof.layer is None else f" in layer {proof.layer}"
                note = f" ({proof.note})" if proof.note else ""
                raise HeadlabError(
                    f"{self.model} fails its check{where}: {proof.claim}, but the difference is "
                    f"{proof.difference:.3g} where {proof.tolerance:.3g} is allowed{note}"
                )
        return self

    def as_dict(self) -> dict[str, Any]:
        proofs = [{**asdict(proof), "passed": proof.passed} for proof in self.proofs]
        return {"model": self.model, "passed": self.passed, "proofs": proofs}


def difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    difference = (a.double() - b.to(a.device).double()).abs().max()
    return float("inf") if difference.isnan() else float(difference)


def compared(
    model: Model, name: str, claim: str, expected: Tensor, got: Tensor, layer: int | None = None
) -> Proof:
    scale = max(1.0, float(expected.abs().max()))
    tolerance = TOLERANCE.get(model.dtype, 5e-2) * scale
    return Proof(name, claim, difference(expected, got), tolerance, layer)


def worst_layer(proofs: Iterator[Proof]) -> Proof:
    """The proof whose difference exceeds its tolerance most, or else is largest."""

    def badness(proof: Proof) -> tuple[bool, float]:
        if proof.difference is None:
            return False, -1.0
        return not proof.passed, proof.difference

    return max(proofs, key=badness)
