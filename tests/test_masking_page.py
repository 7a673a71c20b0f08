"""The page of a masking study in a real browser: scores, verdicts, heads and answers."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import browser as browsers
import numpy as np
import pandas as pd
import pytest
import torch

from headlab.probing import elbow
from headlab.report import render
from headlab.studies.masking.cell import Found
from headlab.studies.masking.figure import published_for
from headlab.studies.masking.grades import Grades, grade_texts
from headlab.studies.masking.page import _data
from headlab.studies.masking.panels import Panel
from headlab.tasks.cogqa import FUNCTIONS

ASKED = ["retrieval", "knowledge-recall", "math-calculation", "inference"]
MODELS = {  # name: where it is from, layers, heads, Ks
    "smollm2": ("HuggingFaceTB/SmolLM2-135M", 30, 9, [4, 8, 17, 34]),
    "llama": ("meta-llama/Llama-3.1-8B-Instruct", 32, 32, [16, 32, 64, 128]),
}
RANKINGS = ["probe", "attribute"]
N, DRAWS = 40, 5
COLUMNS = ["heads_of", "asked", "kind", "k", "draw", "item", "text", "end"]
WORDS = {
    "below": "below the random draws",
    "above": "above the random draws",
    "open": "open",
}
SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror='window.hacked=2'>"
BRACES = "{{ 7*7 }}"
Study = tuple[dict[str, Any], dict[str, Any]]


def right(model: str, ranking: str, name: str, kind: str, k: int, draw: int, of: str) -> int:
    """How many of N are right, planted: the fewer the more top heads are masked."""
    chance = random.Random(f"{model} {ranking} {name} {kind} {k} {draw} {of}")
    base = {"retrieval": 37, "knowledge-recall": 33, "math-calculation": 30, "inference": 27}[name]
    depth = 1 + MODELS[model][3].index(k) if k else 0
    if kind == "top" and of == name:
        steep = {"retrieval": 9, "knowledge-recall": 7, "math-calculation": 3, "inference": 2}[name]
        return max(0, base - depth * (steep if ranking == "probe" else 2) + chance.randrange(3))
    lost = {"none": 0, "boosted": -1, "top": 2, "matched": 1.5}.get(kind, 0.7)
    return min(N, max(0, round(base - depth * lost) - (chance.randrange(3) if k else 0)))


def found(model: str, ranking: str, functions: list[str], cross: bool, boost: bool) -> Found:
    _, layers, heads, ks = MODELS[model]
    items: dict[str, dict[str, str]] = {}
    prompts: dict[str, str] = {}
    rows: list[tuple[Any, ...]] = []
    for name in functions:
        own = [f"test-{ASKED.index(name) * N + i}-1" for i in range(N)]
        for i, id in enumerate(own):
            gold = str(12 + 3 * i) if name == "math-calculation" else f"the blue house {i}"
            about = {"question": f"Main question {i}?", "asked": f"What is it, {name} {i}?"}
            items[id] = {"function": name, **about, "answer": gold}
        prompts |= {id: f"Read this.\nMain: {id}\nAnswer:\n" for id in own[:4]}
        masks = [("", "none", 0, 0)]
        masks += [(name, "top", k, 0) for k in ks]
        masks += [
            (name, kind, k, d) for kind in ("random", "matched") for k in ks for d in range(DRAWS)
        ]
        if cross:
            masks += [(other, "top", k, 0) for other in functions if other != name for k in ks]
        if boost and name != "inference":
            masks += [(name, "boosted", k, 0) for k in ks]
            masks += [(name, "boosted-random", k, d) for k in ks for d in range(DRAWS)]
        for of, kind, k, draw in masks:
            count = right(model, ranking, name, kind, k, draw, of)
            for i, id in enumerate(own):
                said = items[id]["answer"] if (i * 7 + draw) % N < count else f"{i}{k} nowhere"
                text = f'[ {{"answer": "{said}"}} ]'
                if kind == "top" and k == ks[-1] and "nowhere" in said:
                    text = "the the the the the"  # no JSON
                rows.append((of, name, kind, k, draw, id, text, "stop"))
    scores = {}
    for name in functions:
        made = torch.Generator().manual_seed(ASKED.index(name) + 9 * len(ranking) + layers)
        drawn = torch.randn(layers, heads, generator=made, dtype=torch.float64) ** 3
        scores[name] = 0.01 * (drawn if ranking == "probe" else drawn.abs())
    probe = {
        "accuracy": 0.81,
        "majority": 0.28,
        "shuffled": 0.14,
        "recalls": {name: 0.9 - 0.05 * i for i, name in enumerate(FUNCTIONS)},
        "n_train": 2600,
        "n_test": 700,
    }
    return Found(
        (layers, heads),
        scores,
        dict.fromkeys(functions, ks),
        {name: elbow(scores[name].abs()) for name in functions},
        pd.DataFrame(rows, columns=COLUMNS),
        items,
        probe if ranking == "probe" else None,
        {name: 0.7 - 0.02 * i for i, name in enumerate(FUNCTIONS)},
        {},
        0,
        prompts,
        False,
    )


def panel(
    model: str,
    ranking: str,
    functions: list[str] = ASKED,
    cross: bool = True,
    boost: bool = True,
    seed: int = 0,
) -> Panel:
    own = found(model, ranking, functions, cross, boost)
    grades = grade_texts(own, {}, {})
    hits = grades.table["accuracy"].to_numpy()
    labels = {
        "accuracy": "accuracy",
        "published": "published[MiniLM]",
        "quality": "quality[chrF]",
    }
    table = grades.table.assign(
        published=np.where(own.texts["kind"] == "none", 1.0, np.maximum(hits, hits[::-1])),
        quality=0.45 + 0.5 * hits,
    )
    graded = Grades(table, labels, {})
    return Panel(model, MODELS[model][0], ranking, seed, own, graded, "generated", 1e-4)


def sample(*panels: Panel, hostile: bool = False) -> Study:
    bad = f" {SCRIPT} {IMAGE} {BRACES}" if hostile else ""
    data = _data(list(panels)) if panels else json.loads(whole())
    if hostile:
        text = json.dumps(data).replace('"smollm2"', json.dumps(f"smollm2 {SCRIPT}"))
        data = json.loads(text.replace('"quality[chrF]"', json.dumps(f"quality {IMAGE}")))
        for one in data["panels"]:
            for answer in one["answers"]:
                for key in ("question", "asked", "answer", "prompt"):
                    answer[key] += bad
                for said in answer["texts"]:
                    said["text"] += bad
                    said["read"] = said["read"] and said["read"] + bad
    facts = {
        "title": "Do the top heads of a function carry it, against random ones?",
        "lead": ["smollm2: nothing can be concluded."],
        "asked": [("models", ", ".join(MODELS))],
        "warnings": [f"A quick look.{bad}"],
        "cells": [],
        "examples": [],
        "figures": [],
        "study_yaml": "",
        "commands": [],
        "versions": [],
        "cite": "",
    }
    return data, facts


@functools.cache
def whole() -> str:
    return json.dumps(_data([measured(model, name) for model in MODELS for name in RANKINGS]))


@functools.cache
def measured(model: str, ranking: str) -> Panel:
    return panel(model, ranking)


@pytest.fixture
def page(browser: browsers.Browser, tmp_path: Path) -> browsers.Browser:
    return _open(browser, tmp_path, sample())


def _open(browser: browsers.Browser, folder: Path, study: Study) -> browsers.Browser:
    data, facts = study
    path = folder / "report.html"
    path.write_text(render("masking", data, **facts), encoding="utf-8")
    browser.open(path)
    return browser


def _choose(page: browsers.Browser, of: str, value: str) -> None:
    page.choose(f'select[data-of="{of}"]', value)


def _tile(model: str, name: str) -> str:
    return f'#line-grid .tile[data-model="{model}"][data-function="{name}"]'


def _row(model: str, name: str, k: int) -> str:
    return f'#verdict-table tr[data-model="{model}"][data-function="{name}"][data-k="{k}"]'


def _first(page: browsers.Browser, selector: str) -> list[str]:
    """What stands before the small type of each cell."""
    return page.js(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(one =>"
        "one.firstChild.textContent)"
    )


def _percent(value: float) -> str:
    return f"{100 * value + 1e-9:.1f} %"


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")


# What a tile's dots say, read back from where they stand: the lines at 0 and 100 are known.
DOTS = """(tile => {
  const lines = [...tile.querySelectorAll(".plot > g > line")].filter(one => one.matches(".grid, .zero")).map(one => +one.getAttribute("y1"));
  const zero = Math.max(...lines), whole = Math.min(...lines);
  return [...tile.querySelectorAll(".marks circle")].map(one => [one.closest(".marks").dataset.score, one.dataset.kind, +one.dataset.k, (zero - one.getAttribute("cy")) / (zero - whole)]);
})"""  # noqa: E501


def test_the_page_is_silent_and_asks_the_network_for_nothing(page: browsers.Browser) -> None:
    page.point(_tile("llama", "retrieval") + " .plot")
    assert "Retrieval" in page.js("document.querySelector('.tip').textContent")
    page.click('.map[data-model="smollm2"] .cell[data-head="L3H3"]')
    for of, value in (("ranking", "attribute"), ("score", "quality"), ("asked", "inference")):
        _choose(page, of, value)
    mark = "getComputedStyle(document.querySelector('.marks[data-score=quality] .at')).fill"
    light = page.js(mark)
    page.click("#theme")
    assert page.js(mark) != light
    page.size(390, 844)
    page.wait("document.querySelectorAll('#line-grid .plot').length === 8")
    assert page.js("document.documentElement.scrollWidth") <= 390
    assert (page.errors, page.requests) == ([], [])
    text = page.js("document.documentElement.outerHTML.split('<script')[0]")
    for missing in ("undefined", "NaN", "[object", "Infinity"):
        assert missing not in text


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("model", MODELS)
def test_every_dot_stands_at_the_panels_number(
    page: browsers.Browser, model: str, ranking: str
) -> None:
    _choose(page, "ranking", ranking)
    page.click("#line-legend .models button:last-child")  # all scores
    own, ks = measured(model, ranking), MODELS[model][3]
    for name in ASKED:
        found = page.js(f"{DOTS}(document.querySelector({json.dumps(_tile(model, name))}))")
        dots = {(score, kind, k): value for score, kind, k, value in found}
        assert len(dots) == len(found) == 3 * 2 * len(ks)
        for (score, kind, k), value in dots.items():
            assert value == pytest.approx(own.point(name, kind, k, score).mean, abs=1e-3)
        for k in ks:  # and the planted count
            count = right(model, ranking, name, "top", k, 0, name)
            assert dots["accuracy", "top", k] == pytest.approx(count / N, abs=1e-3)


def test_chips_show_and_hide_scores_and_the_last_one_stays(page: browsers.Browser) -> None:
    tile = _tile("smollm2", "retrieval")
    shown = f"[...document.querySelectorAll('{tile} .marks')].map(one => one.dataset.score)"
    assert page.js(shown) == ["accuracy", "quality"]
    for button in (1, 3):
        page.click(f"#line-legend .chip:nth-child({button})")
    assert page.js(shown) == ["quality"]
    page.click("#line-legend .chip:nth-child(3)")
    pressed = "[...document.querySelectorAll('#line-legend .chip')].map(one => one.ariaPressed)"
    assert page.js(pressed) == ["false", "false", "true", "false"]
    page.click("#line-legend .chip:nth-child(4)")
    assert page.js(shown) == ["accuracy", "published", "quality"]
    assert page.js(pressed) == ["true"] * 4


def test_the_arrow_keys_tell_each_k_from_none_on(page: browsers.Browser) -> None:
    own = measured("smollm2", "probe")
    plot = json.dumps(_tile("smollm2", "retrieval") + " .plot")
    page.js(f"document.querySelector({plot}).focus()")
    for k in (0, 4, 8, 17, 34, 34):  # the last stays
        page.press("ArrowRight")
        tip = page.js("document.querySelector('.tip').textContent")
        if k == 0:
            none = own.unmasked("retrieval")
            assert f"no head masked, n = {N}accuracyall heads {_percent(none.mean)}" in tip
            continue
        top, drawn = (own.point("retrieval", kind, k) for kind in ("top", "random"))
        low, high = (f"{100 * end:.1f}" for end in (top.low, top.high))
        assert f"{k} of 270 heads masked" in tip
        assert f"accuracytop {_percent(top.mean)} {low} to {high}" in tip
        assert f"random {_percent(drawn.mean)}" in tip
        assert f"n = {N}, {DRAWS} draws" in tip
        assert WORDS[own.verdict("retrieval", k)] in tip


def test_published_numbers_stand_with_the_papers_model_alone(page: browsers.Browser) -> None:
    assert page.count('#line-grid .tile[data-model="smollm2"] .published') == 0
    for name in ASKED:
        marks = page.texts(_tile("llama", name) + " .published title")
        paper = published_for(measured("llama", "probe"), name)
        assert paper is not None
        assert marks == [
            f"{said}, {kind}: {paper[kind][score]:g} %"
            for score, said in (("published", "published accuracy"), ("quality", "published COMET"))
            for kind in ("random", "top")
        ]


@pytest.mark.parametrize("score", ["accuracy", "quality"])
def test_the_verdicts_are_the_panels(page: browsers.Browser, score: str) -> None:
    _choose(page, "score", score)
    for model in MODELS:
        own = measured(model, "probe")
        for name in ASKED:
            for k in MODELS[model][3]:
                means = [
                    own.point(name, kind, k, score).mean for kind in ("top", "random", "matched")
                ]
                fall = own.fall(name, k, score)[0]
                none = _percent(own.unmasked(name).mean) if score == "accuracy" else "\u2013"
                cells = _first(page, _row(model, name, k) + " td[data-of]")
                assert cells[:3] == [str(N), str(k), none]
                assert [float(cell[:-2]) for cell in cells[3:6]] == pytest.approx(
                    [100 * mean for mean in means], abs=0.051
                )
                assert float(cells[6].replace("\u2212", "-")) == pytest.approx(
                    100 * fall, abs=0.051
                )
                assert cells[7] == WORDS[own.verdict(name, k, score)]


def test_a_title_sorts_the_verdicts_up_down_and_back(page: browsers.Browser) -> None:
    button, column = "#verdict-table th:nth-child(6) button", '#verdict-table [data-of="top"]'
    before = _first(page, column)
    up = sorted(before, key=lambda text: float(text[:-2]))
    page.js(f"document.querySelector('{button}').focus()")
    for wanted, said in ((up, "ascending"), (up[::-1], "descending"), (before, "none")):
        page.click(button)
        assert _first(page, column) == wanted
        assert page.js(f"document.querySelector('{button}').parentNode.ariaSort") == said
    assert page.js("document.activeElement.textContent") == "top K"


def test_the_probe_is_shown_where_there_is_one_else_a_line(page: browsers.Browser) -> None:
    assert page.texts(".probe b") == ["81.0 %", "28.0 %", "14.0 %"] * 2
    row = '#ranked-box .recalls:last-of-type tr[data-function="inference"]'
    assert _first(page, f'{row} [data-of="recall"]') == ["65.0 %"] * 2
    elbows = [measured(model, "probe").found.elbows["inference"] for model in MODELS]
    assert _first(page, f'{row} [data-of="elbow"]') == [f"{each} heads" for each in elbows]
    _choose(page, "ranking", "attribute")
    assert page.count(".probe, #ranked-box [data-of=recall]") == 0
    assert page.texts("#ranked-box .line")[0].startswith("By attribute: a gradient")


def test_rankings_crossed_and_boosted_have_the_panels_numbers(page: browsers.Browser) -> None:
    for model in MODELS:
        most = MODELS[model][3][-1]
        for name in ASKED:
            at = f'tbody[data-model="{model}"][data-function="{name}"] tr[data-k="{most}"]'
            tops = {r: measured(model, r).point(name, "top", most).mean for r in RANKINGS}
            cells = _first(page, f"#ranking-table {at} td[data-ranking]")
            assert cells == [_percent(mean) for mean in tops.values()]
            bold = page.texts(f"#ranking-table {at} td[data-ranking] b")
            assert set(bold) == {_percent(min(tops.values()))}
            own = measured(model, "probe")
            rows = f'table.cross[data-model="{model}"] tr[data-heads="{name}"] td'
            assert _first(page, rows) == [
                _percent(own.point(asked, "top", most, heads_of=name).mean) for asked in ASKED
            ]
            assert _first(page, f"{rows} b") == [_percent(own.point(name, "top", most).mean)]
            if name == "inference":
                assert page.count(f"#boost-table {at}") == 0  # there was no direction
                continue
            assert _first(page, f"#boost-table {at} td.n")[1:] == [
                _percent(own.point(name, "boosted", most).mean),
                _percent(own.point(name, "boosted-random", most).mean),
                _minus(f"{100 * own.gain(name, most)[0]:+.1f}").replace("+0.0", "0.0"),
            ]
    _choose(page, "k", "4")
    row = 'table.cross[data-model="smollm2"] tr[data-heads="retrieval"] td'
    own = measured("smollm2", "probe")
    wanted = [_percent(own.point(asked, "top", 4, heads_of="retrieval").mean) for asked in ASKED]
    assert _first(page, row) == wanted


def test_a_head_is_followed_through_maps_charts_and_table(page: browsers.Browser) -> None:
    own = measured("smollm2", "probe")
    head = own.order("retrieval")[5]
    name = f"L{head // 9}H{head % 9}"
    cell = f'.map[data-model="smollm2"][data-task="retrieval"] .cell[data-head="{name}"]'
    page.point(cell)
    tip = page.js("document.querySelector('.tip').textContent")
    value = float(own.found.scores["retrieval"].flatten()[head])
    assert tip.startswith(name + _minus(f"{value:+.3f}"))
    assert tip.endswith("rank 6 of 270, masked from K = 8 on")
    assert page.count('.map[data-model="smollm2"] .chosen') == 4 * 34
    page.click(cell)
    assert page.count(".map .outline .in") == 4
    assert (
        page.js(f"document.querySelector('{_tile('smollm2', 'retrieval')} .mark').dataset.k") == "8"
    )
    ranks = [own.order(asked).index(head) + 1 for asked in ASKED]
    held = page.js("document.querySelector('.held').textContent")
    for asked, rank in zip(ASKED, ranks, strict=True):
        assert f"{FUNCTIONS[asked]} #{rank}" in held
    assert page.texts("#head-table tr.picked")[0].startswith(name)
    assert page.js("document.querySelector('#answers select[data-of=one]').value") == "smollm2"
    page.press("Escape")
    assert page.count(".outline .in, tr.picked, .mark") == 0


def test_answers_stand_side_by_side_with_their_marks(page: browsers.Browser) -> None:
    _choose(page, "asked", "math-calculation")
    _choose(page, "one", "smollm2")
    own = measured("smollm2", "probe")
    assert page.count(".question") == 4
    id = "test-83-1"
    box = f'.question[data-item="{id}"]'
    assert page.texts(f"{box} h3, {box} .gold") == ["What is it, math-calculation 3?", "21"]
    texts = own.texts[(own.texts["item"] == id) & (own.texts["draw"] == 0)]
    for row in texts[texts["heads_of"].isin(["", "math-calculation"])].itertuples():
        if row.kind in ("none", "top", "random"):
            cell = f'{box} td[data-kind="{row.kind}"][data-k="{row.k}"]'
            said = "right" if row.accuracy else "wrong"
            assert page.texts(f"{cell} .{'hit' if row.accuracy else 'miss'}") == [said]
    assert (page.count(f"{box} .hit"), page.count(f"{box} .miss")) == (8, 1)
    raw = texts.loc[(texts["kind"] == "top") & (texts["k"] == 34), "text"].iloc[0]
    assert raw in page.texts(f"{box} code")
    page.click(f"{box} summary")
    assert f"Main: {id}" in page.js("document.querySelector('details[open] blockquote').innerText")


def test_hostile_text_is_shown_as_text(browser: browsers.Browser, tmp_path: Path) -> None:
    _open(browser, tmp_path, sample(measured("smollm2", "probe"), hostile=True))
    browser.point("#line-grid .plot")
    browser.click('.map .cell[data-head="L3H3"]')
    for number in range(1, 5):
        browser.click(f".question:nth-child({number}) summary")
    assert browser.js("typeof window.hacked") == "undefined"
    assert browser.count("img, body script:not(#data)") == 2  # the page's own two scripts
    text = browser.js("document.getElementById('answers').innerText")
    assert text.count(SCRIPT) == text.count(IMAGE) == text.count(BRACES) >= 4 * 4
    assert IMAGE in browser.js("document.getElementById('line-legend').innerText")
    browser.size(390, 844)
    assert browser.js("document.documentElement.scrollWidth") <= 390
    assert (browser.errors, browser.requests) == ([], [])


def test_one_function_alone_has_no_choices_and_a_missing_cell_says_so(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    alone = panel("smollm2", "attribute", ["retrieval"], cross=False, boost=False)
    _open(browser, tmp_path, sample(alone))
    assert browser.count("#line-grid .plot") == 1
    assert browser.count("#line-controls select, #cross, #boost, #rankings, .probe") == 0
    _open(browser, tmp_path, sample(measured("smollm2", "probe"), measured("llama", "attribute")))
    assert browser.texts(_tile("llama", "retrieval") + " .none") == ["Not measured."]
    assert browser.count('#verdict-table tr[data-model="llama"]') == 0
    _choose(browser, "one", "llama")
    assert browser.texts("#answer-list") == ["No answers were kept."]
    assert browser.errors == []
