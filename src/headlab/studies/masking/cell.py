"""One cell of the masking study: heads ranked for every function on training questions, then taken
away while the model answers others. It holds the texts; what they are worth is graded afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlab import __version__
from headlab.engine import Progress
from headlab.errors import HeadlabError
from headlab.gates import Gates
from headlab.generation import Written, generate
from headlab.heads import Head
from headlab.model import Model
from headlab.probing import elbow
from headlab.studies import Work
from headlab.studies.cells import Cell, Record
from headlab.studies.masking.boosting import boosts_of, directions
from headlab.studies.masking.judging import JUDGED
from headlab.studies.masking.masks import Mask, draw_masks, gates_of, wanted_ks
from headlab.studies.masking.ranked import GATE_BATCH, Ranked, fit_pairs, rank_functions
from headlab.studies.masking.spec import SHARES
from headlab.studies.scratch import Scratch
from headlab.tasks.cogqa import FUNCTIONS, PROMPT, STOP, SubQuestion, load, pick

TOO_LONG = "questions longer than the model reads"
_SHOWN = 4  # questions of each function that are kept with their prompts
_ROWS = {"cuda": 8192, "cpu": 128}  # texts of a piece that is kept on the way


@dataclass(frozen=True)
class Found:
    """What a cell found."""

    shape: tuple[int, int]  # layers, heads
    scores: dict[str, Tensor]  # by function, [layer, head]
    ks: dict[str, list[int]]
    elbows: dict[str, int]
    texts: pd.DataFrame  # heads_of, asked, kind, k, draw, item, text, end
    items: dict[str, dict[str, str]]  # tested questions by id: function, question, asked, answer
    probe: dict[str, Any] | None  # how well the probe does, where it ranks
    right: dict[str, float]  # by function, the share of training answers that are right
    left_out: dict[str, int]  # rows of the data that could not be asked
    cast: int
    prompts: dict[str, str]  # of some items
    backed_off: bool


def run_cell(cell: Cell, model: Model, progress: Progress, scratch: Path) -> Record:
    """Answer, rank, and answer again without the heads."""
    asked = cell.settings
    backed_off = model.back_offs
    data = load(asked["data"])
    train = pick(data.train, list(FUNCTIONS), asked["train"], cell.seed)
    held_out = pick(data.test, list(FUNCTIONS), asked["n"], cell.seed)
    long = {item.id for item in (*train, *held_out) if not _fits(model, item)}
    train, held_out = ([item for item in own if item.id not in long] for own in (train, held_out))
    progress(asked["max_new_tokens"] * _texts_of(cell, long))
    tested = [item for item in held_out if item.function in asked["functions"]]
    shape = (model.n_layers, model.n_heads)
    _require(asked, train, tested, shape)
    told = hashlib.sha256(repr((train, held_out, PROMPT, STOP, JUDGED)).encode()).hexdigest()
    key = {"cell": cell.id, "questions": told, "headlab": __version__}
    writer = Answering(model, asked, Scratch(scratch, key, progress), progress)
    ranked = rank_functions(cell, model, train, held_out, writer)
    ks = {name: wanted_ks(asked["ks"], ranked.sizes(name)) for name in asked["functions"]}
    masks = {
        name: draw_masks(
            *(name, ranked.order(name), shape, ks[name], asked["draws"]),
            key=f"{cell.seed} {cell.method}",
        )
        for name in asked["functions"]
    }
    parts = []
    for name in asked["functions"]:
        own = [item for item in tested if item.function == name]
        nothing = Mask("", "none", 0, 0, ())
        parts.append(writer.masked(f"{name}", own, [nothing, *masks[name]]))
        if asked["cross"]:
            others = [
                mask
                for other in asked["functions"]
                if other != name
                for mask in masks[other]
                if mask.kind == "top"
            ]
            if others:
                parts.append(writer.masked(f"{name}-cross", own, others))
        if asked["boost"]:
            parts.append(_boosted(name, own, masks[name], asked["boost"], ranked, writer))
    return to_record(
        Found(
            shape,
            {name: ranked.scores[name] for name in asked["functions"]},
            ks,
            {name: elbow(ranked.sizes(name)) for name in asked["functions"]},
            pd.concat(parts, ignore_index=True),
            {
                item.id: {
                    "function": item.function,
                    "question": item.question,
                    "asked": item.asked,
                    "answer": item.answer,
                }
                for item in tested
            },
            ranked.probe,
            ranked.answered.right,
            {**data.left_out, **({TOO_LONG: len(long)} if long else {})},
            data.cast,
            {
                item.id: item.prompt
                for name in asked["functions"]
                for item in [item for item in tested if item.function == name][:_SHOWN]
            },
            writer.backed_off or model.back_offs > backed_off,
        )
    )


def _fits(model: Model, item: SubQuestion) -> bool:
    """Whether the model can read the question and write at least one token."""
    try:
        return model.max_length is None or len(model.ids(item.prompt)) < model.max_length
    except HeadlabError:  # more than it reads
        return False


def _require(
    asked: dict[str, Any],
    train: list[SubQuestion],
    tested: list[SubQuestion],
    shape: tuple[int, int],
) -> None:
    """Say what cannot be done before anything is answered."""
    for what, items in (("rank heads", train), ("test", tested)):
        there = {item.function for item in items}
        for name in asked["functions"]:
            if name not in there:
                raise HeadlabError(f"no question of {name} is there to {what} on")
    wanted_ks(asked["ks"], torch.zeros(shape))


class Answering:
    """Answers under masks, in pieces that are kept on the way."""

    def __init__(self, model: Model, asked: dict[str, Any], scratch: Scratch, progress: Progress):
        self.model, self.asked, self.scratch, self.progress = model, asked, scratch, progress
        self.rows = _ROWS.get(model.device.type, _ROWS["cpu"])
        self.backed_off = False  # memory ran out in a piece, now or before it was kept

    def answers(self, name: str, items: Sequence[SubQuestion]) -> list[Written]:
        """The whole model's, in the order of the items."""
        found: dict[str, Written] = {}
        for number, part in enumerate(_pieces(items, self.rows)):
            (row,) = self._write(f"{name}-{number}", part, None, None)
            found |= {item.id: written for item, written in zip(part, row, strict=True)}
        return [found[item.id] for item in items]

    def masked(
        self,
        name: str,
        items: Sequence[SubQuestion],
        masks: Sequence[Mask],
        boosts: Tensor | None = None,
    ) -> pd.DataFrame:
        """Every mask on every item: a row a text. Heads that are boosted are not masked."""
        shape = (self.model.n_layers, self.model.n_heads)
        gates = gates_of(masks, shape, self.asked["scale"] if boosts is None else 1.0)
        rows = []
        for number, part in enumerate(_pieces(items, max(1, self.rows // len(masks)))):
            texts = self._write(f"{name}-{number}", part, gates, boosts)
            for mask, own in zip(masks, texts, strict=True):
                for item, written in zip(part, own, strict=True):
                    told = (mask.heads_of, item.function, mask.kind, mask.k, mask.draw)
                    rows.append((*told, item.id, written.text, written.end))
        return pd.DataFrame(rows, columns=_TEXT_COLUMNS)

    def _write(
        self, name: str, items: list[SubQuestion], gates: Tensor | None, boosts: Tensor | None
    ) -> list[list[Written]]:
        """[mask][item]"""
        new = self.asked["max_new_tokens"]
        n = 1 if gates is None else len(gates)
        # Of which questions and masks: pieces are of other sizes on other devices.
        told = hashlib.sha256(repr([item.id for item in items]).encode())
        for tensor in (gates, boosts):
            told.update(b"" if tensor is None else tensor.contiguous().numpy().tobytes())

        def make() -> dict[str, Any]:
            before = self.model.back_offs
            found = generate(
                self.model,
                [item.prompt for item in items],
                None if gates is None else Gates(gates),
                positions=self.asked["positions"],
                max_new_tokens=new,
                stop=STOP,
                boost=boosts,
                progress=self.progress,
            )
            return {
                "rows": [[vars(written) for written in row] for row in found.rows],
                "backed_off": self.model.back_offs > before,
            }

        name = f"{name}-{told.hexdigest()[:8]}"
        kept = self.scratch.values(name, make, pairs=n * len(items) * new)
        self.backed_off |= kept["backed_off"]
        return [[Written(**written) for written in row] for row in kept["rows"]]


def _pieces(items: Sequence[SubQuestion], n: int) -> list[list[SubQuestion]]:
    """So many at a time, those of like length together."""
    order = sorted(items, key=lambda item: (len(item.prompt), item.id))
    return [list(order[start : start + n]) for start in range(0, len(order), n)]


def _boosted(
    name: str,
    items: list[SubQuestion],
    masks: list[Mask],
    strength: float,
    ranked: Ranked,
    writer: Answering,
) -> pd.DataFrame:
    """The top heads and random ones pushed towards what they give in right answers."""
    assert ranked.pooled is not None
    chosen = [mask for mask in masks if mask.kind in ("top", "random")]
    answered = ranked.answered
    found = directions(ranked.pooled, answered.labels == name, answered.hits)
    if found is None:  # all right, or all wrong: there is no difference to go along
        return pd.DataFrame([], columns=_TEXT_COLUMNS)
    boosts = boosts_of([mask.heads for mask in chosen], found, strength)
    named = [
        mask._replace(kind="boosted" if mask.kind == "top" else "boosted-random") for mask in chosen
    ]
    return writer.masked(f"{name}-boost", items, named, boosts)


def work(cell: Cell, n_heads: int) -> Work:
    asked = cell.settings
    train = len(pick(load(asked["data"]).train, list(FUNCTIONS), asked["train"], cell.seed))
    texts = _texts_of(cell)
    ranking = {"probe": 2.0, "attribute": 3.0, "ablate": 1.0 + n_heads / 2}.get(
        cell.method, 1.0 + 9 * asked["updates"] * GATE_BATCH / max(1, train)
    )
    pairs = texts * asked["max_new_tokens"] + len(asked["functions"]) * fit_pairs(cell)
    return Work(pairs, ranking * train + _DECODED * texts)


def _texts_of(cell: Cell, only: set[str] | None = None) -> int:
    """How many texts a cell writes, or how many of them are of some questions."""
    asked = cell.settings
    data = load(asked["data"])
    train = pick(data.train, list(FUNCTIONS), asked["train"], cell.seed)
    held_out = pick(data.test, list(FUNCTIONS), asked["n"], cell.seed)
    if only is not None:
        train, held_out = ([i for i in own if i.id in only] for own in (train, held_out))
    tested = sum(item.function in asked["functions"] for item in held_out)
    ks = len(SHARES) if asked["ks"] == "shares" else len(asked["ks"])
    masks = 1 + ks * (1 + 2 * asked["draws"])
    if asked["cross"]:
        masks += ks * (len(asked["functions"]) - 1)
    if asked["boost"]:
        masks += ks * (1 + asked["draws"])
    probed = len(held_out) if cell.method == "probe" else 0
    return masks * tested + probed + len(train)


_DECODED = 1.2  # an answer against a pass over its prompt
_TEXT_COLUMNS = ["heads_of", "asked", "kind", "k", "draw", "item", "text", "end"]


# --- a cell's record ---
#
# part   heads_of  asked     kind  k  draw  item      head  value  text  end
# score  function                                     L5H1  importance
# text   function  function  top   8  0     test-1-2               ...   stop


def to_record(found: Found) -> Record:
    names = [
        str(Head(layer, head)) for layer in range(found.shape[0]) for head in range(found.shape[1])
    ]
    scores = pd.DataFrame(
        {
            "part": "score",
            "heads_of": np.repeat(list(found.scores), len(names)),
            "head": np.tile(names, len(found.scores)),
            "value": torch.stack(list(found.scores.values())).double().reshape(-1).numpy(),
        }
    )
    table = pd.concat([scores, found.texts.assign(part="text")], ignore_index=True)
    for column in ("k", "draw"):
        table[column] = table[column].fillna(-1).astype("int32")
    for column in ("part", "heads_of", "asked", "kind", "item", "head", "end"):
        table[column] = table[column].fillna("").astype("category")
    table["text"] = table["text"].fillna("")
    return Record(table, {name: getattr(found, name) for name in _ABOUT})


_ABOUT = (
    *("shape", "ks", "elbows", "items", "probe", "right", "left_out", "cast", "prompts"),
    "backed_off",
)


def from_record(record: Record) -> Found:
    try:
        about, table = record.about, record.table
        shape = (int(about["shape"][0]), int(about["shape"][1]))
        scores = table[table["part"] == "score"]
        by_function = {
            name: torch.from_numpy(
                scores.loc[scores["heads_of"] == name, "value"].to_numpy(np.float64).copy()
            ).view(shape)
            for name in about["ks"]
        }
        texts = table.loc[table["part"] == "text", _TEXT_COLUMNS].reset_index(drop=True)
        for column in ("heads_of", "asked", "kind", "item", "end"):
            texts[column] = texts[column].astype(str)
        known = {name: about[name] for name in _ABOUT if name != "shape"}
        return Found(shape=shape, scores=by_function, texts=texts, **known)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise HeadlabError(f"a cell does not hold what the masking study stores: {error}") from None
