"""The fillers study: pairs, tests and baselines as by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from filling import find
from tiny import lettered

from headlab import Model
from headlab.fillers import Condition, parse_conditions
from headlab.paired import holm, mcnemar
from headlab.studies.fillers.cell import Found
from headlab.studies.fillers.grades import grade_texts
from headlab.studies.fillers.panels import Panel, changes
from headlab.studies.graded import Grades


@pytest.fixture(scope="module")
def model() -> Model:
    return lettered()


# --- statistics ---


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
