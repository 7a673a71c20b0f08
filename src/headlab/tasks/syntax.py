"""Syntax: a sentence to put into the past, the plural, the negative, a question, and the like."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from string import Formatter
from typing import Any

from headlab.errors import HeadlabError
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

# Each fits both the sentences here and the single words and sentences of BIG-bench.
INSTRUCTIONS = {
    "past-tense": "Put the following into the past tense.",
    "plural": "Put the following noun, or the subject of the sentence, into the plural.",
    "negation": "Make the following sentence negative.",
    "question": "Turn the following sentence into a question.",
    "pronoun": "Replace the repeated name, or the words in brackets, with the right pronoun.",
    "agreement": "Which form of the verb agrees with its subject?",
    "tense": "Change the tense of the sentence as you are told.",  # BIG-bench's, not built in
}
FILES = {
    "past-tense": "past_tense.json",
    "plural": "plural.json",
    "negation": "sentence_negation.json",
    "question": "question_formation.json",
    "pronoun": "pronoun_replacement.json",
    "agreement": "subject_verb_agreement.json",
    "tense": "tense.json",
}
HUB = "tasksource/bigbench"
_PER_FRAME = 20  # of 26 frames or more in a family: none makes more than 4 % of it


def builtin() -> list[Item]:
    """Six families of sentences, the same ones always."""
    return [item for _, item in framed()]


def read(folder: str | Path) -> list[Item]:
    """Items of the BIG-bench files that a folder holds: `past_tense.json` and its like."""
    folder = find_folder(folder, "syntax")
    items: list[Item] = []
    for family, file in FILES.items():
        if (path := folder / file).exists():
            found = read_json(path)
            rows = found.get("examples") if isinstance(found, dict) else found
            items += read_records(path, rows, partial(convert, family=family))
    if not items:
        raise HeadlabError(f"{folder} has none of {', '.join(FILES.values())}")
    return items


def from_hub() -> list[Item]:
    """Items of BIG-bench's linguistic_mappings, tense and subject_verb_agreement."""
    items: list[Item] = []
    for config in ("linguistic_mappings", "tense", "subject_verb_agreement"):
        try:
            found = []
            for split in ("train", "validation"):
                found += from_rows(load_rows(HUB, config, split), config)
            if not found:
                raise HeadlabError(f"{HUB} ({config}) has no rows in the shape that is known")
            items += found
        except HeadlabError as error:
            if config != "subject_verb_agreement" or not items:
                raise
            # No JSON task in BIG-bench itself, so copies on the hub may be without it.
            warnings.warn(f"no agreement questions: {error}", stacklevel=2)
    return items


def convert(row: Any, family: str) -> Item:
    """A BIG-bench example: its target is a text, a list of right ones, or scores of answers.

    >>> convert({"input": "He go", "target_scores": {"go": 0, "goes": 1}}, "agreement").answer
    'goes'
    """
    question = text_of(row, "input")
    if family == "tense":
        question = question.rstrip(": ")
        if row.get("task_prefix"):
            question = f"{question} Change tense to {text_of(row, 'task_prefix')}"
    answers, wrong = _answers(row.get("target_scores", row.get("target")))
    return Item(question, answers[0], family, wrong)


def _answers(target: Any) -> tuple[list[str], tuple[str, ...]]:
    """The right answers and the wrong ones."""
    if isinstance(target, str):
        target = [target]
    if isinstance(target, dict):
        if not all(isinstance(score, (int, float)) for score in target.values()):
            raise ValueError("has something else than numbers for scores")
        best = max(target.values(), default=0)
        right = [answer for answer, score in target.items() if score == best]
        others = tuple(answer.strip() for answer, score in target.items() if score < best)
    else:
        right, others = target, ()
    if not isinstance(right, list) or not right or not all(isinstance(a, str) for a in right):
        raise ValueError("has no text in 'target'")
    right = [answer.strip() for answer in right if answer.strip()]
    if not right:
        raise ValueError("has no text in 'target'")
    return right, others


# The hub has the subtasks of linguistic_mappings in one table, told apart by what is around the
# words; a statement and its question or negation stand in the same words but for the target.
_AROUND = {
    "past-tense": re.compile(r"Today I (?P<input>.+?)\. Yesterday I\s*$"),
    "plural": re.compile(
        r"This is an? (?P<input>.+?)\. Now there is another one\. There are two\s*$"
    ),
    "pronoun": re.compile(r"If (?P<input>.+), then\s*$"),
    "clause": re.compile(r"John thinks (?P<input>.+), but\s*$"),
}


def from_rows(
    rows: Iterator[Mapping[str, Any]] | Sequence[Mapping[str, Any]], config: str
) -> list[Item]:
    """The hub's rows (`inputs`, `targets`, `multiple_choice_*`) as items; others are left out."""
    items = []
    for row in rows:
        right = [answer.strip() for answer in row.get("targets") or [] if answer.strip()]
        inputs = str(row.get("inputs") or "").strip()
        if not inputs or not right:
            continue
        if config == "linguistic_mappings":
            family, question = _subtask(inputs, right[0])
            if family:
                items.append(Item(question, right[0], family))
        elif config == "tense":
            items.append(convert({"input": inputs, "target": right}, "tense"))
        else:
            choices = row.get("multiple_choice_targets") or []
            wrong = tuple(choice.strip() for choice in choices if choice.strip() not in right)
            items.append(Item(inputs, right[0], "agreement", wrong))
    return items


def _subtask(inputs: str, answer: str) -> tuple[str, str]:
    for family, around in _AROUND.items():
        if found := around.search(inputs.splitlines()[-1]):
            if family == "clause":
                family = "negation" if re.search(r"\bnot\b|n't\b", answer) else "question"
            return family, found["input"].strip()
    return "", inputs


# --- the built-in sentences ---


@dataclass(frozen=True)
class Verb:
    """A verb and what follows it: `{v.s}` is "drinks green tea", `{v.third}` only "drinks"."""

    plain: str
    third: str
    past_form: str
    participle: str
    gerund: str
    rest: str

    @property
    def base(self) -> str:
        return f"{self.plain} {self.rest}"

    @property
    def s(self) -> str:
        return f"{self.third} {self.rest}"

    @property
    def past(self) -> str:
        return f"{self.past_form} {self.rest}"

    @property
    def pp(self) -> str:
        return f"{self.participle} {self.rest}"

    @property
    def ing(self) -> str:
        return f"{self.gerund} {self.rest}"


@dataclass(frozen=True)
class Noun:
    """`{thing.s}` one, `{thing.p}` several, `{thing.a}` one with an article, `{thing.n}` either."""

    s: str
    p: str
    plural: bool = False  # which of the two n is

    @property
    def a(self) -> str:
        vowel = self.s[0] in "aeiou" and not self.s.startswith("uni")
        return f"{'an' if vowel else 'a'} {self.s}"

    @property
    def n(self) -> str:
        return self.p if self.plural else self.s


class Name(str):
    """Somebody's name, with the pronouns that stand for it."""

    he: str
    him: str
    his: str
    hers: str
    himself: str

    def __new__(cls, name: str, female: bool) -> Name:
        made = super().__new__(cls, name)
        forms = ("she her her hers herself" if female else "he him his his himself").split()
        made.he, made.him, made.his, made.hers, made.himself = forms
        return made


def names() -> list[Name]:
    """Names of women and of men."""
    return list(_tables()["n"])


@cache
def _tables() -> dict[str, list[Any]]:
    """What each slot may hold: `v` verbs, `f`, `m` and `n` names, the kinds of nouns and words."""
    tables: dict[str, list[Any]] = {"v": []}
    for line in packaged("verbs.tsv").splitlines():
        plain, third, past, participle, gerund, rests = line.split("\t")
        forms = (plain, third, past, participle, gerund)
        tables["v"] += [Verb(*forms, rest) for rest in rests.split(" | ")]
    for line in packaged("nouns.tsv").splitlines():
        kind, one, several = line.split("\t")
        tables.setdefault(kind, []).append(Noun(one, several))
    for line in packaged("words.tsv").splitlines():
        kind, words = line.split("\t")
        tables[kind] = list(words.split(" | "))
    tables["f"] = [Name(name, female=True) for name in tables.pop("female")]
    tables["m"] = [Name(name, female=False) for name in tables.pop("male")]
    tables["n"] = tables["f"] + tables["m"]
    return tables


def framed() -> list[tuple[str, Item]]:
    """Every built-in item with the frame it was made from."""
    made: list[tuple[str, Item]] = []
    family = ""
    for line in packaged("syntax.txt").splitlines():
        if re.fullmatch(r"\[[\w-]+\]", line):
            family = line[1:-1]
        elif line and not line.startswith("#"):
            made += [(line, item) for item in _fill(line, family)]
    return made


def _fill(line: str, family: str) -> list[Item]:
    """Different items of one frame."""
    frame, _, told = line.partition(" :: ")
    question, answer = frame.split(" => ")
    tables = {**_tables(), **_choices(told)}
    draw = random.Random(f"{family} {line}")
    found: dict[str, Item] = {}
    for _ in range(40 * _PER_FRAME):
        slots = _slots(question, tables, draw)
        item = Item(_sentence(question, slots), _sentence(answer, slots), family)
        if family == "agreement":
            head = slots.get(answer)
            if isinstance(head, Noun):  # one and several in turn: as many right answers of each
                head = Noun(head.s, head.p, plural=len(found) % 2 == 1)
                number = "p" if head.plural else "s"
                item = _bracketed(question, {**slots, answer: head}, number, draw)
            else:
                item = _bracketed(question, slots, answer.format(**slots), draw)
        if item.question != item.answer:
            found.setdefault(item.question, item)
        if len(found) == _PER_FRAME:
            break
    return list(found.values())


def _choices(told: str) -> dict[str, list[Any]]:
    """`x = a | b ; y = c/d | e/f`: a frame's own words, and forms that go together."""
    choices: dict[str, list[Any]] = {}
    for each in filter(None, told.split(" ; ")):
        slot, words = each.split(" = ")
        choices[slot] = [w.split("/") if "/" in w else w for w in words.split(" | ")]
    return choices


def _slots(frame: str, tables: Mapping[str, list[Any]], draw: random.Random) -> dict[str, Any]:
    """Something for every slot; `thing` and `thing2` are never the same."""
    names = [re.split(r"[.\[]", field)[0] for _, field, _, _ in Formatter().parse(frame) if field]
    slots: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        taken = [_word(each) for each in slots.values()]
        table = tables[name.rstrip("0123456789")]
        chosen = draw.choice([each for each in table if _word(each) not in taken])
        if isinstance(chosen, Noun):
            chosen = Noun(chosen.s, chosen.p, plural=draw.random() < 0.5)
        slots[name] = chosen
    return slots


def _word(filling: Any) -> str:
    return filling.s if isinstance(filling, (Noun, Verb)) else str(filling)


def _sentence(frame: str, slots: Mapping[str, Any]) -> str:
    """The frame filled in, with a capital where it begins."""
    text = frame.format(**slots)
    return re.sub(r"^\[?\w", lambda first: first[0].upper(), text)


def _bracketed(frame: str, slots: Mapping[str, Any], number: str, draw: random.Random) -> Item:
    """A choice of two forms, in either order: `[is/are]`, the first for one, of the frame."""
    text = _sentence(frame, slots)
    one, several = re.findall(r"\[(.+)/(.+)\]", text)[0]
    answer, other = (several, one) if number == "p" else (one, several)
    if draw.random() < 0.5:
        text = text.replace(f"[{one}/{several}]", f"[{several}/{one}]")
    return Item(text, answer, "agreement", (other,))


SET = QuestionSet(
    "syntax",
    "rewrite a sentence: its tense, its number, as a question, with a pronoun",
    INSTRUCTIONS,
    builtin,
    read,
    from_hub,
)
