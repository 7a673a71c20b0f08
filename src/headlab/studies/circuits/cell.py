"""One cell of the circuits study: heads ranked on some prompts, the order tested on others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headlab.curves import MIN_ORDERS, Curve, NoEffect, curve, expected_masks
from headlab.engine import Progress
from headlab.errors import HeadlabError
from headlab.gates import mean_reference
from headlab.heads import Head
from headlab.model import Model
from headlab.ranking import measure_for, rank
from headlab.scores import HeadScores
from headlab.screening import masks_run
from headlab.sparse import edges_kept
from headlab.studies import Work
from headlab.studies.cells import Cell, Record
from headlab.studies.circuits.spec import way_of
from headlab.studies.tables import joined, part, split, values_of
from headlab.tasks import make_examples

_SHOWN = 5  # examples kept with their texts, for the report


@dataclass(frozen=True)
class Found:
    """What a cell found."""

    scores: HeadScores
    curve: Curve | None  # None where there is nothing to explain
    finding: str | None  # why there is no curve
    clean: Tensor  # [example], with all heads, on the examples tested
    none: Tensor  # [example], with none
    examples: list[dict[str, Any]]  # some of those tested, to be shown
    tested: list[str]  # fingerprints of the curve's examples
    backed_off: bool  # memory ran out on the way, and passes were made smaller
    edges: Tensor | None = None  # [layer, head], the share open on the examples tested


def run_cell(cell: Cell, model: Model, progress: Progress, scratch: Path) -> Record:
    """Rank the heads, then keep the best of them on prompts that the ranking has not seen."""
    asked = cell.settings
    backed_off = model.back_offs
    ranked = make_examples(model, cell.task, asked["n"], cell.seed, "rank")
    tested = make_examples(model, cell.task, asked["n"], cell.seed, "curve")
    if len(ranked) < 2 or len(tested) < 2:
        raise HeadlabError(
            f"{cell.task} has too few examples: some rank the heads, others test the order, and "
            "either needs two"
        )
    chosen = measure_for(cell.task, ranked, asked["measure"])
    scores = rank(
        model,
        ranked,
        way_of(cell.method),
        chosen,
        steps=asked["steps"],
        exact=asked.get("exact"),
        seed=cell.seed,
        task=cell.task,
        progress=progress,
    )
    stand_in: Any = asked["reference"]
    if stand_in == "mean":
        stand_in = mean_reference(model, [example.prompt for example in ranked])
    tested = ranked if asked["per_prompt"] else tested
    made, finding = None, None
    ends: tuple[Tensor, Tensor]
    try:
        made = curve(
            model,
            tested,
            scores,
            reference=stand_in,
            orders=asked["orders"],
            threshold=asked["threshold"],
            measure_by=chosen,
            task=cell.task,
            per_prompt=asked["per_prompt"],
            seed=cell.seed,
            quick=asked["orders"] < MIN_ORDERS,
            progress=progress,
        )
        ends = made.clean, made.none
    except NoEffect as nothing:
        finding = str(nothing)
        ends = nothing.clean, nothing.none
    return to_record(
        Found(
            scores,
            made,
            finding,
            *ends,
            [example.as_dict() for example in tested[:_SHOWN]],
            [example.fingerprint for example in tested],
            model.back_offs > backed_off,
            None if model.sparse is None else edges_kept(model, [each.prompt for each in tested]),
        )
    )


def work(cell: Cell, n_heads: int) -> Work:
    """Masks and passes; a head off alone skips, on average, half of the layers."""
    n, steps, orders = (cell.settings[name] for name in ("n", "steps", "orders"))
    way = way_of(cell.method)
    run = masks_run(n_heads, cell.settings.get("exact"))
    masks = {"attribute": steps, "random": 0}.get(way, run)
    passes = {"attribute": 3.0 * steps, "random": 1.0}.get(way, run / 2)
    kept = expected_masks(n_heads, "auto", orders)
    return Work(n * (masks + kept), n * (passes + kept))


# --- a cell's record: one long-form table ---
#
# part             order  k   head  example  value
# score                       L5H1  ioi-17   what the head carries of the measure
# ranked_clean                      ioi-17   the measure with all heads, on the ranking's prompts
# curve                   14        ioi-18   the measure with the 14 best heads kept
# random, matched  0      14        ioi-18   the same by a random order
# clean, none                       1f0c9a.. with all heads, with none; the example's fingerprint
# edges                       L5H1           of a sparse model: the share of the head's edges open


def to_record(found: Found) -> Record:
    scores, made = found.scores, found.curve
    names = np.array([str(head) for head in scores.heads])
    ids = np.array(scores.examples)
    parts = [
        part(
            "score",
            scores.values.reshape(-1),
            head=np.repeat(names, len(ids)),
            example=np.tile(ids, len(names)),
        ),
        part("ranked_clean", scores.clean, example=ids),
    ]
    about: dict[str, Any] = {
        "scores": _about(scores, _SCORES),
        "curve": None,
        "finding": found.finding,
        "examples": found.examples,
        "tested": found.tested,
        "backed_off": found.backed_off,
    }
    if made is not None:
        about["curve"] = _about(made, _CURVE)
        tested = np.array(made.examples)
        parts.append(
            part(
                "curve",
                made.values.reshape(-1),
                k=np.repeat(made.ks, len(tested)),
                example=np.tile(tested, len(made.ks)),
            )
        )
        for name in ("random", "matched"):
            values = getattr(made, name)  # [order, k, example]
            parts.append(
                part(
                    name,
                    values.reshape(-1),
                    order=np.repeat(np.arange(len(values)), values[0].numel()),
                    k=np.tile(np.repeat(made.random_ks, len(tested)), len(values)),
                    example=np.tile(tested, values.shape[0] * values.shape[1]),
                )
            )
    prints = np.array(found.tested)
    parts += [part(name, getattr(found, name), example=prints) for name in ("clean", "none")]
    if found.edges is not None:
        parts.append(part("edges", found.edges.reshape(-1), head=names))
    table = joined(parts)
    return Record(table, about)


def from_record(record: Record) -> Found:
    """The scores and the curve of a record, as they were made."""
    try:
        about, parts = record.about, split(record.table)
        known = about["scores"]
        n = len(known["examples"])
        values = values_of(parts["score"])
        heads = [Head.parse(name) for name in parts["score"]["head"].iloc[::n]]
        layers = 1 + max(head.layer for head in heads)
        scores = HeadScores(
            **known, values=values.view(layers, -1, n), clean=values_of(parts["ranked_clean"])
        )
        clean, none = values_of(parts["clean"]), values_of(parts["none"])
        made = None
        if about["curve"] is not None:
            known = about["curve"]
            n, ks = len(known["examples"]), len(known["random_ks"])
            made = Curve(
                **known,
                values=values_of(parts["curve"]).view(-1, n),
                random=values_of(parts["random"]).view(-1, ks, n),
                matched=values_of(parts["matched"]).view(-1, ks, n),
                clean=clean,
                none=none,
            )
        return Found(
            scores,
            made,
            about["finding"],
            clean,
            none,
            about["examples"],
            about["tested"],
            about["backed_off"],
            values_of(parts["edges"]).view(scores.shape) if "edges" in parts else None,
        )
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise HeadlabError(
            f"a cell does not hold what the circuits study stores: {error}"
        ) from None


_SCORES = (
    *("model", "task", "method", "measure", "reference", "examples", "noise_floor", "scale"),
    *("is_distance", "settings", "fingerprints", "estimated", "checked"),
)
_CURVE = (
    *("model", "task", "mode", "method", "measure", "reference", "examples", "n_heads", "ks"),
    *("random_ks", "in_sample", "per_prompt", "threshold", "settings"),
)


def _about(thing: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    return {field: getattr(thing, field) for field in fields}
