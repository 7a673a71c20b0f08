"""A cell: the unit of work, of storage and of resuming. One model, task, method and seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Cell:
    """One square of a study's grid, with the settings that bear on its numbers."""

    study: str
    model: str
    task: str
    method: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def id(self) -> str:
        """A file name: readable, of letters, digits and dashes alone, and of this very cell.

        >>> Cell("circuits", "../../etc", "ioi", "patch", 0).id
        'etc-ioi-patch-0-9ee4e869'
        """
        told = [self.study, self.model, self.task, self.method, self.seed, self.settings]
        print_ = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
        words = (short(self.model), short(self.task), self.method, str(self.seed))
        return "-".join([*(slug(word) for word in words), print_])

    @property
    def says(self) -> str:
        """How people read it."""
        return f"{short(self.model)}, {short(self.task)}, {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class Record:
    """What a cell found: a long-form table, and what it takes to read it."""

    table: pd.DataFrame
    about: dict[str, Any]


def short(name: str) -> str:
    """A model or task as a figure calls it: of a path its last part.

    >>> short("/data/models/sparse-gpt2"), short("openai-community/gpt2")
    ('sparse-gpt2', 'openai-community/gpt2')
    """
    return PurePath(name).name if name.startswith(("/", "~", ".")) or "\\" in name else name


def labels(names: Sequence[str]) -> dict[str, str]:
    """A short name for each, no two alike: of paths as many last parts as it takes, as many for
    those that lie beside them.

    >>> labels(["/a/x/m", "/b/x/m", "gpt2"])
    {'/a/x/m': 'a/x/m', '/b/x/m': 'b/x/m', 'gpt2': 'gpt2'}
    >>> labels(["/a/level-10", "/a/level-3", "/b/level-10"]).values()
    dict_values(['a/level-10', 'a/level-3', 'b/level-10'])
    """
    found = {name: short(name) for name in names}
    parts = 1
    while len(set(found.values())) < len(found) and parts < 50:
        parts += 1
        given = list(found.values())
        folders = {PurePath(name).parent for name in names if given.count(found[name]) > 1}
        for name, label in found.items():
            if label != name and PurePath(name).parent in folders:
                found[name] = "/".join(PurePath(name).parts[-parts:]).lstrip("/")
    return found


def slug(word: str) -> str:
    """Letters, digits and dashes alone."""
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:40] or "x"
