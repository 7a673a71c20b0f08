"""Formulas in fewer kernels are the model's own, or are left to it."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tiny import ARCHITECTURES, random_ids, tiny

import headlab
from headlab import Model, fused
from headlab.proofs import check
from headlab.standins import few_kernels, rotate, swiglu

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture
def model(name: str) -> Model:
    return Model(tiny(name), name=name)


@each_architecture
def test_few_kernels_change_nothing(model, monkeypatch):
    check(model)
    tokens = model.tokens(random_ids(2, 8))
    plain = model(tokens)
    turned = []
    turn = headlab.standins._turn
    monkeypatch.setattr(headlab.standins, "_turn", lambda *x: turned.append(1) or turn(*x))
    with few_kernels(model), torch.no_grad():
        assert all("forward" in each.module.__dict__ for each in (*model.norms, *model.mlps))
        assert (model(tokens) - plain).abs().max() < 1e-5
    others = {"gpt2", "gpt-neox", "gptj", "opt", "bloom", "cohere", "falcon-alibi"}
    assert bool(turned) == (model.name not in others)
    assert torch.equal(model(tokens), plain), "whole again"
    expected = [name for name, module in model.hf.named_modules() if "RMS" in type(module).__name__]
    assert [norm.name for norm in model.norms] == expected
    gated = ("llama", "llama-wide", "llama-mqa", "mistral", "qwen2", "qwen3", "olmo", "olmo2")
    count = 3 if model.name in (*gated, "granite", "cohere") else 0
    assert [mlp.name for mlp in model.mlps] == [f"model.layers.{n}.mlp" for n in range(count)]


def test_attention_needs_no_plan_while_kernels_are_few():
    model = Model(tiny("llama"))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with few_kernels(model):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize("wrong", ["mean", "eps", "scale"])
def test_a_norm_that_only_has_the_name_is_left_alone(wrong):
    class OddRMSNorm(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.rand(width) + 0.5), 1e-6

        def forward(self, hidden):
            hidden = hidden - hidden.mean(-1, keepdim=True) if wrong == "mean" else hidden
            eps = 1e-5 if wrong == "eps" else self.eps
            hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps)
            return hidden * (2 * self.weight if wrong == "scale" else self.weight)

    hf = copy.deepcopy(tiny("llama"))
    hf.model.norm = OddRMSNorm(hf.config.hidden_size)
    model = Model(hf, name="odd")
    result = check(model)
    assert result.passed
    assert [proof.name for proof in result.proofs if not proof.passed] == ["norms"]
    assert "model.norm" not in [norm.name for norm in model.norms]
    assert len(model.norms) == 6


def test_a_norm_is_its_own_for_calls_it_was_not_proved_on():
    """More arguments, or hidden states of another dtype than its weight."""

    class GatedRMSNorm(torch.nn.Module):
        def __init__(self, own):
            super().__init__()
            self.weight, self.variance_epsilon = own.weight, own.variance_epsilon
            self.calls = []

        def forward(self, hidden, gate=None):
            self.calls.append((gate, hidden.dtype))
            scaled = hidden * torch.rsqrt(hidden.pow(2).mean(-1, True) + self.variance_epsilon)
            return self.weight * scaled if gate is None else self.weight * scaled * gate

    hf = copy.deepcopy(tiny("llama"))
    hf.model.norm = GatedRMSNorm(hf.model.norm)
    model = Model(hf, name="gated")
    check(model)
    assert "model.norm" in [norm.name for norm in model.norms]
    norm, hidden = hf.model.norm, torch.randn(2, 3, hf.config.hidden_size)
    norm.calls.clear()
    with few_kernels(model):
        norm(hidden)
        assert norm.calls == [], "the stand-in answered"
        assert torch.equal(norm(hidden, gate=2), norm(hidden, 2))
        assert norm(hidden.double()).dtype == torch.float64
    assert norm.calls == [(2, torch.float32), (2, torch.float32), (None, torch.float64)]


def test_a_norm_that_takes_more_than_hidden_states_is_left_alone():
    class PairRMSNorm(torch.nn.Module):
        def __init__(self, own):
            super().__init__()
            self.own, self.weight, self.eps = own, own.weight, 1e-6

        def forward(self, hidden, other):
            return self.own(hidden)

    hf = copy.deepcopy(tiny("llama"))
    hf.model.extra = PairRMSNorm(hf.model.norm)
    model = Model(hf, name="pair")
    assert check(model).passed
    assert "model.extra" not in [norm.name for norm in model.norms]


@pytest.mark.parametrize("wrong", ["structure", "activation", "extra", "limit", "odd"])
def test_an_mlp_that_does_something_else_is_left_alone(wrong):
    class OddMlp(torch.nn.Module):
        def __init__(self, own):
            super().__init__()
            self.gate_proj, self.up_proj, self.down_proj = own.gate_proj, own.up_proj, own.down_proj
            odd = {"activation": torch.nn.GELU(), "odd": torch.nn.GLU()}
            self.act_fn = odd.get(wrong, own.act_fn)

        def forward(self, x, **more):
            gate, up = self.gate_proj(x), self.up_proj(x)
            gate, up = (up, gate) if wrong == "structure" else (gate, up)
            gate = gate.clamp(max=10) if wrong == "limit" else gate
            if wrong == "odd":  # an activation that takes two halves
                return self.down_proj(self.act_fn(torch.cat([gate, up], -1)))
            return self.down_proj(self.act_fn(gate) * up) * (2 if wrong == "extra" else 1)

    hf = copy.deepcopy(tiny("llama"))
    hf.model.layers[1].mlp = OddMlp(hf.model.layers[1].mlp)
    model = Model(hf, name="odd")
    result = check(model)
    assert result.passed
    refused = [proof.name for proof in result.proofs if not proof.passed]
    assert refused == ([] if wrong in ("activation", "odd") else ["mlps"])
    assert [mlp.name for mlp in model.mlps] == ["model.layers.0.mlp", "model.layers.2.mlp"]


def test_an_mlp_is_its_own_where_somebody_looks_at_its_activation():
    model = Model(tiny("llama"), name="llama")
    check(model)
    act, tokens, seen = model.hf.model.layers[1].mlp.act_fn, model.tokens(random_ids(2, 8)), []
    handle = act.register_forward_hook(lambda _, __, out: seen.append(1) or 2 * out)
    try:
        doubled = model(tokens)
        with few_kernels(model), torch.no_grad():
            found = model(tokens)
    finally:
        handle.remove()
    assert len(seen) == 2
    assert (found - doubled).abs().max() < 1e-5
    with few_kernels(model), torch.no_grad():
        assert (model(tokens) - doubled).abs().max() > 1e-3, "the hook mattered, and is gone"


def test_an_mlp_that_somebody_changes_later_is_its_own():
    hf = copy.deepcopy(tiny("llama"))
    model = Model(hf, name="changed")
    check(model)
    tokens, mlp = model.tokens(random_ids(2, 8)), hf.model.layers[1].mlp
    assert len(model.mlps) == 3
    before, own, act = model(tokens), mlp.forward, mlp.act_fn
    mlp.forward = lambda x: 2 * own(x)
    changed = model(tokens)
    with few_kernels(model), torch.no_grad():
        assert (model(tokens) - changed).abs().max() < 1e-5
    del mlp.forward
    mlp.act_fn = torch.nn.ReLU()
    other = model(tokens)
    with few_kernels(model), torch.no_grad():
        assert (model(tokens) - other).abs().max() < 1e-5
    mlp.act_fn = act
    norm = hf.model.norm
    scaled = norm.forward
    norm.forward = lambda x: 2 * scaled(x)
    louder = model(tokens)
    with few_kernels(model), torch.no_grad():
        assert (model(tokens) - louder).abs().max() < 1e-5
    assert min((each - before).abs().max() for each in (changed, other, louder)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wrong", ["relu", "gelu", "hardswish", "dead"])
def test_another_product_is_not_taken_for_an_mlps(wrong, dtype, monkeypatch):
    act = {
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "hardswish": torch.nn.functional.hardswish,
        "dead": lambda gate: torch.where(gate.abs() < 0.01, 0, torch.nn.functional.silu(gate)),
    }[wrong]
    model = Model(copy.deepcopy(tiny("llama", dtype)), name="llama")
    assert [proof.passed for proof in check(model).proofs if proof.name == "mlps"] == [True]
    assert len(model.mlps) == 3
    monkeypatch.setattr(headlab.standins, "swiglu", lambda gate, up: act(gate) * up)
    result = check(model)
    assert "mlps" in [proof.name for proof in result.proofs if not proof.passed]
    assert model.mlps == []


def test_a_proof_that_is_no_number_is_none(monkeypatch):
    model = Model(tiny("llama"), name="llama")
    monkeypatch.setattr(headlab.standins.GatedMlp, "excess", lambda self: float("nan"))
    assert "mlps" in [proof.name for proof in check(model).proofs if not proof.passed]
    assert model.mlps == []


def test_the_way_back_through_gated_mlps_is_that_of_the_models_own():
    random = torch.Generator().manual_seed(0)
    gate, up, weights = torch.randn(3, 2, 5, 8, generator=random, dtype=torch.float64)
    found = []
    for product in (lambda gate, up: torch.nn.functional.silu(gate) * up, swiglu):
        one, other = gate.clone().requires_grad_(), up.clone().requires_grad_()
        slopes = torch.autograd.grad((product(one, other) * weights).sum(), (one, other))
        found.append((product(gate, up), *slopes))
    for own, ours in zip(*found, strict=True):
        assert torch.allclose(own, ours, atol=1e-12)
    hessian = torch.autograd.functional.hessian
    right = hessian(lambda gate: (torch.nn.functional.silu(gate) * up).square().sum(), gate)
    assert torch.allclose(hessian(lambda gate: swiglu(gate, up).square().sum(), gate), right)


def test_kernels_of_our_own_keep_to_what_they_were_made_for(monkeypatch):
    """They compute in float32: a wider dtype, or what lies otherwise in memory, is not theirs."""
    monkeypatch.setattr("headlab.fused.launching.works", lambda *_: True)
    gate = torch.randn(4, 6)
    assert fused.can_swiglu(gate, gate)
    assert not fused.can_swiglu(gate.double(), gate.double())
    assert not fused.can_swiglu(gate, gate.bfloat16())
    assert not fused.can_swiglu(gate.T, gate.T)
    assert not fused.can_swiglu(gate, gate[:2])
    assert not fused.can_swiglu(gate[:0], gate[:0])
    apart = torch.randn(4, 1, 12).split(6, -1)  # rows of one product
    assert fused.can_swiglu(*apart)
    assert not fused.can_swiglu(apart[0], *apart), "the way back wants all of it close"
    assert not fused.can_swiglu(*torch.randn(4, 3, 12)[:, :2].split(6, -1)), "rows at odd places"
    x, table = torch.randn(2, 3, 5, 8), torch.randn(1, 1, 5, 8)
    assert fused.can_turn(x, table, table)
    assert not fused.can_turn(x.double(), table.double(), table.double())
    assert not fused.can_turn(x.transpose(2, 3), table, table)
    assert not fused.can_turn(x, table, table.expand(2, -1, -1, -1))
    z, g, r = torch.randn(4, 5, 3, 8), torch.rand(4, 1, 3, 1), torch.randn(2, 5, 3, 8)
    assert fused.can_gate(z, g, None)
    assert fused.can_gate(z, g, r, z)
    assert not fused.can_gate(z.double(), g, r)
    assert not fused.can_gate(z, g.double(), r)
    assert not fused.can_gate(z, g[:2], r)
    assert not fused.can_gate(z, g, r[:, :2])
    assert not fused.can_gate(z, g, torch.randn(3, 5, 3, 8))
    assert not fused.can_gate(z, g, r.transpose(2, 3))
    assert not fused.can_gate(z.transpose(0, 1), g[:1], None)
    assert not fused.can_gate(z, g, r, z.transpose(2, 3))
    query, key = torch.randn(2, 6, 1, 8), torch.randn(2, 3, 9, 8)
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    assert fused.can_attend(query, key, key, mask)
    assert not fused.can_attend(query, key, key, None)
    assert not fused.can_attend(query, key, key, mask.float())
    assert not fused.can_attend(query, key, key, mask[..., :8])
    assert not fused.can_attend(query.expand(-1, -1, 2, -1), key, key, mask)
    assert not fused.can_attend(query[:, :5], key, key, mask)
    assert not fused.can_attend(query.double(), key.double(), key.double(), mask)
    assert not fused.can_attend(query.clone().requires_grad_(), key, key, mask)
    query, key = torch.randn(2, 6, 9, 8), torch.randn(2, 3, 9, 8)
    assert fused.can_attend_all(query, key, key)
    learning = query.clone().requires_grad_()
    assert fused.can_attend_all(learning, key, key)
    wide = torch.randn(2, 3, 9, 256)
    assert not fused.can_attend_all(wide, wide, wide)
    wide, wide_learning = wide.bfloat16(), wide.bfloat16().requires_grad_()
    assert fused.can_attend_all(wide, wide, wide)
    assert not fused.can_attend_all(wide_learning, wide, wide), "nor in any dtype with its slopes"
    assert fused.can_attend_all(query[:, :, :8], key, key), "the last tokens of rows"
    assert not fused.can_attend_all(query, key[:, :, :8], key[:, :, :8])
    assert not fused.can_attend_all(query[:, :5], key, key)
    assert not fused.can_attend_all(query[:1], key, key)
    assert not fused.can_attend_all(query, key, key[..., :4])
    assert not fused.can_attend_all(query.double(), key.double(), key.double())
    assert not fused.can_attend_all(query.mT, key.mT, key.mT)
    long = torch.randn(1, 1, fused.SHORT + 1, 8)
    assert fused.can_attend_all(*3 * [long[:, :, 1:]])
    assert not fused.can_attend_all(long, long, long)
    with monkeypatch.context() as there:
        there.setattr("headlab.fused.launching.works", lambda kernel, *_: kernel == "attend_all")
        assert fused.can_attend_all(query, key, key)
        assert not fused.can_attend_all(query, learning[:, :3], key), "there is no way back"
        with torch.no_grad():
            assert fused.can_attend_all(learning, key, key)
    logits = torch.randn(2, 3, 7)
    assert fused.can_log_sum(logits)
    assert not fused.can_log_sum(logits.clone().requires_grad_())
    assert not fused.can_log_sum(logits.double())
    assert not fused.can_log_sum(logits.mT)
    monkeypatch.undo()
    assert not fused.can_swiglu(gate, gate), "there is no GPU"


def test_the_rotary_function_put_there_by_others_is_left_standing(monkeypatch):
    from transformers.models.llama import modeling_llama

    first, second = Model(tiny("llama"), name="a"), Model(tiny("llama-wide"), name="b")
    own = modeling_llama.apply_rotary_pos_emb
    check(first)
    with few_kernels(first):
        assert modeling_llama.apply_rotary_pos_emb is not own
        check(second)  # while another model of the same code runs
    assert second.rotary is own
    assert modeling_llama.apply_rotary_pos_emb is own

    def others(*args):
        return own(*args)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", others)
    with few_kernels(first):
        assert modeling_llama.apply_rotary_pos_emb is others
    assert modeling_llama.apply_rotary_pos_emb is others


def test_the_way_back_through_rotary_positions_is_that_of_the_models_own():
    """On a GPU, gates are fitted through the stand-in: its gradient must be the model's."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    random = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 5, 8), (2, 2, 5, 8), (2, 5, 8), (2, 5, 8)]  # q, k, cos, sin: halves differ
    q, k, cos, sin = (torch.randn(s, generator=random, dtype=torch.float64) for s in shapes)
    weights = [torch.randn(each.shape, generator=random, dtype=torch.float64) for each in (q, k)]
    found = []
    for turn in (apply_rotary_pos_emb, partial(rotate, apply_rotary_pos_emb)):
        one, other = q.clone().requires_grad_(), k.clone().requires_grad_()
        turned = turn(one, other, cos, sin)
        total = sum((part * weight).sum() for part, weight in zip(turned, weights, strict=True))
        found.append(torch.autograd.grad(total, (one, other)))
    for own, ours in zip(*found, strict=True):
        assert torch.allclose(own, ours, atol=1e-12)
