"""The formula every intervention is made of: z' = g·z + (1 − g)·r, one gate g per head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headlab import fused
from headlab.errors import HeadlabError
from headlab.heads import Head, as_heads, require_in_range

if TYPE_CHECKING:
    from headlab.model import Model

_CHUNK = 32  # prompts in one pass when a mean is taken: bounds memory, changes no number

Heads = str | Head | Iterable[str | Head]  # "L5H1,L7H2", Head(5, 1), or a list of either
AXES = ("mask", "example", "layer", "head", "position")


def gate_heads(z: Tensor, g: Tensor, r: Tensor | None) -> Tensor:
    """g·z + (1 − g)·r in float32 or wider, returned in z's dtype.

    Shapes: z [row, position, head, width]; g [row|1, position|1, head, 1];
    r [rows that come again and again, position|1, head, width], or None for zero.
    At g = 1 the result equals z exactly, at g = 0 it equals r exactly, in any dtype.
    """
    wide = torch.promote_types(z.dtype, torch.float32)
    g = g.to(device=z.device, dtype=wide)
    r = None if r is None else r.detach().to(z.device)
    if torch.is_grad_enabled() and (g.requires_grad or z.requires_grad):
        return _Gated.apply(z, g, r)  # type: ignore[no-untyped-call]
    return _gated(z, g, r)


def _gated(z: Tensor, g: Tensor, r: Tensor | None) -> Tensor:
    if fused.can_gate(z, g, r):
        return fused.gate(z, g, r)
    if r is None:
        return torch.mul(g, z, out=torch.empty_like(z))  # in g's dtype as below, in one kernel
    return (g * z.to(g.dtype) + (1 - g) * _for_rows(r, z).to(g.dtype)).to(z.dtype)


def _for_rows(r: Tensor, z: Tensor) -> Tensor:
    return r if len(r) in (1, len(z)) else r.repeat(len(z) // len(r), 1, 1, 1)


class _Gated(torch.autograd.Function):
    """Where gradients are wanted: nothing wide is kept for the way back. The reference has none."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, g: Tensor, r: Tensor | None) -> Tensor:
        ctx.save_for_backward(z, g, *(() if r is None else (r,)))
        return _gated(z, g, r)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        slope = slopes[0].contiguous()
        z, g, *rest = ctx.saved_tensors
        r = rest[0] if rest else None
        again = torch.is_grad_enabled()  # somebody wants the slope's slope: torch's own operations
        if not again and fused.can_gate(z, g, r, slope):
            to_z, to_g = fused.gate_back(slope, z, g, r)
            return to_z, to_g.sum_to_size(g.shape), None
        dz: Tensor | None = None
        dg: Tensor | None = None
        if ctx.needs_input_grad[0]:
            dz = (g * slope).to(slope.dtype) if again else _gated(slope, g, None)
        if ctx.needs_input_grad[1]:
            moved = z if r is None else z.to(g.dtype) - _for_rows(r, z).to(g.dtype)
            dg = (slope.to(g.dtype) * moved).sum_to_size(g.shape)
        return dz, dg, None


class Gates:
    """Gate values with named axes: any number of masks, each a gate per layer and head.

    `axes` names the axes of `values` in order; layer and head are always there, mask, example
    and position if the gates differ along them. Inside, all five axes stand in one fixed order,
    with size 1 where nothing differs.

    >>> Gates(torch.ones(2, 4)).values.shape                                  # layer head
    torch.Size([1, 1, 2, 4, 1])
    >>> Gates(torch.ones(3, 2, 4)).values.shape                               # mask layer head
    torch.Size([3, 1, 2, 4, 1])
    >>> Gates(torch.ones(3, 2, 4, 7), "mask layer head position").values.shape
    torch.Size([3, 1, 2, 4, 7])
    """

    def __init__(self, values: Tensor, axes: str | None = None):
        try:
            values = torch.as_tensor(values)
        except (RuntimeError, TypeError, ValueError):
            raise HeadlabError(f"gates are a tensor of numbers, not {values!r}") from None
        if axes is None:
            default = {2: "layer head", 3: "mask layer head"}
            if values.ndim not in default:
                raise HeadlabError(
                    f"gates of shape {list(values.shape)} need their axes named, "
                    'e.g. Gates(values, "mask layer head position")'
                )
            axes = default[values.ndim]
        names = axes.split()
        if len(names) != values.ndim or len(set(names)) != len(names):
            raise HeadlabError(f"gates of shape {list(values.shape)} do not have the axes {axes!r}")
        if not {"layer", "head"} <= set(names) <= set(AXES):
            raise HeadlabError(
                f"the axes of gates are layer and head, and any of mask, example, position; "
                f"{axes!r} was given"
            )
        if not values.is_floating_point():
            values = values.float()
        if not values.numel():
            raise HeadlabError(f"gates of shape {list(values.shape)} hold no mask")
        if not torch.isfinite(values).all():
            raise HeadlabError("gates must be finite numbers; NaN or infinity was given")
        present = [name for name in AXES if name in names]
        values = values.permute([names.index(name) for name in present])
        for axis, name in enumerate(AXES):
            if name not in names:
                values = values.unsqueeze(axis)
        self.values = values  # [mask, example|1, layer, head, position|1]

    def __repr__(self) -> str:
        sizes = zip(AXES, self.values.shape, strict=True)
        return f"Gates({', '.join(f'{axis} {size}' for axis, size in sizes if size > 1)})"

    @property
    def n_masks(self) -> int:
        return self.values.shape[0]

    def to(self, device: torch.device) -> Gates:
        """The same gates there, without waiting for the copy or checking the values again."""
        from_cpu = device.type == "cuda" and self.values.device.type == "cpu"
        values = self.values.pin_memory() if from_cpu else self.values
        return Gates.unseen(values.to(device, non_blocking=True))

    @classmethod
    def unseen(cls, values: Tensor) -> Gates:
        """Gates of all five axes that are known to be finite: to look would wait for a GPU."""
        made = object.__new__(cls)
        made.values = values
        return made

    @classmethod
    def ones(cls, model: Model) -> Gates:
        """Every head as it is."""
        return cls(torch.ones(model.n_layers, model.n_heads))

    @classmethod
    def ablate(cls, model: Model, heads: Heads, scale: float = 0.0) -> Gates:
        """The named heads at `scale`, all others at 1."""
        return cls(_set_heads(model, heads, at=scale, others=1.0))

    @classmethod
    def keep(cls, model: Model, heads: Heads, scale: float = 0.0) -> Gates:
        """The named heads at 1, all others at `scale`."""
        return cls(_set_heads(model, heads, at=1.0, others=scale))

    @classmethod
    def each_head(cls, model: Model, scale: float = 0.0) -> Gates:
        """One mask per head, that head at `scale`; masks in the order L0H0, L0H1, ..., L1H0, ..."""
        n = model.n_layers * model.n_heads
        return cls((1 - (1 - scale) * torch.eye(n)).view(n, model.n_layers, model.n_heads))

    @classmethod
    def stack(cls, gates: Sequence[Gates]) -> Gates:
        """All their masks one after the other. The other axes must agree."""
        return cls(torch.cat([each.values for each in gates]), " ".join(AXES))

    def for_rows(self, layer: int, rows: int, positions: int, masks: int | None = None) -> Tensor:
        """This layer's gates for a batch: [row|1, position|1, head, 1].

        The batch holds every mask in turn, or the first so many, each with every example:
        row = mask · examples + example.
        """
        _, examples, _, heads, _ = self.values.shape
        values = self.values[:masks, :, layer]  # [mask, example|1, head, position|1]
        masks = len(values)
        if rows % masks:
            raise HeadlabError(
                f"{masks} masks need a batch of {masks} x examples rows, {rows} rows were given"
            )
        if examples not in (1, rows // masks):
            raise HeadlabError(
                f"gates for {examples} examples do not fit {rows // masks} examples "
                f"({rows} rows, {masks} masks)"
            )
        if values.shape[-1] not in (1, positions):
            raise HeadlabError(
                f"gates for {values.shape[-1]} positions do not fit "
                f"a pass over {positions} positions"
            )
        if masks > 1 or examples > 1:
            values = values.expand(-1, rows // masks, -1, -1)
        values = values.reshape(-1, heads, values.shape[-1])  # [row|1, head, position|1]
        return values.transpose(1, 2).unsqueeze(-1)


def _set_heads(model: Model, heads: Heads, at: float, others: float) -> Tensor:
    largest = torch.finfo(torch.float32).max
    if not (abs(at) <= largest and abs(others) <= largest):  # NaN fails this too
        raise HeadlabError(f"gates must be finite numbers, not {at if others == 1 else others}")
    values = torch.full((model.n_layers, model.n_heads), float(others))
    for head in require_in_range(as_heads(heads), model.n_layers, model.n_heads, model.name):
        values[head] = at
    return values


@dataclass(frozen=True)
class Reference:
    """What stands in for a head's output where its gate is not 1.

    `values` is [layer, example|1, position|1, head, width], None for zero. It comes from clean runs
    and is fixed from then on: gates never change it.
    """

    kind: Literal["zero", "mean", "counterfactual"] = "zero"
    values: Tensor | None = field(default=None, repr=False)
    examples: tuple[str, ...] = ()  # the prompts it was computed from

    def for_rows(self, layer: int, rows: int, masks: int, positions: int) -> Tensor | None:
        """This layer's reference for a batch: [example|1, position|1, head, width], for every mask
        in turn."""
        if self.values is None:
            return None
        values = self.values[layer]
        examples = values.shape[0]
        if examples not in (1, rows // masks):
            raise HeadlabError(
                f"a reference of {examples} examples does not fit {rows // masks} examples "
                f"({rows} rows, {masks} masks)"
            )
        if values.shape[1] not in (1, positions):
            raise HeadlabError(
                f"a {self.kind} reference of {values.shape[1]} positions does not fit "
                f"a pass over {positions} positions"
            )
        return values

    def part(self, positions: slice, rows: Tensor | None = None) -> Reference:
        """For passes over these positions, and over these rows only."""
        if self.values is None:
            return self
        values = self.values
        if values.shape[2] > 1:
            values = values[:, :, positions].contiguous()
        if values.shape[1] > 1 and rows is not None:
            values = values[:, rows]
        return Reference(self.kind, values, self.examples)

    @staticmethod
    def joined(parts: Sequence[Reference]) -> Reference:
        """For the examples of all parts: each its own, or one for all."""
        one = parts[0]
        if one.values is None or one.kind != "counterfactual":
            return one
        values = [each.values for each in parts if each.values is not None]
        return Reference(one.kind, torch.cat(values, 1), one.examples)


ZERO = Reference()


def mean_reference(
    model: Model, prompts: Sequence[str | Tensor], per_position: bool = False
) -> Reference:
    """Each head's mean output over the prompts' clean runs.

    Over examples and positions together, every real token counting once; or, with `per_position`,
    over examples only, which means something only for prompts of one template and so of one length.
    """
    if isinstance(prompts, (str, Tensor)) or not len(prompts):
        raise HeadlabError("a mean reference needs a list of prompts, at least one")
    lengths = sorted({_length(model, number, prompt) for number, prompt in enumerate(prompts, 1)})
    if per_position and len(lengths) > 1:
        raise HeadlabError(
            "a mean per position needs prompts of one template and one length in tokens; "
            f"these have {lengths[0]} to {lengths[-1]}; take the mean over positions instead"
        )
    sums: list[Tensor | float] = [0.0] * model.n_layers
    count = 0

    def add(layer: int, z: Tensor) -> None:  # z [example, position, head, width]
        real = tokens.mask.to(z.device)[:, :, None, None]
        z = torch.where(real, z, 0).double()  # pads are dropped, whatever they hold
        sums[layer] += z.sum(0 if per_position else (0, 1), keepdim=True)[None]

    for start in range(0, len(prompts), _CHUNK):
        tokens = model.tokens(prompts[start : start + _CHUNK])
        count += len(tokens.ids) if per_position else int(tokens.mask.sum())
        model.observe(tokens, add)
    values = torch.cat(
        [torch.as_tensor(each).cpu() for each in sums]
    )  # [layer, 1, position|1, ...]
    values = (values / count).to(torch.promote_types(model.dtype, torch.float32)).to(model.device)
    return Reference("mean", values, tuple(str(prompt) for prompt in prompts))


def _length(model: Model, number: int, prompt: str | Tensor) -> int:
    try:
        return len(model.ids(prompt))
    except HeadlabError as error:
        raise HeadlabError(f"prompt {number} of the reference data: {error}") from None


def counterfactual_reference(
    model: Model, prompts: Sequence[str | Tensor], counterfactuals: Sequence[str | Tensor]
) -> Reference:
    """Each head's output on the counterfactual of each prompt, position by position."""
    if isinstance(prompts, (str, Tensor)) or isinstance(counterfactuals, (str, Tensor)):
        raise HeadlabError("a counterfactual reference needs lists of prompts")
    if len(prompts) != len(counterfactuals):
        raise HeadlabError(
            f"{len(prompts)} prompts and {len(counterfactuals)} counterfactuals were given; "
            "each prompt needs its own"
        )
    ours, theirs = model.tokens(prompts), model.tokens(counterfactuals)
    ours_lengths, theirs_lengths = ours.mask.sum(1).tolist(), theirs.mask.sum(1).tolist()
    for number, (a, b) in enumerate(zip(ours_lengths, theirs_lengths, strict=True), start=1):
        if a != b:
            which = "the" if len(prompts) == 1 else f"pair {number}: the"
            raise HeadlabError(
                f"{which} prompt has {a} tokens and its counterfactual {b}; "
                "they must have the same length, token by token"
            )
    values = model.head_outputs(theirs)
    return Reference("counterfactual", values, tuple(str(text) for text in counterfactuals))
