"""What the texts of the masking study are worth, and what panels say of them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from copying import make_lab, spec_of

from headlab import HeadlabError
from headlab.grading.registry import GRADERS
from headlab.stats import mean_interval, share_interval
from headlab.store import Run
from headlab.studies.masking.cell import Found, from_record, to_record
from headlab.studies.masking.grades import Grades, grade_texts, grades_of
from headlab.studies.masking.judging import judge
from headlab.studies.masking.panels import Panel, Point, read_panels
from headlab.studies.running import run_study


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    return make_lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def made(lab) -> Run:
    return run_study(spec_of(lab), lab / "made")


@pytest.fixture
def small(made, tmp_path) -> Run:
    """A copy to do things to."""
    return Run.read(shutil.copytree(made.folder, tmp_path / "small"))


# --- what texts are worth ---


@pytest.mark.parametrize(
    ("function", "text", "gold", "right"),
    [
        ("math-calculation", '[ {"answer": "$48"} ]', "48 dollars", True),
        ("math-calculation", '[ {"answer": "36"} ]', "48", False),
        ("math-calculation", '[ {"answer": 48.0} ]', "48", True),
        ("math-calculation", "so it is 48", "48", True),
        ("math-calculation", '[ {"answer": "forty eight"} ]', "forty eight", True),
        ("retrieval", '[ {"answer": "Mary"} ]', "Mary", True),
        ("retrieval", '[ {"answer": "Mary"} ]', "Mary Ann Smith", False),
        ("retrieval", '[ {"answer": "a Mary Smith"} ]', "Mary Ann Smith", True),
        ("retrieval", '[ {"answer": ""} ]', "Mary", False),
        ("retrieval", "Mary", "Mary", True),
        ("retrieval", 'Mary [ {"answer": "John"} ]', "Mary", False),  # JSON, where there is some
        ("retrieval", "", "Mary", False),
        ("inference", '[ {"answer": "36"} ]', "48", False),
    ],
)
def test_texts_are_judged_by_their_gold_answer(function, text, gold, right):
    assert judge(function, text, gold) is right


def found_of(rows: list[tuple]) -> Found:
    """Of texts: kind, k, draw, item, text, all of retrieval."""
    texts = pd.DataFrame(
        [
            ("" if kind == "none" else "retrieval", "retrieval", kind, k, draw, item, text, "stop")
            for kind, k, draw, item, text in rows
        ],
        columns=["heads_of", "asked", "kind", "k", "draw", "item", "text", "end"],
    )
    items = {
        item: {"function": "retrieval", "question": "?", "asked": "?", "answer": "Mary"}
        for item in texts["item"].unique()
    }
    ks = sorted(set(texts["k"]) - {0})
    scores = {"retrieval": torch.arange(8.0).view(2, 4)}
    return Found(
        (2, 4),
        scores,
        {"retrieval": ks},
        {"retrieval": 1},
        texts,
        items,
        None,
        {},
        {},
        0,
        {},
        False,
    )


def test_the_same_text_is_graded_once_and_every_row_gets_its_score(monkeypatch):
    seen = []
    plain = GRADERS["quality"].score

    def spied(rows, options, progress):
        seen.extend(rows)
        return plain(rows, options, progress)

    monkeypatch.setitem(GRADERS, "quality", dataclasses.replace(GRADERS["quality"], score=spied))
    right, wrong = '[ {"answer": "Mary"} ]', '[ {"answer": "John"} ]'
    found = found_of(
        [
            ("none", 0, 0, "a", right),
            ("none", 0, 0, "b", wrong),
            ("top", 1, 0, "a", wrong),
            ("top", 1, 0, "b", ""),
            *(("random", 1, draw, "a", right) for draw in range(5)),
            *(("random", 1, draw, "b", "Mary") for draw in range(5)),
        ]
    )
    grades = grade_texts(found, {"quality": "quality[chrF]"}, {"published": "why"})
    assert len(seen) == 5
    assert grades.labels == {"accuracy": "accuracy", "quality": "quality[chrF]"}
    assert grades.missing == {"published": "why"}
    assert grades.table["accuracy"].tolist() == [1, 0, 0, 0, *[1] * 10]
    assert grades.table["in_json"].tolist() == [True] * 3 + [False] + [True] * 5 + [False] * 5
    quality = grades.table["quality"]
    assert quality[:2].tolist() == [1, 1]  # of the unmasked text with itself
    assert quality[2] < 0.5
    assert not quality.isna().any()
    assert quality[4:9].tolist() == [1] * 5
    assert len(grades.table) == len(found.texts)


def without(monkeypatch, name: str) -> None:
    """As on a machine that lacks a package the grader needs."""
    poor = dataclasses.replace(GRADERS[name], packages=("not_a_package",))
    monkeypatch.setitem(GRADERS, name, poor)


def test_grades_are_kept_and_made_again_where_more_can_be_graded(lab, tmp_path, monkeypatch):
    for name in ("published", "quality"):
        without(monkeypatch, name)
    finished = run_study(spec_of(lab), tmp_path / "r")
    cell = finished.cells[0]
    path = finished.folder / "grades" / f"{cell.id}.parquet"
    found = from_record(finished.read_cell(cell))
    poor = grades_of(finished, cell, found)
    assert list(poor.labels) == ["accuracy"]
    assert set(poor.missing) == {"published", "quality"}
    said = " ".join(finished.study.warnings(finished))
    assert "Not graded: published" in said
    assert "needs not_a_package: pip install 'headlab[grading]'" in said
    before = path.stat().st_mtime_ns
    grades_of(finished, cell, found)
    assert path.stat().st_mtime_ns == before, "taken up again"
    monkeypatch.setitem(GRADERS, "quality", dataclasses.replace(GRADERS["quality"], packages=()))
    richer = grades_of(finished, cell, found)
    assert list(richer.labels) == ["accuracy", "quality"]
    assert path.stat().st_mtime_ns != before
    without(monkeypatch, "quality")  # looked at on the poor machine, nothing is lost
    after = path.stat().st_mtime_ns
    assert "quality" in grades_of(finished, cell, found).table
    assert path.stat().st_mtime_ns == after


def test_grades_of_other_texts_or_half_a_file_are_not_taken_up(small):
    cell = small.cells[0]
    path = small.folder / "grades" / f"{cell.id}.parquet"
    whole = path.read_bytes()
    found = from_record(small.read_cell(cell))
    path.write_bytes(whole[:100])
    assert grades_of(small, cell, found).table["accuracy"].notna().all()
    assert path.read_bytes() == whole
    changed = found.texts.assign(text="nobody")
    small.write(cell, to_record(dataclasses.replace(found, texts=changed)), 0)
    (panel,) = read_panels(small)
    assert panel.unmasked("retrieval").mean == 0


# --- what panels say in numbers ---


def panel_of(none: list[int], top: list[int], random: list[list[int]]) -> Panel:
    """Of questions that are right or not: with all heads, the top masked, and each draw."""
    rows, right = [], []
    for kind, draws in (("none", [none]), ("top", [top]), ("random", random)):
        for draw, values in enumerate(draws):
            for item, value in enumerate(values):
                rows.append((kind, 0 if kind == "none" else 1, draw, f"q{item:02}", "x"))
                right.append(float(value))
    table = pd.DataFrame({"accuracy": right, "in_json": True})
    grades = Grades(table, {"accuracy": "accuracy"}, {})
    return Panel("m", "m", "probe", 0, found_of(rows), grades, "generated", 1e-4)


def test_points_have_the_mean_of_draws_their_band_and_an_interval_over_questions():
    random = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    panel = panel_of([1, 1, 1, 0], [0, 0, 0, 0], random)
    point = panel.point("retrieval", "random", 1)
    assert point.mean == pytest.approx(9 / 12)
    assert point.draws == pytest.approx((0.75, 0.5, 1.0))
    assert point.band == (0.5, 1.0)
    assert (point.low, point.high) == pytest.approx(share_interval(3, 4))
    assert point.n == 4
    assert panel.unmasked("retrieval").mean == 0.75
    top = panel.point("retrieval", "top", 1)
    assert (top.low, top.high) == share_interval(0, 4)
    assert top.high > 0.4
    mean, low, high = panel.fall("retrieval", 1)
    apart = torch.tensor([1, 1, 2 / 3, 1 / 3], dtype=torch.float64)
    assert mean == pytest.approx(0.75)
    unseen = 1 - share_interval(4, 4)[0]
    assert low == pytest.approx((1 - unseen) * 0.75 - unseen)  # wider than the bootstrap of four
    assert low < float(mean_interval(apart)[0])
    assert high <= 1
    many = Point(1, 0.5, 0, 1, 4, tuple(np.linspace(0.1, 0.9, 41)))
    assert many.band == pytest.approx((0.1, 0.9))  # all of them, however many
    with pytest.raises(HeadlabError, match="no texts of retrieval with 7 top heads masked"):
        panel.point("retrieval", "top", 7)


@pytest.mark.parametrize(
    ("top", "random", "verdict"),
    [
        ([0] * 10, [[1] * 10, [1] * 9 + [0]], "below"),
        ([1] * 10, [[0] * 10, [1] + [0] * 9], "above"),
        ([1] * 10, [[1] * 10, [1] * 10], "open"),
        ([0] * 2, [[1] * 2, [1] * 2], "open"),  # of two questions nothing follows
        ([0] * 3, [[1] * 3, [1] * 3], "open"),
        ([0] * 6, [[1] * 6, [1] * 6], "below"),
        ([0] * 10, [[1] * 10, [0] * 10], "open"),  # a draw that falls as far
        ([1, 0] * 5, [[1, 1] * 5, [0, 1] * 5], "open"),  # within the band
    ],
)
def test_the_verdict_asks_for_all_draws_and_enough_questions(top, random, verdict):
    assert panel_of([1] * len(top), top, random).verdict("retrieval", 1) == verdict


def test_differences_that_are_all_alike_have_an_interval_of_some_width():
    mean, low, high = panel_of([1] * 10, [0] * 10, [[1] * 10] * 2).fall("retrieval", 1)
    unseen = 1 - share_interval(10, 10)[0]
    assert (mean, high) == (1, 1)
    assert low == pytest.approx(1 - 2 * unseen)
    mean, low, high = panel_of([1] * 10, [1] * 10, [[1] * 10] * 2).fall("retrieval", 1)
    assert (mean, low, high) == pytest.approx((0, -unseen, unseen))
