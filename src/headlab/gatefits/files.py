"""Fits on disk: the gates as safetensors, heads and roles as Parquet, and where a fit stands."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from headlab.errors import HeadlabError
from headlab.files import write_whole
from headlab.gatefits.contrast import ContrastFit
from headlab.gatefits.fitting import GateFit, State
from headlab.gatefits.roles import Roles

_GATES = ("free", "plus", "minus", "losses", "paths")
_CONTRAST = ("logits", "losses")
_STATE = ("logits", "first", "second", "losses", "paths", "free")


def write_fit(fit: GateFit, path: Path) -> None:
    """path.safetensors with the gates' logits, and path.parquet with a row a seed and head."""
    about = {
        "model": fit.model,
        "task": fit.task,
        "seeds": fit.seeds,
        "examples": fit.examples,
        "settings": fit.settings,
    }
    tensors = {name: getattr(fit, name).contiguous() for name in _GATES}
    table = io.BytesIO()
    Roles(fit).table().to_parquet(table, index=False)
    write_whole(_beside(path, ".parquet"), table.getvalue())
    data = safetensors.torch.save(tensors, {"headlab": json.dumps(about)})
    write_whole(_beside(path, ".safetensors"), data)


def read_fit(path: Path) -> GateFit:
    """As `write_fit` leaves it."""
    about, tensors = _read(_beside(path, ".safetensors"), _GATES)
    try:
        return GateFit(
            model=str(about["model"]),
            task=str(about["task"]),
            seeds=[int(seed) for seed in about["seeds"]],
            examples=[str(each) for each in about["examples"]],
            settings=dict(about["settings"]),
            **tensors,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HeadlabError(f"{path} does not hold learned gates: {error}") from None


def write_contrast(fit: ContrastFit, path: Path) -> None:
    """path.safetensors with the gates' logits, and path.parquet with a row a seed and head."""
    about = {"model": fit.model, "seeds": fit.seeds, "settings": fit.settings}
    tensors = {name: getattr(fit, name).contiguous() for name in _CONTRAST}
    table = io.BytesIO()
    fit.table().to_parquet(table, index=False)
    write_whole(_beside(path, ".parquet"), table.getvalue())
    data = safetensors.torch.save(tensors, {"headlab": json.dumps(about)})
    write_whole(_beside(path, ".safetensors"), data)


def read_contrast(path: Path) -> ContrastFit:
    """As `write_contrast` leaves it."""
    about, tensors = _read(_beside(path, ".safetensors"), _CONTRAST)
    try:
        return ContrastFit(
            model=str(about["model"]),
            seeds=[int(seed) for seed in about["seeds"]],
            settings=dict(about["settings"]),
            **tensors,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HeadlabError(f"{path} does not hold contrastive gates: {error}") from None


def _beside(path: Path, ending: str) -> Path:
    """With the ending after the whole name: one may hold dots, as llama-3.2-1b does."""
    return path.with_name(path.name + ending)


def write_state(state: State, path: Path, key: dict[str, Any]) -> None:
    """Where a fit stands; `key` says of what."""
    tensors = {
        name: getattr(state, name).cpu().contiguous()
        for name in _STATE
        if getattr(state, name) is not None
    }
    about = {"key": key, **{name: getattr(state, name) for name in ("step", "stage", "tokens")}}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, safetensors.torch.save(tensors, {"headlab": json.dumps(about)}))


def read_state(path: Path, key: dict[str, Any], device: Any) -> State | None:
    """The state that was kept of this very fit; None where there is none, or of another."""
    if not path.is_file():
        return None
    try:
        about, tensors = _read(path, _STATE)
    except HeadlabError:
        return None
    if about.get("key") != json.loads(json.dumps(key)):
        return None
    moving = ("logits", "first", "second", "free")
    tensors = {name: t.to(device) if name in moving else t for name, t in tensors.items()}
    known: dict[str, Any] = {**about, **tensors}
    try:
        return State(**{name: known[name] for name in ("step", "stage", "tokens", *tensors)})
    except (KeyError, TypeError):  # of another version
        return None


def _read(path: Path, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["headlab"])
            there = set(file.keys())
            return about, {name: file.get_tensor(name) for name in names if name in there}
    except FileNotFoundError:
        raise HeadlabError(f"no file {path}") from None
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise HeadlabError(f"{path} cannot be read: {error}") from None
