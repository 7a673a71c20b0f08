"""The fillers study: texts, attention and statistics are what a plain transcription gives."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import filled
import numpy as np
import pandas as pd
import pytest
import torch
from commands import error_of, run
from tiny import lettered, save_lettered, tiny

import headlab
from headlab import HeadlabError, Model
from headlab.fillers import Condition, build, parse_conditions
from headlab.heads import Head
from headlab.paired import holm, mcnemar
from headlab.store import Run
from headlab.studies.fillers import cell as cells
from headlab.studies.fillers.cell import Found, from_record, work
from headlab.studies.fillers.grades import grade_texts
from headlab.studies.fillers.panels import Panel, changes, published_for, read_panels
from headlab.studies.graded import Grades
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec, read_spec
from headlab.tasks.problems import load_problems

OWN = [
    "none",
    "mless",
    {"name": "late", "filler": "e", "count": 7, "position": "end"},
    "gap",
    "random",
    "arm",
]
QUICK = {"conditions": OWN, "n": 4, "max_new_tokens": 6, "attention_n": 3, "size": "smoke"}


@pytest.fixture(scope="module")
def model() -> Model:
    return lettered()


def fresh() -> Model:
    """One that may be changed."""
    return Model(copy.deepcopy(lettered().hf), lettered().tokenizer, name="lettered")


def cell_of(**changes):
    spec = make_spec({"study": "fillers", "models": ["smollm2"], **QUICK, **changes})
    return spec.cells()[0]


def find(model: Model, scratch: Path, heard: list[int] | None = None, **changes) -> Found:
    """What a cell finds, through its record and back."""
    progress = [].append if heard is None else heard.append
    return from_record(cells.run_cell(cell_of(**changes), model, progress, scratch))


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


# --- statistics ---


def panel_from(founds: list[Found], **named) -> Panel:
    grades = [grade_texts(found, {"math-strict": "math-strict"}, {}) for found in founds]
    return Panel("m", "m", "arithmetic", list(range(len(founds))), founds, grades, **named)


def made_panel(scores: dict[str, list[list[int]]], task: str = "arithmetic") -> Panel:
    """Of scores by condition, [seed][problem]."""
    conditions = [
        Condition(name, kind="none") if name == "none" else Condition(name, "/", 3)
        for name in scores
    ]
    n = len(next(iter(scores.values()))[0])
    ids = [f"p{number}" for number in range(n)]
    founds, grades = [], []
    for seed in range(len(next(iter(scores.values())))):
        rows = [(name, id, "", "eos", 5) for name in scores for id in ids]
        texts = pd.DataFrame(rows, columns=["condition", "problem", "text", "end", "tokens"])
        empty = pd.DataFrame([])
        problems = {id: {"question": "?", "answer": "1", "level": "", "subject": ""} for id in ids}
        decoding = {"temperature": None, "top_p": 1.0}
        founds.append(
            Found(
                *(conditions, problems, texts, [], (2, 4), empty, empty, {}, {}, decoding, {}),
                backed_off=False,
            )
        )
        table = texts[["condition", "problem"]].assign(
            math=[float(value) for name in scores for value in scores[name][seed]], boxed=True
        )
        grades.append(Grades(table, {"math": "math"}, {}))
    seeds = list(range(len(founds)))
    return Panel("m", "m", task, seeds, founds, grades)


def test_differences_are_paired_and_tested_as_by_hand():
    none = [0] * 8 + [1] * 2
    better = [1] * 7 + [0] + [1, 0]  # seven gained, one lost
    panel = made_panel({"none": [none], "mless": [better]})
    (change,) = changes([panel])[0]
    assert (change.gained, change.lost) == (7, 1)
    assert change.mean == pytest.approx(0.6)
    assert change.p == pytest.approx(2 * (1 + 8) / 2**8)
    assert change.adjusted == change.p
    assert (change.condition, change.baseline) == ("mless", "none")
    assert panel.share("mless", "math").mean == pytest.approx(0.8)


def test_holm_counts_every_comparison_of_the_run():
    luck = np.random.default_rng(0)
    panels = [
        made_panel(
            {name: [luck.integers(0, 2, 30).tolist()] for name in ("none", "mless", "mful")}, task
        )
        for task in ("arithmetic", "gsm8k")
    ]
    found = changes(panels)
    own = [change for place in (0, 1) for change in found[place]]
    assert len(own) == 4
    by_hand = [
        mcnemar(panel.values("none", "math"), panel.values(name, "math")).p
        for panel in panels
        for name in ("mless", "mful")
    ]
    assert [change.p for change in own] == by_hand
    assert [change.adjusted for change in own] == holm(by_hand)


def test_five_points_on_500_problems_are_found_and_nothing_is_not():
    luck = np.random.default_rng(1)
    before = luck.random(500) < 0.4
    after = before.copy()
    after[np.nonzero(~before)[0][:30]] = True
    after[np.nonzero(before)[0][:5]] = False  # 25 problems more: five points
    scores = {"none": [before.astype(int)], "mless": [after.astype(int)], "same": [before * 1]}
    gained, same = changes([made_panel(scores)])[0]
    assert gained.mean == pytest.approx(0.05)
    assert gained.verdict == "better"
    assert gained.low > 0
    assert (same.p, same.verdict) == (1.0, "open")
    worse = {"none": [after.astype(int)], "mless": [before.astype(int)]}
    assert changes([made_panel(worse)])[0][0].verdict == "worse"


def test_seeds_are_averaged_by_problem_and_tested_by_flipping_signs():
    rows = {"none": [[0] * 12, [0] * 12], "mless": [[1] * 12, [0] * 12]}
    panel = made_panel(rows)
    (change,) = changes([panel])[0]
    assert panel.values("mless", "math").tolist() == [0.5] * 12
    assert change.mean == pytest.approx(0.5)
    assert change.p == pytest.approx(2 / 2**12, rel=0.5)
    assert (change.gained, change.lost) == (6, 0)


@pytest.mark.parametrize(
    ("names", "baselines"),
    [
        (["none", "mless"], [None, "none"]),
        (["mless", "none"], ["none", None]),
        (["mless", "mful"], [None, "mless"]),
        (["none", "mless", "none-chat", "mless-chat"], [None, "none", "none", "none-chat"]),
        (["none-chat", "mless-chat"], [None, "none-chat"]),
        (["none", "arm"], [None, "none"]),
        (["none", "warm"], [None, "none"]),
        (["warm", "none", "mless"], ["none", None, "none"]),
        (["none", "warm", "mless-warm"], [None, "none", "warm"]),
        (["mless-chat", "none-chat"], ["none-chat", None]),
        (["mless", "mful", "mless-chat", "mful-chat"], [None, "mless", None, "mless-chat"]),
        (["none", "mless-chat"], [None, None]),
        (["none", "again"], [None, "none"]),
    ],
)
def test_what_a_condition_is_compared_with(names, baselines):
    own = {
        "warm": {"name": "warm", "like": "none", "temperature": 0.6},
        "mless-warm": {"name": "mless-warm", "like": "mless", "temperature": 0.6},
        "mful-chat": {"name": "mful-chat", "like": "mful", "template": "chat"},
        "again": {"name": "again", "like": "none"},
        "none-chat": {"name": "none-chat", "like": "none", "template": "chat"},
        "mless-chat": {"name": "mless-chat", "like": "mless", "template": "chat"},
    }
    conditions = parse_conditions([own.get(name, name) for name in names])
    panel = made_panel({"none": [[0, 1]], "mless": [[0, 1]]})
    panel.founds[0].conditions[:] = conditions
    assert [panel.baseline(name) for name in names] == baselines


def test_a_text_without_an_answer_is_wrong_and_boxes_are_counted(model, tmp_path):
    found = find(model, tmp_path, conditions=["none", "mless"], attention_n=0)
    gold = [found.problems[id]["answer"] for id in found.texts["problem"]]
    found.texts["text"] = [
        f"so it is \\boxed{{{gold[0]}}}",
        "",
        "\\boxed{}",
        "no idea",
        *[f"\\boxed{{{each}}}" for each in gold[4:]],
    ]
    every = {name: name for name in ("math", "math-strict", "math-published")}
    told: list[float] = []
    graded = grade_texts(found, every, {}, told.append).table
    assert list(graded["math"]) == [1, 0, 0, 0, 1, 1, 1, 1]
    assert list(graded["math-strict"]) == [1, 0, 0, 0, 1, 1, 1, 1]
    assert list(graded["math-published"]) == [1, 0, 1, 0, 1, 1, 1, 1]  # an empty box is right
    assert list(graded["boxed"]) == [True, False, True, False, True, True, True, True]
    assert told == sorted(told)
    assert told[-1] == 1.0
    panel = Panel("m", "m", "arithmetic", [0], [found], [Grades(graded, every, {})])
    assert panel.scores == ["math", "math-strict", "math-published"]
    assert panel.share("none", "unboxed").mean == 0.5


# --- specs ---


def test_a_spec_reads_back_and_names_what_names_stand_for(tmp_path):
    spec = make_spec({"study": "fillers", "models": ["smollm2"], **QUICK, "chat": True})
    (tmp_path / "study.yaml").write_text(spec.as_yaml())
    again = read_spec(tmp_path / "study.yaml")
    assert again == spec
    assert [cell.id for cell in again.cells()] == [cell.id for cell in spec.cells()]
    told = spec.cells()[0].settings["conditions"]
    assert [each["name"] for each in told][-2:] == ["random-chat", "arm-chat"]
    assert told[1] | {"filler": "/", "count": 55} == told[1]
    assert [each["template"] for each in told] == ["raw"] * 6 + ["chat"] * 6


def test_size_paper_names_the_papers_models_and_the_hub():
    spec = make_spec({"study": "fillers", "size": "paper"})
    assert spec.models == ["qwen2.5-math-1.5b", "qwen2.5-math-7b", "llama-3.1-8b-instruct"]
    assert (spec.tasks, spec.data, spec.n) == (["math500"], "hub", None)
    assert (spec.max_new_tokens, spec.temperature) == (2048, None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": ["math500"]}, "math500 needs data: a folder"),
        ({"tasks": ["maths"]}, "not 'maths'; did you mean 'math500'?"),
        ({"n": 500}, "arithmetic has 240 problems, 500 were asked for"),
        ({"data": "."}, "arithmetic is built in and reads no files"),
        ({"conditions": ["none"]}, "two conditions at least"),
        ({"conditions": ["none", "mles"]}, "did you mean 'mless'?"),
        ({"conditions": ["none", {"name": "x", "filer": "/"}]}, "not 'filer'"),
        ({"conditions": ["none", "none"]}, "two conditions are called 'none'"),
        ({"conditions": 3}, "a condition is a name or a mapping with a name, not 3"),
        ({"conditions": ["none", {"name": "x", "like": "none", "temperature": -1}]}, "temperature"),
        ({"conditions": ["none", {"name": "x", "like": "mless", "top_p": 0}]}, "top_p is above 0"),
        ({"heads": ["H3"]}, "a head is L0H13, all heads of a layer are L0, not 'H3'"),
        ({"top_p": 0.9}, "top_p needs a temperature"),
        ({"top_p": 0.9, "temperature": "model"}, "top_p: the model's own settings have theirs"),
        ({"temperature": "hot"}, "temperature: a number above 0, greedy, or model"),
        ({"temperature": -1}, "temperature: a number above 0, greedy, or model"),
        ({"temperature": True}, "temperature: a number above 0, greedy, or model"),
        (
            {"conditions": ["none", {"name": "x", "like": "mless", "top_p": 0.5}]},
            "x has a top_p and no temperature",
        ),
        ({"conditions": ["none", {"name": "x", "filler": "/", "count": 10**9}]}, "100,000 at most"),
        ({"conditions": ["none", {"name": "x", "filler": [10**30], "count": 3}]}, "token ids"),
        (
            {"conditions": ["none", {"name": "x", "filler": "/", "coutn": 3}]},
            "not 'coutn'; did you mean 'count'?",
        ),
        (
            {"conditions": ["none", {"name": "none-chat", "like": "mless"}], "chat": True},
            "two conditions are called 'none-chat'",
        ),
        ({"stop": [""]}, "stop"),
        (
            {
                "conditions": ["none", {"name": "c", "like": "none", "template": "chat"}],
                "chat": True,
            },
            "one is chat already",
        ),
    ],
)
def test_wrong_settings_are_answered_in_a_sentence(changes, says):
    with pytest.raises(HeadlabError) as caught:
        make_spec({"study": "fillers", "models": ["smollm2"], "size": "smoke", **changes})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- interrupted ---


@pytest.mark.parametrize("stop_at", [1, 4, 6])
def test_a_stopped_cell_goes_on_and_ends_in_the_same_record(model, tmp_path, monkeypatch, stop_at):
    heard: list[int] = []
    monkeypatch.setattr(cells, "_ROWS", {"cpu": 3})
    whole = cells.run_cell(cell_of(), model, heard.append, tmp_path / "whole")
    assert sum(heard) == work(cell_of(), 8).pairs
    real, calls = cells.generate, []

    def stops(*args, **named):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(cells, "generate", stops)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cell(cell_of(), model, lambda n: None, tmp_path / "cut")
    heard.clear()
    again = cells.run_cell(cell_of(), model, heard.append, tmp_path / "cut")
    assert len(calls) == 2 * len(OWN) + 1  # two pieces each, none written twice
    assert sum(heard) == work(cell_of(), 8).pairs
    assert again.table.equals(whole.table)
    assert again.about == whole.about


def test_pieces_of_another_size_are_not_mixed_in(model, found, tmp_path, monkeypatch):
    find(model, tmp_path)
    monkeypatch.setattr(cells, "_ROWS", {"cpu": 3})
    again = find(model, tmp_path)
    assert again.texts.equals(found.texts)


def test_a_record_that_holds_something_else_is_refused(model, tmp_path):
    record = cells.run_cell(cell_of(), model, lambda n: None, tmp_path)
    for about in ({}, {**record.about, "conditions": [{"filler": 3}]}):
        with pytest.raises(HeadlabError):
            from_record(type(record)(record.table, about))


def test_prompts_that_have_changed_are_not_mixed_with_what_was_written(tmp_path, monkeypatch):
    """A chat template that writes the date says something else tomorrow."""
    model = fresh()
    model.tokenizer.chat_template = "DAY {{ messages[0]['content'] }} A:"
    asked = {"conditions": ["none", "mless"], "chat": True, "attention_n": 0}
    real, calls = cells.generate, []

    def stops(*args, **named):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(cells, "generate", stops)
    try:
        with pytest.raises(KeyboardInterrupt):
            find(model, tmp_path, **asked)
        model.tokenizer.chat_template = "TOMORROW {{ messages[0]['content'] }} A:"
        found = find(model, tmp_path, **asked)
    finally:
        model.tokenizer.chat_template = None
    assert len(calls) == 4 + 4  # all again
    assert all("TOMORROW" in own["none-chat"] for own in found.prompts.values())


# --- as a user runs it ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_lettered(folder / "m")
    made = run(
        *("run", "fillers", "--models", str(folder / "m"), "--conditions", "none,mless,gap,random"),
        *("--n", "3", "--max-new-tokens", "5", "--attention-n", "3", "--size", "smoke"),
        *("--out", str(folder / "r"), "-q"),
    )
    assert made.exit_code == 0, made.output
    assert made.stdout.strip().endswith("report.html")
    return folder


def test_a_run_leaves_figures_and_a_page(finished):
    for name in ("fillers", "differences", "attention", "parts"):
        for ending in ("png", "pdf", "csv"):
            assert (finished / "r" / "figures" / f"{name}.{ending}").stat().st_size > 0
    regions = pd.read_csv(finished / "r" / "figures" / "regions.csv")
    assert {"first", "instruction", "question", "filler"} == set(regions["region"])
    page = (finished / "r" / "report.html").read_text()
    assert "A quick look: 3 problems" in page
    assert "answers without a box" in page
    rows = pd.read_csv(finished / "r" / "figures" / "fillers.csv")
    assert set(rows["condition"]) == {"none", "mless", "gap", "random"}
    (panel,) = read_panels(Run.read(finished / "r"))
    for row in rows.itertuples():
        share = panel.share(row.condition, row.score)
        assert (row.mean, row.low, row.high) == pytest.approx(tuple(share[:3]))


def test_two_runs_are_compared(finished):
    other = run(
        *("run", "fillers", "--models", str(finished / "m"), "--conditions", "none,mless"),
        *("--n", "3", "--max-new-tokens", "4", "--attention-n", "0", "--size", "smoke"),
        *("--out", str(finished / "s"), "-q"),
    )
    assert other.exit_code == 0, other.output
    assert not (finished / "s" / "figures" / "attention.png").exists()
    found = run("compare", str(finished / "r"), str(finished / "s"))
    assert found.exit_code == 0
    assert "mless" in found.stdout
    assert "max_new_tokens: 5 in the first, 4 in the second" in found.stdout


def test_a_machine_without_math_verify_scores_strictly_and_says_so(finished, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "math_verify" else real(name)
    )
    for path in (finished / "r" / "grades").glob("*"):
        path.unlink()
    read = Run.read(finished / "r")
    (panel,) = read_panels(read)
    assert panel.scores[0] == "math-strict"
    told = " ".join(read.study.warnings(read))
    assert "scored by math-strict" in told
    assert "Not graded: math (math needs math_verify" in told
    monkeypatch.undo()
    (panel,) = read_panels(Run.read(finished / "r"))  # more can be graded now
    assert panel.scores[0] == "math"


def test_the_dry_run_counts_cells_and_time(finished):
    told = run("run", "fillers", "--models", str(finished / "m"), "--size", "smoke", "--dry-run")
    assert told.exit_code == 0
    assert "1 cell, about" in told.stdout


def test_other_architectures_run_through(tmp_path):
    tokenizer = lettered().tokenizer
    for name in ("gpt2", "qwen2", "gemma3", "falcon"):
        network = copy.deepcopy(tiny(name))
        network.resize_token_embeddings(len(tokenizer))
        model = Model(network, tokenizer, name=name)
        conditions = ["none", "mless", "random", "arm"]
        long = model.max_length is not None and model.max_length < 200
        if long:
            continue
        found = find(model, tmp_path / name, conditions=conditions, n=2)
        assert math.isfinite(found.attention["mean"].sum())


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_n": 1},
        {"conditions": ["arm", {"name": "arm2", "like": "arm", "arm": {"c": 0.1, "p1": 95}}]},
        {"conditions": ["none", {"name": "$a^{$", "filler": "$", "count": 3}]},
        {"conditions": ["mless", "random"], "heads": "L1H1"},
    ],
)
def test_odd_studies_end_with_a_report(finished, tmp_path, changes):
    given = {"models": [str(finished / "m")], **QUICK, "n": 3, "max_new_tokens": 2, **changes}
    made = run_study(make_spec({"study": "fillers", **given}), tmp_path / "r")
    assert (tmp_path / "r" / "report.html").stat().st_size > 0
    assert (tmp_path / "r" / "figures" / "regions.csv").exists()
    told = " ".join(made.study.warnings(made))
    assert ("no condition without a filler for random" in told) == ("random" in str(changes))


def test_empty_answers_and_comparisons_of_two_things_are_told(tmp_path):
    rows = ["none", {"name": "warm", "like": "mless", "temperature": 0.6}]
    run_ = filled.write_run(tmp_path, conditions=rows)
    (panel,) = read_panels(run_)
    panel.founds[0].texts["text"] = ""
    from headlab.studies.fillers.page import _compared, _written

    assert "warm is decoded otherwise than none" in " ".join(_compared(panel))
    told = " ".join(_written(panel, run_.spec))
    assert "empty answers: none 100.0 %" in told
    assert "(--chat)" in told


def test_what_a_tokenizer_and_a_shape_can_tell_is_told_before_anything_runs(finished, tmp_path):
    for wrong, says in (
        ({"heads": "L0H4"}, "L0H4 is out of range"),
        ({"conditions": ["none", {"name": "x", "filler": "zebra", "count": 3}]}, "no single token"),
        ({"conditions": ["none", {"name": "x", "filler": [999999], "count": 3}]}, "999999"),
    ):
        spec = make_spec({"study": "fillers", "models": [str(finished / "m")], **QUICK, **wrong})
        (tmp_path / "study.yaml").write_text(spec.as_yaml())
        for extra in (("--dry-run",), ("--out", str(tmp_path / "r"))):
            made = run("run", str(tmp_path / "study.yaml"), *extra, "-q")
            assert says in error_of(made)
        assert not (tmp_path / "r").exists()


def test_show_takes_a_study_file(finished, tmp_path):
    text = (
        "study: fillers\nmodels: [smollm2]\nconditions: [none, {name: abc, filler: e, count: 4}]\n"
    )
    (tmp_path / "study.yaml").write_text(text)
    told = run("fillers", "show", str(finished / "m"), "--conditions", str(tmp_path / "study.yaml"))
    assert told.exit_code == 0, told.output
    assert "4 times 'e'" in told.stdout


def test_only_the_papers_own_conditions_have_its_numbers(tmp_path):
    other = {"name": "mful", "filler": "x", "count": 3}
    given = {"models": ["qwen2.5-math-1.5b"], "tasks": ["math500"], "data": "hub"}
    (panel,) = read_panels(filled.write_run(tmp_path, conditions=["none", "mless", other], **given))
    assert set(published_for(panel)) == {"none", "mless"}


def test_wrong_options_end_in_a_sentence(finished):
    for options, says in (
        (("--temperature", "warm"), "--temperature is a number such as 0.6"),
        (("--task", "math500", "--data", str(finished / "gone")), "no folder"),
        (("--task", "math500", "--data", str(finished)), "has no test.jsonl"),
    ):
        made = run("run", "fillers", "--models", str(finished / "m"), *options)
        assert says in error_of(made)


def test_a_study_can_be_run_from_python(finished, tmp_path):
    spec = make_spec(
        {
            "study": "fillers",
            "models": [str(finished / "m")],
            **QUICK,
            "seeds": [0, 1],
            "temperature": 1.0,
        }
    )
    made = run_study(spec, tmp_path / "r")
    (panel,) = read_panels(made)
    assert panel.seeds == [0, 1]
    assert made.study.findings(made)[0].startswith("m, arithmetic: right")
