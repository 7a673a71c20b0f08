"""Start a pass at a layer: everything below it is skipped, its input is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.model import Model, Tokens


@dataclass(frozen=True)
class CleanPass:
    """What a pass without gates leaves behind for later ones to start from."""

    inputs: list[Tensor]  # each layer's, [example, position, hidden]
    tuple_lengths: list[int]  # of each layer's output, 0 where it is a bare tensor
    logits: Tensor  # [example, position, vocabulary]


def clean_pass(model: Model, tokens: Tokens) -> CleanPass:
    """Run the model as it is and keep every layer's input."""
    inputs: list[Tensor] = []
    tuple_lengths: list[int] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(_hidden(args, kwargs))

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        tuple_lengths.append(len(output) if isinstance(output, tuple) else 0)

    with ExitStack() as stack:
        for block in model.seam.blocks:
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after).remove)
        with torch.no_grad():
            logits = model.hf(**model.inputs(tokens)).logits
    return CleanPass(inputs, tuple_lengths, logits)


@contextmanager
def restarted(model: Model, layer: int, clean: CleanPass) -> Iterator[None]:
    """Within the block a pass skips all layers below `layer` and gives it its clean input.

    The model's own forward still runs, so masks, positions and rotary tables are its own; the
    skipped layers hand their input on untouched.
    """

    def replace(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (clean.inputs[layer], *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": clean.inputs[layer]}

    with ExitStack() as stack:
        for block, length in zip(model.seam.blocks[:layer], clean.tuple_lengths, strict=False):
            stack.enter_context(_skipped(block, length))
        block = model.seam.blocks[layer]
        stack.callback(block.register_forward_pre_hook(replace, with_kwargs=True).remove)
        yield


@contextmanager
def _skipped(block: nn.Module, tuple_length: int) -> Iterator[None]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = _hidden(args, kwargs)
        return (hidden, *[None] * (tuple_length - 1)) if tuple_length else hidden

    own = block.__dict__.get("forward")  # accelerate puts one there, most blocks have none
    block.forward = forward
    try:
        yield
    finally:
        if own is None:
            del block.forward
        else:
            block.forward = own


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(hidden, Tensor):
        raise HeadlabError("this model's layers are not called with their hidden states")
    return hidden
