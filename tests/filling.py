"""The fillers study on a tiny model: quick settings, and what a cell finds."""

from __future__ import annotations

import copy
from pathlib import Path

from tiny import lettered

from headlab import Model
from headlab.studies.fillers import cell as cells
from headlab.studies.fillers.cell import Found, from_record
from headlab.studies.fillers.grades import grade_texts
from headlab.studies.fillers.panels import Panel
from headlab.studies.spec import make_spec

OWN = [
    "none",
    "mless",
    {"name": "late", "filler": "e", "count": 7, "position": "end"},
    "gap",
    "random",
    "arm",
]
QUICK = {"conditions": OWN, "n": 4, "max_new_tokens": 6, "attention_n": 3, "size": "smoke"}


def fresh() -> Model:
    """One that may be changed."""
    return Model(copy.deepcopy(lettered().hf), lettered().tokenizer, name="lettered")


def cell_of(**changes):
    spec = make_spec({"study": "fillers", "models": ["smollm2"], **QUICK, **changes})
    return spec.cells()[0]


def find(model: Model, scratch: Path, heard: list[int] | None = None, **changes) -> Found:
    """What a cell finds, through its record and back."""
    progress = [].append if heard is None else heard.append
    return from_record(cells.run_cell(cell_of(**changes), model, progress, scratch))


def panel_from(founds: list[Found], **named) -> Panel:
    grades = [grade_texts(found, {"math-strict": "math-strict"}, {}) for found in founds]
    return Panel("m", "m", "arithmetic", list(range(len(founds))), founds, grades, **named)
