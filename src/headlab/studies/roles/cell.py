"""One cell of the roles study: gates fitted on training questions, roles tested on others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlab.engine import Progress, measure
from headlab.errors import HeadlabError
from headlab.gatefits import Deltas, GateFit, Roles, Schedule, ablation_deltas, fit_gates
from headlab.gatefits.deltas import LINES
from headlab.gatefits.files import read_state, write_state
from headlab.gates import ZERO, Gates, mean_reference
from headlab.heads import Head
from headlab.model import Model
from headlab.studies import Work
from headlab.studies.cells import Cell, Record
from headlab.studies.scratch import Scratch
from headlab.studies.tables import joined, part, split, values_of
from headlab.tasks import is_generated, make_examples, takes_data

_SHOWN = 5  # examples kept with their texts, for the report
_GENERATED = 1000  # examples to fit on, of tasks that can make any number
_KEEP = 50  # updates between two states of a fit on the disk
PHASES = ("free", "plus", "minus")


@dataclass(frozen=True)
class Found:
    """What a cell found."""

    fit: GateFit
    deltas: Deltas
    log_prob: Tensor  # [example], of the target with all heads
    right: Tensor  # [example], 1 where the answer is right
    measure: str  # how right was judged
    chance: float | None
    n_train: int
    examples: list[dict[str, Any]]
    backed_off: bool

    @property
    def roles(self) -> Roles:
        return Roles(self.fit)


def run_cell(cell: Cell, model: Model, progress: Progress, scratch: Path) -> Record:
    """Fit all seeds' gates together, then ablate by role on questions that the fit has not seen."""
    asked = cell.settings
    backed_off = model.back_offs
    drawn: dict[str, Any] = {"seed": cell.seed}
    if takes_data(cell.task):
        drawn["data"] = asked["data"]
    generated = is_generated(cell.task)  # in any number; of others there are so many
    train = asked["train"] or (_GENERATED if generated else None)
    n = asked["n"] if generated else None
    training = make_examples(model, cell.task, train, split="rank", **drawn)
    tested = make_examples(model, cell.task, n, split="curve", **drawn)[: asked["n"]]
    if len(tested) < 2:
        raise HeadlabError(f"{cell.task} has {len(tested)} examples to test on; two are needed")
    schedule = Schedule(
        **{name: asked[name] for name in ("updates", "batch", "strength", "clip")},
        free_rates=tuple(asked["free_rates"]),
        rates=tuple(asked["rates"]),
    )
    prompts = [example.prompt for example in training[:200]]
    reference = mean_reference(model, prompts) if asked["reference"] == "mean" else ZERO
    used = hashlib.sha256("".join(example.fingerprint for example in training).encode())
    kept, key = scratch / "fit.safetensors", {"cell": cell.id, "examples": used.hexdigest()}
    fit = fit_gates(
        model,
        training,
        asked["seeds"],
        schedule,
        reference=reference,
        task=cell.task,
        state=read_state(kept, key, model.device),
        on_state=lambda state: write_state(state, kept, key),
        state_every=_KEEP,
        progress=lambda fits: progress(fits * schedule.batch),
    )
    total = model.n_layers * model.n_heads
    deltas = ablation_deltas(
        model,
        tested,
        Roles(fit),
        [k for k in asked["ks"] if k <= total],
        base=asked["base"],
        aggregated=asked["aggregated"],
        reference=reference,
        random_orders=asked["random_orders"],
        keep=Scratch(scratch / "deltas", key, progress).tensor,
        progress=progress,
    )
    choices = all(example.wrong for example in tested)
    by = "choice-accuracy" if choices else "top1-accuracy"
    chances = [1 / (1 + len(example.wrong)) for example in tested]
    chance = sum(chances) / len(chances) if choices else None
    whole = Gates.ones(model)
    return to_record(
        Found(
            fit,
            deltas,
            measure(model, tested, whole, "log-prob").clean,
            measure(model, tested, whole, by).clean,
            by,
            chance,
            len(training),
            [example.as_dict() for example in tested[:_SHOWN]],
            model.back_offs > backed_off,
        )
    )


def work(cell: Cell, n_heads: int) -> Work:
    asked = cell.settings
    seeds, ks = len(asked["seeds"]), len([k for k in asked["ks"] if k <= n_heads])
    fits = 3 * seeds * asked["updates"] * asked["batch"]
    per_order = ks * (2 if asked["base"] == "plus" else 1) + (asked["base"] != "plus")
    orders = 3 * seeds + max(seeds, asked["random_orders"])
    return Work(
        fits + orders * per_order * asked["n"], 2.2 * fits + orders * per_order * asked["n"]
    )


# --- a cell's record ---
#
# part                     order k       head  example  value
# free, plus, minus        0             L5H1           the gate's logit
# loss_free, ...           0     update                 the loss of that update
# delta_F, I, N, random    0     heads         id       Δ log-prob of the target; an order a seed
# log_prob, right                              id       with all heads


def to_record(found: Found) -> Record:
    fit, deltas = found.fit, found.deltas
    names = [
        str(Head(layer, head))
        for layer in range(fit.plus.shape[1])
        for head in range(fit.plus.shape[2])
    ]
    seeds = np.array(fit.seeds)
    parts = [
        part(
            phase,
            getattr(fit, phase).reshape(-1),
            order=np.repeat(seeds, len(names)),
            head=np.tile(names, len(seeds)),
        )
        for phase in PHASES
    ]
    updates = fit.losses.shape[1]
    for phase, own in zip(PHASES, fit.losses.view(3, len(seeds), updates), strict=True):
        parts.append(
            part(
                f"loss_{phase}",
                own.reshape(-1),
                order=np.repeat(seeds, updates),
                k=np.tile(np.arange(updates), len(seeds)),
            )
        )
    ids = np.array(deltas.examples)
    for line in LINES:
        values = deltas.lines[line]  # [order, k, example]
        parts.append(
            part(
                f"delta_{line}",
                values.reshape(-1),
                order=np.repeat(np.arange(len(values)), values[0].numel()),
                k=np.tile(np.repeat(deltas.ks, len(ids)), len(values)),
                example=np.tile(ids, values.shape[0] * values.shape[1]),
            )
        )
    parts += [part(name, getattr(found, name), example=ids) for name in ("log_prob", "right")]
    table = joined(parts)
    about = {
        "fit": {name: getattr(fit, name) for name in ("model", "task", "seeds", "settings")},
        "layers": fit.plus.shape[1],
        "ks": deltas.ks,
        "tested": deltas.examples,
        **{name: getattr(found, name) for name in _ABOUT},
    }
    return Record(table, about)


_ABOUT = ("measure", "chance", "n_train", "examples", "backed_off")


def from_record(record: Record) -> Found:
    try:
        about, parts = record.about, split(record.table)
        seeds, layers = len(about["fit"]["seeds"]), about["layers"]
        gates = {phase: values_of(parts[phase]).view(seeds, layers, -1) for phase in PHASES}
        losses = torch.cat([values_of(parts[f"loss_{phase}"]).view(seeds, -1) for phase in PHASES])
        ks, ids = about["ks"], about["tested"]
        lines = {
            line: values_of(parts[f"delta_{line}"]).view(-1, len(ks), len(ids)) for line in LINES
        }
        known: dict[str, Any] = {**about["fit"], **gates}
        fit = GateFit(**known, losses=losses, paths=torch.empty(0))
        return Found(
            fit,
            Deltas(ks, lines, ids),
            values_of(parts["log_prob"]),
            values_of(parts["right"]),
            **{name: about[name] for name in _ABOUT},
        )
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise HeadlabError(f"a cell does not hold what the roles study stores: {error}") from None
