"""The masking study interrupted: what was written is not written again, and nothing is mixed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import error_of, run
from copying import cell_of, find, make_lab, spec_of
from planted import asked_of_copier, copier, save_questions

from headlab.gatefits.fitting import FitWork
from headlab.store import Run
from headlab.studies.masking import cell as cells
from headlab.studies.masking import ranked
from headlab.studies.masking.cell import work
from headlab.studies.running import run_study


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    return make_lab(tmp_path_factory.mktemp("lab"))


# --- interrupted runs ---


def test_a_killed_cell_goes_on_after_its_last_piece(lab, tmp_path, monkeypatch):
    spec = spec_of(lab, train=12, n=6, epochs=150)
    whole = run_study(spec, tmp_path / "whole")
    (tmp_path / "study.yaml").write_text(spec.as_yaml())
    folder = tmp_path / "killed"
    command = ("headlab", "run", str(tmp_path / "study.yaml"), "--out", str(folder), "-q")
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    limit = time.monotonic() + 60
    while not list(folder.glob("scratch/*/pooled-test.safetensors")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.005)
    process.kill()
    process.communicate()
    # Names end in a fingerprint of what a piece holds.
    kept = {path.stem.rpartition("-")[0] for path in folder.glob("scratch/*/*.json")}
    assert {"train-0", "probe-test-0"} <= kept
    assert not list(folder.glob("cells/*"))
    calls, real = [], cells.generate
    monkeypatch.setattr(cells, "generate", lambda *a, **b: calls.append(len(a[1])) or real(*a, **b))
    assert run("resume", str(folder), "-q").exit_code == 0
    pieces = ["retrieval-0", "retrieval-cross-0", "math-calculation-0"]
    pieces += ["math-calculation-cross-0"]
    assert len(calls) == len(set(pieces) - kept)
    resumed = Run.read(folder)
    assert resumed.path_of(resumed.cells[0]).read_bytes() == (
        whole.path_of(whole.cells[0]).read_bytes()
    )
    assert not (folder / "scratch").exists()


def test_pieces_of_another_size_are_not_mixed_in(lab, tmp_path, monkeypatch):
    """A run that was begun on a GPU, where pieces are larger, goes on on a CPU."""
    whole = find(lab, tmp_path / "whole")
    real, calls = cells.generate, []

    def stops(*args, **named):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(cells, "generate", stops)
    with pytest.raises(KeyboardInterrupt):
        find(lab, tmp_path / "cut")
    monkeypatch.setattr(cells, "generate", real)
    monkeypatch.setattr(cells, "_ROWS", {"cpu": 7})
    resumed = find(lab, tmp_path / "cut")
    order = ["heads_of", "asked", "kind", "k", "draw", "item"]
    one, other = (
        found.texts.sort_values(order).reset_index(drop=True) for found in (whole, resumed)
    )
    assert one.equals(other)


@pytest.mark.parametrize(
    ("stop_at", "ranking"), [(1, "probe"), (3, "probe"), (5, "probe"), (3, "gates")]
)
def test_progress_comes_to_what_was_planned_also_after_a_stop(
    lab, tmp_path, monkeypatch, stop_at, ranking
):
    cell = cell_of(lab, rank_by=ranking)
    planned = work(cell, 8).pairs
    heard: list[int] = []
    calls, real = [], cells.generate

    def stops(*args, **named):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(cells, "generate", stops)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cell(cell, copier(), heard.append, tmp_path)
    heard.clear()
    cells.run_cell(cell, copier(), heard.append, tmp_path)
    assert sum(heard) == planned


def test_small_pieces_give_the_same_texts(lab, tmp_path, monkeypatch):
    plain = find(lab, tmp_path / "one")
    monkeypatch.setattr(cells, "_ROWS", {"cpu": 7})
    pieces = find(lab, tmp_path / "many")
    assert len(list((tmp_path / "many").iterdir())) > len(list((tmp_path / "one").iterdir()))
    order = ["heads_of", "asked", "kind", "k", "draw", "item"]
    assert pieces.scores["retrieval"].equal(plain.scores["retrieval"])
    one, many = (each.texts.sort_values(order, ignore_index=True) for each in (plain, pieces))
    assert one.equals(many)


def test_changed_questions_are_not_mixed_with_what_was_written(lab, tmp_path, monkeypatch):
    rows = asked_of_copier(6, 3)
    data = save_questions(tmp_path / "data", rows)
    real, calls = cells.generate, []

    def stops(*args, **named):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(cells, "generate", stops)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec_of(lab, data=str(data)), tmp_path / "r")
    for row in rows["train"]:
        row["question"] += " It rained."
    save_questions(data, rows)
    assert "train.json has changed since this run began" in error_of(
        run("resume", str(tmp_path / "r"), "-q")
    )
    # Neither are pieces of other questions taken up where the manifest knows nothing of them.
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    (tmp_path / "r" / "manifest.json").write_text(json.dumps({**manifest, "files": {}}))
    calls[:] = [1] * 10
    assert run("resume", str(tmp_path / "r"), "-q").exit_code == 0
    assert len(calls) == 10 + 2 + 4  # train and test for the probe, and all masks


@pytest.mark.parametrize("stop_at", [5, 13])
def test_a_fit_of_gates_that_is_stopped_goes_on_where_it_was_kept(
    lab, tmp_path, monkeypatch, stop_at
):
    monkeypatch.setattr(ranked, "_KEEP", 2)

    def fitted(scratch: Path, heard: list[int]):
        cell = cell_of(lab, rank_by="gates", updates=8, functions="retrieval")
        return cells.run_cell(cell, copier(), heard.append, scratch), work(cell, 8).pairs

    whole, planned = fitted(tmp_path / "whole", heard := [])
    assert sum(heard) == planned
    real = FitWork.update
    steps: list[int] = []

    def stops(self, state, fits):
        steps.append(1)
        if len(steps) == stop_at:
            raise KeyboardInterrupt
        return real(self, state, fits)

    monkeypatch.setattr(FitWork, "update", stops)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "cut", [])
    again, _ = fitted(tmp_path / "cut", heard := [])
    assert len(steps) == 2 * 8 + 1  # what was kept is not made again
    assert sum(heard) == planned
    assert again.table.equals(whole.table)
