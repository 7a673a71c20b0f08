"""Load a causal language model by alias, hub id, folder or GGUF file, and check it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)

from headlab.aliases import ALIASES
from headlab.embedded import INSTALL, cache_folder, converted, embedded_gguf
from headlab.errors import HeadlabError
from headlab.model import BosPolicy, Model
from headlab.proofs import check as run_check

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_ONE_BILLION = 10**9  # up to here float32: bf16's error is the size of many heads' effects


def load(
    model: str | os.PathLike[str] | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: Any = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    bos: BosPolicy = "auto",
    check: bool = True,
) -> Model:
    """A model ready to be gated, from an alias, a hub id, a folder, a GGUF file, or from a
    transformers model (and its tokenizer) that is loaded already.

    float32 up to 1B parameters and on CPUs, bfloat16 above on a GPU. Weights come from safetensors
    or GGUF only. The model is checked (`headlab.check`) and refused if a proof fails.

    >>> headlab.load("smollm2")                                               # doctest: +SKIP
    Model('smollm2', 30 layers x 9 heads, float32, cpu)
    """
    if isinstance(model, nn.Module):
        loaded = Model(model, tokenizer, bos=bos)
    else:
        target = _usable_device(device) if device else _best_device()
        source = resolve(os.fspath(model))
        options = {"revision": revision, "trust_remote_code": trust_remote_code}
        config, text = _read_config(source, options)
        hf = _read_weights(
            source,
            config,
            options,
            dtype=_choose_dtype(dtype, config, target, trust_remote_code),
            device=target,
            device_map=device_map,
            attn_implementation=attn_implementation,
        )
        loaded = Model(hf, tokenizer or text, name=source.label, bos=bos)
    _require_finite_weights(loaded)
    if check:
        run_check(loaded).require()
    return loaded


# --- where a model comes from ---


@dataclass(frozen=True)
class Source:
    label: str  # as the user knows it
    location: str  # folder or hub id
    gguf_file: str | None = None
    is_hub: bool = False


def resolve(name: str) -> Source:
    """Turn what the user typed into a place to load from, or say why there is none."""
    if name == "smollm2" and (gguf := embedded_gguf()) is not None:
        return Source(name, str(converted(gguf, cache_folder() / "smollm2")))
    if name in ALIASES:
        return Source(name, ALIASES[name], is_hub=True)
    path = Path(name).expanduser()
    if path.is_dir():
        _require_safe_weights(path)
        return Source(name, str(path))
    if path.suffix == ".gguf":
        if not path.is_file():
            raise HeadlabError(f"no file {name}")
        return Source(name, str(path.parent), gguf_file=path.name)
    if path.is_file():
        raise HeadlabError(
            f"{name} is a file, but not a .gguf file; give the folder with config.json and "
            "safetensors weights, or a .gguf file"
        )
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise HeadlabError(f"no model {name!r}: there is no such folder{_nearest(name)}")
    return Source(name, name, is_hub=True)


def _require_safe_weights(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise HeadlabError(f"{folder} has no config.json, so it is not a model folder")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(
        path.name for ending in ("bin", "pt", "pth") for path in folder.glob(f"*.{ending}")
    )
    if pickles:
        raise HeadlabError(
            f"{folder} has its weights only as pickle ({pickles[0]}), which can run any code when "
            "it is read; Headlab loads safetensors: convert it with save_pretrained()"
        )
    raise HeadlabError(f"{folder} has a config.json but no weights (*.safetensors)")


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), ALIASES, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (headlab models lists what is loadable here)"


# --- reading ---


def read_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A GGUF file's model, dequantised to float32, and its tokenizer."""
    source = Source(path.name, str(path.parent), gguf_file=path.name)
    config, tokenizer = _read_config(source, {})
    return _read_weights(source, config, {}, dtype=torch.float32), tokenizer


def _read_config(
    source: Source, options: dict[str, Any]
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    with _one_sentence(source):
        if source.gguf_file:
            options = {**options, "gguf_file": source.gguf_file}
        config = AutoConfig.from_pretrained(source.location, **options)
        _require_causal(config, source.label)
        return config, AutoTokenizer.from_pretrained(source.location, **options)


def _require_causal(config: PreTrainedConfig, name: str) -> None:
    kinds = config.architectures or [config.model_type]
    encoder = (
        type(config) in MODEL_FOR_MASKED_LM_MAPPING
        and not getattr(config, "is_decoder", False)
        and not any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds)
    )
    own_code = getattr(config, "auto_map", None) or {}
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in own_code
    if config.is_encoder_decoder or encoder or not known:
        raise HeadlabError(
            f"{name} is {kinds[0]}, not a causal language model; Headlab works on decoder-only "
            "models that predict the next token"
        )


def _choose_dtype(
    dtype: str | torch.dtype | None,
    config: PreTrainedConfig,
    device: torch.device,
    trust_remote_code: bool,
) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is not None:
        if dtype not in DTYPES:
            raise HeadlabError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
        return DTYPES[dtype]
    if device.type == "cpu":
        return torch.float32
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return torch.float32 if empty.num_parameters() <= _ONE_BILLION else torch.bfloat16


def _read_weights(
    source: Source,
    config: PreTrainedConfig,
    options: dict[str, Any],
    *,
    dtype: torch.dtype,
    device: torch.device | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    options = {**options, "config": config, "dtype": dtype}
    if source.gguf_file:
        from transformers import GgufConfig

        options["gguf_file"] = source.gguf_file
        options["quantization_config"] = GgufConfig(gguf_file=source.gguf_file, dequantize=True)
    else:
        options["use_safetensors"] = True
    if device_map is not None:
        options["device_map"] = device_map
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    with _one_sentence(source):
        hf, report = AutoModelForCausalLM.from_pretrained(
            source.location, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise HeadlabError(
            f"{source.label} lacks {len(missing)} of its weights (first {missing[0]}); "
            "they would be random numbers"
        )
    hf.requires_grad_(False)
    return hf if device_map is not None or device is None else hf.to(device)


def _usable_device(name: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise HeadlabError(f"no device {str(name)!r} here: {_first_line(error)}") from error


def _best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _require_finite_weights(model: Model) -> None:
    for name, parameter in model.hf.named_parameters():
        if (
            not parameter.is_meta
            and parameter.is_floating_point()
            and not parameter.isfinite().all()
        ):
            raise HeadlabError(
                f"{model.name} has NaN or infinite weights, first in {name}; the file is damaged"
            )


@contextmanager
def _one_sentence(source: Source) -> Iterator[None]:
    """Turn what transformers and the hub raise into one sentence that says what to do."""
    try:
        yield
    except HeadlabError:
        raise
    except Exception as error:  # each library has its own types, safetensors and the hub too
        raise HeadlabError(_explain(error, source)) from error


def _explain(error: BaseException, source: Source) -> str:
    kinds, text = _chain(error)
    name = source.label
    if "GatedRepoError" in kinds:
        return (
            f"{name} is gated: accept its licence on the hub, then log in with 'hf auth login' "
            "(or set HF_TOKEN)"
        )
    if "RevisionNotFoundError" in kinds:
        return f"{name} has no such revision on the hub"
    if "RepositoryNotFoundError" in kinds:
        return f"no model {name!r} on the hub, and no folder of that name{_nearest(name)}"
    if isinstance(error, ImportError) or "accelerate" in text:
        needs = "gguf and accelerate" if source.gguf_file else "another package"
        return f"{name} needs {needs}: pip install 'headlab[gguf]' ({_first_line(error)})"
    if "trust_remote_code" in text:
        return (
            f"{name} brings its own code; read it, and pass trust_remote_code=True "
            "(--trust-remote-code) if you trust it"
        )
    if source.is_hub and "safetensors" in text and "does not appear to have" in text:
        return (
            f"{name} has no safetensors weights on the hub; Headlab does not read pickle: "
            "convert it with save_pretrained() and load the folder"
        )
    if source.is_hub and kinds & {
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
        "ConnectionError",
        "ConnectError",
        "ConnectTimeout",
    }:
        hint = f"; or install it offline: {INSTALL}" if name == "smollm2" else ""
        return (
            f"no model {name!r} here: it is not in the local hub cache and the hub cannot be "
            f"reached{hint}{_nearest(name)}"
        )
    if "model type" in text or "Unrecognized model" in text:
        return (
            f"transformers {transformers.__version__} does not know the model type of {name}: "
            f"{_first_line(error)}"
        )
    return f"cannot load {name}: {_first_line(error)}"


def _chain(error: BaseException) -> tuple[set[str], str]:
    """The type names (bases too) and the text of an error and of all that led to it."""
    kinds: set[str] = set()
    texts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        kinds |= {kind.__name__ for kind in type(link).__mro__}
        texts.append(str(link))
        link = link.__cause__ or link.__context__
    return kinds, "\n".join(texts)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "unknown error")
