"""CogQA: questions taken apart into sub-questions, each with the cognitive function it needs."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.tasks.questions import Part, find_folder, in_turn, packaged, read_json

FUNCTIONS = {
    "retrieval": "Retrieval",
    "knowledge-recall": "Knowledge Recall",
    "semantic-understanding": "Semantic Understanding",
    "syntactic-understanding": "Syntactic Understanding",
    "math-calculation": "Math Calculation",
    "inference": "Inference",
    "logical-reasoning": "Logical Reasoning",
    "decision-making": "Decision-making",
}
Split = Literal["train", "test"]
STOP = "]"  # an answer is a list of one object
OPENING = '[ {"answer": "'  # what a model writes before its answer
# Why a row is not asked. The first four are of whole questions, counted once each.
NO_QUESTION = "questions that are no object"
NO_MAIN_TEXT = "questions without text"
NO_LIST = "questions without a list of sub-questions"
IN_TEST = "questions of train that are in test"
NO_OBJECT = "sub-questions that are no object"
NO_TEXT = "sub-questions without text"
NO_ANSWER = "sub-questions without an answer"
HALF = "half a character (a surrogate)"
NO_FUNCTION = "sub-questions with a label that is none of the eight"
TWICE = "sub-questions asked before"


@dataclass(frozen=True)
class SubQuestion:
    """A step towards the answer of a question, asked with the steps before it answered."""

    id: str  # test-12-3: the third sub-question of the twelfth question of the file
    function: str  # a key of FUNCTIONS
    question: str  # the main question
    earlier: tuple[tuple[str, str], ...]  # sub-questions before it with their answers
    asked: str
    answer: str

    @property
    def prompt(self) -> str:
        """What a model reads; it goes on with the answer as JSON."""
        known = "\n".join(f"{asked} {answer}" for asked, answer in self.earlier)
        return PROMPT.format(
            question=self.question, known=known or "No prior knowledge.", asked=self.asked
        )


# The example is for small models: told the form alone, SmolLM2-135M never writes it.
PROMPT = """\
You answer a question step by step. Answer each sub-question alone, in a few words, \
as [ {{"answer": "..."}} ] and nothing else.

Main question: Pam has a red cup and two blue plates. Can she drink?
Known so far:
No prior knowledge.
Sub-question: What is red?
Answer:
[ {{"answer": "the cup"}} ]

Main question: {question}
Known so far:
{known}
Sub-question: {asked}
Answer:
"""


@dataclass(frozen=True)
class CogQA:
    """Sub-questions to learn from and others to test on; no main question is in both."""

    train: list[SubQuestion]
    test: list[SubQuestion]
    left_out: dict[str, int]  # reason -> how many
    cast: int  # answers that were numbers and were made text

    def items(self, split: Split | None = None) -> list[SubQuestion]:
        """Those of a split, or all."""
        return {"train": self.train, "test": self.test}.get(split or "", self.train + self.test)


def as_example(item: SubQuestion) -> Example:
    """The answer as a target, after the JSON that opens it.

    An answer that starts with a sign takes the quote before it along: "$ is one token to many
    tokenizers.
    """
    quote = "" if item.answer[0].isalnum() else ' "'
    return Example(
        item.prompt + OPENING.removesuffix(quote),
        quote + item.answer,
        id=item.id,
        category=item.function,
    )


def ask(
    functions: Sequence[str], part: Part, seed: int = 0, data: str | Path | None = None
) -> list[Example]:
    """The sub-questions of these functions in the order of the seed, one of each in turn; those
    for validation are the test split's."""
    splits: dict[Part, Split] = {"train": "train", "validation": "test"}
    items = load(data).items(splits.get(part))
    left = {name: [each for each in items if each.function == name] for name in functions}
    return [as_example(item) for item in in_turn(left, random.Random(f"{seed}"))]


def pick(
    items: Sequence[SubQuestion], functions: Sequence[str], n: int | None, seed: int
) -> list[SubQuestion]:
    """At most n of each function, drawn by the seed, in the order of the file."""
    chosen: set[str] = set()
    for name in functions:
        own = [item.id for item in items if item.function == name]
        chosen |= set(random.Random(f"{seed} {name}").sample(own, len(own))[:n])
    return [item for item in items if item.id in chosen]


# --- where they come from ---


def load(data: str | Path | None = None) -> CogQA:
    """The built-in questions, or those of the files in a folder."""
    if data == "hub":
        raise HeadlabError(
            "cogqa is on no hub; use the built-in questions, or give a folder with train.json and "
            "test.json"
        )
    return builtin() if data is None else read(data)


def builtin() -> CogQA:
    """Questions written for Headlab, every third for testing. `cogqa.txt` says how it is read.

    >>> builtin().test[0].asked
    'What did Omar leave on the bus?'
    """
    functions = {title[0]: title for title in FUNCTIONS.values()}
    functions |= {"S": "Semantic Understanding", "Y": "Syntactic Understanding"}
    rows: list[dict[str, Any]] = []
    for line in packaged("cogqa.txt").splitlines():
        mark, _, text = line.partition(" ")
        if mark == "?":
            rows.append({"question": text, "generated": []})
        elif mark in functions:
            asked, answer = text.split(" | ")[:2]
            step = {"subquestion": asked, "answer": answer, "cognitive_skill": functions[mark]}
            rows[-1]["generated"].append(step)
    numbered = list(enumerate(rows, start=1))
    reader = _Reader()
    test = list(reader.split("test", (each for each in numbered if each[0] % 3 == 0)))
    train = list(reader.split("train", (each for each in numbered if each[0] % 3)))
    return CogQA(train, test, dict(reader.left_out), reader.cast)


def read(folder: str | Path) -> CogQA:
    """The published files, `train.json` and `test.json`: a list of `{"question", "generated":
    [{"subquestion", "answer", "cognitive_skill"}, ...]}` each.

    What cannot be asked is left out and counted. It is known to the steps after it all the same,
    if it has a text and an answer.
    """
    folder = find_folder(folder, "cogqa")
    files: dict[Split, Path] = {split: folder / f"{split}.json" for split in ("test", "train")}
    missing = [path.name for path in files.values() if not path.exists()]
    if missing:
        raise HeadlabError(f"{folder} has no {' and no '.join(missing)}; cogqa needs both files")
    reader = _Reader()
    found: dict[Split, list[SubQuestion]] = {}
    for split, path in files.items():  # test first: what is in it is not for train
        rows = read_json(path)
        if not isinstance(rows, list):
            raise HeadlabError(f"{path} has no list of questions in it")
        before = Counter(reader.left_out)
        found[split] = list(reader.split(split, enumerate(rows, start=1)))
        if not found[split]:
            why = ", ".join(f"{n} {reason}" for reason, n in (reader.left_out - before).items())
            raise HeadlabError(f"{path} has nothing to ask" + (f": {why}" if why else ""))
    return CogQA(found["train"], found["test"], dict(reader.left_out), reader.cast)


class _Reader:
    """Rows of the files to sub-questions, counting what is left out."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.cast = 0
        self.tested: set[str] = set()  # main questions of test

    def split(self, split: Split, rows: Iterable[tuple[int, Any]]) -> Iterator[SubQuestion]:
        """What is asked in one file; test comes before train."""
        prompts: set[str] = set()
        for number, row in rows:
            if (question := self._question(row)) is None:
                continue
            folded = " ".join(question.casefold().split())
            if split == "test":
                self.tested.add(folded)
            elif folded in self.tested:
                self.left_out[IN_TEST] += 1
                continue
            for item in self._steps(f"{split}-{number}", question, row["generated"]):
                if item.prompt in prompts:
                    self.left_out[TWICE] += 1
                else:
                    prompts.add(item.prompt)
                    yield item

    def _question(self, row: Any) -> str | None:
        """The main question of a row, None where it has none or nothing else."""
        if not isinstance(row, Mapping):
            why = NO_QUESTION
        elif not (question := _text(row.get("question"))):
            why = NO_MAIN_TEXT
        elif _is_half(question):
            why = HALF
        elif not isinstance(row.get("generated"), list):
            why = NO_LIST
        else:
            return question
        self.left_out[why] += 1
        return None

    def _steps(self, id: str, question: str, rows: list[Any]) -> Iterator[SubQuestion]:
        earlier: list[tuple[str, str]] = []
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, Mapping):
                self.left_out[NO_OBJECT] += 1
                continue
            asked, answer = _text(row.get("subquestion")), _answer(row.get("answer"))
            if not asked or not answer or _is_half(asked + answer):
                self.left_out[NO_TEXT if not asked else NO_ANSWER if not answer else HALF] += 1
                continue
            self.cast += not isinstance(row["answer"], str)
            if function := _function(row.get("cognitive_skill")):
                step = f"{id}-{number}"
                yield SubQuestion(step, function, question, tuple(earlier), asked, answer)
            else:
                self.left_out[NO_FUNCTION] += 1
            earlier.append((asked, answer))


def _text(value: Any) -> str:
    """A text without the space around it; empty where there is none."""
    return value.strip() if isinstance(value, str) else ""


def _answer(value: Any) -> str:
    """A text, or a number as text; NaN is no answer, and neither is `true`."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return str(value) if isinstance(value, (int, float)) else _text(value)


def _is_half(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _function(label: Any) -> str | None:
    """The function of a label, however it is written.

    >>> _function("Knowledge_Recall "), _function("Induction")
    ('knowledge-recall', None)
    """
    name = re.sub(r"[-_\s]+", "-", label.strip().lower()) if isinstance(label, str) else ""
    return name if name in FUNCTIONS else None
