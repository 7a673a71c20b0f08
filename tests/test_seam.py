"""The seam is where it should be, on every architecture: the exactness claims of the design."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import ARCHITECTURES, CONFIGS, STRANGERS, random_ids, tiny
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

import headlab
from headlab import Gates, Head, HeadlabError, Model
from headlab.kernels import few_kernels
from headlab.proofs import check
from headlab.restart import clean_pass, restarted
from headlab.seam import PROJECTIONS

# Written out by hand, apart from the code under test: (KV heads, width of a head).
SHAPES = dict.fromkeys(ARCHITECTURES, (4, 8)) | {
    "llama": (2, 8),
    "llama-wide": (2, 12),
    "llama-mqa": (1, 8),
    "mistral": (2, 12),
    "mixtral": (2, 8),
    "qwen2": (2, 8),
    "qwen3": (2, 12),
    "qwen3-moe": (2, 12),
    "gemma2": (2, 12),
    "gemma3": (2, 12),
    "olmo": (2, 8),
    "olmo2": (2, 8),
    "phi3": (2, 8),
    "falcon": (2, 8),
    "falcon-mqa": (1, 8),
    "starcoder2": (2, 8),
    "granite": (2, 8),
    "cohere": (2, 8),
}
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture
def model(name: str) -> Model:
    return Model(tiny(name), name=name)


def plain_logits(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """transformers alone, nothing of ours."""
    with torch.no_grad():
        return model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits


def without_columns(model: Model, ids: torch.Tensor, head: Head) -> torch.Tensor:
    """The logits with the head's columns of the output projection's weight zeroed, by hand."""
    path, width = model.seam.paths[head.layer], SHAPES[model.name][1]
    projection = model.hf.get_submodule(path)
    weight = projection.weight.detach().clone()
    columns = slice(head.head * width, (head.head + 1) * width)
    if isinstance(projection, Conv1D):
        weight[columns, :] = 0
    else:
        weight[:, columns] = 0
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad():
        return functional_call(model.hf, {f"{path}.weight": weight}, (), inputs).logits


def test_the_table_covers_every_architecture_tested():
    assert {CONFIGS[name]().model_type for name in ARCHITECTURES} == set(PROJECTIONS)


@each_architecture
def test_heads_are_read_from_the_projection(model):
    assert model.seam.found == "table"
    assert (model.n_layers, model.n_heads) == (3, 4)
    assert (model.seam.kv_heads, model.head_width) == SHAPES[model.name]


@each_architecture
def test_check_passes_with_restart_proved(model):
    result = check(model)
    assert result.passed, result
    assert [proof.name for proof in result.proofs] == [
        "finite",
        "seam",
        "causal",
        "identity",
        "heads",
        "sum",
        "ablation",
        "places",
        "restart",
        "ending",
        "norms",
        "rotary",
    ]
    kept = [proof.name for proof in result.proofs if not proof.passed]
    # BLOOM's attention adds the residual itself: no other can answer for it. GPT-J and Cohere turn
    # neighbours against each other, not halves.
    odd = {"bloom": ["ending"], "gptj": ["rotary"], "cohere": ["rotary"]}
    assert kept == odd.get(model.name, []), result
    assert model.restartable


@each_architecture
def test_the_last_layer_runs_only_at_the_places_read(model):
    check(model)
    tokens = model.tokens(random_ids(4, 8))
    rows, positions = torch.tensor([0, 3, 3]), torch.tensor([7, 2, 5])
    seen = []
    block = model.seam.blocks[-1]
    with model.gated(Gates.ablate(model, "L2H1,L1H0")):
        full = model(tokens)[rows, positions]
        handle = block.register_forward_hook(
            lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out)
        )
        few = model.logits_at(tokens, rows, positions)
        handle.remove()
    assert (few - full).abs().max() < 1e-5
    assert tuple(seen[0].shape[:2]) == ((4, 8) if model.name == "bloom" else (1, 8))
    assert "forward" not in block.__dict__, "whole again"


def test_a_last_layer_that_mixes_positions_after_attention_is_run_whole():
    import copy

    class Shift(torch.nn.Module):
        """An MLP that looks one token back."""

        def __init__(self, mlp):
            super().__init__()
            self.mlp = mlp

        def forward(self, hidden):
            return self.mlp(hidden + torch.nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1])

    hf = copy.deepcopy(tiny("llama"))
    hf.model.layers[-1].mlp = Shift(hf.model.layers[-1].mlp)
    model = Model(hf, name="shift")
    result = check(model)
    assert result.passed
    assert [proof.name for proof in result.proofs if not proof.passed] == ["ending"]
    assert model.restart is not None
    assert not model.restart.ends_early


@each_architecture
def test_gates_of_one_change_no_bit(model):
    ids = random_ids(3, 9)
    calls = []
    handles = [
        projection.register_forward_hook(lambda *_: calls.append(1))
        for projection in model.seam.projections
    ]
    with model.gated(Gates.ones(model)):
        gated = model(ids)
        hooks = [len(projection._forward_pre_hooks) for projection in model.seam.projections]
    for handle in handles:
        handle.remove()
    assert len(calls) == model.n_layers
    assert hooks == [1] * model.n_layers, "the seam must be active in every layer"
    assert torch.equal(gated, plain_logits(model, ids))


@each_architecture
def test_gates_of_one_change_no_bit_under_any_reference(model):
    ids = random_ids(2, 7)
    plain = plain_logits(model, ids)
    for reference in (
        headlab.mean_reference(model, list(random_ids(4, 6, seed=5))),
        headlab.counterfactual_reference(model, list(ids), list(random_ids(2, 7, seed=6))),
    ):
        with model.gated(Gates.ones(model), reference):
            assert torch.equal(model(ids), plain)


@each_architecture
def test_ablating_a_head_equals_zeroing_its_columns(model):
    ids = random_ids(2, 8)
    plain = plain_logits(model, ids)
    for layer in range(3):
        for number in range(4):
            head = Head(layer, number)
            with model.gated(Gates.ablate(model, [head])):
                gated = model(ids)
            expected = without_columns(model, ids, head)
            assert (gated - expected).abs().max() < 1e-5, head
            assert (gated - plain).abs().max() > 1e-4, f"{head} has no effect: a blind test"


@each_architecture
def test_all_heads_in_one_batch_equal_one_by_one(model):
    ids = random_ids(2, 8)
    with model.gated(Gates.each_head(model)):
        together = model(ids).view(12, 2, 8, -1)
    for number in (0, 5, 11):
        with model.gated(Gates.ablate(model, [Head(*divmod(number, 4))])):
            assert (model(ids) - together[number]).abs().max() < 1e-5


@each_architecture
def test_padding_changes_nothing(model):
    long, short = random_ids(1, 9)[0], random_ids(1, 5, seed=3)[0]
    gates = Gates.ablate(model, [Head(1, 2)], scale=0.3)
    with model.gated(gates):
        alone = model(short)[0]
        right = model([long, short])[1, :5]
        left = model([long, short], padding="left")[1, 4:]
    assert (alone - right).abs().max() < 1e-5
    assert (alone - left).abs().max() < 1e-5


@each_architecture
@pytest.mark.parametrize("share", [False, True])
def test_a_restart_with_gates_equals_the_full_pass(model, share):
    check(model)
    tokens = model.tokens(random_ids(2, 8))
    places = tokens.mask.nonzero(as_tuple=True)
    clean = clean_pass(model, tokens, range(3), *places)
    for layer in range(3):
        with model.gated(Gates.ablate(model, [Head(layer, 1)])):
            full = model.logits_at(tokens, *places)
            with restarted(model, layer, clean, share=share):
                assert torch.equal(model.logits_at(tokens, *places), full)
    assert torch.equal(model.logits_at(tokens, *places), clean.logits), "whole again"


@each_architecture
def test_masks_that_restart_together_equal_full_passes(model):
    check(model)
    tokens = model.tokens(random_ids(2, 8))
    last = torch.tensor([0, 1]), torch.tensor([7, 7])
    clean = clean_pass(model, tokens, [1], *last)
    masks = [Gates.ablate(model, [Head(1, head), Head(2, 3 - head)]) for head in range(4)]
    rows = torch.arange(8), torch.full((8,), 7)
    repeated = tokens._replace(ids=tokens.ids.repeat(4, 1), mask=tokens.mask.repeat(4, 1))
    with model.gated(Gates.stack(masks)), restarted(model, 1, clean, copies=4):
        together = model.logits_at(repeated, *rows).view(4, 2, -1)
    for number, mask in enumerate(masks):
        with model.gated(mask):
            assert (model(tokens)[:, -1] - together[number]).abs().max() < 1e-5


@each_architecture
def test_structure_alone_finds_what_the_table_says(name, monkeypatch):
    by_table = Model(tiny(name)).seam
    monkeypatch.setattr("headlab.seam.PROJECTIONS", {})
    by_structure = Model(tiny(name)).seam
    assert by_structure.found == "structure"
    assert by_structure.paths == by_table.paths
    assert (by_structure.heads, by_structure.width) == (by_table.heads, by_table.width)


@pytest.mark.parametrize("name", list(STRANGERS))
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_an_unknown_architecture_is_found_by_structure_and_proved(name, attention):
    hf = tiny(name)
    try:
        hf.set_attn_implementation(attention)
    except ValueError as error:
        pytest.skip(str(error).splitlines()[0])
    model = Model(hf)
    assert model.seam.found == "structure"
    assert model.n_heads == 4
    assert check(model).passed, check(model)


@pytest.mark.parametrize("name", ["llama-wide", "gemma2", "gpt2", "falcon"])
def test_bfloat16_keeps_the_exact_claims(name):
    model = Model(tiny(name, torch.bfloat16), name=name)
    result = check(model)
    assert result.passed, result
    assert {proof.name: proof.difference for proof in result.proofs}["identity"] == 0
    ids = random_ids(2, 8)
    with model.gated(Gates.ablate(model, [Head(1, 2)])):
        gated = model(ids)
    assert torch.equal(gated, without_columns(model, ids, Head(1, 2)))


# --- check refuses what is wrong ---


@each_architecture
@pytest.mark.parametrize("factor", [0.5, 2])
def test_check_refuses_a_misread_head_count(model, factor):
    wrong = int(model.seam.heads * factor)
    total = model.seam.heads * model.seam.width
    model.seam = dataclasses.replace(model.seam, heads=wrong, width=total // wrong)
    result = check(model)
    assert not result.passed
    with pytest.raises(HeadlabError, match=rf"layer 0.*4 heads of width.*{wrong} of width"):
        result.require()


@each_architecture
def test_check_refuses_permuted_heads(model):
    def permute(_, args):
        z = args[0].unflatten(-1, (4, -1))
        return (z[..., [1, 0, 2, 3], :].flatten(-2), *args[1:])

    handle = model.seam.projections[1].register_forward_pre_hook(permute)
    try:
        with pytest.raises(HeadlabError, match="layer 1: each head's slice"):
            check(model).require()
    finally:
        handle.remove()


def test_check_refuses_a_seam_after_the_projection():
    """The classic mistake: the MLP's input (or any later place) sliced as if it were heads."""
    model = Model(tiny("llama"), name="llama")
    ups = [block.mlp.gate_proj for block in model.seam.blocks]
    paths = [f"model.layers.{layer}.mlp.gate_proj" for layer in range(3)]
    model.seam = dataclasses.replace(model.seam, projections=ups, paths=paths)
    with pytest.raises(HeadlabError, match="each head's slice"):
        check(model).require()


def test_check_refuses_a_model_that_is_not_causal():
    import transformers as hf

    config = hf.BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    model = Model(hf.BertLMHeadModel(config), name="bert")
    with pytest.raises(HeadlabError, match="changing the last token changes nothing before it"):
        check(model).require()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_hide_an_encoder(dtype):
    import transformers as hf

    config = hf.BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = Model(hf.BertLMHeadModel(config).to(dtype), name="bert")
    with pytest.raises(HeadlabError, match="changing the last token changes nothing before it"):
        check(model).require()


def broken_proofs(model):
    return {proof.name for proof in check(model).proofs if not proof.passed}


def test_each_proof_fails_on_what_it_is_for(monkeypatch):
    import copy

    import headlab.model
    from headlab.gates import gate_heads

    def fresh():
        return Model(copy.deepcopy(tiny("llama-wide")), name="planted")

    spoiled = fresh()
    spoiled.hf.lm_head.weight.data[5] = float("inf")
    assert "finite" in broken_proofs(spoiled)

    bent = fresh()
    projection = bent.seam.projections[1]
    plain = projection.forward
    projection.forward = lambda z: plain(z) + 0.1 * plain(z) ** 2
    assert "sum" in broken_proofs(bent)
    assert check(bent).proofs[5].layer == 1

    def shifted(z, g, r):
        return gate_heads(z, g, r) + 1e-6

    monkeypatch.setattr(headlab.model, "gate_heads", shifted)
    assert broken_proofs(fresh()) >= {"identity"}

    def idle(z, g, r):
        return z

    monkeypatch.setattr(headlab.model, "gate_heads", idle)
    assert broken_proofs(fresh()) == {"ablation"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_check_notices_gates_that_do_not_act_in_one_layer(monkeypatch, dtype, layer):
    from headlab.gates import Gates as Honest

    model = Model(tiny("llama-wide", dtype), name="planted")
    plain = Honest.for_rows

    def skipping(self, at, rows, positions):
        values = plain(self, at, rows, positions)
        return torch.ones_like(values) if at == layer else values

    monkeypatch.setattr(Honest, "for_rows", skipping)
    assert broken_proofs(model) == {"ablation"}


def test_an_attention_function_of_ones_own_is_checked_as_it_is():
    """Heads flipped by a registered attention function: not swapped for another kernel."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def flipped(*args, **kwargs):
        output, weights = sdpa_attention_forward(*args, **kwargs)
        return output.flip(2), weights

    import copy

    AttentionInterface.register("headlab_test_flipped", flipped)
    hf = copy.deepcopy(tiny("llama"))
    hf.set_attn_implementation("headlab_test_flipped")
    with pytest.raises(HeadlabError, match="each head's slice"):
        check(Model(hf, name="flipped")).require()


def test_check_refuses_a_projection_that_is_never_called():
    """BLOOM's slow-but-exact mode multiplies with the weight itself, past the module."""
    import transformers as hf

    config = hf.BloomConfig(
        hidden_size=32, n_layer=2, n_head=4, vocab_size=96, pretraining_tp=2, slow_but_exact=True
    )
    model = Model(hf.BloomForCausalLM(config).eval(), name="bloom")
    with pytest.raises(HeadlabError, match=r"layer 0: .*called once.*called 0 times"):
        check(model).require()


def test_restart_that_cannot_be_proved_is_switched_off_not_trusted():
    class Carry(torch.nn.Module):
        """A layer that hands something to the next one past the hidden states."""

        carried: list[torch.Tensor] = []  # noqa: RUF012

        def __init__(self, block, first):
            super().__init__()
            self.block, self.first = block, first

        def forward(self, hidden_states, **kwargs):
            if self.first:
                Carry.carried[:] = [hidden_states]
            elif Carry.carried:
                hidden_states = hidden_states + Carry.carried.pop()
            return self.block(hidden_states, **kwargs)

    import copy

    hf = copy.deepcopy(tiny("llama"))
    for layer, block in enumerate(hf.model.layers):
        hf.model.layers[layer] = Carry(block, layer == 0)
    model = Model(hf, name="carry")
    result = check(model)
    assert result.passed, "the seam itself is fine"
    refused = [proof.name for proof in result.proofs if not proof.passed]
    assert refused == ["restart", "ending"]
    assert not model.restartable
    tokens = model.tokens(random_ids(1, 5))
    clean = clean_pass(model, tokens, [1], torch.tensor([0]), torch.tensor([4]))
    with pytest.raises(HeadlabError, match="has not been proved to restart"):  # noqa: SIM117
        with restarted(model, 1, clean):
            pass


def test_models_without_heads_are_refused_in_one_sentence():
    import transformers as hf

    config = hf.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(HeadlabError, match="no attention was seen"):
        Model(hf.MambaForCausalLM(config), name="mamba")


@each_architecture
def test_few_kernels_change_nothing(model, monkeypatch):
    check(model)
    tokens = model.tokens(random_ids(2, 8))
    plain = model(tokens)
    turned = []
    turn = headlab.kernels._turn
    monkeypatch.setattr(headlab.kernels, "_turn", lambda *x: turned.append(1) or turn(*x))
    with few_kernels(model), torch.no_grad():
        assert all("forward" in norm.module.__dict__ for norm in model.norms)
        assert (model(tokens) - plain).abs().max() < 1e-5
    others = {"gpt2", "gpt-neox", "gptj", "opt", "bloom", "cohere", "falcon-alibi"}
    assert bool(turned) == (model.name not in others)
    assert torch.equal(model(tokens), plain), "whole again"
    expected = [name for name, module in model.hf.named_modules() if "RMS" in type(module).__name__]
    assert [norm.name for norm in model.norms] == expected


@pytest.mark.parametrize("wrong", ["mean", "eps", "scale"])
def test_a_norm_that_only_has_the_name_is_left_alone(wrong):
    import copy

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
    import copy

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
    import copy

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


def test_an_interrupted_check_leaves_no_shortcut_unproved(monkeypatch):
    for proof in ("places", "ending"):
        model = Model(tiny("llama"), name=proof)
        honest = headlab.proofs._compared

        def interrupted(*args, proof=proof, honest=honest):
            if args[1] == proof:
                raise KeyboardInterrupt
            return honest(*args)

        monkeypatch.setattr(headlab.proofs, "_compared", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check(model)
        monkeypatch.setattr(headlab.proofs, "_compared", honest)
        assert model.cuts_logits == (proof == "ending")
        assert model.restart is None or not model.restart.ends_early
