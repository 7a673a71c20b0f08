"""One cell of the fillers study: every condition on the same problems, and what heads attend to
under each. It holds the texts; what they are worth is graded afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headlab import __version__
from headlab.engine import Progress
from headlab.errors import HeadlabError
from headlab.fillers import INSTRUCTION, Built, Condition, build, parse_conditions
from headlab.generation import Written, generate
from headlab.heads import Head, require_in_range
from headlab.model import Model
from headlab.studies import Work
from headlab.studies.cells import Cell, Record
from headlab.studies.fillers.looking import ATTENTION, REGION, STATISTICS, look
from headlab.studies.scratch import Scratch, as_file
from headlab.tasks.problems import Problem, find_problems, load_problems, needs_data
from headlab.texts import Texts

TOO_LONG = "problems longer than the model reads"
SHOWN = 8  # problems that are kept with their prompts, and shown with all answers
_ROWS = {"cuda": 512, "cpu": 16}  # texts of a piece that is kept on the way
_ROOM = 64  # tokens that a chat template may add


@dataclass(frozen=True)
class Found:
    """What a cell found."""

    conditions: list[Condition]
    problems: dict[str, dict[str, str]]  # by id: question, answer, level, subject
    texts: pd.DataFrame  # condition, problem, text, end, tokens
    heads: list[Head]
    shape: tuple[int, int]  # layers, heads
    # condition, view, head, position, mean, low, high, uniform, ratio, ratio_low, ratio_high,
    # prompts; the view original has the prompts' own tokens alone, closed up; whole has all
    attention: pd.DataFrame
    regions: pd.DataFrame  # condition, head, region, problem, observed, uniform: a prompt's means
    tokens: dict[str, list[str]]  # by condition, those of the first prompt
    prompts: dict[str, dict[str, str]]  # by problem and condition, of some
    decoding: dict[str, Any]  # temperature (None: greedy) and top_p that were used
    left_out: dict[str, int]
    backed_off: bool


def run_cell(cell: Cell, model: Model, progress: Progress, scratch: Path) -> Record:
    """Write every answer under every condition; look at the heads."""
    asked = cell.settings
    backed_off = model.back_offs
    problems = read_problems(cell)
    conditions = conditions_of(cell)
    shape = (model.n_layers, model.n_heads)
    heads = heads_of(asked["heads"], shape, model.name) if asked["attention_n"] else []
    long = [p for p in problems if not _fits(model, p, conditions, asked["max_new_tokens"])]
    problems = [problem for problem in problems if problem not in long]
    if len(problems) < 2:
        raise HeadlabError(
            f"{model.name} reads {model.max_length:,} tokens: too few for all but {len(problems)} "
            "of the problems with what the conditions put in, and their answers"
        )
    built = {
        condition.name: [build(model, condition, problem.question) for problem in problems]
        for condition in conditions
    }
    if any(each.has_gap for own in built.values() for each in own) and not model.heeds_positions:
        raise HeadlabError(
            f"{model.name} does not heed positions that it is given, so it can have no gap; leave "
            "the condition out"
        )
    decoding = _decoding(asked, model, max(len(e.ids) + e.gap for o in built.values() for e in o))
    texts = len(conditions) * len(problems)
    progress(asked["max_new_tokens"] * len(long) * len(conditions))
    progress((asked["max_new_tokens"] - decoding["max_new_tokens"]) * texts)
    # The tokens themselves: a chat template may write the date.
    told = hashlib.sha256(repr((problems, conditions, decoding)).encode())
    for own in built.values():
        for each in own:
            told.update(each.ids.numpy().tobytes() + each.positions.numpy().tobytes())
    key = {"cell": cell.id, "prompts": told.hexdigest(), "headlab": __version__}
    kept = Scratch(scratch, key, progress)
    writer = _Writer(model, cell, kept, progress, decoding)
    parts = [writer.write(each, problems, built[each.name]) for each in conditions]
    looked = [number for number, _ in enumerate(problems[: asked["attention_n"]])]
    views = []
    for condition in conditions if heads and looked else []:
        own = [built[condition.name][number] for number in looked]
        ids = [problems[number].id for number in looked]
        views.append(look(model, condition, own, ids, heads, kept))
        progress(len(looked))
    return to_record(
        Found(
            conditions,
            {
                problem.id: {
                    "question": problem.question,
                    "answer": problem.answer,
                    "level": problem.level,
                    "subject": problem.subject,
                }
                for problem in problems
            },
            pd.concat(parts, ignore_index=True),
            heads,
            shape,
            _joined([attention for attention, _ in views], ATTENTION),
            _joined([regions for _, regions in views], REGION),
            {name: own[0].pieces for name, own in built.items()},
            {
                problem.id: {name: "".join(own[number].pieces) for name, own in built.items()}
                for number, problem in enumerate(problems[:SHOWN])
            },
            decoding,
            {TOO_LONG: len(long)} if long else {},
            writer.backed_off or model.back_offs > backed_off,
        )
    )


def read_problems(cell: Cell) -> list[Problem]:
    """The same for every seed: seeds are of what is drawn, and pairs stay pairs."""
    data = cell.settings["data"] if needs_data(cell.task) else None
    return load_problems(cell.task, data, cell.settings["n"])


def conditions_of(cell: Cell) -> list[Condition]:
    """With the luck of the cell's seed: of random tokens, of random places, of ARM."""
    found = parse_conditions(cell.settings["conditions"])
    return [
        replace(
            each,
            seed=each.seed + (cell.seed << 20),  # no condition's own seed is another cell's
            arm=None
            if each.arm is None
            else replace(each.arm, seed=(each.arm.seed + (cell.seed << 20)) % 2**62),
        )
        for each in found
    ]


def check(cell: Cell, texts: Texts, shape: tuple[int, int]) -> None:
    """Heads that are not there, fillers that are no token, a template that is none."""
    asked = cell.settings
    if asked["attention_n"]:
        heads_of(asked["heads"], shape, texts.name)
    for condition in conditions_of(cell):
        few = replace(condition, count=min(condition.count, 2))
        build(texts, few, "What is 2 + 3?")


def heads_of(names: Sequence[str], shape: tuple[int, int], model: str) -> list[Head]:
    """L0H13 is a head, L0 all heads of a layer."""
    layers, n_heads = shape
    found: dict[Head, None] = {}
    for name in names:
        layer, _, number = name.removeprefix("L").partition("H")
        own = (
            [Head(int(layer), int(number))]
            if number
            else [Head(int(layer), head) for head in range(n_heads)]
        )
        require_in_range(own[:1], layers, n_heads, model)
        found |= dict.fromkeys(own)
    return list(found)


def _fits(model: Model, problem: Problem, conditions: list[Condition], new: int) -> bool:
    """Whether the model can read the problem under every condition and write an answer."""
    if model.max_length is None or model.tokenizer is None:
        return True
    text = f"{INSTRUCTION} {problem.question}"
    own = len(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    more = max(
        condition.count + (_ROOM if condition.template == "chat" else 1) for condition in conditions
    )
    return own + more + min(new, model.max_length // 4) <= model.max_length


def _decoding(asked: dict[str, Any], model: Model, longest: int) -> dict[str, Any]:
    """Temperature (None: greedy) and top-p, as asked or as the model's own settings have it, and
    how long an answer can be: the same for every condition, though some leave less room."""
    new = asked["max_new_tokens"]
    if model.max_length is not None:
        new = max(1, min(new, model.max_length - longest))
    found = {"temperature": asked["temperature"], "top_p": asked["top_p"], "max_new_tokens": new}
    if asked["temperature"] != "model":
        return found
    own = getattr(model.hf, "generation_config", None)
    if own is None or not own.do_sample:
        return {**found, "temperature": None}
    unheeded = {
        name: getattr(own, name, None)
        for name, usual in (("top_k", (None, 0, 50)), ("repetition_penalty", (None, 1.0)))
        if getattr(own, name, None) not in usual
    }
    top_p = 1.0 if own.top_p is None else float(own.top_p)
    temperature = float(own.temperature or 1.0)
    return {**found, "temperature": temperature, "top_p": top_p, "unheeded": unheeded}


class _Writer:
    """Answers under conditions, in pieces that are kept on the way."""

    def __init__(
        self,
        model: Model,
        cell: Cell,
        scratch: Scratch,
        progress: Progress,
        decoding: dict[str, Any],
    ):
        self.model, self.cell, self.scratch = model, cell, scratch
        self.progress, self.decoding = progress, decoding
        self.rows = _ROWS.get(model.device.type, _ROWS["cpu"])
        self.backed_off = False  # memory ran out in a piece, now or before it was kept

    def write(
        self, condition: Condition, problems: list[Problem], built: list[Built]
    ) -> pd.DataFrame:
        """A row a problem, in their order."""
        order = sorted(range(len(built)), key=lambda number: (len(built[number].ids), number))
        found: dict[int, Written] = {}
        for start in range(0, len(order), self.rows):
            own = order[start : start + self.rows]
            told = hashlib.sha256(repr([problems[number].id for number in own]).encode())
            name = f"{condition.name}-{start}-{told.hexdigest()[:8]}"
            written = self._piece(name, condition, [built[number] for number in own])
            found |= dict(zip(own, written, strict=True))
        return pd.DataFrame(
            [
                (condition.name, problem.id, found[n].text, found[n].end, len(found[n].ids))
                for n, problem in enumerate(problems)
            ],
            columns=_TEXT,
        )

    def _piece(self, name: str, condition: Condition, built: list[Built]) -> list[Written]:
        asked = self.cell.settings
        new = self.decoding["max_new_tokens"]
        temperature, top_p = self.decoding["temperature"], self.decoding["top_p"]
        if condition.temperature is not None:
            temperature = condition.temperature or None
        if condition.top_p is not None:
            top_p = condition.top_p
        gaps = any(each.has_gap for each in built)

        def make() -> dict[str, Any]:
            before = self.model.back_offs
            found = generate(
                self.model,
                [each.ids for each in built],
                max_new_tokens=new,
                stop=asked["stop"],
                temperature=temperature,
                top_p=1.0 if temperature is None else top_p,
                seed=self.cell.seed,
                arm=condition.arm,
                position_ids=[each.positions for each in built] if gaps else None,
                progress=self.progress,
            )
            return {
                "rows": [vars(written) for written in found.rows[0]],
                "backed_off": self.model.back_offs > before,
            }

        kept = self.scratch.values(f"text-{as_file(name)}", make, pairs=len(built) * new)
        self.backed_off |= kept["backed_off"]
        return [Written(**written) for written in kept["rows"]]


# --- what it takes ---


def work(cell: Cell, n_heads: int) -> Work:
    asked = cell.settings
    n = asked["n"] or _size(cell)
    texts = n * len(asked["conditions"])
    looked = min(n, asked["attention_n"]) * len(asked["conditions"])
    pairs = texts * asked["max_new_tokens"] + looked
    return Work(pairs, texts * (1 + _TOKEN * asked["max_new_tokens"]) + 2 * looked)


def _size(cell: Cell) -> int:
    if cell.settings["data"] == "hub" and needs_data(cell.task):
        return find_problems(cell.task).size  # not fetched to be counted
    return len(read_problems(cell))


_TOKEN = 0.02  # a token that is written against a pass over its prompt


def sample(cell: Cell, texts: Texts, n: int) -> list[str]:
    filler = " /" * max(each["count"] for each in cell.settings["conditions"])
    if cell.settings["data"] == "hub" and needs_data(cell.task):
        return [f"{INSTRUCTION}{filler} {'x ' * 70}"]  # not fetched to be told how long they are
    return [f"{INSTRUCTION}{filler} {problem.question}" for problem in read_problems(cell)[:n]]


# --- a cell's record ---
#
# part       condition  problem  text  end  tokens  view  head  position  region  mean ...
# text       mless      math-3   ...   eos  120
# attention  mless                                  whole L0H4  17                0.02 ...
# region     mless      math-3                            L0H4            question

_TEXT = ["condition", "problem", "text", "end", "tokens"]
_PARTS = {"text": _TEXT, "attention": ATTENTION, "region": REGION}
_WORDS = ("part", "condition", "problem", "end", "view", "head", "region")
_NUMBERS = ("tokens", "position", "prompts")


def _joined(tables: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame([], columns=columns)


def to_record(found: Found) -> Record:
    parts = {"text": found.texts, "attention": found.attention, "region": found.regions}
    table = pd.concat(
        [own.assign(part=name) for name, own in parts.items() if len(own)], ignore_index=True
    )
    for columns in _PARTS.values():
        for column in columns:
            if column not in table:
                table[column] = None
    for column in _NUMBERS:
        table[column] = table[column].astype("float64").fillna(-1).astype("int32")
    for column in _WORDS:
        table[column] = table[column].astype(object).fillna("").astype("category")
    table["text"] = table["text"].astype(object).fillna("")
    for column in (*STATISTICS, "observed"):
        table[column] = table[column].astype("float64")
    about = {name: getattr(found, name) for name in _ABOUT}
    about["conditions"] = [condition.as_dict() for condition in found.conditions]
    about["heads"] = [str(head) for head in found.heads]
    return Record(table, about)


_ABOUT = ("problems", "shape", "tokens", "prompts", "decoding", "left_out", "backed_off")


def from_record(record: Record) -> Found:
    try:
        about, table = record.about, record.table
        found = {}
        for name, columns in _PARTS.items():
            own = table.loc[table["part"] == name, columns].reset_index(drop=True)
            for column in columns:
                if column in _WORDS:
                    own[column] = own[column].astype(str)
            found[name] = own
        known = {name: about[name] for name in _ABOUT if name != "shape"}
        return Found(
            conditions=parse_conditions(about["conditions"]),
            shape=(int(about["shape"][0]), int(about["shape"][1])),
            heads=[Head.parse(name) for name in about["heads"]],
            texts=found["text"],
            attention=found["attention"],
            regions=found["region"],
            **known,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise HeadlabError(f"a cell does not hold what the fillers study stores: {error}") from None
