"""The study's figures and report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headlab.files import write_whole
from headlab.report import render
from headlab.studies.facts import asked, cite, facts, run_warnings
from headlab.studies.fillers.data import SCORES_SAY, report_data
from headlab.studies.fillers.figure import (
    draw_all,
    head_label,
    shown_head,
)
from headlab.studies.fillers.panels import (
    Change,
    Panel,
    Share,
    Shift,
    changes,
    read_panels,
)
from headlab.wording import count, percent, points

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.fillers.spec import FillersSpec

_PAPER = ("Meaningless Tokens, Meaningful Gains", "2510.01032", "2025")
_FEW = 100  # problems
_WEAK = 0.05  # right without fillers: with less, accuracy says little
_MANY = 0.2  # answers that are cut off, or without a box
_percent, _points = partial(percent, digits=1), partial(points, digits=1)
_LONG = 6  # sentences that open a page


def write_report(run: Run) -> Path:
    """Figures and report.html of a run, finished or not; gives the page's path."""
    spec: FillersSpec = run.spec  # type: ignore[assignment]
    panels = read_panels(run)
    figures = draw_all(run, panels) if panels else []
    page = render(
        "fillers" if panels else "frame",
        report_data(panels),
        title="Do filler tokens before a question help, and where does attention go?",
        lead=_lead(panels),
        asked=[
            *asked(spec),
            ("conditions", ", ".join(_names(spec))),
            ("tokens chosen", _decoding(spec)),
            ("problems", "all" if spec.n is None else str(spec.n)),
            ("at most", f"{spec.max_new_tokens} tokens an answer"),
            (
                "attention",
                f"of {', '.join(spec.heads)} on {count(spec.attention_n, 'problem')}"
                if spec.attention_n
                else "not looked at",
            ),
            ("data", "built in" if spec.data is None else Path(spec.data).name),
        ],
        warnings=_warnings(run, spec, panels),
        examples=[],
        figures=figures,
        **facts(run),
        cite=cite(*_PAPER),
    )
    path = run.folder / "report.html"
    write_whole(path, page)
    return path.resolve()


def _names(spec: FillersSpec) -> list[str]:
    return [str(condition["name"]) for condition in spec.settings()["conditions"]]


def _decoding(spec: FillersSpec) -> str:
    if spec.temperature is None:
        return "greedily"
    if spec.temperature == "model":
        return "as the model's own settings say"
    return f"at temperature {spec.temperature:g}, top-p {spec.top_p:g}"


# --- what is found, in words ---


def findings(run: Run) -> list[str]:
    """A sentence for each model, problem set and condition, or one for all; one for attention."""
    return _lead(read_panels(run))


def _lead(panels: list[Panel]) -> list[str]:
    found = changes(panels)
    short = len(panels) > _LONG // 2  # each has a sentence of its own besides
    told = []
    for place, panel in enumerate(panels):
        sentences = [_sentence(panel, change) for change in found[place]]
        if sum(len(own) for own in found.values()) > _LONG:
            sentences = [_summary(panel, found[place])]
        told += sentences
        if (sentence := _attention_sentence(panel)) is not None and not short:
            told.append(sentence)
    if short and (sentence := _attention_summary(panels)) is not None:
        told.append(sentence)
    return told


def _sentence(panel: Panel, change: Change) -> str:
    score = panel.scores[0]
    before, after = (panel.share(name, score) for name in (change.baseline, change.condition))
    said = {
        "better": f"{change.condition} helps",
        "worse": f"{change.condition} hurts",
        "open": "no effect can be told from chance",
    }[change.verdict]
    return (
        f"{_of(panel)}: right {_share(before)} with {change.baseline}, {_share(after)} with "
        f"{change.condition}; difference {_points(change.mean)} points ({_points(change.low)} to "
        f"{_points(change.high)}), p = {change.p:.2g}, adjusted {change.adjusted:.2g}: {said}."
    )


def _summary(panel: Panel, own: list[Change]) -> str:
    """All conditions of a panel in one sentence: those that do something by their numbers."""
    base = own[0].baseline if own else panel.names[0]
    told = f"{_of(panel)}: right {_share(panel.share(base, panel.scores[0]))} with {base}"
    parts = [
        f"{change.condition} {'helps' if change.verdict == 'better' else 'hurts'}, "
        f"{_points(change.mean)} points ({_points(change.low)} to {_points(change.high)})"
        + ("" if change.baseline == base else f" against {change.baseline}")
        for change in own
        if change.verdict != "open"
    ]
    rest = [change.condition for change in own if change.verdict == "open"]
    if rest:
        every = len(rest) == len(own) > 1
        parts.append(
            f"{'none of ' if every else ''}{', '.join(rest)} can{'' if every else 'not'} "
            "be told from chance"
        )
    return f"{told}; {'; '.join(parts)}."


def _attention_sentence(panel: Panel) -> str | None:
    """Whether what fillers do to attention is more than having more tokens does."""
    if not panel.heads:
        return None
    head = shown_head(panel)
    found = _told(panel, head)
    if not found:
        return None
    label = f"{_of(panel)}, {head_label(panel, head)}"
    if len(found) > _LONG // 2 + 1:
        seen, even = ([getattr(s, name) for s in found] for name in ("observed", "uniform"))
        return (
            f"{label}: attention on the question's tokens becomes "
            f"{min(seen):.2f}x to {max(seen):.2f}x, even attention {min(even):.2f}x to "
            f"{max(even):.2f}x; {_counted([shift.verdict for shift in found])}."
        )
    said = {
        "less": "less than even attention would leave",
        "more": "more than that",
        "open": "as much",
    }
    parts = [
        f"{shift.observed:.2f}x with {shift.condition}{_against(shift)} (even attention "
        f"{shift.uniform:.2f}x; "
        f"beyond that {shift.beyond:.2f}x, {shift.low:.2f} to {shift.high:.2f}: "
        f"{said[shift.verdict]})"
        for shift in found
    ]
    return f"{label}: attention on the question's tokens becomes {'; '.join(parts)}."


def _attention_summary(panels: list[Panel]) -> str | None:
    """The same of many panels: how often which."""
    verdicts = [
        shift.verdict
        for panel in panels
        if panel.heads
        for shift in _told(panel, shown_head(panel))
    ]
    if not verdicts:
        return None
    return (
        "Attention on the question's tokens, conditions x models x problem sets: "
        f"{_counted(verdicts)}."
    )


def _told(panel: Panel, head: str | None) -> list[Shift]:
    """On the question, where the condition can change it: what comes after it cannot, nor can ARM
    before the second layer."""
    return [
        shift
        for shift in panel.shifts(head)
        if shift.region == "question"
        and panel.condition(shift.condition).position != "end"
        and panel.condition(shift.condition).arm is None
        and not panel.condition(shift.condition).is_plain
    ]


def _against(shift: Shift) -> str:
    return "" if shift.baseline == "none" else f" against {shift.baseline}"


def _counted(verdicts: list[str]) -> str:
    """How often which."""
    said = {
        "less": "less than even attention leaves",
        "more": "more than even attention leaves",
        "open": "as much as even attention leaves",
    }
    return ", ".join(
        f"{word} in {verdicts.count(verdict)} of {len(verdicts)}"
        for verdict, word in said.items()
        if verdict in verdicts
    )


def _of(panel: Panel) -> str:
    return f"{panel.model}, {panel.task}"


def _share(share: Share) -> str:
    return f"{_percent(share.mean)} ({_percent(share.low)} to {_percent(share.high)})"


def warnings(run: Run) -> list[str]:
    return _warnings(run, run.spec, read_panels(run))  # type: ignore[arg-type]


def _warnings(run: Run, spec: FillersSpec, panels: list[Panel]) -> list[str]:
    told = run_warnings(run, any(found.backed_off for each in panels for found in each.founds))
    n = [len(panel.problems) for panel in panels]
    if n and min(n) < _FEW:
        told.append(
            f"A quick look: {count(min(n), 'problem')}, where one run over 500 has a standard "
            "error of 2 points, the size of the published effect."
        )
    kinds = {str(condition["kind"]) for condition in spec.settings()["conditions"]}
    controls = {"gap": "gap", "random-tokens": "random"}
    gone = [name for kind, name in controls.items() if kind not in kinds]
    if "filler" in kinds and gone:
        told.append(
            f"Without the control{'s' if len(gone) > 1 else ''} {' and '.join(gone)}, an effect "
            "need not be of the filler: more tokens and further positions come with it."
        )
    if len(spec.seeds) > 1 and spec.temperature is None:
        told.append(
            "Tokens are chosen greedily: seeds differ in random tokens, random places and ARM "
            "alone, all other answers are the same again."
        )
    for panel in panels:
        score = panel.scores[0]
        if score != "math":
            told.append(f"{_of(panel)}: scored by {score} ({SCORES_SAY[score]}).")
        plain = [name for name in panel.names if panel.baseline(name) is None]
        right = {name: panel.share(name, score).mean for name in plain}
        for name, share in right.items():
            if share < _WEAK:
                told.append(
                    f"{_of(panel)}: right on {_percent(share)} with {name}; where hardly anything "
                    "is right, fillers cannot show what they do."
                )
        for kind, said in (("truncated", "cut off"), ("unboxed", "without a box")):
            many = {
                name: panel.share(name, kind).mean
                for name in panel.names
                if panel.share(name, kind).mean > _MANY
            }
            if many:
                each = ", ".join(f"{name} {_percent(share)}" for name, share in many.items())
                told.append(f"{_of(panel)}: answers {said}: {each}.")
        if panel.ungraded:
            told.append(
                f"{_of(panel)}: {count(panel.ungraded, 'answer')} could not be graded (too "
                "long, or the grader broke down); counted as wrong."
            )
        told += _compared(panel) + _written(panel, spec)
        for reason, number in panel.found.left_out.items():
            told.append(f"{_of(panel)}: left out {number} {reason}.")
    missing = {
        name: why for panel in panels for each in panel.grades for name, why in each.missing.items()
    }
    for name, why in missing.items():
        told.append(f"Not graded: {name} ({why}); headlab report grades it where it can.")
    return told


def _compared(panel: Panel) -> list[str]:
    """Comparisons in which more than the filler differs."""
    told = []
    for name in panel.names:
        own, base = panel.condition(name), panel.baseline(name)
        if base is None or own.is_plain:
            continue
        other = panel.condition(base)
        if not other.is_plain:
            told.append(
                f"{_of(panel)}: there is no condition without a filler for {name}; it is compared "
                f"with {base}."
            )
        elif (own.temperature, own.top_p) != (other.temperature, other.top_p):
            told.append(f"{_of(panel)}: {name} is decoded otherwise than {base}, its baseline.")
    return told


def _written(panel: Panel, spec: FillersSpec) -> list[str]:
    """What is odd about the answers."""
    told = []
    empty = {name: panel.share(name, "empty").mean for name in panel.names}
    many = {name: share for name, share in empty.items() if share > _MANY}
    if many:
        each = ", ".join(f"{name} {_percent(share)}" for name, share in many.items())
        raw = any(panel.condition(name).template == "raw" for name in many)
        hint = "; the model may need its chat template (--chat)" if raw and not spec.chat else ""
        told.append(f"{_of(panel)}: empty answers: {each}{hint}.")
    decoding = panel.found.decoding
    if decoding["max_new_tokens"] < spec.max_new_tokens:
        told.append(
            f"{_of(panel)}: answers have {decoding['max_new_tokens']} tokens at most, not "
            f"{spec.max_new_tokens}: the model reads no more."
        )
    if unheeded := decoding.get("unheeded"):
        each = ", ".join(f"{name} = {value}" for name, value in unheeded.items())
        told.append(f"{_of(panel)}: of the model's own settings, not heeded: {each}.")
    return told


# --- two runs side by side ---


def compare(one: Run, other: Run) -> list[dict[str, str]]:
    """A row for each model, problem set and condition of both."""
    rows = []
    for a in read_panels(one):
        for b in read_panels(other):
            if (a.source, a.task) != (b.source, b.task) or a.scores[0] != b.scores[0]:
                continue
            for name in [name for name in a.names if name in b.names]:
                found = [panel.change(name, panel.scores[0]) for panel in (a, b)]
                row = {"model": a.model, "task": a.task, "condition": name}
                row["right"] = "; ".join(_share(p.share(name, p.scores[0])) for p in (a, b))
                row["difference"] = "; ".join(
                    "-" if each is None else f"{_points(each.mean)} (p = {each.p:.2g})"
                    for each in found
                )
                row["truncated"] = "; ".join(
                    _percent(p.share(name, "truncated").mean) for p in (a, b)
                )
                rows.append(row)
    return rows
