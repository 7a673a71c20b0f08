"""The page of a fillers study in a real browser: accuracy, differences, attention and answers."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import browser as browsers
import filled
import pytest

from headlab.report import render
from headlab.studies.fillers.data import report_data
from headlab.studies.fillers.figure import colours, shown
from headlab.studies.fillers.grades import SCORES, grade_texts
from headlab.studies.fillers.panels import Panel, changes, published_for
from headlab.studies.graded import gradable

SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror='window.hacked=2'>"
VERDICTS = {"better": "helps", "worse": "hurts", "open": "not told from chance"}
SHIFTS = {
    "less": "less than even attention leaves",
    "more": "more than even attention leaves",
    "open": "as even attention has it",
}
COLUMNS = "condition right baseline difference gained p adjusted verdict truncated unboxed tokens"
PAPER, CHAT, SEEDS = range(3)  # the panels


@functools.cache
def panels() -> tuple[Panel, ...]:
    few = filled.conditions("none,mless,random", chat=True)
    return (
        filled.panel("qwen2.5-math-1.5b", "math500"),
        filled.panel("smollm2", "math500", own=few, n=40),
        filled.panel("smollm2", "arithmetic", (0, 1), own=few[:3]),
    )


@functools.cache
def whole() -> str:
    return json.dumps(report_data(list(panels())))


def _open(browser: browsers.Browser, folder: Path, data: Any, bad: str = "") -> browsers.Browser:
    facts: dict[str, Any] = {key: [] for key in ("examples", "figures", "cells", "commands")}
    facts |= {"title": f"Do fillers help? {bad}", "lead": [f"No. {bad}"], "versions": []}
    facts |= {"asked": [("models", bad)], "warnings": [bad], "study_yaml": bad, "cite": ""}
    path = folder / "report.html"
    path.write_text(render("fillers", data, **facts), encoding="utf-8")
    browser.open(path)
    return browser


@pytest.fixture
def page(browser: browsers.Browser, tmp_path: Path) -> browsers.Browser:
    return _open(browser, tmp_path, json.loads(whole()))


def _choose(page: browsers.Browser, of: str, value: str) -> None:
    page.choose(f'select[data-of="{of}"]', value)


def _tile(panel: Panel) -> str:
    return f'#accuracy-grid .tile[data-model="{panel.model}"][data-task="{panel.task}"]'


def _row(panel: Panel, name: str) -> str:
    table = f'table.changes[data-model="{panel.model}"][data-task="{panel.task}"]'
    return f'{table} tr[data-condition="{name}"]'


def _first(page: browsers.Browser, selector: str) -> list[str]:
    """What stands before the small type of each."""
    return page.js(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(one =>"
        "one.firstChild.textContent)"
    )


def _number(text: str) -> float:
    return float(text.removesuffix(" %").replace("\u2212", "-"))


def _tip(page: browsers.Browser) -> str:
    return str(page.js("document.querySelector('.tip:not([hidden])').textContent"))


def _press(page: browsers.Browser, selector: str, *keys: str) -> str:
    """Focus, press, and give the tip."""
    page.js(f"document.querySelector({json.dumps(selector)}).focus()")
    page.settle()  # what has the focus is scrolled to, which hides a tip
    for key in keys:
        page.press(key)
    return _tip(page)


# Where a chart's scale is: [y, what stands beside it] of its lowest and its highest line.
SCALE = """(plot => {
  const lines = [...plot.querySelectorAll(":scope > g > line")].filter(one => one.matches(".grid, .zero"));
  const ends = lines.map(one => [+one.getAttribute("y1"), +one.nextSibling.textContent]).sort((a, b) => b[0] - a[0]);
  return [ends[0], ends[ends.length - 1]];
})"""  # noqa: E501


def _at(scale: list[list[float]], y: float) -> float:
    (y0, low), (y1, high) = scale
    return low + (y0 - y) / (y0 - y1) * (high - low)


def _bars(page: browsers.Browser, panel: Panel) -> dict[str, tuple[float, float, float]]:
    """By condition the bar and the ends of its line, read back from where they stand."""
    plot = f"document.querySelector({json.dumps(_tile(panel) + ' .plot')})"
    scale = page.js(f"{SCALE}({plot})")
    drawn = page.js(
        f"[...{plot}.querySelectorAll('rect.bar')].map(one => [one.dataset.condition, "
        "+one.getAttribute('y'), +one.getAttribute('height')])"
    )
    sure = page.js(
        f"Object.fromEntries([...{plot}.querySelectorAll('.sure')].map(one => "
        "[one.dataset.condition, [+one.getAttribute('y2'), +one.getAttribute('y1')]]))"
    )
    for _, y, high in drawn:
        assert _at(scale, y + high) == pytest.approx(0, abs=0.1)  # they stand on the axis
    return {
        name: (_at(scale, y), _at(scale, sure[name][1]), _at(scale, sure[name][0]))
        for name, y, _ in drawn
    }


def _line(page: browsers.Browser, view: str, name: str, kind: str = "line") -> list[float]:
    """What a line of the attention charts says at 0, 1, ..."""
    plot = f"document.querySelector('#attention-grid .tile[data-view={view}] .plot')"
    scale = page.js(f"{SCALE}({plot})")
    points = page.js(
        f"[...{plot}.querySelectorAll('polyline.{kind}')]"
        f".find(one => one.dataset.condition === {json.dumps(name)})?.getAttribute('points') ?? ''"
    )
    return [_at(scale, float(point.split(",")[1])) for point in points.split()]


def test_made_up_answers_are_graded_as_the_graders_do() -> None:
    found = filled.made(n=20)
    able, missing = gradable(SCORES)
    assert not missing
    real, ours = grade_texts(found, able, missing).table, filled.graded(found).table
    assert set(map(filled._kind_of, found.texts["text"])) == set(filled.KINDS)
    for score in SCORES:
        assert real[score].tolist() == ours[score].tolist()
    assert real["boxed"].tolist() == ours["boxed"].tolist()


def test_the_page_is_silent_and_asks_the_network_for_nothing(page: browsers.Browser) -> None:
    page.point(_tile(panels()[PAPER]) + " .plot")
    page.point("#attention-grid .plot")
    for of, value in (("one", "1"), ("head", "L0H2"), ("score", "math-strict"), ("problem", "3")):
        _choose(page, of, value)
    page.click("#attention [data-measure=ratio]")
    page.click("#log")
    fill = "getComputedStyle(document.querySelector('rect.bar')).fill"
    light = page.js(fill)
    page.click("#theme")
    assert page.js(fill) != light
    page.size(360, 800)
    page.wait("document.querySelector('#accuracy-grid .plot').viewBox.baseVal.width < 360")
    assert page.js("document.documentElement.scrollWidth") <= 360
    assert (page.errors, page.requests) == ([], [])
    text = page.js("document.documentElement.outerHTML.split('<script')[0]")
    for missing in ("undefined", "NaN", "[object", "Infinity", "null"):
        assert missing not in text


@pytest.mark.parametrize("score", SCORES)
def test_bars_stand_at_the_panels_numbers_by_every_score(
    page: browsers.Browser, score: str
) -> None:
    _choose(page, "score", score)
    for panel in panels():
        bars = _bars(page, panel)
        assert list(bars) == panel.names
        for name, drawn in bars.items():
            share = panel.share(name, score)
            wanted = [100 * value for value in (share.mean, share.low, share.high)]
            assert drawn == pytest.approx(wanted, abs=0.1)
    caveats = page.js("[...document.querySelectorAll('.caveat')].map(one => one.innerText)")
    assert len(caveats) == (2 if score == "math-published" else 0)
    assert all("an empty box counts as right" in caveat for caveat in caveats)
    published = [panel.share("none", "math-published").mean for panel in panels()]
    assert published != [panel.share("none", "math").mean for panel in panels()]


def test_bars_have_the_figures_colours_and_chat_is_paler(page: browsers.Browser) -> None:
    own = colours(list(panels()))
    for panel in panels():
        for name in panel.names:
            bar = f'{_tile(panel)} rect.bar[data-condition="{name}"]'
            fill, opacity = page.js(
                f"(style => [style.fill, style.fillOpacity])"
                f"(getComputedStyle(document.querySelector('{bar}')))"
            )
            wanted = tuple(int(own[name][at : at + 2], 16) for at in (1, 3, 5))
            assert fill == f"rgb{wanted}"
            assert (float(opacity) < 1) == name.endswith("-chat")


def test_published_marks_stand_with_the_papers_model_and_task_alone(
    page: browsers.Browser,
) -> None:
    paper = published_for(panels()[PAPER])
    assert set(paper) == {"none", "mless", "mful", "arm"}
    tile = _tile(panels()[PAPER])
    assert page.texts(f"{tile} title") == [f"published: {value:g} %" for value in paper.values()]
    scale = page.js(f"{SCALE}(document.querySelector('{tile} .plot'))")
    tops = page.js(
        f"[...document.querySelectorAll('{tile} path.published')].map(one => "
        "+/^M\\S+ (\\S+)l/.exec(one.getAttribute('d'))[1] + 5)"
    )
    assert [_at(scale, y) for y in tops] == pytest.approx(list(paper.values()), abs=0.1)
    for other in (CHAT, SEEDS):
        assert page.count(f"{_tile(panels()[other])} .published") == 0


def test_the_arrow_keys_tell_each_bar(page: browsers.Browser) -> None:
    panel = panels()[PAPER]
    found = {change.condition: change for change in changes(list(panels()))[PAPER]}
    for steps, name in ((2, "mless"), (3, "mful"), (9, "arm")):
        page.open(Path(page.js("location.pathname")))
        tip = _press(page, f"{_tile(panel)} .plot", *["ArrowRight"] * steps)
        share = panel.share(name, "math")
        assert tip.startswith(f"{name}{panel.condition(name).says}")
        low, high = (f"{100 * end:.1f}" for end in (share.low, share.high))
        assert f"right {100 * share.mean:.1f} % {low} to {high}, n = 60" in tip
        assert f"p = {found[name].p:.2g}".replace("e-0", "e-") in tip
        assert f"published: {published_for(panel)[name]:g} %" in tip


@pytest.mark.parametrize("score", ["math", "math-published"])
def test_differences_are_the_panels(page: browsers.Browser, score: str) -> None:
    _choose(page, "score", score)
    found = changes(list(panels()), score)
    told = set()
    for place, panel in enumerate(panels()):
        own = {change.condition: change for change in found[place]}
        for name in panel.names:
            cells = dict(
                zip(
                    COLUMNS.split(),
                    _first(page, f"{_row(panel, name)} td[data-of]"),
                    strict=True,
                )
            )
            assert page.texts(f"{_row(panel, name)} .condition") == [
                name + panel.condition(name).says
            ]
            for key, of in (("right", score), ("truncated",) * 2, ("unboxed",) * 2):
                wanted = 100 * panel.share(name, of).mean
                assert _number(cells[key]) == pytest.approx(wanted, abs=0.051)
            assert _number(cells["tokens"]) == pytest.approx(panel.tokens(name), abs=0.051)
            change = own.get(name)
            if change is None:
                assert (cells["baseline"], cells["verdict"]) == ("\u2013", "the baseline")
                assert cells["difference"] == cells["p"] == cells["adjusted"] == "\u2013"
                continue
            assert (cells["baseline"], cells["verdict"]) == (
                change.baseline,
                VERDICTS[change.verdict],
            )
            told.add(cells["verdict"])
            assert _number(cells["difference"]) == pytest.approx(100 * change.mean, abs=0.051)
            low, high = page.texts(f"{_row(panel, name)} [data-of=difference] .soft")[0].split(
                " to "
            )
            wanted_ends = [100 * change.low, 100 * change.high]
            assert [_number(low), _number(high)] == pytest.approx(wanted_ends, abs=0.051)
            gained, lost = (f"{round(value, 1):g}" for value in (change.gained, change.lost))
            assert cells["gained"] == f"+{gained} \u2212{lost}"
            for key in ("p", "adjusted"):
                p = getattr(change, key)
                if p < 1e-4:
                    assert cells[key] == "<0.0001"
                else:
                    assert _number(cells[key]) == pytest.approx(p, rel=0.06)
    assert "not told from chance" in told
    heads = [text for text in page.texts("table.changes th") if text.startswith("p (")]
    assert heads == ["p (McNemar)", "p (Holm)"] * 2 + ["p (sign flips)", "p (Holm)"]


def test_helps_and_hurts_are_said(browser: browsers.Browser, tmp_path: Path) -> None:
    many = filled.panel(n=300, heads=())
    own = {change.condition: change.verdict for change in changes([many])[0]}
    assert (own["mless"], own["random"]) == ("better", "worse")
    _open(browser, tmp_path, report_data([many]))
    for name, word in (("mless", "helps"), ("random", "hurts")):
        assert browser.texts(f"{_row(many, name)} .{word} b") == [word]


def test_a_title_sorts_its_own_table_up_down_and_back(page: browsers.Browser) -> None:
    table = "#change-tables .scroll:nth-child(1)"
    column, button = f"{table} [data-of=right]", f"{table} th:nth-child(2) button"
    other = "#change-tables .scroll:nth-child(2) [data-of=right]"
    before, untouched = _first(page, column), _first(page, other)
    up = sorted(before, key=_number)
    for wanted, said in ((up, "ascending"), (up[::-1], "descending"), (before, "none")):
        page.click(button)
        assert _first(page, column) == wanted
        assert page.js(f"document.querySelector('{button}').parentNode.ariaSort") == said
        assert _first(page, other) == untouched
    assert page.js("document.activeElement.textContent") == "right"


def test_choices_of_model_and_problems_leave_the_others_out(page: browsers.Browser) -> None:
    assert page.count("#accuracy-grid .plot") == page.count("table.changes") == 3
    assert page.texts("#accuracy-grid .none") == ["Not measured."]
    _choose(page, "model", "smollm2")
    assert page.count("#accuracy-grid .plot") == page.count("table.changes") == 2
    _choose(page, "task", "math500")
    assert _first(page, "#change-tables caption span.title") == ["smollm2, math500"]
    assert page.js("document.querySelector('#changes select[data-of=model]').value") == "smollm2"


def test_lines_are_the_panels_and_follow_head_panel_and_measure(page: browsers.Browser) -> None:
    drawn = {}
    for place, head in ((PAPER, "L0H13"), (PAPER, "L0H2"), (PAPER, "mean"), (CHAT, "L0H0")):
        panel = panels()[place]
        _choose(page, "one", str(place))
        _choose(page, "head", head)
        for name in [each.name for each in panel.conditions if each.template == "raw"][:5]:
            for view in ("original", "whole"):
                own = shown(panel.lines(name, view, None if head == "mean" else head))
                line = _line(page, view, name)
                tall = own["mean"].max()
                assert line == pytest.approx(own["mean"].tolist(), abs=0.003 * tall)
                even = _line(page, view, name, "matched")
                assert even == pytest.approx(own["uniform"].tolist(), abs=0.003 * tall)
                drawn[place, head, view, name] = line
        bands = page.count("#attention-grid .tile[data-view=original] .band")
        assert (bands > 0) == (head != "mean")
    assert drawn[PAPER, "L0H13", "whole", "mless"] != drawn[PAPER, "L0H2", "whole", "mless"]
    assert (
        len(drawn[PAPER, "mean", "whole", "mless"])
        == len(drawn[PAPER, "mean", "original", "mless"]) + 55
    )
    own = panels()[CHAT].lines("mless", "whole", "L0H0")
    page.click("#attention [data-measure=ratio]")
    ratio = (shown(own)["mean"] / shown(own)["uniform"]).tolist()
    assert _line(page, "whole", "mless") == pytest.approx(ratio, abs=0.01)
    assert _line(page, "whole", "mless", "matched") == []  # one line at 1 for all
    page.click("#log")
    logs = [math.log(value) for value in ratio]
    points = page.js(
        "document.querySelector('.tile[data-view=whole] polyline.line[data-condition=mless]')"
        ".getAttribute('points')"
    )
    ys = [-float(point.split(",")[1]) for point in points.split()]
    step = (max(ys) - min(ys)) / (max(logs) - min(logs))
    assert [y - ys[0] for y in ys] == pytest.approx(
        [step * (value - logs[0]) for value in logs], abs=0.3
    )


def test_bands_are_those_of_the_head(page: browsers.Browser) -> None:
    panel = panels()[PAPER]
    for measure, low, high in (("observed", "low", "high"), ("ratio", "ratio_low", "ratio_high")):
        page.click(f"#attention [data-measure={measure}]")
        own = shown(panel.lines("mful", "original", "L0H13"))
        plot = "document.querySelector('#attention-grid .tile[data-view=original] .plot')"
        points = page.js(
            f"{plot}.querySelector('polygon.band[data-condition=mful]').getAttribute('points')"
        ).split()
        scale = page.js(f"{SCALE}({plot})")
        ends = [_at(scale, float(point.split(",")[1])) for point in points]
        wanted = own[low].tolist() + own[high].tolist()[::-1]
        assert ends == pytest.approx(wanted, abs=0.005 * max(wanted))


def test_chips_choose_conditions_and_one_always_stays(page: browsers.Browser) -> None:
    lines = (
        "[...document.querySelectorAll('.tile[data-view=original] polyline.line')]"
        ".map(one => one.dataset.condition)"
    )
    assert page.js(lines) == ["none", "mless", "mful", "gap", "random"]  # arm: on demand
    page.click("#attention-legend [data-condition=arm]")
    assert page.js(lines)[-1] == "arm"
    for name in ("none", "mful", "gap", "random", "arm", "mless"):
        page.click(f"#attention-legend [data-condition={name}]")
    assert page.js(lines) == ["mless"]
    assert page.js("document.activeElement.dataset.condition") == "mless"
    _choose(page, "one", str(CHAT))
    page.click("#attention-legend [data-condition=mless-chat]")
    assert page.js(lines) == ["mless", "mless-chat"]
    dash = "getComputedStyle(document.querySelector('polyline.chat')).strokeDasharray"
    assert page.js(dash) != "none"


def test_a_position_tells_its_token_and_numbers(page: browsers.Browser) -> None:
    panel = panels()[PAPER]
    at = 20  # a token of the question; with fillers before it one of those
    page.click("#attention-legend [data-condition=none]")  # the baseline need not be shown
    for view in ("original", "whole"):
        plot = f"#attention-grid .tile[data-view={view}] .plot"
        tip = _press(page, plot, *["ArrowRight"] * at)
        assert tip.startswith(f"position {at}")
        row = next(iter(page.texts(".tip [data-condition=mless]")))
        own = panel.lines("mless", view, "L0H13").set_index("position").loc[at]
        assert f"{own['mean']:.3g} ({own['low']:.3g} to {own['high']:.3g})" in row
        assert f", even {own['uniform']:.3g}, {own['mean'] / own['uniform']:.3g}x" in row
        tokens = panel.found.tokens["none" if view == "original" else "mless"]
        where = tip if view == "original" else row
        assert tokens[at].replace(" ", "\u2423").replace("\n", "\u21b5") in where
        assert ("inserted" in row) == (view == "whole")
        assert page.count(".tip [data-condition=none]") == 0
    assert page.count(".tile[data-view=whole] rect.inserted") == 1
    assert page.count(".tile[data-view=original] rect.inserted") == 0


@pytest.mark.parametrize("head", ["mean", "L0H2"])
def test_shifts_are_the_panels(page: browsers.Browser, head: str) -> None:
    panel = panels()[PAPER]
    _choose(page, "head", head)
    found = panel.shifts(None if head == "mean" else head)
    assert page.count("#shift-table tbody tr") == len(found) == 10
    assert {"less", "more", "open"} == {shift.verdict for shift in found}
    for shift in found:
        row = f'#shift-table tr[data-condition="{shift.condition}"][data-region="{shift.region}"]'
        cells = _first(page, f"{row} td[data-of]")
        wanted = [shift.observed, shift.uniform, shift.beyond]
        assert [_number(cell) for cell in cells[2:5]] == pytest.approx(wanted, abs=0.0051)
        assert cells[5] == SHIFTS[shift.verdict]
        (ends,) = page.texts(f"{row} [data-of=beyond] .soft")
        assert [_number(end) for end in ends.split(" to ")] == pytest.approx(
            [shift.low, shift.high], abs=0.0051
        )


def test_choices_follow_the_panel_and_stand_alike_everywhere(page: browsers.Browser) -> None:
    _choose(page, "problem", "5")
    _choose(page, "one", str(SEEDS))
    values = "[...document.querySelectorAll('select[data-of=one]')].map(one => one.value)"
    assert page.js(values) == [str(SEEDS)] * 3
    options = page.texts("#answers select[data-of=problem] option")
    assert [option.split(":")[0] for option in options] == list(panels()[SEEDS].found.prompts)
    assert page.js("document.querySelector('#answers select[data-of=problem]').value") == "0"
    assert page.texts("#answer-question blockquote")[0].endswith("on the 0th day.")


@pytest.mark.parametrize("score", SCORES)
def test_answers_stand_side_by_side_with_their_marks(page: browsers.Browser, score: str) -> None:
    _choose(page, "one", str(CHAT))
    _choose(page, "score", score)
    panel = panels()[CHAT]
    ids = list(panel.found.prompts)
    grades = panel.grades[0].table
    for number in (0, 3, 4):
        _choose(page, "problem", str(number))
        own = panel.found.problems[ids[number]]
        assert page.texts("#answer-question blockquote, .gold") == [own["question"], own["answer"]]
        assert page.count(".card") == len(panel.names)
        texts = panel.found.texts[panel.found.texts["problem"] == ids[number]]
        for row in texts.itertuples():
            card = f'.card[data-condition="{row.condition}"]'
            right = grades.loc[row.Index, score]
            assert page.texts(f"{card} .hit, {card} .miss") == ["right" if right else "wrong"]
            flags = ["cut off"] * (row.end == "length")
            flags += ["no box"] * (not grades.loc[row.Index, "boxed"])
            assert page.texts(f"{card} .flag") == flags
            assert page.texts(f"{card} .said") == [row.text]
            assert page.texts(f"{card} details blockquote") == [
                panel.found.prompts[ids[number]][row.condition]
            ]
        hits = page.count(".card .hit")
        option = page.texts("#answers select[data-of=problem] option")[number]
        assert option == f"{ids[number]}: right in {hits} of {len(panel.names)}"
    said = page.js(
        "(one => [one.tabIndex, getComputedStyle(one).overflowY])(document.querySelector('.said'))"
    )
    assert said == [0, "auto"]


def test_hostile_text_is_shown_as_text(browser: browsers.Browser, tmp_path: Path) -> None:
    bad = f"{SCRIPT} {IMAGE} {{{{ 7*7 }}}}"
    own = filled.conditions(["none", {"name": f"x{bad}", "filler": bad, "count": 9}])
    panel = filled.panel(f"smollm2 {IMAGE}", "arithmetic", own=own, n=12)
    data = report_data([panel, filled.panel("smollm2", "arithmetic", own=own, n=12)])
    for one in data["panels"]:
        for answer in one["answers"]:
            answer["question"] += bad
            for text in answer["texts"]:
                text["text"] += bad
    _open(browser, tmp_path, data, bad)
    browser.point("#accuracy-grid .plot")
    browser.point("#attention-grid .tile[data-view=whole] .plot")
    browser.click(".card summary")
    browser.click("#attention-legend .chip:nth-child(1)")
    assert browser.js("typeof window.hacked") == "undefined"
    assert browser.count("img, body script:not(#data)") == 2  # the page's own two scripts
    for section in ("accuracy", "changes", "attention", "shifts", "answers"):
        text = browser.js(f"document.getElementById('{section}').textContent")
        assert IMAGE in text
        assert SCRIPT in text
        assert "49" not in text.replace(bad, "") or "{{ 7*7 }}" in text
    for width in (1200, 360):
        browser.size(width, 800)
        browser.settle()
        assert browser.js("document.documentElement.scrollWidth") <= width
    assert (browser.errors, browser.requests) == ([], [])


def test_many_conditions_with_long_names_fit_a_phone(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    asked = [{"name": "none"}]
    asked += [
        {"name": f"averylongnameofacondition_{i}", "filler": "." * (i + 1), "count": 9}
        for i in range(11)
    ]
    own = filled.conditions(asked, chat=True)
    panel = filled.panel(own=own, n=12)
    assert len(set(colours([panel]).values())) == 12
    browser.size(360, 800)
    _open(browser, tmp_path, report_data([panel]))
    assert browser.js("document.documentElement.scrollWidth") <= 360
    assert browser.count("#accuracy-grid rect.bar") == 24
    plot = browser.js(
        "(one => [one.left, one.right])"
        "(document.querySelector('#accuracy-grid .plot').getBoundingClientRect())"
    )
    inside = browser.js(
        "[...document.querySelectorAll('#accuracy-grid .plot rect, #accuracy-grid .plot text')]"
        ".map(one => one.getBoundingClientRect()).map(one => [one.left, one.right])"
    )
    assert all(plot[0] - 1 <= left and right <= plot[1] + 1 for left, right in inside)
    assert browser.errors == []


def test_a_run_without_attention_has_no_such_sections(
    browser: browsers.Browser, tmp_path: Path
) -> None:
    run = filled.write_run(tmp_path / "run", attention_n=0)
    browser.open(run.write_report())
    assert browser.count("#accuracy-grid rect.bar") == 3
    assert browser.count(".card") == 3
    assert browser.count("#attention, #shifts, nav a[href='#attention']") == 0
    assert "not looked at" in browser.texts(".asked dd")
    assert (browser.errors, browser.requests) == ([], [])


def test_unfinished_runs_show_what_is_there(browser: browsers.Browser, tmp_path: Path) -> None:
    run = filled.write_run(tmp_path / "none", skip=1)
    browser.open(run.write_report())
    assert browser.count("#accuracy") == 0
    assert browser.texts(".status") == ["missing"]
    assert (browser.errors, browser.requests) == ([], [])
    run = filled.write_run(tmp_path / "half", skip=1, seeds=[0, 1])
    browser.open(run.write_report())
    assert browser.count("#accuracy-grid rect.bar") == 3
    assert browser.count("#attention-grid polyline.line") == 6
    assert browser.texts("caption .soft")[0] == "n = 6"
    assert (browser.errors, browser.requests) == ([], [])
