"""A curve proves an order: exact ends, honest baselines, the planted circuit found."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
import torch
from planted import CARRIERS, pairs, planted
from tiny import ARCHITECTURES, tiny, tiny_tokenizer

from headlab import Example, Gates, Head, HeadlabError, Model, check, measure, rank
from headlab.curves import Curve, NoEffect, curve
from headlab.curves.making import _fill_in, _wanted_ks
from headlab.curves.orders import ranks_of, shuffled, shuffled_in_layers
from headlab.curves.record import SHARES, share_ks
from headlab.gradients import gate_gradients
from headlab.ranking import swap
from headlab.scores import HeadScores, read_scores, write_scores

PAIRS = [
    Example("the cat sat on", " the", "the mat gave on", wrong=(" cat",), id="a"),
    Example("on the apple, the", " cat", "on the mat, the", wrong=(" mat",), id="b"),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return planted()


# --- the ends are exact ---


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_head_kept_is_the_counterfactual_and_all_heads_the_clean_run(name):
    made = Model(tiny(name), tiny_tokenizer(), name=name)
    check(made)
    gates = Gates.stack([Gates.keep(made, []), Gates.ones(made)])
    for by in ("logit-diff", "log-prob", "prob-diff"):
        table = measure(made, PAIRS, gates, by, "counterfactual")
        corrupt = measure(made, [swap(example) for example in PAIRS], Gates.ones(made), by).clean
        assert (table.values[0] - corrupt).abs().max() < 1e-4
        assert (table.values[1] - table.clean).abs().max() < 1e-4


# --- the planted circuit ---


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("patch", {}),
        ("patch", {"direction": "denoising"}),
        ("ablate", {}),
        ("attribute", {"steps": 10}),
        ("attribute", {}),
    ],
)
def test_every_method_finds_the_three_heads_that_carry_the_answer(model, method, options):
    scores = rank(model, pairs(12), method, **options)
    assert set(scores.order()[:3]) == CARRIERS
    rest = max(abs(float(scores.score[head])) for head in scores.order()[3:])
    assert rest < 0.05 * min(float(scores.score[head]) for head in CARRIERS)


def test_keeping_the_three_explains_the_effect_and_random_heads_do_not(model):
    scores = rank(model, pairs(12), "patch")
    made = curve(model, pairs(16, seed=1), scores)
    assert made.ks == list(range(9))
    assert made.crossing(0.9) == made.crossing(0.9, stay=True) == 3
    assert made.explained[3] >= 0.99
    assert made.explained[2] < 0.9
    assert abs(made.explained[0]) < 1e-5
    assert abs(made.explained[-1] - 1) < 1e-5
    assert not made.in_sample
    three = made.random_ks.index(4)
    assert made.random_explained[:, three].mean() < 0.6
    assert made.beats_random > 0.9
    low, high = made.crossing_interval(0.9)
    assert low == high == 3


def test_ablating_the_three_removes_the_effect(model):
    scores = rank(model, pairs(12), "patch")
    made = curve(model, pairs(16, seed=1), scores, "ablate")
    assert abs(made.explained[0] - 1) < 1e-5
    assert made.explained[3] < 0.02
    assert made.crossing(0.9) == 1, "one broken link is enough"
    assert made.beats_random > 0.8, "but for those that begin with it, too"


def test_integrated_attribution_sums_to_the_whole_effect(model):
    examples = pairs(8)
    scores = rank(model, examples, "attribute", steps=40)
    gates = Gates.stack([Gates.ones(model), Gates.keep(model, [])])
    table = measure(model, examples, gates, "logit-diff", "counterfactual").values
    total = scores.values.sum((0, 1))
    assert (total - (table[0] - table[1])).abs().max() < 0.01 * table[0].abs().max()
    coarse = rank(model, examples, "attribute", steps=2).values.sum((0, 1))
    error = (coarse - (table[0] - table[1])).abs().max()
    assert error > (total - (table[0] - table[1])).abs().max(), "more steps, less error"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_attribution_is_the_exact_score_of_a_small_step(name):
    """The same sign and size: a gate of 0.999 instead of 1, a thousand times."""
    network = copy.deepcopy(tiny(name))
    wide = name not in ("mixtral", "qwen3-moe")  # whose experts' kernel has no float64
    made = Model(network.double() if wide else network, tiny_tokenizer(), name=name)
    check(made)
    step = 0.001  # small enough that no router sends a token to another expert
    gradient = rank(made, PAIRS, "attribute", "logit-diff")
    small = rank(made, PAIRS, "patch", "logit-diff", scale=1 - step)
    error = (small.values / step - gradient.values).abs().max()
    assert error < (0.01 if wide else 0.05) * gradient.values.abs().max()


# --- orders ---


def test_ranks_and_random_orders():
    score = torch.tensor([[0.1, 3.0], [2.0, -1.0]])
    ranks = ranks_of(score)
    assert ranks.tolist() == [[2, 0], [1, 3]]
    random = torch.Generator().manual_seed(0)
    many = [shuffled(ranks[None], random)[0].flatten().tolist() for _ in range(50)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in many)
    assert len({tuple(order) for order in many}) > 15
    matched = [shuffled_in_layers(ranks[None], random)[0] for _ in range(20)]
    for order in matched:
        for k in range(5):
            assert ((order < k).sum(1) == (ranks < k).sum(1)).all(), "as many of each layer"
    assert len({tuple(order.flatten().tolist()) for order in matched}) == 4


def test_per_prompt_orders_are_each_examples_own(model):
    examples = pairs(6)
    scores = rank(model, examples, "patch")
    values = scores.values.clone()
    values += 20 * torch.rand(values.shape, generator=torch.Generator().manual_seed(0))
    scores = dataclasses.replace(scores, values=values)  # so that the orders differ
    with pytest.raises(HeadlabError, match="the ranking has used 6 of these examples"):
        curve(model, examples, scores)
    examples = [examples[i] for i in (3, 0, 5, 1, 4, 2)]  # not in the ranking's order
    made = curve(model, examples, scores, per_prompt=True)
    assert made.in_sample
    assert made.per_prompt
    for column, example in enumerate(examples):
        own = dataclasses.replace(
            scores,
            values=scores.values[:, :, [scores.examples.index(example.id)]],
            examples=[example.id],
        )
        top = own.order()[:2]
        gates = Gates.keep(model, top)
        alone = measure(model, [example], gates, "logit-diff", "counterfactual").values[0, 0]
        assert made.values[made.ks.index(2), column] == pytest.approx(float(alone), abs=1e-4)
    together = curve(model, examples, scores, same_prompts=True)
    assert together.in_sample
    assert not together.per_prompt


# --- numbers of a curve ---


def made_by_hand(explained: list[float], mode: str = "keep") -> Curve:
    n = len(explained) - 1
    values = torch.tensor(explained, dtype=torch.float64)[:, None].repeat(1, 4)
    ks = sorted({0, *share_ks(n), n})
    random = values[ks][None].repeat(20, 1, 1)
    names = [str(i) for i in range(4)]
    return Curve(
        "m", "t", mode, "patch", "logit-diff", "zero", names, n, list(range(n + 1)), values,
        ks, random, random, torch.ones(4), torch.zeros(4), False,
    )  # fmt: skip


def test_crossings_first_and_for_good():
    curve = made_by_hand([0, 0.5, 0.92, 0.7, 0.95, 1.0])
    assert curve.crossing(0.9) == 2
    assert curve.crossing(0.9, stay=True) == 4
    assert curve.crossing(1.0) == 5
    assert made_by_hand([0, 0.2, 0.3]).crossing(0.9) is None
    falling = made_by_hand([1, 0.5, 0.05, 0.2, 0.0, 0.0], "ablate")
    assert falling.crossing(0.9) == 2
    assert falling.crossing(0.9, stay=True) == 4


def test_areas_are_those_under_and_above_the_curve():
    line = made_by_hand([k / 1000 for k in range(1001)])
    assert line.cpr == pytest.approx(0.5 * (1 - 0.001**2), abs=1e-6)
    assert line.cmd == pytest.approx(0.999 - line.cpr, abs=1e-6)
    flat = made_by_hand([1.2] * 1001)
    assert flat.cpr == pytest.approx(1.2 * 0.999)
    assert flat.cmd == pytest.approx(0.2 * 0.999)
    assert len(SHARES) == 10


def test_the_explained_effect_is_a_ratio_of_means():
    """Not a mean of ratios: an example with a tiny effect must not rule."""
    curve = dataclasses.replace(
        made_by_hand([0, 1]),
        values=torch.tensor([[0.0, 0.0], [8.0, 1.0]]),
        random_ks=[0, 1],
        clean=torch.tensor([10.0, 0.1]),
        none=torch.tensor([0.0, 0.0]),
        examples=["a", "b"],
    )
    assert curve.explained[1] == pytest.approx(9 / 10.1)


def test_a_model_that_does_not_do_the_task_has_no_curve():
    made = Model(tiny("llama"), tiny_tokenizer(), name="tiny")
    check(made)
    scores = rank(made, [PAIRS[0]], "random")
    same = [dataclasses.replace(e, counterfactual=e.prompt) for e in PAIRS]
    same = [dataclasses.replace(e, id=f"x{i}") for i, e in enumerate(same)]
    with pytest.raises(NoEffect, match=r"tiny does not do this task: .* includes 0"):
        curve(made, same, scores, measure_by="logit-diff")


def test_too_few_prompts_are_not_said_to_show_that_a_task_is_not_done(model):
    scores = rank(model, pairs(2), "random")
    one, other = pairs(2, seed=1)
    backwards = dataclasses.replace(
        other, prompt=other.counterfactual, counterfactual=other.prompt, id="b"
    )
    with pytest.raises(NoEffect, match=r"^2 prompts cannot tell whether .* take more examples$"):
        curve(model, [one, backwards], scores)
    # With many, the same mixture rules out that it is much.
    many = [
        dataclasses.replace(e, prompt=e.counterfactual, counterfactual=e.prompt) if i % 2 else e
        for i, e in enumerate(dict.fromkeys(pairs(40, seed=1)))
    ]
    with pytest.raises(NoEffect, match=r"does not do this task: .* includes 0; there is nothing"):
        curve(model, many, scores, same_prompts=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "drop"}, "keeps heads or ablates them, not 'drop'"),
        ({"ks": [0, 9]}, "k runs from 0 to 8, the number of heads; 9 was given"),
        ({"ks": [-1]}, "k runs from 0 to 8"),
        ({"orders": 5}, "at least 20 random orders"),
        ({"threshold": 1.5}, "a threshold lies between 0 and 1"),
    ],
)
def test_wrong_uses_of_a_curve(model, options, sentence):
    scores = rank(model, pairs(2), "random")
    with pytest.raises(HeadlabError, match=sentence):
        curve(model, pairs(4, seed=1), scores, **options)


def test_scores_of_another_model_are_refused(model):
    scores = rank(model, pairs(2), "random")
    with pytest.raises(HeadlabError, match="the scores are of other, not of planted"):
        curve(model, pairs(4, seed=1), dataclasses.replace(scores, model="other"))
    with pytest.raises(HeadlabError, match="scores are of 2 layers x 3 heads; planted has 2 x 4"):
        curve(model, pairs(4, seed=1), dataclasses.replace(scores, values=torch.zeros(2, 3, 2)))


def test_pairs_that_end_differently_have_no_exact_zero_and_are_refused(model):
    scores = rank(model, pairs(2), "random")
    odd = dataclasses.replace(pairs(1, seed=1)[0], counterfactual="n1 is the n2", id="odd")
    with pytest.raises(HeadlabError, match="example 'odd' and its counterfactual end differently"):
        curve(model, [*pairs(3, seed=2), odd], scores)


def test_the_band_draws_the_same_prompts_for_all_three_means(model):
    """If every prompt explains the same share, there is no uncertainty, however they differ."""
    scale = torch.tensor([1.0, 5.0, 20.0, 0.2])
    made = dataclasses.replace(
        made_by_hand([0, 0.6, 1]),
        values=torch.tensor([0.0, 0.6, 1.0])[:, None] * scale + 3,
        clean=scale + 3,
        none=torch.full((4,), 3.0),
    )
    low, high = made.band
    assert torch.allclose(low, made.explained, atol=1e-9)
    assert torch.allclose(high, made.explained, atol=1e-9)


def test_a_crossing_is_a_number_of_heads_and_its_interval_where_the_band_crosses():
    made = made_by_hand([k / 40 for k in range(41)])
    some = [0, 1, 2, 4, 8, 20, 36, 38, 40]
    spread = torch.tensor([-2.0, 0.0, 0.0, 2.0]) * 0.2
    made = dataclasses.replace(made, ks=some, values=made.values[some] + spread)
    assert made.crossing(0.9) == 36
    low, high = made.crossing_interval(0.9)
    upper, lower = made.band[1], made.band[0]
    assert low == next(k for k, e in zip(some, upper, strict=True) if e >= 0.9)
    assert high == next((k for k, e in zip(some, lower, strict=True) if e >= 0.9), None)
    assert low < 36


def test_crossings_are_exact_however_coarse_the_grid():
    """The first one and the last one, by measuring between grid points."""
    truth = torch.linspace(0, 1, 271).pow(0.2)
    truth[70:81] = 0.5  # a dip
    asked = []

    def run(ks):
        asked.extend(ks)
        return truth[ks][:, None].repeat(1, 3)

    grid = _wanted_ks("auto", 270)
    values = dict(zip(grid, run(grid), strict=True))
    ends = torch.ones(3), torch.zeros(3)
    _fill_in(values, *ends, "keep", {0.7}, run)
    done = [k for k in range(271) if truth[k] >= 0.7]
    ks = sorted(values)
    found = [k for k in ks if values[k].mean() >= 0.7]
    assert found[0] == done[0]
    stay = [k for k in ks if all(values[j].mean() >= 0.7 for j in ks if j >= k)]
    assert stay[0] == 81 or 70 not in asked, "a dip that was seen is followed to its end"
    assert len(asked) < 100


def test_the_random_lines_of_a_curve_are_what_they_are_called(model, monkeypatch):
    import headlab.curves.making as making

    seen = []
    honest = making._Work.run

    def watched(work, orders, ks):
        seen.append(orders)
        return honest(work, orders, ks)

    monkeypatch.setattr(making._Work, "run", watched)
    scores = rank(model, pairs(12), "patch")
    made = curve(model, pairs(8, seed=1), scores)
    ranks = ranks_of(scores.score)
    orders = [order[0] for order in seen[-1]]
    assert len(orders) == 40
    counts = [((order < 4).sum(1) == (ranks < 4).sum(1)).all() for order in orders]
    assert all(counts[20:])
    assert not all(counts[:20])
    four = made.random_ks.index(4)
    for line, offset in ((made.random, 0), (made.matched, 20)):
        gates = Gates((orders[offset] < 4).float())
        alone = measure(model, pairs(8, seed=1), gates, "logit-diff", "counterfactual").values[0]
        assert torch.allclose(line[0, four], alone, atol=1e-4)


def test_kl_scores_and_curves_are_the_right_way_up(model):
    back = rank(model, pairs(6), "patch", "kl", direction="denoising")
    assert set(back.order()[:3]) == CARRIERS
    with pytest.raises(HeadlabError, match="kl has no slope where nothing is changed"):
        rank(model, pairs(6), "attribute", "kl")
    assert set(rank(model, pairs(6), "attribute", "kl", steps=9).order()[:3]) == CARRIERS
    scores = rank(model, pairs(6), "patch", "kl")
    made = curve(model, pairs(6, seed=1), scores)
    assert made.explained[0] == pytest.approx(0, abs=1e-6)
    assert made.explained[3] > 0.99


def test_denoising_attribution_is_the_slope_with_no_head_of_the_clean_run(model):
    scores = rank(model, pairs(4), "attribute", direction="denoising")
    zeros = torch.zeros(2, 4)
    expected = gate_gradients(model, pairs(4), zeros, "logit-diff", "counterfactual").gradient[0]
    assert torch.allclose(scores.values, expected.permute(1, 2, 0), atol=1e-5)


def test_a_model_that_does_the_opposite_has_no_curve(model):
    scores = rank(model, pairs(4), "random")
    turned = [
        dataclasses.replace(example, target=example.wrong[0], wrong=(example.target,))
        for example in pairs(6, seed=1)
    ]
    with pytest.raises(NoEffect, match="is below 0; there is nothing to explain"):
        curve(model, turned, scores)


def test_used_means_the_same_prompt_not_the_same_id(model):
    examples = pairs(6)
    scores = rank(model, [dataclasses.replace(e, id="") for e in examples], "patch")
    renamed = [dataclasses.replace(e, id=f"new-{e.id}") for e in examples]
    with pytest.raises(HeadlabError, match="the ranking has used 6 of these examples"):
        curve(model, renamed, scores)
    others = [dataclasses.replace(e, id="") for e in pairs(6, seed=1)]
    assert curve(model, others, scores).in_sample is False
    with pytest.raises(HeadlabError, match="are the same; give each once"):
        rank(model, [*examples, dataclasses.replace(examples[0], id="again")], "patch")
    with pytest.raises(HeadlabError, match="have one id"):
        rank(model, [examples[0], dataclasses.replace(examples[1], id=examples[0].id)], "patch")


def test_a_model_of_one_head_has_a_curve_of_two_points():
    made = dataclasses.replace(made_by_hand([0, 1]), random_ks=[0, 1])
    assert made.crossing(0.9) == 1
    assert share_ks(1)[-1] == 1


# --- files ---


def test_scores_come_back_as_they_were_written(model, tmp_path):
    scores = rank(model, pairs(3), "patch", task="planted")
    write_scores(scores, tmp_path / "s.json")
    record = json.loads((tmp_path / "s.json").read_text())
    assert set(record) >= {"model", "task", "method", "measure", "examples", "noise_floor", "heads"}
    assert set(record["heads"]["L1H2"]) == {"score", "low", "high"}
    again = read_scores(tmp_path / "s.json")
    assert torch.allclose(again.values, scores.values.double())
    assert again.order() == scores.order()
    for name, scored in scores.as_dict()["heads"].items():
        assert again.as_dict()["heads"][name] == pytest.approx(scored)
    other = rank(model, pairs(3), "random")
    write_scores(other, tmp_path / "o.json")
    (tmp_path / "o.parquet").replace(tmp_path / "s.parquet")
    with pytest.raises(HeadlabError, match=r"s.parquet beside it holds other scores"):
        read_scores(tmp_path / "s.json")
    (tmp_path / "s.parquet").unlink()
    alone = read_scores(str(tmp_path / "s.json"))
    assert alone.order() == scores.order()
    with pytest.raises(HeadlabError, match="these hold means alone"):
        curve(model, pairs(3), alone, per_prompt=True)


def test_mib_circuits_are_written_and_read(model, tmp_path):
    scores = rank(model, pairs(3), "patch")
    write_scores(scores, tmp_path / "c.json", mib=True)
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["nodes"]["a1.h2"]["in_graph"] is True
    below = [head for head in scores.heads if scores.score[head] < 0]
    assert not any(record["nodes"][f"a{h.layer}.h{h.head}"]["in_graph"] for h in below)
    assert below
    assert set(record) == {"cfg", "nodes", "edges"}
    assert record["nodes"]["a1.h2"]["score"] == pytest.approx(float(scores.score[1, 2]))
    record["nodes"] |= {"input": {"in_graph": True}, "m0": {"score": 1.0, "in_graph": True}}
    (tmp_path / "c.json").write_text(json.dumps(record))
    again = read_scores(tmp_path / "c.json")
    assert again.order() == scores.order()
    with pytest.raises(HeadlabError, match="the ranking has used 3 of these"):
        curve(model, pairs(3), again)
    unknown = dataclasses.replace(again, fingerprints=[])
    assert curve(model, pairs(3), unknown, measure_by="logit-diff").in_sample is None
    assert curve(model, pairs(4, seed=1), again, measure_by="logit-diff").explained[3] > 0.99


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not a JSON file"),
        ("[]", "does not hold scores"),
        ("{}", "does not hold scores"),
        ('{"nodes": {"m0": {"score": 1}}}', "no node is a head"),
        ('{"nodes": {"a0.h1": {"score": 1}}}', "1 heads are not 1 layers of 2"),
        ('{"nodes": {"a0.h0": {"score": NaN}}}', "a0.h0 has no score"),
    ],
)
def test_files_that_hold_no_scores(tmp_path, text, sentence):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(HeadlabError, match=sentence):
        read_scores(tmp_path / "x.json")


def test_a_missing_scores_file_says_how_to_make_one(tmp_path):
    with pytest.raises(HeadlabError, match=r"no file .*; headlab rank --out"):
        read_scores(tmp_path / "x.json")


def test_scores_and_curves_are_tables_and_pictures(model):
    scores = rank(model, pairs(3), "patch")
    table = scores.table()
    assert len(table) == 8 * 3
    assert set(table.columns) == {"head", "layer", "number", "example", "score"}
    made = curve(model, pairs(4, seed=1), scores)
    rows = made.table()
    assert set(rows["line"]) == {"patch", "random", "layer-matched random"}
    assert rows[rows["line"] == "random"]["order"].nunique() == 20
    assert scores.plot().axes
    assert made.plot().axes
    assert isinstance(scores, HeadScores)
    assert Head(1, 2) in scores.heads
