"""What every study's report says of its run: cells, how to run it again, versions, how to cite."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab import __version__
from headlab.studies.cells import labels, short
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.spec import Spec


def asked(spec: Spec) -> list[tuple[str, str]]:
    """The settings that all studies share."""
    return [
        ("study", f"{spec.study}, size {spec.size}"),
        ("models", ", ".join(labels(spec.models).values())),
        ("tasks", ", ".join(labels(spec.tasks).values())),
        ("seeds", ", ".join(map(str, spec.seeds))),
    ]


def facts(run: Run) -> dict[str, Any]:
    names = labels(run.spec.models) | labels(run.spec.tasks)
    sessions = run.manifest["sessions"]
    last = sessions[-1] if sessions else {}
    machine = last.get("machine") or {}
    gpus = ", ".join(map(str, machine.get("gpus") or [])) or "no GPU"
    folder = shlex.quote(readable(run.folder))
    models = [
        (
            names.get(name, short(name)),
            f"{known.get('layers')} layers x {known.get('heads')} heads, {known.get('dtype')} on "
            f"{known.get('device')}, fingerprint {known.get('fingerprint')}, "
            f"{known.get('budget')} tokens a pass",
        )
        for name, known in run.manifest["models"].items()
    ]
    return {
        "cells": [
            {
                "model": names[cell.model],
                "task": names[cell.task],
                "method": cell.method,
                "seed": cell.seed,
                "status": run.status(cell),
                "seconds": run.known(cell).get("seconds"),
                "reason": run.known(cell).get("reason") if run.status(cell) == "failed" else None,
            }
            for cell in run.cells
        ],
        "study_yaml": run.spec.as_yaml(),
        "commands": [
            f"headlab run {folder}/study.yaml --out NEW-FOLDER",
            f"headlab resume {folder}",
            f"headlab report {folder}",
        ],
        "versions": [
            *models,
            *((name, str(number)) for name, number in (last.get("versions") or {}).items()),
            ("machine", f"{machine.get('system')}, {machine.get('cores')} cores, {gpus}"),
        ],
    }


def run_warnings(run: Run, backed_off: bool) -> list[str]:
    """What a reader of any study should know first."""
    told = []
    states = {cell: run.status(cell) for cell in run.cells}
    failed = [cell for cell, state in states.items() if state == "failed"]
    missing = list(states.values()).count("missing")
    cells = count(len(run.cells), "cell")
    if failed:
        told.append(f"{len(failed)} of {cells} failed.")
        reasons = dict.fromkeys((run.known(cell)["reason"], cell.says) for cell in failed)
        told += [f"{says}: {reason}" for reason, says in list(reasons)[:3]]
    if missing:
        told.append(f"Not done yet: {missing} of {cells}; headlab resume goes on.")
    if backed_off:
        told.append("Memory ran out on the way: some passes were smaller, and last digits differ.")
    machines = {str(session.get("machine")) for session in run.manifest["sessions"]}
    if len(machines) > 1:
        told.append("Cells were computed on different machines; last digits may differ.")
    return told


def readable(path: Path) -> str:
    """A file's name may hold bytes that are no text."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def cite(title: str, arxiv: str, year: str) -> str:
    return (
        f"@software{{headlab,\n  title = {{Headlab: a laboratory for attention heads}},\n"
        f"  version = {{{__version__}}}\n}}\n\n"
        f"@misc{{arxiv{arxiv.replace('.', '')},\n  title = {{{title}}},\n"
        f"  eprint = {{{arxiv}}},\n  archivePrefix = {{arXiv}},\n  year = {{{year}}}\n}}\n"
    )
