"""The files beside a ranking's scores: those of an earlier ranking would mislead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FIGURE = (".png", ".pdf", ".csv")
_GATES = ("-gates.safetensors", "-gates.parquet")
_PROBE = tuple(f"-probe{ending}" for ending in _FIGURE)
_BESIDE = {  # what `headlab rank` writes beside scores.json, by method
    "gates": (*_GATES, *(f"-{name}{ending}" for name in ("scores", "fit") for ending in _FIGURE)),
    "contrastive": (*_FIGURE, *_GATES),
    "probe": (*(f"-pooled-{split}.safetensors" for split in ("train", "test")), *_PROBE),
}


def remove_old(path: Path, method: str) -> None:
    """Remove what the ranking now at `path` left beside it and one by `method` does not write
    itself. Which ranking that was, the scores say: of no other file is it known whose it is."""
    before = _method_of(path)
    if before is None:
        return
    stays = {path.name, *_names(path, method)}
    for name in _names(path, before):
        old = path.with_name(name)
        if name not in stays and old.is_file():
            old.unlink()


def _names(path: Path, method: str) -> list[str]:
    return [path.stem + ending for ending in _BESIDE.get(method, _FIGURE)]


def _method_of(path: Path) -> str | None:
    """The method of the scores there, if `headlab rank` has written them."""
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8-sig"))
        if "nodes" in record:  # MIB's form, which others write as well
            return "mib" if "fingerprints" in record["cfg"] else None
        return str(record["method"]) if "fingerprints" in record else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
