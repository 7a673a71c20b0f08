"""Where numbers come from: versions, machine, and fingerprints of models and files."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from headlab import __version__
from headlab.errors import HeadlabError
from headlab.model import Model
from headlab.tasks.questions import SET_FOLDERS

_PACKAGES = ("torch", "transformers", "numpy", "pandas", "pyarrow", "scipy", "matplotlib")
_SAMPLED = 256  # numbers of each weight


def versions() -> dict[str, str]:
    found = {"headlab": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # put on the path by hand
            found[package] = "unknown"
    return found


def machine() -> dict[str, Any]:
    """What the speed depends on; nothing that names the user or the host."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(gpus)],
    }


def fingerprint(model: Model) -> str:
    """The same for the same weights and dtype: names, shapes and evenly spaced numbers of each.

    Quick for large models, and no training step leaves it as it was.
    """
    told = hashlib.sha256()
    config = model.hf.config.to_diff_dict()  # a new default of transformers is no new model
    for key in ("_name_or_path", "transformers_version"):
        config.pop(key, None)
    told.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, parameter in sorted(model.hf.named_parameters()):
        told.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        flat = parameter.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLED)
        told.update(flat[::step].float().cpu().numpy().tobytes())
    if model.sparse is not None:
        told.update(model.sparse.bias.numpy().tobytes())
    return told.hexdigest()[:16]


def data_files(folder: Path) -> list[Path]:
    """The files that questions are read from: in a folder, or in its folders of published sets."""
    places = [folder, *(folder / name for name in SET_FOLDERS)]
    found = [path for place in places for path in place.glob("*.json*")]
    return sorted(path for path in found if path.suffix in (".json", ".jsonl") and path.is_file())


def file_fingerprint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise HeadlabError(f"cannot read {path}: {error.strerror}") from None
