"""Published sparse GPT-2 checkpoints (nanoGPT's `final.pth`) as folders that Headlab loads."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from headlab.aliases import ALIASES
from headlab.errors import HeadlabError
from headlab.loading import load
from headlab.sparse.files import save_model
from headlab.sparse.nanogpt import Checkpoint, in_transformers, layer_of, read_checkpoint
from headlab.wording import count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from headlab.model import Model

ACTIVATIONS = {
    "gelu": "exact, as nanoGPT computes it",
    "gelu_new": "by tanh, as OpenAI's GPT-2 computes it",
}
_PADDED = {50304: 50257}  # GPT-2's vocabulary, which nanoGPT pads to a multiple of 64
_PADDING = 128  # rows that padding can add; more is another vocabulary
_HEAD_WIDTH = 64  # of every GPT-2
_END_OF_TEXT = 50256
_GATE_WORDS = ("gate", "sparse", "attn.b")
_LISTED = 6  # names in one sentence


@dataclass(frozen=True)
class Conversion:
    """A converted checkpoint."""

    folder: Path
    model: Model  # as loaded from the folder, and checked
    notes: list[str]  # what was found and decided


def convert_nanogpt(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] = "gpt2",
    heads: int | None = None,
    activation: str = "gelu",
    bias: float | None = None,
    dense: bool = False,
) -> Conversion:
    """Write a nanoGPT checkpoint as a model folder, load it and check it.

    `tokenizer` is gpt2, a folder, or none. `bias` is one b for all gates, instead of the
    checkpoint's own; `dense` converts without gates.

    >>> convert_nanogpt("final.pth", "sparse-gpt2", bias=0.0).model           # doctest: +SKIP
    Model('sparse-gpt2', 12 layers x 12 heads, float32, cpu)
    """
    file, place = Path(path).expanduser(), Path(folder).expanduser()
    _require_options(activation, bias, dense)
    _require_room(place)
    checkpoint = read_checkpoint(file)
    n_heads = _choose_heads(checkpoint, heads)
    gates = _choose_gates(checkpoint, n_heads.number, bias, dense)
    text = _read_tokenizer(os.fspath(tokenizer))
    vocabulary = _choose_vocabulary(checkpoint, text)

    hf = _make_model(checkpoint, n_heads.number, activation, vocabulary, text)
    notes = [
        *_told(checkpoint, hf.config),
        n_heads.sentence,
        gates.sentence,
        *_told_unused(checkpoint, gates),
        f"tokenizer: {Path(tokenizer).absolute().name}",
    ]
    digest = _sha256(file)
    card = _card(file.name, digest, notes, gates.bias is not None)
    about = {"source": file.name, "sha256": digest, "gates": gates.sentence}
    _write(place, hf, text, card, gates.bias, about)
    return Conversion(place, _load_or_remove(place), notes)


def _require_options(activation: str, bias: float | None, dense: bool) -> None:
    if activation not in ACTIVATIONS:
        raise HeadlabError(f"activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    if bias is not None and dense:
        raise HeadlabError("--bias is of gates, and --dense leaves them out; give one of the two")
    if bias is not None and not math.isfinite(bias):
        raise HeadlabError(f"--bias is a finite number, not {bias}")


def _require_room(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise HeadlabError(f"{folder} is not empty; give a new folder")
    if folder.exists() and not folder.is_dir():
        raise HeadlabError(f"{folder} is a file; give a new folder")


# --- heads and gates ---


class Heads(NamedTuple):
    number: int
    sentence: str  # where the number is from


def _choose_heads(checkpoint: Checkpoint, asked: int | None) -> Heads:
    name, width = checkpoint.name, checkpoint.sizes.width
    stored = checkpoint.settings.get("n_head")
    if isinstance(stored, int) and asked not in (None, stored):
        raise HeadlabError(f"{name} says that it has {stored} heads, and --heads says {asked}")
    if isinstance(stored, int):
        number, source = stored, "as the checkpoint says"
    elif asked is not None:
        number, source = asked, "as --heads says"
    elif width % _HEAD_WIDTH == 0:
        number = width // _HEAD_WIDTH
        source = f"each {_HEAD_WIDTH} wide as in GPT-2: the checkpoint does not say (--heads does)"
    else:
        raise HeadlabError(f"{name} does not say how many heads it has; give --heads N")
    if number < 1 or width % number:
        raise HeadlabError(f"{name} is {width} wide, which {number} heads do not divide")
    return Heads(number, f"{count(number, 'head')} in a layer, {source}")


class Gates(NamedTuple):
    bias: Tensor | None  # b, [layer, head]; None: dense
    sentence: str  # where it is from
    keys: tuple[str, ...] = ()  # the tensors it was taken from


def _choose_gates(checkpoint: Checkpoint, heads: int, asked: float | None, dense: bool) -> Gates:
    layers, rest = checkpoint.sizes.layers, checkpoint.rest
    if dense:
        return Gates(None, "no gates: attention is dense, as --dense says")
    if asked is not None:
        bias = torch.full((layers, heads), asked)
        return Gates(bias, f"gates: open where s + b > 0, b = {asked:g} for all heads")
    keys = _gate_keys(rest, layers, heads)
    if keys is None:
        beside = f" (beside GPT-2's own tensors it has {_listed(rest)})" if rest else ""
        raise HeadlabError(
            f"{checkpoint.name} has no gates that can be told by their names{beside}; give "
            "--bias X, one b for all heads (with 0 the gate logit is the attention logit alone), "
            "or --dense to convert it without gates"
        )
    bias = torch.stack([rest[key].reshape(-1).float().expand(heads) for key in keys])
    kind = layer_of(keys[0])[1]
    if not bool(bias.isfinite().all()):
        raise HeadlabError(f"{checkpoint.name} has NaN or infinite gates ({kind})")
    span = f"{bias.min():.4g} to {bias.max():.4g}"
    return Gates(bias, f"gates: open where s + b > 0, b is each layer's {kind}, {span}", keys)


def _gate_keys(rest: dict[str, Tensor], layers: int, heads: int) -> tuple[str, ...] | None:
    """The tensors that are b, layer by layer; None unless each has one, of the same name."""
    found = [
        (layer, name, key)
        for key, tensor in rest.items()
        for layer, name in [layer_of(key)]
        if layer is not None and _is_gate(name, tensor, heads)
    ]
    found.sort()
    one_each = [layer for layer, _, _ in found] == list(range(layers))
    if not one_each or len({name for _, name, _ in found}) != 1:
        return None
    return tuple(key for _, _, key in found)


def _is_gate(name: str, tensor: Tensor, heads: int) -> bool:
    named = any(word in name.lower() for word in _GATE_WORDS) and not name.startswith("mlp.")
    named = named and "threshold" not in name.lower()  # that would be -b: the user is asked
    return named and tensor.numel() in (1, heads) and tensor.is_floating_point()


# --- tokenizer and vocabulary ---


def _read_tokenizer(name: str) -> PreTrainedTokenizerBase | None:
    if name == "none":
        return None
    if name == "gpt2":
        return _read_gpt2_tokenizer()
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise HeadlabError(f"--tokenizer is gpt2, a folder or none, and there is no folder {name}")
    problem = HeadlabError(
        f"no tokenizer can be read from {name}; give another folder, or --tokenizer none"
    )
    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers and tokenizers have their own types
        raise problem from error
    if not found.get_vocab():
        raise problem
    return found


def _read_gpt2_tokenizer() -> PreTrainedTokenizerBase:
    """From the hub cache as it is there; else from the hub."""
    try:
        return AutoTokenizer.from_pretrained(ALIASES["gpt2"], local_files_only=True)
    except Exception:  # transformers and the hub have their own types
        try:
            return AutoTokenizer.from_pretrained(ALIASES["gpt2"])
        except Exception as error:
            raise HeadlabError(
                "the tokenizer gpt2 is not in the local hub cache and the hub cannot be reached; "
                "give --tokenizer FOLDER, or --tokenizer none to do without"
            ) from error


def _choose_vocabulary(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """How many rows of the embedding are tokens."""
    rows = checkpoint.sizes.vocabulary
    if tokenizer is None:
        return _PADDED.get(rows, rows)
    tokens: int = max(tokenizer.get_vocab().values()) + 1
    if not 0 <= rows - tokens < _PADDING:
        raise HeadlabError(
            f"{checkpoint.name} has a vocabulary of {rows:,}, and the tokenizer {tokens:,} tokens, "
            "so it is another model's; give --tokenizer FOLDER, or --tokenizer none"
        )
    return tokens


# --- the model ---


def _make_model(
    checkpoint: Checkpoint,
    heads: int,
    activation: str,
    vocabulary: int,
    tokenizer: PreTrainedTokenizerBase | None,
) -> GPT2LMHeadModel:
    sizes, weights = checkpoint.sizes, in_transformers(checkpoint.weights, vocabulary)
    end = _END_OF_TEXT if vocabulary > _END_OF_TEXT else None
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=sizes.positions,
        n_embd=sizes.width,
        n_layer=sizes.layers,
        n_head=heads,
        n_inner=sizes.inner,
        activation_function=activation,
        tie_word_embeddings=torch.equal(
            weights["transformer.wte.weight"], weights["lm_head.weight"]
        ),
        bos_token_id=tokenizer.bos_token_id if tokenizer else end,
        eos_token_id=tokenizer.eos_token_id if tokenizer else end,
    )
    with torch.device("meta"):  # the checkpoint's tensors take the place of its own
        hf = GPT2LMHeadModel(config)
    hf.load_state_dict(weights, assign=True)
    hf.tie_weights()
    return hf


def _told(checkpoint: Checkpoint, config: GPT2Config) -> list[str]:
    """What the model is, and what was done to it."""
    sizes, zeros = checkpoint.sizes, checkpoint.zeros
    cut = f", cut from {sizes.vocabulary:,} rows: the others are padding"
    tied = config.tie_word_embeddings
    notes = [
        f"{count(sizes.layers, 'layer')} of width {sizes.width}, {sizes.positions:,} positions",
        f"vocabulary of {config.vocab_size:,} tokens"
        f"{cut if config.vocab_size < sizes.vocabulary else ''}",
        f"the output embedding is {'' if tied else 'not '}tied to the input embedding",
        f"activation {config.activation_function}: {ACTIVATIONS[config.activation_function]}",
    ]
    if zeros:
        notes.append(f"{count(zeros, 'bias vector')} not in the checkpoint; zeros stand there")
    return notes


def _told_unused(checkpoint: Checkpoint, gates: Gates) -> list[str]:
    unused = {key: tensor for key, tensor in checkpoint.rest.items() if key not in gates.keys}
    if not unused:
        return []
    return [
        f"{count(len(unused), 'tensor')} not used, as GPT-2 has none of the name: "
        f"{_listed(unused)}; if the checkpoint's own code computes with them, the numbers differ"
    ]


def _listed(tensors: dict[str, Tensor]) -> str:
    told = [f"{key} {list(tensor.shape)}" for key, tensor in tensors.items()]
    more = f" and {len(told) - _LISTED} more" if len(told) > _LISTED else ""
    return ", ".join(told[:_LISTED]) + more


# --- the folder ---


def _write(
    folder: Path,
    hf: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerBase | None,
    card: str,
    bias: Tensor | None,
    about: dict[str, Any],
) -> None:
    try:
        save_model(folder.resolve(), hf, tokenizer, card, bias=bias, about=about)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise HeadlabError(f"cannot write {folder}: {reason}") from error


def _load_or_remove(folder: Path) -> Model:
    """The model as others will load it; a folder that does not load is not left behind."""
    try:
        return load(folder, device="cpu")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _card(name: str, digest: str, notes: list[str], is_sparse: bool) -> str:
    warning = (
        "Its attention has gates, which `headlab.load` reads. Plain transformers knows none of "
        "them and would load a dense model."
    )
    lines = [
        f"# {name}, converted",
        "",
        f"A GPT-2 from the nanoGPT checkpoint {name}, written by `headlab convert`.",
        *(["", warning] if is_sparse else []),
        "",
        *(f"- {note}" for note in notes),
        f"- SHA-256 of {name}: {digest}",
    ]
    return "\n".join(lines) + "\n"


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
