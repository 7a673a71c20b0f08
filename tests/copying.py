"""The masking study on a model in which one head copies: its questions, and quick settings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from planted import COPIER, asked_of_copier, copier, save_copier, save_questions

from headlab import Model
from headlab.studies.masking import cell as cells
from headlab.studies.masking.cell import Found, from_record
from headlab.studies.spec import make_spec

BOTH = ["retrieval", "math-calculation"]
NUMBER = COPIER.layer * 4 + COPIER.head
QUICK = {"functions": BOTH, "ks": [1], "draws": 2, "max_new_tokens": 10, "updates": 2}
QUICK |= {"train": 6, "n": 3, "epochs": 3}


def make_lab(folder: Path) -> Path:
    """A model in which one head copies names, and questions that it answers."""
    save_copier(folder / "m")
    save_questions(folder / "data", asked_of_copier(24, 12))
    return folder


def spec_of(lab: Path, **changes):
    given = {"models": [str(lab / "m")], "data": str(lab / "data"), **QUICK}
    return make_spec({"study": "masking", **given, **changes})


def cell_of(lab: Path, **changes):
    return spec_of(lab, **changes).cells()[0]


def find(lab: Path, scratch: Path, model: Model | None = None, **changes) -> Found:
    """What a cell finds, through its record and back."""
    record = cells.run_cell(cell_of(lab, **changes), model or copier(), lambda n: None, scratch)
    return from_record(record)


def unmasked(texts: pd.DataFrame) -> pd.Series:
    return texts[texts["kind"] == "none"].set_index("item")["text"]
