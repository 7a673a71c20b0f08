"""The roles study: its cells are fits and deltas, its report and figure tell what they hold."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from commands import error_of, run
from planted import in_formats, pairs, planted, roled, two_formats
from safetensors import safe_open
from test_runs import save_task
from tiny import save_tiny

import headlab
from headlab.cli.gates import _print_roles
from headlab.figures import plt
from headlab.gatefits import GateFit, Roles, Schedule, ablation_deltas, fit_gates
from headlab.gatefits.files import read_contrast, read_fit, read_state, write_fit, write_state
from headlab.store import Run
from headlab.studies.roles.cell import from_record, to_record, work
from headlab.studies.roles.figure import _caption as figure_caption
from headlab.studies.roles.figure import grid
from headlab.studies.roles.panels import published, read_panels
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec, read_spec

QUICK = {"seeds": [0, 1], "updates": 40, "batch": 8, "n": 6, "ks": [0, 1, 2, 8], "random_orders": 3}


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """A model in which one head helps and one harms, and its task."""
    folder = tmp_path_factory.mktemp("lab")
    model = roled()
    model.hf.save_pretrained(folder / "m")
    model.tokenizer.save_pretrained(folder / "m")
    save_task(folder / "t.jsonl", pairs(40))
    return folder


def spec_of(lab: Path, **changes):
    given = {"models": [str(lab / "m")], "tasks": [str(lab / "t.jsonl")], **QUICK}
    return make_spec({"study": "roles", **given, **changes})


@pytest.fixture(scope="module")
def done(lab) -> Run:
    return run_study(spec_of(lab, updates=120), lab / "run")


# --- cells ---


def test_a_cell_is_the_fit_and_the_deltas_that_the_library_gives(lab, done):
    (panel,) = read_panels(done)
    model, task = roled(), str(lab / "t.jsonl")
    training = headlab.make_examples(model, task, None, 0, "rank")
    tested = headlab.make_examples(model, task, None, 0, "curve")[:6]
    fit = fit_gates(model, training, [0, 1], Schedule(updates=120, batch=8))
    deltas = ablation_deltas(model, tested, Roles(fit), [0, 1, 2, 8], random_orders=3)
    assert torch.allclose(panel.found.fit.plus.float(), fit.plus, atol=1e-4)
    assert torch.allclose(panel.found.fit.minus.float(), fit.minus, atol=1e-4)
    for line, values in deltas.lines.items():
        assert torch.allclose(panel.found.deltas.lines[line].float(), values, atol=1e-4), line
    assert not {e.fingerprint for e in training} & {e.fingerprint for e in tested}
    assert panel.found.n_train == len(training)


def test_the_planted_roles_come_out_of_the_study(done):
    (panel,) = read_panels(done)
    role, agree = panel.found.roles.agreement()
    assert (int(role[1, 0]), int(agree[1, 0])) == (0, 2)  # facilitating
    assert (int(role[1, 3]), int(agree[1, 3])) == (2, 2)  # interfering
    assert panel.at_end("F")[0] < 0
    assert panel.best("N")[1] > 0


def test_a_record_holds_all_that_was_found(done):
    found = from_record(done.read_cell(done.cells[0]))
    again = from_record(to_record(found))
    for name in ("free", "plus", "minus", "losses"):
        assert torch.equal(getattr(again.fit, name), getattr(found.fit, name))
    for line in found.deltas.lines:
        assert torch.equal(again.deltas.lines[line], found.deltas.lines[line])
    assert torch.equal(again.right, found.right)
    assert again.chance == found.chance == 0.5


def test_the_same_study_gives_the_same_bytes(lab, tmp_path):
    one, two = (run_study(spec_of(lab), tmp_path / name) for name in ("one", "two"))
    assert one.path_of(one.cells[0]).read_bytes() == two.path_of(two.cells[0]).read_bytes()


def test_every_setting_reaches_the_fit(lab, tmp_path):
    changes = {"strength": 0.3, "clip": 0.5, "rates": [0.4, 0.2], "free_rates": [0.2, 0.1]}
    changes |= {"reference": "mean", "base": "ones", "aggregated": True, "dtype": "float64"}
    changes |= {"train": 10, "updates": 3, "seeds": [4]}
    run_ = run_study(spec_of(lab, **changes), tmp_path / "r")
    (panel,) = read_panels(run_)
    settings = panel.found.fit.settings
    assert settings["strength"] == 0.3
    assert settings["clip"] == 0.5
    assert tuple(settings["rates"]) == (0.4, 0.2)
    assert tuple(settings["free_rates"]) == (0.2, 0.1)
    assert settings["reference"] == "mean"
    assert settings["dtype"] == "float64"
    assert panel.found.n_train == 10
    assert panel.found.fit.seeds == [4]
    plain = run_study(spec_of(lab, train=10, updates=3, seeds=[4]), tmp_path / "p")
    assert not torch.equal(read_panels(plain)[0].found.fit.plus, panel.found.fit.plus)


@pytest.mark.parametrize(
    "change", [{"base": "ones"}, {"base": "raw"}, {"aggregated": True}, {"reference": "mean"}]
)
def test_every_setting_reaches_the_ablation(lab, tmp_path, change):
    settings = {"updates": 20, "seeds": [0, 1], "train": 12, **change}
    run_ = run_study(spec_of(lab, **settings), tmp_path / "r")
    (panel,) = read_panels(run_)
    model, task = roled(), str(lab / "t.jsonl")
    training = headlab.make_examples(model, task, 12, 0, "rank")
    tested = headlab.make_examples(model, task, None, 0, "curve")[:6]
    reference = headlab.gates.ZERO
    if "reference" in change:
        reference = headlab.mean_reference(model, [each.prompt for each in training])
    how = {name: change[name] for name in ("base", "aggregated") if name in change}
    roles = panel.found.roles
    expected = ablation_deltas(
        model, tested, roles, [0, 1, 2, 8], reference=reference, random_orders=3, **how
    )
    for line, values in expected.lines.items():
        assert torch.allclose(panel.found.deltas.lines[line].float(), values.float(), atol=1e-4)
    if "reference" not in change:
        usual = ablation_deltas(model, tested, roles, [0, 1, 2, 8], random_orders=3)
        changed = any(
            not torch.allclose(usual.lines[line], values, atol=1e-3)
            for line, values in expected.lines.items()
        )
        assert changed
        caption = figure_caption([panel])
        assert {"base": "the others at G+" not in caption}.get(next(iter(change)), True)
        assert ("one order for all seeds" in caption) == ("aggregated" in change)


def test_changed_data_is_not_mixed_with_what_a_fit_has_seen(lab, tmp_path, monkeypatch):
    import headlab.studies.roles.cell as cells

    data = tmp_path / "words"
    data.mkdir()
    rows = [{"input": f"n{n}", "output": f"n{n + 1}"} for n in range(13)]
    (data / "antonym.json").write_text(json.dumps(rows))
    given = {"tasks": ["antonym-instruction"], "data": str(data), "updates": 60, "n": 2}
    write = cells.write_state

    def die(state, path, key):
        write(state, path, key)
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "write_state", die)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec_of(lab, **given), tmp_path / "r")
    monkeypatch.undo()
    (data / "antonym.json").write_text(json.dumps(rows[::-1]))
    assert "antonym.json has changed since this run began" in error_of(
        run("resume", str(tmp_path / "r"), "-q")
    )
    # Neither is a state of other data taken up where the manifest knows nothing of it.
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    (tmp_path / "r" / "manifest.json").write_text(json.dumps({**manifest, "files": {}}))
    seen = []
    fit = cells.fit_gates

    def spied(*args, **named):
        seen.append(named["state"])
        return fit(*args, **named)

    monkeypatch.setattr(cells, "fit_gates", spied)
    run("resume", str(tmp_path / "r"), "-q")
    assert seen == [None]


def test_a_killed_fit_goes_on_from_its_last_fifty_updates(lab, tmp_path):
    spec = spec_of(lab, updates=400)
    whole = run_study(spec, tmp_path / "whole")
    study = tmp_path / "study.yaml"
    study.write_text(spec.as_yaml())
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "headlab", "run", str(study), "--out", str(folder), "-q"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    limit = time.monotonic() + 60
    while not list(folder.glob("scratch/*/fit.safetensors")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.kill()
    process.communicate()
    (kept,) = folder.glob("scratch/*/fit.safetensors")
    with safe_open(kept, "pt") as file:
        state = json.loads(file.metadata()["headlab"])
    assert state["key"]["cell"] == whole.cells[0].id
    assert state["step"] % 50 == 0
    assert run("resume", str(folder), "-q").exit_code == 0
    assert Run.read(folder).path_of(whole.cells[0]).read_bytes() == (
        whole.path_of(whole.cells[0]).read_bytes()
    )
    assert not (folder / "scratch").exists()


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "olmo", "gemma3"])
def test_the_study_runs_through_on_other_architectures(tmp_path, name):
    model = save_tiny(tmp_path / name, name)
    words = ["the cat", "a mat", "the hat", "a dog", "the fog", "a log", "the bog", "a cog"]
    examples = [
        headlab.Example(f"{one} saw", f" {two}", id=f"{one}-{two}")
        for one in words
        for two in words[:3]
        if one != two
    ]
    data = save_task(tmp_path / "t.jsonl", examples)
    given = {"models": [str(model)], "tasks": [str(data)], **QUICK, "updates": 3, "ks": [0, 1]}
    finished = run_study(make_spec({"study": "roles", **given}), tmp_path / "r")
    assert [finished.status(cell) for cell in finished.cells] == ["done"]


# --- what is asked ---


def test_size_paper_names_the_four_models_and_their_heads():
    spec = make_spec({"study": "roles", "size": "paper"})
    assert len(spec.models) == 4
    assert (spec.updates, spec.batch, len(spec.seeds)) == (500, 64, 10)
    assert (spec.free_rates, spec.rates, spec.strength) == ((0.1, 0.01), (0.5, 0.1), 0.1)
    assert published()["heads"] == [512, 672, 672, 1024]
    assert [headlab.aliases.ALIASES[name] for name in spec.models] == published()["hub_ids"]


def test_wrong_settings_are_named_with_their_lines(tmp_path):
    path = tmp_path / "study.yaml"
    for text, says in (
        ("study: roles\nbase: minus\n", "line 2: base is plus, ones or raw"),
        ("study: roles\ndata: ./nowhere\n", "line 2: data: no folder"),
        ("study: roles\nrates: [0.5, 0]\n", "learning rates are above 0"),
        ("study: roles\ntasks: [sintax]\n", "did you mean 'syntax'"),
        ("study: roles\nrates: [0.5]\n", "line 2: rates"),
    ):
        path.write_text(text)
        with pytest.raises(headlab.HeadlabError) as caught:
            read_spec(path)
        assert says in str(caught.value)


def test_more_work_is_counted_for_more_seeds_and_updates(lab):
    (small,) = spec_of(lab).cells()
    (large,) = spec_of(lab, seeds=[0, 1, 2, 3]).cells()
    (longer,) = spec_of(lab, updates=80).cells()
    assert work(large, 8).passes > 1.5 * work(small, 8).passes
    assert work(longer, 8).passes > work(small, 8).passes


# --- figure and report ---


def test_the_grid_has_a_row_a_task_a_column_a_model_and_four_lines(done):
    (panel,) = read_panels(done)
    panels = [
        dataclasses.replace(panel, task=task, model=model)
        for task in ("syntax", "math")
        for model in ("one", "two", "three")
    ]
    figure = grid(panels)
    axes = figure.axes
    assert len(axes) == 6
    assert [axis.get_title(loc="left") for axis in axes[:3]] == ["one", "two", "three"]
    assert [axes[0].get_ylabel(), axes[3].get_ylabel()] == ["syntax", "math"]
    lines = [line for line in axes[0].lines if len(line.get_xdata()) == 4]
    assert len(lines) == 4
    assert axes[0].get_ylim() == axes[1].get_ylim()
    legend = [text.get_text() for text in figure.legends[0].texts]
    assert legend[:4] == ["facilitation", "irrelevance", "interference", "random order"]
    plt.close(figure)
    row = grid([dataclasses.replace(panel, task=task) for task in ("syntax", "math")])
    assert [axis.get_title(loc="left") for axis in row.axes] == [
        f"{task}, {panel.model}" for task in ("syntax", "math")
    ]
    assert row.axes[0].get_position().y0 == row.axes[1].get_position().y0
    plt.close(row)


def test_the_run_leaves_figures_tables_and_a_report(done):
    figures = done.folder / "figures"
    assert {path.name for path in figures.iterdir()} == {
        *(f"{name}.{ending}" for name in ("roles", "scores") for ending in ("png", "pdf", "csv")),
        "shares.csv",
    }
    with (figures / "roles.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = [row for row in rows if row["k"] == "0"]
    assert {float(row["delta"]) for row in first} == {0.0}
    with (figures / "shares.csv").open() as file:
        shares = {row["role"]: float(row["mean"]) for row in csv.DictReader(file)}
    assert sum(shares.values()) - shares["mixed"] == pytest.approx(1)
    page = (done.folder / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    (panel,) = data["panels"]
    assert panel["lines"]["F"]["mean"][0] == 0
    assert panel["shares"]["facilitating"]["mean"] == pytest.approx(shares["facilitating"])
    assert panel["ecdf"]["F"][-1] == 1
    said = done.study.findings(done)[0]
    assert f"{100 * shares['facilitating']:.0f} % of the heads facilitate" in said
    assert said in page.replace("&#39;", "'")
    assert "With 2 seeds it is hardly told" in page
    assert "Fits of 120 updates are a quick look; the paper has 500." in page


def test_compare_says_whether_two_runs_agree(done):
    told = json.loads(run("compare", str(done.folder), str(done.folder), "--json").stdout)
    assert told["rows"][0]["facilitation"] == "rank correlation 1.00"
    assert told["rows"][0]["same role"] == "100 % of heads"


# --- headlab rank --method gates ---


def test_heads_on_which_as_many_seeds_agree_are_listed_by_their_score(capsys):
    plus = torch.full((2, 1, 4), 3.0)
    minus = torch.tensor([[[1.0, 3.0, -3.0, 2.0]]] * 2)  # all but the third stay open
    empty = torch.zeros(6, 1)
    fit = GateFit("m", "t", [0, 1], minus, plus, minus, empty, empty)
    _print_roles(Roles(fit), top=2)
    told = capsys.readouterr().out
    assert "facilitating (seeds that agree): L0H1 (2), L0H3 (2) and 1 more" in told


def test_rank_by_gates_leaves_gates_roles_and_figures(lab, tmp_path):
    out = tmp_path / "scores.json"
    result = run(
        *("rank", str(lab / "m"), str(lab / "t.jsonl"), "--method", "gates", "--seeds", "2"),
        *("--updates", "120", "--batch", "8", "--out", str(out)),
    )
    assert result.exit_code == 0, result.output
    assert "facilitating (seeds that agree): L1H0 (2)" in result.stdout
    assert "interfering (seeds that agree): L1H3 (2)" in result.stdout
    assert "Fits of 120 updates are a quick look; the paper has 500." in result.stderr
    fit = read_fit(tmp_path / "scores-gates")
    assert fit.seeds == [0, 1]
    assert Roles(fit).table().shape == (16, 8)
    assert str(headlab.read_scores(out).order()[0]) == "L1H0"
    names = {path.name for path in tmp_path.iterdir()}
    assert {"scores-scores.png", "scores-fit.pdf", "scores-fit.csv"} < names
    assert not [name for name in names if "part" in name]
    # What was learned is proved on other prompts.
    proved = run(
        *("curve", str(lab / "m"), str(lab / "t.jsonl"), "--scores", str(out), "--reference"),
        *("zero", "--out", str(tmp_path / "c"), "--orders", "20", "--json"),
    )
    assert "the ranking has used every example" in proved.stderr
    halved = ("--split", "rank", "--updates", "60", "--batch", "8", "--seeds", "1")
    dotted = tmp_path / "llama-3.2-1b.json"
    made = run(
        *("rank", str(lab / "m"), str(lab / "t.jsonl"), "--method", "gates", *halved, "-q"),
        *("--out", str(dotted)),
    )
    assert made.exit_code == 0, made.output
    assert (tmp_path / "llama-3.2-1b-gates.safetensors").exists()
    proved = run(
        *("curve", str(lab / "m"), str(lab / "t.jsonl"), "--scores", str(dotted), "--reference"),
        *("zero", "--out", str(tmp_path / "c"), "--orders", "20", "--json"),
    )
    assert proved.exit_code == 0, proved.output
    assert json.loads(proved.stdout)["measure"] == "log-prob"
    told = json.loads(
        run(
            *("rank", str(lab / "m"), str(lab / "t.jsonl"), "--method", "gates", "--seeds", "1"),
            *("--updates", "2", "--batch", "4", "--out", str(out), "--json"),
        ).stdout
    )
    assert set(told["heads"]["L1H0"]) == {"F", "I", "N", "role", "agree"}


def test_a_fit_on_disk_is_read_as_it_was_and_another_is_not_taken_for_it(tmp_path):
    states = []
    fit = fit_gates(
        planted(),
        pairs(20),
        [0],
        Schedule(updates=4, batch=4),
        on_state=lambda state: (
            states.append(state) or write_state(state, tmp_path / "s", {"a": [1]})
        ),
        state_every=2,
    )
    write_fit(fit, tmp_path / "fit")
    again = read_fit(tmp_path / "fit")
    assert torch.equal(again.plus, fit.plus)
    assert again.settings["updates"] == 4
    assert read_state(tmp_path / "s", {"a": [1]}, "cpu").stage == 2
    assert read_state(tmp_path / "s", {"a": [2]}, "cpu") is None
    assert read_state(tmp_path / "nothing", {}, "cpu") is None
    (tmp_path / "s").write_bytes(b"half")
    assert read_state(tmp_path / "s", {"a": [1]}, "cpu") is None
    (tmp_path / "fit.safetensors").write_bytes(b"half")
    with pytest.raises(headlab.HeadlabError, match="cannot be read"):
        read_fit(tmp_path / "fit")


def test_contrastive_gates_from_the_command_line(tmp_path):
    model = two_formats()
    model.hf.save_pretrained(tmp_path / "m")
    model.tokenizer.save_pretrained(tmp_path / "m")
    first, second = in_formats(16)
    keep, forget = (
        str(save_task(tmp_path / f"{name}.jsonl", examples))
        for name, examples in (("first", first), ("second", second))
    )
    common = ("rank", str(tmp_path / "m"), "--method", "contrastive")
    told = json.loads(
        run(
            *(*common, "--keep", keep, "--forget", forget, "--seeds", "2", "--updates", "300"),
            *("--batch", "4", "--out", str(tmp_path / "s.json"), "--json"),
        ).stdout
    )
    kept, gone = told["accuracy"]
    assert kept["before"] == kept["after"] == 1
    assert gone["before"] == 1
    assert gone["after"] <= 0.5
    assert "L1H3" in told["closed"]
    assert "L1H0" not in told["closed"]
    assert (tmp_path / "s.png").exists()
    fit = read_contrast(tmp_path / "s-gates")
    assert (fit.seeds, fit.settings["updates"], fit.losses.shape) == ([0, 1], 300, (2, 300))
    scores = headlab.read_scores(tmp_path / "s.json")
    assert torch.allclose(1 - fit.gates.mean(0).double(), scores.score, atol=1e-6)
    table = pd.read_parquet(tmp_path / "s-gates.parquet")
    assert table.gate.tolist() == fit.gates.flatten().tolist()
    assert table.iloc[-1].tolist()[:2] == [1, "L1H3"]
    quick = run(
        *(*common, "--keep", keep, "--forget", forget, "--seeds", "1", "--updates", "1"),
        *("--batch", "4", "--out", str(tmp_path / "s.json")),
    )
    assert "Fits of 1 update are a quick look; the paper has 500." in quick.stderr
    with pytest.raises(headlab.HeadlabError, match="does not hold learned gates"):
        read_fit(tmp_path / "s-gates")
    assert "need --keep TASK and --forget TASK" in error_of(run(*common, "--quiet"))
    assert "name a task" in error_of(run("rank", str(tmp_path / "m"), "--quiet"))


def test_too_large_a_batch_is_one_sentence(lab):
    said = error_of(
        run("rank", str(lab / "m"), str(lab / "t.jsonl"), "--method", "gates", "--quiet")
    )
    assert "a batch has 64 examples, and there are 40" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--method", "gates", "--measure", "kl"), "takes no --measure"),
        (("--method", "gates", "--format", "mib"), "takes no --format"),
        (("--method", "gates", "--reference", "counterfactual"), "zero or to a mean"),
        (("--method", "gates", "--data", "/nowhere"), "data is for question sets"),
        (("--method", "gates", "--n", "0"), "at least one example"),
        (("--method", "gates", "--keep", "ioi"), "takes no --keep"),
        (("--method", "gates", "--lambda", "nan"), "finite"),
        (("--method", "contrastive"), "takes no TASK"),
    ],
)
def test_options_that_would_not_be_heeded_are_refused(lab, options, says):
    result = run("rank", str(lab / "m"), str(lab / "t.jsonl"), *options, "--batch", "4", "--quiet")
    assert says in error_of(result)


def test_what_is_kept_and_forgotten_comes_in_pairs(lab, tmp_path):
    first, second = in_formats(16)
    short = str(save_task(tmp_path / "short.jsonl", second[:10]))
    whole = str(save_task(tmp_path / "whole.jsonl", first))
    common = ("rank", str(lab / "m"), "--method", "contrastive", "--quiet", "--batch", "2")
    out = ("--out", str(tmp_path / "s.json"))
    assert "belong together" in error_of(run(*common, "--keep", whole, "--forget", short, *out))
    assert "at once" in error_of(run(*common, "--keep", whole, "--forget", whole, *out))
    folder = error_of(run(*common, "--keep", whole, "--forget", short, "--out", str(tmp_path)))
    assert "is a folder" in folder


def test_a_fit_of_another_model_or_dtype_is_not_gone_on_with(lab, tmp_path, monkeypatch):
    from headlab.gatefits import files

    out = tmp_path / "s.json"
    command = ("rank", str(lab / "m"), str(lab / "t.jsonl"), "--method", "gates", "--seeds", "1")
    command = (*command, "--updates", "60", "--batch", "4", "--out", str(out))
    write = files.write_state

    def die(state, path, key):
        write(state, path, key)
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_state", die)
    stopped = run(*command)
    assert stopped.exit_code == 130
    assert "the same command goes on with it" in stopped.stderr
    monkeypatch.undo()
    other = error_of(run(*command, "--dtype", "float64", "--quiet"))
    assert "is an unfinished fit with other settings" in other
    assert "going on after 50 of 120 updates" in run(*command).stderr
