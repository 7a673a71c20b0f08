"""The probe: z is pooled over the answer, and heads that tell functions apart come first."""

from __future__ import annotations

import pytest
import torch
from tiny import lettered

import headlab
from headlab.errors import HeadlabError
from headlab.generation import Written
from headlab.probing import Pooled, Training, answer_tokens, elbow, fit_probe, pool
from headlab.probing.files import pooled_answers
from headlab.tasks.cogqa import SubQuestion

QUICK = Training(epochs=30, batch=24, rate=2e-3, hidden=64, projected=8)


@pytest.fixture(scope="module")
def model():
    headlab.check(lettered()).require()
    return lettered()


# --- what is pooled ---


def test_pooled_z_is_the_mean_over_the_answers_tokens_alone_or_batched(model):
    prompts = ["one two three", "four", "five six seven eight nine"]
    written = headlab.generate(model, prompts, max_new_tokens=6).rows[0]
    together = pool(model, prompts, written)
    assert together.z.shape == (3, model.n_layers, model.n_heads, model.head_width)
    for number, (prompt, text) in enumerate(zip(prompts, written, strict=True)):
        ids = torch.cat([model.ids(prompt), torch.tensor(text.ids)])
        z = model.head_outputs([ids])[:, 0]  # [layer, position, head, width]
        own = [len(model.ids(prompt)) + place for place in answer_tokens(model, text)]
        torch.testing.assert_close(together.z[number], z[:, own].mean(1), atol=1e-5, rtol=1e-5)
        alone = pool(model, [prompt], [text])
        torch.testing.assert_close(together.z[number], alone.z[0], atol=1e-5, rtol=1e-5)
    assert together.tokens.tolist() == [6, 6, 6]
    assert not together.in_json.any()


def test_z_is_what_heads_gave_while_the_text_was_made(model):
    """A token's z does not depend on what comes after it: the cached step and the whole pass."""
    prompt = "one two three"
    (text,) = headlab.generate(model, [prompt], max_new_tokens=4).rows[0]
    steps = []
    for number in range(4):
        ids = torch.cat([model.ids(prompt), torch.tensor(text.ids[: number + 1])])
        steps.append(model.head_outputs([ids])[:, 0, -1])
    torch.testing.assert_close(
        pool(model, [prompt], [text]).z[0], torch.stack(steps).mean(0), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ('[ {"answer": "Paris"} ]', "Paris"),
        ('Sure. [ {"answer": "New York"} ]', "New York"),
        ('[ {"answer": 36} ]', "36"),
        ('[ {"answer": "", "why": "x"} ]', None),
        ("Paris", None),
        ('[ {"answer": "Par', None),
    ],
)
def test_the_answers_tokens_are_those_of_its_value(model, text, inside):
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    chosen = answer_tokens(model, Written(text, ids, "stop"))
    if inside is None:
        assert chosen == list(range(len(ids)))
        return
    told = model.continuation([ids[number] for number in chosen])
    assert inside in told
    assert len(told) <= len(inside) + 4
    assert chosen == list(range(chosen[0], chosen[-1] + 1))


def test_texts_must_fit_the_prompts(model):
    with pytest.raises(HeadlabError, match="2 prompts do not fit 1 texts"):
        pool(model, ["a", "b"], [Written("x", [5], "length")])


def test_pooled_answers_are_kept_and_taken_up_by_the_same_questions_alone(model, tmp_path):
    def asked(n: int) -> list[SubQuestion]:
        return [SubQuestion(f"t-{i}", "retrieval", f"q{i}", (), "a?", "b") for i in range(n)]

    seen: list[int] = []
    first = pooled_answers(model, asked(2), tmp_path / "p", 3, seen.append)
    assert sum(seen) == 2 * 4
    before = (tmp_path / "p.safetensors").stat().st_mtime_ns
    again = pooled_answers(model, asked(2), tmp_path / "p", 3, seen.append)
    assert torch.equal(first.z, again.z)
    assert sum(seen) == 2 * 2 * 4
    assert (tmp_path / "p.safetensors").stat().st_mtime_ns == before
    assert len(pooled_answers(model, asked(3), tmp_path / "p", 3).z) == 3
    assert isinstance(again, Pooled)


# --- the probe ---


def made(n: int, seed: int, telling: tuple[int, int] = (1, 2)) -> tuple[torch.Tensor, list[str]]:
    """z of three classes; one head alone tells the first from the others."""
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 2, 4, 8, generator=random)
    labels = [("a", "b", "c")[number % 3] for number in range(n)]
    for row, label in zip(z, labels, strict=True):
        row[telling] = row[telling] * 0.3 + 2.0 * (label == "a") - 1.0 * (label == "b")
    return z, labels


def test_the_head_that_tells_a_class_is_first_and_the_probe_beats_its_controls():
    probed = fit_probe(made(120, 0), made(60, 1), ["a", "b", "c"], QUICK)
    assert probed.accuracy > 0.8 > probed.shuffled
    assert probed.majority == pytest.approx(1 / 3)
    assert probed.shuffled < 0.6
    for name in ("a", "b"):
        assert probed.top(name, 1) == [headlab.Head(1, 2)]
    assert probed.recalls["a"] > 0.9
    assert probed.importance.shape == (3, 2, 4)
    assert probed.losses[-1] < 0.5 * probed.losses[0]


def test_importance_is_gradient_times_projection_of_the_answers_own_class():
    from headlab.probing.probe import Probe, _importance

    torch.manual_seed(0)
    z, labels = made(10, 0)
    numbers = torch.tensor(["abc".index(label) for label in labels])
    probe = Probe((2, 4, 8), 3, QUICK).eval()
    found = _importance(probe, z, numbers, "cpu")
    row, own = 4, int(numbers[4])
    both = torch.cat([z[row], z[row].mean(1, keepdim=True).expand(2, 4, 8)], -1)
    projected = probe.project(both).view(8, -1).detach().requires_grad_()
    (slope,) = torch.autograd.grad(probe.read(projected.view(1, -1))[0, own], projected)
    torch.testing.assert_close(found[row], (slope * projected).mean(-1).double().detach())


def test_the_same_seed_gives_the_same_probe_and_seeds_are_averaged():
    def fit(*seeds: int) -> torch.Tensor:
        return fit_probe(made(40, 0), made(20, 1), list("abc"), QUICK, seeds=seeds).importance

    one, other = fit(0), fit(1)
    assert torch.equal(one, fit(0))
    assert not torch.equal(one, other)
    torch.testing.assert_close(fit(0, 1), (one + other) / 2)


def test_scores_of_a_class_order_heads_by_size(model):
    probed = fit_probe(made(60, 0), made(30, 1), list("abc"), QUICK)
    items = [
        SubQuestion(f"t-{number}", label, "q", (), "a?", "b")
        for number, label in enumerate(made(60, 0)[1])
    ]
    scores = probed.scores(model, "b", items, {"seed": 0})
    assert [str(head) for head in scores.order()] == [str(head) for head in probed.top("b", 8)]
    assert bool((scores.score >= 0).all())
    assert len(scores.examples) == 20
    assert len(set(scores.fingerprints)) == 1  # of one prompt


def test_layers_of_other_magnitudes_are_heard():
    """A layer a thousand times quieter tells as much."""
    (z, labels), (other, theirs) = made(120, 0, (0, 3)), made(60, 1, (0, 3))
    z[:, 0] *= 1e-3
    other[:, 0] *= 1e-3
    probed = fit_probe((z, labels), (other, theirs), list("abc"), QUICK)
    assert probed.top("a", 1) == [headlab.Head(0, 3)]
    assert probed.accuracy > 0.8


def test_the_elbow_is_where_the_curve_bends():
    assert elbow(torch.tensor([10.0, 9.0, 8.0, 1.0, 0.9, 0.8, 0.7, 0.6])) == 4
    assert elbow(torch.ones(5)) == 5  # a line has none
    assert elbow(torch.tensor([[3.0, 0.0], [0.0, 0.0]])) == 2


def test_a_probe_that_cannot_be_trained_is_refused():
    with pytest.raises(HeadlabError, match="at least one epoch"):
        Training(epochs=0)
    with pytest.raises(HeadlabError, match="learning rate"):
        Training(rate=2)
