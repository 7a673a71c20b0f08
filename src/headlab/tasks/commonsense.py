"""Common sense: a question about everyday things, five answers, and the letter of the right one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headlab.tasks.questions import (
    Item,
    QuestionSet,
    find_folder,
    load_rows,
    packaged,
    read_json,
    read_records,
    text_of,
)

INSTRUCTIONS = {"": "Choose the best answer to the question and give its letter."}
LETTERS = "ABCDE"
FILE = "train_val.json"
HUB = "tau/commonsense_qa"


def builtin() -> list[Item]:
    """Questions written for Headlab; where the right answer stands, the question's text decides."""
    items = []
    for line in packaged("commonsense.tsv").splitlines():
        question, right, *wrong = line.split("\t")
        options = [right, *wrong]
        random.Random(question).shuffle(options)
        items.append(letter(question, options, options.index(right)))
    return items


def letter(question: str, options: Sequence[str], right: int) -> Item:
    r"""The options on lines of their own, lettered; the answer is a letter.

    >>> letter("Which one flies?", ["a cow", "a bird"], 1)
    Item(question='Which one flies?\nA: a cow\nB: a bird', answer='B', family='', wrong=('A',))
    """
    lettered = dict(zip(LETTERS, options, strict=False))
    lines = [question, *(f"{letter}: {option}" for letter, option in lettered.items())]
    answer = LETTERS[right]
    return Item("\n".join(lines), answer, wrong=tuple(each for each in lettered if each != answer))


def read(folder: str | Path) -> list[Item]:
    """CommonsenseQA as one file: `input` with the options a to e below it, `output` a letter.

    The options stay in their order. Questions that offer one answer twice are left out.
    """
    path = find_folder(folder, "commonsenseqa") / FILE
    return read_records(path, read_json(path), convert)


def convert(row: Any) -> Item | None:
    """A row of the file, or None where two options are the same."""
    question, *rest = re.split(r"\n([A-Ea-e]): ", text_of(row, "input"))
    letters, options = [each.upper() for each in rest[::2]], [each.strip() for each in rest[1::2]]
    if letters != list(LETTERS):
        raise ValueError("has no five options, a to e, in 'input'")
    right = text_of(row, "output").upper()
    if right not in letters:
        raise ValueError(f"has the answer {row['output']!r}, which is none of a to e")
    return _distinct(question.strip(), options, letters.index(right))


def from_hub() -> list[Item]:
    """CommonsenseQA, train and validation; its test questions have no answers."""
    return [
        item for split in ("train", "validation") for item in from_rows(load_rows(HUB, None, split))
    ]


def from_rows(rows: Iterable[Mapping[str, Any]]) -> list[Item]:
    """The hub's rows: `question`, `choices` with `label` and `text`, `answerKey`."""
    items = []
    for row in rows:
        labels, options = list(row["choices"]["label"]), list(row["choices"]["text"])
        if row["answerKey"] in labels:
            right = labels.index(row["answerKey"])
            item = _distinct(row["question"].strip(), [each.strip() for each in options], right)
            items += [item] if item else []
    return items


def _distinct(question: str, options: Sequence[str], right: int) -> Item | None:
    return letter(question, options, right) if len(set(options)) == len(options) else None


SET = QuestionSet(
    "commonsense",
    "everyday questions with five answers, of which one is right",
    INSTRUCTIONS,
    builtin,
    read,
    from_hub,
)
