"""The page of dense against sparse in a real browser: multipliers at each level, open edges."""

from __future__ import annotations

from pathlib import Path

import browser as browsers
import pytest
from sparsified import asked, make_lab
from test_report_page import sample

from headlab.report import render
from headlab.store import Run
from headlab.studies.circuits.lines import read_lines
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec

SWITCH = "#map-controls select"


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Run:
    lab = make_lab(tmp_path_factory.mktemp("lab"))
    return run_study(make_spec(asked(lab, methods=["patch", "patch-per-prompt"])), lab / "run")


@pytest.fixture
def page(browser: browsers.Browser, done: Run) -> browsers.Browser:
    browser.open(done.folder / "report.html")
    return browser


def row_of(model: str) -> str:
    return f'#multiplier-table tr[data-model="{model}"]'


def test_every_pair_has_its_multipliers_or_the_reason(page: browsers.Browser) -> None:
    assert page.texts("#multiplier-table thead th")[2:5] == ["at 80 %", "at 90 %", "at 95 %"]
    for model in ("level-30", "twin"):
        cells = page.texts(f"{row_of(model)} td.n")
        assert cells == ["1.0x1.00 to 1.00"] * 3
    assert page.count(f"{row_of('level-3')} td.n") == 0
    (reason,) = page.texts(f"{row_of('level-3')} .reason")
    assert "is less than half of m's" in reason
    assert any(
        text.startswith("level-3: no multiplier, with all heads")
        for text in page.texts(".panel .note.lost")
    )
    assert page.texts(".panel .times") == ["1.0x"]  # of m and level-30, the first pair
    page.choose("#pair-sparse", "level-3")
    assert page.texts("#pair-table .times, .panel .times") == []
    assert "less than half" in page.texts("#pair-table .reason")[0]
    page.choose("#pair-dense", "twin")  # another that shares the dense model
    assert page.texts("#pair-table .times") == []
    assert (page.errors, page.requests) == ([], [])


def test_the_twin_is_drawn_quieter_and_all_of_the_first_row_are_shown(
    page: browsers.Browser,
) -> None:
    assert page.count(".panel .line") == 4
    assert page.count(".panel .line.twin") == 1
    width = "getComputedStyle(document.querySelector('.panel {}')).strokeWidth"
    assert page.js(width.format(".line.twin")) < page.js(width.format(".line:not(.twin)"))


def test_the_head_map_of_a_sparse_model_switches_to_its_edges(
    page: browsers.Browser, done: Run
) -> None:
    line = next(each for each in read_lines(done) if each.model == "level-30")
    cell = '.map[data-model="level-30"] .cell[data-head="L{}H{}"]'
    page.js("document.querySelectorAll('details.group').forEach(one => { one.open = true; })")
    page.wait("document.querySelectorAll('.map').length === 4")
    score = page.js(f"document.querySelector('{cell.format(1, 1)}').getAttribute('aria-label')")
    assert "rank" in score
    page.choose(SWITCH, "edges")
    assert page.count(".map") == 2  # a dense model has none
    assert page.texts('details[data-model="m"] .none') == ["Dense: every edge is open."]
    for layer, head in ((0, 1), (0, 0), (1, 1)):
        share = f"{100 * float(line.edges[layer, head]):.3g} %"
        label = f"document.querySelector('{cell.format(layer, head)}').getAttribute('aria-label')"
        assert page.js(label) == f"L{layer}H{head}, {share} of its edges open"
    depth = "Number(document.querySelector('{}').getAttribute('fill-opacity'))"
    full, some, none = (page.js(depth.format(cell.format(*at))) for at in ((0, 1), (1, 1), (0, 0)))
    assert full == 1 > some > none == 0
    assert "edges that are open" in page.texts("#map-says")[0]
    page.click(cell.format(1, 1))
    assert page.js("document.body.dataset.head") == "level-30 L1H1"
    assert page.count('.map[data-model="level-30"] .outline .in') == 1
    assert page.count('.panel .mark[data-head="L1H1"]') == 1
    page.choose(SWITCH, "score")
    assert page.count(".map") == 4
    assert page.count('.map[data-model="level-30"] .outline .in') == 1  # still held
    assert page.js(f"document.querySelector('{cell.format(1, 1)}').getAttribute('aria-label')") == (
        score
    )
    page.press("Escape")
    assert (page.errors, page.requests) == ([], [])


def test_the_table_has_the_share_of_edges_and_the_method_says_in_sample(
    page: browsers.Browser, done: Run
) -> None:
    line = next(each for each in read_lines(done) if each.model == "level-30")
    titles = page.texts("#number-table thead th")
    column = titles.index("edges open") + 1
    shares = page.texts(f"#number-table tbody td:nth-child({column})")
    assert shares[0] == "all"
    assert shares[1] == f"{100 * float(line.edges.mean()):.3g} %"
    assert page.texts("#curve-controls option")[:2] == ["patch", "patch-per-prompt, in-sample"]
    page.choose("#curve-controls select", "patch-per-prompt")
    assert "in-sample" in page.texts("#curve-caption")[0]
    page.size(390, 844)
    page.open(done.folder / "report.html")
    assert page.js("document.documentElement.scrollWidth") <= 390


def test_each_level_has_its_own_multiplier_interval_and_reason(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    levels = {
        "80": {"value": 1.5, "low": 1.25, "high": 1.75, "reason": None},
        "90": {"value": 0.6, "low": 0.5, "high": 0.75, "reason": None},
        "95": {"value": None, "low": None, "high": None, "reason": "gpt2 does not explain 95 %"},
    }
    data["pairs"] = [["smollm2", "gpt2"]]
    data["multipliers"] = [
        {**row, "levels": levels if row["dense"] == "smollm2" else {}}
        for row in data["multipliers"]
    ]
    facts["lead"] = [f"finding {number}" for number in range(15)]
    path = tmp_path / "report.html"
    path.write_text(render("circuits", data, **facts), encoding="utf-8")
    browser.open(path)
    told = browser.texts('#multiplier-table tr[data-task="ioi"] td')
    assert told[2:] == [
        *("1.5x1.25 to 1.75", "0.6x0.50 to 0.75", "none"),
        "gpt2 does not explain 95 %",
    ]
    assert browser.texts("#multiplier-table tr[data-task=ioi] td b") == ["0.6x"]  # the threshold's
    assert browser.texts(".lead > li")[:12] == facts["lead"][:12]
    assert browser.texts(".lead summary") == ["3 more"]
    assert browser.texts(".lead details li") == facts["lead"][12:]
    assert browser.errors == []
