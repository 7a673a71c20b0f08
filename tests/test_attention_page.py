"""The page of a look at heads in a real browser: profiles, maps and text say what was measured."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import browser as browsers
import pytest
import torch
from tiny import lettered, tiny, tiny_tokenizer

from headlab import Head, Model
from headlab.attention import STATISTICS, Profiles, profile
from headlab.attention.figures import caption
from headlab.attention.maps import attention_maps
from headlab.attention.page import page_data, write_page
from headlab.report import render

HEADS = [Head(0, 1), Head(1, 3), Head(2, 0)]
PROMPTS = [
    "what is the answer?\n\n the question\t is in",
    "the answer is in the question",
    "is the answer in the question?",
]
SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror='window.hacked=2'>"


@cache
def found() -> Profiles:
    return profile(lettered(), PROMPTS, HEADS)


@cache
def maps() -> torch.Tensor:
    return attention_maps(lettered(), PROMPTS[0], HEADS)


@cache
def written() -> str:
    return render(
        "attention",
        page_data(lettered(), found(), PROMPTS[0]),
        title="What do these heads attend to?",
        caption=caption(found()),
        figures=[],
    )


@pytest.fixture
def page(browser: browsers.Browser, tmp_path: Path) -> browsers.Browser:
    path = tmp_path / "attention.html"
    path.write_text(written(), encoding="utf-8")
    browser.open(path)
    return browser


def tip(page: browsers.Browser, of: str) -> str:
    (text,) = page.texts(f".tip:not([hidden]) [data-of={of}]")
    return text


def seen(token: str) -> str:
    return token.translate({ord(" "): "\u2423", ord("\n"): "\u21b5", ord("\t"): "\u21e5"})


def value(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def point_at(page: browsers.Browser, query: int, key: int) -> None:
    """Move the mouse to a cell of the map."""
    page.point("#map-canvas")
    n = maps().shape[-1]
    left, top, size = page.js(
        "(box => [box.left, box.top, box.width])"
        "(document.getElementById('map-canvas').getBoundingClientRect())"
    )
    x, y = left + (key + 0.5) / n * size, top + (query + 0.5) / n * size
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.settle()


def press(page: browsers.Browser, selector: str, key: str) -> None:
    page.js(f"document.querySelector({json.dumps(selector)}).focus()")
    page.settle()  # what has the focus is scrolled to, which hides a tip
    page.press(key)


def pixels(page: browsers.Browser, canvas: str) -> torch.Tensor:
    """[query, key, colour]"""
    n = maps().shape[-1]
    drawn = page.js(
        f"[...document.querySelector({json.dumps(canvas)}).getContext('2d')"
        f".getImageData(0, 0, {n}, {n}).data]"
    )
    return torch.tensor(drawn).view(n, n, 4)


def points(page: browsers.Browser, statistic: str, name: str) -> list[tuple[float, float]]:
    drawn = page.js(
        f"document.querySelector('[data-statistic={statistic}] {name}').getAttribute('points')"
    )
    return [(float(x), float(y)) for x, y in (point.split(",") for point in drawn.split())]


def test_a_charts_tip_tells_the_profile(page: browsers.Browser) -> None:
    page.click("#choose [data-head=L1H3]")
    for name in STATISTICS:
        page.point(f"[data-statistic={name}] svg.plot")
        at = int(page.texts(".tip .top")[0].split()[1])
        assert at > 0
        low, high = (float(end[1, at]) for end in found().band(name))
        mean, even = (float(found().mean(name, null)[1, at]) for null in (False, True))
        assert value(tip(page, "mean")) == pytest.approx(mean, rel=1e-3)
        assert value(tip(page, "uniform")) == pytest.approx(even, rel=1e-3)
        assert value(tip(page, "ratio")) == pytest.approx(mean / even, rel=1e-2)
        interval = [value(end) for end in tip(page, "interval").split(" to ")]
        assert interval == pytest.approx([low, high], rel=1e-3)
        token = [] if name == "distance" else [seen(found().tokens[0][at])]
        assert page.texts(".tip .token") == token
    assert page.errors + page.requests == []


def test_the_ratio_and_the_log_scale_redraw_the_charts(page: browsers.Browser) -> None:
    before = points(page, "received", ".line")
    page.click("#ratio")
    dashed = points(page, "received", ".random")
    assert len({y for _, y in dashed}) == 1  # uniform over itself
    ratio = found().ratio("received")[0].nan_to_num(0.0)[: len(dashed)]
    above = [y < dashed[0][1] for _, y in points(page, "received", ".line")]
    assert above == (ratio > 1).tolist()
    assert set(above) == {True, False}
    page.click("#log")
    drawn = torch.tensor([y for _, y in points(page, "received", ".line")])
    logs = ratio.log().float()
    step = (drawn.max() - drawn.min()) / (logs.max() - logs.min())
    torch.testing.assert_close(drawn - drawn[0], step * (logs[0] - logs), atol=0.3, rtol=0)
    page.click("#ratio")
    page.click("#log")
    assert points(page, "received", ".line") == before
    assert not page.errors


def test_maps_are_drawn_and_tell_their_weights(page: browsers.Browser) -> None:
    for number, head in enumerate(HEADS):
        alpha = pixels(page, f"#small [data-head={head}] canvas")[..., 3]
        assert (alpha - 255 * maps()[number].sqrt()).abs().max() <= 1
    page.click("#small [data-head=L2H0]")
    assert page.texts("#look h2") == ["What L2H0 looks at"]
    assert (pixels(page, "#map-canvas")[..., 3] - 255 * maps()[2].sqrt()).abs().max() <= 1
    point_at(page, 9, 4)
    assert page.texts(".tip .token") == [seen(found().tokens[0][place]) for place in (9, 4)]
    assert value(tip(page, "weight")) == pytest.approx(float(maps()[2, 9, 4]), rel=1e-2)
    assert value(tip(page, "uniform")) == pytest.approx(0.1, rel=1e-3)
    point_at(page, 4, 9)  # above the diagonal there is nothing
    assert page.count(".tip:not([hidden])") == 0
    page.choose("#shade", "ratio")
    more = maps()[2, 9] > 0.1
    colours = pixels(page, "#map-canvas")[9, :10]
    there = colours[:, 3] > 2
    assert ((colours[:, 2] > colours[:, 0]) == more[:10])[there].all()  # blue, else orange


@pytest.mark.parametrize("mode", ["gives", "receives"])
def test_a_token_shades_the_others(page: browsers.Browser, mode: str) -> None:
    page.click(f"[data-mode={mode}]")
    page.point("#text span:nth-child(6)")
    weights = maps()[0, 5] if mode == "gives" else maps()[0, :, 5]
    rows = page.js(
        "[...document.querySelectorAll('#partners tbody tr')].map(r => +r.dataset.place)"
    )
    assert rows == weights.argsort(descending=True).tolist()[:5]
    first = [value(text) for text in page.texts("#partners tbody tr:first-child .n")]
    even = 1 / (rows[0] + 1 if mode == "receives" else 6)
    assert first == pytest.approx([float(weights[rows[0]]), even, first[0] / even], rel=1e-2)
    for place, weight in enumerate(weights.tolist()):
        shade = page.js(f"document.querySelectorAll('#text span')[{place}].style.backgroundColor")
        percent = float(shade.split("%")[0].split()[-1]) if shade else 0.0
        assert percent == pytest.approx(60 * math.sqrt(weight), abs=0.2)
    page.click("#text span:nth-child(6)")  # held: others now tell their weight
    page.point("#text span:nth-child(4)")
    assert page.count("#text [aria-pressed=true]") == 1
    if mode == "gives":
        assert value(tip(page, "weight")) == pytest.approx(float(weights[3]), rel=1e-2)
    page.press("Escape")
    assert page.count("#text [aria-pressed=true]") == 0


def test_blank_tokens_are_seen_and_keys_do_it_all(page: browsers.Browser) -> None:
    assert {"\u21b5\n", "\u21e5"} <= set(page.texts("#text .blank"))
    press(page, "#choose [aria-pressed=true]", "ArrowRight")
    assert page.texts("[data-says=head]") == ["L1H3", "L1H3"]
    assert page.js("location.hash") == "#head=L1H3"
    press(page, "#text [tabindex='0']", "ArrowLeft")
    assert page.js("document.querySelector('#text .on').dataset.place") == str(maps().shape[-1] - 2)
    press(page, "#map-canvas", "ArrowRight")
    assert value(tip(page, "weight")) == pytest.approx(float(maps()[1, -1, 1]), rel=1e-2)
    press(page, "[data-statistic=first] svg", "ArrowRight")
    assert value(tip(page, "mean")) == pytest.approx(float(found().mean("first")[1, 1]), rel=1e-3)
    assert not page.errors


def test_hostile_tokens_stay_text(browser: browsers.Browser, tmp_path: Path) -> None:
    data: dict[str, Any] = page_data(lettered(), found(), PROMPTS[0])
    data["tokens"][2:5] = data["shown"][2:5] = [SCRIPT, IMAGE, "\u202e{{ 7*7 }}"]
    path = tmp_path / "attention.html"
    path.write_text(render("attention", data, title=SCRIPT, caption=IMAGE, figures=[IMAGE]))
    browser.open(path)
    point_at(browser, 3, 2)
    assert browser.texts(".tip .token") == [seen(IMAGE), seen(SCRIPT)]
    browser.point("#text span:nth-child(4)")
    assert browser.texts("#text span")[2:5] == [SCRIPT, IMAGE, "\u27e8U+202E\u27e9{{ 7*7 }}"]
    assert browser.js("window.hacked") is None
    assert browser.count("img") == 0
    assert browser.errors + browser.requests == []


def test_a_phone_and_the_dark_have_room_and_colours(page: browsers.Browser) -> None:
    light = pixels(page, "#map-canvas")[3, 1, :3].tolist()
    page.click("#theme")
    assert pixels(page, "#map-canvas")[3, 1, :3].tolist() != light
    page.size(390, 844)
    page.wait("document.getElementById('map-canvas').getBoundingClientRect().right < 390")
    assert page.js("document.documentElement.scrollWidth") == 390
    assert not page.errors


def test_a_long_prompt_is_cut_and_said_so(browser: browsers.Browser, tmp_path: Path) -> None:
    prompt = "the answer " * 100
    alone = profile(lettered(), [prompt], HEADS[:1])
    (tmp_path / "attention.png").write_bytes(b"")
    browser.open(write_page(lettered(), alone, prompt, tmp_path))
    length = len(lettered().ids(prompt))
    assert browser.count("#text span") == 160 < length
    assert browser.texts("#cut")[0].startswith(f"The prompt has {length} tokens")
    assert browser.texts("#files a") == ["attention.png"]
    assert "interval" not in browser.js("document.querySelector('main').innerText")  # of one prompt
    assert not browser.errors


def test_uniform_knows_of_windows() -> None:
    model = Model(tiny("mistral"), tiny_tokenizer(), name="mistral")  # a window of four
    prompt = "the cat sat on the mat"
    data = page_data(model, profile(model, [prompt], HEADS[:1]), prompt)
    assert data["reach"] == [[0, 0, 0, *range(len(data["tokens"]) - 3)]]
