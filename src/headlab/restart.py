"""Shorten a pass: start it at a layer and a position, end it at the places that are read.

What lies below the start is skipped; its input and its heads are given. Rows that start higher up
join the pass there. Of positions where nothing changes only keys and values are needed, which the
clean pass has left. Above the last attention every position is by itself, so that the rest runs
only where logits are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headlab.errors import HeadlabError
from headlab.tokens import Beginning, Tokens

if TYPE_CHECKING:
    from headlab.model import Model


@dataclass(frozen=True)
class Forms:
    """How each layer and each attention answers: the length of its tuple, 0 for a bare tensor."""

    blocks: list[int]
    attentions: list[int | None]  # None: it gives more than the output projection's output
    ends_early: bool = False  # the last layer may end at the places read, as headlab.check proves
    joins: bool = False  # rows may join a pass at a layer, as headlab.check proves
    begins_late: bool = False  # passes may begin at a later position, as headlab.check proves
    shares: bool = False  # a row may run others' beginning under its mask, as headlab.check proves
    by_row: tuple[dict[str, int], ...] = ()  # what each layer is given for every row (`_rows_of`)


@dataclass(frozen=True)
class CleanPass:
    """What a pass without gates leaves for later ones to start from; positions from the end of the
    beginning on, if it has one."""

    inputs: dict[int, Tensor]  # of the layers asked for, [example, position, hidden]
    z: dict[int, Tensor]  # of the same layers, [example, position, head · width]
    logits: Tensor  # [place, vocabulary]
    beginning: Beginning | None = None

    def part(self, positions: slice, rows: Tensor | None = None) -> CleanPass:
        """Of these positions, and of these rows only."""

        def cut(values: dict[int, Tensor]) -> dict[int, Tensor]:
            some = {layer: each[:, positions] for layer, each in values.items()}
            return some if rows is None else {layer: each[rows] for layer, each in some.items()}

        beginning = self.beginning
        if beginning is not None and rows is not None:
            beginning = beginning.picked(rows)
        return CleanPass(cut(self.inputs), cut(self.z), self.logits, beginning)

    @staticmethod
    def joined(parts: Sequence[CleanPass]) -> CleanPass:
        """The rows of all parts, but for the logits."""

        def cat(values: Sequence[dict[int, Tensor]]) -> dict[int, Tensor]:
            return {layer: torch.cat([each[layer] for each in values]) for layer in values[0]}

        begun = [each.beginning for each in parts if each.beginning is not None]
        return CleanPass(
            cat([each.inputs for each in parts]),
            cat([each.z for each in parts]),
            parts[0].logits,
            Beginning.joined(begun) if begun else None,
        )


NOTHING = CleanPass({}, {}, torch.empty(0))  # where no later pass needs one


def learn_forms(model: Model, tokens: Tokens) -> Forms:
    """Watch one pass: what a skipped layer or attention would have to look like."""
    blocks: list[int] = []
    attentions: list[int | None] = []
    projected: list[Tensor] = []
    sizes: list[dict[str, int]] = []

    def before_block(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sizes.append({path: len(each) for path, each in _tensors(args, kwargs) if each.ndim})

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
    # A pass that needs a mask gives its layers one; others may give them none.
    shown = tokens.mask.clone()
    shown[:, 0] = False
    padded = tokens._replace(mask=shown, right=False)
    with ExitStack() as stack, torch.no_grad():
        for block in model.seam.blocks:
            hook = block.register_forward_pre_hook(before_block, with_kwargs=True)
            stack.callback(hook.remove)
        for each in (tokens, padded):
            for copies in (1, 3):
                model.hf(**model.inputs(each.repeated(copies)))
    n = model.n_layers
    bare, thrice, masked, masked_thrice = (sizes[k * n : (k + 1) * n] for k in range(4))
    rows = len(tokens.ids)
    by_row = tuple(
        {
            **_rows_of(bare[layer], thrice[layer], rows),
            **_rows_of(masked[layer], masked_thrice[layer], rows),
        }
        for layer in range(n)
    )
    return Forms(blocks, attentions, by_row=by_row)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """What a layer is given, each tensor by name, except for the hidden states."""
    named = {**{str(number): each for number, each in enumerate(args)}, **kwargs}
    hidden = _hidden(args, kwargs)
    for name, given in named.items():
        parts = enumerate(given) if isinstance(given, tuple) else [("", given)]
        for number, part in parts:
            if isinstance(part, Tensor) and part is not hidden:
                yield f"{name}.{number}", part


def _rows_of(few: dict[str, int], many: dict[str, int], rows: int) -> dict[str, int]:
    """What grew with the rows when there were three times as many, and its size for each row."""
    return {
        path: size // rows
        for path, size in few.items()
        if size % rows == 0 and many.get(path) == 3 * size
    }


def clean_pass(
    model: Model,
    tokens: Tokens,
    layers: Sequence[int],
    rows: Tensor,
    positions: Tensor,
    begin: int = 0,
) -> CleanPass:
    """Run the model as it is; keep the named layers' inputs and z, and the logits at the places.
    With `begin`, of the positions before it only keys and values are kept."""
    model.require_clean()
    inputs: dict[int, Tensor] = {}
    z: dict[int, Tensor] = {}
    beginning = Beginning(begin, len(tokens.ids)) if begin else None
    if beginning is not None:
        tokens = tokens.keeping(beginning, min(layers, default=0))

    def keep_input(layer: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            inputs[layer] = _hidden(args, kwargs)[:, begin:].contiguous()

        return hook

    def keep_z(layer: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            z[layer] = args[0][:, begin:].contiguous()

        return hook

    with ExitStack() as stack:
        for layer in layers:
            block, projection = model.seam.blocks[layer], model.seam.projections[layer]
            before = block.register_forward_pre_hook(keep_input(layer), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(projection.register_forward_pre_hook(keep_z(layer)).remove)
        logits = model.logits_at(tokens, rows, positions)
    return CleanPass(inputs, z, logits, beginning)


@contextmanager
def restarted(
    model: Model, starts: Mapping[int, int], clean: CleanPass, share: bool = True
) -> Iterator[None]:
    """Within the block a pass begins at the first of the layers `starts`, with so many copies of
    the clean pass's rows, and those of each later one join it there, after those that run already.

    The model's own forward still runs, over all rows, so masks, positions and rotary tables are its
    own; the skipped layers hand their input on untouched. With `share`, the first layer's attention
    is not computed again: its projection gets the clean pass's z, through the seam, where gates
    act.
    """
    forms = model.restart
    if forms is None:
        raise HeadlabError(f"{model.name} has not been proved to restart (headlab check)")
    if len(starts) > 1 and not forms.joins:
        raise HeadlabError(f"rows have not been proved to join {model.name} (headlab check)")
    layers = sorted(starts)
    first, last = layers[0], layers[-1]
    all_rows = sum(starts.values()) * len(clean.inputs[first])

    def entering(layer: int) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = _hidden(args, kwargs)
            if layer in starts:
                fresh = clean.inputs[layer].repeat(starts[layer], 1, 1)
                hidden = fresh if layer == first else torch.cat([hidden, fresh])
            args, kwargs = _with_hidden(hidden, args, kwargs)
            if layer < last:  # some are still missing
                return _cut(args, kwargs, forms.by_row[layer], len(hidden), all_rows)
            return args, kwargs

        return hook

    def project(*_: Any, **__: Any) -> Tensor:
        return model.seam.projections[first](clean.z[first].repeat(starts[first], 1, 1))

    with ExitStack() as stack:
        for below in range(first):
            form = forms.blocks[below]
            stack.enter_context(_answering(model.seam.blocks[below], _hand_on, form))
        for layer in range(first, last + 1):
            hook = model.seam.blocks[layer].register_forward_pre_hook(
                entering(layer), with_kwargs=True
            )
            stack.callback(hook.remove)
        attention = forms.attentions[first]
        if share and attention is not None:
            stack.enter_context(_answering(model.seam.attentions[first], project, attention))
        yield


def _cut(
    args: tuple[Any, ...], kwargs: dict[str, Any], by_row: dict[str, int], rows: int, all_rows: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a layer is given, for the first rows only."""

    def cut(name: str, given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(own(f"{name}.{number}", part) for number, part in enumerate(given))
        return own(f"{name}.", given)

    def own(path: str, part: Any) -> Any:
        each = by_row.get(path)
        if each is None or not isinstance(part, Tensor) or len(part) != each * all_rows:
            return part
        return part[: each * rows]

    cut_args = tuple(cut(str(number), each) for number, each in enumerate(args))
    return cut_args, {name: cut(name, each) for name, each in kwargs.items()}


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
