"""What the texts of a cell are worth. Graded when a run is reported, and kept beside its cells: a
machine that can write texts need not have what it takes to grade them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headlab.errors import HeadlabError
from headlab.files import write_whole
from headlab.grading import GRADERS
from headlab.grading.registry import Options
from headlab.studies.cells import Cell

if TYPE_CHECKING:
    from headlab.store import Run

Told = Callable[[float], None]  # how much of the grading is done, from 0 to 1
_META = b"headlab"
_GRADED = 1  # to be raised when a grader's decisions change: what was kept is graded again


@dataclass(frozen=True)
class Grades:
    """Scores of a cell's texts, a row a text, in their order."""

    table: pd.DataFrame
    labels: dict[str, str]  # by score, its name with the model behind it
    missing: dict[str, str]  # by score, why it could not be graded


def gradable(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Labels of what can be graded here, and why the rest cannot."""
    able, missing = {}, {}
    for name in names:
        grader = GRADERS[name]
        try:
            grader.require(Options())
            able[name] = grader.label(Options())
        except HeadlabError as error:
            missing[name] = str(error)
    return able, missing


def kept_grades(
    run: Run,
    cell: Cell,
    able: dict[str, str],
    make: Callable[[Grades | None], Grades],
    judged: int = 1,
) -> Grades:
    """As they were kept, or graded now where they were not, or more can be graded than then.

    `make` is given what was kept, if anything: scores with the same label need not be made again.
    `judged` is the version of what a study decides by itself, to be raised when that changes.
    """
    path = run.folder / "grades" / f"{cell.id}.parquet"
    about = {"of": hashlib.sha256(run.path_of(cell).read_bytes()).hexdigest(), "graders": _GRADED}
    kept, then = _read(path, about)
    same = kept is not None and then == judged
    if kept is not None and same and all(kept.labels.get(n) == label for n, label in able.items()):
        return kept
    grades = make(kept)
    _write(grades, path, {**about, "judged": judged})
    return grades


def part_of(told: Told | None, number: int, parts: int) -> Told | None:
    """The same for one of several parts.

    >>> seen = []
    >>> part_of(seen.append, 1, 2)(0.5)
    >>> seen
    [0.75]
    """
    return None if told is None else lambda share: told((number + share) / parts)


def steps_of(told: Told | None, total: int) -> Callable[[int], None] | None:
    """The same in steps, of which there are so many."""
    if told is None:
        return None
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        told(min(1.0, done / max(1, total)))

    return advance


def _read(path: Path, wanted: dict[str, Any]) -> tuple[Grades | None, int]:
    """What was kept for this very cell, and the version of the study's own decisions."""
    try:
        table = pq.read_table(path)
        about = json.loads((table.schema.metadata or {})[_META])
        if any(about[key] != value for key, value in wanted.items()):
            return None, 0
        return Grades(table.to_pandas(), about["labels"], about["missing"]), about["judged"]
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None, 0


def _write(grades: Grades, path: Path, about: dict[str, Any]) -> None:
    about = {**about, "labels": grades.labels, "missing": grades.missing}
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
