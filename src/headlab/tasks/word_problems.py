"""Math: stories with numbers, and solutions worked out step by step."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError
from headlab.tasks.questions import (
    Item,
    QuestionSet,
    find_folder,
    load_rows,
    packaged,
    read_records,
    read_text,
    text_of,
)
from headlab.tasks.syntax import names

INSTRUCTIONS = {
    "": "Solve the problem. Explain your solution step by step, write formulas in LaTeX, "
    r"and give the final answer in \boxed{...}."
}
FILES = ("train.jsonl", "test.jsonl")
HUB = "nvidia/OpenMathInstruct-2"
SHORTEST = 55_050  # of the hub's problems, as in the paper
DEFAULT_N = 3000


def builtin(n: int = DEFAULT_N, seed: int = 0) -> list[Item]:
    """`n` different problems, the same for the same seed; every frame equally often."""
    return [item for _, item in framed(n, seed)]


def read(folder: str | Path) -> list[Item]:
    """GSM8K: `question` and `answer` a line, in `train.jsonl` and, where it is there, `test.jsonl`.

    Calculator marks are dropped, and the number after #### becomes the boxed answer.
    """
    folder = find_folder(folder, "gsm8k")
    items: list[Item] = []
    for file in FILES:
        if (path := folder / file).exists():
            items += read_records(path, _lines(path), convert)
    if not items:
        raise HeadlabError(f"{folder} has no {' or '.join(FILES)}")
    return items


def _lines(path: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (json.JSONDecodeError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deep")
                raise HeadlabError(f"{path}: line {number} is not JSON: {reason}") from None
    return rows


def convert(row: Any) -> Item:
    r"""A line of GSM8K.

    >>> convert({"question": "2 and 3?", "answer": "2+3 = <<2+3=5>>5\n#### 5"}).answer
    '2+3 = 5\nThe answer is \\boxed{5}'
    """
    solution, mark, number = text_of(row, "answer").rpartition("####")
    if not mark or not re.fullmatch(r"-?[\d,.]+", number.strip()):
        raise ValueError("has no '#### number' at the end of 'answer'")
    steps = re.sub(r"<<.*?>>", "", solution).strip()
    return Item(text_of(row, "question"), _end(steps, number.strip().replace(",", "")))


def from_hub() -> list[Item]:
    """OpenMathInstruct-2, the shortest problems of `train_1M`."""
    return from_rows(load_rows(HUB, None, "train_1M"))


def from_rows(rows: Iterable[Mapping[str, Any]], shortest: int = SHORTEST) -> list[Item]:
    """The hub's rows (`problem`, `generated_solution`, `expected_answer`): those with an answer,
    each problem once with its shortest solution, the shortest problems of all."""
    found: dict[str, Item] = {}
    for row in rows:
        problem, solution, answer = (
            str(row.get(field) or "").strip()
            for field in ("problem", "generated_solution", "expected_answer")
        )
        if problem and solution and answer:
            first = found.setdefault(problem, Item(problem, solution))
            if len(solution) < len(first.answer):
                found[problem] = Item(problem, solution)
    ordered = sorted(found.values(), key=lambda item: len(item.question) + len(item.answer))
    return ordered[:shortest]


def _end(steps: str, answer: object) -> str:
    return f"{steps}\nThe answer is \\boxed{{{answer}}}"


# --- the built-in stories ---
#
# A story in math.txt says what may be drawn (`a in 3..9`, `x in pens | cards`, `n in names`), what
# follows (`let t = a * b`, `with t > b`), the question after `?`, and the steps of the solution.
# In a step, [[c = a * b]] is a sum of two: it is written out, and c is known from then on.

_SIGNS = {"+": "+", "-": "-", "*": r"\times", "/": r"\div"}
_SUM = r"(\w+) = (\w+) ([-+*/]) (\w+)"


@dataclass(frozen=True)
class Story:
    """One frame: its rules in their order, the question, and the steps."""

    name: str
    rules: tuple[str, ...]
    question: str
    steps: tuple[str, ...]

    def tell(self, draw: random.Random) -> Item | None:
        """A problem, or None where the numbers drawn do not make one."""
        known: dict[str, Any] = {}
        try:
            for rule in self.rules:
                _follow(rule, known, draw)
            question = _capitals(self.question.format(**known))
            steps = [
                _capitals(re.sub(rf"\[\[{_SUM}\]\]", lambda sum: _work(sum, known), step))
                for step in (step.format(**known) for step in self.steps)
            ]
        except ArithmeticError:
            return None
        return Item(question, _end("\n".join(steps), [*known.values()][-1]))


def framed(n: int = DEFAULT_N, seed: int = 0) -> list[tuple[str, Item]]:
    """The problems, each with the name of the story it was made from."""
    if n < 1:
        raise HeadlabError(f"at least one problem is needed, not {n}")
    draw = random.Random(f"math {seed}")
    found: dict[str, tuple[str, Item]] = {}
    while True:
        before = len(found)
        for story in _stories():  # one of each, so that every one comes equally often
            for _ in range(1000):
                item = story.tell(draw)
                if item is not None and item.question not in found:
                    found[item.question] = (story.name, item)
                    break
            if len(found) == n:
                return list(found.values())
        if len(found) < before + len(_stories()):  # a story is told out; more would be unequal
            raise HeadlabError(f"math has about {before} different problems, {n} were asked for")


@cache
def _stories() -> tuple[Story, ...]:
    stories = []
    for block in packaged("math.txt").split("\n## ")[1:]:
        name, *lines = [line for line in block.splitlines() if line]
        at = next(number for number, line in enumerate(lines) if line.startswith("? "))
        steps = tuple(lines[at + 1 :])
        stories.append(Story(name, tuple(lines[:at]), lines[at].removeprefix("? "), steps))
    return tuple(stories)


def _follow(rule: str, known: dict[str, Any], draw: random.Random) -> None:
    """Draw or work out what a rule says; an ArithmeticError where it cannot hold."""
    if drawn := re.fullmatch(r"(\w+) in (.+)", rule):
        known[drawn[1]] = _drawn(drawn[2], known, draw)
    elif worked := re.fullmatch(f"let {_SUM}", rule):
        _work(worked, known)
    elif compared := re.fullmatch(r"with (\w+) > (\w+)", rule):
        if known[compared[1]] <= known[compared[2]]:
            raise ArithmeticError(rule)
    else:
        raise ValueError(f"math.txt has the rule {rule!r}, which is none")


def _drawn(told: str, known: Mapping[str, Any], draw: random.Random) -> Any:
    if told == "names":
        return draw.choice([name for name in names() if name not in known.values()])
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", told):
        return draw.randint(int(span[1]), int(span[2]))
    choice = draw.choice(told.split(" | "))
    return int(choice) if choice.isdigit() else choice


def _work(sum: re.Match[str], known: dict[str, Any]) -> str:
    """A sum in LaTeX, its result kept. Whole numbers from two on: no "1 apples", no halves."""
    name, left, sign, right = sum[1], sum[2], sum[3], sum[4]
    a, b = int(known.get(left) or left), int(known.get(right) or right)
    if sign == "/" and a % b:
        raise ArithmeticError(f"{a} / {b} is no whole number")
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
    if result < 2:
        raise ArithmeticError(f"{a} {sign} {b} is less than two")
    known[name] = result
    return f"${a} {_SIGNS[sign]} {b} = {result}$"


def _capitals(text: str) -> str:
    """A pronoun may begin a sentence."""
    return re.sub(r"(?:^|(?<=[.?] ))[a-z]", lambda first: first[0].upper(), text)


SET = QuestionSet(
    "math",
    "a story with numbers, solved step by step",
    INSTRUCTIONS,
    builtin,
    read,
    from_hub,
)
