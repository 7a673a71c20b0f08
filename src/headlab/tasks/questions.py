"""Questions with an answer, and how they are asked: an instruction, one example, the question."""

from __future__ import annotations

import difflib
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from headlab.errors import HeadlabError
from headlab.examples import Example

T = TypeVar("T")
Part = Literal["train", "validation", "all"]
# as published sets are kept
SET_FOLDERS = ("syntax", "commonsenseqa", "gsm8k", "words", "cogqa", "math500")
RESERVED = 20  # short items of a family that are shown and never asked


@dataclass(frozen=True)
class Item:
    """A question and its answer; `wrong` are other answers one could give, where they are known.

    >>> Item("The keys to the cabinet [is/are] lost.", "are", "agreement", wrong=("is",)).answer
    'are'
    """

    question: str
    answer: str
    family: str = ""  # what is asked for; items of one family have one instruction
    wrong: tuple[str, ...] = ()


def lay_out(item: Item, shown: Item, instruction: str, id: str = "") -> Example:
    r"""One example is shown, then the question is asked; every answer follows one space.

    >>> shown = Item("I see.", "I saw.")
    >>> example = lay_out(Item("I go.", "I went."), shown, "Put it into the past.")
    >>> example.prompt
    'Put it into the past.\nQuestion: I see.\nAnswer: I saw.\nQuestion: I go.\nAnswer:'
    >>> example.target
    ' I went.'
    """
    return Example(
        f"{instruction}\nQuestion: {shown.question}\nAnswer: {shown.answer}"
        f"\nQuestion: {item.question}\nAnswer:",
        f" {item.answer}",
        wrong=tuple(f" {answer}" for answer in item.wrong),
        id=id,
        category=item.family,
    )


def ask(
    items: Sequence[Item],
    instructions: Mapping[str, str],
    n: int | None = None,
    seed: int = 0,
    part: Part = "all",
    reserved: int = RESERVED,
    name: str = "",
) -> list[Example]:
    """`n` of the questions, or all of them, in the order of the seed, each after one example.

    The examples shown are short items of the same family, `reserved` of each (fewer of a small
    family), which are never asked. One question in ten is for validation: which, only its own
    text decides. Families come in turn, for as long as they have questions left. An id is the
    name, the family and the item's number in it.
    """
    if part not in ("train", "validation", "all"):
        raise HeadlabError(f"a part is train, validation or all, not {part!r}")
    if n is not None and n < 1:
        raise HeadlabError(f"at least one question is needed, not {n}")
    if reserved < 1:
        raise HeadlabError(f"at least one example must be reserved to be shown, not {reserved}")
    families = _families(items)
    unknown = [family for family in families if family not in instructions]
    if unknown:
        known = ", ".join(repr(family) for family in instructions)
        raise HeadlabError(f"no instruction for the family {unknown[0]!r}; there are {known}")
    shown = {family: _reserve(its, reserved) for family, its in families.items()}
    # A sentence may stand in two families: shown in one, it is asked in none.
    kept = {item.question for its in shown.values() for item in its}
    left = {
        family: [
            (f"{'-'.join(filter(None, (name, family)))}-{number}".lstrip("-"), item)
            for number, item in enumerate(its, start=1)
            if item.question not in kept and part in ("all", part_of(item.question))
        ]
        for family, its in families.items()
    }
    there = sum(map(len, left.values()))
    if n is not None and n > there:
        where = "" if part == "all" else f" for {part}"
        what = f"{name} has" if name else "there are"
        raise HeadlabError(f"{what} {there} questions{where}, {n} were asked for")
    draw = random.Random(f"{seed}")
    chosen = list(in_turn(left, draw))[: there if n is None else n]
    return [
        lay_out(
            item,
            random.Random(f"{seed} {id}").choice(shown[item.family]),
            instructions[item.family],
            id,
        )
        for id, item in chosen
    ]


def part_of(question: str) -> Literal["train", "validation"]:
    """One question in ten is for validation, the same one in every run and on every machine."""
    return "validation" if _stable(question) % 10 == 0 else "train"


def _families(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Items by family, each question once: the first answer given to it."""
    families: dict[str, dict[str, Item]] = {}
    for item in items:
        families.setdefault(item.family, {}).setdefault(item.question, item)
    return {family: list(its.values()) for family, its in families.items()}


def _reserve(items: list[Item], reserved: int) -> list[Item]:
    """Some of the shortest fifth, so that they are short and yet not all of one kind."""
    number = min(reserved, max(1, len(items) // 10))
    short = sorted(items, key=lambda item: (_length(item), _stable(item.question)))
    short = short[: max(number, len(items) // 5)]
    return sorted(short, key=lambda item: _stable(item.question))[:number]


def in_turn(left: Mapping[str, Sequence[T]], draw: random.Random) -> Iterator[T]:
    """One of every family in a random order, and again, until all have come."""
    orders = {family: draw.sample(its, len(its)) for family, its in left.items()}
    while orders := {family: its for family, its in orders.items() if its}:
        for family in draw.sample(list(orders), len(orders)):
            yield orders[family].pop()


def _length(item: Item) -> int:
    return len(item.question) + len(item.answer)


def _stable(text: str) -> int:
    """A number that a text always has; `hash` has another in every process."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


# --- the sets ---


@dataclass(frozen=True)
class QuestionSet:
    """Questions of one kind: built in, in a user's folder, or on the hub."""

    name: str
    says: str  # what is asked
    instructions: Mapping[str, str]  # family -> the line before the example
    builtin: Callable[[], list[Item]]
    read: Callable[[Path], list[Item]]
    from_hub: Callable[[], list[Item]]

    def items(self, data: Path | None = None) -> list[Item]:
        """The built-in questions, or those of the files in a folder."""
        return self.builtin() if data is None else self.read(data)


def find_set(name: str) -> QuestionSet:
    """A set by name.

    >>> sorted(find_set("syntax").instructions)[:2]
    ['agreement', 'negation']
    """
    from headlab.tasks import commonsense, syntax, word_problems  # they need Item from here

    found: tuple[QuestionSet, ...] = (syntax.SET, commonsense.SET, word_problems.SET)
    sets = {each.name: each for each in found}
    if name in sets:
        return sets[name]
    close = difflib.get_close_matches(name, sets, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise HeadlabError(f"no questions {name!r}{hint} (there are {', '.join(sets)})")


# --- where they are read from ---


def packaged(name: str) -> str:
    """The text of a file in the package's `tasks/data`."""
    return resources.files("headlab.tasks").joinpath("data", name).read_text(encoding="utf-8")


def find_folder(folder: str | Path, name: str) -> Path:
    """The folder, or the one called `name` in it where there is such: both may be given."""
    assert name in SET_FOLDERS
    folder = Path(folder).expanduser()
    if not folder.exists():
        raise HeadlabError(f"no folder {folder}")
    if not folder.is_dir():
        raise HeadlabError(f"{folder} is a file; give the folder it is in")
    return folder / name if (folder / name).is_dir() else folder


def read_text(path: Path) -> str:
    """A file's text, or a sentence that says why there is none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise HeadlabError(f"no file {path}") from None
    except IsADirectoryError:
        raise HeadlabError(f"{path} is a folder; a file is expected") from None
    except UnicodeDecodeError as error:
        raise HeadlabError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise HeadlabError(f"{path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise HeadlabError(f"{path} is empty")
    return text


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    text = read_text(path)
    try:
        return json.loads(text)
    except RecursionError:
        raise HeadlabError(f"{path} is not JSON: nested too deep") from None
    except ValueError as error:  # no JSON, or a number of thousands of digits
        raise HeadlabError(f"{path} is not JSON: {getattr(error, 'msg', error)}") from None


def read_records(path: Path, rows: Any, convert: Callable[[Any], Item | None]) -> list[Item]:
    """Every row of a file as an item, those that convert to None left out; a wrong row is named."""
    if not isinstance(rows, list):
        raise HeadlabError(f"{path} has no list of examples in it")
    items = []
    for number, row in enumerate(rows, start=1):
        try:
            item = convert(row)
        except ValueError as error:
            raise HeadlabError(f"{path}: example {number} {error}") from None
        if item is not None:
            items.append(item)
    if not items:
        raise HeadlabError(f"{path} has no examples in it")
    return items


def text_of(row: Any, field: str) -> str:
    """A row's text without the space around it; a ValueError where there is none."""
    value = row.get(field) if isinstance(row, Mapping) else None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"has no text in {field!r}")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"has half a character (a surrogate) in {field!r}")
    return value.strip()


def load_rows(
    path: str, config: str | None, split: str, streaming: bool = False
) -> Iterator[Mapping[str, Any]]:
    """The rows of a data set on the hub; streaming, only those that are read are downloaded."""
    try:
        import datasets
    except ImportError:
        raise HeadlabError(
            f"{path} is read with the datasets package; pip install 'headlab[hub]' brings it"
        ) from None
    try:
        found = datasets.load_dataset(path, config, split=split, streaming=streaming)
    except Exception as error:  # no network, no such data set, no right to it: datasets' own words
        where = f"{path} ({config})" if config else path
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise HeadlabError(f"{where} could not be loaded from the hub: {told[0]}") from error
    yield from found
