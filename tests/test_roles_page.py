"""The page of a roles study in a real browser: one axis a task, heads that can be followed."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import browser as browsers
import pytest

from headlab.report import render

ROLES = ["facilitating", "irrelevant", "interfering", "mixed", "none"]
TASKS = (  # and how far facilitation falls at 50 heads
    ("syntax", "rewrite a sentence", 2.4),
    ("common-sense", "the letter of the right answer", 1.6),
    ("math", "a worked solution", 110.0),
)
SHAPES = ((30, 9), (12, 12))
SEEDS = 10
SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror='window.hacked=2'>"
BRACES = "{{ 7*7 }}"
Study = tuple[dict[str, Any], dict[str, Any]]


def sample(hostile: bool = False) -> Study:
    """Data and facts of a made-up roles study: two models, three tasks. gpt2 has no math, and no
    accuracy in common-sense."""
    chance = random.Random(0)
    names = [f"model {SCRIPT}", f"other {IMAGE}"] if hostile else ["smollm2", "gpt2"]
    models = [
        {"name": name, "layers": layers, "heads": heads}
        for name, (layers, heads) in zip(names, SHAPES, strict=True)
    ]
    panels = [
        panel(chance, model, task, size * share)
        for task, _, size in TASKS
        for model, share in zip(models, (1, 0.6), strict=True)
    ]
    panels.pop()
    panels[3]["accuracy"] = None
    if hostile:
        panels[0]["published"][0]["name"] = f"L3.2-1B {IMAGE}"
    says = f" {IMAGE} {BRACES}" if hostile else ""
    data = {
        "roles": ROLES,
        "models": models,
        "tasks": [{"name": name, "says": text + says} for name, text, _ in TASKS],
        "panels": panels,
    }
    return data, _facts(names, hostile)


def panel(chance: random.Random, model: dict[str, Any], task: str, size: float) -> dict[str, Any]:
    """One model on one task: gates drawn head by head, everything else worked out from them."""
    layers, heads = model["layers"], model["heads"]
    facilitating = 0.5 if task == "math" else 0.25
    pulls = [
        [
            chance.choices([(4, 3), (3, -3), (-3, -4), (-1, 0.5)], [facilitating, 0.65, 0.08, 0.01])
            for _ in range(heads)
        ]
        for _ in range(layers)
    ]
    gates = [  # [seed][layer][head] = (G+, G−)
        [
            [tuple(1 / (1 + math.exp(-chance.gauss(at, 3))) for at in pull[0]) for pull in row]
            for row in pulls
        ]
        for _ in range(SEEDS)
    ]
    scores = [[[(m, p * (1 - m), 1 - p) for p, m in row] for row in seed] for seed in gates]

    def role(f: float, i: float, n: float) -> int:
        has = (f >= 0.5, i >= 0.5, n >= 0.5)
        return 3 if has[0] and has[2] else 0 if has[0] else 2 if has[2] else 1 if has[1] else 4

    found = [[[role(*score) for score in row] for row in seed] for seed in scores]

    def each(of: Any) -> list[list[Any]]:
        return [[of(layer, head) for head in range(heads)] for layer in range(layers)]

    def mean(values: list[Any], part: int) -> list[list[float]]:
        return each(lambda x, y: round(sum(seed[x][y][part] for seed in values) / SEEDS, 4))

    def count(x: int, y: int) -> list[int]:
        return [sum(seed[x][y] == number for seed in found) for number in range(len(ROLES))]

    counts = each(count)
    total, ks = layers * heads, list(range(51))
    shapes = {
        "F": [-size * (1 - math.exp(-k / 30)) / (1 - math.exp(-50 / 30)) for k in ks],
        "I": [-0.03 * size * (k / 50) ** 2 for k in ks],
        "N": [0.35 * size**0.3 * math.sin(math.pi * min(k, 45) / 45) * (k / 20) for k in ks],
        "random": [-0.35 * size * k / 50 for k in ks],
    }
    lines = {
        name: {
            "mean": values,
            "low": [v - 0.1 * size * (k / 50) ** 0.5 for k, v in zip(ks, values, strict=True)],
            "high": [v + 0.1 * size * (k / 50) ** 0.5 for k, v in zip(ks, values, strict=True)],
        }
        for name, values in shapes.items()
    }
    flat = {
        name: sorted(score[i] for seed in scores for row in seed for score in row)
        for i, name in enumerate("FIN")
    }
    xs = [i / 100 for i in range(101)]
    down = [math.exp(-i / 12) for i in range(51)]
    return {
        "model": model["name"],
        "task": task,
        "n_heads": total,
        "seeds": list(range(SEEDS)),
        "n_train": 2903,
        "n": 64,
        "base": "plus",
        "reference": "zero",
        "accuracy": {"value": 0.61, "low": 0.5, "high": 0.7, "chance": 0.2, "n": 64}
        if task != "math"
        else {"value": 0.05, "low": 0.02, "high": 0.13, "chance": None, "n": 64},
        "ks": ks,
        "lines": lines,
        "shares": {
            name: {
                "mean": sum(c[number] for row in counts for c in row) / total / SEEDS,
                "always": sum(c[number] == SEEDS for row in counts for c in row) / total,
                "any": sum(c[number] > 0 for row in counts for c in row) / total,
            }
            for number, name in enumerate(ROLES)
        },
        "map": {
            "role": each(lambda x, y: counts[x][y].index(max(counts[x][y]))),
            "agree": each(lambda x, y: max(counts[x][y])),
            **{name: mean(scores, part) for part, name in enumerate("FIN")},
            "g_plus": mean(gates, 0),
            "g_minus": mean(gates, 1),
        },
        "ecdf": {
            "x": xs,
            **{
                name: [sum(v <= x for v in values) / len(values) for x in xs]
                for name, values in flat.items()
            },
        },
        "loss": {
            "every": 10,
            "free": [size * (0.4 + 0.6 * d) for d in down],
            "plus": [size * (0.38 + 0.02 * d) - 0.3 * (1 - d) for d in down],
            "minus": [size * (0.45 - 0.05 * d) - 0.2 * (1 - d) for d in down],
        },
        "published": [
            {
                "name": "L3.2-1B",
                "always": {"facilitating": 0.012, "interfering": 0.002},
                "any": {"facilitating": 0.721, "interfering": 0.572},
            }
        ]
        if task == "syntax"
        else [],
    }


def _facts(names: list[str], hostile: bool) -> dict[str, Any]:
    bad = f" {SCRIPT} {IMAGE} {BRACES}" if hostile else ""
    cells = [
        {
            "model": name,
            "task": task,
            "method": "gates",
            "seed": 0,
            "status": "done",
            "seconds": 841.2,
            "reason": None,
        }
        for name in names
        for task, _, _ in TASKS
    ]
    cells[-1].update(status="failed", seconds=None, reason=f"out of memory{bad}")
    return {
        "title": "Which heads help, and which get in the way?",
        "lead": [
            "25.1 % of smollm2's heads facilitate syntax, 0.7 % of them in every seed.",
            "Ablating the 50 most facilitating heads costs 2.4 nats, 50 random ones 0.8.",
        ],
        "asked": [
            ("models", ", ".join(names)),
            ("tasks", ", ".join(task for task, _, _ in TASKS)),
            ("seeds", str(SEEDS)),
            ("prompts", "2903 to fit, 64 others for the lines"),
        ],
        "warnings": [f"1 of 6 cells failed: out of memory.{bad}"],
        "cells": cells,
        "examples": [
            {
                "task": "syntax",
                "model": names[0],
                "prompt": "Put the sentence into the past.\nQuestion: I see a dog.\n"
                f"Answer: I saw a dog.\nQuestion: We sing.{bad}\nAnswer:",
                "target": " We sang.",
                "wrong": [],
                "counterfactual": None,
            }
        ],
        "figures": [
            {
                "name": "grid",
                "alt": "Change of the target's log-prob against heads ablated",
                "png": "figures/grid.png",
                "pdf": "figures/grid.pdf",
                "csv": "figures/grid.csv",
            }
        ],
        "study_yaml": "study: roles\nmodels: [smollm2, gpt2]\n",
        "commands": ["headlab roles study.yaml"],
        "versions": [("headlab", "0.4.0")],
        "cite": "@software{headlab,\n  title = {Headlab}\n}",
    }


@pytest.fixture
def page(browser: browsers.Browser, tmp_path: Path) -> browsers.Browser:
    return _open(browser, tmp_path, sample())


def _open(
    browser: browsers.Browser, folder: Path, study: Study, fragment: str = ""
) -> browsers.Browser:
    data, facts = study
    path = folder / "report.html"
    path.write_text(render("roles", data, **facts), encoding="utf-8")
    browser.open(path, fragment)
    return browser


def _map(panel: dict[str, Any], name: str, field: str) -> Any:
    layer, head = name[1:].split("H")
    return panel["map"][field][int(layer)][int(head)]


def _plot(model: str, task: str, grid: str = "line-grid") -> str:
    return f'#{grid} .tile[data-model="{model}"][data-task="{task}"] .plot'


MAP = '.map[data-model="smollm2"]'
CELL = f'{MAP}[data-task="syntax"] .cell[data-head="L23H3"]'
LABELS = """(grid => [...document.querySelectorAll(`#${grid} .row`)].map(row =>
  [...row.querySelectorAll(".plot")].map(plot => [...plot.querySelectorAll("text[text-anchor=end]")]
    .filter(text => text.getAttribute("x") === "-7")
    .map(text => [text.textContent, text.getAttribute("y")].join(" at ")).join())))"""


def test_the_page_is_silent_and_asks_the_network_for_nothing(page: browsers.Browser) -> None:
    page.click(CELL)
    for grid in ("line-grid", "ecdf-grid"):
        page.point(_plot("smollm2", "math", grid))
        assert "smollm2" in page.js("document.querySelector('.tip').textContent")
    page.click("#fit summary")
    page.point(_plot("smollm2", "math", "loss-grid"))
    page.click("#theme")
    page.choose("#map-of", "N")
    page.click('[data-copy="cite"]')
    assert page.errors == []
    assert page.requests == []
    assert page.count(".map .cell") == 3 * 270 + 2 * 144
    assert "[object" not in page.js("document.body.innerText")


@pytest.mark.parametrize("grid", ["line-grid", "loss-grid"])
def test_a_row_shares_its_axis_and_no_two_rows_do(page: browsers.Browser, grid: str) -> None:
    rows = page.js(f"{LABELS}({json.dumps(grid)})")
    assert [len(row) for row in rows] == [2, 2, 1]
    assert all(len(set(row)) == 1 for row in rows)
    assert len({row[0] for row in rows}) == 3


def test_rows_are_tasks_and_columns_models_and_a_phone_has_one_column(
    page: browsers.Browser,
) -> None:
    places = (
        "[...document.querySelectorAll('#line-grid .tile')].map(one => {"
        "const box = one.getBoundingClientRect();"
        "return [one.dataset.task, one.dataset.model, Math.round(box.x), Math.round(box.y)]; })"
    )
    tiles = page.js(places)
    wanted = [(task, model) for task, _, _ in TASKS for model in ("smollm2", "gpt2")]
    assert [(task, model) for task, model, _, _ in tiles] == wanted
    assert len({y for _, _, _, y in tiles}) == 3
    assert len({x for _, _, x, _ in tiles}) == 2
    page.size(390, 844)
    page.wait(f"new Set({places}.map(tile => tile[2])).size === 1")
    assert len({y for _, _, _, y in page.js(places)}) == 6
    assert page.js("document.documentElement.scrollWidth") <= 390


def test_green_falls_blue_stays_and_red_rises(page: browsers.Browser) -> None:
    ends = page.js(
        f"(plot => [...plot.querySelectorAll('polyline.line')].map(line => ["
        "line.style.getPropertyValue('--c'),"
        "line.points[25].y - Number(plot.querySelector('.zero').getAttribute('y1'))]))"
        f"(document.querySelector({json.dumps(_plot('gpt2', 'syntax'))}))"
    )
    green, blue, red = (dict(ends)[f"var(--c{n})"] for n in (2, 0, 1))
    assert green > 40  # pixels below the line at 0
    assert abs(blue) < 4
    assert red < -20
    assert page.texts(_plot("gpt2", "syntax") + " text.end") == ["F", "I", "N"]
    assert page.count(_plot("gpt2", "syntax") + " polygon") == 4
    assert page.count(_plot("gpt2", "syntax") + " polyline.random") == 1


def test_the_tip_of_a_line_has_its_value_and_interval(page: browsers.Browser) -> None:
    page.js(f"document.querySelector({json.dumps(_plot('smollm2', 'syntax'))}).focus()")
    for key in ("PageUp", "PageUp", "ArrowRight"):
        page.press(key)
    tip = page.js("document.querySelector('.tip').textContent")
    line = sample()[0]["panels"][0]["lines"]["F"]
    value, low, high = (
        f"{line[key][21]:.2f}".replace("-", "\u2212") for key in ("mean", "low", "high")
    )
    assert tip.startswith("smollm2: 21 heads ablated")
    assert f"facilitation {value} {low} to {high}" in tip
    assert all(name in tip for name in ("irrelevance", "interference", "random order"))


def test_hiding_a_line_gives_the_others_its_room(page: browsers.Browser) -> None:
    before = page.js(f"{LABELS}('line-grid')")[2][0]
    assert "\u2212100" in before
    page.click('#line-legend [data-line="F"]')
    assert "\u2212100" not in page.js(f"{LABELS}('line-grid')")[2][0]
    assert "F" not in page.texts("#line-grid text.end")
    for name in ("I", "N", "random"):
        page.click(f'#line-legend [data-line="{name}"]')
    assert page.count("#line-grid polyline") == 0
    assert page.errors == []
    page.click('#line-legend [data-line="F"]')
    assert set(page.texts("#line-grid text.end")) == {"F"}


def test_a_click_on_a_head_map_marks_the_head_everywhere(page: browsers.Browser) -> None:
    assert page.js("document.body.dataset.head") is None
    page.click(CELL)
    assert page.js("document.body.dataset.head") == "smollm2 L23H3"
    assert page.js("decodeURIComponent(location.hash)") == "#head=smollm2 L23H3"
    assert page.count(f"{MAP} .outline .in") == 3  # in the maps of all tasks of this model
    assert page.count(".map .outline .in") == 3  # and in no map of the other
    assert page.texts("#head-table tr.picked button") == ["L23H3"]
    page.choose("#map-of", "I")  # another look at the same heads: still chosen
    assert page.count(f"{MAP} .outline .in") == 3
    page.click('.map[data-model="gpt2"][data-task="syntax"] .cell[data-head="L5H2"]')
    assert page.js("document.body.dataset.head") == "gpt2 L5H2"
    assert page.count(f"{MAP} .outline .in") == 0
    assert page.texts("#head-table tr.picked button") == ["L5H2"]
    assert page.js("document.querySelector('#head-controls select').value") == "gpt2"


def test_a_second_click_or_escape_lets_the_head_go(page: browsers.Browser) -> None:
    for release in (lambda: page.click(CELL), lambda: page.press("Escape")):
        page.click(CELL)
        assert page.js("document.body.dataset.head") == "smollm2 L23H3"
        release()
        assert page.js("document.body.dataset.head") is None
        assert page.js("location.hash") == ""
        assert page.count(".outline .in, tr.picked") == 0


def test_a_row_of_the_table_and_the_keyboard_choose_heads_too(page: browsers.Browser) -> None:
    name = page.texts("#head-table tbody button")[0]
    page.click("#head-table tbody tr:first-child td:last-child")
    assert page.js("document.body.dataset.head") == f"smollm2 {name}"
    page.js(f"document.querySelector({json.dumps(CELL)}).focus()")
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.press(key)
    assert page.js("document.body.dataset.head") == "smollm2 L24H4"


def test_an_address_with_a_head_opens_on_that_head(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    _open(browser, tmp_path, sample(), "#head=gpt2%20L11H4")
    assert browser.js("document.body.dataset.head") == "gpt2 L11H4"
    assert browser.count('.map[data-model="gpt2"] .outline .in') == 2
    assert browser.count(".map .outline .in") == 2  # smollm2 has an L11H4 too: another head
    _open(browser, tmp_path, sample(), "#head=gpt2%20L12H4")  # gpt2 has layers 0 to 11
    assert browser.js("document.body.dataset.head") is None
    assert browser.errors == []


def test_a_cell_has_its_roles_colour_the_stronger_the_more_seeds_agree(
    page: browsers.Browser,
) -> None:
    cells = page.js(
        f"[...document.querySelectorAll({json.dumps(MAP + '[data-task=math] .cell')})].map(one =>"
        "[one.dataset.head, one.style.fill, Number(one.getAttribute('fill-opacity'))])"
    )
    math_panel = sample()[0]["panels"][4]
    colours = ["var(--c2)", "var(--c0)", "var(--c1)", "var(--c6)", "var(--grey)"]
    strengths: dict[int, set[float]] = {}
    for name, colour, strength in cells:
        assert colour == colours[_map(math_panel, name, "role")]
        strengths.setdefault(_map(math_panel, name, "agree"), set()).add(strength)
    rising = [strengths[agree] for agree in sorted(strengths)]
    assert all(len(same) == 1 for same in rising)
    assert len(rising) > 4
    assert sorted(rising, key=max) == rising
    assert max(strengths[SEEDS]) == 1


def test_the_select_colours_the_map_by_a_score(page: browsers.Browser) -> None:
    syntax = sample()[0]["panels"][0]
    shown = (
        "(cell => [cell.style.fill, cell.getAttribute('fill-opacity')])"
        f"(document.querySelector({json.dumps(CELL)}))"
    )
    by_role = page.js(shown)
    for metric, colour in (("F", "var(--c2)"), ("I", "var(--c0)"), ("N", "var(--c1)")):
        page.choose("#map-of", metric)
        fill, opacity = page.js(shown)
        assert fill == colour
        assert float(opacity) == pytest.approx(_map(syntax, "L23H3", metric), abs=1e-3)
    page.choose("#map-of", "role")
    assert page.js(shown) == by_role


def test_a_role_can_be_hidden_from_the_maps(page: browsers.Browser) -> None:
    blue, green = (
        f"getComputedStyle(document.querySelector('{MAP} .r{n}')).fillOpacity" for n in (1, 0)
    )
    before = float(page.js(blue)), float(page.js(green))
    page.click('#map-legend [data-role="irrelevant"]')
    assert (float(page.js(blue)), float(page.js(green))) == (pytest.approx(0.04), before[1])
    page.click('#map-legend [data-role="irrelevant"]')
    assert (float(page.js(blue)), float(page.js(green))) == before


def test_the_tip_of_a_head_has_role_seeds_scores_and_gates(page: browsers.Browser) -> None:
    panel_ = sample()[0]["panels"][0]
    role, agree = (_map(panel_, "L23H3", key) for key in ("role", "agree"))
    page.point(CELL)
    tip = page.js("document.querySelector('.tip').textContent")
    assert tip.startswith(f"L23H3{ROLES[role]}, {agree} of 10 seeds")
    for key, said in (("F", "F"), ("I", "I"), ("N", "N"), ("g_plus", "G+"), ("g_minus", "G\u2212")):
        assert f"{said} {_map(panel_, 'L23H3', key):.2f}" in tip


def test_shares_are_the_datas_and_published_ones_stand_below_their_task(
    page: browsers.Browser,
) -> None:
    data, _ = sample()
    for one in data["panels"]:
        row = f'#share-table [data-task="{one["task"]}"] [data-model="{one["model"]}"] td.n'
        wanted = [
            f"{100 * one['shares'][r][k]:.1f}" for r in ROLES for k in ("mean", "always", "any")
        ]
        assert page.texts(row) == wanted
    missing = page.texts('#share-table [data-task="math"] [data-model="gpt2"]')
    assert missing == ["gpt2not measured"]
    published = "#share-table tr.published"
    assert page.texts(f'[data-task="syntax"] {published.split()[1]} td.name') == ["L3.2-1B"]
    assert page.count(published) == 1  # though two models of that task have it
    assert [text for text in page.texts(f"{published} td.n") if text] == [
        "1.2",
        "72.1",
        "0.2",
        "57.2",
    ]


def test_accuracy_is_held_against_chance(browser: browsers.Browser, tmp_path: Path) -> None:
    study = sample()
    study[0]["panels"][0]["accuracy"].update(value=0.25, low=0.18, high=0.33)
    _open(browser, tmp_path, study)

    def row(model: str, task: str) -> str:
        selector = f'#accuracy-table tr[data-model="{model}"][data-task="{task}"]'
        return browser.texts(selector)[0]

    assert row("smollm2", "syntax") == "smollm225 %18 to 3320 %not above64"
    assert row("gpt2", "syntax") == "gpt261 %50 to 7020 %64"
    assert row("gpt2", "common-sense") == "gpt2no accuracy for this task"
    assert row("smollm2", "math") == "smollm25 %2 to 13\u201364"
    assert row("gpt2", "math") == "gpt2not measured"
    assert browser.count("#accuracy-table .chance") == 3


def test_the_table_lists_the_surest_heads_that_help_or_hinder(page: browsers.Browser) -> None:
    panels = [one for one in sample()[0]["panels"] if one["model"] == "smollm2"]
    found = []
    for layer in range(30):
        for head in range(9):
            own = [
                (-one["map"]["agree"][layer][head], -one["map"]["FIN"[role]][layer][head])
                for one in panels
                if (role := one["map"]["role"][layer][head]) in (0, 2)
                and one["map"]["agree"][layer][head] > SEEDS / 2
            ]
            if own:
                found.append((*min(own), layer, head))
    wanted = [f"L{layer}H{head}" for _, _, layer, head in sorted(found)]
    assert len(wanted) > 20
    assert page.texts("#head-table tbody button") == wanted[:20]
    caption = page.js("document.getElementById('head-caption').textContent")
    assert caption.startswith(f"The 20 surest of {len(wanted)} heads")
    page.click(f'{MAP} .cell[data-head="{wanted[-1]}"]')
    assert page.texts("#head-table tbody button") == [*wanted[:20], wanted[-1]]
    cells = page.texts("#head-table tr.picked td.role")
    for cell, one in zip(cells, panels, strict=True):
        role = ROLES[_map(one, wanted[-1], "role")].replace("none", "no role")
        assert cell.startswith(f"{role}{_map(one, wanted[-1], 'agree')}/10")


def test_hostile_text_is_shown_as_text(browser: browsers.Browser, tmp_path: Path) -> None:
    study = sample(hostile=True)
    _open(browser, tmp_path, study)
    assert (browser.errors, browser.requests) == ([], [])
    browser.click('.map[data-task="syntax"] .cell[data-head="L23H3"]')
    browser.point("#line-grid .plot")
    bad, other = (model["name"] for model in study[0]["models"])
    assert browser.js("document.body.dataset.head") == f"{bad} L23H3"
    assert SCRIPT in browser.js("document.querySelector('.tip').textContent")
    browser.choose("#head-controls select", other)
    assert browser.js("typeof window.hacked") == "undefined"
    assert browser.count("img, body script:not(#data)") == 2  # the page's own two scripts
    text = browser.js("document.body.innerText")
    for hostile in (SCRIPT, IMAGE, BRACES):
        assert hostile in text
    assert f"L3.2-1B {IMAGE}" in browser.texts("#share-table td.name")
    assert (browser.errors, browser.requests) == ([], [])


@pytest.mark.parametrize("hostile", [False, True])
def test_a_phone_needs_no_sideways_scrolling(
    browser: browsers.Browser, tmp_path: Path, hostile: bool
) -> None:
    browser.size(390, 844)
    _open(browser, tmp_path, sample(hostile))
    assert browser.js("document.documentElement.scrollWidth") <= 390
    browser.click("#fit summary")
    browser.click('.map[data-task="syntax"] .cell[data-head="L23H3"]')
    assert browser.js("document.body.dataset.head").endswith(" L23H3")
    assert browser.js("document.documentElement.scrollWidth") <= 390
    plots = "[...document.querySelectorAll('#line-grid .plot, #loss-grid .plot')]"
    assert min(browser.js(f"{plots}.map(one => one.clientWidth)")) >= 300


def test_dark_mode_darkens_paper_and_lightens_lines(page: browsers.Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('#line-grid polyline.line')).stroke"
    light = page.js(paper), page.js(line)
    page.dark()
    dark = page.js(paper), page.js(line)
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    page.click("#theme")  # the reader's word counts more than the system's
    assert (page.js(paper), page.js(line)) == light


def test_a_large_study_stays_folded_and_draws_what_is_opened(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    chance = random.Random(1)
    data["models"] = [
        {"name": f"m{i}", "layers": layers, "heads": heads}
        for i, (layers, heads) in enumerate([(32, 32), (28, 24), (4, 4), (6, 4), (8, 2)])
    ]
    data["panels"] = [
        panel(chance, model, task, size) for task, _, size in TASKS for model in data["models"]
    ]
    _open(browser, tmp_path, (data, facts))
    assert (browser.errors, browser.requests) == ([], [])
    assert browser.count(".map") == 3
    browser.click('details[data-model="m2"] summary')
    browser.wait("document.querySelectorAll('.map').length === 6")
    browser.click('.map[data-model="m2"] .cell[data-head="L3H3"]')
    assert browser.js("document.body.dataset.head") == "m2 L3H3"
    assert browser.js("document.documentElement.scrollWidth") <= 1280
    _open(browser, tmp_path, (data, facts), "#head=m4%20L7H1")  # opens the map it is in
    browser.wait("document.querySelectorAll('.map[data-model=m4] .outline .in').length === 3")


def test_what_is_missing_is_left_out_without_an_error(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    first, second, third, *_ = data["panels"]
    for line in first["lines"].values():  # one seed: no interval
        line.update(low=None, high=None)
    first.update(seeds=[0], loss=None, ecdf=None, published=[])
    first["map"]["agree"] = [[1] * 9 for _ in range(30)]
    first["accuracy"].update(low=None, high=None, chance=None)
    del second["lines"]["random"]
    second.update(accuracy=None, shares=None, map=None)
    third["lines"]["F"]["mean"][3] = None
    third["map"]["F"][0][0] = third["map"]["g_plus"][0][0] = None
    data["panels"] = data["panels"][:3]  # of gpt2 there is one task, of math nothing
    lists = ("lead", "asked", "warnings", "examples", "figures", "commands", "versions")
    facts.update({name: [] for name in lists})
    _open(browser, tmp_path, (data, facts))
    browser.click(CELL)
    browser.point(f'{MAP}[data-task="common-sense"] .cell[data-head="L0H0"]')
    browser.point(_plot("smollm2", "common-sense"))
    assert (browser.errors, browser.requests) == ([], [])
    assert browser.count(_plot("smollm2", "syntax") + " polygon") == 0
    assert browser.count('#line-grid .row[data-task="math"] .none') == 2
    browser.choose("#head-controls select", "gpt2")
    assert browser.texts("#head-table") == ["No roles for this model."]
    browser.js("document.querySelector('#fit details').open = true")
    for missing in ("undefined", "NaN", "null", "Infinity"):
        assert missing not in browser.js("document.documentElement.outerHTML.split('<script')[0]")


def test_nothing_measured_is_still_a_page(browser: browsers.Browser, tmp_path: Path) -> None:
    data, facts = sample()
    _open(browser, tmp_path, ({**data, "panels": []}, facts))
    assert (browser.errors, browser.requests) == ([], [])
    assert set(browser.texts("#line-grid .none")) == {"Not measured."}


def test_one_model_has_its_tasks_side_by_side(browser: browsers.Browser, tmp_path: Path) -> None:
    data, facts = sample()
    data["models"] = data["models"][:1]
    data["panels"] = [one for one in data["panels"] if one["model"] == "smollm2"]
    _open(browser, tmp_path, (data, facts))
    plots = "[...document.querySelectorAll('#line-grid .plot')]"
    tops = browser.js(f"{plots}.map(one => one.getBoundingClientRect().y)")
    assert tops == pytest.approx(tops[:1] * 3, abs=1)
    assert (browser.errors, browser.count("#head-controls select")) == ([], 0)


def test_the_page_itself_is_light() -> None:
    data, facts = sample()
    page = render("roles", data, **facts)
    assert len(page) - len(json.dumps(data)) < 80_000
