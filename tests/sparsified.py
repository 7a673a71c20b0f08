"""A folder as `headlab sparsify` leaves it, with models whose circuit is known."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from planted import CARRIERS, pairs, planted, save_planted
from test_runs import save_task

from headlab.sparse.files import save_model

# Heads of the circuit keep all their edges, others none: the model does what it did.
BIAS = torch.full((2, 4), -50.0)
for _head in CARRIERS:
    BIAS[_head] = 50.0
BIAS[1, 1] = 0.0  # some of its edges


def save_sparse(folder: Path, sure: float = 1.0, layers: int = 2) -> Path:
    """The planted model with gates; `sure` is how much is left of its logits."""
    model = planted(layers)
    with torch.no_grad():
        model.hf.lm_head.weight.mul_(sure)
    bias = torch.nn.functional.pad(BIAS, (0, 0, 0, layers - len(BIAS)), value=-50.0)
    save_model(folder, model.hf, model.tokenizer, "tiny", bias=bias, about={"share": 0.5})
    return folder


def save_sparsified(folder: Path, levels: dict[str, float], twin: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "sparsify.json").write_text(json.dumps({"levels": list(levels)}))
    for name, sure in levels.items():
        save_sparse(folder / name, sure)
    if twin:
        save_planted(folder / "twin")
    return folder


def make_lab(folder: Path) -> Path:
    """m, OUT with a level that does the task and one that has lost it, a twin, a task."""
    save_planted(folder / "m")
    save_sparsified(folder / "OUT", {"level-30": 0.8, "level-3": 0.3})
    save_task(folder / "t.jsonl", pairs(24))
    return folder


def asked(lab: Path, **changes) -> dict:
    given = {"pairs": [f"{lab / 'm'}:{lab / 'OUT'}"], "tasks": [str(lab / "t.jsonl")]}
    return {"study": "circuits", "size": "smoke", **given, **changes}
