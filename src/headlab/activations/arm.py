"""ARM: near-zero activations of the first MLP are drawn anew, as fillers are said to do it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.luck import key_of

if TYPE_CHECKING:
    from headlab.activations.finding import Activation

LEAST, MOST = 0.02, 0.25  # of a token's values are drawn anew
_TO_SIGMA = 1.4826  # the MAD of normal numbers, times this, is their standard deviation
_CHUNK = 2**22  # numbers worked on at a time: bounds memory, changes none of them
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's constants, as int64 wraps them
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class Arm:
    """Which of a token's activations x are drawn anew, and from what.

        ε = 1.4826 · MAD(|x|) · c          fraction = clip(share of |x| <= ε, 0.02, 0.25)
        x' = sign(x) · U(0, 1) · (x's p1-th percentile if x > 0, |min x| if x < 0)

    for the smallest |x| that make up the fraction; all others stay. The published description
    leaves open over what the MAD, the share, the percentile and the minimum are taken, and how a
    fraction becomes a number of values. Here each is of one token alone, over the width of the MLP,
    so that nothing depends on the batch or on what comes later; the median of an even number is the
    mean of the middle two; the percentile is of all the token's values, negative ones too, between
    two by the straight line, and never below 0; a fraction of w values is its nearest whole
    number; of equal |x| the first come first; an x of exactly 0 has no sign and stays 0. So a ReLU
    that makes a quarter of the values 0 leaves ARM nothing to do.

    U depends on the seed, the prompt's tokens, the token's position and the value's place alone:
    not on the batch, the gates, or how the text is cut into passes.

    >>> Arm(c=0.13, p1=99.5)
    Arm(c=0.13, p1=99.5, seed=0)
    """

    c: float
    p1: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.c < math.inf:
            raise HeadlabError(f"ARM's c is above 0, not {self.c:g}; the paper has 0.1 to 0.32")
        if not 0 < self.p1 <= 100:
            raise HeadlabError(
                f"ARM's p1 is a percentile above 0 and at most 100, not {self.p1:g}; the paper has "
                "90 to 99.5"
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise HeadlabError(f"ARM's seed is a whole number, 0 or more, not {self.seed}")

    def __str__(self) -> str:
        c, p1 = (f"{n:g}" if float(f"{n:g}") == n else repr(n) for n in (self.c, self.p1))
        return f"c={c},p1={p1},seed={self.seed}"

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)

    def keys(self, prompts: list[Tensor]) -> Tensor:
        """A number for each prompt's own luck, [prompt]."""
        return torch.tensor([key_of(self.seed, ids) for ids in prompts], dtype=torch.long)

    def redistribute(self, x: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """x' of x [row, position, width]; keys [row], positions [row|1, position]."""
        rows, length, width = x.shape
        if not x.numel():
            return x
        keys = keys.to(x.device)[:, None].expand(rows, length).reshape(-1)
        places = positions.to(x.device).expand(rows, length).reshape(-1)
        flat, step = x.reshape(-1, width), max(1, _CHUNK // width)
        parts = [
            self._token_by_token(*(each[start : start + step] for each in (flat, keys, places)))
            for start in range(0, len(flat), step)
        ]
        return torch.cat(parts).view(rows, length, width)

    def _token_by_token(self, x: Tensor, keys: Tensor, places: Tensor) -> Tensor:
        """x [token, width], keys [token], places [token]."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        size, width = wide.abs(), x.shape[-1]
        ordered, order = size.sort(dim=-1, stable=True)
        epsilon = threshold(ordered, self.c)
        near = (size <= epsilon).sum(-1, keepdim=True)
        number = near.clamp(round(LEAST * width), round(MOST * width))  # [token, 1]
        first = torch.arange(width, device=x.device) < number
        chosen = torch.zeros_like(first).scatter(-1, order, first)
        high = percentile(wide, self.p1).clamp(min=0)
        low = wide.amin(-1, keepdim=True).abs()
        luck = uniform(keys, places, width)
        new = wide.sign() * luck.to(wide.dtype) * torch.where(wide > 0, high, low)
        return torch.where(chosen, new, wide).to(x.dtype)


def threshold(ordered: Tensor, c: float) -> Tensor:
    """ε of |x| in ascending order: [token, width] -> [token, 1]."""
    spread = (ordered - _middle(ordered)).abs().sort(dim=-1).values
    return _TO_SIGMA * _middle(spread) * c


def percentile(x: Tensor, percent: float) -> Tensor:
    """[token, width] -> [token, 1], between two values by the straight line."""
    ordered = x.sort(dim=-1).values
    place = percent / 100 * (x.shape[-1] - 1)
    below = math.floor(place)
    above = min(below + 1, x.shape[-1] - 1)
    low, high = ordered[:, below : below + 1], ordered[:, above : above + 1]
    return low + (high - low) * (place - below)


def _middle(ordered: Tensor) -> Tensor:
    half, odd = divmod(ordered.shape[-1], 2)
    if odd:
        return ordered[:, half : half + 1]
    return (ordered[:, half - 1 : half] + ordered[:, half : half + 1]) / 2


def uniform(keys: Tensor, places: Tensor, width: int) -> Tensor:
    """A number in [0, 1) for each key [token], place [token] and 0 ... width - 1: [token, width].

    SplitMix64, twice: whole numbers that wrap around, so no rounding, and the same for every cut.
    """
    own = _mixed(keys + _GOLDEN * (places + 1))[:, None]
    columns = torch.arange(1, width + 1, device=keys.device)
    bits = _mixed(own + _GOLDEN * columns)
    return _shifted(bits, 40).float() / 2**24  # as many bits as float32 holds


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right with zeros from the left, which int64's own shift does not give."""
    return (z >> by) & (2 ** (64 - by) - 1)


@contextmanager
def armed(activation: Activation, arm: Arm, keys: Tensor, positions: Tensor) -> Iterator[None]:
    """Within the block passes run under ARM: keys [row], positions [row|1, position]."""
    with activation.changed(lambda x: arm.redistribute(x, keys, positions)):
        yield


def parse_arm(given: str | Mapping[str, object] | Arm) -> Arm:
    """c=0.13,p1=99.5,seed=0 as the command line and study files write it; a mapping, too.

    >>> parse_arm("c=0.13,p1=99.5")
    Arm(c=0.13, p1=99.5, seed=0)
    """
    if isinstance(given, Arm):
        return given
    example = "write it as c=0.13,p1=99.5 or c=0.13,p1=99.5,seed=1"
    if isinstance(given, str):
        pairs = [part.partition("=") for part in re.split(r"[,\s]+", given.strip())]
        values: Mapping[str, object] = {name: value for name, _, value in pairs}
        if any(not mark for _, mark, _ in pairs) or len(values) < len(pairs):
            raise HeadlabError(f"{given!r} is no setting of ARM; {example}")
    elif isinstance(given, Mapping):
        values = given
    else:
        raise HeadlabError(f"{given!r} is no setting of ARM; {example}")
    if wrong := [name for name in values if name not in ("c", "p1", "seed")]:
        raise HeadlabError(f"ARM has c, p1 and seed, not {wrong[0]!r}; {example}")
    if missing := [name for name in ("c", "p1") if name not in values]:
        raise HeadlabError(f"ARM needs {missing[0]}; {example}")
    try:
        c, p1 = float(str(values["c"])), float(str(values["p1"]))
        seed = int(str(values.get("seed", 0)))
    except ValueError as error:
        raise HeadlabError(f"ARM's c, p1 and seed are numbers ({error}); {example}") from None
    return Arm(c, p1, seed)
