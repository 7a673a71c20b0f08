"""The fillers study as it is asked, interrupted and run."""

from __future__ import annotations

import copy
from pathlib import Path

import filled
import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from commands import error_of, run
from filling import OWN, QUICK, cell_of, find, fresh
from tiny import lettered, save_lettered, tiny

from headlab import HeadlabError, Model
from headlab.store import Run
from headlab.studies.fillers import cell as cells
from headlab.studies.fillers.cell import Found, from_record, work
from headlab.studies.fillers.panels import published_for, read_panels
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec, read_spec


@pytest.fixture(scope="module")
def model() -> Model:
    return lettered()


@pytest.fixture(scope="module")
def found(model, tmp_path_factory) -> Found:
    return find(model, tmp_path_factory.mktemp("cell"))


# --- specs ---


def test_a_spec_reads_back_and_names_what_names_stand_for(tmp_path):
    spec = make_spec({"study": "fillers", "models": ["smollm2"], **QUICK, "chat": True})
    (tmp_path / "study.yaml").write_text(spec.as_yaml())
    again = read_spec(tmp_path / "study.yaml")
    assert again == spec
    assert [cell.id for cell in again.cells()] == [cell.id for cell in spec.cells()]
    told = spec.cells()[0].settings["conditions"]
    assert [each["name"] for each in told][-2:] == ["random-chat", "arm-chat"]
    assert told[1] | {"filler": "/", "count": 55} == told[1]
    assert [each["template"] for each in told] == ["raw"] * 6 + ["chat"] * 6


def test_size_paper_names_the_papers_models_and_the_hub():
    spec = make_spec({"study": "fillers", "size": "paper"})
    assert spec.models == ["qwen2.5-math-1.5b", "qwen2.5-math-7b", "llama-3.1-8b-instruct"]
    assert (spec.tasks, spec.data, spec.n) == (["math500"], "hub", None)
    assert (spec.max_new_tokens, spec.temperature) == (2048, None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": ["math500"]}, "math500 needs data: a folder"),
        ({"tasks": ["maths"]}, "not 'maths'; did you mean 'math500'?"),
        ({"n": 500}, "arithmetic has 240 problems, 500 were asked for"),
        ({"data": "."}, "arithmetic is built in and reads no files"),
        ({"conditions": ["none"]}, "two conditions at least"),
        ({"conditions": ["none", "mles"]}, "did you mean 'mless'?"),
        ({"conditions": ["none", {"name": "x", "filer": "/"}]}, "not 'filer'"),
        ({"conditions": ["none", "none"]}, "two conditions are called 'none'"),
        ({"conditions": 3}, "a condition is a name or a mapping with a name, not 3"),
        ({"conditions": ["none", {"name": "x", "like": "none", "temperature": -1}]}, "temperature"),
        ({"conditions": ["none", {"name": "x", "like": "mless", "top_p": 0}]}, "top_p is above 0"),
        ({"heads": ["H3"]}, "a head is L0H13, all heads of a layer are L0, not 'H3'"),
        ({"top_p": 0.9}, "top_p needs a temperature"),
        ({"top_p": 0.9, "temperature": "model"}, "top_p: the model's own settings have theirs"),
        ({"temperature": "hot"}, "temperature: a number above 0, greedy, or model"),
        ({"temperature": -1}, "temperature: a number above 0, greedy, or model"),
        ({"temperature": True}, "temperature: a number above 0, greedy, or model"),
        (
            {"conditions": ["none", {"name": "x", "like": "mless", "top_p": 0.5}]},
            "x has a top_p and no temperature",
        ),
        ({"conditions": ["none", {"name": "x", "filler": "/", "count": 10**9}]}, "100,000 at most"),
        ({"conditions": ["none", {"name": "x", "filler": [10**30], "count": 3}]}, "token ids"),
        (
            {"conditions": ["none", {"name": "x", "filler": "/", "coutn": 3}]},
            "not 'coutn'; did you mean 'count'?",
        ),
        (
            {"conditions": ["none", {"name": "none-chat", "like": "mless"}], "chat": True},
            "two conditions are called 'none-chat'",
        ),
        ({"stop": [""]}, "stop"),
        (
            {
                "conditions": ["none", {"name": "c", "like": "none", "template": "chat"}],
                "chat": True,
            },
            "one is chat already",
        ),
    ],
)
def test_wrong_settings_are_answered_in_a_sentence(changes, says):
    with pytest.raises(HeadlabError) as caught:
        make_spec({"study": "fillers", "models": ["smollm2"], "size": "smoke", **changes})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- interrupted ---


@pytest.mark.parametrize("stop_at", [1, 4, 6])
def test_a_stopped_cell_goes_on_and_ends_in_the_same_record(model, tmp_path, monkeypatch, stop_at):
    heard: list[int] = []
    monkeypatch.setattr(cells, "_ROWS", {"cpu": 3})
    whole = cells.run_cell(cell_of(), model, heard.append, tmp_path / "whole")
    assert sum(heard) == work(cell_of(), 8).pairs
    real, calls = cells.generate, []

    def stops(*args, **named):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(cells, "generate", stops)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cell(cell_of(), model, lambda n: None, tmp_path / "cut")
    heard.clear()
    again = cells.run_cell(cell_of(), model, heard.append, tmp_path / "cut")
    assert len(calls) == 2 * len(OWN) + 1  # two pieces each, none written twice
    assert sum(heard) == work(cell_of(), 8).pairs
    assert again.table.equals(whole.table)
    assert again.about == whole.about


def test_pieces_of_another_size_are_not_mixed_in(model, found, tmp_path, monkeypatch):
    find(model, tmp_path)
    monkeypatch.setattr(cells, "_ROWS", {"cpu": 3})
    again = find(model, tmp_path)
    assert again.texts.equals(found.texts)


def test_a_record_that_holds_something_else_is_refused(model, tmp_path):
    record = cells.run_cell(cell_of(), model, lambda n: None, tmp_path)
    for about in ({}, {**record.about, "conditions": [{"filler": 3}]}):
        with pytest.raises(HeadlabError):
            from_record(type(record)(record.table, about))


def test_prompts_that_have_changed_are_not_mixed_with_what_was_written(tmp_path, monkeypatch):
    """A chat template that writes the date says something else tomorrow."""
    model = fresh()
    model.tokenizer.chat_template = "DAY {{ messages[0]['content'] }} A:"
    asked = {"conditions": ["none", "mless"], "chat": True, "attention_n": 0}
    real, calls = cells.generate, []

    def stops(*args, **named):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(cells, "generate", stops)
    try:
        with pytest.raises(KeyboardInterrupt):
            find(model, tmp_path, **asked)
        model.tokenizer.chat_template = "TOMORROW {{ messages[0]['content'] }} A:"
        found = find(model, tmp_path, **asked)
    finally:
        model.tokenizer.chat_template = None
    assert len(calls) == 4 + 4  # all again
    assert all("TOMORROW" in own["none-chat"] for own in found.prompts.values())


# --- as a user runs it ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_lettered(folder / "m")
    made = run(
        *("run", "fillers", "--models", str(folder / "m"), "--conditions", "none,mless,gap,random"),
        *("--n", "3", "--max-new-tokens", "5", "--attention-n", "3", "--size", "smoke"),
        *("--out", str(folder / "r"), "-q"),
    )
    assert made.exit_code == 0, made.output
    assert made.stdout.strip().endswith("report.html")
    return folder


def test_a_run_leaves_figures_and_a_page(finished):
    for name in ("fillers", "differences", "attention", "parts"):
        for ending in ("png", "pdf", "csv"):
            assert (finished / "r" / "figures" / f"{name}.{ending}").stat().st_size > 0
    regions = pd.read_csv(finished / "r" / "figures" / "regions.csv")
    assert {"first", "instruction", "question", "filler"} == set(regions["region"])
    page = (finished / "r" / "report.html").read_text()
    assert "A quick look: 3 problems" in page
    assert "answers without a box" in page
    rows = pd.read_csv(finished / "r" / "figures" / "fillers.csv")
    assert set(rows["condition"]) == {"none", "mless", "gap", "random"}
    (panel,) = read_panels(Run.read(finished / "r"))
    for row in rows.itertuples():
        share = panel.share(row.condition, row.score)
        assert (row.mean, row.low, row.high) == pytest.approx(tuple(share[:3]))


def test_two_runs_are_compared(finished):
    other = run(
        *("run", "fillers", "--models", str(finished / "m"), "--conditions", "none,mless"),
        *("--n", "3", "--max-new-tokens", "4", "--attention-n", "0", "--size", "smoke"),
        *("--out", str(finished / "s"), "-q"),
    )
    assert other.exit_code == 0, other.output
    assert not (finished / "s" / "figures" / "attention.png").exists()
    found = run("compare", str(finished / "r"), str(finished / "s"))
    assert found.exit_code == 0
    assert "mless" in found.stdout
    assert "max_new_tokens: 5 in the first, 4 in the second" in found.stdout


def test_a_machine_without_math_verify_scores_strictly_and_says_so(finished, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "math_verify" else real(name)
    )
    for path in (finished / "r" / "grades").glob("*"):
        path.unlink()
    read = Run.read(finished / "r")
    (panel,) = read_panels(read)
    assert panel.scores[0] == "math-strict"
    told = " ".join(read.study.warnings(read))
    assert "scored by math-strict" in told
    assert "Not graded: math (math needs math_verify" in told
    monkeypatch.undo()
    (panel,) = read_panels(Run.read(finished / "r"))  # more can be graded now
    assert panel.scores[0] == "math"


def test_the_dry_run_counts_cells_and_time(finished):
    told = run("run", "fillers", "--models", str(finished / "m"), "--size", "smoke", "--dry-run")
    assert told.exit_code == 0
    assert "1 cell, about" in told.stdout


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma3", "olmo", "falcon"])
def test_other_architectures_run_through(name, tmp_path):
    tokenizer = lettered().tokenizer
    config = copy.deepcopy(tiny(name).config)
    config.vocab_size = len(tokenizer)
    for setting in ("max_position_embeddings", "n_positions"):
        if getattr(config, setting, None) is not None:
            setattr(config, setting, 512)
    torch.manual_seed(0)
    model = Model(hf.AutoModelForCausalLM.from_config(config).eval(), tokenizer, name=name)
    found = find(model, tmp_path, n=2)
    assert set(found.texts["condition"]) == {"none", "mless", "late", "gap", "random", "arm"}
    assert np.isfinite(found.attention["mean"]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_n": 1},
        {"conditions": ["arm", {"name": "arm2", "like": "arm", "arm": {"c": 0.1, "p1": 95}}]},
        {"conditions": ["none", {"name": "$a^{$", "filler": "$", "count": 3}]},
        {"conditions": ["mless", "random"], "heads": "L1H1"},
    ],
)
def test_odd_studies_end_with_a_report(finished, tmp_path, changes):
    given = {"models": [str(finished / "m")], **QUICK, "n": 3, "max_new_tokens": 2, **changes}
    made = run_study(make_spec({"study": "fillers", **given}), tmp_path / "r")
    assert (tmp_path / "r" / "report.html").stat().st_size > 0
    assert (tmp_path / "r" / "figures" / "regions.csv").exists()
    told = " ".join(made.study.warnings(made))
    assert ("no condition without a filler for random" in told) == ("random" in str(changes))


def test_empty_answers_and_comparisons_of_two_things_are_told(tmp_path):
    rows = ["none", {"name": "warm", "like": "mless", "temperature": 0.6}]
    run_ = filled.write_run(tmp_path, conditions=rows)
    (panel,) = read_panels(run_)
    panel.founds[0].texts["text"] = ""
    from headlab.studies.fillers.page import _compared, _written

    assert "warm is decoded otherwise than none" in " ".join(_compared(panel))
    told = " ".join(_written(panel, run_.spec))
    twice = filled.write_run(tmp_path / "twice", seeds=[0, 1])
    greedy = "seeds differ in random tokens, random places and ARM alone"
    assert greedy in " ".join(twice.study.warnings(twice))
    assert greedy not in " ".join(run_.study.warnings(run_))
    assert "empty answers: none 100.0 %" in told
    assert "(--chat)" in told


def test_what_a_tokenizer_and_a_shape_can_tell_is_told_before_anything_runs(finished, tmp_path):
    for wrong, says in (
        ({"heads": "L0H4"}, "L0H4 is out of range"),
        ({"conditions": ["none", {"name": "x", "filler": "zebra", "count": 3}]}, "no single token"),
        ({"conditions": ["none", {"name": "x", "filler": [999999], "count": 3}]}, "999999"),
    ):
        spec = make_spec({"study": "fillers", "models": [str(finished / "m")], **QUICK, **wrong})
        (tmp_path / "study.yaml").write_text(spec.as_yaml())
        for extra in (("--dry-run",), ("--out", str(tmp_path / "r"))):
            made = run("run", str(tmp_path / "study.yaml"), *extra, "-q")
            assert says in error_of(made)
        assert not (tmp_path / "r").exists()


def test_show_takes_a_study_file(finished, tmp_path):
    text = (
        "study: fillers\nmodels: [smollm2]\nconditions: [none, {name: abc, filler: e, count: 4}]\n"
    )
    (tmp_path / "study.yaml").write_text(text)
    told = run("fillers", "show", str(finished / "m"), "--conditions", str(tmp_path / "study.yaml"))
    assert told.exit_code == 0, told.output
    assert "4 times 'e'" in told.stdout


def test_only_the_papers_own_conditions_have_its_numbers(tmp_path):
    other = {"name": "mful", "filler": "x", "count": 3}
    given = {"models": ["qwen2.5-math-1.5b"], "tasks": ["math500"], "data": "hub"}
    (panel,) = read_panels(filled.write_run(tmp_path, conditions=["none", "mless", other], **given))
    assert set(published_for(panel)) == {"none", "mless"}


def test_wrong_options_end_in_a_sentence(finished):
    for options, says in (
        (("--temperature", "warm"), "--temperature is a number such as 0.6"),
        (("--task", "math500", "--data", str(finished / "gone")), "no folder"),
        (("--task", "math500", "--data", str(finished)), "has no test.jsonl"),
    ):
        made = run("run", "fillers", "--models", str(finished / "m"), *options)
        assert says in error_of(made)


def test_a_study_can_be_run_from_python(finished, tmp_path):
    spec = make_spec(
        {
            "study": "fillers",
            "models": [str(finished / "m")],
            **QUICK,
            "seeds": [0, 1],
            "temperature": 1.0,
        }
    )
    made = run_study(spec, tmp_path / "r")
    (panel,) = read_panels(made)
    assert panel.seeds == [0, 1]
    assert made.study.findings(made)[0].startswith("m, arithmetic: right")
