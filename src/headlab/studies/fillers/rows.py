"""The study's numbers as rows of CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headlab.studies.fillers.panels import Panel, changes, published_for


def share_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    rows = []
    for panel in panels:
        marks = published_for(panel)
        for condition in panel.conditions:
            for score in (*panel.scores, "truncated", "unboxed"):
                share = panel.share(condition.name, score)
                rows.append(
                    {
                        "model": panel.model,
                        "task": panel.task,
                        "condition": condition.name,
                        "says": condition.says,
                        "score": score,
                        **share._asdict(),
                        "seeds": len(panel.seeds),
                        "tokens": panel.tokens(condition.name),
                        "published": marks.get(condition.name, "")
                        if score == panel.scores[0]
                        else "",
                    }
                )
    return rows


def change_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    scores = dict.fromkeys(score for panel in panels for score in panel.scores)
    return [
        {"model": panel.model, "task": panel.task, "score": score, **vars(change)}
        for score in scores
        for place, own in changes(panels, score).items()
        for panel in [panels[place]]
        for change in own
    ]


def attention_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    return [
        {"model": panel.model, "task": panel.task, **row}
        for panel in panels
        for row in panel.found.attention.to_dict("records")
    ]


def part_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    rows = []
    for panel in panels:
        for head in (None, *(str(head) for head in panel.heads)):
            for shift in panel.shifts(head):
                told = {"model": panel.model, "task": panel.task, "head": head or "mean"}
                rows.append({**told, **vars(shift)})
    return rows


def region_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """What each part of the prompt receives, the first token and the filler among them."""
    return [
        {"model": panel.model, "task": panel.task, **row}
        for panel in panels
        for row in panel.parts().to_dict("records")
    ]
