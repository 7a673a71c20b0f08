"""Prove on the loaded model that a gate means what it says; refuse the model if it does not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from headlab.errors import HeadlabError
from headlab.gates import Gates
from headlab.heads import Head
from headlab.restart import clean_pass, learn_forms, restarted
from headlab.seam import sightings
from headlab.standins import GatedMlp, Norm, find_mlps, find_norms, find_rotary, rotary_excess

if TYPE_CHECKING:
    from headlab.model import Model, Tokens

Standing = TypeVar("Standing", Norm, GatedMlp)

# Largest allowed difference, relative to the largest number compared: some hundred roundings.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
_PROMPTS, _LENGTH = 2, 11  # of the random tokens the proofs run on


@dataclass(frozen=True)
class Proof:
    """One claim, how far the numbers were from it, and how far they may be."""

    name: str
    claim: str
    difference: float | None  # the largest seen; None where it could not be measured
    tolerance: float
    layer: int | None = None  # where it was seen
    note: str = ""
    required: bool = True  # False: the model is still usable, something is switched off

    @property
    def passed(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance

    @property
    def refuses(self) -> bool:
        return self.required and self.difference is not None and not self.passed


@dataclass(frozen=True)
class Check:
    """All proofs of one model."""

    model: str
    proofs: list[Proof]

    @property
    def passed(self) -> bool:
        return not any(proof.refuses for proof in self.proofs)

    def require(self) -> Check:
        """Itself, or the first broken proof as an error."""
        for proof in self.proofs:
            if proof.refuses:
                where = "" if proof.layer is None else f" in layer {proof.layer}"
                note = f" ({proof.note})" if proof.note else ""
                raise HeadlabError(
                    f"{self.model} fails its check{where}: {proof.claim}, but the difference is "
                    f"{proof.difference:.3g} where {proof.tolerance:.3g} is allowed{note}"
                )
        return self

    def as_dict(self) -> dict[str, Any]:
        proofs = [{**asdict(proof), "passed": proof.passed} for proof in self.proofs]
        return {"model": self.model, "passed": self.passed, "proofs": proofs}


@torch.no_grad()
def check(model: Model) -> Check:
    """Run every proof on random tokens and report the largest difference of each.

    Never raises for a wrong model: `.passed` says, `.require()` raises. As a side effect the model
    learns which shortcuts are proved: ids without mask and positions, restarting at a layer,
    joining a pass there, logits at chosen places only, the last layer at those places only, norms,
    MLPs and rotary positions in few kernels.

    >>> headlab.check(model).passed                                           # doctest: +SKIP
    True
    """
    tokens = _random_tokens(model)
    model.bare = model.causal = model.cuts_logits = False
    model.restart = None
    proofs = []
    for prove in (_finite, _called_once, _causal, _identity, _head_order, _head_sum, _surgery):
        proof = prove(model, tokens)
        proofs.append(proof)
        if proof.refuses and prove in (_finite, _called_once):
            break  # nothing after it could be computed
    else:
        shortcuts = (_bare, _places, _restart, _joining, _ending, _norms, _mlps, _rotary)
        proofs += [prove(model, tokens) for prove in shortcuts]
    return Check(model.name, proofs)


def _finite(model: Model, tokens: Tokens) -> Proof:
    logits = model(tokens)
    return Proof(
        "finite",
        "every logit is a finite number",
        float((~torch.isfinite(logits)).sum()),
        0.0,
        note="the number of logits that are NaN or infinite",
    )


def _causal(model: Model, tokens: Tokens) -> Proof:
    claim = "changing the last token changes nothing before it"
    changed = tokens.ids.clone()
    changed[:, -1] = (tokens.ids[:, -1] + 1) % model.vocabulary
    other = tokens._replace(ids=changed)
    before, after = model(tokens)[:, :-1], model(other)[:, :-1]
    # In the first layer the same arithmetic has run on the same numbers, so that not a bit may
    # differ. There no rounding hides what leaks; in the logits a coarse dtype's would.
    first = [_first_heads(model, each)[:, :-1] for each in (tokens, other)]
    leak = Proof("causal", claim, _difference(*first), 0.0, 0)
    proof = leak if not leak.passed else _compared(model, "causal", claim, before, after)
    model.causal = proof.passed
    return proof


def _first_heads(model: Model, tokens: Tokens) -> Tensor:
    """The first layer's z, [example, position, head, width]."""
    seen: dict[int, Tensor] = {}
    model.observe(tokens, lambda layer, z: seen.update({layer: z.clone()}))
    return seen[0]


def _identity(model: Model, tokens: Tokens) -> Proof:
    plain = model(tokens)
    with model.gated(Gates.ones(model)):
        gated = model(tokens)
    return Proof(
        "identity",
        "all gates 1 give the untouched model's logits bit for bit",
        _difference(plain, gated),
        0.0,
    )


def _called_once(model: Model, tokens: Tokens) -> Proof:
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


def _head_order(model: Model, tokens: Tokens) -> Proof:
    claim = "each head's slice of the projection's input is that head's attention output"
    seen = sightings(model.hf, tokens.ids, model.seam.paths)
    if len(seen) != model.n_layers:
        return Proof("heads", claim, float("inf"), 0.0, note=f"attention seen {len(seen)} times")
    return _worst_layer(_head_order_of_layers(model, seen, claim))


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
            yield Proof("heads", claim, _difference(sighting.output, z), 0.0, layer)


def _head_sum(model: Model, tokens: Tokens) -> Proof:
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
    return _worst_layer(_head_sum_of_layers(model, z, outputs))


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
        yield _compared(model, "sum", claim, outputs[layer].to(wide), total, layer)


def _surgery(model: Model, tokens: Tokens) -> Proof:
    claim = "a head at gate 0 equals zeroing its columns of the projection's weight"
    if any(_head_weights(model, layer) is None for layer in range(model.n_layers)):
        note = "not measured: the projection's weight is not a plain matrix here"
        return Proof("ablation", claim, None, 0.0, note=note)
    plain = model(tokens)
    heads = [Head(layer, (layer + 1) % model.n_heads) for layer in range(model.n_layers)]
    single = [heads[layer] for layer in sorted({0, model.n_layers // 2, model.n_layers - 1})]
    return _worst_layer(
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
    rounding = _compared(model, "ablation", claim, surgical, gated)
    allowed = min(rounding.tolerance, _difference(plain, surgical) / 100)
    layer = off[0].layer if len(off) == 1 else None
    return dataclasses.replace(rounding, tolerance=allowed, layer=layer)


def _bare(model: Model, tokens: Tokens) -> Proof:
    claim = "token ids alone give what they give with a mask that hides nothing and positions"
    # A model might take an id for a pad, or for a text's end, where no mask says otherwise.
    rows = [row.clone() for row in (tokens.ids[0], tokens.ids[1, :-3])]  # of different lengths
    for place, number in enumerate(_special_ids(model)[: len(rows[1])]):
        for row in rows:
            row[place] = number
    given = model.tokens(rows)
    model.bare = proved = False
    try:
        told = model(given)
        model.bare = True
        proof = _compared(model, "bare", claim, told[given.mask], model(given)[given.mask])
        proved = proof.passed
    except Exception as error:  # the model's own code runs here in a way it was not written for
        proof = Proof("bare", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.bare = proved
    return dataclasses.replace(proof, required=False)


def _special_ids(model: Model) -> list[int]:
    """What a model or its tokenizer has for pads, and for the start and end of texts."""
    found: set[Any] = {model.pad_id}
    for source in (model.hf.config.get_text_config(), model.tokenizer):
        for name in ("pad", "bos", "eos"):
            own = getattr(source, f"{name}_token_id", None)
            found.update(own if isinstance(own, list) else [own])
    return sorted(n for n in found if isinstance(n, int) and 0 <= n < model.vocabulary)


def _places(model: Model, tokens: Tokens) -> Proof:
    claim = "logits computed at chosen places only are the full pass's"
    model.restart = None
    rows, positions = _every_place(tokens)
    full = model(tokens)[rows, positions]
    model.cuts_logits = proved = False
    try:
        model.cuts_logits = True
        proof = _compared(model, "places", claim, full, model.logits_at(tokens, rows, positions))
        proved = proof.passed
    except Exception as error:  # as above
        proof = Proof("places", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.cuts_logits = proved
    return dataclasses.replace(proof, required=False)


def _restart(model: Model, tokens: Tokens) -> Proof:
    claim = "a pass restarted at any layer gives the full pass's logits bit for bit"
    try:
        model.restart = learn_forms(model, tokens)
        proof = _worst_layer(_restart_at_layers(model, tokens, claim))
    except Exception as error:  # as above
        proof = Proof("restart", claim, float("inf"), 0.0, note=str(error))
    if not proof.passed:
        model.restart = None
    elif model.restart is not None and None in model.restart.attentions:
        proof = dataclasses.replace(proof, note="a layer's attention is computed for each mask")
    return dataclasses.replace(proof, required=False)


def _joining(model: Model, tokens: Tokens) -> Proof:
    claim = "masks that join a pass, each at its own layer, give what they give in a whole pass"
    if model.restart is None:
        note = "it needs the proof above"
        return Proof("joining", claim, float("inf"), 0.0, note=note, required=False)
    alone = proved = model.restart
    n = model.n_layers
    gates = Gates.stack(
        [Gates.ablate(model, [Head(layer, layer % model.n_heads)]) for layer in range(n)]
    )
    each = len(tokens.ids)
    repeated = tokens.repeated(n)
    last = torch.full((n * each,), tokens.ids.shape[1] - 1, device=tokens.ids.device)
    places = torch.arange(n * each, device=last.device), last  # of every row
    clean = clean_pass(model, tokens, range(n), places[0][:each], last[:each])
    try:
        with model.gated(gates, rows_of_a_mask=each):
            whole = model.logits_at(repeated, *places)
            model.restart = dataclasses.replace(alone, joins=True)
            with restarted(model, dict.fromkeys(range(n), 1), clean):
                joined = model.logits_at(repeated, *places)
        proof = _compared(model, "joining", claim, whole, joined)
        proved = model.restart if proof.passed else alone
    except Exception as error:  # as above
        proof = Proof("joining", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.restart = proved
    return dataclasses.replace(proof, required=False)


def _ending(model: Model, tokens: Tokens) -> Proof:
    claim = "the last layer run at chosen places only gives the full pass's logits there"
    some = torch.arange(1, tokens.ids.numel(), 3, device=tokens.ids.device)  # not whole rows
    rows, positions = (places[some] for places in _every_place(tokens))
    gates = Gates.ablate(model, [Head(model.n_layers - 1, 0)], scale=0.5)
    if model.restart is None or not model.cuts_logits:
        note = "it needs the two proofs above"
        return Proof("ending", claim, float("inf"), 0.0, note=note, required=False)
    late = proved = model.restart
    try:
        with model.gated(gates):
            full = model(tokens)[rows, positions]
            model.restart = dataclasses.replace(late, ends_early=True)
            early = model.logits_at(tokens, rows, positions)
        proof = _compared(model, "ending", claim, full, early)
        proved = model.restart if proof.passed else late
    except Exception as error:  # as above
        proof = Proof("ending", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.restart = proved
    return dataclasses.replace(proof, required=False)


def _norms(model: Model, tokens: Tokens) -> Proof:
    claim = "each RMS norm in one kernel is as exact as the model's own"
    proof, model.norms = _as_exact("norms", claim, find_norms(model.hf))
    return proof


def _mlps(model: Model, tokens: Tokens) -> Proof:
    claim = "each MLP's silu(gate) · up in one kernel is as exact as the model's own"
    proof, model.mlps = _as_exact("mlps", claim, find_mlps(model.hf))
    return proof


def _as_exact(name: str, claim: str, found: list[Standing]) -> tuple[Proof, list[Standing]]:
    """Which of these may stand in for the model's own modules."""
    excess = {each.name: _excess_of(each) for each in found}
    proved = [each for each in found if excess[each.name] <= 0]
    worst = max(excess, key=excess.__getitem__, default="")
    note = f"{len(proved)} of {len(found)} {name}"
    note += f", not {worst}" if found and excess[worst] > 0 else ""
    largest = max(0.0, *excess.values(), 0.0)
    return Proof(name, claim, largest, 0.0, note=note, required=False), proved


def _excess_of(standing: Norm | GatedMlp) -> float:
    try:
        excess = standing.excess()
    except Exception:  # its weights are no plain matrices
        return float("inf")
    return float("inf") if math.isnan(excess) else excess


def _rotary(model: Model, tokens: Tokens) -> Proof:
    claim = "rotary positions in few kernels are as exact as the model's own"
    model.rotary = None
    own = find_rotary(model)
    if own is None:
        return Proof("rotary", claim, 0.0, 0.0, note="the model has none", required=False)
    try:
        excess = rotary_excess(model, own)
    except Exception as error:  # as above
        return Proof("rotary", claim, float("inf"), 0.0, note=str(error), required=False)
    if excess <= 0:
        model.rotary = own
    return Proof("rotary", claim, max(0.0, excess), 0.0, required=False)


def _restart_at_layers(model: Model, tokens: Tokens, claim: str) -> Iterator[Proof]:
    places = _every_place(tokens)
    clean = clean_pass(model, tokens, range(model.n_layers), *places)
    for layer in range(model.n_layers):
        with restarted(model, {layer: 1}, clean):
            logits = model.logits_at(tokens, *places)
        yield Proof("restart", claim, _difference(clean.logits, logits), 0.0, layer)


# --- the small parts ---


def _random_tokens(model: Model) -> Tokens:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(model.vocabulary, (_PROMPTS, _LENGTH), generator=random)
    return model.tokens(ids)


def _every_place(tokens: Tokens) -> tuple[Tensor, Tensor]:
    rows, positions = tokens.mask.nonzero(as_tuple=True)
    return rows, positions


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


def _difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    difference = (a.double() - b.to(a.device).double()).abs().max()
    return float("inf") if difference.isnan() else float(difference)


def _compared(
    model: Model, name: str, claim: str, expected: Tensor, got: Tensor, layer: int | None = None
) -> Proof:
    scale = max(1.0, float(expected.abs().max()))
    tolerance = TOLERANCE.get(model.dtype, 5e-2) * scale
    return Proof(name, claim, _difference(expected, got), tolerance, layer)


def _unmeasured(name: str, claim: str, layer: int) -> Proof:
    note = "not measured: the projection's weight is not a plain matrix here"
    return Proof(name, claim, None, 0.0, layer, note)


def _worst_layer(proofs: Iterator[Proof]) -> Proof:
    """The proof whose difference exceeds its tolerance most, or else is largest."""

    def badness(proof: Proof) -> tuple[bool, float]:
        if proof.difference is None:
            return False, -1.0
        return not proof.passed, proof.difference

    return max(proofs, key=badness)
