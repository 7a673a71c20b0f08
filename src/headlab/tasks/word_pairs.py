"""Word pairs: six small tasks, each in two formats, ten examples or an instruction and one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError
from headlab.tasks.questions import (
    Item,
    find_folder,
    lay_out,
    packaged,
    read_json,
    read_records,
    text_of,
)

INSTRUCTIONS = {
    "antonym": "Give the word that means the opposite.",
    "capitalize": "Write the word with a capital letter.",
    "country-capital": "Name the capital of the country.",
    "english-french": "Translate the English word into French.",
    "present-past": "Give the past tense of the verb.",
    "singular-plural": "Give the plural of the noun.",
}


def builtin() -> list[Item]:
    """A hundred pairs or more of every task; the family is the task's name."""
    lines = [line.split("\t") for line in packaged("word_pairs.tsv").splitlines()]
    return [Item(word, answer, task) for task, word, answer in lines]


def read(folder: str | Path) -> list[Item]:
    """The pairs of the files that a folder holds: `antonym.json` and its like."""
    folder = find_folder(folder, "words")
    items: list[Item] = []
    for task in INSTRUCTIONS:
        if (path := folder / f"{task}.json").exists():
            items += read_records(path, read_json(path), partial(convert, task=task))
    if not items:
        files = ", ".join(f"{task}.json" for task in INSTRUCTIONS)
        raise HeadlabError(f"{folder} has none of {files}")
    return items


def from_hub() -> list[Item]:
    """There is nothing to load: these pairs are published as files, not on the hub."""
    raise HeadlabError(
        "the word pairs are on no hub; use the built-in ones, or give a folder of antonym.json "
        "and its like"
    )


def convert(row: Any, task: str) -> Item:
    """A row of a file: `input` and `output`."""
    return Item(text_of(row, "input"), text_of(row, "output"), task)


def few_shot(pairs: Sequence[Item], item: Item, shots: int = 10, seed: int = 0) -> str:
    r"""The prompt without an instruction: other pairs of the same task, then the question.

    >>> few_shot([Item("hot", "cold", "antonym")], Item("up", "down", "antonym"), shots=1)
    'Question: hot\nAnswer: cold\nQuestion: up\nAnswer:'
    """
    shown = _others(pairs, item, shots, seed)
    told = "".join(f"Question: {pair.question}\nAnswer: {pair.answer}\n" for pair in shown)
    return f"{told}Question: {item.question}\nAnswer:"


def instructed(pairs: Sequence[Item], item: Item, seed: int = 0) -> str:
    r"""The prompt with the task's instruction and one example.

    >>> instructed([Item("hot", "cold", "antonym")], Item("up", "down", "antonym"))
    'Give the word that means the opposite.\nQuestion: hot\nAnswer: cold\nQuestion: up\nAnswer:'
    """
    if item.family not in INSTRUCTIONS:
        raise HeadlabError(f"no word task {item.family!r} (there are {', '.join(INSTRUCTIONS)})")
    (shown,) = _others(pairs, item, 1, seed)
    return lay_out(item, shown, INSTRUCTIONS[item.family]).prompt


def _others(pairs: Sequence[Item], item: Item, number: int, seed: int) -> list[Item]:
    """Pairs of the item's task, never the item; for a seed and a word always the same."""
    if number < 1:
        raise HeadlabError(f"at least one pair must be shown, not {number}")
    others = [
        pair for pair in pairs if pair.family == item.family and pair.question != item.question
    ]
    if len(others) < number:
        raise HeadlabError(
            f"{item.family} has {len(others)} pairs beside {item.question!r}, "
            f"{number} are to be shown"
        )
    return random.Random(f"{seed} {item.family} {item.question}").sample(others, number)
