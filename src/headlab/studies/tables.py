"""A cell's long-form table: many arrays of numbers in one, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

_NUMBERS, _WORDS = ("order", "k"), ("head", "example")


def part(name: str, values: Tensor, **columns: Any) -> pd.DataFrame:
    """The rows of one array: its name, where each number stands (-1 or "" where that says
    nothing), and the number."""
    numbers = {
        column: np.broadcast_to(columns.get(column, -1), len(values)).astype("int32")
        for column in _NUMBERS
    }
    words = {column: columns.get(column, "") for column in _WORDS}
    return pd.DataFrame({"part": name, **numbers, **words, "value": values.double().numpy()})


def joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    table = pd.concat(parts, ignore_index=True)
    for column in ("part", *_WORDS):
        table[column] = table[column].astype("category")
    return table


def split(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return dict(list(table.groupby("part", observed=True)))


def values_of(rows: pd.DataFrame) -> Tensor:
    return torch.from_numpy(rows["value"].to_numpy(dtype=np.float64).copy())
