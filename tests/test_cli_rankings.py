"""headlab tasks, rank and curve, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import error_of, run
from planted import pairs, save_planted

import headlab
from headlab.tasks.jsonl import read_examples


@pytest.fixture
def paired(tmp_path: Path) -> str:
    """Twelve pairs that end alike, so that the tiny model's random effect is more than chance."""
    words = ["cat", "mat", "apple", "john", "mary", "sat"]
    records = [
        {
            "prompt": f"the {a} gave the",
            "target": f" {a}",
            "counterfactual": f"the {b} gave the",
            "wrong": [f" {b}"],
        }
        for a in words[:4]
        for b in words[:4]
        if a != b
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_tasks_are_listed_and_shown(folder, paired):
    listed = run("tasks").stdout
    for name in ("ioi", "ioi-long", "greater-than", "docstring", "FILE.jsonl"):
        assert name in listed
    assert [task["name"] for task in json.loads(run("tasks", "--json").stdout)] == [
        "ioi",
        "ioi-long",
        "greater-than",
        "docstring",
        "syntax",
        "commonsense",
        "math",
    ]
    shown = run("tasks", "show", paired, "--model", folder, "--n", "2").stdout
    assert "the cat gave the" in shown
    assert "counterfactual: the mat gave the" in shown
    record = json.loads(run("tasks", "show", paired, "--model", folder, "--json").stdout)
    assert len(record) == 5
    assert record[0]["wrong"] == [" mat"]
    assert "did you mean 'ioi'" in error_of(run("tasks", "show", "iol"))
    assert "names of ioi must be single tokens" in error_of(
        run("tasks", "show", "ioi", "--model", folder, "--quiet")
    )
    assert "Example: headlab tasks show" in run("tasks", "show", "--help").stdout


def test_rank_writes_scores_that_curve_reads(folder, paired, tmp_path):
    scores = tmp_path / "out" / "scores.json"
    result = run("rank", folder, paired, "--split", "rank", "--out", str(scores), "--top", "4")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == str(scores)
    assert "(noising)" in result.stdout
    names = sorted(path.name for path in scores.parent.iterdir())
    assert names == ["scores.csv", "scores.json", "scores.parquet", "scores.pdf", "scores.png"]
    record = json.loads(scores.read_text())
    assert record["task"] == paired
    assert len(record["examples"]) == 6
    model = headlab.load(folder)
    used = [example for example in read_examples(paired) if example.id in record["examples"]]
    expected = headlab.rank(model, used, "patch")
    for head in expected.order():
        assert record["heads"][str(head)]["score"] == pytest.approx(
            float(expected.score[head]), abs=1e-5
        )


@pytest.fixture(scope="session")
def planted_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model in which three known heads carry the answer, and forty examples beside it."""
    folder = save_planted(tmp_path_factory.mktemp("models") / "planted")
    lines = [json.dumps(example.as_dict()) for example in pairs(40)]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return str(folder)


def test_a_curve_from_the_command_line(planted_folder, tmp_path):
    data, scores = f"{planted_folder}/pairs.jsonl", str(tmp_path / "scores.json")
    assert (
        run("rank", planted_folder, data, "--split", "rank", "--out", scores, "-q").exit_code == 0
    )
    ranked = json.loads(Path(scores).read_text())
    out = tmp_path / "curve"

    def curve(*args: str) -> dict:
        command = ["curve", planted_folder, data, "--scores", scores, "--out", str(out)]
        result = run(*command, "--json", *args)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    kept = curve()
    assert sorted(path.name for path in out.iterdir()) == [
        "curve.csv",
        "curve.json",
        "curve.pdf",
        "curve.png",
    ]
    assert json.loads((out / "curve.json").read_text()) == kept
    assert (kept["n"], kept["in_sample"], kept["mode"]) == (20, False, "keep")
    assert not set(kept["examples"]) & set(ranked["examples"])
    assert kept["crossings"]["k90"]["first"] == 3
    assert curve("--ablate")["crossings"]["k90"]["first"] == 1
    assert "k50" in curve("--threshold", "0.5")["crossings"]
    same = curve("--same-prompts")
    assert (same["n"], same["in_sample"]) == (20, True)
    assert set(same["examples"]) == set(ranked["examples"])
    each = curve("--per-prompt")
    assert (each["in_sample"], each["per_prompt"]) == (True, True)
    assert curve("--reference", "zero")["reference"] == "zero"
    assert curve("--n", "5", "--ks", "0,3,8")["n"] == 5
    text = run("curve", planted_folder, data, "--scores", scores, "--out", str(out)).stdout
    assert "k90" in text
    assert "held out" in text
    assert "CPR" in text
    assert (
        "error: k runs from 0 to 8"
        in run("curve", planted_folder, data, "--scores", scores, "--ks", "9", "-q").stderr
    )


def test_options_reach_the_ranking(planted_folder, tmp_path):
    data = f"{planted_folder}/pairs.jsonl"

    def heads(*args: str) -> dict:
        out = str(tmp_path / "s.json")
        result = run("rank", planted_folder, data, "--n", "6", "--out", out, "--json", *args)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    records = [
        heads(),
        heads("--direction", "denoising"),
        heads("--method", "ablate"),
        heads("--method", "ablate", "--reference", "mean"),
        heads("--method", "attribute"),
        heads("--method", "attribute", "--steps", "4"),
        heads("--method", "random", "--seed", "1"),
        heads("--method", "random", "--seed", "2"),
        heads("--measure", "prob-diff"),
    ]
    scored = [json.dumps(record["heads"]) for record in records]
    assert len(set(scored)) == len(scored)
    text = run("rank", planted_folder, data, "--n", "6", "--method", "random",
               "--out", str(tmp_path / "s.json")).stdout  # fmt: skip
    assert "by chance" not in text


def test_a_curve_takes_no_prompt_of_the_ranking(folder, paired, tmp_path):
    scores = str(tmp_path / "scores.json")
    assert run("rank", folder, paired, "--out", scores, "-q").exit_code == 0
    sentence = error_of(run("curve", folder, paired, "--scores", scores, "-q"))
    assert "the ranking has used every example" in sentence
    assert "--same-prompts" in sentence


def test_mib_format_goes_out_and_in(folder, paired, tmp_path):
    path = tmp_path / "mib.json"
    assert run("rank", folder, paired, "--out", str(path), "--format", "mib", "-q").exit_code == 0
    assert "a1.h1" in json.loads(path.read_text())["nodes"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["rank", "MODEL", "iol"], "no task 'iol'; did you mean 'ioi'?"),
        (
            ["rank", "MODEL", "DATA", "--method", "patches"],
            "no method 'patches'; did you mean 'patch'?",
        ),
        (["rank", "MODEL", "DATA", "--direction", "up"], "noising or denoising, not 'up'"),
        (
            ["rank", "MODEL", "DATA", "--method", "ablate", "--direction", "denoising"],
            "not to ablate",
        ),
        (["rank", "MODEL", "DATA", "--steps", "0"], "at least one step"),
        (["rank", "MODEL", "DATA", "--steps", "3"], "steps are of attribute"),
        (["rank", "MODEL", "DATA", "--split", "half"], "a split is rank, curve or all"),
        (["rank", "MODEL", "DATA", "--n", "0"], "at least one example"),
        (["rank", "MODEL", "DATA", "--format", "xml"], "headlab or mib"),
        (["rank", "MODEL", "DATA", "--measure", "kll"], "did you mean 'kl'?"),
        (["rank", "MODEL", "DATA", "--out", "/proc/x/s.json"], "cannot write to /proc"),
        (["rank", "MODEL", "/no/file.jsonl"], "no file /no/file.jsonl"),
        (["rank", "MODEL", "DATA", "--out", "/dev/null"], "/dev/null is not a file"),
        (["rank", "MODEL", "ioi"], "names of ioi must be single tokens"),
        (["curve", "MODEL", "DATA", "--scores", "/no/scores.json"], "no file /no/scores.json"),
        (["curve", "MODEL", "DATA", "--ks", "1,two"], "--ks is auto, all or numbers"),
        (["curve", "MODEL", "DATA", "--reference", "one"], "zero, mean or counterfactual"),
    ],
)
def test_wrong_uses_of_rank_and_curve(folder, paired, tmp_path, args, sentence):
    args = [{"MODEL": folder, "DATA": paired}.get(arg, arg) for arg in args]
    out = [] if "--out" in args else ["--out", str(tmp_path / "o" / "s.json")]
    assert sentence in error_of(run(*args, "--quiet", *out))
