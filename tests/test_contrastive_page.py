"""The page of a contrastive study in a real browser: what is kept and forgotten, head by head."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import browser as browsers
import pytest
import torch

from headlab.gatefits import ContrastFit
from headlab.report import render
from headlab.stats import share_interval
from headlab.studies.contrastive.cell import VARIANTS, Found, deals, other_than
from headlab.studies.contrastive.page import _data
from headlab.studies.contrastive.panels import NAMES, Panel
from headlab.tasks.word_pairs import FORMATS, INSTRUCTIONS

TASKS = list(INSTRUCTIONS)
MODELS = {  # name: where it is from, layers, heads
    "smollm2": ("HuggingFaceTB/SmolLM2-135M", 30, 9),
    "llama": ("meta-llama/Llama-3.2-3B-Instruct", 28, 24),
}
MISSING = ("llama", "capitalize", "icl")
SEEDS, N = 3, 50
SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror='window.hacked=2'>"
BRACES = "{{ 7*7 }}"
Study = tuple[dict[str, Any], dict[str, Any]]


def rights(model: str, task: str, kept: str, asked: str) -> dict[str, list[int]]:
    """How many of N are right, planted: a count for each mask, no two cells alike."""
    chance = random.Random(f"{model} {task} {kept} {asked}")
    after = chance.randrange(30, 46) if asked == kept else chance.randrange(2, 10)
    return {
        "before": [chance.randrange(20, 50)],
        "gates": [after - 2, after, after + 1],
        "closed": [chance.randrange(0, N) for _ in range(SEEDS)],
        "shuffled": [chance.randrange(5, 15) for _ in range(deals(SEEDS) * SEEDS)],
    }


def panel(model: str, task: str, kept: str) -> Panel:
    source, layers, heads = MODELS[model]
    values = {}
    for asked in FORMATS:
        for variant, counts in rights(model, task, kept, asked).items():
            right = torch.stack([(torch.arange(N) < count).float() for count in counts])
            values["right", asked, variant] = right
            values["log_prob", asked, variant] = right - 1.5
    always = torch.rand(layers, heads, generator=_chance(model, kept)) < 0.08
    drawn = torch.randn(SEEDS, layers, heads, generator=_chance(model, task, kept))
    falling = 8 * torch.exp(-torch.arange(200) / 40) + TASKS.index(task)
    fit = ContrastFit(
        source, list(range(SEEDS)), drawn + 1.5 - 4.5 * always, falling.repeat(SEEDS, 1)
    )
    pairs = [f"{task}-{i}" for i in range(N)]
    return Panel(model, task, source, Found(fit, kept, values, pairs, 320, [], False))


def _chance(*words: str) -> torch.Generator:
    return torch.Generator().manual_seed(random.Random(" ".join(words)).randrange(10**6))


def sample(hostile: bool = False) -> Study:
    """Two models, six tasks, both formats kept; one panel was not measured."""
    asked = [(model, task, kept) for model in MODELS for task in TASKS for kept in FORMATS]
    data = _data([panel(*one) for one in asked if one != MISSING])
    bad = f" {SCRIPT} {IMAGE} {BRACES}" if hostile else ""
    if hostile:
        text = json.dumps(data).replace('"smollm2"', json.dumps(f"smollm2 {SCRIPT}"))
        text = text.replace('"llama"', json.dumps(f"llama {IMAGE}"))
        data = json.loads(text.replace('"antonym"', json.dumps(f"antonym {IMAGE}")))
        data["formats"] = {name: said + bad for name, said in data["formats"].items()}
        data["tasks"][0]["says"] += bad
    facts = {
        "title": "Can gates keep one prompt format and forget the other?",
        "lead": ["smollm2: kept 70 % before, 68 % after."],
        "asked": [("models", ", ".join(MODELS))],
        "warnings": [f"1 of 24 cells failed.{bad}"],
        "cells": [],
        "examples": [],
        "figures": [],
        "study_yaml": "study: contrastive\n",
        "commands": ["headlab run study.yaml"],
        "versions": [("headlab", "0.4.0")],
        "cite": "@software{headlab}",
    }
    return data, facts


@pytest.fixture
def page(browser: browsers.Browser, tmp_path: Path) -> browsers.Browser:
    return _open(browser, tmp_path, sample())


def _open(
    browser: browsers.Browser, folder: Path, study: Study, fragment: str = ""
) -> browsers.Browser:
    data, facts = study
    path = folder / "report.html"
    path.write_text(render("contrastive", data, **facts), encoding="utf-8")
    browser.open(path, fragment)
    return browser


def _tile(model: str, kept: str, grid: str = "pair-grid") -> str:
    return f'#{grid} .tile[data-model="{model}"][data-kept="{kept}"]'


def _row(model: str, task: str, kept: str, asked: str) -> str:
    body = f'#number-table tbody[data-model="{model}"][data-kept="{kept}"]'
    return f'{body} tr[data-task="{task}"][data-asked="{asked}"]'


def _mean(counts: list[int]) -> float:
    return sum(counts) / len(counts) / N


def _whole(share: float) -> str:
    return f"{100 * share:.0f} %"


def _closed(model: str, kept: str) -> torch.Tensor:
    """[fit, layer, head], true where the fit closes the head."""
    tasks = [task for task in TASKS if (model, task, kept) != MISSING]
    return torch.cat([panel(model, task, kept).found.fit.logits < 0 for task in tasks])


def _gate(model: str, kept: str) -> torch.Tensor:
    tasks = [task for task in TASKS if (model, task, kept) != MISSING]
    return torch.cat([panel(model, task, kept).found.fit.gates for task in tasks]).mean(0)


MAP = '.map[data-model="smollm2"]'
CELL = f'{MAP}[data-task="icl"] .cell[data-head="L23H3"]'
# What a tile's marks say, read back from where they stand: the line at 0 and that at 100 are known.
MARKS = """(tile => {
  const lines = [...tile.querySelectorAll(".plot > g > line")].filter(one => one.matches(".grid, .zero")).map(one => +one.getAttribute("y1"));
  const zero = Math.max(...lines), whole = Math.min(...lines), value = y => (zero - y) / (zero - whole);
  const at = (mark, name) => value(+mark.getAttribute(name));
  return [...tile.querySelectorAll(".pair")].map(pair => { const one = name => pair.querySelector(name); return {
    task: pair.dataset.task, asked: pair.dataset.asked, colour: pair.style.getPropertyValue("--c"), x: +one(".before").getAttribute("cx"),
    before: at(one(".before"), "cy"), gates: at(one(".after"), "cy"), interval: [at(one(".sure"), "y1"), at(one(".sure"), "y2")],
    seeds: [...pair.querySelectorAll(".seed")].map(mark => at(mark, "cy")), shuffled: value(+one(".shuffled").dataset.y),
    published: one(".published") && value(+one(".published").dataset.y) }; });
})"""  # noqa: E501


def test_the_page_is_silent_and_asks_the_network_for_nothing(page: browsers.Browser) -> None:
    page.click(CELL)
    page.point(_tile("smollm2", "icl") + " .plot")
    assert "smollm2" in page.js("document.querySelector('.tip').textContent")
    page.click("#fit summary")
    page.point(_tile("llama", "instruction", "loss-grid") + " .plot")
    assert "llama: update" in page.js("document.querySelector('.tip').textContent")
    page.click("#theme")
    page.choose("#map-of", "gate")
    page.click('[data-copy="cite"]')
    assert page.errors == []
    assert page.requests == []
    assert page.count(".map .cell") == 2 * 270 + 2 * 672
    assert "[object" not in page.js("document.body.innerText")


@pytest.mark.parametrize("kept", FORMATS)
@pytest.mark.parametrize("model", MODELS)
def test_every_mark_stands_at_the_datas_number(
    page: browsers.Browser, model: str, kept: str
) -> None:
    found = page.js(f"{MARKS}(document.querySelector({json.dumps(_tile(model, kept))}))")
    tasks = [task for task in TASKS if (model, task, kept) != MISSING]
    pairs = [(task, asked) for task in tasks for asked in (kept, other_than(kept))]
    assert [(one["task"], one["asked"]) for one in found] == pairs
    assert [one["x"] for one in found] == sorted(one["x"] for one in found)
    for one in found:
        counts = rights(model, one["task"], kept, one["asked"])
        after = _mean(counts["gates"])
        assert one["colour"] == ("var(--c0)" if one["asked"] == kept else "var(--c1)")
        assert one["before"] == pytest.approx(_mean(counts["before"]), abs=1e-4)
        assert one["gates"] == pytest.approx(after, abs=1e-4)
        assert one["interval"] == pytest.approx(share_interval(after * N, N), abs=1e-4)
        assert one["seeds"] == pytest.approx([count / N for count in counts["gates"]], abs=1e-4)
        assert one["shuffled"] == pytest.approx(_mean(counts["shuffled"]), abs=1e-4)


def test_published_numbers_stand_with_their_model_and_task_alone(page: browsers.Browser) -> None:
    for model in MODELS:
        for kept, wanted in (("icl", (0.92, 0)), ("instruction", (0.21, 0))):
            marks = page.js(f"{MARKS}(document.querySelector({json.dumps(_tile(model, kept))}))")
            found = [
                (one["task"], one["published"]) for one in marks if one["published"] is not None
            ]
            if model == "smollm2":
                assert found == []
            else:
                assert [task for task, _ in found] == ["singular-plural"] * 2
                assert [value for _, value in found] == pytest.approx(wanted, abs=1e-4)
    assert "published, after" in page.texts("#pair-legend .key")
    row = _row("llama", "singular-plural", "instruction", "instruction")
    assert "paper 98 %" in page.texts(f'{row} [data-of="before"]')[0]
    assert "paper 21 %" in page.texts(f'{row} [data-of="gates"]')[0]
    assert "paper" not in "".join(page.texts('#number-table tbody[data-model="smollm2"]'))


def test_where_no_model_is_the_papers_nothing_is_said_of_it(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    data["panels"] = [one for one in data["panels"] if one["model"] == "smollm2"]
    data["maps"] = [one for one in data["maps"] if one["model"] == "smollm2"]
    data["models"] = data["models"][:1]
    _open(browser, tmp_path, (data, facts))
    assert browser.count(".published") == 0
    assert "paper" not in browser.js("document.querySelector('main').innerText")
    plots = "[...document.querySelectorAll('#pair-grid .plot')]"
    tops = browser.js(f"{plots}.map(one => one.getBoundingClientRect().y)")
    assert tops == pytest.approx(tops[:1] * 2, abs=1)  # one model: the formats side by side
    assert (browser.errors, browser.count("#head-controls select")) == ([], 0)


def test_the_arrow_keys_tell_all_numbers_of_one_task_after_the_other(
    page: browsers.Browser,
) -> None:
    plot = json.dumps(_tile("llama", "icl") + " .plot")
    page.js(f"document.querySelector({plot}).focus()")
    for task in (*TASKS, TASKS[-1]):  # the last stays
        page.press("ArrowRight")
        tip = page.js("document.querySelector('.tip').textContent")
        assert tip.startswith(f"llama: {task}")
        if task == MISSING[1]:
            assert tip.endswith("Not measured.")
            continue
        for asked, word in (("icl", "kept"), ("instruction", "forgotten")):
            counts = rights("llama", task, "icl", asked)
            told = tip.split(f"{word}: {NAMES[asked]}")[1]
            shares = {name: _whole(_mean(counts[name])) for name in VARIANTS}
            low, high = share_interval(_mean(counts["gates"]) * N, N)
            assert told.startswith(
                f"before {shares['before']}, after {shares['gates']} "
                f"{100 * low:.0f} to {100 * high:.0f}"
                f"heads closed {shares['closed']}, shuffled {shares['shuffled']}"
                f"seeds: {', '.join(f'{100 * count / N:.0f}' for count in counts['gates'])}"
                f"log-prob \u2212{1.5 - _mean(counts['before']):.2f} before"
            )
    assert "published: 98 % before, 92 % after" in tip
    marks = page.js(f"{MARKS}(document.querySelector({json.dumps(_tile('llama', 'icl'))}))")
    between = sum(one["x"] for one in marks if one["task"] == TASKS[-1]) / 2
    cursor = page.js("Number(document.querySelector('.plot .cursor').getAttribute('x1'))")
    assert cursor == pytest.approx(between, abs=0.1)


def test_the_table_has_the_charts_numbers(page: browsers.Browser) -> None:
    text = "(one => one.firstChild.textContent)"
    for model in MODELS:
        for kept in FORMATS:
            for task in TASKS:
                if (model, task, kept) == MISSING:
                    continue
                for asked in FORMATS:
                    counts = rights(model, task, kept, asked)
                    cells = json.dumps(_row(model, task, kept, asked) + " td.n")
                    assert page.js(f"[...document.querySelectorAll({cells})].map({text})") == [
                        str(N),
                        *(_whole(_mean(counts[name])) for name in VARIANTS),
                        *(f"\u2212{1.5 - _mean(counts[name]):.2f}" for name in ("before", "gates")),
                    ]
    row = _row("smollm2", "antonym", "icl", "icl")
    assert page.texts(f"{row} td.name") == ["antonymthe forgotten fell more"]
    assert page.texts(f"{row} td.format") == [f" kept{NAMES['icl']}"]
    assert page.count("#number-table tbody tr") == 4 * (1 + 12) - 1


def test_kept_that_is_not_ahead_is_not_said_to_be(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    data["panels"][0]["separates"] = False
    _open(browser, tmp_path, (data, facts))
    row = _row("smollm2", "antonym", "icl", "icl")
    assert browser.texts(f"{row} td.name") == ["antonymthe forgotten did not fall more"]


def test_a_missing_panel_is_said_to_be_missing_in_its_place(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    _open(browser, tmp_path, (data, facts))
    assert browser.texts("#pair-grid .missing") == ["Not measured"]
    assert browser.texts(f'{_tile("llama", "icl")} .missing[data-task="capitalize"]')
    rows = '#number-table tbody[data-model="llama"][data-kept="icl"] tr[data-task="capitalize"]'
    assert browser.texts(rows) == ["capitalizeNot measured"]
    assert browser.texts('#map-groups [data-model="llama"] figcaption .soft') == [
        f"{5 * SEEDS} fits",
        f"{6 * SEEDS} fits",
    ]
    data["panels"] = [p for p in data["panels"] if (p["model"], p["kept"]) != ("llama", "icl")]
    for one in data["maps"]:
        if (one["model"], one["kept"]) == ("llama", "icl"):
            one.update(fits=0, gate=None, closed=None)
    _open(browser, tmp_path, (data, facts))  # and of a whole tile
    assert browser.texts(_tile("llama", "icl") + " .none") == ["Not measured."]
    assert browser.texts('#map-groups [data-model="llama"] figure .none') == ["Not measured."]
    browser.choose("#head-controls select", "llama")
    assert browser.texts("#head-table thead th") == ["head", f"kept: {NAMES['instruction']}"]
    browser.click('.map[data-model="llama"] .cell[data-head="L1H1"]')
    assert (browser.errors, browser.requests) == ([], [])
    for missing in ("undefined", "NaN", "null", "Infinity"):
        assert missing not in browser.js("document.documentElement.outerHTML.split('<script')[0]")


@pytest.mark.parametrize("kept", FORMATS)
def test_the_select_colours_the_maps_by_closed_fits_or_by_gate(
    page: browsers.Browser, kept: str
) -> None:
    cells = json.dumps(f'{MAP}[data-task="{kept}"] .cell')
    shown = (
        f"[...document.querySelectorAll({cells})].map(one =>"
        "[one.dataset.head, one.style.fill, Number(one.getAttribute('fill-opacity'))])"
    )
    names = [f"L{layer}H{head}" for layer in range(30) for head in range(9)]
    looks = (
        ("closed", "var(--c6)", _closed("smollm2", kept).float().mean(0)),
        ("gate", "var(--c2)", _gate("smollm2", kept)),
    )
    for choice, colour, values in looks:
        page.choose("#map-of", choice)
        found = page.js(shown)
        assert [name for name, _, _ in found] == names
        assert {fill for _, fill, _ in found} == {colour}
        strengths = [strength for _, _, strength in found]
        assert strengths == pytest.approx(values.flatten().tolist(), abs=1e-3)


def test_the_tip_of_a_head_has_both_formats(page: browsers.Browser) -> None:
    page.point(CELL)
    said = "L23H3" + "".join(
        f"kept: {NAMES[kept]}closed in {int(_closed('smollm2', kept)[:, 23, 3].sum())} of 18 fits, "
        f"gate {_gate('smollm2', kept)[23, 3]:.2f}"
        for kept in FORMATS
    )
    assert page.js("document.querySelector('.tip').textContent") == said


def test_a_click_on_a_head_marks_it_everywhere(page: browsers.Browser) -> None:
    assert page.js("document.body.dataset.head") is None
    page.click(CELL)
    assert page.js("document.body.dataset.head") == "smollm2 L23H3"
    assert page.js("decodeURIComponent(location.hash)") == "#head=smollm2 L23H3"
    assert page.count(f"{MAP} .outline .in") == 2  # in the maps of both formats
    assert page.count(".map .outline .in") == 2  # and in none of the other model
    assert page.texts("#head-table tr.picked button") == ["L23H3"] * 2
    held = page.js("document.querySelector('.held').textContent")
    assert held.startswith("smollm2 L23H3")
    for kept in FORMATS:
        count = int(_closed("smollm2", kept)[:, 23, 3].sum())
        assert f"kept: {NAMES[kept]}, closed in {count} of 18 fits" in held
    page.choose("#map-of", "gate")  # another look at the same heads: still chosen
    assert page.count(f"{MAP} .outline .in") == 2
    page.click('.map[data-model="llama"][data-task="instruction"] .cell[data-head="L5H20"]')
    assert page.js("document.body.dataset.head") == "llama L5H20"
    assert page.count(f"{MAP} .outline .in") == 0
    assert page.texts("#head-table tr.picked button") == ["L5H20"] * 2
    assert page.js("document.querySelector('#head-controls select').value") == "llama"
    page.press("Escape")
    assert page.js("document.body.dataset.head") is None
    assert page.count(".outline .in, tr.picked") == 0
    assert page.js("document.querySelector('.held').hidden") is True


def test_rows_and_keys_choose_heads_too_and_an_address_opens_on_one(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    for one in data["maps"]:  # a head in both lists
        one["closed"][2][2], one["gate"][2][2] = 1, 0
    _open(browser, tmp_path, (data, facts))
    second, name = "#head-table tbody:nth-of-type(2)", "L2H2"
    assert browser.texts("#head-table tbody button").count(name) == 2
    browser.click(f'{second} tr[data-head="{name}"] td:last-child')
    assert browser.js("document.body.dataset.head") == f"smollm2 {name}"
    browser.js(f"document.querySelector('{second} tr[data-head=\"{name}\"] button').focus()")
    browser.press("Escape")  # the table is drawn anew, and the focus is where it was
    assert browser.js("document.activeElement.textContent") == name
    assert browser.js("document.activeElement.closest('tbody').dataset.group") == "1"
    browser.js(f"document.querySelector({json.dumps(CELL)}).focus()")
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        browser.press(key)
    assert browser.js("document.body.dataset.head") == "smollm2 L24H4"
    _open(browser, tmp_path, sample(), "#head=llama%20L27H23")
    assert browser.js("document.body.dataset.head") == "llama L27H23"
    assert browser.count('.map[data-model="llama"] .outline .in') == 2
    _open(browser, tmp_path, sample(), "#head=llama%20L28H0")  # it has layers 0 to 27
    assert browser.js("document.body.dataset.head") is None
    assert browser.errors == []


@pytest.mark.parametrize("model", MODELS)
def test_the_table_of_heads_has_the_most_often_closed_of_each_format(
    page: browsers.Browser, model: str
) -> None:
    page.choose("#head-controls select", model)
    shares = {kept: _closed(model, kept).float().mean(0) for kept in FORMATS}
    gates = {kept: _gate(model, kept) for kept in FORMATS}
    layers, heads = shares["icl"].shape
    for i, kept in enumerate(FORMATS):
        places = [(layer, head) for layer in range(layers) for head in range(heads)]
        places.sort(key=lambda at: (-float(shares[kept][at]), float(f"{gates[kept][at]:.5g}"), at))
        names = [f"L{layer}H{head}" for layer, head in places[:10]]
        body = f'#head-table tbody[data-group="{i}"]'
        assert page.texts(f"{body} button") == names
        for asked in FORMATS:  # both side by side
            assert page.texts(f'{body} td[data-kept="{asked}"]') == [
                f"{_whole(float(shares[asked][at]))}gate {float(gates[asked][at]):.2f}"
                for at in places[:10]
            ]
    mostly = [shares[kept] > 0.5 for kept in FORMATS]
    both = int((mostly[0] & mostly[1]).sum())
    caption = page.js("document.getElementById('head-caption').textContent")
    assert caption.endswith(
        f": {int(mostly[0].sum())} heads where {NAMES['icl']} is kept, {int(mostly[1].sum())} "
        f"heads where {NAMES['instruction']} is kept, {both} of them in both."
    )


def test_losses_are_folded_and_have_a_line_for_each_task(page: browsers.Browser) -> None:
    assert page.js("document.querySelector('#fit details').open") is False
    page.click("#fit summary")
    counts = [
        page.count(_tile(model, kept, "loss-grid") + " polyline")
        for model in MODELS
        for kept in FORMATS
    ]
    assert counts == [6, 6, 5, 6]
    colours = page.js(
        f"[...document.querySelectorAll({json.dumps(_tile('smollm2', 'icl', 'loss-grid'))}"
        " + ' polyline')].map(one => one.style.getPropertyValue('--c'))"
    )
    assert len(set(colours)) == 6
    plot = json.dumps(_tile("smollm2", "icl", "loss-grid") + " .plot")
    page.js(f"document.querySelector({plot}).focus()")
    for _ in range(3):
        page.press("ArrowRight")
    tip = page.js("document.querySelector('.tip').textContent")
    wanted = 8 * torch.exp(torch.tensor(-30 / 40))
    assert tip == "smollm2: update 30" + "".join(
        f"without {task} {float(wanted) + i:.2f}" for i, task in enumerate(TASKS)
    )


def test_hostile_text_is_shown_as_text(browser: browsers.Browser, tmp_path: Path) -> None:
    study = sample(hostile=True)
    _open(browser, tmp_path, study)
    assert (browser.errors, browser.requests) == ([], [])
    browser.click('.map[data-task="icl"] .cell[data-head="L23H3"]')
    browser.js("document.querySelector('#pair-grid .plot').focus()")
    browser.press("ArrowRight")
    bad, other = (model["name"] for model in study[0]["models"])
    assert browser.js("document.body.dataset.head") == f"{bad} L23H3"
    tip = browser.js("document.querySelector('.tip').textContent")
    assert tip.startswith(f"{bad}: antonym {IMAGE}")
    browser.choose("#head-controls select", other)
    browser.click("#fit summary")
    assert browser.js("typeof window.hacked") == "undefined"
    assert browser.count("img, body script:not(#data)") == 2  # the page's own two scripts
    text = browser.js("document.body.innerText")
    for hostile in (SCRIPT, IMAGE, BRACES):
        assert hostile in text
    assert (browser.errors, browser.requests) == ([], [])


@pytest.mark.parametrize("hostile", [False, True])
def test_a_phone_needs_no_sideways_scrolling(
    browser: browsers.Browser, tmp_path: Path, hostile: bool
) -> None:
    browser.size(390, 844)
    _open(browser, tmp_path, sample(hostile))
    assert browser.js("document.documentElement.scrollWidth") <= 390
    browser.click("#fit summary")
    assert browser.js("document.documentElement.scrollWidth") <= 390
    browser.click('.map[data-task="icl"] .cell[data-head="L23H3"]')
    assert browser.js("document.body.dataset.head").endswith(" L23H3")
    assert browser.js("document.documentElement.scrollWidth") <= 390
    plots = "[...document.querySelectorAll('#pair-grid .plot, #loss-grid .plot')]"
    assert min(browser.js(f"{plots}.map(one => one.clientWidth)")) >= 300
    if not hostile:  # both formats of a head are seen at once
        table = "document.querySelector('#head-table .scroll')"
        assert browser.js(f"{table}.scrollWidth <= {table}.clientWidth")


def test_rows_are_formats_and_columns_models_and_a_phone_has_one_column(
    page: browsers.Browser,
) -> None:
    places = (
        "[...document.querySelectorAll('#pair-grid .tile')].map(one => {"
        "const box = one.getBoundingClientRect();"
        "return [one.dataset.kept, one.dataset.model, Math.round(box.x), Math.round(box.y)]; })"
    )
    tiles = page.js(places)
    assert [tuple(tile[:2]) for tile in tiles] == [(k, m) for k in FORMATS for m in MODELS]
    (_, _, left, top), (_, _, right, _), (_, _, _, below), _ = tiles
    assert [tile[2:] for tile in tiles] == [[x, y] for y in (top, below) for x in (left, right)]
    assert left < right
    assert top < below
    page.size(390, 844)
    page.wait(f"new Set({places}.map(tile => tile[2])).size === 1")
    assert len({y for _, _, _, y in page.js(places)}) == 4
    assert page.js("document.documentElement.scrollWidth") <= 390


def test_dark_mode_darkens_paper_and_lightens_marks(page: browsers.Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    mark = "getComputedStyle(document.querySelector('.pair .after')).fill"
    light = page.js(paper), page.js(mark)
    page.dark()
    dark = page.js(paper), page.js(mark)
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]


def test_the_page_itself_is_light() -> None:
    data, facts = sample()
    page = render("contrastive", data, **facts)
    assert len(page) - len(json.dumps(data, separators=(",", ":"))) < 80_000
