"""Study files: checked before anything runs; a stranger's file is only data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import error_of, run
from planted import pairs, save_planted

from headlab.errors import HeadlabError
from headlab.studies import STUDIES, find_study
from headlab.studies.spec import make_spec, read_spec


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "study.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(HeadlabError) as caught:
        read_spec(written(folder, text))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("study: circuits\nmodles: [smollm2]\n", 2, "no setting 'modles'; did you mean 'models'?"),
        ("study: circiuts\n", 1, "did you mean 'circuits'?"),
        ("study: circuits\n\nsize: smal\n", 3, "did you mean 'small'?"),
        ("study: circuits\ntasks:\n- ioi\n- iol\n", 4, "no task 'iol'; did you mean 'ioi'?"),
        ("study: circuits\nmethods: [pach]\n", 2, "not 'pach'; did you mean 'patch'?"),
        ("study: circuits\nmeasure: logit-dif\n", 2, "did you mean 'logit-diff'?"),
        ("study: circuits\nmodels: [./nowhere]\n", 2, "no model './nowhere'"),
        ("study: circuits\nn: 1\n", 2, "n: "),
        ("study: circuits\nn: lots\n", 2, "not 'lots'"),
        ("study: circuits\nthreshold: 1.5\n", 2, "threshold: "),
        ("study: circuits\nseeds: [0, -1]\n", 2, "seeds: "),
        ("study: circuits\ntasks: [ioi, ioi]\n", 2, "'ioi' is there twice"),
        ("study: circuits\npairs: ['gpt2']\n", 2, "pairs: "),
        ("study: circuits\nn: 4\nn: 8\n", 3, "'n' is there twice"),
        ("study: circuits\nmodels: [smollm2\n", 3, ""),
        ("study: circuits\nmodels: {a: 1}\n", 2, "models: "),
        ("study: circuits\n? [a, b]\n: c\n", 2, "name is a word"),
        ("study: circuits\nmodels: [smolm2]\n", 2, "did you mean 'smollm2'?"),
        ("study: circuits\nmodels: ['~nobody/x']\n", 2, "models: "),
        ("study: circuits\nmodels:\n\t- gpt2\n", 3, "a tab; indent with spaces"),
        ("study: circuits\nmodels: []\n", 2, "models is empty"),
        ("study: circuits\nmodels:\n", 2, "models is empty"),
        ("study: circuits\npairs: [gpt2: smollm2]\n", 2, "written 'dense:sparse' in quotes"),
    ],
)
def test_an_error_names_the_line_and_the_nearest_word(tmp_path, text, line, says):
    sentence = refusal(tmp_path, text)
    assert f"study.yaml, line {line}: " in sentence
    assert says in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "text",
    [
        "study: circuits\ntasks: !!python/object/apply:os.system ['touch owned']\n",
        "study: circuits\ntasks: !!python/name:os.system\n",
        "study: circuits\nout: ../../somewhere\n",
        "study: circuits\nfolder: /etc\n",
        "study: circuits\ntrust_remote_code: true\n",
        "study: circuits\ndevice: cuda\n",
        "study: &a circuits\nmodels: [*a]\n",
        "study: circuits\nn: 100000000\n",
        "study: circuits\norders: 100000000\n",
        "study: circuits\nseeds: [" + "[" * 200 + "]" * 200 + "]\n",
    ],
)
def test_a_strangers_file_runs_nothing_and_names_no_place_to_write(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert "line" in refusal(tmp_path, text)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is not a study"),
        (b"- a\n- b\n", "is not a study"),
        (b"just words", "is not a study"),
        (b"\xff\xfe\x00s", "is not UTF-8"),
        (b"models: [smollm2]\n", "no study is named"),
        (b"study: circuits\n#" + b"x" * 2**20, "larger than a study file"),
        (b"1: 2\n", "is not a study"),
    ],
)
def test_a_file_that_is_no_study_is_refused_in_one_sentence(tmp_path, text, says):
    assert says in refusal(tmp_path, text)


def test_a_pickle_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model/pytorch_model.bin").write_bytes(b"\x80\x04.")
    said = refusal(tmp_path, "study: circuits\nmodels: [./model]\n")
    assert "pickle" in said
    assert "line 2" in said


def test_wrong_lines_of_a_data_file_are_named_before_anything_runs(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"prompt": "a", "target": "b"}\n{"prompt": 7}\n')
    said = refusal(tmp_path, "study: circuits\ntasks: [t.jsonl]\n")
    assert "study.yaml, line 2" in said
    assert "line 2" in said.split("t.jsonl", 1)[1]


def test_paths_are_of_the_study_files_folder(tmp_path, monkeypatch):
    save_planted(tmp_path / "deep/m")
    lines = [json.dumps(example.as_dict()) for example in pairs(4)]
    (tmp_path / "deep/t.jsonl").write_text("\n".join(lines))
    path = written(tmp_path / "deep", "study: circuits\nmodels: [m]\ntasks: t.jsonl\n")
    monkeypatch.chdir(tmp_path)
    spec = read_spec(path)
    assert spec.models == [str(tmp_path / "deep/m")]
    assert spec.tasks == [str(tmp_path / "deep/t.jsonl")]


def test_links_stay_as_they_were_named(tmp_path):
    save_planted(tmp_path / "blob")
    (tmp_path / "link").symlink_to(tmp_path / "blob")
    spec = make_spec({"study": "circuits", "models": [str(tmp_path / "link")]})
    assert spec.models == [str(tmp_path / "link")]


def test_a_size_on_the_command_line_stands_for_its_numbers(tmp_path):
    stored = written(tmp_path, make_spec({"study": "circuits", "size": "smoke"}).as_yaml())
    spec = read_spec(stored, {"size": "small"})
    assert (spec.size, spec.n, spec.orders) == ("small", 200, 20)


def test_the_models_of_pairs_are_models():
    spec = make_spec({"study": "circuits", "pairs": ["gpt2:olmo-7b"], "models": "smollm2"})
    assert spec.models == ["smollm2", "gpt2", "olmo-7b"]
    assert make_spec({"study": "circuits", "pairs": "gpt2:olmo-7b"}).models == ["gpt2", "olmo-7b"]
    both = {"models": ["gpt2"], "pairs": ["gpt2:olmo-7b", "gpt2:smollm2"]}
    assert make_spec({"study": "circuits", **both}).models == ["gpt2", "olmo-7b", "smollm2"]
    with pytest.raises(HeadlabError, match="there twice"):
        make_spec({"study": "circuits", "pairs": ["gpt2:gpt2"]})


def test_sizes_stand_for_numbers_that_can_be_changed():
    smoke = make_spec({"study": "circuits", "size": "smoke"})
    assert (smoke.n, smoke.orders) == (16, 5)
    small = make_spec({"study": "circuits", "n": 32})
    assert (small.n, small.orders, small.models) == (32, 20, ["smollm2"])
    paper = make_spec({"study": "circuits", "size": "paper"})
    assert paper.models == ["gpt2", "olmo-7b"]
    assert set(paper.tasks) == {"greater-than", "ioi", "docstring", "ioi-long"}


def test_a_spec_read_again_from_its_own_text_is_the_same(tmp_path):
    spec = make_spec({"study": "circuits", "pairs": ["gpt2:smollm2"], "bos": "no", "seeds": 3})
    assert read_spec(written(tmp_path, spec.as_yaml())) == spec


@pytest.mark.parametrize("study", STUDIES)
def test_the_file_that_new_writes_is_a_study_and_shows_the_defaults(tmp_path, study):
    text = run("new", study).stdout
    spec = read_spec(written(tmp_path, text))
    assert spec == make_spec({"study": study})
    opened = []
    for line in text.splitlines():
        setting = line.removeprefix("# ")
        is_one = line.startswith("# ") and setting.split(":")[0] in type(spec).model_fields
        is_one = is_one and "default:" not in line and not setting.startswith("pairs")
        opened.append(setting if is_one else line)  # with "default:" stands a mere example
    assert read_spec(written(tmp_path, "\n".join(opened))) == spec
    assert set(type(spec).model_fields) <= {line.lstrip("# ").split(":")[0] for line in opened}


@pytest.mark.parametrize("study", ["roles", "contrastive"])
def test_lambda_is_another_name_of_strength(tmp_path, study):
    text = f"study: {study}\n"
    spec = read_spec(written(tmp_path, text + "lambda: 0.25\n"))
    assert spec.strength == 0.25
    assert spec == read_spec(written(tmp_path, text + "strength: 0.25\n"))
    assert read_spec(written(tmp_path, spec.as_yaml())) == spec
    for inside, outside in (("lambda", "strength"), ("strength", "lambda")):
        path = written(tmp_path, text + f"{inside}: 0.25\n")
        assert read_spec(path, {outside: 0.5}).strength == 0.5
    with pytest.raises(HeadlabError, match=r"line 2: lambda: .* greater than 0"):
        read_spec(written(tmp_path, text + "lambda: -1\n"))
    with pytest.raises(HeadlabError, match="line 3: lambda and strength are one setting"):
        read_spec(written(tmp_path, text + "strength: 1\nlambda: 1\n"))
    with pytest.raises(HeadlabError, match="no setting 'lambda'"):
        read_spec(written(tmp_path, "study: circuits\nlambda: 1\n"))


def test_the_baselines_number_is_that_of_curves():
    from headlab import curves
    from headlab.studies import spec

    assert spec.MIN_ORDERS == curves.MIN_ORDERS


def test_word_tasks_are_tasks_of_studies_and_unpaired_ones_are_not_patched():
    assert make_spec({"study": "roles", "tasks": ["antonym-icl"]}).tasks == ["antonym-icl"]
    with pytest.raises(HeadlabError, match="syntax has no counterfactuals"):
        make_spec({"study": "circuits", "tasks": ["syntax"]})
    ablated = {"tasks": ["syntax"], "methods": ["ablate"], "reference": "zero"}
    assert make_spec({"study": "circuits", **ablated}).tasks == ["syntax"]


def test_unknown_studies_are_answered_with_the_nearest():
    with pytest.raises(HeadlabError, match="did you mean 'circuits'"):
        find_study("circuit")
    assert "did you mean 'circuits'" in error_of(run("new", "circuit"))
    assert "did you mean 'circuits'" in error_of(run("run", "circuit", "--size", "smoke"))
    assert "no file study.yaml" in error_of(run("run", "study.yaml"))
