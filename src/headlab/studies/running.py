"""Run a study: cell by cell, each stored as it is done, what fails recorded and passed over."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from headlab.budgets import find_budget
from headlab.errors import HeadlabError
from headlab.loading import load
from headlab.model import Model
from headlab.store import Run, RunStopped, next_folder
from headlab.studies.cells import Cell
from headlab.studies.provenance import (
    data_files,
    file_fingerprint,
    fingerprint,
    machine,
    versions,
)
from headlab.studies.spec import Spec, read_spec, split_revision


class Listener:
    """What happens in a run, for whoever shows it. Does nothing."""

    def loading(self, model: str) -> None: ...
    def started(self, cell: Cell) -> None: ...
    def advanced(self, pairs: int) -> None: ...
    def ended(self, cell: Cell, seconds: float, reason: str | None = None) -> None: ...
    def graded(self, share: float) -> None: ...
    def reporting(self) -> None: ...


def run_study(
    study: Spec | str | Path | Run,
    out: str | Path | None = None,
    *,
    device: str | None = None,
    trust_remote_code: bool = False,
    listener: Listener | None = None,
    lost: Mapping[str, str] | None = None,
) -> Run:
    """Run a study (a spec, a study file, or a run that was interrupted) and write its report.

    `lost` says why models cannot be had, where that is known already. A folder that holds the
    same study goes on where it stopped: finished cells stay untouched.

    >>> run = run_study("study.yaml", "runs/first")                           # doctest: +SKIP
    >>> run.folder / "report.html"                                            # doctest: +SKIP
    PosixPath('runs/first/report.html')
    """
    if isinstance(study, Run):
        run = study
    else:
        spec = study if isinstance(study, Spec) else read_spec(study)
        run = Run.start(out if out is not None else next_folder(spec.study), spec)
    listener = listener or Listener()
    with run.locked():
        _require_same_files(run, _files(run.spec, run.spec.tasks))
        told = bool(run.manifest["sessions"]) and "finished" in run.manifest["sessions"][-1]
        session = _begin(run)
        todo = [cell for cell in run.cells if not run.has(cell)]
        for name, cells in itertools.groupby(todo, key=lambda cell: cell.model):
            own = list(cells)
            if name in (lost or {}):
                _fail_all(run, own, HeadlabError((lost or {})[name]), listener)
            else:
                _run_model(run, name, own, device, trust_remote_code, listener)
        if todo or not told or not (run.folder / "report.html").exists():
            run.grade(listener.graded)
            listener.reporting()
            run.write_report()
        session["finished"] = _now()
        run.save()
    return run


def _run_model(
    run: Run,
    name: str,
    cells: list[Cell],
    device: str | None,
    trust_remote_code: bool,
    listener: Listener,
) -> None:
    listener.loading(name)
    try:
        model = _load(run, name, device, trust_remote_code)
    except Exception as error:  # no cell of this model can run; those of others can
        _fail_all(run, cells, error, listener)
        return
    for cell in cells:
        listener.started(cell)
        start = time.perf_counter()
        try:
            _require_same_files(run, _files(run.spec, [cell.task]))
            with run.scratch(cell) as scratch:
                record = run.study.run_cell(cell, model, listener.advanced, scratch)
        except Exception as error:
            _fail(run, cell, error, time.perf_counter() - start, listener)
            continue
        seconds = time.perf_counter() - start
        run.write(cell, record, seconds)
        run.clear(cell)
        listener.ended(cell, seconds)
    del model
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _load(run: Run, name: str, device: str | None, trust_remote_code: bool) -> Model:
    """The model, with the token budget the run began with: the same passes, the same digits."""
    bare, revision = split_revision(name)
    model = load(
        bare,
        dtype=run.spec.dtype,
        bos=run.spec.bos,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    model.name = name
    print_ = fingerprint(model)
    known = run.manifest["models"].get(name)
    if known is None:
        run.manifest["models"][name] = {
            **model.describe(),
            "fingerprint": print_,
            "budget": find_budget(model),
        }
        run.save()
    elif known["fingerprint"] != print_:
        raise HeadlabError(
            f"{name} is not what it was when this run began (fingerprint {print_}, then "
            f"{known['fingerprint']}); start a new run"
        )
    else:
        model.budget = int(known["budget"])
    return model


def _fail_all(run: Run, cells: list[Cell], error: Exception, listener: Listener) -> None:
    for cell in cells:
        _fail(run, cell, error, 0.0, listener)


def _fail(run: Run, cell: Cell, error: Exception, seconds: float, listener: Listener) -> None:
    if isinstance(error, RunStopped):
        raise error
    said = " ".join(str(error).split()) or type(error).__name__
    known = isinstance(error, HeadlabError)
    reason = said if known else f"unexpected {type(error).__name__}: {said[:500]}"
    run.note(cell, reason=reason, seconds=round(seconds, 3))
    listener.ended(cell, seconds, reason)


def _files(spec: Spec, tasks: list[str]) -> list[Path]:
    """The data that numbers depend on."""
    folder = getattr(spec, "data", None)
    found = [Path(task) for task in tasks if Path(task).is_file()]
    return found if folder in (None, "hub") else [*found, *data_files(Path(folder))]


def _require_same_files(run: Run, paths: list[Path]) -> None:
    """Data files are as they were when the run began."""
    for path in paths:
        print_ = file_fingerprint(path)
        if run.manifest["files"].setdefault(str(path), print_) != print_:
            raise HeadlabError(f"{path} has changed since this run began; start a new run")


def _begin(run: Run) -> dict[str, Any]:
    session = {"started": _now(), "versions": versions(), "machine": machine()}
    run.manifest["sessions"].append(session)
    run.manifest["seeds"] = run.spec.seeds
    run.save()
    return session


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
