"""Runs: what is stored is whole, resumes to the same bytes, and stays in its folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import error_of, run
from filelock import FileLock
from planted import pairs, save_planted

from headlab.errors import HeadlabError
from headlab.files import write_whole
from headlab.store import Run, find_runs, next_folder
from headlab.studies import circuits
from headlab.studies.cells import Cell
from headlab.studies.running import Listener, run_study
from headlab.studies.spec import make_spec

KILLS = int(os.environ.get("HEADLAB_KILLS", "3"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """A folder with a model whose circuit is known, and its task."""
    folder = tmp_path_factory.mktemp("lab")
    save_planted(folder / "m")
    save_task(folder / "t.jsonl", pairs(24))
    return folder


def save_task(path: Path, examples) -> Path:
    path.write_text("".join(json.dumps(example.as_dict()) + "\n" for example in examples))
    return path


def spec_of(lab: Path, **changes):
    given = {"models": [str(lab / "m")], "tasks": [str(lab / "t.jsonl")], "size": "smoke"}
    return make_spec({"study": "circuits", **given, **changes})


MANY = {"seeds": list(range(6)), "methods": ["patch", "attribute", "ablate"]}


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "cells").iterdir())}


@pytest.fixture(scope="module")
def uninterrupted(lab) -> dict[str, bytes]:
    return bytes_of(run_study(spec_of(lab, **MANY), lab / "whole").folder)


def started(folder: Path, lab: Path) -> subprocess.Popen:
    """The command as a user types it, in a process of its own."""
    study = lab / "many.yaml"
    if not study.exists():
        study.write_text(spec_of(lab, **MANY).as_yaml())
    command = [sys.executable, "-m", "headlab", "run", str(study), "--out", str(folder), "--quiet"]
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_cells(folder: Path, count: int, process: subprocess.Popen) -> None:
    limit = time.monotonic() + 60
    while len(list((folder / "cells").glob("*.parquet")) if folder.exists() else []) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.01)


# --- the same numbers ---


def test_the_same_study_and_seed_give_the_same_bytes(lab, uninterrupted):
    again = run_study(spec_of(lab, **MANY), lab / "again")
    assert len(uninterrupted) == 18
    assert bytes_of(again.folder) == uninterrupted


def test_killed_runs_resume_to_the_bytes_of_an_uninterrupted_one(lab, tmp_path, uninterrupted):
    chance = random.Random(0)
    folder = tmp_path / "killed"
    for _ in range(KILLS):
        process = started(folder, lab)
        done = len(list((folder / "cells").glob("*.parquet")))
        if KILLS > 3:  # at any moment, the loading of libraries too
            time.sleep(chance.uniform(0, 9))
        else:
            wait_for_cells(folder, min(done + 1, len(uninterrupted)), process)
            time.sleep(chance.uniform(0, 0.5))
        process.kill()
        process.communicate()
        for name, content in (bytes_of(folder) if folder.exists() else {}).items():
            if not name.startswith("."):  # whole, and what it will be at the end
                assert content == uninterrupted[name]
    process = started(folder, lab)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert out.strip().endswith("report.html")
    assert bytes_of(folder) == uninterrupted
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]


def test_ctrl_c_ends_with_one_sentence_and_the_command_that_goes_on(lab, tmp_path, uninterrupted):
    folder = tmp_path / "stopped"
    process = started(folder, lab)
    wait_for_cells(folder, 2, process)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert said.strip().splitlines() == [said.strip()]
    assert f"of 18 cells; go on with: headlab resume {folder}" in said
    assert run("resume", str(folder), "--quiet").exit_code == 0
    assert bytes_of(folder) == uninterrupted


def test_finished_cells_stay_untouched(lab):
    once = run_study(spec_of(lab), lab / "once")
    path = once.path_of(once.cells[0])
    before = path.stat().st_mtime_ns
    run_study(Run.read(once.folder))
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("left", [b"", b"PAR1", b"half of it"])
def test_a_cell_file_that_is_not_whole_is_made_again(lab, tmp_path, left):
    done = run_study(spec_of(lab), tmp_path / "r")
    path = done.path_of(done.cells[0])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if left == b"half of it" else left)
    assert done.status(done.cells[0]) == "missing"
    run_study(Run.read(done.folder, strictly=True))
    assert path.read_bytes() == whole


def test_a_resumed_run_keeps_its_token_budget(lab, tmp_path, monkeypatch):
    done = run_study(spec_of(lab), tmp_path / "r")
    (name,) = done.manifest["models"]
    done.manifest["models"][name]["budget"] = 128
    done.save()
    done.path_of(done.cells[0]).unlink()
    seen = []

    def watched(cell, model, progress, scratch):
        seen.append(model.budget)
        return circuits.cell.run_cell(cell, model, progress, scratch)

    monkeypatch.setattr(circuits, "STUDY", dataclasses.replace(circuits.STUDY, run_cell=watched))
    run_study(Run.read(done.folder))
    assert seen == [128]


# --- what goes wrong ---


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(lab, tmp_path):
    uneven = [
        dataclasses.replace(each, counterfactual=each.counterfactual + " word") for each in pairs(8)
    ]
    bad = save_task(tmp_path / "uneven.jsonl", uneven)
    models, tasks = str(lab / "m"), f"{bad},{lab / 't.jsonl'}"
    result = run(
        *("run", "circuits", "--models", models, "--tasks", tasks, "--size", "smoke"),
        *("--out", str(tmp_path / "r")),
    )
    assert result.exit_code == 1
    assert result.stderr.strip().splitlines()[-1].startswith("error: 1 of 2 cells failed")
    assert "Traceback" not in result.output
    opened = Run.read(tmp_path / "r")
    assert [opened.status(cell) for cell in opened.cells] == ["failed", "done"]
    page = (tmp_path / "r/report.html").read_text()
    assert "1 of 2 cells failed" in page
    assert "uneven.jsonl" in page
    assert opened.known(opened.cells[0])["reason"] in page.replace("&#39;", "'")


def test_a_model_that_cannot_be_loaded_fails_its_cells_alone(lab, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in (lab / "m").iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "model.safetensors").write_bytes(b"not weights")
    done = run_study(spec_of(lab, models=[str(broken), str(lab / "m")]), tmp_path / "r")
    assert [done.status(cell) for cell in done.cells] == ["failed", "done"]


def test_a_changed_model_or_file_is_not_mixed_into_a_run(lab, tmp_path):
    from headlab import load

    own = tmp_path / "m"
    save_planted(own)
    data = save_task(tmp_path / "t.jsonl", pairs(12))
    done = run_study(spec_of(lab, models=[str(own)], tasks=[str(data)]), tmp_path / "r")
    done.path_of(done.cells[0]).unlink()
    model = load(str(own), check=False)
    model.hf.transformer.h[0].mlp.c_fc.weight.data += 1e-3
    model.hf.save_pretrained(own)
    run_study(Run.read(done.folder))
    assert "is not what it was" in Run.read(done.folder).known(done.cells[0])["reason"]
    save_task(data, pairs(10))
    with pytest.raises(HeadlabError, match=r"t.jsonl has changed since this run began"):
        run_study(Run.read(done.folder))


def test_a_study_changed_inside_a_run_is_not_gone_on_with(lab, tmp_path):
    done = run_study(spec_of(lab), tmp_path / "r")
    path = done.folder / "study.yaml"
    path.write_text(path.read_text().replace("n: 16", "n: 8"))
    assert "has been changed since this run began" in error_of(
        run("resume", str(done.folder), "-q")
    )


def test_runs_of_versions_that_knew_fewer_settings_go_on(lab, tmp_path):
    done = run_study(spec_of(lab), tmp_path / "r")
    path, manifest = done.folder / "study.yaml", done.folder / "manifest.json"
    record = json.loads(manifest.read_text())
    ours = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    assert record["study"] == ours, "what is written is what is known"
    older = path.read_text().replace("exact: null\n", "")
    assert older != path.read_text()
    path.write_text(older)
    record["study"] = hashlib.sha256(older.encode()).hexdigest()[:16]
    manifest.write_text(json.dumps(record))
    done.path_of(done.cells[0]).unlink()
    for command in ("resume", "report"):
        told = run(command, str(done.folder), "-q")
        assert told.exit_code == 0, told.stderr
    assert len(Run.read(done.folder).cells) == len(done.cells)
    assert all(Run.read(done.folder).has(cell) for cell in done.cells)
    # Nor is a run of ours stopped by a line that says what was meant anyway.
    path.write_text("# a note\n" + path.read_text() + "exact: null\n")
    record["study"] = ours
    manifest.write_text(json.dumps(record))
    assert run("resume", str(done.folder), "-q").exit_code == 0


def test_a_run_that_cannot_begin_leaves_nothing(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ("run", "circuits", "--tasks", str(lab / "t.jsonl"), "--size", "smoke", "-q")
    assert "no device" in error_of(run(*common, "--models", str(lab / "m"), "--device", "gpu"))
    assert "no model" in error_of(run(*common, "--models", "nobody/nothing"))
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_needs_neither_its_model_nor_its_data(lab, tmp_path):
    save_planted(tmp_path / "m")
    done = run_study(spec_of(lab, models=[str(tmp_path / "m")]), tmp_path / "r")
    subprocess.run(["rm", "-r", str(tmp_path / "m")], check=True)
    result = run("resume", str(done.folder))
    assert result.exit_code == 0
    assert "1 cell are done already" not in result.stderr
    assert "3 of 8 heads" in result.stdout
    done.path_of(done.cells[0]).unlink()
    assert "no model" in error_of(run("resume", str(done.folder)))


def test_a_second_process_is_refused_with_one_sentence(lab, tmp_path):
    done = run_study(spec_of(lab), tmp_path / "r")
    with FileLock(tmp_path / "r/.lock"):
        for command in ("resume", "report"):
            said = error_of(run(command, str(done.folder), "--quiet"))
            assert "another process is writing to" in said
        assert "running" in run("ls", str(tmp_path)).stdout
    assert "finished" in run("ls", str(tmp_path)).stdout


@contextmanager
def small_disk(folder: Path, size: str):
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_sentence_and_finished_cells_are_kept(lab, tmp_path, uninterrupted):
    size = sum(map(len, uninterrupted.values())) // 2
    with small_disk(tmp_path / "disk", str(size)) as disk:
        folder = disk / "r"
        process = started(folder, lab)
        out, said = process.communicate(timeout=120)
        assert process.returncode == 1
        assert out == ""
        assert said.strip().splitlines() == [said.strip()]
        assert "no space is left on the disk" in said
        assert f"headlab resume {folder}" in said
        kept = {n: c for n, c in bytes_of(folder).items() if not n.startswith(".")}
        assert 0 < len(kept) < len(uninterrupted)
        assert all(uninterrupted[name] == content for name, content in kept.items())
        assert not [path for path in folder.rglob(".*") if path.name != ".lock"]
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert run("resume", str(folder), "--quiet").exit_code == 0
        assert bytes_of(folder) == uninterrupted


def test_a_disk_too_full_to_begin_can_be_tried_again(lab, tmp_path):
    with small_disk(tmp_path / "disk", "4k") as disk:
        with pytest.raises(HeadlabError, match="no space is left"):
            run_study(spec_of(lab), disk / "r")
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        done = run_study(spec_of(lab), disk / "r")
        assert done.has(done.cells[0])


def test_a_disk_that_fills_up_at_the_report_says_how_to_go_on(lab, tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        with pytest.raises(HeadlabError, match=r"no space is left.*headlab resume"):
            run_study(spec_of(lab), disk / "r")
        assert Run.read(disk / "r").has(spec_of(lab).cells()[0])


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_whole(path, "old")

    def refuse(*_):
        raise OSError("no")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            with pytest.raises(OSError, match="no"):
                write_whole(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_was_cut_off_is_written_again(lab, tmp_path, monkeypatch):
    done = run_study(spec_of(lab), tmp_path / "r")
    page = (done.folder / "report.html").read_text()
    done.path_of(done.cells[0]).unlink()

    def stop(run):
        (run.folder / "report.html").write_text("stale")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(circuits, "STUDY", dataclasses.replace(circuits.STUDY, write_report=stop))
        with pytest.raises(KeyboardInterrupt):
            run_study(Run.read(done.folder))
    run_study(Run.read(done.folder))
    assert "stale" not in (done.folder / "report.html").read_text()
    assert len((done.folder / "report.html").read_text()) > 0.9 * len(page)


def test_a_data_file_changed_on_the_way_fails_the_cells_to_come(lab, tmp_path):
    data = save_task(tmp_path / "t.jsonl", pairs(12))

    class Meddler(Listener):
        def ended(self, cell, seconds, reason=None):
            save_task(data, pairs(10))

    spec = spec_of(lab, tasks=[str(data)], seeds=[0, 1])
    done = run_study(spec, tmp_path / "r", listener=Meddler())
    assert [done.status(cell) for cell in done.cells] == ["done", "failed"]
    assert "has changed since this run began" in done.known(done.cells[1])["reason"]


def test_two_studies_that_race_for_a_folder_do_not_mix(lab, tmp_path):
    first = Run.start(tmp_path / "r", spec_of(lab))
    second = Run.start(tmp_path / "r", spec_of(lab, n=8))
    run_study(first)
    with pytest.raises(HeadlabError, match="another study"):
        run_study(second)


def test_what_another_process_noted_before_the_lock_is_kept(lab, tmp_path):
    early = Run.start(tmp_path / "r", spec_of(lab))
    run_study(spec_of(lab), tmp_path / "r")
    with early.locked():
        assert early.manifest["models"]


def test_a_study_file_alone_is_not_a_run(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(spec_of(lab).as_yaml())
    assert "no runs in" in run("ls").stdout
    assert "is no run" in error_of(run("report", ".", "--quiet"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.yaml"]


def test_commands_to_go_on_with_can_be_pasted(lab, tmp_path):
    odd = tmp_path / "my runs [bold]"
    assert Run.start(odd, spec_of(lab)).resume_command == f"headlab resume '{odd}'"
    assert str(odd) in run_study(spec_of(lab), odd).folder.joinpath("report.html").read_text()


def test_a_folder_that_is_not_this_run_is_left_alone(lab, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years")
    with pytest.raises(HeadlabError, match="is no run; give another folder"):
        run_study(spec_of(lab), tmp_path / "mine")
    done = run_study(spec_of(lab), tmp_path / "r")
    with pytest.raises(HeadlabError, match="a run of another study"):
        run_study(spec_of(lab, n=8), done.folder)


# --- a stranger's folder ---


@pytest.mark.parametrize("name", ["cells", "figures", ".lock"])
def test_links_out_of_the_folder_are_not_followed(lab, tmp_path, name):
    done = run_study(spec_of(lab), tmp_path / "r")
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "keys"
    victim.write_text("secret")
    place = done.folder / name
    if place.is_dir():
        subprocess.run(["rm", "-r", str(place)], check=True)
    else:
        place.unlink()
    place.symlink_to(outside if name != ".lock" else victim)
    assert "is a link" in error_of(run("report", str(done.folder), "--quiet"))
    assert "is a link" in error_of(run("resume", str(done.folder), "--quiet"))
    assert victim.read_text() == "secret"
    assert [path.name for path in outside.iterdir()] == ["keys"]


def test_a_linked_report_is_replaced_not_written_through(lab, tmp_path):
    done = run_study(spec_of(lab), tmp_path / "r")
    victim = tmp_path / "victim.html"
    victim.write_text("mine")
    (done.folder / "report.html").unlink()
    (done.folder / "report.html").symlink_to(victim)
    assert run("report", str(done.folder), "--quiet").exit_code == 0
    assert victim.read_text() == "mine"
    assert "<html" in (done.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", "{"),
        ("manifest.json", "[]"),
        ("manifest.json", '{"models": 1}'),
        ("manifest.json", '{"models": {}, "files": {}, "cells": {}, "sessions": [5]}'),
        ("manifest.json", '{"models": {}, "files": {}, "cells": {"x": 1}, "sessions": []}'),
        ("study.yaml", "study: !!python/object/apply:os.system ['touch owned']"),
        ("study.yaml", ""),
    ],
)
def test_a_damaged_or_hostile_run_folder_is_one_sentence(lab, tmp_path, monkeypatch, name, content):
    monkeypatch.chdir(tmp_path)
    done = run_study(spec_of(lab), tmp_path / "r")
    (done.folder / name).write_text(content)
    for command in ("report", "resume"):
        error_of(run(command, str(done.folder), "--quiet"))
    assert not (tmp_path / "owned").exists()


def test_a_strangers_cell_is_shown_as_text(lab, tmp_path):
    done = run_study(spec_of(lab), tmp_path / "r")
    cell = done.cells[0]
    record = done.read_cell(cell)
    record.about["examples"][0]["prompt"] = "</script><script>window.hacked = 1</script>"
    record.about["finding"] = None
    done.write(cell, record, 0.0)
    assert run("report", str(done.folder), "--quiet").exit_code == 0
    page = (done.folder / "report.html").read_text()
    assert "<script>window.hacked" not in page
    assert "window.hacked" in page


def test_cell_names_hold_no_paths():
    hostile = Cell("circuits", "../../../etc/passwd", "/a/b\\c\0\n.jsonl", "patch", 0)
    assert set(hostile.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(Cell("circuits", "x" * 500, "y" * 500, "patch", 0).id) < 120
    assert Cell("circuits", "a", "t", "patch", 0).id != Cell("circuits", "A", "t", "patch", 0).id


# --- finding runs ---


def test_runs_are_listed_and_numbered(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no runs in" in run("ls").stdout
    assert next_folder("circuits") == Path("runs/circuits-1")
    first = run_study(spec_of(lab))
    assert first.folder == Path("runs/circuits-1")
    assert next_folder("circuits") == Path("runs/circuits-2")
    assert [found.folder for found in find_runs(".")] == [Path("runs/circuits-1")]
    assert repr(first) == "Run('runs/circuits-1', circuits, 1 of 1 cell)"
    (listed,) = json.loads(run("ls", "--json").stdout)
    assert listed["cells"] == "1/1"
    assert listed["state"] == "finished"
    first.path_of(first.cells[0]).unlink()
    assert json.loads(run("ls", "--json").stdout)[0]["state"] == "interrupted"
    Path("runs/circuits-1/manifest.json").write_text("{")
    assert json.loads(run("ls", "--json").stdout)[0]["state"] == "cannot be read"
    assert "no folder" in error_of(run("ls", "nowhere"))
    assert "is no run" in error_of(run("resume", "runs"))


def test_the_manifest_says_where_the_numbers_come_from(lab, tmp_path):
    done = run_study(spec_of(lab), tmp_path / "r")
    manifest = json.loads((done.folder / "manifest.json").read_text())
    (model,) = manifest["models"].values()
    assert model["fingerprint"]
    assert model["budget"] > 0
    assert manifest["seeds"] == [0]
    (session,) = manifest["sessions"]
    assert session["versions"]["torch"]
    assert session["machine"]["cores"]
    assert session["finished"] >= session["started"]
    assert manifest["cells"][done.cells[0].id]["seconds"] > 0
    assert list(manifest["files"]) == [str(lab / "t.jsonl")]
