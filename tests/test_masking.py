"""The masking study: heads are ranked on training questions and taken away on others."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run
from copying import BOTH, NUMBER, cell_of, find, make_lab, spec_of, unmasked
from planted import asked_of_copier, copier, save_questions
from tiny import lettered

import headlab
from headlab import HeadlabError
from headlab.probing import pool
from headlab.store import Run
from headlab.studies.masking import cell as cells
from headlab.studies.masking.boosting import directions
from headlab.studies.masking.cell import Found, from_record, to_record
from headlab.studies.masking.judging import judge
from headlab.studies.masking.masks import draw_masks, gates_of, wanted_ks
from headlab.studies.masking.panels import read_panels
from headlab.studies.masking.ranked import Answered, Ranked
from headlab.studies.running import run_study
from headlab.tasks.cogqa import load, pick


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    return make_lab(tmp_path_factory.mktemp("lab"))


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
    assert set(top) - set(unmasked(found.texts)), "a push that changes nothing proves nothing"


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
