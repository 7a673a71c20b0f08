"""What a proof says, and how numbers are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
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


def within_rounding(
    model: Model, proof: Proof, whole: Callable[[], Tensor], expected: Tensor, untouched: Tensor
) -> Proof:
    """The proof of a way that differs from the whole pass in no more than its roundings: through
    many layers they add up, in a coarse dtype to more than the tolerance. Allowed is then 1.5 times
    what other roundings of the heads' outputs change in the whole pass, and at most a quarter of
    what the gates change."""
    if proof.passed or proof.difference is None:
        return proof
    with rounded_otherwise(model):
        rounding = difference(expected, whole())
    allowed = min(1.5 * rounding, difference(expected, untouched) / 4)
    if not allowed > proof.tolerance:
        return proof
    return replace(proof, tolerance=allowed, note=f"other roundings change {rounding:.2g}")


@contextmanager
def rounded_otherwise(model: Model) -> Iterator[None]:
    """Within the block each number of z goes up or down by one rounding, at most."""

    def shake(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0]
        step = torch.finfo(z.dtype).eps / 2 * (2 * torch.rand(z.shape, generator=random) - 1)
        return (torch.addcmul(z.double(), z.double(), step.to(z.device)).to(z.dtype), *args[1:])

    random = torch.Generator().manual_seed(0)
    with ExitStack() as stack:
        for projection in model.seam.projections:
            stack.callback(projection.register_forward_pre_hook(shake).remove)
        yield


def worst_layer(proofs: Iterator[Proof]) -> Proof:
    """The proof whose difference exceeds its tolerance most, or else is largest."""

    def badness(proof: Proof) -> tuple[bool, float]:
        if proof.difference is None:
            return False, -1.0
        return not proof.passed, proof.difference

    return max(proofs, key=badness)
