"""That a shorter way gives the same: a model that fails one of these goes the longer way."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from headlab.alike import Alike
from headlab.gates import ZERO, Gates
from headlab.heads import Head
from headlab.proofs.result import Proof, compared, difference, within_rounding, worst_layer
from headlab.restart import clean_pass, learn_forms, restarted
from headlab.sdpa import grouped_queries
from headlab.standins import GatedMlp, Norm, find_mlps, find_norms, find_rotary, rotary_excess
from headlab.stretches import Ahead, Stretch

if TYPE_CHECKING:
    from headlab.model import Model
    from headlab.tokens import Tokens

Standing = TypeVar("Standing", Norm, GatedMlp)


def bare(model: Model, tokens: Tokens) -> Proof:
    claim = "token ids alone give the logits they give with positions and a mask of ones"
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
        proof = compared(model, "bare", claim, told[given.mask], model(given)[given.mask])
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


def places(model: Model, tokens: Tokens) -> Proof:
    claim = "logits computed at chosen places only are the full pass's"
    model.restart = None
    rows, positions = _every_place(tokens)
    full = model(tokens)[rows, positions]
    model.cuts_logits = proved = False
    try:
        model.cuts_logits = True
        proof = compared(model, "places", claim, full, model.logits_at(tokens, rows, positions))
        proved = proof.passed
    except Exception as error:  # as above
        proof = Proof("places", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.cuts_logits = proved
    return dataclasses.replace(proof, required=False)


def restart(model: Model, tokens: Tokens) -> Proof:
    claim = "a pass restarted at any layer gives the full pass's logits bit for bit"
    try:
        model.restart = learn_forms(model, tokens)
        proof = worst_layer(_restart_at_layers(model, tokens, claim))
    except Exception as error:  # as above
        proof = Proof("restart", claim, float("inf"), 0.0, note=str(error))
    if not proof.passed:
        model.restart = None
    elif model.restart is not None and None in model.restart.attentions:
        proof = dataclasses.replace(proof, note="a layer's attention is computed for each mask")
    return dataclasses.replace(proof, required=False)


def _restart_at_layers(model: Model, tokens: Tokens, claim: str) -> Iterator[Proof]:
    places = _every_place(tokens)
    clean = clean_pass(model, tokens, range(model.n_layers), *places)
    for layer in range(model.n_layers):
        with restarted(model, {layer: 1}, clean):
            logits = model.logits_at(tokens, *places)
        yield Proof("restart", claim, difference(clean.logits, logits), 0.0, layer)


def joining(model: Model, tokens: Tokens) -> Proof:
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

    def run() -> Tensor:
        with model.gated(gates, rows_of_a_mask=each):
            return model.logits_at(repeated, *places)

    try:
        whole = run()
        model.restart = dataclasses.replace(alone, joins=True)
        with restarted(model, dict.fromkeys(range(n), 1), clean):
            joined = run()
        model.restart = alone
        proof = compared(model, "joining", claim, whole, joined)
        proof = within_rounding(model, proof, run, whole, clean.logits.repeat(n, 1))
        proved = dataclasses.replace(alone, joins=proof.passed)
    except Exception as error:  # as above
        proof = Proof("joining", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.restart = proved
    return dataclasses.replace(proof, required=False)


def beginning(model: Model, tokens: Tokens) -> Proof:
    claim = "passes that begin behind positions where nothing changes give what whole passes give"
    if model.restart is None:
        note = "it needs the proof of restart"
        return Proof("beginning", claim, float("inf"), 0.0, note=note, required=False)
    early = proved = model.restart
    n, each, length = model.n_layers, *tokens.ids.shape
    begin = length // 2
    heads = [Head(layer, layer % model.n_heads) for layer in range(n)]
    gates = torch.stack([Gates.ablate(model, [head]).values[0, 0] for head in heads])
    late = gates.expand(-1, -1, -1, length).clone()  # [mask, layer, head, position]
    late[..., :begin] = 1
    axes = "mask layer head position"
    last = torch.full((n * each,), length - 1, device=tokens.ids.device)
    rows = torch.arange(n * each, device=last.device)
    starts = dict.fromkeys(range(n), 1) if early.joins else {0: n}

    def run() -> Tensor:
        with model.gated(Gates(late, axes), rows_of_a_mask=each):
            return model.logits_at(tokens.repeated(n), rows, last)

    try:
        clean = clean_pass(model, tokens, range(n), rows[:each], last[:each], begin)
        assert clean.beginning is not None
        rest = tokens.behind(clean.beginning).repeated(n)
        whole = run()
        with model.gated(Gates(gates, axes), rows_of_a_mask=each), grouped_queries():
            found = [model.logits_at(rest, rows, last - begin)]  # from the bottom, as for slopes
            with restarted(model, starts, clean):
                found.append(model.logits_at(rest, rows, last - begin))
        proof = worst_layer(compared(model, "beginning", claim, whole, own) for own in found)
        proof = within_rounding(model, proof, run, whole, clean.logits.repeat(n, 1))
        proved = dataclasses.replace(early, begins_late=proof.passed)
    except Exception as error:  # as above
        proof = Proof("beginning", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.restart = proved
    return dataclasses.replace(proof, required=False)


def sharing(model: Model, tokens: Tokens) -> Proof:
    claim = "rows that begin alike give what whole passes give when one of them runs that for all"
    if model.restart is None or not model.restart.begins_late or not model.cuts_logits:
        note = "it needs the proofs of places and of beginning"
        return Proof("sharing", claim, float("inf"), 0.0, note=note, required=False)
    longer = _positions_by_length(model)
    if longer:
        note = f"its rotary positions are {longer}: they depend on how long a pass is"
        return Proof("sharing", claim, float("inf"), 0.0, note=note, required=False)
    apart = proved = model.restart
    n, length = model.n_layers, tokens.ids.shape[1]
    end = length // 2
    ids = tokens.ids.clone()
    ids[:, :end] = ids[0, :end]
    alike = tokens._replace(ids=ids)
    heads = [Head(layer, layer % model.n_heads) for layer in range(n)]
    gates = Gates.stack([Gates.ablate(model, [head]) for head in heads]).values
    rows, last = torch.arange(len(ids), device=ids.device), torch.full_like(ids[:, 0], length - 1)
    try:
        clean = clean_pass(model, alike, range(n), rows, last)
        stretch = Stretch(alike, list(range(len(ids))), rows, last, clean, ZERO)
        from_bottom = partial(stretch.pass_, model, gates, range(n), None)
        whole = from_bottom()
        ahead = Ahead([stretch], Alike(end, [0] * len(ids)))
        found = []
        # From the bottom, as for slopes, and each mask from its layer on.
        for starts in (None, Counter(range(n) if apart.joins else [0] * n)):
            run = partial(Stretch.pass_, model=model, gates=gates, layers=range(n), starts=starts)
            with grouped_queries():
                ahead.run(range(n), lambda each, _, keeps, run=run: run(each, keeps=keeps))
                found.append(run(ahead.rests[0], beginning=ahead.of(0, range(n))))
        proof = worst_layer(compared(model, "sharing", claim, whole, own) for own in found)
        proof = within_rounding(model, proof, from_bottom, whole, clean.logits.expand_as(whole))
        proved = dataclasses.replace(apart, shares=proof.passed)
    except Exception as error:  # as above
        proof = Proof("sharing", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.restart = proved
    return dataclasses.replace(proof, required=False)


def _positions_by_length(model: Model) -> str:
    """The kind of rotary positions, where a shorter pass has others than a longer one."""
    for module in model.hf.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
            if kind == "longrope" or "dynamic" in str(kind):
                return str(kind)
    return ""


def ending(model: Model, tokens: Tokens) -> Proof:
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
        proof = compared(model, "ending", claim, full, early)
        proved = model.restart if proof.passed else late
    except Exception as error:  # as above
        proof = Proof("ending", claim, float("inf"), 0.0, note=str(error))
    finally:
        model.restart = proved
    return dataclasses.replace(proof, required=False)


def norms(model: Model, tokens: Tokens) -> Proof:
    claim = "each RMS norm in one kernel is as exact as the model's own"
    proof, model.norms = _as_exact("norms", claim, find_norms(model.hf))
    return proof


def mlps(model: Model, tokens: Tokens) -> Proof:
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


def rotary(model: Model, tokens: Tokens) -> Proof:
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


def _every_place(tokens: Tokens) -> tuple[Tensor, Tensor]:
    rows, positions = tokens.mask.nonzero(as_tuple=True)
    return rows, positions
