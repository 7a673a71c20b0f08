"""The circuits study: its cells are rankings and curves, its lines and multipliers add up."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import error_of, run
from planted import pairs, planted, save_planted
from test_runs import save_task

import headlab
from headlab.curves import Curve
from headlab.curves.record import share_ks
from headlab.figures import plt
from headlab.scores import HeadScores
from headlab.store import Run
from headlab.studies.cells import Cell
from headlab.studies.circuits.cell import Found, from_record, run_cell, to_record, work
from headlab.studies.circuits.figure import draw, groups_of
from headlab.studies.circuits.lines import Line, read_lines
from headlab.studies.circuits.multipliers import Pairing, multiplier
from headlab.studies.circuits.page import published, write_report
from headlab.studies.planning import plan
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    save_planted(folder / "m")
    save_planted(folder / "twin")
    save_task(folder / "t.jsonl", pairs(24))
    return folder


def spec_of(lab: Path, **changes):
    given = {"models": [str(lab / "m")], "tasks": [str(lab / "t.jsonl")], "size": "smoke"}
    return make_spec({"study": "circuits", **given, **changes})


@pytest.fixture(scope="module")
def pair(lab) -> Run:
    both = {"pairs": [f"{lab / 'm'}:{lab / 'twin'}"], "models": [], "seeds": [0, 1]}
    return run_study(spec_of(lab, **both, methods=["patch", "random"]), lab / "pair")


# --- cells ---


def test_a_cell_is_the_ranking_and_the_curve_that_the_library_gives(lab):
    (cell,) = spec_of(lab).cells()
    model = planted()
    model.name = cell.model
    found = from_record(run_cell(cell, model, lambda _: None, Path()))
    ranked = headlab.make_examples(model, cell.task, 16, 0, "rank")
    tested = headlab.make_examples(model, cell.task, 16, 0, "curve")
    scores = headlab.rank(model, ranked, "patch", task=cell.task)
    made = headlab.curve(model, tested, scores, orders=5, quick=True)
    assert not set(scores.fingerprints) & {example.fingerprint for example in tested}
    assert torch.equal(found.scores.values.float(), scores.values)
    assert found.scores.noise_floor == scores.noise_floor
    assert found.curve.ks == made.ks
    for name in ("values", "random", "matched", "clean", "none"):
        assert torch.equal(getattr(found.curve, name).float(), getattr(made, name)), name
    assert found.curve.as_dict() == made.as_dict()
    assert found.curve.in_sample is False
    assert [example["prompt"] for example in found.examples] == [e.prompt for e in tested[:5]]


def test_every_setting_reaches_the_cell(lab, tmp_path):
    changes = {"methods": "attribute", "steps": 3, "seeds": [3], "dtype": "float64", "n": 6}
    changes |= {"measure": "log-prob", "threshold": 0.7, "orders": 2, "bos": "no"}
    done = run_study(spec_of(lab, **changes), tmp_path / "r")
    found = from_record(done.read_cell(done.cells[0]))
    assert found.scores.settings["steps"] == 3
    assert found.scores.settings["dtype"] == "float64"
    assert found.scores.measure == found.curve.measure == "log-prob"
    assert found.curve.threshold == 0.7
    assert found.curve.settings["seed"] == 3
    assert len(found.curve.random) == 2
    drawn = headlab.make_examples(planted(), str(lab / "t.jsonl"), 6, 3, "rank")
    assert found.scores.fingerprints == [example.fingerprint for example in drawn]
    drawn = headlab.make_examples(planted(), str(lab / "t.jsonl"), 6, 3, "curve")
    assert found.tested == [example.fingerprint for example in drawn]


def test_a_revision_goes_to_the_loader(lab, tmp_path, monkeypatch):
    from headlab.studies import running

    asked = []

    def refuse(name, **options):
        asked.append((name, options["revision"], options["trust_remote_code"]))
        raise headlab.HeadlabError("not here")

    monkeypatch.setattr(running, "load", refuse)
    run_study(spec_of(lab, models=["EleutherAI/pythia-70m@step512"]), tmp_path / "r")
    assert asked == [("EleutherAI/pythia-70m", "step512", False)]


def test_memory_that_ran_out_is_recorded(lab):
    (cell,) = spec_of(lab).cells()
    model = headlab.load(str(lab / "m"))

    def back_off(_):
        model.back_offs += 1

    assert from_record(run_cell(cell, model, back_off, Path())).backed_off
    assert not from_record(run_cell(cell, model, lambda _: None, Path())).backed_off


def test_a_record_holds_all_that_was_found():
    found = synthetic("a", [0, 1, 2, 4], [0.0, 0.5, 0.95, 1.0])
    again = from_record(to_record(found))
    assert torch.equal(again.scores.values, found.scores.values)
    assert torch.equal(again.curve.random, found.curve.random)
    assert torch.equal(again.curve.matched, found.curve.matched)
    assert again.curve.as_dict() == found.curve.as_dict()
    nothing = from_record(to_record(dataclasses.replace(found, curve=None, finding="no effect")))
    assert nothing.curve is None
    assert nothing.finding == "no effect"


def test_random_orders_are_measured_where_the_curve_crosses(pair):
    for line in read_lines(pair):
        for curve in line.curves:
            assert curve.crossing() in curve.random_ks


def test_the_planted_circuit_is_three_heads(pair):
    for line in read_lines(pair):
        if line.method == "patch":
            assert line.crossing(0.9) == 3
            assert {str(head) for head in line.scores.order()[:3]} == {
                str(head) for head in headlab.rank(planted(), pairs(8), "patch").order()[:3]
            }
        else:
            assert line.crossing(0.9) > 3


def test_per_prompt_orders_are_in_sample_and_the_report_says_so(lab, tmp_path):
    done = run_study(spec_of(lab, per_prompt=True), tmp_path / "r")
    (line,) = read_lines(done)
    assert line.curves[0].per_prompt
    assert line.curves[0].in_sample
    assert "in-sample" in (done.folder / "report.html").read_text()


@pytest.mark.parametrize("reference", ["mean", "zero"])
def test_other_references_can_stand_in(lab, tmp_path, reference):
    done = run_study(spec_of(lab, reference=reference), tmp_path / "r")
    (line,) = read_lines(done)
    assert line.finding or line.curves[0].reference == reference


def test_a_model_that_does_not_do_the_task_is_a_finding_not_a_failure(lab, tmp_path):
    swapped = [
        dataclasses.replace(each, prompt=each.counterfactual, counterfactual=each.prompt)
        for each in pairs(24)
    ]
    data = save_task(tmp_path / "wrong.jsonl", swapped)
    done = run_study(spec_of(lab, tasks=[str(data), str(lab / "t.jsonl")]), tmp_path / "r")
    assert [done.status(cell) for cell in done.cells] == ["done", "done"]
    wrong, right = read_lines(done)
    assert wrong.finding.startswith("m does not do this task")  # not by its path
    said = float(re.search(r"is (-?[\d.]+) with all heads", wrong.finding)[1])
    assert wrong.mean("clean") == pytest.approx(said, abs=0.01)
    assert right.finding is None
    assert "does not do this task" in (done.folder / "report.html").read_text()
    alone = run_study(spec_of(lab, tasks=[str(data)]), tmp_path / "alone")
    assert "does not do this task" in (alone.folder / "report.html").read_text()


def test_a_task_with_too_few_examples_says_so(lab, tmp_path):
    data = save_task(tmp_path / "few.jsonl", pairs(3))
    with pytest.raises(headlab.HeadlabError, match=r"few.jsonl has too few examples, 3"):
        spec_of(lab, tasks=[str(data)])
    once = {each.prompt: each for each in pairs(40)}.values()
    bare = [dataclasses.replace(each, counterfactual=None) for each in once]
    data = save_task(tmp_path / "bare.jsonl", bare)
    with pytest.raises(headlab.HeadlabError, match="has no counterfactual"):
        spec_of(lab, tasks=[str(data)])
    assert spec_of(lab, tasks=[str(data)], methods="ablate", reference="zero").tasks == [str(data)]


# --- lines ---


def synthetic(model: str, ks: list[int], explained: list[float], n: int = 12, seed: int = 0):
    """A cell whose curve is known: every prompt the same."""
    n_heads = ks[-1]
    ones = torch.ones(n, dtype=torch.float64)
    share = sorted({0, *share_ks(n_heads), n_heads})
    line = torch.tensor([k / n_heads for k in share], dtype=torch.float64)
    ids = [f"{seed}-{number}" for number in range(n)]
    values = torch.arange(n_heads, 0, -1, dtype=torch.float64).view(2, -1, 1).expand(-1, -1, n)
    scores = HeadScores(model, "t", "patch", "logit-diff", "counterfactual", ids, values, 4 * ones)
    made = Curve(
        model=model,
        task="t",
        mode="keep",
        method="patch",
        measure="logit-diff",
        reference="counterfactual",
        examples=ids,
        n_heads=n_heads,
        ks=ks,
        values=torch.tensor(explained, dtype=torch.float64)[:, None] * ones,
        random_ks=share,
        random=(line[None, :, None] * ones).repeat(20, 1, 1),
        matched=(line[None, :, None] * ones).repeat(20, 1, 1),
        clean=ones,
        none=0 * ones,
        in_sample=False,
        settings={"seed": seed},
    )
    prints = [f"{model}-{each}" for each in ids]
    scores = dataclasses.replace(scores, fingerprints=prints, settings={"direction": "noising"})
    return Found(scores, made, None, made.clean, made.none, [], prints, False)


def line_of(model: str, ks: list[int], explained: list[float], task: str = "t") -> Line:
    return Line(model, task, "patch", [0], [synthetic(model, ks, explained)])


def test_a_multiplier_is_heads_of_the_first_over_heads_of_the_second():
    dense = line_of("dense", [0, 50, 100, 144], [0, 0.5, 0.9, 1])
    sparse = line_of("sparse", [0, 25, 50, 144], [0, 0.5, 0.9, 1])
    assert multiplier(dense, sparse, 0.9).value == 2.0
    assert multiplier(sparse, dense, 0.9).value == 0.5
    found = multiplier(dense, sparse, 0.9)
    assert (found.low, found.high) == (2.0, 2.0)  # every prompt is the same
    assert len(Pairing([dense, sparse], []).every(0.9, [0.9])) == 2


def test_a_model_without_an_effect_has_no_multiplier_but_a_reason():
    dense = line_of("dense", [0, 50, 100, 144], [0, 0.5, 0.9, 1])
    gone = synthetic("sparse", [0, 144], [0, 1])
    gone = dataclasses.replace(gone, curve=None, finding="sparse does not do this task")
    found = multiplier(dense, Line("sparse", "t", "patch", [0], [gone]), 0.9)
    assert found.value is None
    assert "does not do" in found.reason


def test_a_line_is_the_mean_over_its_seeds():
    one = synthetic("m", [0, 10, 20], [0, 0.8, 1], seed=0)
    two = synthetic("m", [0, 5, 20], [0, 0.9, 1], seed=1)
    line = Line("m", "t", "patch", [0, 1], [one, two])
    at_4, at_5 = (0.32 + 0.72) / 2, (0.4 + 0.9) / 2
    at_10 = (0.8 + (0.9 + 1 / 30)) / 2
    assert np.allclose(line.explained[[0, 4, 5, 10, 20]], [0, at_4, at_5, at_10, 1])
    assert line.crossing(0.5) == 4  # between measured ks by a straight line
    assert line.n == 24
    assert line.scores.values.shape[-1] == 24


def test_a_line_of_one_seed_is_its_curve():
    found = synthetic("m", [0, 1, 2, 4, 10, 20], [0, 0.1, 0.3, 0.6, 0.8, 1])
    line = Line("m", "t", "patch", [0], [found])
    assert torch.equal(line.explained, found.curve.explained)
    for mine, its in zip(line.band, found.curve.band, strict=True):
        assert torch.equal(mine, its)
    assert line.crossing(0.9) == found.curve.crossing(0.9)
    assert line.crossing_interval(0.9) == found.curve.crossing_interval(0.9)
    assert line.crossing(0.9, stay=True) == found.curve.crossing(0.9, stay=True)
    assert line.mean("cpr") == pytest.approx(found.curve.cpr)


def noisy(model: str, ks: list[int], explained: list[float], n: int, seed: int) -> Found:
    """The same with prompts that differ."""
    found = synthetic(model, ks, explained, n, seed)
    spread = torch.linspace(0.5, 1.5, n, dtype=torch.float64)
    values = found.curve.values + 0.2 * (spread - 1) * torch.tensor(ks)[:, None] / ks[-1]
    return dataclasses.replace(found, curve=dataclasses.replace(found.curve, values=values))


def test_the_band_over_seeds_is_that_of_their_mean():
    ks, rise = [0, 1, 2, 4, 10, 20], [0, 0.1, 0.3, 0.6, 0.8, 1]
    one, two = noisy("m", ks, rise, 12, 0), noisy("m", ks, rise, 12, 1)
    alone = Line("m", "t", "patch", [0], [one])
    both = Line("m", "t", "patch", [0, 1], [one, two])
    assert both.n == 24
    width, narrower = (float((high - low)[-1]) for low, high in (alone.band, both.band))
    assert narrower == pytest.approx(width / 2**0.5, rel=0.15)
    calm = dataclasses.replace(two, curve=synthetic("m", ks, rise, 12, 1).curve)
    half = Line("m", "t", "patch", [0, 1], [one, calm])
    low, high = half.band
    assert 0 < (high - low)[-1] < narrower  # both seeds count, not the first alone


def test_a_prompt_that_several_seeds_drew_counts_once():
    ks, rise = [0, 1, 2, 4, 10, 20], [0, 0.1, 0.3, 0.6, 0.8, 1]
    one = noisy("m", ks, rise, 12, 0)
    thrice = Line("m", "t", "patch", [0, 1, 2], [one, one, one])
    once = Line("m", "t", "patch", [0], [one])
    assert thrice.n == once.n == 12
    assert thrice.scores.values.shape == once.scores.values.shape
    assert torch.allclose(thrice.band[1][ks], once.band[1], atol=1e-9)


def test_the_random_line_is_of_all_seeds_and_read_between_its_points():
    one, two = (synthetic("m", [0, 10, 20], [0, 0.8, 1], seed=seed) for seed in (0, 1))
    flat = dataclasses.replace(two.curve, random=0 * two.curve.random)
    line = Line("m", "t", "patch", [0, 1], [one, dataclasses.replace(two, curve=flat)])
    assert len(line.random) == 40
    assert line.random_at(10) == pytest.approx(0.25)  # half of the orders rise to 0.5 there
    assert line.random_at(15) == pytest.approx((0.25 + 0.5 * (1 + 0)) / 2)


def test_the_multipliers_interval_is_of_the_ratio_over_prompts():
    ks = [0, 10, 20, 30, 40, 50]
    dense = Line("a", "t", "patch", [0], [noisy("a", ks, [0, 0.3, 0.6, 0.86, 0.9, 1], 8, 0)])
    sparse = Line("b", "t", "patch", [0], [synthetic("b", ks, [0, 0.9, 1, 1, 1, 1], 8)])
    found = multiplier(dense, sparse, 0.9)
    assert found.value == 4.0
    assert found.low <= found.value <= found.high
    assert found.low < found.high
    never = noisy("a", ks, [0, 0.3, 0.6, 0.7, 0.8, 0.9], 8, 0)
    line = Line("a", "t", "patch", [0], [never])
    assert set(line.crossings_again(0.9)) <= {50}  # not reached: all heads, not one


# --- figure and report ---


@pytest.fixture
def unequal(tmp_path) -> Run:
    """A run whose two models need 100 and 50 heads, one with a random line of its own."""
    given = {"study": "circuits", "tasks": ["ioi"], "pairs": ["gpt2:smollm2"], "size": "smoke"}
    made = Run(tmp_path / "r", make_spec(given))
    curves = {"gpt2": [0, 0.5, 0.9, 1], "smollm2": [0, 0.95, 1, 1]}
    ks = sorted({50, 100, 140, *share_ks(140)})
    with made.locked():
        for cell in made.cells:
            rise = np.interp(ks, [0, 50, 100, 140], curves[cell.model]).tolist()
            found = synthetic(cell.model, ks, rise)
            curve = dataclasses.replace(found.curve, matched=0.5 * found.curve.random)
            found = dataclasses.replace(found, curve=curve, backed_off=cell.model == "gpt2")
            made.write(cell, to_record(found), 1.0)
        made.write_report()
    return made


def test_terminal_report_and_csv_tell_the_same_ratio_and_lines(unequal):
    said = unequal.study.findings(unequal)
    ratio = "2.00x as many heads (95 % interval 2.00 to 2.00) for 90 % of the effect."
    assert f"ioi: gpt2 against smollm2: {ratio}" in said
    assert said[1].startswith("ioi, gpt2: 100 of 140 heads (95 % interval 100 to 100)")
    assert "as many random heads explain 71 %" in said[1]
    page = (unequal.folder / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    ratios = {(each["dense"], each["sparse"]): each["value"] for each in data["multipliers"]}
    assert ratios == {("gpt2", "smollm2"): 2.0, ("smollm2", "gpt2"): 0.5}
    line = data["lines"][0]
    assert line["curve"]["crossings"]["90"]["k"] == 100
    assert line["curve"]["random"]["mean"][-2] == pytest.approx(0.5)
    assert line["curve"]["matched"]["mean"][-2] == pytest.approx(0.25)
    assert "Memory ran out on the way" in page
    with (unequal.folder / "figures/numbers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["k90"] for row in rows] == ["100", "50"]
    assert float(rows[0]["random_at_k"]) == pytest.approx(100 / 140)
    with (unequal.folder / "figures/circuits.csv").open() as file:
        for row in csv.DictReader(file):
            assert float(row["low"]) <= float(row["explained"]) + 1e-9
            assert float(row["explained"]) <= float(row["high"]) + 1e-9


def texts_of(figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_the_figure_has_a_panel_a_task_and_the_multiplier_between_two_models():
    lines = [
        line_of("dense", [0, 50, 100, 144], [0, 0.5, 0.9, 1], task)
        for task in ("ioi", "greater-than")
    ]
    lines += [line_of("sparse", [0, 25, 50, 144], [0, 0.5, 0.9, 1], line.task) for line in lines]
    figure = draw(lines, [["dense", "sparse"]], 0.9, published()["numbers"])
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["ioi", "greater-than"]
    assert texts_of(figure) == ["2.0x (2.0 to 2.0)"] * 2
    marks = [line for axis in figure.axes for line in axis.lines if line.get_marker() in "oD"]
    assert len(marks) == 4  # dense and sparse, for both tasks
    at = {line.get_marker(): line.get_xdata()[0] for line in figure.axes[0].lines}
    assert (at["o"], at["D"]) == (100, 50)  # the share of 144 heads
    plt.close(figure)
    apart = draw([lines[0], lines[2]], [], 0.9, [])
    assert texts_of(apart) == ["k90 = 100", "k90 = 50"]
    plt.close(apart)


def test_published_marks_of_the_very_model_stand_at_its_own_heads():
    line = line_of("gpt2", [0, 50, 100, 200], [0, 0.5, 0.9, 1], "ioi")
    line = dataclasses.replace(line, source="gpt2")
    figure = draw([line], [], 0.9, published()["numbers"])
    at = {each.get_marker(): each.get_xdata()[0] for each in figure.axes[0].lines}
    assert at["o"] == 100  # not 100 / 144 of 200
    assert at["D"] == 50  # of the same figure, so on the same scale
    plt.close(figure)


def test_the_published_numbers_are_those_of_the_paper():
    numbers = {each["task"]: each for each in published()["numbers"]}
    multipliers = {task: each["multiplier"] for task, each in numbers.items()}
    assert multipliers == {"greater-than": 0.6, "ioi": 2.0, "docstring": 1.3, "ioi-long": 1.6}
    for each in numbers.values():
        read_off = each["dense"]["k"] / each["sparse"]["k"]
        assert read_off == pytest.approx(each["multiplier"], abs=0.05)


def test_models_of_one_name_are_kept_apart(lab, tmp_path):
    for place in ("one", "two"):
        save_planted(tmp_path / place / "m")
    models = [str(tmp_path / place / "m") for place in ("one", "two")]
    done = run_study(spec_of(lab, models=models), tmp_path / "r")
    assert [line.model for line in read_lines(done)] == ["one/m", "two/m"]
    assert (
        "one/m against two/m" not in (tmp_path / "r/report.html").read_text()
    )  # no pair was asked for
    assert len(list((tmp_path / "r/figures").glob("head-map-*.png"))) == 2


def test_models_in_no_pair_share_a_row():
    assert groups_of(["a", "b", "c", "d"], [["a", "c"]]) == [["a", "c"], ["b", "d"]]


def test_the_run_leaves_figures_with_their_data(pair):
    figures = pair.folder / "figures"
    names = {path.stem for path in figures.iterdir()}
    assert {"circuits-patch", "circuits-random"} < names
    for name in names - {"numbers", "multipliers"}:
        assert {path.suffix for path in figures.glob(f"{name}.*")} == {".png", ".pdf", ".csv"}
    with (figures / "circuits-patch.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["line"] for row in rows} == {"ranked", "random", "layer-matched random"}
    best = [float(row["explained"]) for row in rows if row["line"] == "ranked" and row["k"] == "3"]
    assert min(best) > 0.99


def test_the_report_says_what_was_found(pair):
    page = (pair.folder / "report.html").read_text()
    assert "3 of 8 heads" in page
    assert "1.00x as many heads" in page
    assert "With 5 random orders this is a quick look" in page
    before = page
    write_report(pair)
    assert (pair.folder / "report.html").read_text() == before


def test_a_run_with_nothing_done_has_a_report_that_says_so(lab, tmp_path):
    started = Run.start(tmp_path / "r", spec_of(lab))
    with started.locked():
        write_report(started)
    assert "Not done yet: 1 of 1 cell;" in (tmp_path / "r/report.html").read_text()


def test_compare_puts_two_runs_side_by_side(lab, pair, tmp_path):
    other = run_study(spec_of(lab, seeds=[7]), tmp_path / "other")
    told = json.loads(run("compare", str(pair.folder), str(other.folder), "--json").stdout)
    (row,) = told["rows"]
    assert row["first k90"].startswith("3 of 8")
    assert row["first / second"].startswith("1.00x")
    assert told["settings"]["seeds"] == [[0, 1], [7]]
    same = json.loads(run("compare", str(other.folder), str(other.folder), "--json").stdout)
    assert same["rows"][0]["heads agree"] == "the same scores"
    assert same["settings"] == {}
    nothing = run_study(spec_of(lab, methods=["random"]), tmp_path / "nothing")
    assert "no finished cell in common" in error_of(
        run("compare", str(other.folder), str(nothing.folder))
    )


# --- what it will cost ---


def test_a_dry_run_prints_the_cells_and_runs_nothing(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(
        *("run", "circuits", "--models", f"{lab / 'm'},gpt2", "--tasks", str(lab / "t.jsonl")),
        *("--seeds", "0,1", "--dry-run"),
    )
    assert result.exit_code == 0, result.output
    assert re.search(r"4 cells, about \d+ s on this machine", result.stdout)
    assert "2 could not be estimated" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_progress_counts_to_about_its_end(lab):
    counted = []
    (cell,) = spec_of(lab).cells()
    run_cell(cell, headlab.load(str(lab / "m")), counted.append, Path())
    expected = work(cell, 8).pairs * 12 / 16  # the file has 12 for each half
    assert 0.5 * expected <= sum(counted) <= 1.2 * expected


def test_more_prompts_orders_and_heads_cost_more(lab):
    def passes(**changes) -> float:
        (cell,) = spec_of(lab, **changes).cells()
        return work(cell, 100).passes

    assert passes(n=32) == 2 * passes(n=16)
    assert passes(orders=20) > passes(orders=5)
    assert passes(methods=["attribute"]) < passes()
    (planned,) = plan(spec_of(lab))
    assert planned.seconds > 0
    assert planned.memory > 1e8
    assert isinstance(planned.cell, Cell)
