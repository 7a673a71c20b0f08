"""Tasks: where examples come from. Generated for a tokenizer, or read from a user's file."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.tasks import cogqa, docstring, greater_than, ioi
from headlab.tasks.jsonl import read_examples
from headlab.tasks.questions import Part, ask, find_set, part_of
from headlab.tasks.word_pairs import FORMATS, INSTRUCTIONS, asked, find_words, from_hub

if TYPE_CHECKING:
    from headlab.texts import Texts

Split = Literal["rank", "curve", "all"]
Data = str | Path | None  # of a question set: a folder, "hub", or what is built in
DEFAULT_N = 100


@dataclass(frozen=True)
class Task:
    """A kind of question: made in any number for a model's own tokenizer, or so many of a set."""

    name: str
    says: str  # what is asked
    example: str  # one of its prompts, the answer in brackets
    measure: str
    generate: Callable[[Texts, int, int], list[Example]] | None = None  # texts, n, seed
    ask: Callable[[Part, int, Data], list[Example]] | None = None  # a set: part, seed, data
    size: str = "any"  # how many there are

    @property
    def paired(self) -> bool:
        """Whether every prompt has a counterfactual, as generated ones have."""
        return self.ask is None


def _questions(name: str, part: Part, seed: int, data: Data) -> list[Example]:
    """Questions after one example each: built in, from the files in a folder, or from the hub."""
    found = find_set(name)
    items = found.from_hub() if data == "hub" else found.items(None if data is None else Path(data))
    return ask(items, found.instructions, None, seed, part, name=name)


def _words(name: str, part: Part, seed: int, data: Data) -> list[Example]:
    found = find_words(name)
    assert found is not None
    if data == "hub":
        from_hub()
    examples = asked(*found, seed=seed, data=data)
    return [example for example in examples if part in ("all", part_of(example.id))]


TASKS = {
    task.name: task
    for task in (
        Task(
            "ioi",
            "who receives? the name that is not repeated",
            "When Mary and John got to the store, John handed a drink to[ Mary]",
            "logit-diff",
            ioi.generate,
        ),
        Task(
            "ioi-long",
            "the same after a sentence that has nothing to do with it",
            "A thin fog lay over the fields, ... Then, Mary and John went to the store, ...[ Mary]",
            "logit-diff",
            ioi.generate_long,
        ),
        Task(
            "greater-than",
            "a span of years ends after it began",
            "The war lasted from the year 1743 to the year 17[44 to 99]",
            "prob-diff",
            greater_than.generate,
        ),
        Task(
            "docstring",
            "which argument is documented next?",
            "def f(self, path, size, mode): ... :param path: ... :param size: ... :param[ mode]",
            "logit-diff",
            docstring.generate,
        ),
        *(
            Task(name, says, example, "log-prob", ask=partial(_questions, name), size=size)
            for name, says, example, size in (
                (
                    "syntax",
                    "rewrite a sentence after one example: tense, number, negation, question ...",
                    "... Question: The boy kicks the ball. Answer:[ The boy kicked the ball.]",
                    "3,200 or --data",
                ),
                (
                    "commonsense",
                    "which of five answers is right? its letter",
                    "... Question: Where is milk kept cold? A: shelf ... Answer:[ C]",
                    "304 or --data",
                ),
                (
                    "math",
                    "a word problem, solved step by step",
                    "... Answer:[ 12 + 7 = 19. The answer is \\boxed{19}.]",
                    "2,980 or --data",
                ),
            )
        ),
        Task(
            "cogqa",
            "a step of a question, of eight functions; also cogqa-retrieval, cogqa-inference ...",
            'Main question: ... 4 packs of 6 ... Sub-question: ... [ {"answer": "[24]',
            "log-prob",
            ask=partial(cogqa.ask, tuple(cogqa.FUNCTIONS)),
            size="546 or --data",
        ),
    )
}


def find_task(name: str) -> Task | Path:
    """A task by name, or the path of a JSONL file."""
    if name in TASKS:
        return TASKS[name]
    if find_words(name) is not None:
        says = "a word for a word: ten examples (icl), or an instruction and one"
        return Task(name, says, "", "log-prob", ask=partial(_words, name), size="100 or more")
    function = name.removeprefix("cogqa-")
    if function != name and function in cogqa.FUNCTIONS:
        says = f"a step of a question that takes {cogqa.FUNCTIONS[function]}"
        asks = partial(cogqa.ask, (function,))
        return Task(name, says, "", "log-prob", ask=asks, size="60 or more")
    path = Path(name).expanduser()
    if path.suffix == ".jsonl" or path.is_file():
        return path
    words = [f"{word}-{kind}" for word in ("words", *INSTRUCTIONS) for kind in FORMATS]
    functions = [f"cogqa-{function}" for function in cogqa.FUNCTIONS]
    close = difflib.get_close_matches(name, [*TASKS, *words, *functions], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise HeadlabError(f"no task {name!r}{hint} (headlab tasks lists all; a file is named .jsonl)")


def takes_data(task: str) -> bool:
    """Whether it is a question set, which may come from published files."""
    found = find_task(task)
    return isinstance(found, Task) and not found.paired


def is_generated(task: str) -> bool:
    """Whether there are any number of its examples."""
    found = find_task(task)
    return isinstance(found, Task) and found.paired


def make_examples(
    texts: Texts,
    task: str,
    n: int | None = None,
    seed: int = 0,
    split: Split | None = None,
    without: frozenset[str] | set[str] = frozenset(),
    data: str | Path | None = None,
) -> list[Example]:
    """A task's examples: generated ones in any number, or those of a file.

    A split is a part that the other does not have: of a file a random half, of a generated task
    every second example, of question sets nine in ten to rank on and one in ten to test on (of
    cogqa its own train and test).
    `without` leaves out fingerprints: examples that a ranking has used. `data` is for question
    sets: a folder with published files, or "hub".
    """
    if split not in (None, "rank", "curve", "all"):
        raise HeadlabError(f"a split is rank, curve or all, not {split!r}")
    if n is not None and n < 1:
        raise HeadlabError(f"at least one example is needed, not {n}")
    found = find_task(task)
    if isinstance(found, Path):
        if data is not None:
            raise HeadlabError(f"{task} is a file; data is for question sets")
        examples = _half(read_examples(found), split, seed)
        examples = [example for example in examples if example.fingerprint not in without]
        return examples if n is None else examples[:n]
    if found.ask is not None:
        part: Part = {"rank": "train", "curve": "validation"}.get(split or "", "all")  # type: ignore[assignment]
        made = found.ask(part, seed, data)
        if not made:
            raise HeadlabError(f"{task} has no questions" + (f" in {data}" if data else ""))
        made = [example for example in made if example.fingerprint not in without]
        wanted = n if n is not None else (len(made) if split else min(DEFAULT_N, len(made)))
        if wanted > len(made):
            raise HeadlabError(f"{task} has {len(made)} such questions; {wanted} were asked for")
        return made[:wanted]
    if data is not None:
        raise HeadlabError(f"{task} is generated; data is for question sets")
    assert found.generate is not None
    n = n or DEFAULT_N
    apart = split in ("rank", "curve")
    more = n + len(without)
    made = found.generate(texts, 2 * more if apart else more, seed)
    if apart:
        made = made[0::2] if split == "rank" else made[1::2]
    return [example for example in made if example.fingerprint not in without][:n]


def _half(examples: list[Example], split: Split | None, seed: int) -> list[Example]:
    if split in (None, "all"):
        return examples
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    middle = (len(order) + 1) // 2
    mine = order[:middle] if split == "rank" else order[middle:]
    return [examples[number] for number in sorted(mine)]
