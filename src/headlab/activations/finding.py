"""Find the first MLP's activation function, and see or change what it gives.

act(gate_proj(x)) of a gated MLP, act(c_fc(x)) of a plain one: a module without weights that stands
in the first layer, outside its attention. It is recognised by what it does, not by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.model import Model

Change = Callable[[Tensor], Tensor | None]  # [row, position, width] -> the same, or None: as it is


@dataclass(frozen=True)
class Activation:
    """The activation of the first layer's MLP."""

    path: str  # as in named_modules
    module: nn.Module
    block: nn.Module  # the layer it stands in

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Within the block, `change` sees what the activation gives, [row, position, width], and
        may replace it."""
        shape: list[int] = []  # rows and positions of the pass under way

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]  # [row, position, hidden]
            shape[:] = hidden.shape[:2]

        def after(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            given = output.reshape(*shape, output.shape[-1])  # OPT has rows and positions in one
            new = change(given)
            return None if new is None else new.reshape(output.shape)

        with ExitStack() as stack:
            handle = self.block.register_forward_pre_hook(before, with_kwargs=True)
            stack.callback(handle.remove)
            stack.callback(self.module.register_forward_hook(after).remove)
            yield


def find_activation(model: Model) -> Activation:
    """The one activation of the first layer that every token passes once, or a sentence that says
    why there is none.

    >>> find_activation(headlab.load("smollm2")).path                         # doctest: +SKIP
    'model.layers.0.mlp.act_fn'
    """
    block, attention = model.seam.blocks[0], model.seam.attentions[0]
    start = next(path for path, module in model.hf.named_modules() if module is block)
    inside = set(attention.modules())
    found = [
        (f"{start}.{path}", module)
        for path, module in block.named_modules()
        if module not in inside and _is_activation(module, model)
    ]
    if any("expert" in path for path, _ in block.named_modules()):
        raise HeadlabError(
            f"the first MLP of {model.name} is a mixture of experts, where each token has "
            "activations of its own experts; Headlab measures and changes those of a single MLP"
        )
    if len(found) != 1:
        kind = type(block).__name__
        names = ", ".join(path for path, _ in found)
        said = f"{len(found)} activation functions ({names})" if found else "no activation function"
        raise HeadlabError(
            f"{said} found in the first layer of {model.name} ({kind}) outside its attention; "
            "Headlab needs one module that every token passes once"
        )
    activation = Activation(*found[0], block)
    _require_each_token_once(model, activation)
    return activation


def _is_activation(module: nn.Module, model: Model) -> bool:
    """Without weights or parts of its own, and number by number, not in proportion: no dropout,
    no norm, no identity."""
    if [*module.children(), *module.parameters(), *module.buffers()]:
        return False
    x = torch.tensor([[[-2.0, -0.5, 0.5, 1.0, 3.0]]], dtype=model.dtype, device=model.device)
    try:
        with torch.no_grad():
            whole = module(x)
            single = module(x[..., 1:2])
    except Exception:  # it takes other things than numbers
        return False
    if not isinstance(whole, Tensor) or whole.shape != x.shape or not whole.isfinite().all():
        return False
    by_number = torch.allclose(whole[..., 1:2], single, rtol=1e-3, atol=1e-4)
    straight = torch.allclose(whole, x * whole[..., 3:4], rtol=1e-3, atol=1e-4)
    return by_number and not straight


def _require_each_token_once(model: Model, activation: Activation) -> None:
    calls: list[tuple[int, ...]] = []

    def look(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        calls.append(tuple(output.shape))

    ids = torch.zeros(2, 5, dtype=torch.long, device=model.device)
    handle = activation.module.register_forward_hook(look)
    try:
        with torch.no_grad():
            model(list(ids))
    finally:
        handle.remove()
    if len(calls) != 1 or calls[0][:-1] not in ((2, 5), (10,)):
        raise HeadlabError(
            f"the activation function {activation.path} of {model.name} is not passed once by "
            "every token, so it has no statistics of its own"
        )
