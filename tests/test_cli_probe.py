"""headlab rank --method probe: a ranking of heads for every cognitive function."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from commands import error_of, run
from planted import asked_of_copier, save_copier, save_questions
from safetensors import safe_open

import headlab
from headlab.tasks.cogqa import FUNCTIONS, builtin, pick

QUICK = ("--method", "probe", "--n", "3", "--epochs", "3")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(save_copier(tmp_path_factory.mktemp("models") / "m"))


@pytest.fixture(scope="module")
def done(model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "scores.json"
    result = run("rank", model, "cogqa", *QUICK, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "a probe names the function of" in result.stdout
    for title in FUNCTIONS.values():
        assert title in result.stdout
    assert str(out.with_name("scores-probe.png")) in result.stdout.replace("\n", "")
    return out.parent


def test_every_function_has_scores_a_map_and_values(done):
    names = {path.name for path in done.iterdir()}
    assert names == {
        *(f"scores-{name}.{ending}" for name in FUNCTIONS for ending in ("json", "parquet")),
        *(f"scores-probe.{ending}" for ending in ("png", "pdf", "csv")),
        *(f"scores-pooled-{split}.safetensors" for split in ("train", "test")),
    }
    with (done / "scores-probe.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(FUNCTIONS) * 8
    for name in FUNCTIONS:
        scores = headlab.read_scores(done / f"scores-{name}.json")
        assert (scores.method, scores.task) == ("probe", f"cogqa-{name}")
        assert scores.score.shape == (2, 4)
        own = [abs(float(row["importance"])) for row in rows if row["function"] == name]
        torch.testing.assert_close(
            scores.score.flatten(), torch.tensor(own, dtype=torch.float64), rtol=1e-4, atol=1e-9
        )
        asked = pick(builtin().train, [name], 3, 0)
        assert scores.examples == [item.id for item in asked]
        settings = scores.settings
        assert (settings["epochs"], settings["n"], settings["probes"]) == (3, 3, 1)
        assert settings["n_train"] == 3 * len(FUNCTIONS)


def test_nothing_but_pooled_answers_is_kept_of_the_activations(done):
    for split in ("train", "test"):
        with safe_open(done / f"scores-pooled-{split}.safetensors", "pt") as file:
            assert set(file.keys()) == {"z", "tokens", "in_json"}
            assert file.get_tensor("z").shape[1:] == (2, 4, 32)
            assert bool(file.get_tensor("in_json").all())
            assert set(file.get_tensor("tokens").tolist()) == {1}  # one token is the answer


def test_a_second_call_takes_up_the_pooled_answers(model, done, tmp_path, monkeypatch):
    from headlab.probing import files

    for path in done.glob("*.safetensors"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    calls, real = [], files.generate
    monkeypatch.setattr(files, "generate", lambda *a, **b: calls.append(1) or real(*a, **b))
    command = ("rank", model, "cogqa", "--method", "probe", "--epochs", "3", "-q")
    command = (*command, "--out", str(tmp_path / "scores.json"))
    assert run(*command, "--n", "3").exit_code == 0
    assert calls == []
    one, two = (
        headlab.read_scores(folder / "scores-retrieval.json") for folder in (done, tmp_path)
    )
    assert torch.equal(one.values, two.values)
    assert run(*command, "--n", "2").exit_code == 0
    assert len(calls) == 2, "other questions are answered anew, train and test"


def test_one_function_writes_one_file_of_scores(model, done, tmp_path):
    out = tmp_path / "scores.json"
    told = json.loads(
        run("rank", model, "cogqa-retrieval", *QUICK, "--out", str(out), "--json").stdout
    )
    assert set(told["functions"]) == {"retrieval"}
    assert 0 <= told["shuffled"] <= 1
    assert told["n_train"] == 3 * len(FUNCTIONS)
    assert (told["functions"]["retrieval"]["n"], len(told["recalls"])) == (3, len(FUNCTIONS))
    scores = headlab.read_scores(out)
    order = [str(head) for head in scores.order()]
    assert told["functions"]["retrieval"]["heads"] == order
    whole = headlab.read_scores(done / "scores-retrieval.json")
    assert torch.equal(whole.values, scores.values), "the probe is the same, asked for one or all"
    assert not list(tmp_path.glob("scores-retrieval*"))
    with (tmp_path / "scores-probe.csv").open() as file:
        assert {row["function"] for row in csv.DictReader(file)} == {"retrieval"}


def test_the_options_reach_the_probe(model, tmp_path):
    data = save_questions(tmp_path / "data", asked_of_copier(24, 6))

    def ranked(name: str, *options: str):
        out = tmp_path / f"{name}.json"
        command = ("rank", model, "cogqa-retrieval", "--method", "probe", "--data", str(data))
        result = run(*command, "--out", str(out), "--json", *options)
        assert result.exit_code == 0, result.output
        return headlab.read_scores(out), json.loads(result.stdout)

    plain, told = ranked("plain")
    assert str(plain.order()[0]) == "L1H2", "the head that copies"
    assert told["accuracy"] == 1
    assert (told["n_train"], told["n_test"], told["majority"]) == (48, 12, 0.5)
    more, _ = ranked("more", "--seeds", "2", "--epochs", "2")
    assert (more.settings["probes"], more.settings["epochs"]) == (2, 2)
    one, other = (ranked(f"seed{seed}", "--seed", f"{seed}", "--epochs", "2")[0] for seed in (0, 1))
    signed = (one.values.mean(-1) + other.values.mean(-1)) / 2
    assert not torch.equal(more.values, one.values)
    assert bool((more.score <= signed + 1e-9).all()), "the mean of two, whichever way they point"
    _, drawn = ranked("drawn", "--n", "4", "--seed", "1", "--epochs", "2")
    assert (drawn["n_train"], drawn["n_test"]) == (8, 8)


def test_all_functions_that_a_folder_has_are_scored(model, tmp_path):
    data = save_questions(tmp_path / "data", asked_of_copier(4, 3))
    out = tmp_path / "s.json"
    result = run(
        *("rank", model, "cogqa", "--method", "probe", "--data", str(data), "--epochs", "2"),
        *("--out", str(out), "-q"),
    )
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "s-retrieval.json",
        "s-math-calculation.json",
    }


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("ioi", (), "a probe tells cognitive functions apart; name cogqa, or one of"),
        ("cogqa-retreival", (), "did you mean 'cogqa-retrieval'?"),
        (None, (), "a probe tells cognitive functions apart"),
        ("cogqa", ("--measure", "kl"), "--method probe takes no --measure"),
        ("cogqa", ("--updates", "3"), "--method probe takes no --updates"),
        ("cogqa", ("--reference", "mean"), "--method probe takes no --reference"),
        ("cogqa", ("--split", "rank"), "--method probe takes no --split"),
        ("cogqa", ("--format", "mib"), "--method probe takes no --format"),
        ("cogqa", ("--data", "hub"), "cogqa is on no hub"),
        ("cogqa", ("--data", "/nowhere"), "/nowhere"),
        ("cogqa", ("--n", "0"), "at least one example is needed, not 0"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(model, tmp_path, task, options, says):
    given = (model,) if task is None else (model, task)
    out = ("--out", str(tmp_path / "s.json"), "-q")
    assert says in error_of(run("rank", *given, "--method", "probe", *options, *out))
    assert not list(tmp_path.iterdir())


def test_epochs_are_for_the_probe_alone(model, tmp_path):
    result = run("rank", model, "ioi", "--epochs", "3", "-q", "--out", str(tmp_path / "s.json"))
    assert "--method patch takes no --epochs, which is for probe" in error_of(result)


@pytest.mark.parametrize(
    ("split", "task", "says"),
    [
        ("train", "cogqa-math-calculation", "no question of math-calculation is there to train"),
        ("train", "cogqa", "all questions to train it on are of retrieval"),
        ("test", "cogqa", "no question is there to test the probe on"),
    ],
)
def test_questions_that_no_probe_can_be_trained_on_are_named_before_any_is_answered(
    model, tmp_path, split, task, says
):
    rows = asked_of_copier(4, 3)
    rows[split] = [row for row in rows[split] if "met" in row["question"]]
    if split == "test":
        for row in rows[split]:
            row["generated"][0]["cognitive_skill"] = "Inference"
    data = save_questions(tmp_path / "data", rows)
    command = ("rank", model, task, "--method", "probe", "--data", str(data), "-q")
    assert says in error_of(run(*command, "--out", str(tmp_path / "s.json")))
    assert not list(tmp_path.glob("s*"))


def test_scores_of_another_method_do_not_keep_a_probes_files(model, tmp_path):
    data = save_questions(tmp_path / "data", asked_of_copier(4, 3))
    out = tmp_path / "s.json"
    common = ("rank", model, "cogqa-retrieval", "--data", str(data), "--out", str(out), "-q")
    assert run(*common, "--method", "probe", "--epochs", "2").exit_code == 0
    assert list(tmp_path.glob("s-p*"))
    assert run(*common, "--method", "attribute", "--reference", "zero").exit_code == 0
    assert not list(tmp_path.glob("s-p*"))
