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
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)

from headlab.aliases import ALIASES, cached_models
from headlab.embedded import INSTALL, cache_folder, converted, embedded_gguf
from headlab.errors import HeadlabError
from headlab.model import Model
from headlab.proofs import check as run_check
from headlab.seam import find_seam
from headlab.sparse.files import read_gates
from headlab.sparse.gating import NAME as SPARSE
from headlab.sparse.gating import gate_attention
from headlab.texts import BosPolicy, Texts

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
    if hasattr(model, "config") and hasattr(model, "get_output_embeddings"):  # PEFT's too
        _require_causal(model.config, model.config.name_or_path or type(model).__name__, model)
        if any(option is not None for option in (dtype, device, device_map, revision)):
            raise HeadlabError(
                "dtype, device, device_map and revision are for loading by name; "
                "this model is loaded already"
            )
        loaded = Model(model, tokenizer, bos=bos)
        if getattr(model.config, SPARSE, None) is not None and loaded.sparse is None:
            raise HeadlabError(
                f"{loaded.name} has sparse attention, which transformers has loaded as dense; give "
                "headlab.load its name or folder"
            )
    elif not isinstance(model, (str, os.PathLike)):
        raise HeadlabError(
            f"headlab.load takes a name, a path or a transformers model, not {type(model).__name__}"
        )
    else:
        if device is not None and device_map is not None:
            raise HeadlabError("give device or device_map, not both")
        target = usable_device(device) if device else _best_device()
        source = resolve(os.fspath(model))
        options = _hub_options(source, revision, trust_remote_code)
        config, text = _read_config(source, options)
        sparse = getattr(config, SPARSE, None)
        if sparse is not None and attn_implementation is not None:
            raise HeadlabError(
                f"{source.label} has sparse attention, and no other can stand for it"
            )
        hf, notes = _read_weights(
            source,
            config,
            options,
            dtype=_choose_dtype(dtype, config, target, trust_remote_code),
            device=target,
            device_map=device_map,
            attn_implementation=attn_implementation,
        )
        loaded = Model(hf, tokenizer or text, name=source.label, bos=bos)
        loaded.notes += notes
        if sparse is not None:
            exact = {
                **options,
                "revision": getattr(config, "_commit_hash", None) or revision,
            }  # not a newer one
            bias = read_gates(source.location, source.label, sparse, exact)
            gate_attention(hf, loaded.seam, source.label, bias)
            loaded.notes.append("sparse attention; plain transformers would load it dense")
    _require_finite_weights(loaded)
    if check:
        run_check(loaded).require()
    return loaded


def load_texts(
    model: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    bos: BosPolicy = "auto",
) -> Texts:
    """A model's tokenizer alone: enough to make tasks, and quick."""
    source = resolve(model)
    _, tokenizer = _read_config(source, _hub_options(source, revision, trust_remote_code))
    if tokenizer is None:
        raise HeadlabError(f"{source.label} has no tokenizer")
    return Texts(tokenizer, source.label, bos)


@dataclass(frozen=True)
class Blueprint:
    """A model's shape, known without its weights."""

    layers: int
    heads: int
    d_model: int
    parameters: int
    block_parameters: int  # those a token passes through in the layers
    dtype: torch.dtype
    device: torch.device


class ShapeUnknown(HeadlabError):  # noqa: N818, it may load all the same
    """The model's layers and heads cannot be told without its weights."""


def read_blueprint(
    model: str,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Blueprint:
    """What `load` would give, without reading weights: quick, and no memory."""
    source = resolve(model)
    target = usable_device(device) if device else _best_device()
    config, _ = _read_config(source, _hub_options(source, revision, trust_remote_code))
    with torch.device("meta"), _one_sentence(source, "its config"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    try:
        seam = find_seam(empty, source.label)
    except HeadlabError as error:  # found by structure, which takes a pass and so the weights
        raise ShapeUnknown(
            f"{source.label} is not in the table of architectures: its shape is known once it is "
            "loaded"
        ) from error
    return Blueprint(
        layers=len(seam.projections),
        heads=seam.heads,
        d_model=config.get_text_config().hidden_size,
        parameters=empty.num_parameters(),
        block_parameters=sum(p.numel() for block in seam.blocks for p in block.parameters()),
        dtype=_choose_dtype(dtype, config, target, trust_remote_code),
        device=target,
    )


def _hub_options(source: Source, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if source.is_hub:
        # What lies in the hub cache is used as it is: the same numbers tomorrow, offline too.
        options["local_files_only"] = revision is None and source.location in cached_models()
        options["revision"] = revision
    elif revision is not None:
        raise HeadlabError(f"a revision is of a model on the hub, and {source.label} is not")
    return options


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
    if not name:
        raise HeadlabError("the model's name is empty (headlab models lists what is loadable here)")
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
        inside = sorted(path.parent.name for path in folder.glob("*/config.json"))
        hint = f"; models in it: {', '.join(inside)}" if inside else ""
        raise HeadlabError(f"{folder} has no config.json, so it is not a model folder{hint}")
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
    hint = f"; did you mean {close[0]!r}?" if close and close[0] != name else ""
    if Path(name).is_dir():
        hint = f"; for the folder write './{name}'"
    return f"{hint} (headlab models lists what is loadable here)"


# --- reading ---


def read_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """A GGUF file's model, dequantised to float32, and its tokenizer."""
    source = Source(path.name, str(path.parent), gguf_file=path.name)
    config, tokenizer = _read_config(source, {})
    hf, _ = _read_weights(source, config, {}, dtype=torch.float32)
    return hf, tokenizer


def _read_config(
    source: Source, options: dict[str, Any]
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase | None]:
    if source.gguf_file:
        options = {**options, "gguf_file": source.gguf_file}
    with _one_sentence(source, "its config"):
        config = AutoConfig.from_pretrained(source.location, **options)
        _require_causal(config, source.label)
    if not (source.is_hub or source.gguf_file or _has_tokenizer(Path(source.location))):
        return config, None
    with _one_sentence(source, "its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, **options)
    # From the hub, where there are no tokenizer files, comes one that knows no words.
    empty = len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens)
    return config, None if empty else tokenizer


def _has_tokenizer(folder: Path) -> bool:
    kinds = ("tokenizer*", "vocab*", "*.tiktoken", "*.model", "tekken.json")
    return any(True for kind in kinds for _ in folder.glob(kind))


def _require_causal(config: PreTrainedConfig, name: str, loaded: Any = None) -> None:
    kinds = config.architectures or [config.model_type]
    if loaded is not None:
        kinds = [type(loaded).__name__]
    encoder = (
        type(config) in MODEL_FOR_MASKED_LM_MAPPING
        and not getattr(config, "is_decoder", False)
        and not any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds)
    )
    own_code = getattr(config, "auto_map", None) or {}
    known = (
        type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        or "AutoModelForCausalLM" in own_code
        or (loaded is not None and not type(loaded).__module__.startswith("transformers."))
    )
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
) -> tuple[PreTrainedModel, list[str]]:
    """The model with frozen weights, and notes for the user."""
    options = {**options, "config": config, "dtype": dtype, "ignore_mismatched_sizes": True}
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
    with _one_sentence(source, "its weights"):
        hf, report = AutoModelForCausalLM.from_pretrained(
            source.location, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise HeadlabError(
            f"{source.label} lacks {len(missing)} of its weights (first {missing[0]}); "
            "they would be random numbers"
        )
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise HeadlabError(
            f"{source.label}: {name} has shape {list(found)} in the file and {list(expected)} by "
            "the config; one of the two is of another model"
        )
    notes = []
    if unused := sorted(report["unexpected_keys"]):
        notes.append(f"{len(unused)} tensors of the checkpoint are not used (first {unused[0]})")
    hf.requires_grad_(False)
    return (hf if device_map is not None or device is None else hf.to(device)), notes


def usable_device(name: str | torch.device) -> torch.device:
    try:
        device = torch.empty(0, device=name).device
        if device.type == "meta":
            raise RuntimeError("meta tensors hold no numbers")
        return device
    except (RuntimeError, AssertionError) as error:
        raise HeadlabError(f"no device {str(name)!r} here: {_shortened(error)}") from error


def _best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _require_finite_weights(model: Model) -> None:
    for name, parameter in model.hf.named_parameters():
        if (
            not parameter.is_meta
            and parameter.is_floating_point()
            and parameter.dtype.itemsize >= 2  # of FP8 the numbers are in the scales
            and not parameter.isfinite().all()
        ):
            raise HeadlabError(
                f"{model.name} has NaN or infinite weights, first in {name}; the file is damaged"
            )


@contextmanager
def _one_sentence(source: Source, part: str) -> Iterator[None]:
    """Turn what transformers and the hub raise into one sentence that says what to do."""
    try:
        yield
    except HeadlabError:
        raise
    except Exception as error:  # each library has its own types, safetensors and the hub too
        raise HeadlabError(_explain(error, source, part)) from error


def _explain(error: BaseException, source: Source, part: str) -> str:
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
        cure = "; pip install 'headlab[gguf]'" if source.gguf_file else ""
        return f"{name} needs a package that is not installed: {_shortened(error)}{cure}"
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
            f"{_shortened(error)}"
        )
    return f"cannot load {name}, {part} cannot be read: {_shortened(error)}"


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


def _shortened(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."
