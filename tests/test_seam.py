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
from headlab.proofs import check
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
        "bare",
        "places",
        "restart",
        "joining",
        "ending",
        "beginning",
        "sharing",
        "norms",
        "mlps",
        "rotary",
    ]
    kept = [proof.name for proof in result.proofs if not proof.passed]
    # BLOOM's attention adds the residual itself: no other can answer for it. GPT-J and Cohere turn
    # neighbours against each other, not halves.
    odd = {"bloom": ["ending"], "gptj": ["rotary"], "cohere": ["rotary"]}
    assert kept == odd.get(model.name, []), result
    assert model.restartable


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

    def skipping(self, at, rows, positions, masks=None):
        values = plain(self, at, rows, positions, masks)
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


def test_models_without_heads_are_refused_in_one_sentence():
    import transformers as hf

    config = hf.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(HeadlabError, match="no attention was seen"):
        Model(hf.MambaForCausalLM(config), name="mamba")
