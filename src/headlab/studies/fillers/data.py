"""What the report's page is fed with."""

from __future__ import annotations

import math
from typing import Any

from headlab.report import rounded
from headlab.studies.fillers.figure import (
    colours,
    decoded,
    shown,
    shown_head,
)
from headlab.studies.fillers.grades import BOXED
from headlab.studies.fillers.panels import (
    Change,
    Panel,
    Shift,
    changes,
    published,
    published_for,
)

_HEADS = 64  # that the page shows one by one; the CSV files have all
SCORES_SAY = {
    "math": "math-verify on the completion",
    "math-strict": "the last box, written as the answer is",
    "math-published": "the authors' rule (an empty box counts as right); to compare numbers only",
}


def report_data(panels: list[Panel]) -> dict[str, Any]:
    by_score = {
        score: changes(panels, score)
        for score in dict.fromkeys(score for panel in panels for score in panel.scores)
    }
    numbers = published()
    return {
        "scores": {name: SCORES_SAY[name] for name in by_score},
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
