"""What heads attend to under a condition: by position, and by part of the prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlab.attention import Profiles, profile
from headlab.fillers import Built, Condition
from headlab.heads import Head
from headlab.model import Model
from headlab.studies.scratch import Scratch, as_file

# Columns of what is found; the view original has the prompts' own tokens alone, closed up, the view
# whole has all.
STATISTICS = ["mean", "low", "high", "uniform", "ratio", "ratio_low", "ratio_high"]
ATTENTION = ["condition", "view", "head", "position", *STATISTICS, "prompts"]
REGION = ["condition", "head", "region", "problem", "observed", "uniform"]


def look(
    model: Model,
    condition: Condition,
    built: list[Built],
    ids: list[str],
    heads: list[Head],
    scratch: Scratch,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """By position, and by part of the prompt for each problem."""

    def make() -> dict[str, Any]:
        inserted = [each.inserted for each in built]
        views = {"original": _profile(model, condition, built, heads, inserted)}
        if condition.inserts:
            views["whole"] = _profile(model, condition, built, heads, None)
        tables = [_table(condition, view, found) for view, found in views.items()]
        regions = _regions(condition, built, ids, views)
        return {
            "attention": pd.concat(tables, ignore_index=True).to_dict("list"),
            "regions": regions.to_dict("list"),
        }

    kept = scratch.values(f"attention-{as_file(condition.name)}", make)
    found = pd.DataFrame(kept["attention"]), pd.DataFrame(kept["regions"])
    return found[0].astype(dict.fromkeys(STATISTICS, float)), found[1].astype(
        dict.fromkeys(("observed", "uniform"), float)
    )


def _profile(
    model: Model,
    condition: Condition,
    built: list[Built],
    heads: list[Head],
    inserted: list[Tensor] | None,
) -> Profiles:
    return profile(
        model,
        [each.ids for each in built],
        heads,
        inserted,
        position_ids=[each.positions for each in built]
        if any(each.has_gap for each in built)
        else None,
        arm=condition.arm,
    )


def _table(condition: Condition, view: str, found: Profiles) -> pd.DataFrame:
    own = found.table(["received"]).drop(columns="statistic")
    own = own[~own["mean"].isna()]
    own = own.assign(condition=condition.name, view=view)
    return own.astype(object).where(own.notna(), None)[ATTENTION].reset_index(drop=True)


def _regions(
    condition: Condition, built: list[Built], ids: list[str], views: dict[str, Profiles]
) -> pd.DataFrame:
    """What later tokens of the prompt itself give to its parts; to the filler what all give."""
    rows = []
    for number, (each, id) in enumerate(zip(built, ids, strict=True)):
        for region, view, there in _places(each):
            if view not in views or not there.any():
                continue
            found = views[view]
            for place, head in enumerate(found.heads):
                own = [
                    values["received"][number, place, : len(there)][there]
                    for values in (found.values, found.null)
                ]
                means = [float(values.double().nanmean()) for values in own]
                if all(np.isfinite(means)):
                    rows.append((condition.name, str(head), region, id, *means))
    return pd.DataFrame(rows, columns=REGION)


def _places(built: Built) -> list[tuple[str, str, Tensor]]:
    """Each part of a prompt, the view it is looked at in, and which positions there are its."""
    question, instruction = (each[~built.inserted] for each in (built.question, built.instruction))
    place = torch.arange(len(question))
    return [
        ("first", "original", place == 0),
        ("instruction", "original", instruction & (place > 0)),
        ("question", "original", question & (place > 0)),
        ("filler", "whole", built.inserted),
    ]
