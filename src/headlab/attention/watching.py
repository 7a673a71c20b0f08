"""Attention weights of chosen heads, a block of queries at a time.

A pass runs as it always does; what is seen of it is the call of fused attention, from whose queries
and keys the weights of the chosen heads are computed anew, or, where a model has its own softmax,
its weights as they are. No more than a block of one layer's weights is held, and layers above the
last that is asked for are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from headlab.errors import HeadlabError
from headlab.seam import visible_attention
from headlab.sparse.attention import logits, opened
from headlab.tokens import Tokens

if TYPE_CHECKING:
    from headlab.model import Model

_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}  # of weights in float32
_FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_GATED = ("query", "key", "value", "bias", "attn_mask", "scale", "softcap", "seen")


class Block(NamedTuple):
    """Weights of some queries of one layer."""

    layer: int
    first: int  # position of the first query
    weights: Tensor  # [row, head, query, key], float32; heads as they were asked for
    allowed: Tensor  # [row|1, 1, query, key], True where a query may look


def watch(
    model: Model,
    tokens: Tokens,
    heads: Mapping[int, Sequence[int]],
    visit: Callable[[Block], None],
) -> None:
    """One clean pass that shows `visit` the weights of the heads asked for, layer by layer."""
    model.require_clean()
    layers = sorted(layer for layer, own in heads.items() if own)
    if not layers:
        raise HeadlabError("no heads were asked for")
    watcher = _Watcher(tokens, heads, visit, model.dtype)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(visible_attention(model.hf))
        for layer in layers:
            module = model.seam.attentions[layer]
            stack.enter_context(_inside(module, watcher, layer, last=layer == layers[-1]))
        stack.enter_context(watcher)
        with suppress(_Enough):
            model.hf(**model.inputs(tokens))
    missing = [layer for layer in layers if layer not in watcher.seen]
    if missing:
        raise HeadlabError(
            f"the attention of {model.name}'s layer {missing[0]} cannot be seen: it is neither "
            "fused attention nor a softmax over positions"
        )


class _Enough(Exception):  # noqa: N818, nothing is wrong
    """The last layer that was asked for has been seen."""


@contextmanager
def _inside(module: nn.Module, watcher: _Watcher, layer: int, last: bool) -> Iterator[None]:
    """Within the module's forward, what is seen is of this layer."""

    def enter(*_: Any) -> None:
        watcher.layer = layer

    def leave(*_: Any) -> None:
        watcher.layer = None
        if last:
            raise _Enough

    handles = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Watcher(TorchFunctionMode):
    """Shows the weights of every attention in the layers asked for."""

    def __init__(
        self,
        tokens: Tokens,
        heads: Mapping[int, Sequence[int]],
        visit: Callable[[Block], None],
        dtype: torch.dtype,
    ):
        super().__init__()
        self._lowest = torch.finfo(dtype).min / 2  # a mask's least number is the model's own
        self.rows, self.positions = tokens.ids.shape
        self.heads, self.visit = heads, visit
        self.layer: int | None = None
        self.seen: set[int] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.layer is None or not isinstance(result, Tensor):
            return result
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            with torch._C.DisableTorchFunction():  # ours are not watched
                self._fused(**dict(zip(_FUSED, args, strict=False)), **kwargs)
        elif name == "gated_attention":
            with torch._C.DisableTorchFunction():
                self._gated(**dict(zip(_GATED, args, strict=False)), **kwargs)
        elif name == "softmax" and result.shape[-2:] == (self.positions, self.positions):
            with torch._C.DisableTorchFunction():
                self._whole(args[0] if args else kwargs["input"], result)
        return result

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        assert self.layer is not None
        self.seen.add(self.layer)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        own = torch.tensor(self.heads[self.layer], device=query.device)
        shared = own // (query.shape[1] // key.shape[1])  # of grouped heads, whose keys are theirs
        asked = query[:, own].float() * scale
        keys = key[:, shared].float().transpose(-1, -2)
        places = torch.arange(self.positions, device=query.device)
        for first, last in self._blocks(query):
            block = asked[:, :, first:last] @ keys  # [row, head, query, key]
            allowed = torch.ones(1, 1, *block.shape[2:], dtype=torch.bool, device=block.device)
            if is_causal:
                allowed = (places[first:last, None] >= places)[None, None]
            if attn_mask is not None:
                mask = attn_mask[..., first:last, :]
                mask = mask.expand(mask.shape[0], query.shape[1], *mask.shape[2:])[:, own]
                if mask.dtype == torch.bool:
                    allowed = allowed & mask[:, :1]
                else:
                    block = block + mask.float()
                    allowed = allowed & (mask[:, :1] > self._lowest)
            weights = block.masked_fill(~allowed, -torch.inf).softmax(-1)
            self.visit(Block(self.layer, first, weights.nan_to_num(0.0), allowed))

    def _gated(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> None:
        """Of sparse attention: closed edges have no weight, and the others no more for it."""
        assert self.layer is not None
        self.seen.add(self.layer)
        own = torch.tensor(self.heads[self.layer], device=query.device)
        shared = own // (query.shape[1] // key.shape[1])
        for first, last in self._blocks(query):
            mask = None if attn_mask is None else attn_mask[:, :, first:last]
            s, allowed = logits(query[:, own], key[:, shared], first, last, mask, scale, softcap)
            weights = s.float().softmax(-1) * opened(s, allowed, bias.to(own.device)[own])
            missing = self.positions - weights.shape[-1]  # keys after the last query
            weights, allowed = (pad(each, (0, missing)) for each in (weights, allowed))
            self.visit(Block(self.layer, first, weights, allowed))

    def _whole(self, scores: Tensor, weights: Tensor) -> None:
        """Of a model's own softmax: its input says where a query may look."""
        assert self.layer is not None
        self.seen.add(self.layer)
        own = torch.tensor(self.heads[self.layer], device=weights.device)
        shape = (self.rows, -1, self.positions, self.positions)
        weights, scores = weights.reshape(shape)[:, own], scores.reshape(shape)[:, own[:1]]
        for first, last in self._blocks(weights):
            self.visit(
                Block(
                    self.layer,
                    first,
                    weights[:, :, first:last].float(),
                    scores[:, :, first:last] > self._lowest,
                )
            )

    def _blocks(self, like: Tensor) -> Iterator[tuple[int, int]]:
        assert self.layer is not None
        room = _BLOCK_BYTES.get(like.device.type, _BLOCK_BYTES["cpu"])
        row = 4 * self.rows * len(self.heads[self.layer]) * self.positions
        size = max(1, room // row)
        for first in range(0, self.positions, size):
            yield first, min(self.positions, first + size)
