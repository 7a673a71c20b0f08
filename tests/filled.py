"""Runs of the fillers study whose texts and attention are made up: what they must show is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from headlab.fillers import INSTRUCTION, Condition, parse_conditions
from headlab.heads import Head
from headlab.store import Run
from headlab.studies.fillers.cell import Found, to_record
from headlab.studies.fillers.grades import BOXED
from headlab.studies.fillers.panels import Panel
from headlab.studies.fillers.spec import FillersSpec
from headlab.studies.graded import Grades

NAMES = ("none", "mless", "mful", "gap", "random", "arm")
HEADS = (Head(0, 0), Head(0, 2), Head(0, 13))
GAIN = {"mless": 0.12, "mful": 0.04, "gap": 0.0, "random": -0.05, "arm": 0.02}
BASE = {"qwen2.5-math-1.5b": 0.55, "qwen2.5-math-7b": 0.7, "llama-3.1-8b-instruct": 0.42}
KINDS = ("right", "other form", "empty box", "no box", "cut off", "wrong")
_PROMPTS = 50  # that are looked at
_WORDS = INSTRUCTION.split()


def conditions(given: Any = NAMES, chat: bool = False) -> list[Condition]:
    found = parse_conditions(given if isinstance(given, str) else list(given))
    if chat:
        found += [replace(each, name=f"{each.name}-chat", template="chat") for each in found]
    return found


def made(
    model: str = "smollm2",
    task: str = "arithmetic",
    seed: int = 0,
    n: int = 60,
    own: Sequence[Condition] | None = None,
    heads: Sequence[Head] = HEADS,
) -> Found:
    """A cell. Every kind of answer is there, the more right ones the more a condition gains."""
    own = conditions() if own is None else own
    problems = {
        f"{task}-{i}": {
            "question": f"Find $x$ if ${i + 2}x = {(i + 2) * (i + 5)}$, on the {i}th day.",
            "answer": rf"\frac{{{2 * i + 1}}}{{2}}" if i % 5 == 3 else str(i + 5),
            "level": str(1 + i % 5),
            "subject": "Algebra",
        }
        for i in range(n)
    }
    rows = []
    for condition in own:
        for i, id in enumerate(problems):
            rows.append((condition.name, id, *_text(model, task, seed, condition.name, i)))
    tokens = {each.name: _pieces(each) for each in own}
    return Found(
        list(own),
        problems,
        pd.DataFrame(rows, columns=["condition", "problem", "text", "end", "tokens"]),
        list(heads),
        (28, 16),
        _attention(own, heads),
        _regions(own, heads, list(problems)[:_PROMPTS], model),
        tokens,
        {id: {name: "".join(each) for name, each in tokens.items()} for id in list(problems)[:8]},
        {"temperature": None, "top_p": 1.0, "max_new_tokens": 2048},
        {},
        False,
    )


def kind(model: str, task: str, seed: int, name: str, i: int) -> str:
    """What sort of answer the i-th is."""
    bare = name.removesuffix("-chat")
    right = BASE.get(model, 0.5) + GAIN.get(bare, 0.0) - 0.06 * (bare != name)
    hard = random.Random(f"{model} {task} {i}").random()  # the same under every condition
    luck = random.Random(f"{model} {task} {seed} {name} {i}")
    if hard + 0.1 * (luck.random() - 0.5) < right:
        return "other form" if i % 5 == 3 else "right"
    return luck.choice(KINDS[2:])


def _text(model: str, task: str, seed: int, name: str, i: int) -> tuple[str, str, int]:
    own = kind(model, task, seed, name, i)
    work = f"We divide both sides by {i + 2}.\n\n" * (1 + i % 4)
    told = {
        "right": rf"So \( x = \boxed{{{i + 5}}} \).",
        "other form": rf"So \( x = \boxed{{{i + 0.5}}} \).",  # \frac{1}{2} as 0.5
        "empty box": r"So \boxed{}.",
        "no box": "I do not know.",
        "cut off": "and so on " * 40,
        "wrong": rf"So \boxed{{{i + 1000}}}.",
    }[own]
    return work + told, "length" if own == "cut off" else "eos", 40 + 7 * (i % 11) + len(name)


def graded(found: Found) -> Grades:
    """As the graders would: math, math-strict, math-published."""
    kinds = [_kind_of(text) for text in found.texts["text"]]
    right = [1.0 * (own in ("right", "other form")) for own in kinds]
    table = found.texts[["condition", "problem"]].assign(
        math=right,
        **{"math-strict": [1.0 * (own == "right") for own in kinds]},
        **{"math-published": [1.0 * (own in ("right", "empty box")) for own in kinds]},
        ungraded=False,
        **{BOXED: [own not in ("no box", "cut off") for own in kinds]},
    )
    names = ("math", "math-strict", "math-published")
    return Grades(table, {name: name for name in names}, {})


def _kind_of(text: str) -> str:
    if r"\boxed{}" in text:
        return "empty box"
    if r"\boxed{" not in text:
        return "cut off" if "and so on" in text else "no box"
    said = text.rpartition(r"\boxed{")[2].partition("}")[0]
    if "." in said:
        return "other form"
    return "wrong" if int(said) >= 1000 else "right"


def panel(
    model: str = "smollm2", task: str = "arithmetic", seeds: Sequence[int] = (0,), **given: Any
) -> Panel:
    founds = [made(model, task, seed, **given) for seed in seeds]
    return Panel(model, model, task, list(seeds), founds, [graded(found) for found in founds])


def write_run(folder: Path, skip: int = 0, **asked: Any) -> Run:
    """A run on the disk with made-up cells; `skip` leaves the last ones undone."""
    spec = FillersSpec.model_validate(
        FillersSpec.filled({"study": "fillers", "size": "smoke", **asked})
    )
    run = Run.start(folder, spec)
    with run.locked():
        for cell in run.cells[: len(run.cells) - skip]:
            own = parse_conditions(cell.settings["conditions"])
            heads = HEADS if cell.settings["attention_n"] else ()
            found = made(cell.model, cell.task, cell.seed, cell.settings["n"] or 60, own, heads)
            run.write(cell, to_record(found), 1.0)
    return run


# --- attention ---


def _pieces(condition: Condition) -> list[str]:
    """The first prompt's tokens."""
    asked = [_WORDS[0], *(f" {word}" for word in _WORDS[1:])]
    question = [" Find", " $", "x", "$", " if", " $", "2", "x", " =", " ", "10", "$", ".", "\n"] * 3
    filler = {"filler": f" {condition.filler}", "random-tokens": " moon"}.get(condition.kind, "")
    found = asked + [filler] * condition.inserts + question
    return ["<|user|>", "\n", *found, "<|bot|>"] if condition.template == "chat" else found


def even(length: int, place: int) -> float:
    """What the tokens after a place give it if each looks evenly at all it may."""
    later = range(place + 1, length)
    return sum(1 / (query + 1) for query in later) / len(later)


def _attention(own: Sequence[Condition], heads: Sequence[Head]) -> pd.DataFrame:
    rows = []
    for condition in own:
        length = len(_pieces(condition))
        for view in ("original", "whole") if condition.inserts else ("original",):
            last = length - (condition.inserts if view == "original" else 0)
            start = len(_WORDS) + (2 if condition.template == "chat" else 0)
            for head in heads:
                for place in range(last - 1):
                    at = place
                    if view == "original" and place >= start:
                        at = place + condition.inserts
                    null = even(length, at)
                    wave = 1 + 0.4 * math.sin(place / 3 + head.head)
                    first = 3.0 if place == 0 else 1.0
                    ratio = first * wave * (1 + 0.1 * GAIN.get(condition.name, 0))
                    mean = null * ratio
                    prompts = _PROMPTS if place < last - 10 else _PROMPTS // 2 + last - place - 6
                    rows.append(
                        (
                            *(condition.name, view, str(head), place, mean, 0.9 * mean),
                            *(1.12 * mean, null, ratio, 0.97 * ratio, 1.04 * ratio, prompts),
                        )
                    )
    columns = ["condition", "view", "head", "position", "mean", "low", "high"]
    columns += ["uniform", "ratio", "ratio_low", "ratio_high", "prompts"]
    return pd.DataFrame(rows, columns=columns)


def _regions(
    own: Sequence[Condition], heads: Sequence[Head], problems: Sequence[str], model: str
) -> pd.DataFrame:
    beyond = {"mless": 0.85, "random": 1.15}
    rows = []
    for condition in own:
        fewer = 1 / (1 + condition.inserts / 60)
        for head in heads:
            for region, level in (("first", 0.1), ("instruction", 0.04), ("question", 0.02)):
                for id in problems:
                    luck = random.Random(f"{model} {condition.name} {head} {region} {id}")
                    null = level * fewer * luck.uniform(0.9, 1.1)
                    factor = beyond.get(condition.name, 1.0) * luck.uniform(0.85, 1.15)
                    rows.append((condition.name, str(head), region, id, null * factor, null))
    columns = ["condition", "head", "region", "problem", "observed", "uniform"]
    return pd.DataFrame(rows, columns=columns)
