"""The fillers study: texts and attention are what a plain transcription gives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from filling import OWN, cell_of, find, fresh, panel_from
from tiny import lettered

import headlab
from headlab import HeadlabError, Model
from headlab.fillers import build, parse_conditions
from headlab.heads import Head
from headlab.studies.fillers import cell as cells
from headlab.studies.fillers.cell import Found, work
from headlab.tasks.problems import load_problems


@pytest.fixture(scope="module")
def model() -> Model:
    return lettered()


@pytest.fixture(scope="module")
def found(model, tmp_path_factory) -> Found:
    return find(model, tmp_path_factory.mktemp("cell"))


# --- what is written ---


def test_each_text_is_what_the_condition_writes_alone(model, found):
    problems = load_problems("arithmetic", n=4)
    for condition in parse_conditions(OWN):
        own = found.texts[found.texts["condition"] == condition.name]
        assert list(own["problem"]) == [problem.id for problem in problems]
        for row, problem in zip(own.itertuples(), problems, strict=True):
            built = build(model, condition, problem.question)
            (alone,) = headlab.generate(
                model,
                built.ids,
                max_new_tokens=6,
                arm=condition.arm,
                position_ids=[built.positions] if built.has_gap else None,
            ).rows[0]
            assert (row.text, row.end, row.tokens) == (alone.text, alone.end, len(alone.ids))
    by = {name: list(own["text"]) for name, own in found.texts.groupby("condition")}
    assert len({tuple(texts) for texts in by.values()}) == len(OWN)  # each does something


def test_every_setting_reaches_the_cell(model, found, tmp_path):
    def of(name: str, **changes) -> Found:
        return find(model, tmp_path / name, **{"conditions": ["none", "mless"], **changes})

    assert len(of("n", n=2).problems) == 2
    assert set(of("short", max_new_tokens=2).texts["tokens"]) == {2}
    text = found.texts.loc[0, "text"]
    stopped = of("stop", stop=[text[:2]]).texts.loc[0]
    assert (stopped["text"], stopped["end"]) == (text[:2], "stop")
    cool, warm, again = (
        list(of(name, temperature=5.0, seeds=[seed], **more).texts["text"])
        for name, seed, more in (("t0", 0, {}), ("t1", 1, {}), ("t2", 0, {"top_p": 0.05}))
    )
    assert cool != warm != again != cool
    assert of("heads", heads=["L1H2", "L0"]).heads[:2] == [Head(1, 2), Head(0, 0)]
    assert of("none", attention_n=0).attention.empty
    assert not of("few", attention_n=2).attention["prompts"].gt(2).any()
    own = [{"name": "none", "kind": "none"}, {"name": "hot", "like": "none", "temperature": 5.0}]
    hot = of("own", conditions=own).texts
    plain, drawn = (list(hot.loc[hot["condition"] == name, "text"]) for name in ("none", "hot"))
    assert plain == list(found.texts.loc[found.texts["condition"] == "none", "text"]) != drawn
    greedy = [{"name": "cold", "like": "none", "temperature": 0}, "mless"]
    cold = of("cold", conditions=greedy, temperature=5.0, top_p=0.9).texts
    assert list(cold.loc[cold["condition"] == "cold", "text"]) == plain


def test_a_seed_has_its_own_luck_and_the_same_problems(model, found, tmp_path):
    other = find(model, tmp_path, seeds=[1])
    assert other.problems == found.problems
    same, different = [], []
    for name, own in found.texts.groupby("condition"):
        mine = other.texts.loc[other.texts["condition"] == name, "text"]
        (same if list(mine) == list(own["text"]) else different).append(name)
    assert set(different) == {"random", "arm"}  # greedily, nothing else is drawn


def test_the_models_own_settings_are_used_where_asked(tmp_path):
    model = fresh()
    assert find(model, tmp_path / "a", temperature="model").decoding["temperature"] is None
    config = model.hf.generation_config
    config.do_sample, config.temperature, config.top_p = True, 0.6, 0.9
    said = find(model, tmp_path / "b", temperature="model").decoding
    assert said == {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 6, "unheeded": {}}
    config.top_k, config.repetition_penalty = 20, 1.05
    told = find(model, tmp_path / "c", temperature="model").decoding["unheeded"]
    assert told == {"top_k": 20, "repetition_penalty": 1.05}


def test_problems_that_are_too_long_are_left_out_of_every_condition_and_counted(tmp_path):
    model = lettered(positions=180)
    found = find(model, tmp_path, conditions=["none", "mless"], n=12, heard=(heard := []))
    assert 0 < len(found.problems) < 12
    assert found.left_out == {cells.TOO_LONG: 12 - len(found.problems)}
    assert found.texts.groupby("condition").size().nunique() == 1
    assert sum(heard) == work(cell_of(conditions=["none", "mless"], n=12), 8).pairs
    with pytest.raises(HeadlabError, match="lettered reads 60 tokens: too few for all but 0"):
        find(lettered(positions=60), tmp_path / "none")


def test_all_conditions_have_the_same_room_for_an_answer(tmp_path):
    model = lettered(positions=260)
    asked = {"conditions": ["none", "mless", "gap"], "max_new_tokens": 500, "n": 8}
    found = find(model, tmp_path, heard=(heard := []), attention_n=0, **asked)
    new = found.decoding["max_new_tokens"]
    assert 0 < new < 200
    assert sum(heard) == work(cell_of(attention_n=0, **asked), 8).pairs
    cut = found.texts[found.texts["end"] == "length"]
    assert set(cut["tokens"]) == {new}  # not more where nothing is put in


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"heads": ["L0H4"]}, "L0H4 is out of range: lettered has layers 0 to"),
        ({"heads": ["L9"]}, "L9H0 is out of range"),
        ({"conditions": ["none", {"name": "x", "filler": "not a token"}]}, "does not go with"),
        (
            {"conditions": ["none", {"name": "x", "filler": "zebra", "count": 3}]},
            "no single token for the filler",
        ),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    model, tmp_path, monkeypatch, changes, says
):
    monkeypatch.setattr(cells, "generate", None)
    with pytest.raises(HeadlabError, match=says):
        find(model, tmp_path, **changes)


def test_a_model_that_heeds_no_positions_can_have_no_gap(tmp_path, monkeypatch):
    model = fresh()
    model._heeds_positions = False
    monkeypatch.setattr(cells, "generate", None)
    with pytest.raises(HeadlabError, match="it can have no gap; leave the condition out"):
        find(model, tmp_path)


# --- attention ---


def eager(model: Model, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Weights of the first layer, [head, query, key], as transformers gives them."""
    network = copy.deepcopy(model.hf)
    network.set_attn_implementation("eager")
    mask = torch.ones_like(ids)[None]
    with torch.no_grad():
        found = network(
            ids[None], attention_mask=mask, position_ids=positions[None], output_attentions=True
        )
    return found.attentions[0][0]


@pytest.mark.parametrize("name", ["none", "mless", "late", "gap", "random"])
def test_attention_is_that_of_eager_weights(model, found, name):
    condition = next(each for each in parse_conditions(OWN) if each.name == name)
    problems = load_problems("arithmetic", n=3)
    expected: dict[str, list[np.ndarray]] = {"original": [], "whole": []}
    for problem in problems:
        built = build(model, condition, problem.question)
        weights = eager(model, built.ids, built.positions).double().numpy()
        for view in expected:
            queries = (
                ~built.inserted.numpy() if view == "original" else np.ones(len(built.ids), bool)
            )
            received = []
            for key in np.nonzero(queries)[0]:
                later = np.nonzero(queries)[0]
                later = later[later > key]
                received.append(weights[:, later, key].mean(1) if len(later) else [np.nan] * 4)
            expected[view].append(np.array(received).T)  # [head, position]
    for view, each in expected.items():
        if view == "whole" and not condition.inserts:
            continue
        longest = max(values.shape[1] for values in each)
        padded = [
            np.pad(values, ((0, 0), (0, longest - values.shape[1])), constant_values=np.nan)
            for values in each
        ]
        mean = np.nanmean(np.stack(padded)[:, :, : longest - 1], 0)
        own = found.attention
        own = own[(own["condition"] == name) & (own["view"] == view)]
        for row in own.itertuples():
            head = Head.parse(row.head)
            assert row.mean == pytest.approx(mean[head.head, row.position], abs=1e-5)
        assert set(own["position"]) == set(range(longest - 1))
        # and by part of the prompt, for each problem
        regions = found.regions
        regions = regions[(regions["condition"] == name) & (regions["head"] == "L0H1")]
        for values, problem in zip(each, problems, strict=True):
            built = build(model, condition, problem.question)
            mine = regions[regions["problem"] == problem.id].set_index("region")["observed"]
            if view == "original":
                question = built.question[~built.inserted].numpy()
                start = int(question.nonzero()[0][0])
                assert mine["question"] == pytest.approx(np.nanmean(values[1][question]), abs=1e-5)
                assert mine["instruction"] == pytest.approx(values[1][1:start].mean(), abs=1e-5)
                assert mine["first"] == pytest.approx(values[1][0], abs=1e-5)
            else:
                filler = values[1][built.inserted.numpy()]
                assert mine["filler"] == pytest.approx(np.nanmean(filler), abs=1e-5)


def test_a_head_that_looks_evenly_shows_no_more_than_the_null(tmp_path):
    """Queries of zero: what fillers do to its attention is what more tokens do."""
    model = fresh()
    with torch.no_grad():
        model.hf.model.layers[0].self_attn.q_proj.weight.zero_()
    panel = panel_from([find(model, tmp_path, conditions=["none", "mless", "random"])])
    for head in (None, "L0H2"):
        shifts = {(shift.condition, shift.region): shift for shift in panel.shifts(head)}
        assert ("mless", "question") in shifts
        for (condition, region), shift in shifts.items():
            assert shift.observed == pytest.approx(shift.uniform, rel=1e-4)
            assert shift.beyond == pytest.approx(1, rel=1e-4)
            if condition == "mless" and region == "question":
                assert shift.uniform < 0.9  # more tokens alone


def test_attention_that_moves_beyond_the_null_is_told(model, tmp_path):
    many = {"conditions": ["none", "mless"], "n": 16, "attention_n": 16, "max_new_tokens": 1}
    found = find(model, tmp_path, **many)
    panel = panel_from([found])
    for shift in panel.shifts("L0H0"):
        own = found.regions
        own = own[(own["head"] == "L0H0") & (own["region"] == shift.region)]
        after, before = (
            own[own["condition"] == name][["observed", "uniform"]].mean()
            for name in (shift.condition, "none")
        )
        assert shift.observed == pytest.approx(after["observed"] / before["observed"])
        assert shift.uniform == pytest.approx(after["uniform"] / before["uniform"])
        assert shift.beyond == pytest.approx(shift.observed / shift.uniform)
        assert shift.low <= shift.beyond <= shift.high
        assert shift.verdict == ("less" if shift.high < 1 else "more" if shift.low > 1 else "open")
    seen = {shift.verdict for head in panel.heads for shift in panel.shifts(str(head))}
    assert {"less", "more"} & seen


def test_under_arm_the_first_layer_is_as_it_was_and_the_second_is_not(model, tmp_path):
    found = find(model, tmp_path, conditions=["none", "arm"], heads=["L0H1", "L1H1"])
    none, arm = (
        found.attention[found.attention["condition"] == name].reset_index(drop=True)
        for name in ("none", "arm")
    )
    first = none["head"] == "L0H1"
    assert np.allclose(none.loc[first, "mean"], arm.loc[first, "mean"], atol=1e-7)
    assert not np.allclose(none.loc[~first, "mean"], arm.loc[~first, "mean"], atol=1e-4)
