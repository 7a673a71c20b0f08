"""Shorten a pass: start it at a layer, end it at the places that are read.

What lies below the start is skipped; its input and its heads are given. Above the last attention
every position is by itself, so that the rest runs only where logits are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.model import Model, Tokens


@dataclass(frozen=True)
class Forms:
    """How each layer and each attention answers: the length of its tuple, 0 for a bare tensor."""

    blocks: list[int]
    attentions: list[int | None]  # None: it gives more than the output projection's output
    ends_early: bool = False  # the last layer may end at the places read, as headlab.check proves


@dataclass(frozen=True)
class CleanPass:
    """What a pass without gates leaves behind for later ones to start from."""

    inputs: dict[int, Tensor]  # of the layers asked for, [example, position, hidden]
    z: dict[int, Tensor]  # of the same layers, [example, position, head · width]
    logits: Tensor  # [place, vocabulary]


def learn_forms(model: Model, tokens: Tokens) -> Forms:
    """Watch one pass: what a skipped layer or attention would have to look like."""
    blocks: list[int] = []
    attentions: list[int | None] = []
    projected: list[Tensor] = []

    def after_block(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        blocks.append(len(output) if isinstance(output, tuple) else 0)

    def after_attention(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        same = isinstance(first, Tensor) and torch.equal(first, projected[-1])
        length = len(output) if isinstance(output, tuple) else 0
        attentions.append(length if same else None)

    with ExitStack() as stack, torch.no_grad():
        for block, attention, projection in zip(
            model.seam.blocks, model.seam.attentions, model.seam.projections, strict=True
        ):
            stack.callback(block.register_forward_hook(after_block).remove)
            stack.callback(attention.register_forward_hook(after_attention).remove)
            keep = projection.register_forward_hook(lambda _, __, out: projected.append(out))
            stack.callback(keep.remove)
        model.hf(**model.inputs(tokens))
    return Forms(blocks, attentions)


def clean_pass(
    model: Model, tokens: Tokens, layers: Sequence[int], rows: Tensor, positions: Tensor
) -> CleanPass:
    """Run the model as it is; keep the named layers' inputs and z, and the logits at the places."""
    model.require_clean()
    inputs: dict[int, Tensor] = {}
    z: dict[int, Tensor] = {}

    def keep_input(layer: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            inputs[layer] = _hidden(args, kwargs)

        return hook

    def keep_z(layer: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            z[layer] = args[0]

        return hook

    with ExitStack() as stack:
        for layer in layers:
            block, projection = model.seam.blocks[layer], model.seam.projections[layer]
            before = block.register_forward_pre_hook(keep_input(layer), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(projection.register_forward_pre_hook(keep_z(layer)).remove)
        logits = model.logits_at(tokens, rows, positions)
    return CleanPass(inputs, z, logits)


@contextmanager
def restarted(
    model: Model, layer: int, clean: CleanPass, copies: int = 1, share: bool = True
) -> Iterator[None]:
    """Within the block a pass over `copies` times the clean pass's rows begins at `layer`.

    The model's own forward still runs, so masks, positions and rotary tables are its own; the
    skipped layers hand their input on untouched. With `share`, the layer's attention is not
    computed again: its projection gets the clean pass's z, through the seam, where gates act.
    """
    forms = model.restart
    if forms is None:
        raise HeadlabError(f"{model.name} has not been proved to restart (headlab check)")
    hidden = clean.inputs[layer].repeat(copies, 1, 1)

    def replace(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _with_hidden(hidden, args, kwargs)

    def project(*_: Any, **__: Any) -> Tensor:
        return model.seam.projections[layer](clean.z[layer].repeat(copies, 1, 1))

    with ExitStack() as stack:
        for below in range(layer):
            form = forms.blocks[below]
            stack.enter_context(_answering(model.seam.blocks[below], _hand_on, form))
        block = model.seam.blocks[layer]
        stack.callback(block.register_forward_pre_hook(replace, with_kwargs=True).remove)
        attention = forms.attentions[layer]
        if share and attention is not None:
            stack.enter_context(_answering(model.seam.attentions[layer], project, attention))
        yield


class _HeadsReady(Exception):  # noqa: N818, nothing is wrong
    """Leaves a layer when its heads, gates applied, have reached the output projection."""

    def __init__(self, z: Tensor):
        self.z = z


@contextmanager
def ended_at(model: Model, rows: Tensor, positions: Tensor) -> Iterator[None]:
    """Within the block the last layer, after its attention, runs only at the given places.

    Its output is [some, position, hidden]: the places one after the other, the last of them
    repeated until the shape, which some models insist on, is full. Only for models whose attention
    can be answered for (`Forms.attentions`).
    """
    block, attention = model.seam.blocks[-1], model.seam.attentions[-1]
    projection = model.seam.projections[-1]
    form = model.restart.attentions[-1] if model.restart else None
    if form is None:
        raise HeadlabError(f"the last layer of {model.name} cannot end early")
    whole, project = block.forward, projection.forward

    def stop(z: Tensor) -> Tensor:
        raise _HeadsReady(z)

    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            with _answering(projection, stop, 0):
                whole(*args, **kwargs)
        except _HeadsReady as ready:
            z = ready.z  # [row, position, head · width]
        hidden = _hidden(args, kwargs)
        length = hidden.shape[1]
        full = -(-len(rows) // length) * length
        order = torch.arange(full, device=rows.device).clamp(max=len(rows) - 1).view(-1, length)
        places = rows[order].to(hidden.device), positions[order].to(hidden.device)
        args, kwargs = _with_hidden(hidden[places], args, kwargs)
        with _answering(attention, lambda *_, **__: project(z[places]), form):
            return whole(*args, **kwargs)

    with standing_in(block, forward):
        yield


def _hand_on(*args: Any, **kwargs: Any) -> Tensor:
    return _hidden(args, kwargs)


@contextmanager
def _answering(
    module: nn.Module, answer: Callable[..., Tensor], tuple_length: int
) -> Iterator[None]:
    """Within the block the module's forward is `answer`, in the form its callers expect."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        result = answer(*args, **kwargs)
        return (result, *[None] * (tuple_length - 1)) if tuple_length else result

    with standing_in(module, forward):
        yield


@contextmanager
def standing_in(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within the block the module's forward is this one."""
    own = module.__dict__.get("forward")  # accelerate puts one there, most modules have none
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(hidden, Tensor):
        raise HeadlabError("this model's layers are not called with their hidden states")
    return hidden


def _with_hidden(
    hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (hidden, *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": hidden}
