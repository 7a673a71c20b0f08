"""The masking study: heads are ranked on training questions and taken away on others."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from commands import error_of, run
from planted import COPIER, asked_of_copier, copier, question, save_copier, save_questions
from tiny import lettered, tiny

import headlab
from headlab import HeadlabError, Model
from headlab.grading.registry import GRADERS
from headlab.probing import pool
from headlab.stats import mean_interval, share_interval
from headlab.store import Run
from headlab.studies.masking import cell as cells
from headlab.studies.masking.boosting import directions
from headlab.studies.masking.cell import Found, from_record, to_record, work
from headlab.studies.masking.grades import Grades, grade_texts, grades_of
from headlab.studies.masking.judging import judge
from headlab.studies.masking.masks import draw_masks, gates_of, wanted_ks
from headlab.studies.masking.panels import Panel, Point, read_panels
from headlab.studies.masking.ranked import Answered, Ranked
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec, read_spec
from headlab.tasks.cogqa import load, pick

BOTH = ["retrieval", "math-calculation"]
NUMBER = COPIER.layer * 4 + COPIER.head
QUICK = {"functions": BOTH, "ks": [1], "draws": 2, "max_new_tokens": 10, "updates": 2}
QUICK |= {"train": 6, "n": 3, "epochs": 3}


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """A model in which one head copies names, and questions that it answers."""
    folder = tmp_path_factory.mktemp("lab")
    save_copier(folder / "m")
    save_questions(folder / "data", asked_of_copier(24, 12))
    return folder


def spec_of(lab: Path, **changes):
    given = {"models": [str(lab / "m")], "data": str(lab / "data"), **QUICK}
    return make_spec({"study": "masking", **given, **changes})


def cell_of(lab: Path, **changes):
    return spec_of(lab, **changes).cells()[0]


def find(lab: Path, scratch: Path, model: Model | None = None, **changes) -> Found:
    """What a cell finds, through its record and back."""
    record = cells.run_cell(cell_of(lab, **changes), model or copier(), lambda n: None, scratch)
    return from_record(record)


@pytest.fixture(scope="module")
def done(lab) -> Run:
    """As a user would run it."""
    result = run(
        *("run", "masking", "--models", str(lab / "m"), "--data", str(lab / "data"), "--ks", "1"),
        *("--functions", ",".join(BOTH), "--rank-by", "probe,ablate,attribute", "--draws", "3"),
        *("--max-new-tokens", "10", "--train", "24", "--n", "12", "--out", str(lab / "run"), "-q"),
    )
    assert result.exit_code == 0, result.output
    return Run.read(lab / "run")


@pytest.fixture(scope="module")
def made(lab) -> Run:
    return run_study(spec_of(lab), lab / "made")


@pytest.fixture
def small(made, tmp_path) -> Run:
    """A copy to do things to."""
    return Run.read(shutil.copytree(made.folder, tmp_path / "small"))


# --- one head copies, and the study finds it ---


@pytest.mark.parametrize("ranking", ["probe", "ablate", "attribute"])
def test_masking_the_head_that_copies_breaks_retrieval_and_nothing_else(done, ranking):
    (panel,) = (panel for panel in read_panels(done) if panel.ranking == ranking)
    assert panel.order("retrieval")[0] == NUMBER
    assert [panel.unmasked(name).mean for name in BOTH] == [1, 1]
    assert panel.point("retrieval", "top", 1).mean == 0
    for kind in ("random", "matched"):
        assert panel.point("retrieval", kind, 1).draws == (1, 1, 1), kind
    assert panel.point("math-calculation", "top", 1, heads_of="retrieval").mean == 1
    assert panel.verdict("retrieval", 1) == "below"
    assert panel.verdict("math-calculation", 1) == "open"
    assert panel.grades.table["in_json"].all()
    assert set(panel.texts.loc[panel.texts["kind"] == "top", "end"]) == {"stop"}


def test_gates_put_the_head_that_copies_first_as_well(lab, tmp_path):
    found = find(lab, tmp_path, rank_by="gates", updates=10, cross=False)
    assert int(found.scores["retrieval"].argmax()) == NUMBER
    top = found.texts[(found.texts["kind"] == "top") & (found.texts["asked"] == "retrieval")]
    assert set(top["text"]) == {'[{"answer":"7"}]'}


def test_the_probe_tells_the_functions_apart_on_questions_it_has_not_seen(done):
    told = read_panels(done)[0].found.probe
    assert (told["accuracy"], told["majority"]) == (1, 0.5)
    assert told["shuffled"] < 0.9
    assert (told["n_train"], told["n_test"]) == (48, 24)
    assert all(panel.found.probe is None for panel in read_panels(done)[1:])
    assert all(panel.found.right == dict.fromkeys(BOTH, 1.0) for panel in read_panels(done))


def test_what_was_found_is_said(done):
    said = [sentence for sentence in done.study.findings(done) if "Retrieval, by probe" in sentence]
    assert len(said) == 1
    assert "with 1 of 8 masked" in said[0]
    assert "the top heads matter more than random ones" in said[0]


# --- cells ---


def test_a_record_holds_all_that_was_found(lab, tmp_path):
    cell = cell_of(lab)
    record = cells.run_cell(cell, copier(), lambda n: None, tmp_path)
    found = from_record(record)
    again = from_record(to_record(found))
    assert again.texts.equals(found.texts)
    for name in BOTH:
        assert torch.equal(again.scores[name], found.scores[name])
    for each in dataclasses.fields(Found):
        if each.name not in ("texts", "scores"):
            assert getattr(again, each.name) == getattr(found, each.name), each.name
    texts = found.texts
    assert list(texts["kind"].unique()) == ["none", "top", "random", "matched"]
    assert len(texts) == 2 * 3 * (1 + 1 + 2 * 2 + 1)  # none, top, random, matched, cross
    assert set(texts["item"]) == set(found.items)
    assert {item["answer"] for item in found.items.values()} >= {"7"}
    assert set(found.prompts) == set(found.items)  # no more than four of each
    with pytest.raises(HeadlabError, match="does not hold what the masking study stores"):
        from_record(dataclasses.replace(record, about={}))


def test_a_damaged_cell_is_one_sentence(small):
    other = small.read_cell(small.cells[0])
    broken = dataclasses.replace(other, table=other.table.drop(columns="text"))
    small.write(small.cells[0], broken, 0)
    with pytest.raises(HeadlabError, match=r"parquet: a cell does not hold"):
        read_panels(small)


def test_the_same_study_gives_the_same_bytes(lab, made, tmp_path):
    again = run_study(spec_of(lab), tmp_path / "again")
    assert made.path_of(made.cells[0]).read_bytes() == again.path_of(again.cells[0]).read_bytes()


@pytest.mark.parametrize("positions", ["generated", "all"])
def test_texts_are_those_that_generate_gives_under_the_same_gates(lab, tmp_path, positions):
    how = {"positions": positions, "scale": 0.05, "ks": [2, 4], "n": 2, "train": 2}
    model = lettered()
    found = find(lab, tmp_path, model, max_new_tokens=4, **how)
    shape = (model.n_layers, model.n_heads)
    data = load(lab / "data")
    items = {item.id: item for item in pick(data.test, BOTH, 2, 0)}
    assert {id: each["answer"] for id, each in found.items.items()} == {
        id: item.answer for id, item in items.items()
    }
    orders = {
        name: found.scores[name].abs().flatten().argsort(descending=True, stable=True)
        for name in BOTH
    }
    told = {
        tuple(row[:6]): row.text for row in found.texts.itertuples(index=False)
    }  # by heads_of, asked, kind, k, draw, item
    seen = 0
    for name in BOTH:
        for mask in draw_masks(name, orders[name], shape, [2, 4], draws=2, key="0 probe"):
            gates = torch.ones(shape).flatten()
            gates[list(mask.heads)] = 0.05
            for asked in BOTH if mask.kind == "top" else [name]:
                own = [item for item in items.values() if item.function == asked]
                by_hand = headlab.generate(
                    model,
                    [item.prompt for item in own],
                    gates.view(1, *shape),
                    positions=positions,
                    max_new_tokens=4,
                    stop="]",
                ).texts[0]
                for item, text in zip(own, by_hand, strict=True):
                    assert told[(name, asked, mask.kind, mask.k, mask.draw, item.id)] == text
                    seen += 1
    whole = [item.prompt for item in items.values()]
    plain = headlab.generate(model, whole, max_new_tokens=4, stop="]").texts[0]
    for item, text in zip(items.values(), plain, strict=True):
        assert told[("", item.function, "none", 0, 0, item.id)] == text
    assert seen + len(plain) == len(told) == len(found.texts)
    assert len(set(told.values())) > len(plain), "masks that change nothing prove nothing"


def test_masks_on_the_prompt_too_are_another_intervention(lab, tmp_path):
    """The first generated token is the whole model's, unless masks act on the prompt."""
    how = {"max_new_tokens": 1, "n": 2, "train": 2, "ks": [5], "scale": 0.0}
    generated, all_ = (
        find(lab, tmp_path / where, lettered(), positions=where, **how).texts
        for where in ("generated", "all")
    )
    for texts, alike in ((generated, True), (all_, False)):
        each = texts.groupby("item")["text"].nunique()
        assert bool((each == 1).all()) == alike


# --- which heads ---


def test_draws_exclude_the_top_and_have_as_many_heads():
    shape = (6, 4)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    masks = draw_masks("retrieval", order, shape, [1, 3, 6], draws=8, key="0")
    for k in (1, 3, 6):
        own = [mask for mask in masks if mask.k == k]
        (top,) = (mask for mask in own if mask.kind == "top")
        assert top.heads == tuple(sorted(order[:k].tolist()))
        layers = np.bincount([head // 4 for head in top.heads], minlength=6)
        for kind in ("random", "matched"):
            drawn = [mask for mask in own if mask.kind == kind]
            assert [mask.draw for mask in drawn] == list(range(8))
            assert all(len(set(mask.heads)) == k for mask in drawn)
            assert not any(set(mask.heads) & set(top.heads) for mask in drawn)
            assert len({mask.heads for mask in drawn}) > 1
            if kind == "matched" and layers.max() <= 2:  # as many others are in each layer
                for mask in drawn:
                    assert (np.bincount([h // 4 for h in mask.heads], minlength=6) == layers).all()
    assert masks == draw_masks("retrieval", order, shape, [1, 3, 6], draws=8, key="0")
    assert masks != draw_masks("retrieval", order, shape, [1, 3, 6], draws=8, key="1")
    fewer = draw_masks("retrieval", order, shape, [3], draws=2, key="0")
    assert set(fewer) < set(masks), "a draw depends on nothing else that is asked"
    other = draw_masks("inference", order, shape, [6], draws=20, key="0")
    same = draw_masks("retrieval", order, shape, [6], draws=20, key="0")
    shared = [len(set(a.heads) & set(b.heads)) for a, b in zip(other, same, strict=True)][1:]
    assert np.mean(shared) < 3.2  # 2 of 6 by chance: functions have no luck in common


def test_a_layer_with_too_few_others_borrows_from_the_next():
    order = torch.tensor([4, 5, 6, *(n for n in range(16) if n not in (4, 5, 6))])
    for mask in draw_masks("retrieval", order, (4, 4), [3], draws=5, key="0"):
        if mask.kind == "matched":
            layers = sorted(head // 4 for head in mask.heads)
            assert 7 in mask.heads
            assert layers == [0, 0, 1]


def test_every_head_of_half_the_model_leaves_the_other_half():
    masks = draw_masks("retrieval", torch.arange(8), (2, 4), [4], draws=3, key="0")
    assert {mask.heads for mask in masks if mask.kind != "top"} == {(4, 5, 6, 7)}


def test_gates_close_the_heads_of_each_mask():
    masks = draw_masks("retrieval", torch.arange(8), (2, 4), [2], draws=2, key="0")
    gates = gates_of(masks, (2, 4), 0.25)
    assert gates.shape == (5, 2, 4)
    assert gates[0].tolist() == [[0.25, 0.25, 1, 1], [1, 1, 1, 1]]
    assert [(row == 0.25).sum().item() for row in gates] == [2] * 5


def test_numbers_of_heads_are_shares_or_given_or_at_the_bend():
    assert wanted_ks("shares", torch.rand(32, 32)) == [16, 32, 64, 128]
    assert wanted_ks("shares", torch.rand(2, 4)) == [1]
    bent = torch.tensor([[9.0, 8, 7, 0.4], [0.3, 0.2, 0.1, 0.0]])
    assert wanted_ks([4, 1, "elbow"], bent) == [1, 4]  # the bend is at four
    assert wanted_ks(["elbow"], torch.tensor([[9.0, 8, 7, 6], [5, 4.9, 0.1, 0.0]])) == [4]  # half
    with pytest.raises(HeadlabError, match="5 of 8 heads leave no 5 others"):
        wanted_ks([5], bent)


def test_too_many_heads_fail_the_cell_with_one_sentence(lab, tmp_path):
    result = run(
        *("run", "masking", "--models", str(lab / "m"), "--data", str(lab / "data"), "--ks", "5"),
        *("--functions", "retrieval", "--size", "smoke", "--out", str(tmp_path / "r"), "-q"),
    )
    assert result.exit_code == 1
    said = result.stderr.strip().splitlines()
    assert len(said) == 1
    assert "5 of 8 heads leave no 5 others to compare with; K is at most 4 here" in said[0]


def test_a_probes_importance_counts_by_its_size_and_other_scores_as_they_are():
    scores = {"retrieval": torch.tensor([[0.1, -3.0], [2.0, 0.0]])}
    answered = Answered([], [], np.array([]))
    assert Ranked("probe", scores, answered).order("retrieval").tolist() == [1, 2, 0, 3]
    for method in ("ablate", "attribute", "gates"):
        assert Ranked(method, scores, answered).order("retrieval").tolist() == [2, 0, 3, 1]


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


def test_a_question_too_long_for_the_model_is_left_out_and_counted(lab, tmp_path):
    rows = asked_of_copier(24, 12)
    rows["test"][0]["question"] += " long" * 600
    data = save_questions(tmp_path / "data", rows)
    found = find(lab, tmp_path / "s", data=str(data), n=None)
    assert found.left_out[cells.TOO_LONG] == 1
    assert "test-1-1" not in found.items


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_progress_comes_to_what_was_planned_also_after_a_stop(lab, tmp_path, monkeypatch, stop_at):
    cell = cell_of(lab)
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


# --- settings ---


def test_every_setting_reaches_the_cell(lab, tmp_path):
    def of(name: str, **changes) -> Found:
        return find(lab, tmp_path / name, **changes)

    plain = of("plain")
    assert (plain.texts["kind"] == "random").sum() == 2 * 3 * 2
    assert plain.probe["n_train"] == 12

    for scale, copies in ((0.0, False), (0.95, True)):
        texts = of(f"{scale}", scale=scale, rank_by="ablate", functions="retrieval").texts
        top = texts[texts["kind"] == "top"]
        assert (top["text"] == top["item"].map(_unmasked(texts))).all() == copies
    assert (of("draws", draws=5).texts["kind"] == "random").sum() == 2 * 3 * 5
    short = of("short", max_new_tokens=3).texts
    assert set(short["text"]) == {'[{"answer'}
    assert set(short["end"]) == {"length"}
    assert not torch.equal(of("epochs", epochs=4).scores["retrieval"], plain.scores["retrieval"])
    assert len(of("n", n=5).items) == 2 * 5
    assert of("train", train=4).probe["n_train"] == 2 * 4
    other = of("seed", seeds=[1])
    assert set(other.items) != set(plain.items)
    assert "top" in set(plain.texts.loc[plain.texts["heads_of"] != plain.texts["asked"], "kind"])
    alone = of("cross", cross=False).texts
    assert alone["heads_of"].isin(["", *BOTH]).all()
    assert ((alone["heads_of"] == alone["asked"]) | (alone["kind"] == "none")).all()
    assert of("ks", ks=[2, 1, "elbow"]).ks["retrieval"][:2] == [1, 2]
    everything = of("all", n=None, train=None)
    assert (len(everything.items), everything.probe["n_train"]) == (2 * 12, 2 * 24)
    one, two = (
        of(f"u{updates}", rank_by="gates", updates=updates, train=2, n=2, functions="retrieval")
        for updates in (1, 2)
    )
    assert not torch.equal(one.scores["retrieval"], two.scores["retrieval"])


def _unmasked(texts: pd.DataFrame) -> pd.Series:
    return texts[texts["kind"] == "none"].set_index("item")["text"]


def test_heads_are_ranked_on_train_alone(lab, tmp_path):
    """Other test questions leave every score as it was."""
    rows = asked_of_copier(24, 12)
    rows["test"] = rows["test"][6:]
    other = save_questions(tmp_path / "data", rows)
    one, two = find(lab, tmp_path / "a"), find(lab, tmp_path / "b", data=str(other))
    assert set(one.items) != set(two.items)
    for name in BOTH:
        assert torch.equal(one.scores[name], two.scores[name])


@pytest.mark.parametrize(
    ("rows", "changes", "says"),
    [
        ("test", {}, "no question of math-calculation is there to test on"),
        ("train", {}, "no question of math-calculation is there to rank heads on"),
        ("train", {"functions": "retrieval"}, "the training questions have only one"),
    ],
)
def test_functions_without_questions_are_named(lab, tmp_path, rows, changes, says):
    asked = asked_of_copier(4, 3)
    asked[rows] = [row for row in asked[rows] if "met" in row["question"]]
    data = save_questions(tmp_path / "data", asked)
    with pytest.raises(HeadlabError, match=says):
        find(lab, tmp_path / "s", data=str(data), **changes)


def test_size_paper_is_the_papers_model_and_shares():
    spec = make_spec({"study": "masking", "size": "paper"})
    assert spec.models == ["llama-3.1-8b-instruct"]
    assert headlab.aliases.ALIASES[spec.models[0]] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (spec.max_new_tokens, spec.epochs, spec.scale, spec.ks) == (128, 100, 1e-4, "shares")
    assert (spec.n, spec.train, spec.positions) == (None, None, "generated")
    assert spec.draws >= 20
    assert spec.functions == ["retrieval", "knowledge-recall", "math-calculation", "inference"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("functions: retreival", "line 2: functions is retrieval,"),
        ("functions: retreival", "did you mean 'retrieval'?"),
        ("functions: [retrieval, retrieval]", "'retrieval' is there twice"),
        ("functions: []", "functions is empty"),
        ("ks: [0]", "line 2: ks: a number of heads from 1, elbow, or shares alone, not 0"),
        ("ks: many", "a number of heads from 1, elbow, or shares alone, not 'many'"),
        ("ks: [16, elbo]", "not 'elbo'; did you mean 'elbow'?"),
        ("ks: share", "did you mean 'shares'?"),
        ("ks: [shares, 8]", "shares alone"),
        ("ks: [8, 8]", "8 is there twice"),
        ("ks: [2.5]", "not 2.5"),
        ("ks: []", "numbers of heads"),
        ("ks: {a: 1}", "numbers of heads"),
        ("rank_by: prob", "did you mean 'probe'?"),
        ("rank_by: [probe, probe]", "'probe' is there twice"),
        ("positions: prompt", "positions is generated or all, not 'prompt'"),
        ("scale: 1", "less than 1"),
        ("scale: .nan", "scale"),
        ("draws: 1", "draws"),
        ("boost: 0", "boost"),
        ("data: hub", "cogqa is on no hub"),
        ("data: ./nowhere", "data: no folder"),
        ("tasks: [ioi]", "tasks is cogqa, not 'ioi'"),
        ("epoch: 3", "no setting 'epoch'; did you mean 'epochs'?"),
    ],
)
def test_wrong_settings_are_one_sentence_with_the_nearest_word(tmp_path, text, says):
    path = tmp_path / "study.yaml"
    path.write_text(f"study: masking\n{text}\n")
    with pytest.raises(HeadlabError) as caught:
        read_spec(path)
    assert says in str(caught.value)
    assert "line 2" in str(caught.value) or "hub" in text
    assert ";" not in str(caught.value).replace("; did you mean", "").replace(
        "; leave", ""
    ).replace("; data is", ""), "one sentence"


def test_the_command_line_reads_lists_and_words(lab, tmp_path):
    def asked(*options: str):
        result = run(
            *("run", "masking", "--models", str(lab / "m"), "--data", str(lab / "data"), "-q"),
            *("--functions", "retrieval", "--dry-run", "--out", str(tmp_path / "r"), *options),
        )
        return result

    assert asked("--ks", "2,elbow").exit_code == 0
    assert asked("--ks", "shares").exit_code == 0
    assert "did you mean 'elbow'?" in error_of(asked("--ks", "elbo"))
    assert "did you mean 'attribute'?" in error_of(asked("--rank-by", "atribute"))
    assert "no folder" in error_of(asked("--data", str(tmp_path / "nowhere")))
    assert not (tmp_path / "r").exists()


def test_more_is_planned_for_more_draws_functions_and_boosts(lab):
    plain = work(cell_of(lab), 8).pairs
    assert work(cell_of(lab, draws=8), 8).pairs > plain
    assert work(cell_of(lab, cross=False), 8).pairs < plain
    assert work(cell_of(lab, boost=5), 8).pairs > plain
    assert work(cell_of(lab, functions="retrieval"), 8).pairs < plain
    assert work(cell_of(lab, rank_by="ablate"), 80).passes > work(cell_of(lab), 80).passes


# --- data that is not as it should be ---


def test_malformed_questions_are_counted_and_never_a_crash(lab, tmp_path):
    rows = asked_of_copier(6, 3)
    rows["train"] += [
        {"question": "No list of steps"},
        {"generated": []},
        "no object",
        question("Day 98.", ("What is 3 and 4?", 7, "Math Calculation")),  # a number
        question("Day 99.", ("Whom?", "", "Retrieval"), ("Who?", "n1", "Induction")),
        {"question": "Day 100.", "generated": [{"answer": "n2", "cognitive_skill": "Retrieval"}]},
    ]
    data = save_questions(tmp_path / "data", rows)
    finished = run_study(spec_of(lab, data=str(data), train=7), tmp_path / "r")
    assert [finished.status(cell) for cell in finished.cells] == ["done"]
    (said,) = (each for each in finished.study.warnings(finished) if "left out" in each)
    for part in (
        "1 questions without a list of sub-questions",
        "1 questions without text",
        "1 questions that are no object",
        "1 sub-questions without an answer",
        "1 sub-questions with a label that is none of the eight",
        "1 sub-questions without text",
        "1 answers that were numbers",
    ):
        assert part in said
    page = (finished.folder / "report.html").read_text()
    assert "1 sub-questions with a label that is none of the eight" in page
    (panel,) = read_panels(finished)
    assert panel.found.probe["n_train"] == 6 + 7


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma3", "olmo"])
def test_the_study_runs_through_on_other_architectures(tmp_path, name):
    """Random models write no JSON, which is counted."""
    config = {**tiny(name).config.to_dict(), "vocab_size": len(lettered().tokenizer)}
    config |= {"n_positions": 2048} if name == "gpt2" else {"max_position_embeddings": 2048}
    torch.manual_seed(0)
    network = hf.AutoModelForCausalLM.from_config(type(tiny(name).config)(**config))
    network.save_pretrained(tmp_path / name)
    lettered().tokenizer.save_pretrained(tmp_path / name)
    rows = asked_of_copier(2, 2)
    given = {**QUICK, "n": 2, "train": 2, "max_new_tokens": 2, "epochs": 1}
    given |= {"models": [str(tmp_path / name)]}
    given |= {"data": str(save_questions(tmp_path / "data", rows))}
    finished = run_study(make_spec({"study": "masking", **given}), tmp_path / "r")
    assert [finished.status(cell) for cell in finished.cells] == ["done"]
    (panel,) = read_panels(finished)
    assert not panel.grades.table["in_json"].any()
    said = " ".join(finished.study.warnings(finished))
    assert "100 % of the unmasked answers are no JSON" in said
    assert "Right on less than 20 % even with all heads" in said
    assert (finished.folder / "report.html").exists()


# --- boosting ---


@pytest.fixture(scope="module")
def half_wrong(lab) -> str:
    """Questions of four names, two of which are never the answer."""
    rows = asked_of_copier(16, 3)
    for number, row in enumerate(rows["train"][::2]):
        name = number // 2 % 4
        row["question"] = f"On day {number} Pam met n{name} at noon."
        row["generated"][0]["answer"] = "nobody" if name % 2 else f"n{name}"
    return str(save_questions(lab / "half", rows))


def test_boosted_texts_are_those_that_generate_gives_with_the_directions(lab, tmp_path, half_wrong):
    model = copier()
    how = {"data": half_wrong, "train": None, "boost": 40.0, "rank_by": "ablate"}
    found = find(lab, tmp_path, model, **how)
    assert found.right["retrieval"] == 0.5
    own = [item for item in load(half_wrong).train if item.function == "retrieval"]
    prompts = [item.prompt for item in own]
    written = headlab.generate(model, prompts, max_new_tokens=10, stop="]").rows[0]
    z = pool(model, prompts, written).z.double().numpy()  # [answer, layer, head, width]
    right = np.array(
        [judge("retrieval", w.text, i.answer) for w, i in zip(written, own, strict=True)]
    )
    fitted = z[::2]
    apart = fitted[right[::2]].mean(0) - fitted[~right[::2]].mean(0)
    unit = apart / np.linalg.norm(apart, axis=-1, keepdims=True)
    spread = (z[1::2] * unit).sum(-1).std(0, ddof=1)
    order = found.scores["retrieval"].flatten().argsort(descending=True, stable=True)
    masks = draw_masks("retrieval", order, (2, 4), [1], draws=2, key="0")
    assert masks[0].heads == (NUMBER,)
    tested = [item for item in load(half_wrong).test if item.function == "retrieval"]
    boosted = found.texts[found.texts["kind"].str.startswith("boosted")]
    assert set(boosted["kind"]) == {"boosted", "boosted-random"}
    assert set(boosted["asked"]) == {"retrieval"}, "all sums are right: nothing to go along"
    assert len(boosted) == 3 * (1 + 2)
    for mask in masks:
        if mask.kind == "matched":
            continue
        push = np.zeros_like(unit)
        for head in mask.heads:
            place = divmod(head, 4)
            push[place] = 40 * spread[place] * unit[place]
        texts = headlab.generate(
            model,
            [item.prompt for item in tested],
            boost=torch.from_numpy(push).float(),
            max_new_tokens=10,
            stop="]",
        ).texts[0]
        kind = "boosted" if mask.kind == "top" else "boosted-random"
        rows = boosted[(boosted["kind"] == kind) & (boosted["draw"] == mask.draw)]
        by_item = rows.set_index("item")["text"]
        assert [by_item[item.id] for item in tested] == texts
    top = boosted[boosted["kind"] == "boosted"]["text"]
    assert set(top) - set(_unmasked(found.texts)), "a push that changes nothing proves nothing"


def test_directions_need_right_and_wrong_answers():
    z = torch.zeros(8, 1, 2, 2)
    z[..., 0] = torch.tensor([1.0, 3, -1, 9, 1, 3, -1, 9])[:, None, None]
    own = np.array([True] * 8)
    hits = np.array([True, True, False, True, True, False, False, True])
    found = directions(z, own, hits)
    assert found.shape == (1, 2, 2)
    # Fitted on answers 0, 2, 4, 6 (means 1 and -1), as long as 3, 9, 3, 9 spread.
    assert found[0, 0].tolist() == pytest.approx([np.std([3, 9, 3, 9], ddof=1), 0])
    assert directions(z, own, np.array([True] * 8)) is None
    assert directions(z, own, np.array([False] * 8)) is None
    assert directions(z, np.array([True] * 3 + [False] * 5), hits) is None
    flat = directions(torch.ones(8, 1, 2, 2), own, hits)
    assert torch.isfinite(flat).all()
    assert not flat.any()


# --- what texts are worth ---


@pytest.mark.parametrize(
    ("function", "text", "gold", "right"),
    [
        ("math-calculation", '[ {"answer": "$48"} ]', "48 dollars", True),
        ("math-calculation", '[ {"answer": "36"} ]', "48", False),
        ("math-calculation", '[ {"answer": 48.0} ]', "48", True),
        ("math-calculation", "so it is 48", "48", True),
        ("math-calculation", '[ {"answer": "forty eight"} ]', "forty eight", True),
        ("retrieval", '[ {"answer": "Mary"} ]', "Mary", True),
        ("retrieval", '[ {"answer": "Mary"} ]', "Mary Ann Smith", False),
        ("retrieval", '[ {"answer": "a Mary Smith"} ]', "Mary Ann Smith", True),
        ("retrieval", '[ {"answer": ""} ]', "Mary", False),
        ("retrieval", "Mary", "Mary", True),
        ("retrieval", 'Mary [ {"answer": "John"} ]', "Mary", False),  # JSON, where there is some
        ("retrieval", "", "Mary", False),
        ("inference", '[ {"answer": "36"} ]', "48", False),
    ],
)
def test_texts_are_judged_by_their_gold_answer(function, text, gold, right):
    assert judge(function, text, gold) is right


def found_of(rows: list[tuple]) -> Found:
    """Of texts: kind, k, draw, item, text, all of retrieval."""
    texts = pd.DataFrame(
        [
            ("" if kind == "none" else "retrieval", "retrieval", kind, k, draw, item, text, "stop")
            for kind, k, draw, item, text in rows
        ],
        columns=["heads_of", "asked", "kind", "k", "draw", "item", "text", "end"],
    )
    items = {
        item: {"function": "retrieval", "question": "?", "asked": "?", "answer": "Mary"}
        for item in texts["item"].unique()
    }
    ks = sorted(set(texts["k"]) - {0})
    scores = {"retrieval": torch.arange(8.0).view(2, 4)}
    return Found(
        (2, 4),
        scores,
        {"retrieval": ks},
        {"retrieval": 1},
        texts,
        items,
        None,
        {},
        {},
        0,
        {},
        False,
    )


def test_the_same_text_is_graded_once_and_every_row_gets_its_score(monkeypatch):
    seen = []
    plain = GRADERS["quality"].score

    def spied(rows, options, progress):
        seen.extend(rows)
        return plain(rows, options, progress)

    monkeypatch.setitem(GRADERS, "quality", dataclasses.replace(GRADERS["quality"], score=spied))
    right, wrong = '[ {"answer": "Mary"} ]', '[ {"answer": "John"} ]'
    found = found_of(
        [
            ("none", 0, 0, "a", right),
            ("none", 0, 0, "b", wrong),
            ("top", 1, 0, "a", wrong),
            ("top", 1, 0, "b", ""),
            *(("random", 1, draw, "a", right) for draw in range(5)),
            *(("random", 1, draw, "b", "Mary") for draw in range(5)),
        ]
    )
    grades = grade_texts(found, {"quality": "quality[chrF]"}, {"published": "why"})
    assert len(seen) == 5
    assert grades.labels == {"accuracy": "accuracy", "quality": "quality[chrF]"}
    assert grades.missing == {"published": "why"}
    assert grades.table["accuracy"].tolist() == [1, 0, 0, 0, *[1] * 10]
    assert grades.table["in_json"].tolist() == [True] * 3 + [False] + [True] * 5 + [False] * 5
    quality = grades.table["quality"]
    assert quality[:2].tolist() == [1, 1]  # of the unmasked text with itself
    assert quality[2] < 0.5
    assert not quality.isna().any()
    assert quality[4:9].tolist() == [1] * 5
    assert len(grades.table) == len(found.texts)


def without(monkeypatch, name: str) -> None:
    """As on a machine that lacks a package the grader needs."""
    poor = dataclasses.replace(GRADERS[name], packages=("not_a_package",))
    monkeypatch.setitem(GRADERS, name, poor)


def test_grades_are_kept_and_made_again_where_more_can_be_graded(lab, tmp_path, monkeypatch):
    for name in ("published", "quality"):
        without(monkeypatch, name)
    finished = run_study(spec_of(lab), tmp_path / "r")
    cell = finished.cells[0]
    path = finished.folder / "grades" / f"{cell.id}.parquet"
    found = from_record(finished.read_cell(cell))
    poor = grades_of(finished, cell, found)
    assert list(poor.labels) == ["accuracy"]
    assert set(poor.missing) == {"published", "quality"}
    said = " ".join(finished.study.warnings(finished))
    assert "Not graded: published" in said
    assert "needs not_a_package: pip install 'headlab[grading]'" in said
    before = path.stat().st_mtime_ns
    grades_of(finished, cell, found)
    assert path.stat().st_mtime_ns == before, "taken up again"
    monkeypatch.setitem(GRADERS, "quality", dataclasses.replace(GRADERS["quality"], packages=()))
    richer = grades_of(finished, cell, found)
    assert list(richer.labels) == ["accuracy", "quality"]
    assert path.stat().st_mtime_ns != before
    without(monkeypatch, "quality")  # looked at on the poor machine, nothing is lost
    after = path.stat().st_mtime_ns
    assert "quality" in grades_of(finished, cell, found).table
    assert path.stat().st_mtime_ns == after


def test_grades_of_other_texts_or_half_a_file_are_not_taken_up(small):
    cell = small.cells[0]
    path = small.folder / "grades" / f"{cell.id}.parquet"
    whole = path.read_bytes()
    found = from_record(small.read_cell(cell))
    path.write_bytes(whole[:100])
    assert grades_of(small, cell, found).table["accuracy"].notna().all()
    assert path.read_bytes() == whole
    changed = found.texts.assign(text="nobody")
    small.write(cell, to_record(dataclasses.replace(found, texts=changed)), 0)
    (panel,) = read_panels(small)
    assert panel.unmasked("retrieval").mean == 0


# --- what panels say in numbers ---


def panel_of(none: list[int], top: list[int], random: list[list[int]]) -> Panel:
    """Of questions that are right or not: with all heads, the top masked, and each draw."""
    rows, right = [], []
    for kind, draws in (("none", [none]), ("top", [top]), ("random", random)):
        for draw, values in enumerate(draws):
            for item, value in enumerate(values):
                rows.append((kind, 0 if kind == "none" else 1, draw, f"q{item:02}", "x"))
                right.append(float(value))
    table = pd.DataFrame({"accuracy": right, "in_json": True})
    grades = Grades(table, {"accuracy": "accuracy"}, {})
    return Panel("m", "m", "probe", 0, found_of(rows), grades, "generated", 1e-4)


def test_points_have_the_mean_of_draws_their_band_and_an_interval_over_questions():
    random = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    panel = panel_of([1, 1, 1, 0], [0, 0, 0, 0], random)
    point = panel.point("retrieval", "random", 1)
    assert point.mean == pytest.approx(9 / 12)
    assert point.draws == pytest.approx((0.75, 0.5, 1.0))
    assert point.band == (0.5, 1.0)
    assert (point.low, point.high) == pytest.approx(share_interval(3, 4))
    assert point.n == 4
    assert panel.unmasked("retrieval").mean == 0.75
    top = panel.point("retrieval", "top", 1)
    assert (top.low, top.high) == share_interval(0, 4)
    assert top.high > 0.4
    mean, low, high = panel.fall("retrieval", 1)
    apart = torch.tensor([1, 1, 2 / 3, 1 / 3], dtype=torch.float64)
    assert mean == pytest.approx(0.75)
    unseen = 1 - share_interval(4, 4)[0]
    assert low == pytest.approx((1 - unseen) * 0.75 - unseen)  # wider than the bootstrap of four
    assert low < float(mean_interval(apart)[0])
    assert high <= 1
    many = Point(1, 0.5, 0, 1, 4, tuple(np.linspace(0.1, 0.9, 41)))
    assert many.band == pytest.approx((0.1, 0.9))  # all of them, however many
    with pytest.raises(HeadlabError, match="no texts of retrieval with 7 top heads masked"):
        panel.point("retrieval", "top", 7)


@pytest.mark.parametrize(
    ("top", "random", "verdict"),
    [
        ([0] * 10, [[1] * 10, [1] * 9 + [0]], "below"),
        ([1] * 10, [[0] * 10, [1] + [0] * 9], "above"),
        ([1] * 10, [[1] * 10, [1] * 10], "open"),
        ([0] * 2, [[1] * 2, [1] * 2], "open"),  # of two questions nothing follows
        ([0] * 3, [[1] * 3, [1] * 3], "open"),
        ([0] * 6, [[1] * 6, [1] * 6], "below"),
        ([0] * 10, [[1] * 10, [0] * 10], "open"),  # a draw that falls as far
        ([1, 0] * 5, [[1, 1] * 5, [0, 1] * 5], "open"),  # within the band
    ],
)
def test_the_verdict_asks_for_all_draws_and_enough_questions(top, random, verdict):
    assert panel_of([1] * len(top), top, random).verdict("retrieval", 1) == verdict


def test_differences_that_are_all_alike_have_an_interval_of_some_width():
    mean, low, high = panel_of([1] * 10, [0] * 10, [[1] * 10] * 2).fall("retrieval", 1)
    unseen = 1 - share_interval(10, 10)[0]
    assert (mean, high) == (1, 1)
    assert low == pytest.approx(1 - 2 * unseen)
    mean, low, high = panel_of([1] * 10, [1] * 10, [[1] * 10] * 2).fall("retrieval", 1)
    assert (mean, low, high) == pytest.approx((0, -unseen, unseen))


# --- figures and comparison ---


def test_the_run_leaves_figures_tables_and_a_report(done):
    names = {path.name for path in (done.folder / "figures").iterdir()}
    for name in ("masking", "rankings", "cross", "heads"):
        assert {f"{name}.{ending}" for ending in ("png", "pdf", "csv")} <= names
    with (done.folder / "figures" / "masking.csv").open() as file:
        rows = list(csv.DictReader(file))
    panels = {panel.ranking: panel for panel in read_panels(done)}
    own = [row for row in rows if row["score"] == "accuracy" and row["kind"] != "none"]
    assert len(own) == 3 * (2 * 3 + 2)  # rankings x (functions x kinds, and cross)
    for row in own:
        point = panels[row["ranking"]].point(
            row["function"], row["kind"], int(row["k"]), heads_of=row["heads_of"]
        )
        told = [float(row[key]) for key in ("mean", "low", "high", "draws_low", "draws_high")]
        assert told == pytest.approx([point.mean, point.low, point.high, *point.band])
        assert (row["heads"], row["n"]) == ("8", "12")
    page = (done.folder / "report.html").read_text()
    assert json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["panels"]
    assert "Traceback" not in page


def test_two_runs_are_compared(done):
    told = json.loads(run("compare", str(done.folder), str(done.folder), "--json").stdout)
    rows = [row for row in told["rows"] if row["function"] == "Retrieval"]
    assert [row["ranking"] for row in rows] == ["probe", "ablate", "attribute"]
    assert rows[0]["heads"] == "rank correlation 1.00"
    assert rows[0]["right"] == "100 %; 100 %"
    assert rows[0]["top 1"] == "0 %; 0 %"
    assert rows[0]["random 1"] == "100 %; 100 %"


def test_a_report_is_made_again_from_the_cells_alone(small):
    page = small.folder / "report.html"
    before = page.read_text()
    page.unlink()
    result = run("report", str(small.folder))
    assert result.exit_code == 0, result.output
    assert page.exists()
    assert len(page.read_text()) == pytest.approx(len(before), rel=0.05)
