"""Where training stands, on disk: a folder a state, whole or not there, the newest counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.sparse.training import State

_KEPT = ("step", "beta", "value", "rows", "measured")


def keep(
    folder: Path, kind: str, key: dict[str, Any], tensors: dict[str, Tensor], state: State
) -> None:
    """Write the state of a training beside the older one, which then goes."""
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
    for older in _states(folder, kind):
        if older.name != name:
            shutil.rmtree(older, ignore_errors=True)


def kept(folder: Path, kind: str, key: dict[str, Any]) -> tuple[dict[str, Tensor], State] | None:
    """The newest state of this very training, None where there is none; another's is an error."""
    for path in reversed(_states(folder, kind)):
        try:
            about = json.loads((path / "state.json").read_text())
            if about["key"] != json.loads(json.dumps(key)):
                raise HeadlabError(
                    f"{folder.parent} holds an unfinished training with other settings; give --out "
                    "another folder"
                )
            log = pd.read_parquet(path / "log.parquet").to_dict("records")
            state = State(**{name: about[name] for name in _KEPT}, log=log)
            return safetensors.torch.load_file(path / "tensors.safetensors"), state
        except (OSError, KeyError, TypeError, ValueError, SafetensorError):
            continue  # damaged: an older one may be whole
    return None


def forget(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _states(folder: Path, kind: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{kind}-*") if path.is_dir())
