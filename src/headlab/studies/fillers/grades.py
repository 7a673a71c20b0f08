"""What answers to problems are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headlab.grading import grade
from headlab.grading.answers import last_box
from headlab.studies.cells import Cell
from headlab.studies.fillers.cell import Found
from headlab.studies.graded import Grades, Told, gradable, kept_grades, steps_of

if TYPE_CHECKING:
    from headlab.store import Run

# math: math-verify on the completion. math-strict: the last box written as the gold answer is.
# math-published: the authors' rule, which takes an empty box for right; to compare numbers only.
SCORES = ("math", "math-strict", "math-published")
BOXED = "boxed"


def grades_of(run: Run, cell: Cell, found: Found, told: Told | None = None) -> Grades:
    able, missing = gradable(SCORES)
    return kept_grades(run, cell, able, lambda _: grade_texts(found, able, missing, told))


def grade_texts(
    found: Found, able: dict[str, str], missing: dict[str, str], told: Told | None = None
) -> Grades:
    """Every completion against its answer; what has no answer to read is wrong."""
    texts = found.texts
    rows = [
        {"prediction": row.text, "gold": found.problems[row.problem]["answer"]}
        for row in texts.itertuples()
    ]
    graded: dict[str, Any] = {}
    progress = steps_of(told, len(able) * len(rows))
    for name in able:
        column = grade(rows, [name], progress=progress)[name]
        graded[name] = [float(score or 0.0) for score in column.scores]
        if name == "math":
            lost = column.timed_out | column.failed
            graded["ungraded"] = [place in lost for place in range(len(rows))]
    graded[BOXED] = [last_box(text) is not None for text in texts["text"]]
    return Grades(texts[["condition", "problem"]].assign(**graded), able, missing)
