"""COMET: its environment is whole or not used, and each number is that of its own row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import error_of, run

from headlab import HeadlabError, comet
from headlab.comet import Row

# Reads its files as the real program does (text mode, a line a segment, stripped) and scores a row
# by the first characters of its three texts, so that a number tells which texts it was made of.
FAKE_SCORE = f"""#!{sys.executable}
import json, os, sys, time
if "--help" in sys.argv:
    print("usage: comet-score")
    sys.exit(int(os.environ.get("FAKE_HELP", "0")))
value = lambda flag: sys.argv[sys.argv.index(flag) + 1]
mode = os.environ.get("FAKE_MODE", "")
if mode == "encoder":
    sys.exit('File ".../comet/encoders/xlmr.py", line 90, in from_pretrained\\nAttributeError: x')
if mode == "broken":
    sys.exit("Traceback (most recent call last):\\nRuntimeError: bad magic number\\nbye")
if mode == "memory":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
if mode == "killed":
    os.kill(os.getpid(), 9)
columns = {{}}
for key, flag in {{"src": "-s", "mt": "-t", "ref": "-r"}}.items():
    with open(value(flag), encoding="utf-8") as file:
        columns[key] = [line.strip() for line in file.readlines()]
rows = [dict(zip(columns, texts)) for texts in zip(*columns.values())]
for row in rows:
    row["COMET"] = sum(ord(row[key][0]) * 1000**n for n, key in enumerate(("src", "mt", "ref")))
if mode == "nan":
    rows[1]["COMET"] = float("nan")
if mode == "shuffled":
    rows.reverse()
if mode != "silent":
    with open(value("--to_json"), "w", encoding="utf-8") as file:
        json.dump({{value("-t"): rows}}, file, ensure_ascii=False)
if seen := os.environ.get("FAKE_SEEN"):
    with open(seen, "w") as file:
        json.dump({{"argv": sys.argv, "environ": dict(os.environ), "cwd": os.getcwd()}}, file)
print("score: 0.1")
"""

# A Python that can do three things: say its version, make an environment, and be its pip.
FAKE_PYTHON = f"""#!{sys.executable}
import os, shutil, sys, time
from pathlib import Path
args = sys.argv[1:]
if args[0] == "-c":
    print(os.environ.get("FAKE_VERSION", "3 12"))
elif args[:2] == ["-m", "venv"]:
    if os.environ.get("FAKE_VENV"):
        sys.exit("ensurepip is not available")
    Path(args[2], "bin").mkdir()
    shutil.copy(__file__, Path(args[2], "bin", "python"))
else:
    assert args[:3] == ["-m", "pip", "install"], args
    Path(__file__).with_name("pins").write_text("\\n".join(args[3:]))
    print("Collecting unbabel-comet", flush=True)
    program = Path(__file__).with_name("comet-score")
    program.write_text({FAKE_SCORE!r})
    program.chmod(0o755)
    if os.environ.get("FAKE_PIP") == "slow":
        print("pip", os.getpid(), flush=True)
        time.sleep(60)
    if os.environ.get("FAKE_PIP") == "fails":
        print("ERROR: No matching distribution found for torch==2.13.0", flush=True)
        sys.exit("note: this is an issue with the package mentioned above")
    print("Successfully installed unbabel-comet")
"""


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment would be; nothing of the user's own is seen."""
    monkeypatch.setenv("HEADLAB_COMET", str(tmp_path / "cache" / "comet"))
    monkeypatch.delenv("HEADLAB_COMET_CHECKPOINT", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache" / "comet"


@pytest.fixture
def python(tmp_path: Path) -> str:
    return str(executable(tmp_path / "fake-python", FAKE_PYTHON))


@pytest.fixture
def whole(place: Path, python: str) -> Path:
    return comet.install(python=python)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(make_checkpoint(tmp_path / "tiny"))


def make_checkpoint(folder: Path) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "model.ckpt").write_bytes(b"not read by us")
    (folder / "hparams.yaml").write_text("class_identifier: regression_metric\n")
    return folder


def put_in_hub_cache(cache: Path) -> Path:
    repo = cache / "models--Unbabel--wmt22-comet-da"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    return make_checkpoint(repo / "snapshots" / "abc")


def number(src: str, mt: str, ref: str) -> float:
    return float(ord(src) + 1000 * ord(mt) + 1000**2 * ord(ref))


# --- scores -------------------------------------------------------------------------------------


def test_scores_come_in_the_order_of_the_rows_from_gold_prediction_and_unmasked(whole, checkpoint):
    rows = [Row("gold", "prediction", "unmasked"), Row("a", "b", "c"), Row("z", "y", "x")]
    expected = [number("g", "p", "u"), number("a", "b", "c"), number("z", "y", "x")]
    assert comet.score(rows, checkpoint) == expected
    assert comet.score([tuple(row) for row in rows[::-1]], checkpoint) == expected[::-1]


@pytest.mark.parametrize(
    "text", ["a\nb", "\na", "a\r\nb\rc", "a\n\n\n", "a\x0b\x0c\x1c\x85\u2028\u2029b", " a \t"]
)
def test_line_breaks_inside_a_text_shift_no_row(whole, checkpoint, text):
    rows = [Row("1", text, "3"), Row(text, "5", text), Row("7", "8", "9")]
    expected = [number("1", "a", "3"), number("a", "5", "a"), number("7", "8", "9")]
    assert comet.score(rows, checkpoint) == expected


def test_an_empty_text_is_scored_as_not_available(whole, checkpoint, tmp_path, monkeypatch):
    rows = [Row("a", "", "c"), Row("", " \n ", ""), Row("d", "e", "f")]
    expected = [number("a", "N", "c"), number("N", "N", "N"), number("d", "e", "f")]
    assert comet.score(rows, checkpoint) == expected
    assert comet._one_line("") == comet._one_line("\n") == "N/A"


def test_texts_that_utf8_cannot_write_and_long_ones_are_scored(whole, checkpoint):
    rows = [Row("é", "\ud800", "日"), Row("a" * 100_000, "b", "c")]
    assert comet.score(rows, checkpoint) == [number("é", "?", "日"), number("a", "b", "c")]


def test_no_rows_need_no_program():
    assert comet.score([], "nobody/nothing") == []


def test_comet_score_is_called_with_the_checkpoint_and_without_our_packages(
    whole, checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAKE_SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setenv("PYTHONPATH", "/ours")
    comet.score([Row("a", "b", "c")], checkpoint, batch_size=3, gpus=0)
    seen = json.loads((tmp_path / "seen.json").read_text())
    argv = seen["argv"]
    assert argv[0] == str(whole / "bin" / "comet-score")
    given = {flag: argv[argv.index(flag) + 1] for flag in ("--model", "--batch_size", "--gpus")}
    file = str(Path(checkpoint) / "checkpoints" / "model.ckpt")
    assert given == {"--model": file, "--batch_size": "3", "--gpus": "0"}
    assert "PYTHONPATH" not in seen["environ"]
    assert seen["cwd"] == os.getcwd()  # a checkpoint may name its encoder by a relative path
    assert not Path(argv[argv.index("-s") + 1]).exists()


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("broken", "bad magic number; if the checkpoint is sound, 'headlab comet install --force'"),
        ("encoder", "cannot load the encoder"),
        ("memory", "smaller batch size, or gpus=0"),
        ("killed", "was killed (signal 9)"),
        ("silent", "no scores that can be read"),
        ("shuffled", "other rows (2) than the 2 it was given, or not in their order"),
        ("nan", "gave nan for row 2"),
    ],
)
def test_a_comet_score_that_fails_ends_in_one_sentence(whole, checkpoint, monkeypatch, mode, said):
    monkeypatch.setenv("FAKE_MODE", mode)
    with pytest.raises(HeadlabError) as caught:
        comet.score([Row("a", "b", "c"), Row("d", "e", "f")], checkpoint)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sizes", [{"batch_size": 0}, {"gpus": -1}])
def test_sizes_that_cannot_be_are_refused(whole, checkpoint, sizes):
    with pytest.raises(HeadlabError, match="1 row or more"):
        comet.score([Row("a", "b", "c")], checkpoint, **sizes)


def test_without_an_environment_the_sentence_says_how_to_make_it(checkpoint):
    with pytest.raises(HeadlabError, match="run 'headlab comet install'"):
        comet.score([Row("a", "b", "c")], checkpoint)


# --- checkpoints --------------------------------------------------------------------------------


def test_a_local_checkpoint_is_found_by_its_folder_or_its_file(checkpoint, monkeypatch):
    folder = Path(checkpoint)
    file = folder / "checkpoints" / "model.ckpt"
    for name in (folder, folder / "checkpoints", file):
        assert comet.local_checkpoint(str(name)) == file
    monkeypatch.chdir(folder / "checkpoints")
    assert comet.local_checkpoint("model.ckpt") == file
    monkeypatch.chdir(folder.parent.parent)
    assert comet.local_checkpoint(f"{folder.parent.name}/tiny") == file  # before a hub id


def test_a_checkpoint_without_hparams_is_refused(checkpoint):
    (Path(checkpoint) / "hparams.yaml").unlink()
    with pytest.raises(HeadlabError, match=r"no hparams\.yaml one folder above"):
        comet.local_checkpoint(checkpoint)


@pytest.mark.parametrize("name", ["/nowhere/model.ckpt", "x.ckpt", "a/x.ckpt", "./a/b", "a", ""])
def test_a_checkpoint_that_is_not_there_is_named(name, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadlabError, match="no COMET checkpoint"):
        comet.score([Row("a", "b", "c")], name)


def test_a_folder_that_is_no_checkpoint_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "some" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadlabError, match="no COMET checkpoint 'some/folder'"):
        comet.local_checkpoint("some/folder")


def test_a_hub_id_that_cannot_be_reached_ends_in_one_sentence(whole):
    assert comet.local_checkpoint("someone/unknown") is None
    with pytest.raises(HeadlabError, match="the hub cannot be reached; give the path of a local"):
        comet.score([Row("a", "b", "c")], "someone/unknown")


def test_what_lies_in_the_hub_cache_is_used_and_is_the_default(whole, tmp_path, monkeypatch):
    assert comet.default_checkpoint() is None
    folder = put_in_hub_cache(tmp_path / "hub")
    assert comet.default_checkpoint() == "Unbabel/wmt22-comet-da"
    file = folder / "checkpoints" / "model.ckpt"
    assert comet.local_checkpoint("Unbabel/wmt22-comet-da") == file
    assert comet.score([Row("a", "b", "c")], comet.HUB_ID) == [number("a", "b", "c")]
    monkeypatch.setenv("HEADLAB_COMET_CHECKPOINT", "my/own")
    assert comet.default_checkpoint() == "my/own"


def test_a_download_that_was_cut_short_is_not_a_default(tmp_path):
    folder = put_in_hub_cache(tmp_path / "hub")
    (folder / "checkpoints" / "model.ckpt").unlink()
    assert comet.default_checkpoint() is None


# --- the environment ----------------------------------------------------------------------------


def test_install_makes_it_with_the_pins_and_once(place, python):
    result = run("comet", "install", "--python", python)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(place)
    pins = (place / "bin" / "pins").read_text().split()
    assert pins == ["torch==2.13.0", "unbabel-comet==2.2.7", "setuptools<81"]
    (place / "untouched").touch()
    assert "it is there and whole" in run("comet", "install", "--python", python).stderr
    assert (place / "untouched").exists()
    assert run("comet", "install", "--force", "--quiet", "--python", python).exit_code == 0
    assert not (place / "untouched").exists()
    assert comet.environment_state(place) == "whole"
    assert left_beside(place) == []


def left_beside(place: Path) -> list[str]:
    own = (place.name, f".{place.name}.lock")
    return [each.name for each in place.parent.iterdir() if each.name not in own]


def test_without_the_variable_it_is_in_headlabs_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADLAB_COMET")
    monkeypatch.setenv("HEADLAB_CACHE", str(tmp_path / "own"))
    assert comet.environment_folder() == tmp_path / "own" / "comet-2.2.7"


@pytest.mark.parametrize("before", ["nothing", "whole", "outdated", "moved"])
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"FAKE_PIP": "fails"}, "No matching distribution found for torch==2.13.0"),
        ({"FAKE_VENV": "1"}, "cannot make a virtual environment: ensurepip is not available"),
        ({"FAKE_HELP": "3"}, "its comet-score does not start: usage: comet-score"),
    ],
)
def test_a_failed_install_says_why_and_leaves_what_was_there(
    place, python, monkeypatch, trouble, said, before
):
    if before != "nothing":
        comet.install(python=python)
        (place / "untouched").touch()
    if before == "outdated":
        change_the_pins(place)
    if before == "moved":
        say_it_was_made_elsewhere(place)
    for name, value in trouble.items():
        monkeypatch.setenv(name, value)
    assert said in error_of(run("comet", "install", "--force", "--python", python))
    if before != "nothing":
        assert (place / "untouched").exists()
        assert comet.environment_state(place) == before
    else:
        assert not place.exists()
    assert left_beside(place) == []


@pytest.mark.parametrize(
    ("version", "said"),
    [("3 13", "needs Python 3.10 to 3.12, and"), ("3 9", "is 3.9;"), ("what?", "is not a Python")],
)
def test_a_python_that_cannot_hold_it_is_refused_first(place, python, monkeypatch, version, said):
    monkeypatch.setenv("FAKE_VERSION", version)
    assert said in error_of(run("comet", "install", "--python", python))
    assert not place.exists()


def test_a_python_that_is_not_there_is_named():
    assert "no-such-python is not a Python" in error_of(
        run("comet", "install", "--python", "no-such-python")
    )


def installing(python: str) -> tuple[subprocess.Popen[str], int]:
    """`headlab comet install` in the middle of its pip, and that pip's process id."""
    script = (
        "import signal, sys; from headlab import comet\n"
        # A shell's background job, which tests may be, starts deaf to Ctrl-C.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "comet.install(python=sys.argv[1], force=True, tell=lambda line: print(line, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, python],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "FAKE_PIP": "slow"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("pip "):
            return process, int(line.split()[1])
    raise AssertionError("pip was not reached")


def ended(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_an_interrupted_install_ends_its_pip_and_leaves_nothing(place, python):
    process, pip = installing(python)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert ended(pip)
    assert not place.exists()
    assert left_beside(place) == []


def test_a_killed_install_is_not_taken_for_a_whole_one(place, python, checkpoint):
    process, pip = installing(python)
    busy = error_of(run("comet", "install", "--python", python))
    assert "another 'headlab comet install' is making" in busy
    process.kill()
    process.wait(20)
    os.kill(pip, signal.SIGKILL)
    assert (place / "bin" / "comet-score").exists()  # all there, but not tried
    assert comet.environment_state(place) == "half-made"
    with pytest.raises(HeadlabError, match="is half-made; 'headlab comet install' makes it anew"):
        comet.score([Row("a", "b", "c")], checkpoint)
    comet.install(python=python)
    assert comet.score([Row("a", "b", "c")], checkpoint) == [number("a", "b", "c")]


def test_a_killed_forced_install_can_still_fall_back_to_what_was_whole(whole, python, monkeypatch):
    (whole / "untouched").touch()
    process, pip = installing(python)
    process.kill()
    process.wait(20)
    os.kill(pip, signal.SIGKILL)
    assert comet.environment_state(whole) == "half-made"
    monkeypatch.setenv("FAKE_PIP", "fails")
    with pytest.raises(HeadlabError, match="pip could not install COMET"):
        comet.install(python=python)
    assert (whole / "untouched").exists()
    assert comet.environment_state(whole) == "whole"


def test_a_killed_install_can_still_fall_back_to_what_was_outdated(whole, python, monkeypatch):
    (whole / "untouched").touch()
    change_the_pins(whole)
    process, pip = installing(python)
    process.kill()
    process.wait(20)
    os.kill(pip, signal.SIGKILL)
    monkeypatch.setenv("FAKE_PIP", "fails")
    with pytest.raises(HeadlabError, match="pip could not install COMET"):
        comet.install(python=python)
    assert (whole / "untouched").exists()
    assert comet.environment_state(whole) == "outdated"


def lose_the_program(folder: Path) -> None:
    (folder / "bin" / "comet-score").unlink()


def lose_the_python(folder: Path) -> None:
    (folder / "bin" / "python").unlink()


def spoil_the_mark(folder: Path) -> None:
    (folder / "headlab-comet.json").write_text("{")


def change_the_pins(folder: Path) -> None:
    mark = json.loads((folder / "headlab-comet.json").read_text())
    mark["pins"][0] = "torch==2.0.0"
    (folder / "headlab-comet.json").write_text(json.dumps(mark))


def say_it_was_made_elsewhere(folder: Path) -> None:
    mark = json.loads((folder / "headlab-comet.json").read_text())
    (folder / "headlab-comet.json").write_text(json.dumps(mark | {"folder": "/elsewhere"}))


@pytest.mark.parametrize(
    ("damage", "state"),
    [
        (lose_the_program, "half-made"),
        (lose_the_python, "half-made"),
        (spoil_the_mark, "half-made"),
        (change_the_pins, "outdated"),
        (say_it_was_made_elsewhere, "moved"),
    ],
)
def test_a_damaged_environment_is_seen_and_made_anew(whole, python, checkpoint, damage, state):
    damage(whole)
    assert comet.environment_state(whole) == state
    with pytest.raises(HeadlabError, match=f"is {state}; 'headlab comet install' makes it anew"):
        comet.score([Row("a", "b", "c")], checkpoint)
    assert comet.environment_state(comet.install(python=python)) == "whole"


def test_a_folder_that_is_not_ours_is_never_touched(place, python, checkpoint):
    place.mkdir(parents=True)
    (place / "thesis.tex").write_text("years of work")
    for force in ([], ["--force"]):
        said = error_of(run("comet", "install", "--python", python, *force))
        assert "was not made by 'headlab comet install', and is left as it is" in said
    with pytest.raises(HeadlabError, match="was not made by"):
        comet.score([Row("a", "b", "c")], checkpoint)
    assert (place / "thesis.tex").read_text() == "years of work"
    assert [each.name for each in place.iterdir()] == ["thesis.tex"]


# --- headlab comet path -------------------------------------------------------------------------


def test_path_shows_the_environment_its_state_and_the_checkpoint(
    place, python, checkpoint, monkeypatch
):
    def shown() -> dict:
        return json.loads(run("comet", "path", "--json").stdout)

    nothing = {"checkpoint": None, "file": None, "problem": None}
    assert shown() == {"environment": str(place), "state": "absent", **nothing}
    assert "headlab comet install makes it" in " ".join(run("comet", "path").stdout.split())
    assert run("comet", "path", "--quiet").stdout.strip() == str(place)
    comet.install(python=python)
    monkeypatch.setenv("HEADLAB_COMET_CHECKPOINT", checkpoint)
    file = str(Path(checkpoint) / "checkpoints" / "model.ckpt")
    expected = {"state": "whole", "checkpoint": checkpoint, "file": file, "problem": None}
    assert shown() == {"environment": str(place), **expected}
    monkeypatch.setenv("HEADLAB_COMET_CHECKPOINT", "/nowhere/model.ckpt")
    assert "no COMET checkpoint '/nowhere/model.ckpt'" in shown()["problem"]
    assert "no COMET checkpoint" in run("comet", "path").stdout


# --- the real program ---------------------------------------------------------------------------

# Run by the environment's own Python: a random XLM-R of two layers whose tokens are characters,
# and a regression head on it, saved as COMET saves its checkpoints.
MAKE_TINY = """
import sys
from pathlib import Path

import pytorch_lightning as lightning
import torch
import yaml
from comet.models import RegressionMetric
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast

folder = Path(sys.argv[1])
encoder = str(folder / "encoder")
torch.manual_seed(0)
special = ["<s>", "<pad>", "</s>", "<unk>", "\\u2581"]
vocabulary = [(each, -3.0) for each in [*special, *map(chr, range(33, 127)), "<mask>"]]
tokens = Tokenizer(models.Unigram(vocabulary, unk_id=3))
tokens.pre_tokenizer = pre_tokenizers.Metaspace()
tokens.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
)
XLMRobertaTokenizerFast(tokenizer_object=tokens, model_max_length=64).save_pretrained(encoder)
config = XLMRobertaConfig(
    vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, max_position_embeddings=66, pad_token_id=1,
)
XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(encoder)
metric = RegressionMetric(pretrained_model=encoder, hidden_sizes=[16])
for weight in metric.parameters():
    if weight.dim() > 1:
        torch.nn.init.normal_(weight, std=0.3)  # far enough from 0 that texts differ in score
trainer = lightning.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
trainer.strategy.connect(metric)
trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt", weights_only=True)
(folder / "hparams.yaml").write_text(yaml.safe_dump(dict(metric.hparams)))
"""


@pytest.mark.slow
def test_the_real_comet_score_gives_each_row_its_own_number(tmp_path, monkeypatch, capsys):
    """Installs COMET (minutes), or takes the environment that REAL_COMET names."""
    if own := os.environ.get("REAL_COMET"):
        monkeypatch.setenv("HEADLAB_COMET", own)
    environment = comet.install()
    assert comet.environment_state(environment) == "whole"
    tiny = tmp_path / "tiny"
    python = str(environment / "bin" / "python")
    subprocess.run([python, "-c", MAKE_TINY, str(tiny)], check=True, capture_output=True)

    rows = [
        Row("The capital of France is Paris.", "Paris", "It is\nParis."),
        Row("36", "", "36"),
        Row("A cat sat on the mat", "a dog ran\r\naway", "a cat"),
    ]
    together = comet.score(rows, str(tiny), gpus=0)
    with capsys.disabled():
        print(f"\ncomet-score: {together}")
    alone = [comet.score([row], str(tiny), gpus=0)[0] for row in rows]
    # The sort by length inside, and rows of other lengths beside, move nothing but rounding.
    assert together == pytest.approx(alone, abs=5e-3)
    smallest = min(abs(a - b) for a in together for b in together if a is not b)
    assert smallest > 0.02, "the rows must differ for their order to show"
    assert comet.score(rows[::-1], str(tiny), batch_size=1) == pytest.approx(alone[::-1], abs=5e-3)
    # An empty answer is scored as "N/A", a line break as a space.
    same = [Row("36", "N/A", "36"), Row("A cat sat on the mat", "a dog ran away", "a cat")]
    assert comet.score(same, str(tiny), gpus=0) == pytest.approx(alone[1:], abs=5e-3)

    (tiny / "encoder").rename(tiny / "elsewhere")
    with pytest.raises(HeadlabError, match="cannot load the encoder"):
        comet.score(rows, str(tiny), gpus=0)
    (tiny / "checkpoints" / "model.ckpt").write_bytes(b"no pickle")
    with pytest.raises(HeadlabError, match="comet-score failed on"):
        comet.score(rows, str(tiny), gpus=0)
