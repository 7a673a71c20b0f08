"""Formulas that models spell out in many kernels, in few: RMS norms, gated MLPs, rotary positions.

Each kernel is a trip through the GPU's memory. A stand-in is used only where `headlab.check` has
found it as exact as the model's own, against float32, and only while the engine runs.

Attention is one kernel already, of which torch has several. cuDNN's makes a plan for every new
shape of its input, which takes longer than a pass of a small model; our passes are of all shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headlab import fused
from headlab.restart import standing_in

if TYPE_CHECKING:
    from headlab.model import Model


@dataclass(frozen=True)
class Norm:
    """A module that is an RMS norm: x / sqrt(mean(x²) + eps) times a scale, last axis."""

    name: str
    module: nn.Module
    eps: float
    from_one: bool  # the scale is 1 + weight, as in Gemma

    def __call__(self, hidden: Tensor) -> Tensor:
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        if not self.from_one:
            return functional.rms_norm(hidden, weight.shape, weight, self.eps)
        # 1 + weight has no room in a narrow dtype; such models multiply in float32 themselves.
        wide = torch.promote_types(hidden.dtype, torch.float32)
        scale = 1 + weight.to(wide)
        return functional.rms_norm(hidden.to(wide), weight.shape, scale, self.eps).to(hidden.dtype)

    def standing_for(self, own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Its forward, with `own` for calls it was not proved on."""

        def forward(hidden: Tensor, *rest: Any, **named: Any) -> Tensor:
            if rest or named or hidden.dtype != self.module.weight.dtype:
                return own(hidden, *rest, **named)
            return self(hidden)

        return forward

    def excess(self) -> float:
        """Its error on random input beyond what is allowed; at most 0 where it may stand in."""
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        random = torch.Generator().manual_seed(0)
        rows = torch.randn(8, len(weight), generator=random)
        rows *= torch.logspace(-3, 3, 8)[:, None]  # the smallest shows eps, the largest overflow
        hidden = rows.to(weight.device, weight.dtype)
        return _excess(self(hidden), self.module(hidden), self.module(hidden.float()))


def find_norms(network: nn.Module) -> list[Norm]:
    """The RMS norms among a model's modules, by name and attributes; nothing is proved yet."""
    norms = []
    for name, module in network.named_modules():
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if "RMSNorm" not in type(module).__name__ or not isinstance(eps, float):
            continue
        if isinstance(weight, Tensor) and weight.ndim == 1 and not weight.is_meta:
            candidates = (Norm(name, module, eps, from_one) for from_one in (False, True))
            try:
                norms.append(min(candidates, key=Norm.excess))
            except Exception:  # it takes more than hidden states: not the norm it is called
                continue
    return norms


@dataclass(frozen=True)
class GatedMlp:
    """A module that is down(silu(gate(x)) · up(x)), with modules of the usual names."""

    name: str
    module: nn.Module
    act: nn.Module  # as it was found

    def __call__(self, hidden: Tensor) -> Tensor:
        part: dict[str, Any] = self.module._modules
        return part["down_proj"](swiglu(part["gate_proj"](hidden), part["up_proj"](hidden)))

    def standing_for(self, own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Its forward, with `own` where somebody changed the activation, or looks at it."""
        act = self.act
        looking = (
            *(act._forward_hooks, act._forward_pre_hooks),
            *(act._backward_hooks, act._backward_pre_hooks),
        )

        def forward(hidden: Tensor, *rest: Any, **named: Any) -> Tensor:
            changed = self.module.act_fn is not act or "forward" in act.__dict__
            if rest or named or changed or any(looking):
                return own(hidden, *rest, **named)
            return self(hidden)

        return forward

    def excess(self) -> float:
        """As of a norm, for the product and its slopes, numbers of each size by themselves;
        infinite where the module does something else."""
        module: Any = self.module
        random = torch.Generator().manual_seed(0)
        weight: Tensor = module.gate_proj.weight
        given = torch.randn(8, module.gate_proj.in_features, generator=random)
        given *= torch.logspace(-1, 4, 8)[:, None]  # the largest would show a limit
        hidden = given.to(weight.device, weight.dtype)[None]
        spelled = module.down_proj(self.act(module.gate_proj(hidden)) * module.up_proj(hidden))
        own = module(hidden)
        if not ((own == spelled) | (own.isnan() & spelled.isnan())).all():
            return float("inf")
        numbers = torch.randn(3, 8, 256, generator=random) * torch.logspace(-3, 1.5, 8)[:, None]
        gate, up, slope = numbers.to(weight.device, weight.dtype)
        wide = [each.double() for each in (gate, up, slope)]
        found = (
            _with_slopes(swiglu, gate, up, slope),
            _with_slopes(lambda gate, up: self.act(gate) * up, gate, up, slope),
            _with_slopes(lambda gate, up: self.act(gate) * up, *wide),
        )
        rows = zip(*(each.flatten(0, 1) for each in found), strict=True)
        return max(_excess(*row) for row in rows)


def _with_slopes(product: Callable[..., Tensor], gate: Tensor, up: Tensor, slope: Tensor) -> Tensor:
    """What it gives, and the slopes of both, [3, ...]."""
    with torch.enable_grad():
        inputs = [each.detach().requires_grad_() for each in (gate, up)]
        given = product(*inputs)
        slopes = torch.autograd.grad(given, inputs, slope)
    return torch.stack([given.detach(), *slopes])


def find_mlps(network: nn.Module) -> list[GatedMlp]:
    """The MLPs gated by silu among a model's modules; nothing is proved yet."""
    parts = {"gate_proj", "up_proj", "down_proj", "act_fn"}
    return [
        GatedMlp(name, module, module.act_fn)
        for name, module in network.named_modules()
        if parts <= {*module._modules} and _is_silu(module)
    ]


def _is_silu(mlp: Any) -> bool:
    weight = getattr(mlp.gate_proj, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.is_meta:
        return False
    numbers = torch.linspace(-4, 4, 9, device=weight.device)
    try:
        return torch.allclose(mlp.act_fn(numbers), functional.silu(numbers), atol=1e-6)
    except Exception:  # it takes other things than numbers
        return False


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up"""
    if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        return _Swiglu.apply(gate, up)  # type: ignore[no-untyped-call]
    if fused.can_swiglu(gate, up):
        return fused.swiglu(gate, up)
    return functional.silu(gate) * up


class _Swiglu(torch.autograd.Function):
    """Where gradients are wanted: of all that is computed only gate and up are kept."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return swiglu(gate, up)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        slope = slopes[0].contiguous()
        if not torch.is_grad_enabled() and fused.can_swiglu(slope, gate, up):
            return fused.swiglu_back(slope, gate, up)
        narrow, wide = gate.dtype, torch.promote_types(gate.dtype, torch.float32)
        slope, gate, up = (each.to(wide) for each in (slope, gate, up))
        open_ = gate.sigmoid()
        to_gate = slope * up * open_ * (1 + gate * (-gate).sigmoid())
        return to_gate.to(narrow), (slope * gate * open_).to(narrow)


_ROTARY = "apply_rotary_pos_emb"  # what every file of transformers calls it
Rotary = Callable[..., tuple[Tensor, Tensor]]


def rotate(
    own: Rotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    """q and k turned by their positions, half against half; anything unusual by the model's own."""
    if rest or named or {x.dtype for x in (q, k, cos, sin)} != {q.dtype} or cos.shape[-1] % 2:
        return own(q, k, cos, sin, *rest, **named)
    if not q.shape[-1] == k.shape[-1] == cos.shape[-1]:  # only a part of each head is turned
        return own(q, k, cos, sin)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [row, 1, position, width]
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        turned = [_Turned.apply(x, cos, sin, False) for x in (q, k)]  # type: ignore[no-untyped-call]
        return turned[0], turned[1]
    return _turn(q, cos, sin), _turn(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    if fused.can_turn(x, cos, sin):
        return fused.turn(x, cos, sin, back)
    half = x.shape[-1] // 2
    sin = -sin.roll(half, -1) if back else sin
    low, high = x[..., :half], x[..., half:]
    turned = torch.empty_like(x)
    torch.mul(low, cos[..., :half], out=turned[..., :half])
    torch.mul(high, cos[..., half:], out=turned[..., half:])
    turned[..., :half].addcmul_(high, sin[..., :half], value=-1)
    turned[..., half:].addcmul_(low, sin[..., half:])
    return turned


class _Turned(torch.autograd.Function):
    """Where gradients are wanted: the way back turns the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.back = back
        return _turn(x, cos, sin, back)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        given = slopes[0], *ctx.saved_tensors, not ctx.back
        if torch.is_grad_enabled():  # somebody wants the slope's slope
            return _Turned.apply(*given), None, None, None  # type: ignore[no-untyped-call]
        return _turn(*given), None, None, None


def find_rotary(model: Model) -> Rotary | None:
    """The function that turns this model's q and k, if it has one of the usual name."""
    found = getattr(_file_of(model), _ROTARY, None)
    if isinstance(found, partial) and found.func is rotate:  # another model runs just now
        return found.args[0]
    return found


def _file_of(model: Model) -> ModuleType:
    """The file of Python code that its attention comes from."""
    return sys.modules[type(model.seam.attentions[0]).__module__]


def rotary_excess(model: Model, own: Rotary) -> float:
    """The error of `rotate` on random input beyond what is allowed, as for a norm."""
    random = torch.Generator().manual_seed(0)
    shapes = [(2, 8, 9, 16), (2, 4, 9, 16), (2, 9, 16), (2, 9, 16)]  # q, k, cos, sin
    inputs = [torch.randn(s, generator=random).to(model.device, model.dtype) for s in shapes]
    exact = own(*(each.float() for each in inputs))
    pairs = zip(rotate(own, *inputs), own(*inputs), exact, strict=True)
    return max(_excess(*each) for each in pairs)  # of q and of k


def _excess(ours: Tensor, theirs: Tensor, exact: Tensor) -> float:
    """How far our error is above theirs, or above float32's rounding."""

    def size(x: Tensor) -> float:
        return float(x.double().square().mean().sqrt())

    allowed = max(1.05 * size(theirs - exact), 1e-6 * size(exact))
    return size(ours - exact) - allowed


@contextmanager
def few_kernels(model: Model) -> Iterator[None]:
    """Within the block the model's proved norms, MLPs and rotary positions run in few kernels,
    and attention in one that needs no plan."""
    with ExitStack() as stack:
        planned = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
        stack.callback(torch.backends.cuda.enable_cudnn_sdp, planned)
        torch.backends.cuda.enable_cudnn_sdp(False)
        standing: list[Norm | GatedMlp] = [*model.norms, *model.mlps]
        for each in standing:
            if "forward" in each.module.__dict__:  # somebody else's, or ours already
                continue
            stack.enter_context(standing_in(each.module, each.standing_for(each.module.forward)))
        file = _file_of(model)
        own = getattr(file, _ROTARY, None)
        if model.rotary is not None and own is model.rotary:  # nobody else has replaced it
            stack.callback(setattr, file, _ROTARY, own)
            setattr(file, _ROTARY, partial(rotate, own))
        yield


def gpu_kernels(model: Model) -> AbstractContextManager[None]:
    """Few kernels on a GPU; on a CPU they gain nothing, and the model stays as it is."""
    return few_kernels(model) if model.device.type == "cuda" else nullcontext()
