"""What a masked model's answers are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from headlab.grading import grade
from headlab.grading.answers import find_answer
from headlab.studies.cells import Cell
from headlab.studies.graded import Grades, Told, gradable, kept_grades, steps_of
from headlab.studies.masking.cell import Found
from headlab.studies.masking.judging import JUDGED, judge

if TYPE_CHECKING:
    from headlab.store import Run

# accuracy: of calculations the number, else most of the gold answer's words. published: the paper's
# rule. quality: COMET where a checkpoint is here, else chrF, with the unmasked answer.
ACCURACY = "accuracy"
OTHERS = ("published", "quality")


def grades_of(run: Run, cell: Cell, found: Found, told: Told | None = None) -> Grades:
    able, missing = gradable(OTHERS)

    def make(kept: Grades | None) -> Grades:
        return grade_texts(found, able, missing, told, kept)

    return kept_grades(run, cell, able, make, JUDGED)


def grade_texts(
    found: Found,
    able: dict[str, str],
    missing: dict[str, str],
    told: Told | None = None,
    kept: Grades | None = None,
) -> Grades:
    """Every text against its gold answer and the unmasked text; the same three are graded once,
    and what was kept with the same label is not graded again."""
    texts = found.texts
    unmasked = texts[texts["kind"] == "none"].set_index("item")["text"]
    rows = pd.DataFrame(
        {
            "function": texts["asked"],
            "prediction": texts["text"],
            "gold": texts["item"].map({id: each["answer"] for id, each in found.items.items()}),
            "unmasked": texts["item"].map(unmasked),
        }
    )
    once = rows.drop_duplicates(ignore_index=True)
    graded: dict[str, Any] = {
        ACCURACY: [
            float(judge(row.function, row.prediction, row.gold)) for row in once.itertuples()
        ]
    }
    asked = once.drop(columns="function").to_dict("records")
    known = [name for name in able if kept is not None and kept.labels.get(name) == able[name]]
    todo = [name for name in able if name not in known]
    progress = steps_of(told, len(todo) * len(asked))
    for name in todo:
        graded[name] = grade(asked, [name], progress=progress)[name].scores
    graded["in_json"] = [find_answer(text) is not None for text in once["prediction"]]
    table = rows.merge(once.assign(**graded), how="left", on=list(rows.columns))
    for name in known:
        assert kept is not None
        table[name] = kept.table[name]
    return Grades(table[[ACCURACY, *able, "in_json"]], {ACCURACY: ACCURACY, **able}, missing)
