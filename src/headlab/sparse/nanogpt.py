"""nanoGPT's checkpoints of GPT-2: the tensors of a `.pth` file, by name and shape.

Only tensors and plain containers are read from the pickle: no code in it runs.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headlab.errors import HeadlabError

_WRAPPERS = ("_orig_mod.", "module.")  # torch.compile's and DDP's
_WITHOUT_BIAS = ("wte", "wpe", "lm_head")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LAYER = re.compile(r"transformer\.h\.(\d+)\.(.+)")


class Sizes(NamedTuple):
    vocabulary: int  # with its padding
    width: int
    positions: int
    layers: int
    inner: int  # the width inside the MLP


@dataclass(frozen=True)
class Checkpoint:
    """A GPT-2 as nanoGPT saves it."""

    name: str
    sizes: Sizes
    weights: dict[str, Tensor]  # all that nanoGPT names, of one dtype
    zeros: int  # bias vectors that the file lacks
    rest: dict[str, Tensor]  # what GPT-2 does not have
    settings: dict[str, Any]  # stored beside the tensors


def read_checkpoint(file: Path) -> Checkpoint:
    """A checkpoint whose tensors are all there, fit each other and are numbers."""
    state, settings = _find_state(_read(file), file.name)
    sizes = _find_sizes(state, file.name)
    weights, zeros = _take_weights(state, sizes, file.name)
    rest = {
        key: tensor
        for key, tensor in state.items()
        if key not in weights and not _is_mask(key, tensor)
    }
    return Checkpoint(file.name, sizes, weights, zeros, rest, settings)


def layer_of(key: str) -> tuple[int | None, str]:
    """The layer that a tensor is of, and its name there.

    >>> layer_of("transformer.h.3.attn.c_attn.bias"), layer_of("lm_head.weight")
    ((3, 'attn.c_attn.bias'), (None, 'lm_head.weight'))
    """
    found = _LAYER.fullmatch(key)
    return (int(found[1]), found[2]) if found else (None, key)


def in_transformers(weights: dict[str, Tensor], vocabulary: int) -> dict[str, Tensor]:
    """The weights as transformers' GPT-2 has them: linear maps [in, out], no padded tokens."""
    found = {}
    for key, tensor in weights.items():
        if key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.T
        elif key.endswith(("wte.weight", "lm_head.weight")):
            tensor = tensor[:vocabulary]
        found[key] = tensor.contiguous()
    return found


# --- the file ---


def _read(file: Path) -> Any:
    """What the pickle holds, of tensors and plain containers."""
    try:
        _require_pickle(file)
    except OSError as error:
        raise HeadlabError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        is_zip = zipfile.is_zipfile(file)  # only these can be mapped into memory
        with warnings.catch_warnings(action="ignore"):  # of pickles that are refused below
            return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # torch and pickle have many types for a file they cannot read
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        if wanted:
            raise HeadlabError(
                f"{file} holds more than tensors ({wanted[1]}), and code in it is not run; where "
                "you trust it, save its state_dict() alone and convert that"
            ) from error
        raise HeadlabError(
            f"{file} cannot be read as a checkpoint of PyTorch: it is cut short, damaged or of "
            "another kind"
        ) from error


def _require_pickle(file: Path) -> None:
    if file.is_dir():
        raise HeadlabError(f"{file} is a folder; give the checkpoint in it, e.g. {file}/final.pth")
    if not file.is_file():
        raise HeadlabError(f"no file {file}")
    with file.open("rb") as opened:
        first = opened.read(9)
    if not first:
        raise HeadlabError(f"{file} is empty")
    if first.startswith(b"GGUF"):
        raise HeadlabError(
            f"{file} is a GGUF file, which is loaded as it is if its name ends in .gguf: "
            f"headlab check {file}"
        )
    if file.suffix == ".safetensors" or first[8:] == b"{":
        raise HeadlabError(
            f"{file} is a safetensors file, which is loaded as it is: give its folder, with "
            "config.json in it, to headlab check"
        )


def _find_state(loaded: Any, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors under nanoGPT's names, and the settings stored beside them."""
    if not isinstance(loaded, dict):
        raise HeadlabError(f"{name} holds {type(loaded).__name__}, not a dict of tensors")
    dicts = {key: value for key, value in loaded.items() if isinstance(value, dict)}
    inner = dicts.get("model") or dicts.get("state_dict") or loaded
    settings = {**dicts.get("config", {}), **dicts.get("model_args", {})}
    state = {}
    for key, tensor in inner.items():
        if isinstance(tensor, Tensor):
            if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
                raise HeadlabError(f"{name}: {key} is not a plain tensor")
            state[_unwrapped(str(key))] = tensor.detach()
    return state, settings


def _unwrapped(key: str) -> str:
    """A key without the prefixes of what was around the model.

    >>> _unwrapped("module._orig_mod.lm_head.weight")
    'lm_head.weight'
    """
    while key.startswith(_WRAPPERS):
        key = key.split(".", 1)[1]
    return key


# --- the tensors ---


def _find_sizes(state: dict[str, Tensor], name: str) -> Sizes:
    vocabulary, width = _matrix(state, "transformer.wte.weight", name)
    positions, _ = _matrix(state, "transformer.wpe.weight", name)
    inner, _ = _matrix(state, "transformer.h.0.mlp.c_fc.weight", name)
    last = max(layer for layer, _ in map(layer_of, state) if layer is not None)
    return Sizes(vocabulary, width, positions, last + 1, inner)


def _matrix(state: dict[str, Tensor], key: str, name: str) -> tuple[int, int]:
    tensor = _required(state, key, name)
    if tensor.dim() != 2:
        raise HeadlabError(f"{name}: {key} has shape {list(tensor.shape)}, expected a matrix")
    return tensor.shape[0], tensor.shape[1]


def _required(state: dict[str, Tensor], key: str, name: str) -> Tensor:
    if key not in state:
        raise HeadlabError(f"{name} lacks {key}, so it is not a GPT-2 as nanoGPT saves it")
    return state[key]


def _modules(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """nanoGPT's modules and their weights' shapes; a linear map is [out, in]."""
    vocabulary, width, positions, layers, inner = sizes
    yield "transformer.wte", (vocabulary, width)
    yield "transformer.wpe", (positions, width)
    for layer in range(layers):
        yield f"transformer.h.{layer}.ln_1", (width,)
        yield f"transformer.h.{layer}.attn.c_attn", (3 * width, width)
        yield f"transformer.h.{layer}.attn.c_proj", (width, width)
        yield f"transformer.h.{layer}.ln_2", (width,)
        yield f"transformer.h.{layer}.mlp.c_fc", (inner, width)
        yield f"transformer.h.{layer}.mlp.c_proj", (width, inner)
    yield "transformer.ln_f", (width,)
    yield "lm_head", (vocabulary, width)


def _take_weights(
    state: dict[str, Tensor], sizes: Sizes, name: str
) -> tuple[dict[str, Tensor], int]:
    """The weights, and how many bias vectors are zeros because the file has none of the kind."""
    weights: dict[str, Tensor] = {}
    zeros = 0
    kinds = {layer_of(key)[1] for key in state}
    for module, shape in _modules(sizes):
        weight = _fitting(state, f"{module}.weight", shape, name)
        weights[f"{module}.weight"] = weight
        if module.endswith(_WITHOUT_BIAS):
            continue
        key = f"{module}.bias"
        if layer_of(key)[1] in kinds:  # in one layer, then in all
            weights[key] = _fitting(state, key, shape[:1], name)
        else:
            weights[key] = weight.new_zeros(shape[0])
            zeros += 1
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in weights.values()))
    return {key: tensor.to(dtype) for key, tensor in weights.items()}, zeros


def _fitting(state: dict[str, Tensor], key: str, shape: tuple[int, ...], name: str) -> Tensor:
    tensor = _required(state, key, name)
    if tensor.shape != shape:
        turned = tuple(tensor.shape) == shape[::-1]
        hint = "; that is transformers' layout, whose save_pretrained() writes folders"
        raise HeadlabError(
            f"{name}: {key} has shape {list(tensor.shape)}, expected {list(shape)}"
            f"{hint if turned else ''}"
        )
    if tensor.dtype not in _DTYPES:
        raise HeadlabError(f"{name}: {key} is {tensor.dtype}, expected floating-point numbers")
    if not bool(tensor.isfinite().all()):
        raise HeadlabError(f"{name} has NaN or infinite weights, first in {key}")
    return tensor


def _is_mask(key: str, tensor: Tensor) -> bool:
    """Whether it is a buffer of the causal mask, which is no weight."""
    size = tensor.shape[-1] if tensor.dim() else 0
    square = size > 1 and tensor.shape == (1, 1, size, size)
    return key.endswith(".attn.masked_bias") or (key.endswith(".attn.bias") and square)
