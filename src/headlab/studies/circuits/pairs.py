"""Pairs: a dense model, a sparse one made of it, and perhaps a dense twin of the same training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from headlab.studies.spec import as_list, as_path, is_stored

_SIGN = "sparsify.json"  # of a folder that headlab sparsify has written


@dataclass(frozen=True)
class Family:
    """A dense model and all that is compared with it."""

    dense: str
    sparse: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)

    @property
    def others(self) -> list[str]:
        return [*self.sparse, *self.twins]

    @property
    def models(self) -> list[str]:
        return [self.dense, *self.others]


def families(pairs: Sequence[Sequence[str]]) -> list[Family]:
    """The pairs by their dense models; sparse ones first, then twins, each once.

    >>> [each.models for each in families([["a", "b", "t"], ["a", "c", "t"]])]
    [['a', 'b', 'c', 't']]
    """
    sparse: dict[str, list[str]] = {}
    twins: dict[str, list[str]] = {}
    for dense, other, *twin in pairs:
        sparse.setdefault(dense, []).append(other)
        twins.setdefault(dense, []).extend(twin)
    return [
        Family(dense, _once(own), [twin for twin in _once(twins[dense]) if twin not in own])
        for dense, own in sparse.items()
    ]


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def split_pair(value: Any) -> Any:
    """'A:B' is a pair, 'A:B:C' one with a twin."""
    pair = value.split(":") if isinstance(value, str) else value
    if not isinstance(pair, (list, tuple)) or not 2 <= len(pair) <= 3:
        raise ValueError(
            "a pair is two models, written 'dense:sparse' in quotes, or three, "
            f"'dense:sparse:twin', not {value!r}"
        )
    return list(pair)


def expand_pairs(value: Any, info: ValidationInfo) -> Any:
    """With each sparsify folder a pair for every level in it; what is no pair is refused later."""
    pairs = as_list(value)
    if not isinstance(pairs, (list, tuple)) or is_stored(info):
        return pairs
    return [each for pair in pairs for each in _expanded(pair, info)]


def _expanded(value: Any, info: ValidationInfo) -> list[Any]:
    try:
        dense, sparse, *twin = split_pair(value)
        folder = as_path(sparse, info)
    except (ValueError, TypeError):  # said with its line when the pair itself is checked
        return [value]
    if _is_model(folder) or not ((folder / _SIGN).is_file() or _has_models(folder)):
        return [value]
    if not twin and _is_model(folder / "twin"):
        twin = [str(folder / "twin")]
    return [[dense, str(level), *twin] for level in _levels(folder)]


def _levels(folder: Path) -> list[Path]:
    """The sparse models of a sparsify folder, densest first; without levels the final one."""
    found = {path: _percent(path) for path in folder.glob("level-*") if _is_model(path)}
    shares = {path: share for path, share in found.items() if share is not None}
    levels = sorted(shares, key=lambda path: -shares[path])
    final = folder / "final"
    if not levels and not _is_model(final):
        raise ValueError(
            f"{folder} has neither a level (level-10, for example) nor a final model yet; headlab "
            "sparsify writes them as it goes"
        )
    return levels or [final]


def _has_models(folder: Path) -> bool:
    """As a training that is not over leaves them."""
    return any(_is_model(path) for path in folder.glob("level-*"))


def _percent(path: Path) -> float | None:
    try:
        return float(path.name.removeprefix("level-"))
    except ValueError:
        return None


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()
