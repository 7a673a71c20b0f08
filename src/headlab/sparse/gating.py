"""Gates on a model's attention: through transformers' own attention seam, nothing else patched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from headlab.errors import HeadlabError
from headlab.sparse.attention import Drawn, Edges, drawn_attention, gated_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headlab.model import Model
    from headlab.seam import Seam

NAME = "headlab_sparse"  # of the attention, and of what config.json says about it
_OWN = "headlab_gates"  # where an attention module keeps its layer's gates
# What changes the weights in ways that the gates are not defined for.
_UNKNOWN = {"s_aux": "attention sinks", "position_bias": "a bias by position"}


class LayerGates:
    """One layer's gates, and what its passes leave behind."""

    def __init__(self, bias: Tensor):
        self.bias = nn.Parameter(bias, requires_grad=False)  # [head], float32
        self.is_dense = False  # gates are left out
        self.generator: torch.Generator | None = None  # gates are drawn, from here
        self.drawn: list[Drawn] = []  # what training passes left, until they are collected
        self.edges: list[Edges] | None = None  # of passes, where somebody asked


class Gating:
    """The gates of all layers of one model."""

    def __init__(self, layers: list[LayerGates]):
        self.layers = layers

    @property
    def bias(self) -> Tensor:
        """b, [layer, head]"""
        return torch.stack([each.bias.detach().cpu() for each in self.layers])

    def parameters(self) -> list[nn.Parameter]:
        return [each.bias for each in self.layers]

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Within the block attention is as transformers has it, to the bit."""
        for each in self.layers:
            each.is_dense = True
        try:
            yield
        finally:
            for each in self.layers:
                each.is_dense = False

    @contextmanager
    def drawing(self, seed: int) -> Iterator[None]:
        """Within the block gates are drawn, layer by layer, from a seed."""
        for number, each in enumerate(self.layers):
            each.generator = torch.Generator(each.bias.device)
            each.generator.manual_seed((seed * 10_007 + number) % 2**63)
        try:
            yield
        finally:
            for each in self.layers:
                each.generator = None
                each.drawn.clear()

    def collected(self) -> tuple[Tensor, Tensor]:
        """Of drawn passes so far: the penalty (the mean of sigmoid(s + b) over edges, with its
        slope), and the share of edges that hard gates leave open, [layer, head]."""
        penalties, shares = [], []
        for each in self.layers:
            allowed = torch.stack([part.allowed for part in each.drawn]).sum()
            penalty = torch.stack([part.penalty for part in each.drawn]).sum(0)
            found = torch.stack([part.open for part in each.drawn]).sum(0)
            penalties.append((penalty / allowed).to(self.layers[0].bias.device))
            shares.append((found / allowed).to(self.layers[0].bias.device))
            each.drawn.clear()
        return torch.stack(penalties).mean(), torch.stack(shares)

    @contextmanager
    def watched(self) -> Iterator[list[list[Edges]]]:
        """Within the block passes leave their edges, a list a layer."""
        found: list[list[Edges]] = [[] for _ in self.layers]
        for each, own in zip(self.layers, found, strict=True):
            each.edges = own
        try:
            yield found
        finally:
            for each in self.layers:
                each.edges = None


def gate_attention(hf: PreTrainedModel, seam: Seam, name: str, bias: Tensor) -> Gating:
    """Give every head's attention a gate; `bias` is b, [layer, head].

    Refuses models whose attention does not go through transformers' attention functions.
    """
    if bias.shape != (len(seam.attentions), seam.heads):
        raise HeadlabError(
            f"gates for {' x '.join(map(str, bias.shape))} heads do not fit {name}, which has "
            f"{len(seam.attentions)} x {seam.heads}"
        )
    if not bool(bias.isfinite().all()):
        raise HeadlabError(f"the gates of {name} are not numbers")
    inner = hf.get_base_model() if hasattr(hf, "get_base_model") else hf  # PEFT wraps
    before = inner.config._attn_implementation
    inner.set_attn_implementation(NAME)
    gating = Gating([])
    for module, own in zip(seam.attentions, bias, strict=True):
        layer = LayerGates(own.detach().float().clone().to(_device(module)))
        setattr(module, _OWN, layer)
        gating.layers.append(layer)
    try:
        _require_calls(hf, gating, name)
    except BaseException:
        remove_gating(hf, seam, before)
        raise
    return gating


@torch.no_grad()
def _require_calls(hf: PreTrainedModel, gating: Gating, name: str) -> None:
    """Refuse a model whose layers do not each ask for gated attention once in a pass."""
    ids = torch.ones(1, 2, dtype=torch.long, device=hf.get_input_embeddings().weight.device)
    with gating.watched() as found:
        hf(input_ids=ids, use_cache=False)
    if any(len(edges) != 1 for edges in found):
        raise HeadlabError(
            f"{name} ({type(hf).__name__}) does not use transformers' attention functions, so it "
            "can have no sparse attention"
        )


def find_gating(seam: Seam) -> Gating | None:
    """The gates that a model's attention has, None where it is dense."""
    layers = [getattr(module, _OWN, None) for module in seam.attentions]
    return None if None in layers else Gating(layers)  # type: ignore[arg-type]


def remove_gating(hf: PreTrainedModel, seam: Seam, attention: str = "sdpa") -> None:
    """A dense model again."""
    inner = hf.get_base_model() if hasattr(hf, "get_base_model") else hf
    for module in seam.attentions:
        if hasattr(module, _OWN):
            delattr(module, _OWN)
    inner.set_attn_implementation(attention)


@torch.no_grad()
def edges_kept(model: Model, prompts: Any) -> Tensor:
    """The share of a sparse model's edges that are open on these prompts, [layer, head]."""
    gating = model.sparse
    if gating is None:
        raise HeadlabError(f"{model.name} is dense: all its edges are open")
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    if not prompts:
        raise HeadlabError("no prompts were given")
    sums = []
    for first in range(0, len(prompts), 8):
        tokens = model.tokens(prompts[first : first + 8])
        with gating.watched() as found:
            model.observe(tokens, lambda *_: None)
        sums.append(count_edges(found, tokens.mask))
    return share_open(sums)


def share_open(counts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Of counts by `count_edges`, [layer, head]."""
    is_open, allowed = (torch.stack(each).sum(0) for each in zip(*counts, strict=True))
    return is_open / allowed[:, None]


def count_edges(found: list[list[Edges]], real: Tensor) -> tuple[Tensor, Tensor]:
    """Edges that are open, [layer, head], and that could be, [layer], of watched passes; `real` is
    True at tokens that are no pads, [row, position]."""
    is_open, allowed = [], []
    for blocks in found:
        own = [real[:, None, each.first : each.first + each.open.shape[2]] for each in blocks]
        parts = [
            (
                (each.open * mask.to(each.open.device)).sum((0, 2)).double().cpu(),
                (each.allowed * mask.to(each.open.device)).sum().double().cpu(),
            )
            for each, mask in zip(blocks, own, strict=True)
        ]
        one, other = zip(*parts, strict=True)
        is_open.append(torch.stack(one).sum(0))
        allowed.append(torch.stack(other).sum())
    return torch.stack(is_open), torch.stack(allowed)


def _device(module: nn.Module) -> torch.device:
    """Where a layer's gates are; of weights that come and go with each pass, on the CPU."""
    found = next(module.parameters()).device
    return torch.device("cpu") if found.type == "meta" else found


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for a layer's attention."""
    own: LayerGates | None = getattr(module, _OWN, None)
    softcap = more.get("softcap")
    if (own is None or own.is_dense) and softcap is None:
        dense = AttentionInterface()["sdpa"]
        found, _ = dense(module, query, key, value, attention_mask, dropout, scaling, **more)
        return found, None
    for name, says in _UNKNOWN.items():
        if more.get(name) is not None:
            raise HeadlabError(
                f"{type(module).__name__} has {says}, which sparse attention has not"
            )
    mask = attention_mask
    if mask is not None and mask.dtype != torch.bool:
        raise HeadlabError(
            f"{type(module).__name__} adds numbers to its attention, not only a mask"
        )
    heads = query.new_full((query.shape[1],), torch.inf, dtype=torch.float32)
    bias = heads if own is None or own.is_dense else own.bias
    if own is not None and own.generator is not None and not own.is_dense:
        drawn = drawn_attention(query, key, value, bias, own.generator, mask, scaling, softcap)
        own.drawn.append(drawn)
        output = drawn.output
    else:
        seen = None if own is None or own.edges is None else own.edges.append
        output = gated_attention(query, key, value, bias, mask, scaling, softcap, seen)
    return output.transpose(1, 2).contiguous(), None


def _mask(*args: Any, **named: Any) -> Tensor | None:
    """What transformers calls for a mask: none only where queries are as many as keys, or one. With
    an empty cache of fixed size it would leave the mask out too, the keys being the first ones."""
    queries, keys = named.get("q_length"), named.get("kv_length")
    if queries != keys and queries != 1:
        named["allow_is_causal_skip"] = False
    return sdpa_mask(*args, **named)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
