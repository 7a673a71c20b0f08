"""headlab tasks, rank and curve, as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import error_of, run
from planted import pairs, save_planted

import headlab
from headlab.scores import read_scores
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
        "cogqa",
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


def test_a_curve_is_of_what_was_ranked_where_nothing_is_named(planted_folder, tmp_path):
    data, scores = f"{planted_folder}/pairs.jsonl", str(tmp_path / "scores.json")
    common = ("--scores", scores, "--out", str(tmp_path / "c"), "--n", "8", "--ks", "0,3,8")

    def ranked(*args: str) -> None:
        half = ("--split", "rank", "--n", "8", "--out", scores, "-q")
        assert run("rank", planted_folder, data, *half, *args).exit_code == 0

    ranked("--method", "ablate", "--reference", "mean")
    result = run("curve", *common)
    assert result.exit_code == 0, result.stderr
    taken = f"as in {scores}: model {planted_folder}, task {data}, reference mean"
    assert result.stderr.splitlines() == [taken]
    assert "(reference mean)" in result.stdout
    made = json.loads((tmp_path / "c" / "curve.json").read_text())
    assert (made["model"], made["task"], made["reference"]) == (planted_folder, data, "mean")
    named = run("curve", planted_folder, data, "--reference", "zero", *common)
    assert (named.stderr, named.exit_code) == ("", 0)
    assert "(reference zero)" in named.stdout
    ranked("--method", "random")  # an order by lot was made with none
    assert json.loads(run("curve", *common, "--json").stdout)["reference"] == "counterfactual"
    record = json.loads(Path(scores).read_text())
    Path(scores).with_suffix(".parquet").unlink()
    for change, says in (
        ({"model": ""}, "does not say of which model it is"),
        ({"task": ""}, "it does not say of which task"),
        ({"method": "contrastive", "task": "a kept, b forgotten"}, "it is of a kept, b forgotten"),
    ):
        Path(scores).write_text(json.dumps({**record, **change}))
        assert says in error_of(run("curve", *common, "-q"))


def test_a_curve_asks_the_questions_of_the_data_that_was_ranked(tmp_path):
    """Which is known before a model is loaded."""
    from headlab.cli.curve import _as_ranked

    scores = tmp_path / "s.json"
    heads = {f"L0H{i}": {"score": 1.0, "low": 1.0, "high": 1.0} for i in range(2)}
    known = {"model": "m", "task": "math", "method": "gates", "measure": "log-prob"}
    known |= {"reference": "zero", "scale": 0, "is_distance": False, "examples": ["a"]}
    known |= {"fingerprints": ["f"], "clean": None, "noise_floor": None, "heads": heads}
    scores.write_text(json.dumps({**known, "settings": {"data": "/published"}}))
    ranked = read_scores(scores)
    assert _as_ranked(ranked, scores, None, None, None, None)[:4] == (
        *("m", "math", "zero"),
        "/published",
    )
    assert _as_ranked(ranked, scores, "m", "syntax", None, None)[3] is None
    assert _as_ranked(ranked, scores, "m", "math", None, "hub")[3] == "hub"


OPTIONS = {
    "--direction": "noising",
    "--steps": "1",
    "--reference": "mean",
    "--split": "rank",
    "--keep": "ioi",
    "--forget": "ioi",
    "--seeds": "10",
    "--updates": "500",
    "--batch": "64",
    "--lambda": "0.1",
    "--clip": "1",
    "--measure": "log-prob",
    "--format": "headlab",
}
FITS, NO_FITS = "gates and contrastive", "ablate, patch, attribute and random"


@pytest.mark.parametrize(
    ("method", "names", "methods"),
    [
        ("patch", ("--seeds", "--updates", "--batch", "--lambda", "--clip"), FITS),
        ("random", ("--seeds", "--updates", "--batch", "--lambda", "--clip"), FITS),
        ("patch", ("--keep", "--forget"), "contrastive"),
        ("gates", ("--keep", "--forget"), "contrastive"),
        ("gates", ("--steps",), "attribute"),
        ("gates", ("--direction",), "patch and attribute"),
        ("contrastive", ("--direction",), "patch and attribute"),
        ("gates", ("--measure", "--format"), NO_FITS),
        ("contrastive", ("--measure", "--format"), NO_FITS),
        ("contrastive", ("--split",), "ablate, patch, attribute, random and gates"),
        ("random", ("--reference",), "ablate, patch, attribute, gates and contrastive"),
    ],
)
def test_options_of_other_methods_are_refused_even_at_their_defaults(method, names, methods):
    for name in names:
        task = [] if method == "contrastive" else ["ioi"]
        given = ["rank", "/no/model", *task, "--method", method, name, OPTIONS[name], "-q"]
        said = error_of(run(*given))
        assert said.startswith(f"error: --method {method} takes no {name}, which is for ")
        listed = re.findall(r"[a-z]+", said.partition(" for ")[2])
        assert set(re.findall(r"[a-z]+", methods)) <= set(listed)
        assert method not in listed


def test_patching_takes_the_counterfactual_before_a_model_is_loaded():
    said = error_of(run("rank", "/no/model", "ioi", "--reference", "zero"))
    assert "--reference zero is for ablate, attribute and gates" in said


def test_files_of_an_earlier_ranking_are_not_left_beside_a_new_one(planted_folder, tmp_path):
    data, out = f"{planted_folder}/pairs.jsonl", tmp_path / "s.json"
    mine = [tmp_path / name for name in ("s-fit.md", "s2-gates.safetensors", "s-gates.csv")]
    for path in mine:
        path.write_text("mine")

    def beside(method: str, *options: str) -> set[str]:
        given = ("--method", method, "--n", "6", "--out", str(out), "-q", *options)
        result = run("rank", planted_folder, data, *given)
        assert result.exit_code == 0, result.stderr
        assert all(path.read_text() == "mine" for path in mine)
        return {path.name for path in tmp_path.iterdir()} - {path.name for path in mine}

    plain = {f"s.{ending}" for ending in ("json", "parquet", "png", "pdf", "csv")}
    learned = {"s.json", "s.parquet", "s-gates.safetensors", "s-gates.parquet"}
    learned |= {f"s-{n}.{e}" for n in ("scores", "fit") for e in ("png", "pdf", "csv")}
    gates = ("--updates", "2", "--batch", "2", "--seeds", "1")
    assert beside("ablate") == plain
    assert beside("gates", *gates) == learned
    assert beside("patch", "--format", "mib") == plain
    out.write_text('{"nodes": {}, "cfg": {}}')  # of another program: whose files lie there?
    assert beside("gates", *gates) == plain | learned


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
            "--method ablate takes no --direction, which is for patch and attribute",
        ),
        (["rank", "MODEL", "DATA", "--method", "attribute", "--steps", "0"], "at least one step"),
        (["rank", "MODEL", "DATA", "--steps", "3"], "takes no --steps, which is for attribute"),
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
