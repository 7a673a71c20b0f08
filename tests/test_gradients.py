"""Slopes of a measure with respect to every gate."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from measuring import EXAMPLES, random_masks, references
from tiny import tiny, tiny_tokenizer
from writing import each_architecture, made

from headlab import Example, Gates, HeadlabError, Model
from headlab.batches import Batch
from headlab.budgets import GRAPH
from headlab.engine import measure
from headlab.gradients import gate_gradients
from headlab.measures import MEASURES
from headlab.proofs import check


@pytest.fixture
def llama() -> Model:
    return made("llama-wide")


@pytest.mark.parametrize("name", [name for name, each in MEASURES.items() if each.differentiable])
@pytest.mark.parametrize("kind", ["zero", "mean", "counterfactual"])
def test_gradients_equal_finite_differences(name, kind):
    model = Model(tiny("gpt2", torch.float64), tiny_tokenizer())  # stays in float64 throughout
    check(model)
    reference = references(model)[kind]
    generator = torch.Generator().manual_seed(8)
    masks = torch.rand(2, 3, 4, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    found = gate_gradients(model, EXAMPLES, masks, name, reference)
    assert found.gradient.shape == (2, 3, 3, 4)
    step = 1e-5
    for mask, layer, head in ((0, 0, 1), (1, 2, 3), (1, 1, 0)):
        sides = []
        for sign in (1, -1):
            nudged = masks.clone()
            nudged[mask, layer, head] += sign * step
            sides.append(gate_gradients(model, EXAMPLES, nudged, name, reference).values[mask])
        slope = (sides[0] - sides[1]) / (2 * step)
        assert (slope - found.gradient[mask, :, layer, head]).abs().max() < 1e-6


@each_architecture
def test_gradients_exist_on_every_architecture_and_leave_the_weights_alone(name):
    model = made(name)
    found = gate_gradients(model, EXAMPLES, Gates.ones(model), "logit-diff", "counterfactual")
    assert found.gradient.isfinite().all()
    assert (found.gradient != 0).all()
    table = measure(model, EXAMPLES, Gates.ones(model), "logit-diff", "counterfactual")
    assert (found.values - table.values).abs().max() < 1e-5
    assert all(weight.grad is None for weight in model.hf.parameters())
    assert all(weight.requires_grad for weight in model.hf.parameters()), "as they were"


@pytest.mark.parametrize(
    ("masks_in_a_pass", "rows"), [(1, [1] * 7), (3, [3, 2, 2]), (4, [4, 3]), (100, [7])]
)
def test_gradients_in_several_passes_are_those_of_one(llama, monkeypatch, masks_in_a_pass, rows):
    masks = random_masks(7)
    sizes: list[int] = []
    plain = Model.logits_at

    def counted(self, tokens, *places):
        if torch.is_grad_enabled():
            sizes.append(len(tokens.ids))
        return plain(self, tokens, *places)

    monkeypatch.setattr(Model, "logits_at", counted)
    settings = "kl", "counterfactual"
    tokens = len(llama.ids(EXAMPLES[1].prompt))
    gate_gradients(llama, [EXAMPLES[1]], masks, *settings, budget=4 * masks_in_a_pass * tokens)
    assert sizes == rows, "about as many in each"
    done: list[int] = []
    found = gate_gradients(
        *(llama, EXAMPLES, masks, *settings),
        budget=4 * masks_in_a_pass * tokens,
        progress=done.append,
    )
    whole = gate_gradients(llama, EXAMPLES, masks, *settings)
    assert torch.allclose(found.values, whole.values, atol=1e-6)
    assert torch.allclose(found.gradient, whole.gradient, atol=1e-6)
    assert sum(done) == 7 * len(EXAMPLES)


def test_gradients_that_fail_leave_the_weights_as_they_were(llama, monkeypatch):
    learning = [weight.requires_grad for weight in llama.hf.parameters()]
    monkeypatch.setattr(Batch, "values", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gate_gradients(llama, EXAMPLES, Gates.ones(llama))
    assert [weight.requires_grad for weight in llama.hf.parameters()] == learning
    assert any(learning)


@pytest.mark.parametrize("seed", range(5))
def test_running_out_of_memory_changes_no_slope(llama, monkeypatch, seed):
    gates = torch.rand(4, 3, 4, generator=torch.Generator().manual_seed(9))
    usual = gate_gradients(llama, EXAMPLES, gates, "logit-diff", "counterfactual")
    chance, plain = random.Random(seed), torch.autograd.grad
    tries = []

    def sometimes_full(*args, **named):
        tries.append(args[1][0].shape[:2])
        full = len(tries) == 1 or chance.random() < 0.5
        if full and tries[-1].numel() > 4:  # never one example alone
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return plain(*args, **named)

    monkeypatch.setattr(torch.autograd, "grad", sometimes_full)
    done, before = [], llama.back_offs
    found = gate_gradients(
        llama, EXAMPLES, gates, "logit-diff", "counterfactual", progress=done.append
    )
    assert llama.back_offs > before
    assert tries[0].numel() > min(each.numel() for each in tries)
    assert (found.gradient - usual.gradient).abs().max() < 1e-5
    assert (found.values - usual.values).abs().max() < 1e-5
    assert sum(done) == 4 * len(EXAMPLES), "every pair is reported once"


@pytest.mark.parametrize("reference", ["zero", "counterfactual"])
def test_what_comes_after_memory_ran_out_is_cut_to_what_fitted(llama, monkeypatch, reference):
    late = "the cat sat on the mat, john gave the"  # where it and its counterfactual part
    one = Example(f"{late} apple", " sat", f"{late} cat")
    examples = [dataclasses.replace(one, id=str(n)) for n in range(24)]
    tokens = 8 * llama.join(one.prompt, one.target)[1]
    plain, rows = torch.autograd.grad, []

    def small(*args, **named):
        rows.append(args[1][0].shape[:2].numel())
        if rows[-1] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return plain(*args, **named)

    monkeypatch.setattr(torch.autograd, "grad", small)
    ones = Gates.ones(llama)
    gate_gradients(llama, examples, ones, "log-prob", reference, budget=GRAPH * tokens)
    assert rows == [8, *[4] * 6]


def test_slopes_that_never_fit_are_named(llama, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory (planted)")

    monkeypatch.setattr(torch.autograd, "grad", full)
    with pytest.raises(HeadlabError, match="slopes of example 'short' do not fit into memory"):
        gate_gradients(llama, EXAMPLES, Gates.ones(llama))
    assert all(weight.requires_grad for weight in llama.hf.parameters())


def test_gradients_that_do_not_exist_are_refused(llama):
    with pytest.raises(HeadlabError, match="choice-accuracy is a step function"):
        gate_gradients(llama, EXAMPLES, torch.ones(3, 4), "choice-accuracy")
    with pytest.raises(HeadlabError, match="differ by position"):
        gate_gradients(llama, EXAMPLES, Gates(torch.ones(3, 4, 9), "layer head position"))
