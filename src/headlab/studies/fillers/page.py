"""The study's figures and report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.files import write_whole
from headlab.report import render, rounded
from headlab.studies.facts import asked, cite, facts, run_warnings
from headlab.studies.fillers.figure import (
    colours,
    decoded,
    draw_all,
    head_label,
    shown,
    shown_head,
)
from headlab.studies.fillers.grades import BOXED
from headlab.studies.fillers.panels import (
    Change,
    Panel,
    Share,
    Shift,
    changes,
    published,
    published_for,
    read_panels,
)
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.fillers.spec import FillersSpec

_PAPER = ("Meaningless Tokens, Meaningful Gains", "2510.01032", "2025")
_FEW = 100  # problems
_WEAK = 0.05  # right without fillers: with less, accuracy says little
_MANY = 0.2  # answers that are cut off, or without a box
_LONG = 6  # sentences that open a page
_HEADS = 64  # that the page shows one by one; the CSV files have all
_SCORES = {
    "math": "math-verify on the completion",
    "math-strict": "the last box, written as the answer is",
    "math-published": "the authors' rule (an empty box counts as right); to compare numbers only",
}


def write_report(run: Run) -> Path:
    """Figures and report.html of a run, finished or not; gives the page's path."""
    spec: FillersSpec = run.spec  # type: ignore[assignment]
    panels = read_panels(run)
    figures = draw_all(run, panels) if panels else []
    page = render(
        "fillers" if panels else "frame",
        _data(panels),
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


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}" if math.isfinite(value) else "?"


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
    for panel in panels:
        score = panel.scores[0]
        if score != "math":
            told.append(f"{_of(panel)}: scored by {score} ({_SCORES[score]}).")
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


# --- the report's data ---


def _data(panels: list[Panel]) -> dict[str, Any]:
    by_score = {
        score: changes(panels, score)
        for score in dict.fromkeys(score for panel in panels for score in panel.scores)
    }
    numbers = published()
    return {
        "scores": {name: _SCORES[name] for name in by_score},
        "colours": colours(panels),
        "published": {"source": numbers["source"], "note": numbers["note"]},
        "panels": [
            _panel(panel, {score: found[place] for score, found in by_score.items()})
            for place, panel in enumerate(panels)
        ],
    }


def _panel(panel: Panel, found: dict[str, list[Change]]) -> dict[str, Any]:
    heads = [str(head) for head in panel.heads][:_HEADS]
    return {
        "model": panel.model,
        "task": panel.task,
        "n": len(panel.problems),
        "seeds": panel.seeds,
        "decoding": decoded(panel),
        "scores": panel.scores,
        "conditions": [_condition(panel, name, found) for name in panel.names],
        "heads": heads,
        "head": shown_head(panel),
        "prompts": int(panel.found.attention["prompts"].max()) if heads else 0,
        "attention": _attention(panel),
        "shifts": {
            head or "mean": [_shift(shift) for shift in panel.shifts(head)]
            for head in ((None, *heads) if heads else ())
        },
        "tokens": _tokens(panel),
        "answers": _answers(panel),
    }


def _condition(panel: Panel, name: str, found: dict[str, list[Change]]) -> dict[str, Any]:
    condition = panel.condition(name)
    return {
        "name": name,
        "says": condition.says,
        "inserts": condition.inserts,
        "template": condition.template,
        "arm": condition.arm is not None,
        "inserted": _inserted(panel, name),
        "baseline": panel.baseline(name),
        "shares": {
            score: rounded(panel.share(name, score)[:3])
            for score in (*panel.scores, "truncated", "unboxed")
        },
        "tokens": rounded([panel.tokens(name)])[0],
        "changes": {
            score: next((_change(each) for each in own if each.condition == name), None)
            for score, own in found.items()
        },
        "published": published_for(panel).get(name),
    }


def _change(change: Change) -> dict[str, Any]:
    names = ("mean", "low", "high", "gained", "lost", "p", "adjusted")
    numbers = rounded([getattr(change, name) for name in names])
    return {**dict(zip(names, numbers, strict=True)), "verdict": change.verdict}


def _shift(shift: Shift) -> dict[str, Any]:
    names = ("observed", "uniform", "beyond", "low", "high")
    numbers = dict(zip(names, rounded([getattr(shift, name) for name in names]), strict=True))
    return {
        "condition": shift.condition,
        "baseline": shift.baseline,
        "region": shift.region,
        "verdict": shift.verdict,
        "n": shift.n,
        **numbers,
    }


def _attention(panel: Panel) -> dict[str, Any]:
    """By head, condition and view. What looks even is the same of all heads but for those that
    see a window only: those alone tell it again."""
    heads = [str(head) for head in panel.heads]
    found: dict[str, Any] = {}
    for head in (None, *heads) if heads else ():
        found[head or "mean"] = {
            name: {
                view: _lines(panel, name, view, head)
                for view in (
                    ("original", "whole") if panel.condition(name).inserts else ("original",)
                )
            }
            for name in panel.names
        }
    for head in heads:
        for name, views in found[head].items():
            for view, lines in views.items():
                if lines["uniform"] == found["mean"][name][view]["uniform"]:
                    del lines["uniform"]
    return found


def _lines(panel: Panel, name: str, view: str, head: str | None) -> dict[str, Any]:
    """From position 0 on. The ends of a band in thousandths of its middle, to be short."""
    lines = shown(panel.lines(name, view, head)).set_index("position")
    lines = lines.reindex(range(int(lines.index.max()) + 1 if len(lines) else 0))
    known: dict[str, Any] = {key: rounded(lines[key], 4) for key in ("mean", "uniform")}
    if head is None:
        return known
    for key in ("low", "high", "ratio_low", "ratio_high"):
        of = "ratio" if key.startswith("ratio") else "mean"
        share = 1000 * lines[key] / lines[of]
        known[key] = [round(value) if math.isfinite(value) else None for value in share]
    return known


def _tokens(panel: Panel) -> dict[str, Any]:
    """Of the first prompt: what all conditions of a template share, and with what is inserted."""
    plain = {each.template: each.name for each in reversed(panel.conditions) if not each.inserts}
    return {
        "original": {template: panel.found.tokens[name] for template, name in plain.items()},
        "whole": {
            each.name: panel.found.tokens[each.name] for each in panel.conditions if each.inserts
        },
    }


def _inserted(panel: Panel, name: str) -> list[int] | None:
    """Where what is inserted starts and ends, if that is the same in every prompt."""
    condition, tokens = panel.condition(name), panel.found.tokens
    if not condition.inserts or condition.position in ("end", "random"):
        return None
    plain = _tokens(panel)["original"].get(condition.template)
    if plain is None or len(tokens[name]) != len(plain) + condition.inserts:
        return None
    whole, wide = tokens[name], condition.inserts
    for start in range(len(plain) + 1):
        if whole[:start] + whole[start + wide :] == plain:
            return [start, start + wide]
    return None


def _answers(panel: Panel) -> list[dict[str, Any]]:
    """Some problems with the answers under every condition, of the first seed."""
    found, grades = panel.found, panel.grades[0].table
    shown_ = []
    for id, prompts in found.prompts.items():
        own = found.texts.index[found.texts["problem"] == id]
        shown_.append(
            {
                "id": id,
                **found.problems[id],
                "texts": [
                    {
                        "condition": row.condition,
                        "prompt": prompts[row.condition],
                        "text": row.text,
                        "end": row.end,
                        "tokens": int(row.tokens),
                        "boxed": bool(grades.loc[row.Index, BOXED]),
                        "right": {
                            score: bool(grades.loc[row.Index, score]) for score in panel.scores
                        },
                    }
                    for row in found.texts.loc[own].itertuples()
                ],
            }
        )
    return shown_


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
