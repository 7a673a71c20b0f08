"""Find the seam: in each layer, the projection whose input is the heads' outputs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from headlab.errors import HeadlabError
from headlab.sdpa import plain_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Where the output projections are; * runs over the layers. What is not here is found by structure.
_LLAMA = "model.layers.*.self_attn.o_proj"
PROJECTIONS = {
    "gpt2": "transformer.h.*.attn.c_proj",
    "gpt_neox": "gpt_neox.layers.*.attention.dense",
    "gptj": "transformer.h.*.attn.out_proj",
    "opt": "model.decoder.layers.*.self_attn.out_proj",
    "falcon": "transformer.h.*.self_attention.dense",
    "bloom": "transformer.h.*.self_attention.dense",
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _LLAMA,
    "gemma2": _LLAMA,
    "gemma3_text": _LLAMA,
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "phi3": _LLAMA,
    "starcoder2": _LLAMA,
    "granite": _LLAMA,
    "cohere": _LLAMA,
}


@dataclass(frozen=True)
class Seam:
    """One output projection per layer, and how its input splits into heads."""

    paths: list[str]  # of the projections, as in named_modules
    projections: list[nn.Module]
    attentions: list[nn.Module]  # the modules they are called from
    blocks: list[nn.Module]  # the layers they stand in
    heads: int
    width: int  # of one head, in the projection's input
    kv_heads: int
    found: Literal["table", "structure"]


@dataclass(frozen=True)
class Sighting:
    """One use of attention seen during a pass, and the projection called right after it."""

    output: Tensor  # [example, position, head, width], the attention function's own
    projection: str  # path
    z: Tensor  # [example, position, heads · width], the projection's input


def find_seam(hf: PreTrainedModel, name: str) -> Seam:
    """The seam by the table, or else by watching where attention's output goes."""
    modules = dict(hf.named_modules())
    config = hf.config.get_text_config()
    n_layers = getattr(config, "num_hidden_layers", None)
    pattern = PROJECTIONS.get(config.model_type)
    paths = [pattern.replace("*", str(layer)) for layer in range(n_layers or 0)] if pattern else []
    heads = getattr(config, "num_attention_heads", None)
    found: Literal["table", "structure"] = "table"
    if not paths or not isinstance(heads, int) or any(path not in modules for path in paths):
        found = "structure"
        paths, heads = _by_structure(hf, name)
    projections = [modules[path] for path in paths]
    widths = {_input_width(projection) for projection in projections}
    if len(widths) > 1:
        raise HeadlabError(
            f"{name} has layers of different widths ({sorted(widths)} into the output projection); "
            "Headlab needs the same heads in every layer"
        )
    (total,) = widths
    if total % heads:
        raise HeadlabError(
            f"{name}: the output projection takes {total} values, which do not split "
            f"into {heads} heads"
        )
    attentions = [modules[path.rpartition(".")[0]] for path in paths]
    blocks = [modules[_block_path(path)] for path in paths]
    return Seam(
        paths,
        projections,
        attentions,
        blocks,
        heads,
        total // heads,
        _kv_heads(config, heads),
        found,
    )


def sightings(
    hf: PreTrainedModel, ids: Tensor, paths: Sequence[str] | None = None
) -> list[Sighting]:
    """Run the model on `ids` and report each use of attention, in order.

    Attention is recognised by what it does, not by its name: a call of PyTorch's fused attention or
    of Headlab's gated one, or a softmax whose result is multiplied with values. Its projection is
    the linear map that is then called on that very output; or, with `paths`, the next one of these,
    whatever it is given.
    """
    seen: list[Sighting] = []
    watch = _AttentionWatch(rows=ids.shape[0], positions=ids.shape[1])

    def hook_for(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            output = watch.pending
            if output is None or not args or args[0].numel() != output.numel():
                return
            if paths is not None or torch.equal(args[0].flatten(), output.flatten()):
                seen.append(Sighting(output, path, args[0].detach().clone()))
                watch.pending = None

        return hook

    with ExitStack() as stack:
        for path, module in hf.named_modules():
            if _is_linear(module) if paths is None else path in paths:
                stack.callback(module.register_forward_pre_hook(hook_for(path)).remove)
        stack.enter_context(visible_attention(hf))
        stack.enter_context(torch.no_grad())
        stack.enter_context(watch)
        hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return seen


class _AttentionWatch(TorchFunctionMode):
    """Keeps the latest attention output in `pending`, as [example, position, head, width]."""

    def __init__(self, rows: int, positions: int):
        super().__init__()
        self.rows, self.positions = rows, positions
        self.pending: Tensor | None = None
        # Tensors that are attention weights or come straight from them. Held, not only named by
        # address: a freed tensor's address would be given to another.
        self._weights: dict[int, Tensor] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor):
            return result
        name = getattr(func, "__name__", "")
        if name in ("scaled_dot_product_attention", "gated_attention"):
            self._attended(result)
        elif name in ("matmul", "__matmul__", "bmm", "einsum"):
            weights = next((arg for arg in args if isinstance(arg, Tensor)), None)
            if weights is not None and self._is_weights(weights):
                self._attended(result)
        elif name == "softmax" or (args and isinstance(args[0], Tensor) and self._derived(args[0])):
            self._weights[_address(result)] = result
        return result

    def _attended(self, output: Tensor) -> None:  # [example, head(s), position, width] in any form
        output = output.detach().reshape(self.rows, -1, self.positions, output.shape[-1])
        self.pending = output.transpose(1, 2).clone()

    def _derived(self, tensor: Tensor) -> bool:
        return _address(tensor) in self._weights

    def _is_weights(self, tensor: Tensor) -> bool:
        square = tensor.ndim >= 3 and tensor.shape[-2:] == (self.positions, self.positions)
        return square and self._derived(tensor)


@contextmanager
def visible_attention(hf: PreTrainedModel) -> Iterator[None]:
    """Kernels that PyTorch does not see (flash, flex, ours) give way to its own for one pass."""
    own = hf.config._attn_implementation
    if not any(kernel in str(own) for kernel in ("flash", "flex", "paged")):
        with plain_attention():
            yield
        return
    hf.set_attn_implementation("sdpa")
    try:
        with plain_attention():
            yield
    finally:
        hf.set_attn_implementation(own)


def _by_structure(hf: PreTrainedModel, name: str) -> tuple[list[str], int]:
    ids = torch.arange(1, 12, device=hf.get_input_embeddings().weight.device)[None]  # [1, 11]
    try:
        seen = sightings(hf, ids)
    except Exception as error:  # any model may come here, and fail in its own way
        raise HeadlabError(
            f"{name} ({type(hf).__name__}) does not run on token ids alone: "
            f"{' '.join(str(error).split())}"
        ) from error
    if not seen:
        raise HeadlabError(
            f"no attention was seen in {name} ({type(hf).__name__}) whose output goes straight "
            "into a linear map, so it has no heads for Headlab to gate"
        )
    n_layers = getattr(hf.config.get_text_config(), "num_hidden_layers", len(seen))
    if len(seen) != n_layers:
        raise HeadlabError(
            f"{name} has {n_layers} layers, of which {len(seen)} hand attention's output straight "
            "to a linear map; Headlab needs that in every layer"
        )
    counts = {sighting.output.shape[2] for sighting in seen}
    if len(counts) > 1:
        raise HeadlabError(
            f"{name} has layers with different numbers of heads ({sorted(counts)}); "
            "Headlab needs the same in every layer"
        )
    return [sighting.projection for sighting in seen], counts.pop()


def _block_path(projection_path: str) -> str:
    """The layer a projection stands in: its path up to the first number."""
    parts = projection_path.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[: number + 1])


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, Conv1D)) or (
        hasattr(module, "in_features") and hasattr(module, "out_features")
    )


def _input_width(projection: nn.Module) -> int:
    if isinstance(projection, Conv1D):
        return projection.weight.shape[0]
    return int(projection.in_features)  # type: ignore[arg-type]


def _kv_heads(config: Any, heads: int) -> int:
    if getattr(config, "multi_query", False) and not getattr(
        config, "new_decoder_architecture", False
    ):
        return 1  # Falcon's and StarCoder's way to say so
    for field in ("num_key_value_heads", "num_kv_heads"):
        if isinstance(getattr(config, field, None), int):
            return int(getattr(config, field))
    return heads


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
