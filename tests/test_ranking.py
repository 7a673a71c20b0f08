"""A score for every head equals what switching that head off by hand gives."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny, tiny_tokenizer

from headlab import Example, Gates, Head, HeadlabError, Model, check
from headlab.ranking import rank

EXAMPLES = [
    Example("the cat", " sat", "the apple", wrong=(" on", " the"), id="short"),
    Example("the cat gave john the", " apple", "the mat gave mary the", wrong=(" mat",)),
]


@pytest.fixture
def llama() -> Model:
    made = Model(tiny("llama-wide"), tiny_tokenizer(), name="llama-wide")
    check(made)
    return made


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_each_head_is_scored_by_switching_it_off(llama, scale):
    scores = rank(llama, EXAMPLES, "ablate", "log-prob", scale=scale)
    assert scores.shape == (3, 4)
    assert scores.examples == ["short", "2"]
    for head in (Head(0, 0), Head(1, 3), Head(2, 1)):
        for column, example in enumerate(EXAMPLES):
            ids = llama.ids(example.prompt)
            token = llama.ids(example.target)[0]
            plain = llama(ids)[0, -1].log_softmax(-1)[token]
            with llama.gated(Gates.ablate(llama, [head], scale)):
                off = llama(ids)[0, -1].log_softmax(-1)[token]
            assert scores.values[head][column] == pytest.approx(float(plain - off), abs=1e-5)
            assert scores.clean[column] == pytest.approx(float(plain), abs=1e-5)


def test_the_default_measure_follows_the_examples(llama):
    assert rank(llama, EXAMPLES, "ablate").measure == "logit-diff"
    assert rank(llama, [Example("the cat", " sat"), EXAMPLES[0]], "ablate").measure == "log-prob"


def test_the_noise_floor_is_small_beside_the_scores(llama):
    scores = rank(llama, EXAMPLES, "ablate", "log-prob")
    assert 0 < scores.noise_floor < 1e-5 < scores.score.abs().max()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, ValueError("4-bit weights")])
def test_without_a_wider_copy_there_are_scores_but_no_noise_floor(llama, monkeypatch, error):
    honest = Model.logits_at

    def full(model, *places):
        if model.dtype == torch.float64:
            raise error
        return honest(model, *places)

    monkeypatch.setattr(Model, "logits_at", full)
    scores = rank(llama, EXAMPLES, "ablate")
    assert scores.noise_floor is None
    assert not scores.in_noise.any()


def test_a_distance_scores_the_heads_that_matter_highest(llama):
    """KL is 0 with all heads and more without: more is worse."""
    scores = rank(llama, EXAMPLES, "ablate", "kl")
    assert (scores.score > 0).all()
    assert torch.equal(scores.shown, scores.score)
    assert torch.equal(scores.leaves_out_zero, ~scores.in_noise)
    other = rank(llama, EXAMPLES, "ablate", "log-prob")
    assert torch.equal(other.shown, -other.score)
    low, high = other.shown_interval
    assert ((low <= other.shown) & (other.shown <= high)).all()


def test_a_gate_of_one_is_refused(llama):
    with pytest.raises(HeadlabError, match="changes nothing"):
        rank(llama, EXAMPLES, "ablate", scale=1.0)


def test_progress_counts_every_pair_once(llama):
    done = []
    rank(llama, EXAMPLES, "ablate", progress=done.append)
    assert sum(done) == 12 * 2
