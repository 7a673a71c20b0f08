"""Math problems with a final answer, which a model writes out and a grader reads.

They are asked by studies; `headlab tasks` lists what is asked by log-probability.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headlab.errors import HeadlabError
from headlab.tasks.questions import find_folder, load_rows, packaged, read_text, text_of

ProblemName = Literal["math500", "gsm8k", "arithmetic"]
FILE = "test.jsonl"


@dataclass(frozen=True)
class Problem:
    """A question and its right answer, as math-verify reads it: LaTeX without dollars, a number.

    >>> load_problems("arithmetic")[0].answer
    '12'
    """

    id: str
    question: str
    answer: str
    level: str = ""  # of difficulty, "1" the easiest, where it is known
    subject: str = ""


@dataclass(frozen=True)
class ProblemSet:
    """Where the problems of one name come from."""

    name: str
    says: str  # what is asked
    size: int
    convert: Callable[[Any, str], Problem] | None = None  # a row and an id; None: built in
    hub: tuple[str, str | None] = ("", None)  # data set and configuration, of which the test split


def load_problems(
    name: ProblemName | str, data: str | Path | None = None, n: int | None = None, seed: int = 0
) -> list[Problem]:
    """The problems of a set: all in the order of their file, or the first `n` of the seed's order.

    `data` is a folder with `test.jsonl` (or with a folder of the set's name that has it), or "hub".

    >>> [problem.id for problem in load_problems("arithmetic", n=2)]
    ['arithmetic-157', 'arithmetic-216']
    """
    found = find_problems(name)
    if n is not None and n < 1:
        raise HeadlabError(f"at least one problem is needed, not {n}")
    if found.convert is None:
        if data is not None:
            raise HeadlabError(f"{name} is built in; data is for {', '.join(_with_data())}")
        problems = _builtin()
    elif data is None:
        raise HeadlabError(
            f"{name} needs data: a folder with {name}/{FILE} (--data FOLDER), or the hub "
            "(--data hub)"
        )
    else:
        problems = _from_hub(found) if data == "hub" else _from_folder(found, data)
    if n is None:
        return problems
    if n > len(problems):
        raise HeadlabError(f"{name} has {len(problems):,} problems, {n:,} were asked for")
    # Drawn by place, not by id: the hub's rows have other ids than a file's.
    return random.Random(f"{name} {seed}").sample(problems, len(problems))[:n]


def needs_data(name: str) -> bool:
    """Whether its problems are not built in: a folder or the hub must be named."""
    return find_problems(name).convert is not None


def find_problems(name: str) -> ProblemSet:
    """A set by name.

    >>> find_problems("arithmetic").size
    240
    """
    if name in PROBLEM_SETS:
        return PROBLEM_SETS[name]
    close = difflib.get_close_matches(name, PROBLEM_SETS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise HeadlabError(f"no problems {name!r}{hint} (there are {', '.join(PROBLEM_SETS)})")


# --- where they are read from ---


def _builtin() -> list[Problem]:
    """`arithmetic.txt` says how it is read."""
    problems: list[Problem] = []
    level = ""
    for line in packaged("arithmetic.txt").splitlines():
        if line.startswith("## level "):
            level = line.removeprefix("## level ")
        elif " | " in line:
            subject, question, answer, _ = line.split(" | ")
            id = f"arithmetic-{len(problems) + 1}"
            problems.append(Problem(id, question, answer, level, subject))
    return problems


def _from_folder(found: ProblemSet, data: str | Path) -> list[Problem]:
    folder = find_folder(data, found.name)
    path = folder / FILE
    if not path.exists():
        own = "" if folder.name == found.name else f" and no {found.name}/{FILE}"
        raise HeadlabError(f"{folder} has no {FILE}{own}")
    return _convert(found, _lines(path), str(path), "line")


def _from_hub(found: ProblemSet) -> list[Problem]:
    path, config = found.hub
    rows = enumerate(load_rows(path, config, "test"), start=1)
    return _convert(found, rows, path, "row")


def _convert(
    found: ProblemSet, rows: Iterable[tuple[int, Any]], source: str, unit: str
) -> list[Problem]:
    """Every row as a problem; the first that is wrong is named."""
    assert found.convert is not None
    homes: dict[str, int] = {}  # id -> row
    problems = []
    for number, row in rows:
        try:
            problem = found.convert(row, f"{found.name}-{number}")
            if problem.id in homes:
                raise ValueError(f"has the id {problem.id!r} of {unit} {homes[problem.id]}")
        except ValueError as error:
            raise HeadlabError(f"{source}: {unit} {number} {error}") from None
        homes[problem.id] = number
        problems.append(problem)
    if not problems:
        raise HeadlabError(f"{source} has no problems in it")
    return problems


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", None) or "nested too deep, or too long a number"
                raise HeadlabError(f"{path}: line {number} is not JSON: {reason}") from None


def _math500(row: Any, id: str) -> Problem:
    r"""A row of MATH-500; some copies have no `unique_id`, and MATH itself writes "Level 2".

    >>> row = {"problem": "Half of $x$?", "answer": r"\frac{x}{2}", "level": 2}
    >>> _math500(row, "math500-7").answer, _math500(row, "math500-7").level
    ('\\frac{x}{2}', '2')
    """
    question, answer = text_of(row, "problem"), text_of(row, "answer")
    level = _label(row, "level").removeprefix("Level ")
    return Problem(_label(row, "unique_id") or id, question, answer, level, _label(row, "subject"))


def _gsm8k(row: Any, id: str) -> Problem:
    r"""A row of GSM8K, whose worked solution ends with the number.

    >>> _gsm8k({"question": "40 x 40?", "answer": "40*40 = 1600\n#### 1,600"}, "gsm8k-1").answer
    '1600'
    """
    question = text_of(row, "question")
    number = text_of(row, "answer").rpartition("####")[2].strip().replace(",", "")
    if "####" not in row["answer"] or not re.fullmatch(r"-?\d+(\.\d+)?", number):
        raise ValueError("has no '#### number' at the end of 'answer'")
    return Problem(id, question, number)


def _label(row: Any, field: str) -> str:
    """A text or a whole number that may be missing."""
    value = row.get(field)
    if value is None or value == "":
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_of(row, field)


PROBLEM_SETS: dict[str, ProblemSet] = {
    each.name: each
    for each in (
        ProblemSet(
            "arithmetic",
            "sums, fractions, powers, equations and short stories, of four levels",
            240,
        ),
        ProblemSet(
            "gsm8k",
            "grade-school stories of two to eight steps, the test split",
            1319,
            _gsm8k,
            ("openai/gsm8k", "main"),
        ),
        ProblemSet(
            "math500",
            "competition problems of five levels, answers in LaTeX",
            500,
            _math500,
            ("HuggingFaceH4/MATH-500", None),
        ),
    )
}


def _with_data() -> list[str]:
    return [name for name in PROBLEM_SETS if needs_data(name)]
