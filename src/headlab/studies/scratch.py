"""Finished pieces of a cell that is not: a killed run goes on after the last of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headlab.engine import Progress
from headlab.files import write_whole


class Scratch:
    """A cell's pieces by name, each whole or not there. `key` says of what they are: pieces of
    anything else, or that cannot be read, are made again. `progress` is told of the pairs that a
    piece stands for where it is there already."""

    def __init__(self, folder: Path, key: dict[str, Any], progress: Progress):
        self.folder, self._progress = folder, progress
        self.key = json.loads(json.dumps(key))

    def tensors(
        self, name: str, make: Callable[[], dict[str, Tensor]], pairs: int = 0
    ) -> dict[str, Tensor]:
        """The tensors that were kept under a name, or those that are made now, and kept."""
        path = self._path(f"{name}.safetensors")
        if (kept := self._read_tensors(path)) is not None:
            self._progress(pairs)
            return kept
        made = {key: value.cpu().contiguous() for key, value in make().items()}
        write_whole(path, safetensors.torch.save(made, {"key": json.dumps(self.key)}))
        return made

    def tensor(self, name: str, make: Callable[[], Tensor], pairs: int = 0) -> Tensor:
        return self.tensors(name, lambda: {"": make()}, pairs)[""]

    def values(self, name: str, make: Callable[[], Any], pairs: int = 0) -> Any:
        """The same for what JSON can hold."""
        path = self._path(f"{name}.json")
        try:
            kept = json.loads(path.read_bytes())
            if kept["key"] == self.key:
                self._progress(pairs)
                return kept["value"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        made = json.loads(json.dumps(make()))  # the same whether read or made
        write_whole(path, json.dumps({"key": self.key, "value": made}))
        return made

    def _path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def _read_tensors(self, path: Path) -> dict[str, Tensor] | None:
        try:
            with safe_open(path, "pt") as file:
                if json.loads((file.metadata() or {})["key"]) != self.key:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, KeyError, ValueError, SafetensorError):
            return None


def as_file(name: str) -> str:
    """A piece's name, whatever it holds."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
