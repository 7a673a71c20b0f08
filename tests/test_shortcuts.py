"""What makes passes shorter changes nothing, is proved, and is off where it is not."""

from __future__ import annotations

import copy
import re
from contextlib import ExitStack, contextmanager

import pytest
import torch
from looking import Looks
from tiny import ARCHITECTURES, random_ids, tiny, tiny_tokenizer

import headlab
from headlab import Gates, Head, HeadlabError, Model, stretches
from headlab.proofs import TOLERANCE, Proof, check, shortcuts
from headlab.proofs.result import rounded_otherwise, within_rounding
from headlab.restart import clean_pass, restarted
from headlab.tokens import Tokens

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture
def model(name: str) -> Model:
    return Model(tiny(name), name=name)


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
@pytest.mark.parametrize("share", [False, True])
def test_a_restart_with_gates_equals_the_full_pass(model, share):
    check(model)
    tokens = model.tokens(random_ids(2, 8))
    places = tokens.mask.nonzero(as_tuple=True)
    clean = clean_pass(model, tokens, range(3), *places)
    for layer in range(3):
        with model.gated(Gates.ablate(model, [Head(layer, 1)])):
            full = model.logits_at(tokens, *places)
            with restarted(model, {layer: 1}, clean, share=share):
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
    with model.gated(Gates.stack(masks)), restarted(model, {1: 4}, clean):
        together = model.logits_at(repeated, *rows).view(4, 2, -1)
    for number, mask in enumerate(masks):
        with model.gated(mask):
            assert (model(tokens)[:, -1] - together[number]).abs().max() < 1e-5


def test_joining_that_cannot_be_proved_is_switched_off_not_trusted():
    class Counting(torch.nn.Module):
        """A layer that wants as many rows as there are prompts."""

        def __init__(self, block, network):
            super().__init__()
            self.block = block
            network.get_input_embeddings().register_forward_hook(self.count)

        def count(self, _, args, out):
            self.rows = len(out)

        def forward(self, hidden_states, **kwargs):
            return self.block(hidden_states, **kwargs) * (len(hidden_states) / self.rows)

    hf = copy.deepcopy(tiny("llama"))
    hf.model.layers[1] = Counting(hf.model.layers[1], hf)
    model = Model(hf, tiny_tokenizer(), name="counting")
    result = check(model)
    assert result.passed
    assert [proof.name for proof in result.proofs if not proof.passed] == ["joining"]
    assert model.restartable
    assert not model.restart.joins
    tokens = model.tokens(random_ids(1, 5))
    clean = clean_pass(model, tokens, [0, 1], torch.tensor([0]), torch.tensor([4]))
    with pytest.raises(HeadlabError, match="have not been proved to join"):  # noqa: SIM117
        with restarted(model, {0: 1, 1: 1}, clean):
            pass
    example, masks = headlab.Example("the cat", " sat"), Gates.each_head(model)
    fast = headlab.measure(model, [example], masks)
    plain = headlab.measure(model, [example], masks, restart=False)
    assert (fast.values - plain.values).abs().max() < 1e-5


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

    hf = copy.deepcopy(tiny("llama"))
    for layer, block in enumerate(hf.model.layers):
        hf.model.layers[layer] = Carry(block, layer == 0)
    model = Model(hf, name="carry")
    result = check(model)
    assert result.passed, "the seam itself is fine"
    refused = [proof.name for proof in result.proofs if not proof.passed]
    assert refused == ["restart", "joining", "ending", "beginning", "sharing"]
    assert not model.restartable
    tokens = model.tokens(random_ids(1, 5))
    clean = clean_pass(model, tokens, [1], torch.tensor([0]), torch.tensor([4]))
    with pytest.raises(HeadlabError, match="has not been proved to restart"):  # noqa: SIM117
        with restarted(model, {1: 1}, clean):
            pass


@each_architecture
def test_pads_on_the_right_need_no_mask_once_a_model_is_proved_causal(model):
    rows = [random_ids(1, 9)[0], random_ids(1, 5, seed=3)[0]]
    tokens = model.tokens(rows)
    assert not model.inputs(tokens)["attention_mask"].all(), "nothing is proved yet"
    alone = model(rows[1])[0]
    check(model)
    assert not {"attention_mask", "position_ids"} & set(model.inputs(tokens))
    model.bare = False
    assert model.inputs(tokens)["attention_mask"].all()
    model.bare = True
    with model.gated(Gates.ones(model)):
        assert (model(tokens)[1, :5] - alone).abs().max() < 1e-5
    assert not model.inputs(model.tokens(rows, padding="left"))["attention_mask"].all()
    assert not model.inputs(Tokens(tokens.ids, tokens.mask))["attention_mask"].all()


@each_architecture
def test_passes_of_ids_alone_look_at_no_numbers(model):
    check(model)
    assert model.bare
    rows = [random_ids(1, 9)[0], random_ids(1, 5, seed=3)[0]]
    tokens, cleaned = model.tokens(rows), model(model.tokens(rows))
    with Looks() as looks, torch.no_grad():
        found = model(tokens)
    assert torch.equal(found, cleaned)
    assert not looks.count
    if model.name == "llama":
        model.bare = False
        with Looks() as looks, torch.no_grad():
            model(tokens)
        assert looks.count, "at the mask"


@pytest.mark.parametrize(
    ("missing", "how"),
    [
        *(("attention_mask", how) for how in ("turned", "pads", "error")),
        *(("position_ids", how) for how in ("turned", "pads")),
    ],
)
def test_a_model_that_needs_more_than_ids_is_given_more(missing, how, monkeypatch):
    model = Model(tiny("llama"), name="llama")
    expected = model(random_ids(2, 8))
    assert check(model).passed
    assert model.bare
    whole, end = model.hf.forward, model.hf.config.eos_token_id

    def forward(**given):
        if given.get(missing) is None:
            if how == "error":
                raise ValueError("it is needed")
            ids = given["input_ids"]
            given["input_ids"] = ids.flip(1) if how == "turned" else torch.where(ids == end, 5, ids)
        return whole(**given)

    monkeypatch.setattr(model.hf, "forward", forward)
    refused = [proof.name for proof in check(model).proofs if not proof.passed]
    assert refused == ["bare"]
    assert model.restartable
    assert torch.equal(model(random_ids(2, 8)), expected)


def test_passes_of_ids_alone_keep_no_keys():
    model = Model(tiny("llama"), name="llama")
    check(model)
    inputs = model.inputs(model.tokens(random_ids(2, 8)))
    model.hf(**inputs)
    assert not inputs["past_key_values"].layers
    assert inputs["past_key_values"].get_seq_length() == 0


def test_an_interrupted_check_leaves_no_shortcut_unproved(monkeypatch):
    for proof in ("places", "ending"):
        model = Model(tiny("llama"), name=proof)
        honest = shortcuts.compared

        def interrupted(*args, proof=proof, honest=honest):
            if args[1] == proof:
                raise KeyboardInterrupt
            return honest(*args)

        monkeypatch.setattr(shortcuts, "compared", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check(model)
        monkeypatch.setattr(shortcuts, "compared", honest)
        assert model.cuts_logits == (proof == "ending")
        assert model.restart is None or not model.restart.ends_early


# --- roundings ---


@pytest.fixture(scope="module")
def deep() -> Model:
    """Many layers in bfloat16, in which roundings add up."""
    config = copy.deepcopy(tiny("llama").config)
    config.num_hidden_layers = 24
    torch.manual_seed(0)
    hf = type(tiny("llama"))(config).to(torch.bfloat16).eval().requires_grad_(False)
    for weight in hf.parameters():
        if weight.ndim == 2:
            weight.mul_(8)  # so that each head matters
    return Model(hf, tiny_tokenizer(), name="deep")


def test_roundings_that_add_up_switch_nothing_off(deep, monkeypatch):
    """As in kernels that round otherwise, through more layers than the tolerance has room for."""

    @contextmanager
    def otherwise(model, starts, *rest):
        with ExitStack() as stack:
            stack.enter_context(restarted(model, starts, *rest))
            if len(starts) > 1:  # restarting at one layer is to give the same bits
                stack.enter_context(rounded_otherwise(model))
            yield

    monkeypatch.setitem(TOLERANCE, torch.bfloat16, 5e-3)
    monkeypatch.setattr(shortcuts, "restarted", otherwise)
    monkeypatch.setattr(stretches, "restarted", otherwise)
    proofs = {proof.name: proof for proof in check(deep).proofs}
    failed = [proof for proof in proofs.values() if not proof.passed]
    assert failed == []
    for name in ("joining", "beginning", "sharing"):
        proof = proofs[name]
        assert proof.difference > 0.02
        assert re.fullmatch(r"other roundings change 0\.0\d+", proof.note)
        assert proof.tolerance == pytest.approx(1.5 * float(proof.note.split()[-1]), rel=0.05)
    assert deep.restart.joins
    assert deep.restart.begins_late
    assert deep.restart.shares


def test_what_is_no_rounding_is_not_taken_for_one(deep):
    """A mistake is of the size of what the gates change, or of a part of it."""
    tokens = deep.tokens(random_ids(2, 8))
    clean = deep(tokens)

    def run() -> torch.Tensor:
        with deep.gated(Gates.ablate(deep, "L0H1")):
            return deep(tokens)

    whole = run()
    effect = float((whole - clean).abs().max())
    given = run, whole, clean
    for wrong in (0.1, 0.5, 1.0):
        proof = Proof("joining", "", wrong * effect, 1e-3)
        assert not within_rounding(deep, proof, *given).passed
    known = within_rounding(deep, Proof("joining", "", 0.01 * effect, 1e-3), *given)
    assert known.passed
    least = within_rounding(deep, Proof("joining", "", 1.0, 1e-3), run, whole, whole + 2e-3)
    assert least.tolerance == 1e-3, "gates that change nothing show no mistake"
    passed = Proof("joining", "", 0.0, 1e-3)
    assert within_rounding(deep, passed, *given) is passed
    unknown = Proof("joining", "", float("inf"), 1e-3)
    assert not within_rounding(deep, unknown, *given).passed
