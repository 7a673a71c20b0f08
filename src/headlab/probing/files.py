"""Pooled answers on disk: they take the longest, and no other activation is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from headlab import __version__
from headlab.engine import Progress
from headlab.files import write_whole
from headlab.generation import generate
from headlab.probing.pooling import Pooled, pool
from headlab.tasks.cogqa import STOP, SubQuestion

if TYPE_CHECKING:
    from headlab.model import Model


def pooled_answers(
    model: Model,
    items: Sequence[SubQuestion],
    path: Path,
    max_new_tokens: int,
    progress: Progress | None = None,
) -> Pooled:
    """What is kept at path.safetensors of these very questions and model, or is made now and kept.
    `progress` counts max_new_tokens + 1 for each question."""
    path = path.with_name(path.name + ".safetensors")
    key = _key(model, items, max_new_tokens)
    kept = _read(path, key)
    if kept is not None:
        if progress is not None:
            progress(len(items) * (max_new_tokens + 1))
        return kept
    prompts = [item.prompt for item in items]
    written = generate(
        model, prompts, max_new_tokens=max_new_tokens, stop=STOP, progress=progress
    ).rows[0]
    pooled = pool(model, prompts, written, progress)
    tensors = {name: getattr(pooled, name).contiguous() for name in _TENSORS}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, safetensors.torch.save(tensors, {"key": json.dumps(key)}))
    return pooled


_TENSORS = ("z", "tokens", "in_json")


def _key(model: Model, items: Sequence[SubQuestion], new: int) -> dict[str, Any]:
    from headlab.studies.provenance import fingerprint

    told = hashlib.sha256("\0".join(item.prompt for item in items).encode()).hexdigest()
    return {
        "model": fingerprint(model),
        "bos": model.bos,
        "prompts": told,
        "max_new_tokens": new,
        "headlab": __version__,
    }


def _read(path: Path, key: dict[str, Any]) -> Pooled | None:
    try:
        with safe_open(path, "pt") as file:
            if json.loads((file.metadata() or {})["key"]) != key:
                return None
            return Pooled(**{name: file.get_tensor(name) for name in _TENSORS})
    except (OSError, KeyError, ValueError, SafetensorError):
        return None
