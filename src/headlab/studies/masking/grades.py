"""What the texts of a cell are worth. Graded when a run is reported, and kept beside its cells: a
machine that can write texts need not have what it takes to grade them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headlab.errors import HeadlabError
from headlab.files import write_whole
from headlab.grading import GRADERS, grade
from headlab.grading.answers import find_answer
from headlab.grading.registry import Options
from headlab.studies.cells import Cell
from headlab.studies.masking.cell import Found
from headlab.studies.masking.judging import judge

if TYPE_CHECKING:
    from headlab.store import Run

# accuracy: of calculations the number, else most of the gold answer's words. published: the paper's
# rule. quality: COMET where a checkpoint is here, else chrF, with the unmasked answer.
ACCURACY = "accuracy"
OTHERS = ("published", "quality")
_META = b"headlab"
_GRADED = 1  # to be raised when a grader's decisions change: what was kept is graded again


@dataclass(frozen=True)
class Grades:
    """Scores of a cell's texts, a row a text, in their order."""

    table: pd.DataFrame  # accuracy, in_json, and what could be graded of published and quality
    labels: dict[str, str]  # by score, its name with the model behind it
    missing: dict[str, str]  # by score, why it could not be graded


def grades_of(
    run: Run, cell: Cell, found: Found, progress: Callable[[int], None] | None = None
) -> Grades:
    """As they were kept, or graded now where they were not, or more can be graded than then."""
    path = run.folder / "grades" / f"{cell.id}.parquet"
    of = f"{_GRADED} {hashlib.sha256(run.path_of(cell).read_bytes()).hexdigest()}"
    able, missing = _able()
    kept = _read(path, of)
    if kept is not None and all(kept.labels.get(name) == label for name, label in able.items()):
        return kept
    grades = grade_texts(found, able, missing, progress)
    _write(grades, path, of)
    return grades


def _able() -> tuple[dict[str, str], dict[str, str]]:
    """Labels of what can be graded here, and why the rest cannot."""
    able, missing = {}, {}
    for name in OTHERS:
        grader = GRADERS[name]
        try:
            grader.require(Options())
            able[name] = grader.label(Options())
        except HeadlabError as error:
            missing[name] = str(error)
    return able, missing


def grade_texts(
    found: Found,
    able: dict[str, str],
    missing: dict[str, str],
    progress: Callable[[int], None] | None = None,
) -> Grades:
    """Every text against its gold answer and the unmasked text; the same three are graded once."""
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
    for name in able:
        graded[name] = grade(asked, [name], progress=progress)[name].scores
    graded["in_json"] = [find_answer(text) is not None for text in once["prediction"]]
    table = rows.merge(once.assign(**graded), how="left", on=list(rows.columns))
    return Grades(table[list(graded)], {ACCURACY: ACCURACY, **able}, missing)


def _read(path: Any, of: str) -> Grades | None:
    try:
        table = pq.read_table(path)
        about = json.loads((table.schema.metadata or {})[_META])
        if about["of"] != of:
            return None
        return Grades(table.to_pandas(), about["labels"], about["missing"])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None


def _write(grades: Grades, path: Any, of: str) -> None:
    about = {"of": of, "labels": grades.labels, "missing": grades.missing}
    table = pa.Table.from_pandas(grades.table, preserve_index=False)
    buffer = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({_META: json.dumps(about).encode()}),
        buffer,
        compression="zstd",
    )
    with contextlib.suppress(OSError):  # one who only looks at a run may not write to it
        path.parent.mkdir(exist_ok=True)
        write_whole(path, buffer.getvalue())
