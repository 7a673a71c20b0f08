"""The contrastive study: each word task is left out of the fit and asked in both formats."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from commands import error_of, run
from tiny import save_tiny, tiny, tiny_tokenizer

import headlab
from headlab import HeadlabError, Model, measure
from headlab.figures import plt
from headlab.gatefits import Schedule, fit_contrast
from headlab.store import Run
from headlab.studies.contrastive import cell as cells
from headlab.studies.contrastive.cell import from_record, to_record, variants, work
from headlab.studies.contrastive.figure import accuracies
from headlab.studies.contrastive.panels import read_panels
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec, read_spec
from headlab.tasks import make_examples

TASKS = ["antonym", "capitalize", "singular-plural"]
QUICK = {"tasks": TASKS, "seeds": [0, 1], "updates": 3, "batch": 4, "train": 12, "n": 5}


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """A model that takes prompts of ten pairs, and a few pairs."""
    folder = tmp_path_factory.mktemp("lab")
    save_tiny(folder / "m")
    config = json.loads((folder / "m" / "config.json").read_text())
    (folder / "m" / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 2048})
    )
    for task in TASKS:
        rows = [{"input": f"{task[0]}{n}", "output": f"{n}{task[-1]}"} for n in range(14)]
        (folder / f"{task}.json").write_text(json.dumps(rows))
    return folder


def spec_of(lab: Path, **changes):
    given = {"models": [str(lab / "m")], "data": str(lab), **QUICK}
    return make_spec({"study": "contrastive", **given, **changes})


@pytest.fixture(scope="module")
def done(lab) -> Run:
    return run_study(spec_of(lab), lab / "run")


# --- cells ---


def test_each_task_is_left_out_once_for_each_format_kept(done):
    places = [(panel.task, panel.kept) for panel in read_panels(done)]
    assert places == [(task, kept) for kept in ("icl", "instruction") for task in TASKS]


def test_a_cell_fits_on_the_other_tasks_and_asks_the_one_left_out(lab, done):
    model = headlab.load(lab / "m")
    panel = read_panels(done)[1]  # capitalize left out, icl kept

    def made(task: str, format_: str):
        return make_examples(model, f"{task}-{format_}", None, 0, "all", data=lab)

    keep, forget = (
        [each for task in ("antonym", "singular-plural") for each in made(task, format_)[:12]]
        for format_ in ("icl", "instruction")
    )
    assert [each.id for each in keep] == [each.id for each in forget], "pairs belong together"
    fit = fit_contrast(model, keep, forget, [0, 1], Schedule(updates=3, batch=4))
    assert torch.allclose(panel.found.fit.logits.float(), fit.logits, atol=1e-5)
    tested = made("capitalize", "instruction")[:5]
    assert panel.found.tested == [each.id for each in tested]
    right = measure(model, tested, fit.gates, "top1-accuracy").values
    surprise = measure(model, tested, fit.gates, "log-prob").values
    values = panel.found.values
    assert torch.equal(values["right", "instruction", "gates"].float(), right)
    assert torch.allclose(
        values["log_prob", "instruction", "gates"].float(), surprise, rtol=1e-4, atol=1e-4
    )
    assert panel.found.n_train == 24


def test_what_is_tested_beside_the_gates_themselves():
    gates = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0))
    masks = variants(gates)
    assert torch.equal(masks["before"], torch.ones(1, 2, 4))
    assert torch.equal(masks["gates"], gates)
    assert torch.equal(masks["closed"] == 0, gates < 0.5)
    assert masks["closed"].unique().tolist() == [0, 1]
    dealt = masks["shuffled"].view(3, 7, 8)  # at least twenty in all
    assert torch.equal(dealt.sort(-1).values, gates.view(3, 1, 8).sort(-1).values.expand(-1, 7, -1))
    assert not any(torch.equal(dealt[0, i], gates[0].flatten()) for i in range(7))


def test_a_record_holds_all_that_was_found(done):
    found = from_record(done.read_cell(done.cells[0]))
    again = from_record(to_record(found))
    assert torch.equal(again.fit.logits, found.fit.logits)
    assert torch.equal(again.fit.losses, found.fit.losses)
    assert again.values.keys() == found.values.keys()
    for key, values in found.values.items():
        assert torch.equal(again.values[key], values), key
    assert (again.kept, again.forgotten) == ("icl", "instruction")


def test_an_interrupted_fit_goes_on_and_gives_the_same_bytes(lab, tmp_path, monkeypatch):
    spec = spec_of(lab, keep="icl", tasks=TASKS[:2], updates=60)
    whole = run_study(spec, tmp_path / "whole")

    def die(state, path, key):
        write(state, path, key)
        raise KeyboardInterrupt

    write = cells.write_state
    monkeypatch.setattr(cells, "write_state", die)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, tmp_path / "cut")
    monkeypatch.undo()
    steps = []
    begin = cells.fit_contrast

    def fit(*args, **named):
        steps.append(named["state"].step if named["state"] else 0)
        return begin(*args, **named)

    monkeypatch.setattr(cells, "fit_contrast", fit)
    assert run("resume", str(tmp_path / "cut"), "-q").exit_code == 0
    assert steps == [50, 0]
    for cell in whole.cells:
        mine = Run.read(tmp_path / "cut").path_of(cell).read_bytes()
        assert mine == whole.path_of(cell).read_bytes()


@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_every_setting_reaches_the_fit(lab, tmp_path, reference):
    changes = {"strength": 0.3, "clip": 0.5, "rates": [0.4, 0.2], "reference": reference}
    changes |= {"keep": "instruction", "tasks": TASKS[:2], "train": 8, "seeds": [4]}
    panels = read_panels(run_study(spec_of(lab, **changes), tmp_path / "r"))
    assert {panel.kept for panel in panels} == {"instruction"}
    settings = panels[0].found.fit.settings
    assert (settings["strength"], settings["clip"]) == (0.3, 0.5)
    assert tuple(settings["free_rates"]) == (0.4, 0.2)
    assert settings["reference"] == reference
    assert panels[0].found.n_train == 8
    assert panels[0].found.fit.seeds == [4]


# --- what is asked ---


def test_size_paper_is_the_papers_schedule_and_model():
    spec = make_spec({"study": "contrastive", "size": "paper"})
    assert headlab.aliases.ALIASES[spec.models[0]] == "meta-llama/Llama-3.2-3B-Instruct"
    assert (spec.updates, spec.batch, spec.rates, spec.strength) == (500, 64, (0.1, 0.01), 0.1)
    assert len(spec.cells()) == 12


def test_wrong_settings_are_named_with_their_lines(tmp_path):
    path = tmp_path / "study.yaml"
    for text, says in (
        ("study: contrastive\ntasks: [antonim, capitalize]\n", "did you mean 'antonym'"),
        ("study: contrastive\ntasks: [antonym]\n", "two tasks at least"),
        ("study: contrastive\nkeep: [both]\n", "line 2: keep is icl or instruction"),
        ("study: contrastive\nkeep: [icl, icl]\n", "'icl' is there twice"),
        ("study: contrastive\ndata: hub\n", "are on no hub"),
        ("study: contrastive\ndata: ./nowhere\n", "no folder"),
        ("study: contrastive\nrates: [0, 1]\n", "learning rates are above 0"),
    ):
        path.write_text(text)
        with pytest.raises(HeadlabError) as caught:
            read_spec(path)
        assert says in str(caught.value), text


def test_too_few_pairs_fail_their_cells_with_a_sentence(lab, tmp_path):
    (tmp_path / "antonym.json").write_text(json.dumps([{"input": "a", "output": "b"}] * 3))
    (tmp_path / "capitalize.json").write_text(json.dumps([{"input": "a", "output": "A"}]))
    result = run(
        *("run", "contrastive", "--models", str(lab / "m"), "--tasks", "antonym,capitalize"),
        *("--data", str(tmp_path), "--out", str(tmp_path / "r"), "--size", "smoke"),
    )
    assert result.exit_code == 1
    assert "10 are to be shown" in result.stderr
    assert "Traceback" not in result.output


def test_more_work_is_counted_for_more_seeds_and_updates(lab):
    small, large, longer = (
        work(spec_of(lab, **changes).cells()[0], 8)
        for changes in ({}, {"seeds": list(range(40))}, {"updates": 80})
    )
    assert large.passes > 1.5 * small.passes
    assert longer.passes > 3 * small.passes


def test_progress_ends_where_the_plan_said(lab, tmp_path, monkeypatch):
    cell = spec_of(lab).cells()[0]
    model = Model(tiny("llama"), tiny_tokenizer(), name="m")
    monkeypatch.setattr(model.hf.config, "max_position_embeddings", 2048)
    headlab.check(model).require()
    seen: list[int] = []
    cells.run_cell(cell, model, seen.append, tmp_path)
    assert sum(seen) == work(cell, 8).pairs


# --- figure and report ---


def test_the_figure_holds_before_after_and_shuffled_of_every_task(done):
    panels = read_panels(done)
    more = [dataclasses.replace(panel, model="other") for panel in panels]
    figure = accuracies([*panels, *more])
    assert len(figure.axes) == 4
    axis = figure.axes[0]
    places = [tick.get_text() for tick in figure.axes[-1].get_xticklabels()]
    assert places == TASKS
    first = panels[0]
    drawn = {
        (round(float(line.get_xdata()[0]), 2), float(line.get_ydata()[0])) for line in axis.lines
    }
    for x, format_ in ((-0.17, "icl"), (0.17, "instruction")):
        for variant in ("before", "gates", "shuffled"):
            assert (x, first.accuracy(format_, variant)[0]) in drawn
    plt.close(figure)


def test_the_papers_numbers_stand_beside_its_own_model_and_task_only(done):
    panels = [
        dataclasses.replace(panel, source="llama-3.2-3b-instruct") for panel in read_panels(done)
    ]
    figure = accuracies(panels)
    marks = [line for axis in figure.axes for line in axis.lines if line.get_marker() == "D"]
    assert sorted(float(mark.get_ydata()[0]) for mark in marks) == [0.0, 0.0, 0.21, 0.92]
    assert {round(float(mark.get_xdata()[0])) for mark in marks} == {TASKS.index("singular-plural")}
    plt.close(figure)


def test_the_run_leaves_figures_tables_and_a_report(done):
    figures = done.folder / "figures"
    assert {path.name for path in figures.iterdir()} == {
        f"{name}.{ending}" for name in ("contrastive", "gates") for ending in ("png", "pdf", "csv")
    }
    with (figures / "contrastive.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * 2 * 4
    panels = read_panels(done)
    row = next(r for r in rows if r["variant"] == "gates" and r["asked"] == "instruction")
    assert float(row["accuracy"]) == panels[0].accuracy("instruction", "gates")[0]
    assert float(row["low"]) <= float(row["accuracy"]) <= float(row["high"])
    with (figures / "gates.csv").open() as file:
        gates = list(csv.DictReader(file))
    mean = torch.cat([panel.found.fit.gates for panel in panels if panel.kept == "icl"]).mean(0)
    assert float(gates[1]["gate"]) == pytest.approx(float(mean[0, 1]))
    assert gates[1]["fits"] == "6"
    page = (done.folder / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert len(data["panels"]) == 6
    for said in (*done.study.findings(done), *done.study.warnings(done)):
        assert said in page.replace("&#39;", "'")
    assert any("even before" in said for said in done.study.warnings(done))
    assert any("updates are a quick look" in said for said in done.study.warnings(done))


def test_a_planted_difference_is_said_and_none_is_not(done):
    panel = read_panels(done)[0]
    values = dict(panel.found.values)
    many = {key: torch.ones(len(each), 60) for key, each in values.items()}
    many["right", "instruction", "gates"] = torch.zeros(2, 60)
    found = dataclasses.replace(panel.found, values=many, tested=[str(n) for n in range(60)])
    assert dataclasses.replace(panel, found=found).separates
    many["right", "instruction", "gates"] = torch.ones(2, 60)
    assert not dataclasses.replace(panel, found=found).separates


def test_compare_and_ls_and_a_dry_run(lab, done):
    told = json.loads(run("compare", str(done.folder), str(done.folder), "--json").stdout)
    assert len(told["rows"]) == 6
    assert told["rows"][0]["gates"] == "rank correlation 1.00"
    assert "contrastive" in run("ls", str(lab)).stdout
    planned = run(
        *("run", "contrastive", "--models", str(lab / "m"), "--dry-run", "--size", "smoke"),
        *("--keep", "icl"),
    )
    assert "2 cells" in planned.stdout, planned.output
    wrong = run("run", "contrastive", "--models", str(lab / "m"), "--keep", "neither")
    assert "keep is icl or instruction" in error_of(wrong)
