"""The report page in a real browser: it works offline, answers clicks and trusts no text."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import browser as browsers
import pytest
from planted import pairs, save_planted

from headlab.report import render
from headlab.store import Run
from headlab.studies.circuits.lines import read_lines
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec

TASKS = (
    ("ioi", "who receives? the name that is not repeated", "logit-diff"),
    ("greater-than", "a year after the one said", "prob-diff"),
    ("docstring", "the next argument", "logit-diff"),
)
SHAPES = ((30, 9), (12, 12))
SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror='window.hacked=2'>"
BRACES = "{{ 7*7 }}"


def sample(hostile: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data and facts of a made-up circuits study: two models, three tasks; one task not done."""
    chance = random.Random(0)
    names = [f"model {SCRIPT}", f"other {IMAGE}"] if hostile else ["smollm2", "gpt2"]
    models = [
        {"name": name, "layers": layers, "heads": heads}
        for name, (layers, heads) in zip(names, SHAPES, strict=True)
    ]
    finding = f"{names[1]} does not do this task: logit difference 0.04 (-0.10 to 0.17)."
    lines = [
        _line(chance, model, task, measure, 14 - 4 * j + 11 * i)
        for i, model in enumerate(models)
        for j, (task, _, measure) in enumerate(TASKS)
    ]
    lines[-1].update(finding=finding, curve=None)
    reason = f"{names[1]} does not reach 90 %" + (f" {IMAGE} {BRACES}" if hostile else "")
    data = {
        "threshold": 0.9,
        "level": "90",
        "pairs": [],
        "models": models,
        "tasks": [{"name": name, "says": says, "measure": m} for name, says, m in TASKS],
        "methods": ["patch"],
        "lines": lines,
        "multipliers": [
            _multiplier(task, dense, sparse, lines, reason)
            for task, _, _ in TASKS
            for dense in names
            for sparse in names
            if dense != sparse
        ],
        "published": [
            {
                "task": "ioi",
                "source": "seed figure",
                "threshold": 0.9,
                "level": "90",
                "multiplier": 2.0,
                "dense": {
                    "name": "GPT-2",
                    "hub_id": "openai-community/gpt2",
                    "heads": 144,
                    "k": 100,
                },
                "sparse": {"name": "Sparse GPT-2", "heads": 144, "k": 50},
            }
        ],
    }
    return data, _facts(names, hostile)


def _line(
    chance: random.Random, model: dict[str, Any], task: str, measure: str, need: float
) -> dict[str, Any]:
    layers, heads = model["layers"], model["heads"]
    total = layers * heads
    size = 1.0 if measure == "logit-diff" else 0.1
    score = [[chance.gauss(0, 0.02) * size for _ in range(heads)] for _ in range(layers)]
    for _ in range(10):
        layer, head = int(layers * (0.3 + 0.7 * chance.random())), chance.randrange(heads)
        score[layer][head] += size * chance.choice([0.3, 0.6, 0.9, 1.4, -0.5])
    for _ in range(total // 5):
        score[chance.randrange(layers)][chance.randrange(heads)] = 1e-6 * chance.random()
    ks = list(range(total + 1))
    rise = [1.08 * (1 - math.exp(-1.79 * k / need)) - 0.08 * k / total for k in ks]
    sparse = sorted({round(total * (i / 30) ** 1.5) for i in range(31)})
    mean = [(k / total) ** 3 - 0.12 * math.sin(math.pi * k / total) for k in sparse]
    width = [0.05 + 0.25 * math.sin(math.pi * k / total) for k in sparse]
    crossings = {
        level: {
            "k": (k := next(k for k in ks if rise[k] >= int(level) / 100)),
            "low": k - 2,
            "high": k + 3,
            "stay": k,
        }
        for level in ("80", "90", "95")
    }
    return {
        "model": model["name"],
        "task": task,
        "method": "patch",
        "seeds": [0],
        "n": 200,
        "n_heads": total,
        "sample": "held out",
        "measure": measure,
        "clean": 4.4 * size,
        "none": 0.4 * size,
        "noise_floor": 3e-6,
        "finding": None,
        "curve": {
            "ks": ks,
            "explained": rise,
            "low": [v - 0.09 * math.exp(-k / 60) - 0.01 for k, v in zip(ks, rise, strict=True)],
            "high": [v + 0.07 * math.exp(-k / 60) + 0.01 for k, v in zip(ks, rise, strict=True)],
            "random": {
                "orders": 20,
                "ks": sparse,
                "mean": mean,
                "low": [m - w for m, w in zip(mean, width, strict=True)],
                "high": [m + w for m, w in zip(mean, width, strict=True)],
            },
            "matched": {"ks": sparse, "mean": [m + 0.05 for m in mean]},
            "crossings": crossings,
            "cpr": 1.02,
            "cmd": 0.07,
            "random_cpr": 0.226,
            "beats_random": 1.0,
            "beats_matched": 1.0,
        },
        "map": {
            "score": score,
            "low": [[v - 0.03 * size for v in row] for row in score],
            "high": [[v + 0.03 * size for v in row] for row in score],
        },
    }


def _multiplier(
    task: str, dense: str, sparse: str, lines: list[dict[str, Any]], reason: str
) -> dict[str, Any]:
    row = {"task": task, "method": "patch", "dense": dense, "sparse": sparse}
    curves = [
        next(line["curve"] for line in lines if (line["task"], line["model"]) == (task, name))
        for name in (dense, sparse)
    ]
    if None in curves:
        return {**row, "value": None, "low": None, "high": None, "reason": reason}
    value = curves[0]["crossings"]["90"]["k"] / curves[1]["crossings"]["90"]["k"]
    return {**row, "value": value, "low": 0.8 * value, "high": 1.2 * value, "reason": None}


def _facts(names: list[str], hostile: bool) -> dict[str, Any]:
    bad = f" {SCRIPT} {IMAGE} {BRACES}" if hostile else ""
    shown = [
        ("When Mary and John went to the store, John gave a drink to", " Mary", [" John"]),
        ("Then Anna and Tom had a long talk, and Tom gave a book to", " Anna", [" Tom"]),
        ("After Kate and Paul left the park, Paul handed a ring to", " Kate", [" Paul"]),
    ]
    examples = [
        {
            "task": "ioi",
            "model": names[0],
            "prompt": prompt + bad,
            "target": target,
            "wrong": wrong,
            "counterfactual": prompt.replace(wrong[0], " Lee", 1),
        }
        for prompt, target, wrong in shown
    ]
    examples.append(
        {
            "task": "docstring",
            "model": names[0],
            "prompt": 'def load(self, path, size, name):\n    """read a file\n\n'
            "    :param path: where\n    :param size: how much\n    :param",
            "target": " name",
            "wrong": [" path", " size"],
            "counterfactual": None,
        }
    )
    cells = [
        {
            "model": name,
            "task": task,
            "method": "patch",
            "seed": 0,
            "status": "done",
            "seconds": 41.2 + 3 * i,
            "reason": None,
        }
        for i, name in enumerate(names)
        for task, _, _ in TASKS
    ]
    cells[-1].update(status="failed", seconds=None, reason=f"out of memory{bad}")
    return {
        "title": "How few heads explain the effect?",
        "lead": [
            "14 of smollm2's 270 heads explain 90 % of who receives (95 % interval 12 to 17).",
            "gpt2 needs 25 of 144; a random order of the same heads needs 139.",
        ],
        "asked": [
            ("models", ", ".join(names)),
            ("tasks", "ioi, greater-than, docstring"),
            ("ranked by", "patch"),
            ("prompts", "200 to rank, 200 others to test"),
        ],
        "warnings": [
            f"1 of 6 cells failed: out of memory.{bad}",
            "5 random orders: a quick look; 20 stand behind a baseline.",
        ],
        "cells": cells,
        "examples": examples,
        "figures": [
            {
                "name": f"curve-{task}",
                "alt": f"Explained effect against heads kept, {task}",
                "png": f"figures/curve-{task}.png",
                "pdf": f"figures/curve-{task}.pdf",
                "csv": f"figures/curve-{task}.csv",
            }
            for task, _, _ in TASKS
        ],
        "study_yaml": "study: circuits\nmodels: [smollm2, gpt2]\ntasks: [ioi, greater-than]\n",
        "commands": ["headlab circuits study.yaml", "headlab report runs/circuits"],
        "versions": [("headlab", "0.4.0"), ("torch", "2.11.0"), ("transformers", "5.17.0")],
        "cite": "@software{headlab,\n  title = {Headlab},\n  year = {2026}\n}",
    }


@pytest.fixture
def page(browser: browsers.Browser, tmp_path: Path) -> browsers.Browser:
    return _open(browser, tmp_path, sample())


def _open(
    browser: browsers.Browser,
    folder: Path,
    study: tuple[dict[str, Any], dict[str, Any]],
    fragment: str = "",
) -> browsers.Browser:
    data, facts = study
    path = folder / "report.html"
    path.write_text(render("circuits", data, **facts), encoding="utf-8")
    browser.open(path, fragment)
    return browser


def _entry(line: dict[str, Any], layer: int, head: int) -> int:
    """The k at which a head enters: its place by descending score, ties by index."""
    score = line["map"]["score"]
    flat = [(-value, x, y) for x, row in enumerate(score) for y, value in enumerate(row)]
    return 1 + sorted(flat).index((-score[layer][head], layer, head))


MAP = '.map[data-model="smollm2"]'
CELL = f'{MAP}[data-task="ioi"] .cell[data-head="L23H3"]'


def test_the_page_is_silent_and_asks_the_network_for_nothing(page: browsers.Browser) -> None:
    page.click(CELL)
    page.point('.panel[data-task="ioi"] .plot')
    page.click("#theme")
    page.click('[data-copy="cite"]')
    assert page.errors == []
    assert page.requests == []
    assert page.js("document.querySelectorAll('.map .cell').length") == 3 * (270 + 144)


def test_a_click_on_a_head_map_marks_the_head_everywhere(page: browsers.Browser) -> None:
    assert page.js("document.body.dataset.head") is None
    page.click(CELL)
    assert page.js("document.body.dataset.head") == "smollm2 L23H3"
    assert page.js("decodeURIComponent(location.hash)") == "#head=smollm2 L23H3"
    assert page.count(f"{MAP} .outline .in") == 3  # in the maps of all tasks of this model
    assert page.count(".map .outline .in") == 3  # and in no map of the other
    where = "(one => { const box = one.getBoundingClientRect(); return [box.x, box.y]; })"
    for task, _, _ in TASKS:
        of_task = f'{MAP}[data-task="{task}"]'
        outline, cell = (
            page.js(f"{where}(document.querySelector({json.dumps(f'{of_task} {part}')}))")
            for part in (".outline .in", '.cell[data-head="L23H3"]')
        )
        assert outline == pytest.approx(cell, abs=1.5)
    data, _ = sample()
    marks = page.js(
        "[...document.querySelectorAll('.panel .mark[data-head=L23H3]')]"
        ".map(one => [one.closest('.panel').dataset.task, Number(one.dataset.k)])"
    )
    assert marks == [[line["task"], _entry(line, 23, 3)] for line in data["lines"][:3]]
    assert page.texts("#head-table tr.picked button") == ["L23H3"]


def test_a_second_click_or_escape_lets_the_head_go(page: browsers.Browser) -> None:
    for release in (lambda: page.click(CELL), lambda: page.press("Escape")):
        page.click(CELL)
        assert page.js("document.body.dataset.head") == "smollm2 L23H3"
        release()
        assert page.js("document.body.dataset.head") is None
        assert page.js("location.hash") == ""
        assert page.count(".outline .in, .mark, tr.picked") == 0


def test_a_row_of_the_table_and_the_keyboard_choose_heads_too(page: browsers.Browser) -> None:
    name = page.texts("#head-table tbody button")[0]
    page.click("#head-table tbody tr:first-child td:last-child")
    assert page.js("document.body.dataset.head") == f"smollm2 {name}"
    page.js(f"document.querySelector({json.dumps(CELL)}).focus()")
    page.press("ArrowRight")
    page.press("ArrowDown")
    page.press("Enter")
    assert page.js("document.body.dataset.head") == "smollm2 L24H4"


def test_an_address_with_a_head_opens_on_that_head(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    _open(browser, tmp_path, sample(), "#head=gpt2%20L11H4")
    assert browser.js("document.body.dataset.head") == "gpt2 L11H4"
    assert browser.count('.map[data-model="gpt2"] .outline .in') == 3
    assert browser.count(".map .outline .in") == 3  # smollm2 has an L11H4 too: another head
    _open(browser, tmp_path, sample(), "#head=gpt2%20L12H4")  # gpt2 has layers 0 to 11
    assert browser.js("document.body.dataset.head") is None
    assert browser.errors == []


def test_hostile_text_is_shown_as_text(browser: browsers.Browser, tmp_path: Path) -> None:
    study = sample(hostile=True)
    _open(browser, tmp_path, study)
    assert (browser.errors, browser.requests) == ([], [])
    browser.click('.map[data-task="ioi"] .cell[data-head="L23H3"]')
    bad, other = (model["name"] for model in study[0]["models"])
    browser.choose("#pair-dense", bad)
    browser.choose("#pair-sparse", other)
    browser.point('.panel[data-task="ioi"] .plot')
    assert browser.js("document.body.dataset.head") == f"{bad} L23H3"
    assert browser.js("typeof window.hacked") == "undefined"
    assert browser.count("img, body script:not(#data)") == 2  # the page's own two scripts
    text = browser.js("document.body.innerText")
    for hostile in (SCRIPT, IMAGE, BRACES):
        assert hostile in text
    assert browser.texts("#curve-legend .chip") == [bad, other]
    assert any(IMAGE in text for text in browser.texts("#pair-table td"))
    assert SCRIPT in browser.js("document.querySelector('.tip').textContent")
    assert (browser.errors, browser.requests) == ([], [])


@pytest.mark.parametrize("hostile", [False, True])
def test_a_phone_needs_no_sideways_scrolling(
    browser: browsers.Browser, tmp_path: Path, hostile: bool
) -> None:
    browser.size(390, 844)
    _open(browser, tmp_path, sample(hostile))
    assert browser.js("document.documentElement.scrollWidth") <= 390
    browser.click('.map[data-task="ioi"] .cell[data-head="L23H3"]')
    assert browser.js("document.body.dataset.head").endswith(" L23H3")
    assert browser.js("document.documentElement.scrollWidth") <= 390


def test_dark_mode_darkens_the_paper(page: browsers.Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.js(paper)
    page.dark()
    dark = page.js(paper)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    page.click("#theme")  # the reader's word counts more than the system's
    assert page.js(paper) == light


def test_the_pair_selects_change_the_multiplier(page: browsers.Browser) -> None:
    in_curve, in_table = '.panel[data-task="ioi"] .times', '#pair-table tr[data-task="ioi"] .times'
    assert (page.texts(in_curve), page.texts(in_table)) == ([], [])  # no pair was asked for
    labels = page.texts('.panel[data-task="ioi"] text.k')
    data, _ = sample()
    needs = {
        line["model"]: line["curve"]["crossings"]["90"]["k"]
        for line in data["lines"]
        if line["task"] == "ioi"
    }
    assert labels == [f"k90 = {needs['smollm2']}", f"k90 = {needs['gpt2']}"]
    for dense, sparse in (("gpt2", "smollm2"), ("smollm2", "gpt2")):
        page.choose("#pair-dense", dense)
        page.choose("#pair-sparse", sparse)
        expected = [f"{needs[dense] / needs[sparse]:.1f}x"]
        assert page.texts(in_curve) == page.texts(in_table) == expected
    reasons = page.texts('#pair-table tr[data-task="docstring"] .reason')
    assert reasons == ["gpt2 does not reach 90 %"]


def test_a_task_that_is_not_done_says_so_where_its_curve_would_be(page: browsers.Browser) -> None:
    assert any("gpt2 does not do this task" in t for t in page.texts('[data-task="docstring"]'))
    page.click("#curve-legend .chip")  # hide smollm2: only the finding is left
    assert page.count('.panel[data-task="docstring"] .plot') == 0
    assert "does not do this task" in page.texts('.panel[data-task="docstring"] .none')[0]


def test_published_numbers_stand_where_they_can_be_compared(page: browsers.Browser) -> None:
    note, panel = '.panel[data-task="ioi"] .note', "document.querySelector('[data-task=ioi] .plot')"
    at = f"Number({panel}.querySelector('circle.published').getAttribute('cx'))"
    share = f"{at} / Number({panel}.querySelector('svg').getAttribute('width'))"
    assert "share of heads" not in page.texts(note)[0]  # gpt2 itself is shown
    assert page.js(share) == pytest.approx(100 / 270)  # at k = 100 of an axis up to 270
    page.click("#curve-legend .chip:nth-child(2)")
    assert page.texts(note)[0].startswith("published, GPT-2, at its share of heads")
    assert page.js(share) == pytest.approx(100 / 144)


def test_a_large_study_stays_folded_and_draws_what_is_opened(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    shapes = [(48, 64)] + [(4, 4)] * 9
    chance = random.Random(1)
    data["models"] = [
        {"name": f"m{i}", "layers": layers, "heads": heads}
        for i, (layers, heads) in enumerate(shapes)
    ]
    data["lines"] = [
        _line(chance, model, task, measure, 5)
        for model in data["models"]
        for task, _, measure in TASKS
    ]
    data["multipliers"] = []
    _open(browser, tmp_path, (data, facts))
    assert (browser.errors, browser.requests) == ([], [])
    assert browser.count(".map") == 3
    browser.click('details[data-model="m7"] summary')
    browser.wait("document.querySelectorAll('.map').length === 6")
    browser.click('.map[data-model="m7"] .cell[data-head="L3H3"]')
    assert browser.js("document.body.dataset.head") == "m7 L3H3"
    assert browser.count('.mark[data-head="L3H3"]') == 3  # its curves are shown now


def test_one_model_needs_no_pair(browser: browsers.Browser, tmp_path: Path) -> None:
    data, facts = sample()
    data["models"], data["lines"] = data["models"][:1], data["lines"][:3]
    data["multipliers"] = []
    _open(browser, tmp_path, (data, facts))
    assert (browser.errors, browser.count("#pair")) == ([], 0)


def test_what_is_missing_is_left_out_without_an_error(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    data, facts = sample()
    empty = dict.fromkeys(("k", "low", "high", "stay"))
    first, second, third, *_ = data["lines"]
    first["curve"]["crossings"] = dict.fromkeys(("80", "90", "95"), empty)
    first["map"].update(low=None, high=None)
    first.update(noise_floor=None)
    second["map"]["low"][0][0] = second["map"]["high"][0][0] = None
    third.update(map=None)
    data["lines"] = data["lines"][:4]  # gpt2 has one task only
    data.update(published=[], multipliers=[], pairs=[["smollm2", "gpt2"]])
    lists = ("lead", "asked", "warnings", "examples", "figures", "commands", "versions")
    facts.update({name: [] for name in lists}, cells=facts["cells"] * 3)
    _open(browser, tmp_path, (data, facts))
    browser.click(CELL)
    browser.point('.panel[data-task="ioi"] .plot')
    assert (browser.errors, browser.requests) == ([], [])
    assert "not reached" in browser.texts("#number-table tr:first-child")[1]
    assert browser.texts("#pair-table .reason") == ["not measured"] * 3
    for missing in ("undefined", "NaN", "null"):
        assert missing not in browser.js("document.body.innerText")
    browser.choose("#head-controls select", "gpt2")
    assert browser.count("#head-table thead th") == 2


def test_heads_that_were_not_run_say_so(browser: browsers.Browser, tmp_path: Path) -> None:
    study = sample()
    line = study[0]["lines"][0]
    layers, heads = len(line["map"]["score"]), len(line["map"]["score"][0])
    run = {(23, 3), (20, 0)}
    line["map"]["estimated"] = [[(x, y) not in run for y in range(heads)] for x in range(layers)]
    page = _open(browser, tmp_path, study)
    assert page.count(".map .ran") == len(run)  # and in no map of which all were run
    of = f'{MAP}[data-task="{line["task"]}"] .cell'
    labels = [
        page.js(f"document.querySelector('{of}[data-head={head}]').getAttribute('aria-label')")
        for head in ("L23H3", "L11H4")
    ]
    assert [label.endswith(", estimated") for label in labels] == [False, True]
    assert "not run" in " ".join(page.texts("#head-table td"))
    page.click(f'{of}[data-head="L11H4"]')
    assert "not run" in page.texts("#head-table tr.picked")[0]
    assert page.errors == []


def test_the_page_itself_is_light() -> None:
    data, facts = sample()
    page = render("circuits", data, **facts)
    assert len(page) - len(json.dumps(data)) < 80_000


def test_numbers_that_json_cannot_hold_are_refused() -> None:
    data, facts = sample()
    with pytest.raises(ValueError, match="not JSON compliant"):
        render("circuits", {**data, "threshold": math.nan}, **facts)


# --- the report of a run, not of made-up numbers ---


@pytest.fixture
def done(tmp_path: Path) -> Run:
    """Two models whose circuit is known; a prompt that would like to be a script."""
    for name in ("m", "twin"):
        save_planted(tmp_path / name)
    data = tmp_path / "t.jsonl"
    data.write_text("".join(json.dumps(each.as_dict()) + "\n" for each in pairs(16)))
    spec = make_spec(
        {
            "study": "circuits",
            "pairs": [f"{tmp_path / 'm'}:{tmp_path / 'twin'}"],
            "tasks": [str(data)],
            "size": "smoke",
        }
    )
    run = run_study(spec, tmp_path / "run")
    record = run.read_cell(run.cells[0])
    record.about["examples"][0]["prompt"] = "<script>window.hacked = 1</script>"
    run.write(run.cells[0], record, 1.0)
    run.study.write_report(run)
    return run


def test_a_runs_report_answers_a_click_and_shows_scripts_as_text(
    browser: browsers.Browser, done: Run
) -> None:
    browser.open(done.folder / "report.html")
    first = read_lines(done)[0].scores.order()[0]
    browser.click(f'.map[data-model="m"] .cell[data-head="{first}"]')
    assert browser.js("document.body.dataset.head") == f"m {first}"
    assert "1.0x" in browser.js("document.body.innerText")
    assert "<script>window.hacked = 1</script>" in browser.js("document.body.innerText")
    assert browser.js("typeof window.hacked") == "undefined"
    assert browser.errors == []
    assert browser.requests == []
    browser.size(390, 844)
    browser.open(done.folder / "report.html")
    assert browser.js("document.documentElement.scrollWidth") <= 390
