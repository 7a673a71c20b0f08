"""One cell of the contrastive study: gates fitted on all word tasks but one, tested on that one."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlab.engine import Progress, measure
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gatefits import ContrastFit, Schedule, fit_contrast
from headlab.gatefits.files import read_state, write_state
from headlab.gates import ZERO, mean_reference
from headlab.heads import Head
from headlab.model import Model
from headlab.studies import Work
from headlab.studies.cells import Cell, Record
from headlab.studies.tables import joined, part, split, values_of
from headlab.tasks import make_examples
from headlab.tasks.word_pairs import FORMATS

_SHOWN = 2  # pairs kept with their prompts, for the report
# What is tested: the whole model; the gates; heads with a gate below 0.5 taken away and all others
# whole; and the same gates dealt out to other heads, the baseline.
VARIANTS = ("before", "gates", "closed", "shuffled")
MEASURES = {"right": "top1-accuracy", "log_prob": "log-prob"}
_DEALS = 20  # of gates to other heads, at least


def deals(seeds: int) -> int:
    """How often each seed's gates are dealt out."""
    return max(5, math.ceil(_DEALS / seeds))


@dataclass(frozen=True)
class Found:
    """What a cell found. Values are [mask, example]; a mask a seed, of before one."""

    fit: ContrastFit
    kept: str  # the format
    values: dict[tuple[str, str, str], Tensor]  # by measure, format and variant
    tested: list[str]  # pairs
    n_train: int
    examples: list[dict[str, Any]]
    backed_off: bool

    @property
    def forgotten(self) -> str:
        return other_than(self.kept)


def other_than(format_: str) -> str:
    return FORMATS[1 - FORMATS.index(format_)]


def run_cell(cell: Cell, model: Model, progress: Progress, scratch: Path) -> Record:
    """Fit on the other tasks, then ask this one in both formats."""
    asked = cell.settings
    backed_off = model.back_offs
    kept = cell.method.removeprefix("keep-")
    others = [task for task in asked["tasks"] if task != cell.task]

    def made(task: str, format_: str, n: int) -> list[Example]:
        name = f"{task}-{format_}"
        return make_examples(model, name, None, cell.seed, "all", data=asked["data"])[:n]

    training = {
        format_: [example for task in others for example in made(task, format_, asked["train"])]
        for format_ in FORMATS
    }
    tested = {format_: made(cell.task, format_, asked["n"]) for format_ in FORMATS}
    schedule = Schedule(
        **{name: asked[name] for name in ("updates", "batch", "strength", "clip")},
        free_rates=tuple(asked["rates"]),
    )
    keep, forget = training[kept], training[other_than(kept)]
    prompts = [example.prompt for example in (*keep[:100], *forget[:100])]
    reference = mean_reference(model, prompts) if asked["reference"] == "mean" else ZERO
    used = hashlib.sha256("".join(each.fingerprint for each in (*keep, *forget)).encode())
    path, key = scratch / "fit.safetensors", {"cell": cell.id, "examples": used.hexdigest()}
    fit = fit_contrast(
        model,
        keep,
        forget,
        asked["seeds"],
        schedule,
        reference=reference,
        state=read_state(path, key, model.device),
        on_state=lambda state: write_state(state, path, key),
        progress=lambda fits: progress(2 * fits * schedule.batch),
    )
    masks = variants(fit.gates)
    stacked, sizes = torch.cat(list(masks.values())), [len(each) for each in masks.values()]
    values = {}
    for name, by in MEASURES.items():
        for format_ in FORMATS:
            found = measure(model, tested[format_], stacked, by, reference, progress=progress)
            for variant, own in zip(masks, torch.split(found.values, sizes), strict=True):
                values[name, format_, variant] = own
    return to_record(
        Found(
            fit,
            kept,
            values,
            [example.id for example in tested[kept]],
            len(keep),
            [
                {"format": format_, **example.as_dict()}
                for format_ in FORMATS
                for example in tested[format_][:_SHOWN]
            ],
            model.back_offs > backed_off,
        )
    )


def variants(gates: Tensor) -> dict[str, Tensor]:
    """The masks that are tested, [mask, layer, head] each, from gates [seed, layer, head]."""
    flat = gates.flatten(1)
    random = torch.Generator().manual_seed(0)
    dealt = [
        row[torch.randperm(flat.shape[1], generator=random)]
        for row in flat
        for _ in range(deals(len(flat)))
    ]
    return {
        "before": torch.ones_like(gates[:1]),
        "gates": gates,
        "closed": (gates >= 0.5).to(gates.dtype),
        "shuffled": torch.stack(dealt).view(-1, *gates.shape[1:]),
    }


def work(cell: Cell, n_heads: int) -> Work:
    asked = cell.settings
    seeds = len(asked["seeds"])
    fits = seeds * asked["updates"] * asked["batch"]
    tests = len(MEASURES) * (1 + (2 + deals(seeds)) * seeds) * asked["n"]
    short = 0.3  # an instruction and one pair against ten pairs
    return Work(2 * fits + 2 * tests, (1 + short) * (2.2 * fits + tests))


# --- a cell's record ---
#
# part                          order k       head  example  value
# logit                         seed          L5H1           the gate's
# loss                          seed  update
# right_icl_gates, ...          mask                id       1 where right; log_prob_...


def to_record(found: Found) -> Record:
    fit = found.fit
    names = [
        str(Head(layer, head))
        for layer in range(fit.logits.shape[1])
        for head in range(fit.logits.shape[2])
    ]
    seeds, updates = np.array(fit.seeds), fit.losses.shape[1]
    parts = [
        part(
            "logit",
            fit.logits.reshape(-1),
            order=np.repeat(seeds, len(names)),
            head=np.tile(names, len(seeds)),
        ),
        part(
            "loss",
            fit.losses.reshape(-1),
            order=np.repeat(seeds, updates),
            k=np.tile(np.arange(updates), len(seeds)),
        ),
    ]
    for key, values in found.values.items():
        parts.append(
            part(
                "_".join(key),
                values.reshape(-1),
                order=np.repeat(np.arange(len(values)), len(found.tested)),
                example=np.tile(found.tested, len(values)),
            )
        )
    about = {
        "fit": {name: getattr(fit, name) for name in ("model", "seeds", "settings")},
        "layers": fit.logits.shape[1],
        **{name: getattr(found, name) for name in _ABOUT},
    }
    return Record(joined(parts), about)


_ABOUT = ("kept", "tested", "n_train", "examples", "backed_off")


def from_record(record: Record) -> Found:
    try:
        about, parts = record.about, split(record.table)
        seeds, layers = len(about["fit"]["seeds"]), about["layers"]
        logits = values_of(parts["logit"]).view(seeds, layers, -1)
        losses = values_of(parts["loss"]).view(seeds, -1)
        known: dict[str, Any] = about["fit"]
        values = {
            (name, format_, variant): values_of(parts[f"{name}_{format_}_{variant}"]).view(
                -1, len(about["tested"])
            )
            for name in MEASURES
            for format_ in FORMATS
            for variant in VARIANTS
        }
        return Found(
            ContrastFit(**known, logits=logits, losses=losses),
            values=values,
            **{name: about[name] for name in _ABOUT},
        )
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise HeadlabError(
            f"a cell does not hold what the contrastive study stores: {error}"
        ) from None
