"""Attention in our own ways gives what transformers' own gives, and only where it may."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from measuring import EXAMPLES, random_masks
from tiny import ARCHITECTURES, tiny, tiny_tokenizer
from torch import Tensor
from transformers import AttentionInterface

from headlab import Example, Model, fused, generate, measure
from headlab.attention.watching import watch
from headlab.gatefits.rows import Rows
from headlab.gatefits.slopes import summed_slopes
from headlab.gates import ZERO
from headlab.gradients import gate_gradients
from headlab.measures import MEASURES
from headlab.proofs import check
from headlab.sdpa import grouped_queries, short_rows


def test_grouped_queries_attend_as_transformers_own():
    own = AttentionInterface()["sdpa"]
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    key, value = numbers(5, 2, 11, 8), numbers(5, 2, 11, 8)
    padding = torch.arange(11) >= torch.tensor([0, 3, 10, 1, 5])[:, None]
    shared = padding[:, None, None]  # [row, 1, 1, position]
    for length, mask in (
        (1, shared),
        (1, shared.float().log()),
        (1, shared.expand(-1, 6, -1, -1)),
        (1, None),
        (2, shared.expand(-1, -1, 2, -1)),
    ):
        query = numbers(5, 6, length, 8)
        expected, _ = own(module, query, key, value, mask, scaling=0.4)
        with grouped_queries():
            found, _ = AttentionInterface()["sdpa"](module, query, key, value, mask, scaling=0.4)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-6)
    assert AttentionInterface()["sdpa"] is own
    with pytest.raises(KeyError), grouped_queries():
        raise KeyError
    assert AttentionInterface()["sdpa"] is own


def test_short_rows_attend_as_transformers_own(kernel):
    own = AttentionInterface()["sdpa"]
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    random = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 5, 2, 11, 8, generator=random)
    query = torch.randn(5, 6, 11, 8, generator=random)
    mask = torch.ones(5, 1, 11, 11, dtype=torch.bool).tril(2)
    bias = torch.randn(1, 6, 11, 11, generator=random)
    for ours, queries, asked in (
        (True, query, {}),
        (True, query, {"scaling": 0.4}),
        (True, query, {"is_causal": True}),
        (False, query, {"is_causal": False}),
        (False, query, {"attention_mask": mask}),
        (False, query, {"position_bias": bias}),
        (False, query[:, :, -1:], {}),
        (False, query[:, :, :7], {}),
        (True, query.clone().requires_grad_(), {}),
    ):
        asked = {"attention_mask": None, **asked}
        expected, _ = own(module, queries, key, value, **asked)
        kernel.clear()
        with short_rows():
            found, _ = AttentionInterface()["sdpa"](module, queries, key, value, **asked)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-6)
        assert bool(kernel) == ours
    module.is_causal = False
    kernel.clear()
    with short_rows():
        AttentionInterface()["sdpa"](module, query, key, value, None)
    assert not kernel
    assert AttentionInterface()["sdpa"] is own
    with pytest.raises(KeyError), short_rows():
        raise KeyError
    assert AttentionInterface()["sdpa"] is own


def test_those_who_look_at_attention_see_torchs(kernel):
    """Also while a sweep runs, in this thread or in another."""
    model = Model(tiny("llama"), tiny_tokenizer(), name="llama")
    check(model)
    tokens = model.tokens("the cat sat")

    def seen() -> list[int]:
        layers = []
        watch(model, tokens, {0: [0], 2: [1]}, lambda block: layers.append(block.layer))
        return layers

    with short_rows(), torch.no_grad():
        assert seen() == [0, 2]
        assert not kernel
        model(tokens)
        assert len(kernel) == model.n_layers, "and is as before"
        kernel.clear()
        with ThreadPoolExecutor(1) as other:
            assert other.submit(check, model).result().passed
        assert not kernel
    measure(model, EXAMPLES, random_masks(8), progress=lambda _: seen())
    assert kernel


def test_blocks_of_several_threads_may_end_in_any_order(kernel):
    own = AttentionInterface()["sdpa"]
    first, second = short_rows(), grouped_queries()
    with ThreadPoolExecutor(1) as other:
        first.__enter__()
        other.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert AttentionInterface()["sdpa"] is not own, "the other thread needs it"
        other.submit(second.__exit__, None, None, None).result()
    assert AttentionInterface()["sdpa"] is own


def test_another_attention_of_that_name_is_left_alone(kernel):
    own = AttentionInterface()["sdpa"]
    model = Model(tiny("llama"), tiny_tokenizer(), name="llama")
    check(model)
    plain = measure(model, EXAMPLES, random_masks(8))
    assert kernel
    kernel.clear()

    def halved(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **_):
        return own(module, query / 2, key, value, attention_mask, dropout, scaling)

    AttentionInterface.register("sdpa", halved)
    try:
        other = measure(model, EXAMPLES, random_masks(8))
        generate(model, "the cat sat", max_new_tokens=2)
        assert AttentionInterface()["sdpa"] is halved
    finally:
        AttentionInterface.register("sdpa", own)
    assert not kernel
    assert (other.clean - plain.clean).abs().min() > 1e-4


def test_prompts_of_a_text_are_short_rows(kernel):
    model = Model(tiny("llama"), tiny_tokenizer(), name="llama")
    check(model)
    expected = [row.ids for (row,) in generate(model, ["the cat sat"], max_new_tokens=4).rows]
    assert kernel == [(3, 3)] * model.n_layers
    kernel.clear()
    again = generate(model, ["the cat sat", "the mat sat"], max_new_tokens=4).rows[0]
    assert [row.ids for row in again[:1]] == expected
    assert kernel == [(3, 3)] * model.n_layers


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sweeps_with_short_rows_give_the_same_table(name, kernel, monkeypatch):
    model = Model(tiny(name), tiny_tokenizer(), name=name)
    check(model)
    assert not kernel, "proofs are of the model's own attention"
    found = measure(model, EXAMPLES, random_masks(8), reference="zero")
    uses_sdpa = model.hf.config._attn_implementation == "sdpa"
    monkeypatch.setattr(fused, "can_attend_all", lambda *_: False)
    plain = measure(model, EXAMPLES, random_masks(8), reference="zero")
    assert (found.values - plain.values).abs().max() < 1e-5
    assert uses_sdpa or not kernel
    if name == "llama":
        assert kernel


def test_slopes_of_short_rows_are_transformers_own(kernel):
    own = AttentionInterface()["sdpa"]
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(5, n, 11, 8, generator=random).requires_grad_() for n in (6, 2, 2)]
    slope = torch.randn(5, 8, 11, 6, generator=random).permute(0, 2, 3, 1)  # [row, place, head, 8]

    def slopes(attend):
        found, _ = attend(module, *given, None, scaling=0.4)
        return found, torch.autograd.grad(found, given, slope, retain_graph=True)

    _, expected = slopes(own)
    assert not kernel
    with short_rows():
        found, ours = slopes(AttentionInterface()["sdpa"])
    assert kernel == [(11, 11), (-11, -11)]
    for one, other in zip(ours, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    fixed, key = given[0].detach(), given[1]
    with short_rows():
        only_keys, _ = AttentionInterface()["sdpa"](module, fixed, key, given[2], None, scaling=0.4)
    (one,) = torch.autograd.grad(only_keys, key, slope)
    assert torch.allclose(one, expected[1], atol=1e-6)
    again = torch.autograd.grad(found.square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        again[0].sum().backward()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_slopes_of_gates_go_through_short_rows(name, kernel, monkeypatch):
    """Those of a measure, and those of a fit, whose rows are of several lengths."""
    model = Model(tiny(name), tiny_tokenizer(), name=name)
    check(model)
    gates, fits = random_masks(8), torch.randn(2, model.n_layers, model.n_heads)
    rows = Rows(model, EXAMPLES, len(EXAMPLES))
    numbers = np.tile(np.arange(len(EXAMPLES)), 2)

    def measured():
        found = gate_gradients(model, EXAMPLES, gates, reference="counterfactual")
        return found.values, found.gradient

    def fitted():
        return summed_slopes(model, rows, ZERO, fits, numbers, 64, lambda log_probs, _: -log_probs)

    for slopes in (measured, fitted):
        found = slopes()
        back = [shape for shape in kernel if shape[0] < 0]
        assert model.hf.config._attn_implementation == "sdpa" or not back
        assert back or name != "llama"
        kernel.clear()
        with monkeypatch.context() as there:
            there.setattr(fused, "can_attend_all", lambda *_: False)
            for ours, plain in zip(found, slopes(), strict=True):
                assert torch.allclose(ours, plain, atol=1e-5)
        assert not kernel


def _hit(model: Model) -> Example:
    """One whose answer is the likeliest word."""
    for first, second in itertools.permutations(["the", "cat", "sat", "on", "mat", "gave"], 2):
        prompt = f"{first} {second}"
        (word,) = model.token_texts([int(model(prompt)[0, -1].argmax())])
        if word.startswith(" ") and word.strip().isalpha():
            return Example(prompt, word, f"{second} {first}", wrong=(" zzz",), id="hit")
    raise AssertionError("no prompt is followed by a word")


@pytest.mark.parametrize("name", MEASURES)
def test_answers_read_off_sums_are_those_of_all_log_probs(name, monkeypatch):
    model = Model(tiny("llama"), tiny_tokenizer(), name="llama")
    check(model)
    gates = random_masks(8)
    examples = [*EXAMPLES, _hit(model)]
    plain = measure(model, examples, gates, name)
    summed: list[torch.Size] = []

    def log_sum(logits: Tensor) -> tuple[Tensor, Tensor]:
        summed.append(logits.shape)
        tops = logits.float().amax(-1)
        return tops, (logits.float() - tops[..., None]).exp().sum(-1).log()

    monkeypatch.setattr("headlab.fused.launching.works", lambda kernel, *_: kernel == "log_sum")
    monkeypatch.setattr(fused, "log_sum", log_sum)
    found = measure(model, examples, gates, name)
    assert bool(summed) == (not plain.measure.needs_kl)
    for ours, right in ((found.values, plain.values), (found.clean, plain.clean)):
        assert torch.allclose(ours, right, atol=1e-5)
