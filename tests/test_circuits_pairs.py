"""Dense against sparse: levels and twins, multipliers and when there is none, edges kept."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from planted import pairs, planted
from sparsified import asked, make_lab, save_sparse
from test_circuits import line_of, noisy, synthetic, texts_of
from test_runs import save_task

import headlab
from headlab.errors import HeadlabError
from headlab.figures import plt
from headlab.gatefits import Schedule, fit_gates
from headlab.sparse import edges_kept
from headlab.store import Run
from headlab.studies.cells import labels
from headlab.studies.circuits.cell import from_record, to_record
from headlab.studies.circuits.comparing import compare
from headlab.studies.circuits.edges import draw_edges
from headlab.studies.circuits.figure import draw, groups_of
from headlab.studies.circuits.lines import Line, read_lines
from headlab.studies.circuits.multipliers import Multiplier, Pairing, compared, lost_ability
from headlab.studies.circuits.pairs import families
from headlab.studies.circuits.words import _ratio
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec, read_spec


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    return make_lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def done(lab) -> Run:
    """m, level-30, level-3 (which has lost the task) and the twin, both kinds of ranking."""
    return run_study(make_spec(asked(lab, methods=["patch", "patch-per-prompt"])), lab / "run")


def table(run: Run, name: str) -> list[dict[str, str]]:
    with (run.folder / "figures" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


# --- what is compared ---


def bare(folder: Path, *names: str) -> Path:
    """Model folders that are only looked at."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
        (folder / name / "x.safetensors").touch()
    (folder / "sparsify.json").write_text("{}")
    return folder


def pairs_of(*given, **more) -> list[list[str]]:
    return make_spec({"study": "circuits", "pairs": list(given), **more}).pairs


def test_a_sparsify_folder_is_a_pair_for_every_level_densest_first(tmp_path):
    out = bare(tmp_path / "OUT", "level-3", "level-30", "level-0.5", "level-10", "final", "twin")
    (out / "level-20").mkdir()  # nothing in it yet
    (out / "level-x").mkdir()
    found = pairs_of(f"gpt2:{out}")
    levels = [f"{out}/level-{share}" for share in ("30", "10", "3", "0.5")]
    assert found == [["gpt2", level, f"{out}/twin"] for level in levels]
    spec = make_spec({"study": "circuits", "pairs": f"gpt2:{out}"})
    assert spec.models == ["gpt2", *levels, f"{out}/twin"]
    assert pairs_of(["gpt2", str(out), "smollm2"])[0] == ["gpt2", levels[0], "smollm2"]
    shutil.rmtree(out / "twin")
    assert pairs_of(f"gpt2:{out}") == [["gpt2", level] for level in levels]
    for level in out.glob("level-*"):
        shutil.rmtree(level)
    assert pairs_of(f"gpt2:{out}") == [["gpt2", f"{out}/final"]]
    shutil.rmtree(out / "final")
    with pytest.raises(HeadlabError, match=r"OUT has neither a level .* nor a final model yet"):
        pairs_of(f"gpt2:{out}")


def test_a_model_folder_is_no_sparsify_folder(tmp_path):
    model = bare(tmp_path, "m", "m/level-10") / "m"
    (model / "sparsify.json").write_text("{}")
    assert pairs_of(f"gpt2:{model}") == [["gpt2", str(model)]]
    shutil.rmtree(model)
    model.mkdir()
    with pytest.raises(HeadlabError, match=r"no config\.json"):  # nor is any other folder
        pairs_of(f"gpt2:{model}")


def test_a_study_file_names_the_folder_from_its_own_place_and_a_run_stores_the_levels(tmp_path):
    out = bare(tmp_path / "here" / "OUT", "level-30", "level-3", "twin")
    file = tmp_path / "here" / "study.yaml"
    file.write_text("study: circuits\npairs: ['gpt2:OUT']\n")
    spec = read_spec(file)
    assert [pair[1:] for pair in spec.pairs] == [
        [f"{out}/level-30", f"{out}/twin"],
        [f"{out}/level-3", f"{out}/twin"],
    ]
    stored = tmp_path / "stored.yaml"
    stored.write_text(spec.as_yaml())
    shutil.rmtree(out)
    assert read_spec(stored, stored=True) == spec
    with pytest.raises(HeadlabError):
        read_spec(stored)


def test_a_pair_is_two_or_three_different_models():
    assert pairs_of("gpt2:smollm2:olmo-7b", ["gpt2", "olmo-7b"]) == [
        ["gpt2", "smollm2", "olmo-7b"],
        ["gpt2", "olmo-7b"],
    ]
    for wrong in ("gpt2", "a:b:c:d", ["gpt2"], 3):
        with pytest.raises(HeadlabError, match="'dense:sparse:twin'"):
            pairs_of(wrong)
    with pytest.raises(HeadlabError, match="gpt2 is there twice"):
        pairs_of("gpt2:smollm2:gpt2")


def test_what_has_one_dense_model_shares_a_row_with_twins_last():
    declared = [["a", "b", "t"], ["a", "c", "t"], ["d", "e"]]
    assert groups_of([*"abctdex"], declared) == [["a", "b", "c", "t"], ["d", "e"], ["x"]]
    assert families([["a", "b"], ["a", "c", "b"]])[0].twins == []  # what is sparse is no twin


def test_levels_have_short_names_and_those_of_two_folders_are_told_apart():
    assert list(labels(["gpt2", "/x/OUT/level-10", "/x/OUT/twin"]).values()) == [
        *("gpt2", "level-10", "twin")
    ]
    both = ["/x/A/level-10", "/x/A/level-3", "/x/B/level-10", "gpt2"]
    assert list(labels(both).values()) == ["A/level-10", "A/level-3", "B/level-10", "gpt2"]


# --- multipliers, and when there is none ---


def able(model: str, clean: float, ks=(0, 25, 50, 144), measure: str = "logit-diff") -> Line:
    """90 % at the third k; the measure with all heads is given."""
    found = synthetic(model, list(ks), [0, 0.85, 0.9, 1])
    scores = dataclasses.replace(found.scores, measure=measure)
    clean = clean * torch.ones(12, dtype=torch.float64)
    return Line(model, "t", "patch", [0], [dataclasses.replace(found, scores=scores, clean=clean)])


@pytest.mark.parametrize(("left", "is_lost"), [(2.51, False), (2.49, True), (-1.0, True)])
def test_a_model_with_less_than_half_of_the_measure_has_no_multiplier(left, is_lost):
    dense, sparse = able("dense", 5.0, (0, 50, 100, 144)), able("sparse", left)
    pairing = Pairing([dense, sparse], [["dense", "sparse"]])
    found = pairing.multiplier(dense, sparse, 0.9)
    back = pairing.multiplier(sparse, dense, 0.9)
    if not is_lost:
        assert (found.value, found.reason) == (2.0, None)
        assert back.value == 0.5
        return
    assert found.value is found.low is found.high is back.value is None
    assert f"its logit difference, {left:g}, is less than half of dense's, 5" in found.reason
    assert found.brief == f"logit difference {left:g} of 5"
    assert back.reason == found.reason
    assert all(row["reason"] == found.reason for row in pairing.rows([0.8, 0.9, 0.95]))
    (there, _) = pairing.every(0.9, [0.8, 0.9])
    assert there["value"] is None
    assert {each["reason"] for each in there["levels"].values()} == {found.reason}


def test_the_half_rule_is_of_what_was_declared_and_of_measures_with_a_zero():
    dense, sparse, twin = able("dense", 5.0), able("sparse", 1.0), able("twin", 5.0)
    assert Pairing([dense, sparse], []).multiplier(dense, sparse, 0.9).value == 1
    other = Pairing([dense, sparse, twin], [["dense", "sparse", "twin"]])
    assert other.multiplier(dense, twin, 0.9).value == 1
    assert "sparse has lost the task" in other.multiplier(twin, sparse, 0.9).reason
    lost = dataclasses.replace(twin, found=able("twin", 1.0).found)
    assert Pairing([dense, sparse, lost], other.pairs).multiplier(dense, lost, 0.9).value is None
    for measure, full, left in (("log-prob", -1.0, -5.0), ("kl", 4.0, 0.0), ("logit-diff", 0, -1)):
        assert lost_ability(able("a", full, measure=measure), able("b", left)) is None


def test_two_runs_are_held_to_the_half_rule_only_where_one_model_is_sparse():
    dense, weak = able("dense", 5.0, (0, 50, 100, 144)), able("weak", 1.0)
    edges = torch.full((2, 72), 0.1, dtype=torch.float64)
    sparse = dataclasses.replace(weak, found=[dataclasses.replace(weak.found[0], edges=edges)])
    assert compared(dense, weak, 0.9).value == 2
    assert compared(dense, sparse, 0.9).brief == "logit difference 1 of 5"
    assert compared(sparse, dense, 0.9).brief == "logit difference 1 of 5"
    assert compared(sparse, sparse, 0.9).value == 1


def test_multipliers_at_each_level_are_ratios_of_ks_and_may_be_below_one():
    ks = [0, 10, 20, 40, 80, 144]
    dense = line_of("dense", ks, [0, 0.8, 0.9, 0.95, 1, 1])
    sparse = line_of("sparse", ks, [0, 0.5, 0.8, 0.9, 0.9, 1])
    rows = Pairing([dense, sparse], [["dense", "sparse"]]).rows([0.8, 0.9, 0.95])
    told = [(row["percent"], row["dense_k"], row["k"], row["multiplier"]) for row in rows]
    assert told == [(80, 10, 20, 0.5), (90, 20, 40, 0.5), (95, 40, 144, 40 / 144)]
    assert {row["kind"] for row in rows} == {"sparse"}


def test_an_interval_is_of_the_same_prompts_in_both():
    ks, rise = [0, 10, 20, 30, 40, 50], [0, 0.3, 0.6, 0.86, 0.9, 1]
    one, other = (Line(name, "t", "patch", [0], [noisy(name, ks, rise, 8, 0)]) for name in "ab")
    (row,) = Pairing([one, other], [["a", "b"]]).rows([0.9])
    assert (row["low"], row["high"]) == (1, 1)  # alike on every resample, whatever their ks
    assert len(set(one.crossings_again(0.9))) > 1


# --- the figure ---


def test_one_row_has_the_dense_model_its_levels_and_its_twin():
    names = ["dense", "level-30", "level-3", "base"]
    lines = [able("dense", 5.0, (0, 50, 100, 144)), able("level-30", 4.0), able("level-3", 0.9)]
    lines.append(able("base", 5.0, (0, 50, 80, 144)))
    declared = [["dense", "level-30", "base"], ["dense", "level-3", "base"]]
    figure = draw(lines, declared, 0.9, [])
    (axis,) = figure.axes
    assert texts_of(figure)[::-1] == [
        "dense: k90 = 100",
        "level-30: k90 = 50, 2.0x (2.0 to 2.0)",
        "level-3: no multiplier, logit difference 0.9 of 5",
        "base, twin: k90 = 80, 1.2x (1.2 to 1.2)",
    ]
    handles = {each.get_label(): each for each in figure.legends[0].legend_handles}
    assert list(handles) == [*names[:3], "base, twin", "its random orders"]
    assert handles["base, twin"].get_linewidth() < handles["dense"].get_linewidth()
    assert handles["base, twin"].get_linestyle() == "--"  # dashes and dots
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axis.texts]
    top, title = axis.get_window_extent().y1, axis._left_title.get_window_extent()
    assert all(top <= box.y0 and box.y1 <= title.y0 + 1 for box in boxes)  # clear of the curves
    assert all(box.x1 <= axis.get_window_extent().x1 for box in boxes)
    assert not any(one.overlaps(two) for one in boxes for two in boxes if one is not two)
    plt.close(figure)


def test_a_pair_without_a_multiplier_says_why_above_its_panel():
    lines = [able("dense", 5.0), able("sparse", 0.9)]
    figure = draw(lines, [["dense", "sparse"]], 0.9, [])
    assert "sparse: no multiplier, logit difference 0.9 of 5" in texts_of(figure)
    assert not any("x (" in text for text in texts_of(figure))
    plt.close(figure)


def test_a_figure_of_in_sample_curves_says_so():
    held_out = able("m", 5.0)
    made = dataclasses.replace(held_out.found[0].curve, in_sample=True, per_prompt=True)
    own = dataclasses.replace(held_out, found=[dataclasses.replace(held_out.found[0], curve=made)])
    for line, is_said in ((held_out, False), (own, True)):
        figure = draw([line], [], 0.9, [])
        assert ("in-sample" in figure.axes[0].get_ylabel()) is is_said
        plt.close(figure)


# --- edges ---


def test_a_record_holds_the_edges_and_one_without_is_read_too():
    found = synthetic("a", [0, 1, 2, 4], [0.0, 0.5, 0.95, 1.0])
    edges = torch.rand(2, 2, dtype=torch.float64)
    again = from_record(to_record(dataclasses.replace(found, edges=edges)))
    assert torch.equal(again.edges, edges)
    assert from_record(to_record(found)).edges is None
    assert "edges" not in set(to_record(found).table["part"])


def test_the_edges_of_a_cell_are_those_open_on_the_prompts_it_was_tested_on(lab, done):
    model = headlab.load(str(lab / "OUT/level-30"))
    task = str(lab / "t.jsonl")
    for line in read_lines(done):
        if line.model != "level-30":
            assert (line.edges is None) == (line.model in ("m", "twin"))
            continue
        stream = "curve" if line.method == "patch" else "rank"
        tested = headlab.make_examples(model, task, 16, 0, stream)
        expected = edges_kept(model, [example.prompt for example in tested])
        assert torch.equal(line.edges, expected)
        assert 0 < expected[1, 1] < 1
        if line.method == "patch":
            rows = table(done, "edges-level-30-t-jsonl")
            assert [float(row["percent"]) for row in rows] == pytest.approx(
                (100 * expected).flatten().tolist()
            )
            assert rows[5]["head"] == "L1H1"
    names = {path.name for path in (done.folder / "figures").glob("edges-*")}
    assert names == {f"edges-level-{n}-t-jsonl.{e}" for n in (3, 30) for e in ("png", "pdf", "csv")}


def test_the_edge_map_is_of_percent_on_one_logarithmic_scale():
    line = able("m", 5.0)
    edges = torch.tensor([[1.0, 0.0], [0.001, 0.000001]], dtype=torch.float64)
    figure = draw_edges(line, edges)
    (picture,) = figure.axes[0].images
    shown = picture.get_array()
    assert (float(shown[0, 0]), float(shown[0, 1])) == (100, pytest.approx(0.1))  # [head, layer]
    assert shown.mask.tolist() == [[False, False], [True, False]]
    assert (picture.norm.vmin, picture.norm.vmax) == (0.01, 100)
    assert "1 heads keep none" in figure.texts[0].get_text().replace("\n", " ")
    plt.close(figure)


# --- a run ---


def test_a_run_tells_the_multipliers_and_why_there_is_none(done):
    said = "\n".join(done.study.findings(done))
    ratio = "1.00x as many heads (95 % interval 1.00 to 1.00) for 90 % of the effect."
    assert f"t.jsonl: m against level-30, patch: {ratio}" in said
    lost = re.search(r"m against level-3, patch: no multiplier, (.*)\.\n", said)[1]
    assert "is less than half of m's" in lost
    assert "m against twin (its twin), patch: 1.00x" in said
    rows = table(done, "multipliers")
    assert len(rows) == 3 * 3 * 2  # models, levels, methods
    of_lost = [row for row in rows if row["model"] == "level-3"]
    assert {row["reason"] for row in of_lost if row["method"] == "patch"} == {lost}
    assert all(row["reason"] and not row["multiplier"] for row in of_lost)
    assert {row["multiplier"] for row in rows if row["model"] != "level-3"} == {"1.0"}
    assert {row["kind"] for row in rows if row["model"] == "twin"} == {"twin"}
    by_model = {row["model"]: row for row in table(done, "numbers") if row["method"] == "patch"}
    assert by_model["level-3"]["no_multiplier"] == lost
    assert by_model["level-3"]["multiplier"] == by_model["m"]["against"] == ""
    assert (by_model["level-30"]["multiplier"], by_model["twin"]["against"]) == ("1.0", "m")
    edges = next(line.edges for line in read_lines(done) if line.model == "level-30")
    assert float(by_model["level-30"]["edges_percent"]) == pytest.approx(100 * edges.mean())
    assert by_model["m"]["edges_percent"] == ""
    page = (done.folder / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    by_patch = [row for row in data["multipliers"] if row["method"] == "patch"]
    found = {(row["dense"], row["sparse"]): row for row in by_patch}
    assert found["m", "level-3"]["reason"] == found["level-3", "m"]["reason"] == lost
    assert found["m", "level-30"]["levels"]["95"]["value"] == 1.0


def test_a_run_has_global_and_per_prompt_rankings_side_by_side(lab, done, tmp_path):
    names = {path.name for path in (done.folder / "figures").glob("circuits-*.png")}
    assert names == {"circuits-patch.png", "circuits-patch-per-prompt.png"}
    maps = {path.name for path in (done.folder / "figures").glob("head-map-m-*.png")}
    assert maps == {"head-map-m-t-jsonl-patch.png", "head-map-m-t-jsonl-patch-per-prompt.png"}
    setting = asked(lab, per_prompt=True, pairs=[], models=[str(lab / "m")])
    own = run_study(make_spec(setting), tmp_path / "own")
    (alone,) = read_lines(own)
    by_method = {line.method: line for line in read_lines(done) if line.model == "m"}
    same, other = by_method["patch-per-prompt"].found[0], by_method["patch"].found[0]
    assert torch.equal(same.scores.values, alone.found[0].scores.values)
    assert torch.equal(same.curve.values, alone.found[0].curve.values)
    assert same.tested == alone.found[0].tested != other.tested
    assert same.curve.in_sample
    assert same.curve.per_prompt
    assert not other.curve.in_sample
    said = "\n".join(done.study.warnings(done))
    assert "ranked by patch-per-prompt on the very prompts they are tested on: in-sample" in said
    assert "Heads were ranked on the very" in "\n".join(own.study.warnings(own))


def test_a_method_for_each_prompt_takes_the_settings_of_its_way():
    def made(**given):
        return make_spec({"study": "circuits", **given})

    (cell,) = made(methods="attribute-per-prompt", steps=3, tasks="ioi").cells()
    assert (cell.settings["steps"], cell.settings["per_prompt"]) == (3, True)
    with pytest.raises(HeadlabError, match="patch-per-prompt is for each prompt by itself"):
        made(methods=["patch-per-prompt"], per_prompt=True)
    with pytest.raises(HeadlabError, match="random-per-prompt"):
        made(methods=["random-per-prompt"])
    plain = made(tasks="ioi").cells()[0]
    assert plain.settings["per_prompt"] is False


def test_runs_of_a_dense_and_a_sparse_model_are_compared_by_the_half_rule(lab, done, tmp_path):
    one, other = (
        run_study(make_spec(asked(lab, pairs=[], models=[str(lab / name)])), tmp_path / name[:1])
        for name in ("m", "OUT/level-3")
    )
    (row,) = compare(one, other)
    assert row["first / second"].startswith("none, logit difference")
    (row,) = compare(one, one)
    assert row["first / second"].startswith("1.00x")


# --- hard gates have no gradient ---


def test_ranking_a_sparse_model_by_a_gradient_warns_once(tmp_path):
    sparse = headlab.load(str(save_sparse(tmp_path / "s")))
    with pytest.warns(UserWarning, match="rank heads of a sparse model by patching"):
        headlab.rank(sparse, pairs(4), "attribute")
    again = headlab.load(str(tmp_path / "s"))
    with pytest.warns(UserWarning, match="not by gates"):
        fit_gates(again, pairs(4), [0], Schedule(updates=1, batch=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        headlab.rank(sparse, pairs(4), "attribute")
        headlab.rank(headlab.load(str(tmp_path / "s")), pairs(4), "patch")
        headlab.rank(planted(), pairs(4), "attribute")


def test_a_run_by_attribution_on_a_sparse_model_says_so(tmp_path):
    model = save_sparse(tmp_path / "level-30")
    save_task(tmp_path / "t.jsonl", pairs(12))
    given = asked(tmp_path, pairs=[], models=[str(model)], methods="attribute-per-prompt")
    with pytest.warns(UserWarning, match="hard gate"):
        done = run_study(make_spec(given), tmp_path / "r")
    (said,) = [each for each in done.study.warnings(done) if "hard gate" in each]
    assert said.endswith("attribute was asked of level-30.")


def test_heads_of_a_sparse_model_that_slopes_pick_are_warned_of(tmp_path):
    model = save_sparse(tmp_path / "level-30", layers=8)
    save_task(tmp_path / "t.jsonl", pairs(12))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = {"pairs": [], "models": [str(model)], "methods": "patch"}
        done = run_study(make_spec(asked(tmp_path, **given, exact=4)), tmp_path / "r")
        headlab.rank(headlab.load(str(model)), pairs(4), "patch", exact=1000)  # all are run
    (told,) = [str(each.message) for each in caught if "hard gate" in str(each.message)]
    assert told.endswith("which may pick the wrong heads of a sparse model: run all of them")
    (said,) = [each for each in done.study.warnings(done) if "hard gate" in each]
    assert said.endswith("Some were of level-30.")


def test_levels_of_a_training_that_is_not_over_are_pairs_too(tmp_path):
    out = bare(tmp_path, "OUT/level-30") / "OUT"
    (out / "sparsify.json").unlink(missing_ok=True)
    assert pairs_of(f"gpt2:{out}") == [["gpt2", f"{out}/level-30"]]


@pytest.mark.parametrize(
    ("low", "high", "unclear"),
    [
        *((0.5, 2.0, True), (0.5, 1.0, True), (1.0, 2.0, True)),
        *((1.2, 2.0, False), (0.2, 0.8, False), (1.0, 1.0, False)),
    ],
)
def test_a_multiplier_whose_interval_has_one_tells_nothing(low, high, unclear):
    found = Multiplier("ioi", "patch", "a", "b", 1.5, low, high)
    said = _ratio(found, 0.9, 16)
    assert said.startswith(f"1.50x as many heads (95 % interval {low:.2f} to {high:.2f})")
    assert said.endswith("; 16 prompts do not tell which needs fewer") == unclear
