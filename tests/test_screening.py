"""Slopes pick the heads that are run; what is run is exact, what is not says so."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from commands import error_of, run
from planted import CARRIERS, pairs, planted, save_planted
from test_runs import save_task

import headlab
from headlab import Example, Gates, Head, HeadlabError, Model
from headlab.figures import plot_scores
from headlab.gradients import gate_gradients
from headlab.ranking import rank
from headlab.scores import read_scores, write_scores
from headlab.screening import CHECKED, masks_run, may_be_missed, missed, ran, ranked_by
from headlab.stats import expected_by_chance
from headlab.store import Run
from headlab.studies.circuits.cell import from_record, work
from headlab.studies.circuits.lines import read_lines
from headlab.studies.circuits.words import tell_warnings
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec

LAYERS, HEADS = 12, 48
WAYS = [
    ("patch", {}),
    ("patch", {"direction": "denoising"}),
    ("ablate", {}),
    ("ablate", {"scale": 0.5, "reference": "counterfactual"}),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return planted(LAYERS)


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return pairs(6)


@pytest.mark.parametrize(("method", "options"), WAYS)
def test_heads_that_are_run_score_as_if_all_were(model, examples, method, options):
    whole = rank(model, examples, method, **options)
    some = rank(model, examples, method, **options, exact=6)
    unrun = {Head.parse(name) for name in some.estimated}
    assert len(unrun) == HEADS - 6 - CHECKED
    for head in whole.heads:
        same = torch.allclose(some.values[head], whole.values[head], rtol=1e-4, atol=1e-6)
        assert same or head in unrun
    assert any(not torch.equal(some.values[head], whole.values[head]) for head in unrun)
    assert torch.equal(some.clean, whole.clean)
    assert whole.estimated == []
    assert whole.checked == {}


@pytest.mark.parametrize(("method", "options"), WAYS)
def test_heads_that_are_not_run_have_what_their_slope_says(model, examples, method, options):
    """A small step of the gate, by hand, moves the measure by the estimate's share."""
    some = rank(model, examples, method, "logit-diff", **options, exact=6)
    back = options.get("direction") == "denoising"
    asked = [headlab.ranking.swap(each) for each in examples] if back else examples
    reference = options.get("reference", "counterfactual" if method == "patch" else "zero")
    way, scale, step = (1 if back else -1), options.get("scale", 0.0), 0.02
    sizes = []
    for name in [*some.estimated[:5], *list(some.checked)[:5]]:
        head = Head.parse(name)
        gates = Gates.ablate(model, [head], 1 - step)
        table = headlab.measure(model, asked, gates, "logit-diff", reference)
        expected = way * table.change[0] * (1 - scale) / step
        sizes.append(float(expected.mean()))
        if name in some.estimated:
            assert torch.allclose(some.values[head], expected, rtol=0.05, atol=3e-4), name
        else:
            assert some.checked[name] == pytest.approx(sizes[-1], rel=0.05, abs=3e-4)
    assert max(map(abs, sizes)) > 3e-3, "more than is let pass"
    assert min(sizes) < -1e-3 < 1e-3 < max(sizes), "either sign"


def test_the_heads_with_the_largest_slopes_are_run(model, examples):
    some = rank(model, examples, "patch", exact=3)
    picked = {str(head) for head in some.heads} - {*some.estimated, *some.checked}
    assert picked == {str(head) for head in CARRIERS}
    slopes = rank(model, examples, "attribute").score.abs()
    least = min(float(slopes[Head.parse(name)]) for name in picked)
    assert all(float(slopes[Head.parse(name)]) <= least for name in some.estimated)


@pytest.mark.parametrize("scale", [0.0, 0.6, 9.0])
def test_heads_are_picked_where_all_gates_are_1_and_a_quarter_of_the_way_on(model, examples, scale):
    """What there is more than enough of shows no slope until some is gone."""
    levels = torch.tensor([1.0, 1 - 0.25 * max(1 - scale, -1), 0.75, 1 - 0.25 * (1 - scale)])
    gates = levels[:, None, None].expand(4, model.n_layers, model.n_heads)
    slopes = gate_gradients(model, examples, gates, "log-prob").gradient.mean(1).abs().flatten(1)

    def largest(of: torch.Tensor, n: int) -> set[str]:
        return {str(Head(*divmod(each, model.n_heads))) for each in of.topk(n).indices.tolist()}

    right = slopes[:2].amax(0)
    at_1, always, ever_further = (slopes[n].amax(0) for n in ([0], [0, 2], [0, 3]))
    wrong = {0.0: [at_1], 0.6: [at_1, always], 9.0: [ever_further]}[scale]
    for each in wrong:
        exact = next(n for n in range(3, 26) if largest(right, n) != largest(each, n))
        some = rank(model, examples, "ablate", "log-prob", scale=scale, exact=exact)
        picked = {str(head) for head in some.heads} - {*some.estimated, *some.checked}
        assert picked == largest(right, exact)


def test_the_others_are_drawn_by_the_seed(model, examples):
    drawn = [list(rank(model, examples, "patch", exact=3, seed=seed).checked) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(each)) == CHECKED for each in drawn)
    assert not {str(head) for head in CARRIERS} & set(drawn[0])
    places = {Head.parse(name).layer for name in drawn[0]}
    assert len(places) > LAYERS * 2 / 3, "from all over the model"


@pytest.mark.parametrize("exact", [HEADS - CHECKED - 1, HEADS, 1000])
def test_where_that_would_be_all_heads_all_are_run(model, examples, exact):
    some = rank(model, examples, "patch", exact=exact)
    assert some.estimated == []
    assert some.checked == {}
    assert some.settings == rank(model, examples, "patch").settings


def test_progress_counts_every_pair_once(model, examples):
    done = []
    rank(model, examples, "patch", exact=6, progress=done.append)
    assert sum(done) == masks_run(HEADS, 6) * len(examples)


def test_what_cannot_be_screened_is_refused(model, examples):
    for method in ("attribute", "random"):
        with pytest.raises(HeadlabError, match=f"ablate or patch runs, not {method}"):
            rank(model, examples, method, exact=6)
    with pytest.raises(HeadlabError, match="exact is at least one head to run, not 0"):
        rank(model, examples, "patch", exact=0)
    for measure in ("kl", "top1-accuracy"):
        with pytest.raises(HeadlabError, match=f"{measure} has none there; run all heads"):
            rank(model, examples, "ablate", measure, exact=6)


def test_estimates_order_heads_for_all_prompts_together_only(model, examples):
    some = rank(model, examples, "patch", exact=6)
    with pytest.raises(HeadlabError, match="an order for each prompt needs all heads run"):
        headlab.curve(model, examples, some, per_prompt=True, orders=20)


def test_slopes_that_are_no_numbers_pick_nothing(model, examples, monkeypatch):
    own = headlab.gradients._slopes

    def broken(*given):
        found, slope = own(*given)
        return found, slope.index_fill(2, torch.tensor([2]), torch.nan)

    monkeypatch.setattr(headlab.gradients, "_slopes", broken)
    with pytest.raises(HeadlabError, match=r"slopes of .* are not finite; take a wider dtype"):
        rank(model, examples, "patch", exact=3)


def test_an_estimate_claims_nothing(model, examples):
    """Neither an interval that leaves out 0, nor a place above the noise."""
    some = rank(model, examples, "patch", exact=3)
    unrun = [Head.parse(name) for name in some.estimated]
    assert not any(some.leaves_out_zero[head] for head in unrun)
    assert all(some.leaves_out_zero[head] for head in CARRIERS)
    assert some.noise_floor is not None
    run = [head for head in some.heads if head not in unrun]
    assert some.n_by_chance == expected_by_chance(torch.stack([some.values[h] for h in run]))
    assert some.n_by_chance < expected_by_chance(some.values)


def test_scores_keep_what_was_not_run(model, examples, tmp_path):
    some = rank(model, examples, "patch", exact=6, seed=4)
    write_scores(some, tmp_path / "scores.json")
    again = read_scores(tmp_path / "scores.json")
    assert again.estimated == some.estimated
    assert again.checked == pytest.approx(some.checked)
    assert again.settings["exact"] == 6
    assert again.settings["seed"] == 4
    record = json.loads((tmp_path / "scores.json").read_text())
    del record["estimated"], record["checked"]  # as earlier versions wrote them
    (tmp_path / "scores.json").write_text(json.dumps(record))
    assert read_scores(tmp_path / "scores.json").estimated == []
    write_scores(some, tmp_path / "mib.json", mib=True)
    nodes = json.loads((tmp_path / "mib.json").read_text())["nodes"]
    graph = {name for name, node in nodes.items() if node["in_graph"]}
    assert graph
    assert not graph & {f"a{h.layer}.h{h.head}" for h in map(Head.parse, some.estimated)}
    assert read_scores(tmp_path / "mib.json").estimated == some.estimated


def test_what_slopes_missed_is_told(model, examples):
    some = rank(model, examples, "patch", exact=6)
    assert ran(some) == "26 of 48 heads were run: 6 picked by gradients, 20 of the others by lot"
    sizes = {name: abs(float(some.score[Head.parse(name)])) for name in some.checked}
    largest = max(sizes, key=sizes.get)
    above = sum(
        abs(float(some.score[head])) > sizes[largest]
        for head in some.heads
        if str(head) not in some.estimated
    )
    told = missed(some)
    assert f"of those by lot the largest, {largest}, is number {above + 1} of the 26" in told
    assert "at most 4 of the 22 not run are larger." in told
    off = [abs(float(some.score[Head.parse(name)]) - each) for name, each in some.checked.items()]
    assert f"off by {sum(off) / 20:.2g} on average, {max(off):.2g} at most" in told
    six = sorted(some.heads, key=lambda head: -abs(float(some.score[head])))[:6]
    high = [f"{each} ({float(some.score[each]):.2g})" for each in six if some.is_estimated[each]]
    assert high, "an estimate may be larger than what was picked"
    assert told.endswith(f"Not run, and by its estimate among the 6 largest: {', '.join(high)}")
    few = rank(model, examples, "patch", exact=3)
    assert missed(few).endswith("at most"), "all of the three largest were run"
    assert ranked_by("patch", some.settings).startswith("patch (6 heads picked by gradients")
    assert ranked_by("patch", {}) == "patch"


def test_how_many_may_be_missed_is_what_draws_show():
    """Of so many, the largest ones are drawn by lot, or none of them."""
    random = torch.Generator().manual_seed(0)
    for unrun, drawn in ((22, 20), (60, 20), (9, 3), (4, 20)):
        most = may_be_missed(unrun, drawn)
        first = [  # the place of the largest that was drawn: so many are larger and were not run
            int(torch.randperm(unrun + drawn, generator=random)[:drawn].min()) for _ in range(4000)
        ]
        assert sum(each > most for each in first) / 4000 <= 0.06
        assert sum(each >= most for each in first) / 4000 > 0.04
    assert may_be_missed(0, 20) == 0


def test_figures_frame_what_was_run(model, examples):
    figure = plot_scores(rank(model, examples, "patch", exact=6))
    frames = [each for each in figure.axes[0].patches if each.get_width() == 1]
    assert len(frames) == 26
    words = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "Framed: 26 of 48 heads were run" in words
    assert "Others are estimates" in words
    assert not plot_scores(rank(model, examples, "patch")).axes[0].patches


# --- from the command line ---


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    save_planted(folder / "m", LAYERS)
    save_task(folder / "t.jsonl", pairs(24))
    return folder


def test_rank_and_curve_from_the_command_line(lab, tmp_path):
    out = tmp_path / "scores.json"
    asked = ("--split", "rank", "--exact", "4", "--top", "30", "--out", str(out))
    told = run("rank", str(lab / "m"), str(lab / "t.jsonl"), *asked).stdout
    assert "24 of 48 heads patched in turn (noising)" in told
    assert "24 of 48 heads were run: 4 picked by gradients, 20 of the others by lot" in told
    assert "of 24 heads are above it" in told
    assert told.count("not run: estimate") >= 6  # 30 rows, of which 24 were run
    rows = list(csv.DictReader(out.with_suffix(".csv").open()))
    estimated = {row["head"] for row in rows if row["estimated"] == "True"}
    assert estimated == set(json.loads(out.read_text())["estimated"])
    assert len(estimated) == 24
    made = run("curve", "--scores", str(out), "--out", str(tmp_path / "curve"))
    assert made.exit_code == 0, made.stderr
    assert "24 of 48 heads were run" in made.stderr
    assert "the others' places in the order are estimates" in made.stderr


def test_options_that_do_not_go_with_it_are_refused(lab):
    model, task = str(lab / "m"), str(lab / "t.jsonl")
    assert "--exact" in error_of(run("rank", model, task, "--method", "attribute", "--exact", "4"))
    assert "not 0" in error_of(run("rank", model, task, "--exact", "0"))
    said = error_of(run("rank", model, task, "--measure", "kl", "--exact", "4", "--quiet"))
    assert "kl has none there" in said


# --- in a study ---


def spec_of(lab: Path, **changes):
    given = {"models": [str(lab / "m")], "tasks": [str(lab / "t.jsonl")], "size": "smoke"}
    return make_spec({"study": "circuits", **given, **changes})


@pytest.fixture(scope="module")
def study(lab) -> Run:
    return run_study(spec_of(lab, exact=4, seeds=[0, 1], methods=["patch", "random"]), lab / "run")


def test_a_study_runs_some_heads_and_says_so(study):
    cells = {(cell.method, cell.seed): cell for cell in study.cells}
    found = {key: from_record(study.read_cell(cell)) for key, cell in cells.items()}
    for seed in (0, 1):
        scores = found["patch", seed].scores
        assert len(scores.estimated) == 24
        assert len(scores.checked) == CHECKED
        assert {Head.parse(name) for name in scores.estimated}.isdisjoint(CARRIERS)
        assert found["random", seed].scores.estimated == []
        assert "exact" not in cells["random", seed].settings
    lines = {line.method: line for line in read_lines(study)}
    once = {name for seed in (0, 1) for name in found["patch", seed].scores.estimated}
    assert set(lines["patch"].scores.estimated) == once
    told = "\n".join(tell_warnings(study, spec_of(study.folder.parent, exact=4), [lines["patch"]]))
    for seed in (0, 1):
        assert f"patch, seed {seed}: 24 of 48 heads were run: 4 picked by gradients" in told
    assert told.count("Gradients were off by") == 2
    page = (study.folder / "report.html").read_text()
    assert "24 of 48 heads were run: 4 picked by gradients" in page
    assert "<dt>exact</dt><dd>4 heads</dd>" in page, "among what was asked"
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1]
    of_page = json.loads(data)["lines"][0]["map"]["estimated"]
    assert sum(map(sum, of_page)) == len(once)


def test_what_is_not_run_is_not_counted_as_work(lab):
    whole, some = (
        work(spec_of(lab, **given, n=10, methods=["patch"]).cells()[0], HEADS)
        for given in ({}, {"exact": 4})
    )
    assert whole.pairs - some.pairs == 10 * (HEADS - masks_run(HEADS, 4))
    assert whole.passes - some.passes == 10 * (HEADS - masks_run(HEADS, 4)) / 2


def test_a_study_that_does_not_rank_so_is_refused(lab):
    with pytest.raises(HeadlabError, match="exact is of patch and ablate"):
        spec_of(lab, methods=["attribute"], exact=4)
    for measure in ("kl", "top1-accuracy"):
        with pytest.raises(HeadlabError, match=f"by slopes .*, and {measure} has none there"):
            spec_of(lab, exact=4, measure=measure)
    assert spec_of(lab, exact=4, measure="log-prob").exact == 4
    for given in ({"per_prompt": True}, {"methods": ["random", "patch-per-prompt"]}):
        with pytest.raises(HeadlabError, match="picks heads for all prompts together"):
            spec_of(lab, exact=4, **given)
    spec_of(lab, exact=4, methods=["ablate", "attribute-per-prompt"])


def test_cells_of_studies_that_run_all_heads_stay_the_same(lab):
    """Runs of earlier versions go on: their cells are named by these settings."""
    for cell in spec_of(lab, methods=["patch", "ablate", "attribute"]).cells():
        assert "exact" not in cell.settings
