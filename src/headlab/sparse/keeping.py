"""Where training stands, on disk: a folder a state, whole or not there; the last two are kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.sparse.training import State

_KEPT = ("step", "beta", "value", "rows", "measured")


def keep(
    folder: Path, kind: str, key: dict[str, Any], tensors: dict[str, Tensor], state: State
) -> None:
    """Write the state of a training beside the one before it; older ones go."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{kind}-{state.step:07d}"
    part = folder / f".{name}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        data = {name: each.cpu().contiguous() for name, each in tensors.items()}
        safetensors.torch.save_file(data, part / "tensors.safetensors")
        pd.DataFrame(state.log).to_parquet(part / "log.parquet", index=False)
        about = {"key": key, **{name: getattr(state, name) for name in _KEPT}}
        (part / "state.json").write_text(json.dumps(about))
        shutil.rmtree(folder / name, ignore_errors=True)
        part.rename(folder / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for older in _states(folder, kind)[:-2]:
        shutil.rmtree(older, ignore_errors=True)


def kept(folder: Path, kind: str, key: dict[str, Any]) -> Iterator[tuple[dict[str, Tensor], State]]:
    """The states of this very training, the newest first; another's is an error."""
    for path in reversed(_states(folder, kind)):
        try:
            about = json.loads((path / "state.json").read_text())
            require_same(folder.parent, key, about["key"])
            log = pd.read_parquet(path / "log.parquet").to_dict("records")
            state = State(**{name: about[name] for name in _KEPT}, log=log)
            tensors = safetensors.torch.load_file(path / "tensors.safetensors")
        except (OSError, KeyError, TypeError, ValueError, SafetensorError):
            continue  # damaged: an older one may be whole
        yield tensors, state


def require_key(folder: Path, key: dict[str, Any]) -> None:
    """Refuse a folder with states of another training."""
    for kind in ("sparse", "twin"):
        for path in _states(folder, kind):
            with suppress(OSError, ValueError, KeyError):
                require_same(
                    folder.parent, key, json.loads((path / "state.json").read_text())["key"]
                )


def require_same(folder: Path, key: dict[str, Any], there: Any) -> None:
    """Refuse to go on with another training, and say what is other about it."""
    mine = json.loads(json.dumps(key))
    if mine == there:
        return
    ours, theirs = (
        {**each, **each.get("settings", {})} if isinstance(each, dict) else {}
        for each in (mine, there)
    )
    names = [name for name in ours if name != "settings" and ours[name] != theirs.get(name)]
    told = ", ".join(
        name
        if name in ("model", "data", "texts")
        else f"{name} {ours[name]}, there {theirs.get(name)}"
        for name in names
    )
    raise HeadlabError(
        f"{folder} holds a training with other settings ({told}); give --out another folder"
    )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one process at a time trains in a folder; what a killed one left half-written goes."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        raise HeadlabError(
            f"another process is training in {folder.parent}; wait for it, or give another folder"
        ) from None
    try:
        for part in (*folder.glob(".*-[0-9]*"), *folder.parent.glob(".*-part")):
            shutil.rmtree(part, ignore_errors=True)
        yield
    finally:
        lock.release()


def forget(folder: Path, kind: str) -> None:
    """Remove the states of a training that is over; the folder, too, once none is left."""
    for path in _states(folder, kind):
        shutil.rmtree(path, ignore_errors=True)
    if not any(_states(folder, each) for each in ("sparse", "twin")):
        shutil.rmtree(folder, ignore_errors=True)


def _states(folder: Path, kind: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{kind}-*") if path.is_dir())
