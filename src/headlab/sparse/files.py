"""Sparse models on disk: a model folder as transformers writes it, its gates beside the weights.

What the gates are stands in config.json under `headlab_sparse`, b of every head in
headlab_sparse.safetensors. Headlab reads both; plain transformers knows neither and would load a
dense model, which the card says.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor
from transformers.utils import cached_file

from headlab.errors import HeadlabError
from headlab.sparse.gating import NAME

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GATES_FILE = f"{NAME}.safetensors"
VERSION = 1
_RULE = "softmax(s) * [s + b > 0]"


def save_model(
    folder: Path,
    hf: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    card: str,
    bias: Tensor | None = None,
    about: dict[str, Any] | None = None,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """A folder that `headlab.load` takes; it appears whole or not at all.

    With `bias`, b of every head [layer, head], it is sparse; `about` is what config.json then says
    of how it came about. `weights` stand in for the model's own.
    """
    part = folder.with_name(f".{folder.name}-part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    config = hf.config
    before = config.__dict__.pop(NAME, None)  # of a model that was sparse when it was loaded
    try:
        if bias is not None:
            told = {"version": VERSION, "rule": _RULE, "bias": GATES_FILE, **(about or {})}
            setattr(config, NAME, told)
            data = {"bias": bias.detach().cpu().float().contiguous()}
            safetensors.torch.save_file(data, part / GATES_FILE)
        hf.save_pretrained(part, state_dict=weights)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        (part / "README.md").write_text(card, encoding="utf-8")
        for path in part.rglob("*"):
            if path.is_file():
                path.chmod(0o644)  # some writers make files for their owner alone
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        config.__dict__.pop(NAME, None)
        if before is not None:
            setattr(config, NAME, before)
        shutil.rmtree(part, ignore_errors=True)


def read_gates(location: str, label: str, settings: Any, options: dict[str, Any]) -> Tensor:
    """b of every head, [layer, head], from a folder or from the hub."""
    version = settings.get("version") if isinstance(settings, dict) else None
    if version != VERSION:
        raise HeadlabError(
            f"{label} has sparse attention of version {version!r}, and this Headlab knows {VERSION}"
        )
    known = {name: options[name] for name in ("revision", "local_files_only") if name in options}
    try:
        path = cached_file(location, GATES_FILE, **known)
        return safetensors.torch.load_file(path)["bias"]
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        said = " ".join(str(error).split())[:200]
        raise HeadlabError(
            f"{label} has sparse attention, and its gates ({GATES_FILE}) cannot be read: {said}"
        ) from error
