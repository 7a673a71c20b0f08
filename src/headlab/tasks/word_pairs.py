"""Word pairs: six small tasks, each in two formats, ten examples or an instruction and one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.tasks.questions import (
    Item,
    find_folder,
    lay_out,
    packaged,
    part_of,
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


def from_hub() -> NoReturn:
    """There is nothing to load: these pairs are published as files, not on the hub."""
    raise HeadlabError(
        "the word pairs are on no hub; use the built-in ones, or give a folder of antonym.json "
        "and its like"
    )


def convert(row: Any, task: str) -> Item:
    """A row of a file: `input` and `output`."""
    return Item(text_of(row, "input"), text_of(row, "output"), task)


FORMATS = ("icl", "instruction")


def find_words(name: str) -> tuple[list[str], str] | None:
    """The word tasks and the format of a name; None where it is no such name.

    >>> find_words("antonym-icl"), find_words("words-instruction")[1]
    ((['antonym'], 'icl'), 'instruction')
    """
    for format_ in FORMATS:
        family = name.removesuffix(f"-{format_}")
        if family != name and (family == "words" or family in INSTRUCTIONS):
            return (list(INSTRUCTIONS) if family == "words" else [family]), format_
    return None


def asked(
    families: Sequence[str], format_: str, seed: int = 0, data: str | Path | None = None
) -> list[Example]:
    """Every pair of these tasks as a question in one format; in the other, the same order."""
    pairs = builtin() if data is None else read(data)
    make = few_shot if format_ == "icl" else instructed
    made = [
        Example(
            make(pairs, item, seed=seed),
            f" {item.answer}",
            id=f"{item.family}-{item.question}",
            category=item.family,
        )
        for item in pairs
        if item.family in families
    ]
    seen: dict[str, Example] = {}
    for example in made:  # a word may stand in a file twice
        seen.setdefault(example.id, example)
    order = random.Random(seed).sample(list(seen), len(seen))
    return [seen[id] for id in order]


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
    """Pairs of the item's task, never the item; for a seed and a word always the same. Words to
    test on are shown only where there are too few others."""
    if number < 1:
        raise HeadlabError(f"at least one pair must be shown, not {number}")
    others = [
        pair for pair in pairs if pair.family == item.family and pair.question != item.question
    ]
    seen = [pair for pair in others if part_of(f"{pair.family}-{pair.question}") == "train"]
    others = seen if len(seen) >= number else others
    if len(others) < number:
        raise HeadlabError(
            f"{item.family} has {len(others)} pairs beside {item.question!r}, "
            f"{number} are to be shown"
        )
    return random.Random(f"{seed} {item.family} {item.question}").sample(others, number)
