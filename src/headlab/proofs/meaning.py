"""That a gate means what it says: a model that fails one of these is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from headlab.gates import Gates
from headlab.heads import Head
from headlab.proofs.result import Proof, compared, difference, worst_layer
from headlab.seam import sightings

if TYPE_CHECKING:
    from headlab.model import Model
    from headlab.tokens import Tokens


def finite(model: Model, tokens: Tokens) -> Proof:
    logits = model(tokens)
    return Proof(
        "finite",
        "every logit is a finite number",
        float((~torch.isfinite(logits)).sum()),
        0.0,
        note="the number of logits that are NaN or infinite",
    )


def causal(model: Model, tokens: Tokens) -> Proof:
    claim = "changing the last token changes nothing before it"
    changed = tokens.ids.clone()
    changed[:, -1] = (tokens.ids[:, -1] + 1) % model.vocabulary
    other = tokens._replace(ids=changed)
    before, after = model(tokens)[:, :-1], model(other)[:, :-1]
    # In the first layer the same arithmetic has run on the same numbers, so that not a bit may
    # differ. There no rounding hides what leaks; in the logits a coarse dtype's would.
    first = [_first_heads(model, each)[:, :-1] for each in (tokens, other)]
    leak = Proof("causal", claim, difference(*first), 0.0, 0)
    proof = leak if not leak.passed else compared(model, "causal", claim, before, after)
    model.causal = proof.passed
    return proof


def _first_heads(model: Model, tokens: Tokens) -> Tensor:
    """The first layer's z, [example, position, head, width]."""
    seen: dict[int, Tensor] = {}
    model.observe(tokens, lambda layer, z: seen.update({layer: z.clone()}))
    return seen[0]


def identity(model: Model, tokens: Tokens) -> Proof:
    plain = model(tokens)
    with model.gated(Gates.ones(model)):
        gated = model(tokens)
    return Proof(
        "identity",
        "all gates 1 give the untouched model's logits bit for bit",
        difference(plain, gated),
        0.0,
    )


def called_once(model: Model, tokens: Tokens) -> Proof:
    calls = [0] * model.n_layers

    def count(layer: int, z: Tensor) -> None:
        calls[layer] += 1

    model.observe(tokens, count)
    worst = max(range(model.n_layers), key=lambda layer: abs(calls[layer] - 1))
    return Proof(
        "seam",
        "each layer's output projection is called once in a pass",
        float(abs(calls[worst] - 1)),
        0.0,
        worst,
        f"called {calls[worst]} times",
    )


def head_order(model: Model, tokens: Tokens) -> Proof:
    claim = "each head's slice of the projection's input is that head's attention output"
    seen = sightings(model.hf, tokens.ids, model.seam.paths)
    if len(seen) != model.n_layers:
        return Proof("heads", claim, float("inf"), 0.0, note=f"attention seen {len(seen)} times")
    return worst_layer(_head_order_of_layers(model, seen, claim))


def _head_order_of_layers(model: Model, seen: list[Any], claim: str) -> Iterator[Proof]:
    for layer, sighting in enumerate(seen):
        heads, width = sighting.output.shape[2:]
        if (heads, width) != (model.n_heads, model.head_width):
            note = (
                f"attention has {heads} heads of width {width}, "
                f"{model.n_heads} of width {model.head_width} were read"
            )
            yield Proof("heads", claim, float("inf"), 0.0, layer, note)
        else:
            z = sighting.z.unflatten(-1, (heads, width))
            yield Proof("heads", claim, difference(sighting.output, z), 0.0, layer)


def head_sum(model: Model, tokens: Tokens) -> Proof:
    outputs: dict[int, Tensor] = {}
    handles = [
        projection.register_forward_hook(
            lambda _, __, out, layer=layer: outputs.update({layer: out})
        )
        for layer, projection in enumerate(model.seam.projections)
    ]
    try:
        z = model.head_outputs(tokens)  # [layer, example, position, head, width]
    finally:
        for handle in handles:
            handle.remove()
    return worst_layer(_head_sum_of_layers(model, z, outputs))


def _head_sum_of_layers(model: Model, z: Tensor, outputs: dict[int, Tensor]) -> Iterator[Proof]:
    claim = "the heads' shares z_h W_h and the bias sum to the projection's own output"
    for layer, projection in enumerate(model.seam.projections):
        weight = _head_weights(model, layer)
        if weight is None:
            yield _unmeasured("sum", claim, layer)
            continue
        wide = torch.promote_types(z.dtype, torch.float32)
        shares = [
            z[layer, :, :, head].to(weight.device, wide) @ weight[head].to(wide)
            for head in range(model.n_heads)
        ]
        total = torch.stack(shares).sum(0)
        bias = getattr(projection, "bias", None)
        total = total if bias is None else total + bias.to(wide)
        yield compared(model, "sum", claim, outputs[layer].to(wide), total, layer)


def surgery(model: Model, tokens: Tokens) -> Proof:
    claim = "a head at gate 0 equals zeroing its columns of the projection's weight"
    if any(_head_weights(model, layer) is None for layer in range(model.n_layers)):
        note = "not measured: the projection's weight is not a plain matrix here"
        return Proof("ablation", claim, None, 0.0, note=note)
    plain = model(tokens)
    heads = [Head(layer, (layer + 1) % model.n_heads) for layer in range(model.n_layers)]
    single = [heads[layer] for layer in sorted({0, model.n_layers // 2, model.n_layers - 1})]
    return worst_layer(
        _surgery_of_heads(model, tokens, plain, claim, off)
        for off in [heads, *([h] for h in single)]
    )


def _surgery_of_heads(
    model: Model, tokens: Tokens, plain: Tensor, claim: str, off: list[Head]
) -> Proof:
    with model.gated(Gates.ablate(model, off)):
        gated = model(tokens)
    cut = {}
    for head in off:
        weights = _head_weights(model, head.layer)
        assert weights is not None
        weights = weights.clone()
        weights[head.head] = 0
        projection = model.seam.projections[head.layer]
        cut[f"{model.seam.paths[head.layer]}.weight"] = _as_weight(projection, weights)
    surgical = functional_call(model.hf, cut, (), model.inputs(tokens)).logits
    # Both sides add the same zeros, so that nothing but the order of sums may differ. A share of
    # the effect that would fit a coarse dtype's rounding must not pass: one head in every layer
    # at once, where a layer whose gates do nothing shows.
    rounding = compared(model, "ablation", claim, surgical, gated)
    allowed = min(rounding.tolerance, difference(plain, surgical) / 100)
    layer = off[0].layer if len(off) == 1 else None
    return dataclasses.replace(rounding, tolerance=allowed, layer=layer)


def _head_weights(model: Model, layer: int) -> Tensor | None:
    """The projection's weight by head, [head, width, hidden]; None if it is not a plain matrix."""
    projection = model.seam.projections[layer]
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.is_meta:
        return None
    if weight.dtype.itemsize < 2 or hasattr(projection, "base_layer"):
        return None  # quantised with a scale of its own; or an adapter adds to it
    weight = weight.detach() if isinstance(projection, Conv1D) else weight.detach().T
    return weight.reshape(model.n_heads, model.head_width, -1)


def _as_weight(projection: Any, by_head: Tensor) -> Tensor:
    weight = by_head.flatten(0, 1)
    return weight if isinstance(projection, Conv1D) else weight.T.contiguous()


def _unmeasured(name: str, claim: str, layer: int) -> Proof:
    note = "not measured: the projection's weight is not a plain matrix here"
    return Proof(name, claim, None, 0.0, layer, note)
