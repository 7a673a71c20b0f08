"""headlab sparsify: models at several levels, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from commands import error_of, run
from tiny import save_tiny

import headlab
from headlab.errors import HeadlabError
from headlab.sparse import edges_kept
from headlab.sparse.keeping import alone
from headlab.sparse.training import Trainer, Unsound

WORDS = ["the", "cat", "sat", "on", "mary", "john", "an", "apple"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    save_tiny(folder / "m")
    draw = random.Random(0)
    lines = [" ".join(draw.choice(WORDS) for _ in range(12)) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "other.txt").write_text("\n".join(reversed(lines[:100])))
    task = [{"prompt": f"the {one} sat on", "target": " the"} for one in ("cat", "apple", "john")]
    (folder / "task.jsonl").write_text("".join(json.dumps(each) + "\n" for each in task))
    return folder


QUICK = {
    "--steps": "40",
    "--batch": "4",
    "--context": "16",
    "--gate-rate": "0.3",
    "--beta": "3",
    "--bound": "5",
    "--warmup": "2",
    "--levels": "60,20,0.001",
    "--every": "10",
    "--keep-every": "7",
}


def arguments(lab: Path, out: Path, *more: str, **changes: str) -> list[str]:
    given = {**QUICK, **{f"--{name.replace('_', '-')}": value for name, value in changes.items()}}
    asked = ["--data", str(lab / "text.txt"), "--watch", str(lab / "task.jsonl")]
    options = [part for pair in given.items() for part in pair]
    return ["sparsify", str(lab / "m"), *asked, *options, "--out", str(out), *more]


@pytest.fixture(scope="module")
def made(lab: Path) -> Path:
    other = ["--eval", str(lab / "other.txt")]
    result = run(*arguments(lab, lab / "made", "--twin", *other))
    assert result.exit_code == 0, result.output
    assert result.stdout.strip().splitlines()[-1] == str((lab / "made").resolve())
    assert "level 0.001 %: not reached; more --steps" in result.stdout
    return lab / "made"


def test_levels_final_and_twin_are_models_with_the_numbers_that_were_told(
    lab: Path, made: Path
) -> None:
    there = {path.name for path in made.iterdir()}
    logs = {"log.parquet", "log-twin.parquet", "sparsify.json", "figures"}
    assert there == {"level-60", "level-20", "final", "twin", *logs}
    rows = json.loads((made / "sparsify.json").read_text())["rows"]
    assert list(rows) == ["dense", "start", "level-60", "level-20", "final", "twin"]
    start = rows.pop("start")
    assert start["step"] == 0
    assert 0.9 < start["edges"] <= 1
    assert [row.get("in bound") for row in rows.values()] == [None, True, True, True, None]
    dense = headlab.load(lab / "m")
    from headlab.sparse.corpus import make_corpus

    held = make_corpus([str(lab / "text.txt")], dense.tokenizer, 16).held_out
    ids = torch.from_numpy(held).long()
    examples = headlab.read_examples(lab / "task.jsonl")
    for name, row in rows.items():
        model = dense if name == "dense" else headlab.load(made / name)
        assert (model.sparse is None) == (name in ("dense", "twin"))
        share = 1.0 if model.sparse is None else float(edges_kept(model, list(ids)).mean())
        assert row["edges"] == pytest.approx(share, abs=1e-9)
        logits = model(ids)[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        assert row["loss held out"] == pytest.approx(float(loss), abs=1e-5)
        theirs = dense(ids)[:, :-1].log_softmax(-1)
        kl = (theirs.exp() * (theirs - logits.log_softmax(-1))).sum(-1).mean()
        assert row["kl"] == pytest.approx(float(kl), abs=1e-5)
        task = headlab.measure(model, examples, headlab.Gates.ones(model)).values.mean()
        assert row["task"] == pytest.approx(float(task), abs=1e-5)
        assert row["loss other.txt"] > 0
    assert rows["level-60"]["edges"] < 0.75
    assert rows["final"]["edges"] < rows["level-20"]["edges"] < rows["level-60"]["edges"]
    assert rows["level-60"]["step"] < rows["level-20"]["step"] < rows["final"]["step"] == 40


def test_the_log_has_a_row_a_step_and_the_figure_its_data(made: Path) -> None:
    log, twin = (pd.read_parquet(made / name) for name in ("log.parquet", "log-twin.parquet"))
    assert log["step"].tolist() == twin["step"].tolist() == list(range(1, 41))
    assert {"kl", "loss", "dense_loss", "penalty", "edges", "beta", "constraint"} <= set(log)
    assert log["beta"].iloc[0] == 3
    assert set(twin) == {"loss", "step", "norm", "rate"}
    assert log["dense_loss"].iloc[0] == pytest.approx(twin["loss"].iloc[0], abs=1e-5)
    for ending in ("png", "pdf", "csv"):
        assert (made / f"figures/training.{ending}").stat().st_size > 500
    table = pd.read_csv(made / "figures/training.csv")
    assert len(table) == 40
    assert table["held out: kl"].notna().sum() >= 4


def test_the_card_tells_what_it_is_worth_and_that_plain_transformers_is_dense(made: Path) -> None:
    card = (made / "level-20/README.md").read_text()
    rows = json.loads((made / "sparsify.json").read_text())["rows"]
    assert "Plain transformers knows nothing of the gates and loads a dense model" in card
    assert f"{100 * rows['level-20']['edges']:.2f} %" in card
    assert f"{rows['level-20']['kl']:.4f}" in card
    assert "gate_rate: 0.3" in card
    assert str(made) not in card
    config = json.loads((made / "level-20/config.json").read_text())["headlab_sparse"]
    assert config["measured"]["edges"] == pytest.approx(rows["level-20"]["edges"])
    assert "map" not in config["measured"]
    assert "dense twin" in (made / "twin/README.md").read_text()
    assert "headlab_sparse" not in json.loads((made / "twin/config.json").read_text())


def test_what_is_done_is_not_done_again(lab: Path, made: Path, monkeypatch) -> None:
    monkeypatch.setattr(Trainer, "step", lambda self: pytest.fail("trained again"))
    before = (made / "final/model.safetensors").stat().st_mtime_ns
    told = json.loads(
        run(*arguments(lab, made, "--twin", "--eval", str(lab / "other.txt"), "--json")).stdout
    )
    assert list(told["rows"]) == ["dense", "start", "level-60", "level-20", "final", "twin"]
    assert (made / "final/model.safetensors").stat().st_mtime_ns == before


def test_a_twin_may_come_later(lab: Path, made: Path, tmp_path: Path) -> None:
    assert (
        run(*arguments(lab, tmp_path / "o", "-q", "--eval", str(lab / "other.txt"))).exit_code == 0
    )
    assert not (tmp_path / "o/twin").exists()
    first = (tmp_path / "o/final/model.safetensors").read_bytes()
    more = ["-q", "--twin", "--eval", str(lab / "other.txt")]
    assert run(*arguments(lab, tmp_path / "o", *more)).exit_code == 0
    assert (tmp_path / "o/final/model.safetensors").read_bytes() == first
    for name in ("final", "twin"):
        own, other = (
            (folder / name / "model.safetensors").read_bytes() for folder in (tmp_path / "o", made)
        )
        assert own == other


@pytest.mark.parametrize(("first", "then"), [([], ["--twin-only"]), (["--twin-only"], [])])
def test_one_training_leaves_the_states_of_another_alone(
    first: list[str], then: list[str], lab: Path, tmp_path: Path, monkeypatch
) -> None:
    step, out = Trainer.step, tmp_path / "o"

    def killed(self):  # type: ignore[no-untyped-def]
        if self.state.step == 25:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Trainer, "step", killed)
    assert run(*arguments(lab, out, *first)).exit_code == 130
    kept = sorted(path.name for path in (out / "state").glob("*-*"))
    assert kept
    monkeypatch.setattr(Trainer, "step", step)
    for _ in range(2):  # the second time it is done already
        assert run(*arguments(lab, out, *then)).exit_code == 0
        assert sorted(path.name for path in (out / "state").glob("*-*")) == kept
    result = run(*arguments(lab, out, *first))
    assert result.exit_code == 0
    assert "going on after step 21 of 40" in result.stderr
    assert not (out / "state").exists()


def test_states_of_a_training_that_is_over_are_removed_later_if_not_at_once(
    lab: Path, made: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o"
    shutil.copytree(made, out)
    (out / "state/sparse-0000039").mkdir(parents=True)
    command = arguments(lab, out, "--twin", "--eval", str(lab / "other.txt"), "-q")
    assert run(*command).exit_code == 0
    assert not (out / "state").exists()


def test_both_kinds_of_twin_are_not_one(lab: Path, tmp_path: Path) -> None:
    told = error_of(run(*arguments(lab, tmp_path / "o", "--twin", "--twin-only")))
    assert "give one" in told
    assert not (tmp_path / "o").exists()


def test_a_twin_may_be_made_alone_in_a_folder_of_its_own(
    lab: Path, made: Path, tmp_path: Path
) -> None:
    command = arguments(lab, tmp_path / "t", "--twin-only", "--eval", str(lab / "other.txt"))
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "not reached" not in result.stdout
    names = {path.name for path in (tmp_path / "t").iterdir()}
    assert names == {"twin", "log-twin.parquet", "sparsify.json"}
    own, other = (
        (folder / "twin/model.safetensors").read_bytes() for folder in (tmp_path / "t", made)
    )
    assert own == other
    rows = [
        json.loads((each / "sparsify.json").read_text())["rows"] for each in (tmp_path / "t", made)
    ]
    assert list(rows[0]) == ["dense", "twin"]
    assert rows[0]["twin"] == rows[1]["twin"]
    assert run(*command, "-q").exit_code == 0  # what is done stays


@pytest.mark.parametrize("kind", ["sparse", "twin"])
def test_a_killed_training_goes_on_to_the_same_numbers(
    lab: Path, made: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "killed"
    command = arguments(lab, out, "--twin", "--eval", str(lab / "other.txt"), "-q")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "headlab", *command],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    limit = time.monotonic() + 90
    while not list(out.glob(f"state/{kind}-*")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert list(out.glob(f"state/{kind}-*")), "it was over before it was killed"
    result = run(*command)
    assert result.exit_code == 0, result.output
    for name in ("log.parquet", "log-twin.parquet"):
        again, whole = (pd.read_parquet(folder / name) for folder in (out, made))
        assert (again - whole).abs().max().max() <= 1e-6  # on one machine mostly to the bit
    rows = [json.loads((folder / "sparsify.json").read_text())["rows"] for folder in (out, made)]
    assert rows[0].keys() == rows[1].keys()
    assert rows[0]["final"]["kl"] == pytest.approx(rows[1]["final"]["kl"], abs=1e-6)
    assert not (out / "state").exists()
    assert not list(out.rglob(".*"))


def test_a_folder_with_another_training_is_left_alone(
    lab: Path, made: Path, tmp_path: Path
) -> None:
    more = ["--eval", str(lab / "other.txt")]
    told = error_of(run(*arguments(lab, made, *more, "-q", seed="1")))
    assert "other settings (seed 1, there 0)" in told
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("dear")
    told = error_of(run(*arguments(lab, tmp_path / "full", "-q")))
    assert "is there already and is no training" in told
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]
    unfinished = tmp_path / "unfinished"
    break_at(lab, unfinished, 20)
    told = error_of(run(*arguments(lab, unfinished, "-q", batch="5", rate="0.01")))
    assert "other settings (batch 5, there 4, rate 0.01, there 0.0001)" in told


def break_at(lab: Path, out: Path, step: int, error: BaseException | None = None):
    """A training that ends at a step."""
    whole = Trainer.step

    def stop(self: Trainer):
        if self.state.step == step:
            raise error or KeyboardInterrupt
        return whole(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        return run(*arguments(lab, out, "-q"))


def test_interrupted_it_says_how_to_go_on(lab: Path, made: Path, tmp_path: Path) -> None:
    result = break_at(lab, tmp_path / "o", 20)
    assert result.exit_code == 130
    assert "the same command goes on from the last state, if one was kept" in result.stderr
    assert len(list((tmp_path / "o/state").glob("sparse-*"))) == 2  # the last, and one before
    assert not (tmp_path / "o/sparsify.json").exists()
    assert run(*arguments(lab, tmp_path / "o", "-q")).exit_code == 0
    again, whole = (pd.read_parquet(folder / "log.parquet") for folder in (tmp_path / "o", made))
    assert (again - whole).abs().max().max() <= 1e-6


def test_ctrl_c_finishes_the_step_and_keeps_it(lab: Path, made: Path, tmp_path: Path) -> None:
    whole = Trainer.step

    def ask(self: Trainer):
        if self.state.step == 16:
            signal.raise_signal(signal.SIGINT)
        return whole(self)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", ask)
            result = run(*arguments(lab, tmp_path / "o", keep_every="1000"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert "stopping after this step" in result.stderr
    assert "the same command goes on after step 17" in result.stderr
    again = run(*arguments(lab, tmp_path / "o", keep_every="1000"))
    assert "sparse: going on after step 17 of 40" in again.stderr
    again, whole = (pd.read_parquet(folder / "log.parquet") for folder in (tmp_path / "o", made))
    assert (again - whole).abs().max().max() <= 1e-6


def test_a_level_that_the_start_has_is_none(lab: Path, tmp_path: Path) -> None:
    given = {"levels": "99.5,40", "start": "0.5"}
    result = run(*arguments(lab, tmp_path / "o", **given))
    assert "level 99.5 %: none, since the start (--start) leaves" in result.stdout
    assert not (tmp_path / "o/level-99.5").exists()
    assert (tmp_path / "o/level-40").exists()


def test_a_level_outside_the_bound_says_so(lab: Path, tmp_path: Path) -> None:
    result = run(*arguments(lab, tmp_path / "o", bound="0.0001", dual="1e-9", levels="60"))
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("level-60")]
    assert row.split()[-1] == "no"
    card = (tmp_path / "o/level-60/README.md").read_text()
    assert "The bound on kl, 0.0001 nats, is **not kept**." in card


def test_a_loss_that_is_no_number_leaves_the_last_good_model(lab: Path, tmp_path: Path) -> None:
    broken = Unsound("the loss is not a number at step 21")
    told = error_of(break_at(lab, tmp_path / "o", 20, broken))
    step = int(told.split("the model of step ")[1].split()[0])
    assert 14 <= step <= 20  # of the last state: every 7 steps, and at levels
    assert "try a smaller --rate" in told
    model = headlab.load(tmp_path / "o/last-good")
    assert model.sparse is not None
    assert bool(model("the cat").isfinite().all())
    assert not (tmp_path / "o/sparsify.json").exists()
    assert len(pd.read_parquet(tmp_path / "o/log.parquet")) == 20  # what tells why
    assert (tmp_path / "o/figures/training.png").is_file()
    none = error_of(break_at(lab, tmp_path / "p", 0, broken))
    assert "no state that is good was kept yet" in none


def test_a_state_that_had_run_away_already_is_not_good(lab: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    wild = {"rate": "3", "keep_every": "3", "warmup": "0", "levels": "99"}
    told = error_of(run(*arguments(lab, out, "-q", **wild)))
    assert "runs away" in told or "not a number" in told
    assert "no state that is good was kept yet" in told
    assert not (out / "last-good").exists()
    assert not (out / "level-99").exists()  # it lost its edges with everything else
    log = pd.read_parquet(out / "log.parquet")
    assert len(log) >= 5
    assert log["edges"].min() < 0.99


def test_of_a_twin_the_last_good_model_is_dense(lab: Path, tmp_path: Path) -> None:
    whole = Trainer.step

    def stop(self: Trainer):
        if self.gating is None and self.state.step == 10:
            raise Unsound("the loss is not a number at step 11")
        return whole(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        told = error_of(run(*arguments(lab, tmp_path / "o", "-q", "--twin")))
    assert "the model of step 7" in told
    assert headlab.load(tmp_path / "o/last-good").sparse is None
    card = (tmp_path / "o/last-good/README.md").read_text()
    assert "dense twin" in card
    assert "sparse-attention" not in card
    assert run(*arguments(lab, tmp_path / "o", "-q", "--twin")).exit_code == 0  # it goes on


def test_other_errors_leave_the_state_to_go_on_from(lab: Path, made: Path, tmp_path: Path) -> None:
    full = HeadlabError("m does not fit into memory")
    assert error_of(break_at(lab, tmp_path / "o", 20, full)).endswith("does not fit into memory")
    assert not (tmp_path / "o/last-good").exists()
    assert run(*arguments(lab, tmp_path / "o", "-q")).exit_code == 0
    again, whole = (pd.read_parquet(folder / "log.parquet") for folder in (tmp_path / "o", made))
    assert (again - whole).abs().max().max() <= 1e-6


def test_killed_while_the_first_level_is_saved_it_goes_on(
    lab: Path, made: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o"
    code = (
        "import os, sys\n"
        "from transformers import PreTrainedModel\n"
        "PreTrainedModel.save_pretrained = lambda *_, **__: os._exit(9)\n"
        "from headlab.__main__ import main\n"
        "sys.argv = ['headlab', *sys.argv[1:]]\n"
        "main()\n"
    )
    asked = arguments(lab, out, "-q", keep_every="1000")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code, *asked], env=env, capture_output=True)
    assert ended.returncode == 9, ended.stderr
    assert (out / ".level-60-part").is_dir()
    assert run(*asked).exit_code == 0
    assert not list(out.rglob(".*"))
    again, whole = (pd.read_parquet(folder / "log.parquet") for folder in (out, made))
    assert (again - whole).abs().max().max() <= 1e-6


def test_two_processes_do_not_train_in_one_folder(lab: Path, tmp_path: Path) -> None:
    break_at(lab, tmp_path / "o", 20)
    with alone(tmp_path / "o/state"):
        told = error_of(run(*arguments(lab, tmp_path / "o", "-q")))
    assert "another process is training in" in told


def test_a_sparse_model_is_not_made_sparse_again(lab: Path, made: Path, tmp_path: Path) -> None:
    data = ["--data", str(lab / "text.txt"), "--out", str(tmp_path / "o"), "-q"]
    told = error_of(run("sparsify", str(made / "level-60"), *data))
    assert "is sparse already; give the dense model it came from" in told
    assert not (tmp_path / "o").exists()


def test_adapters_give_a_plain_folder(lab: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    out = tmp_path / "o"
    assert run(*arguments(lab, out, "-q", lora="2", rate="0.01", steps="12")).exit_code == 0
    model = headlab.load(out / "final")
    rows = json.loads((out / "sparsify.json").read_text())["rows"]
    examples = headlab.read_examples(lab / "task.jsonl")
    task = headlab.measure(model, examples, headlab.Gates.ones(model)).values.mean()
    assert rows["final"]["task"] == pytest.approx(float(task), abs=1e-4)
    assert not [name for name in model.hf.state_dict() if "lora" in name]
    dense = headlab.load(lab / "m")
    moved = (
        model.hf.model.layers[0].mlp.up_proj.weight - dense.hf.model.layers[0].mlp.up_proj.weight
    )
    assert 0 < torch.linalg.matrix_rank(moved) <= 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--levels", "x"], "levels are numbers like 30,10,3"),
        (["--constraint", "l2"], "kl or loss"),
        (["--data", "none.txt"], "no file none.txt"),
        (["--attn", "eager"], "leave --attn out"),
        (["--device-map", "auto"], "leave --device-map out"),
        (["--dtype", "float8"], "dtype is one of"),
        (["--dtype", "bfloat16"], "on a CPU all weights are trained in float32"),
        (["--dtype", "float16"], "too little room"),
        (["--context", "1000"], "positions for 64 tokens"),
        (["--context", "64", "--data", "short.txt"], "two contexts of 64"),
        (["--watch", "ioy"], "did you mean 'ioi'"),
    ],
)
def test_wrong_input_is_one_sentence_and_leaves_nothing(
    lab: Path, tmp_path: Path, more: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short.txt").write_text("the cat")
    monkeypatch.chdir(tmp_path)
    given = arguments(lab, tmp_path / "o", "-q")
    if more[-2] == "--data":  # it can be given again, which adds to it
        del given[2:4]
    assert says in error_of(run(*given, *more))
    assert not (tmp_path / "o").exists()


def test_models_without_the_seam_or_a_tokenizer_are_told(lab: Path, tmp_path: Path) -> None:
    save_tiny(tmp_path / "j", "gptj")
    data = ["--data", str(lab / "text.txt"), "--out", str(tmp_path / "o"), "-q"]
    told = error_of(
        run("sparsify", str(tmp_path / "j"), *data, "--context", "16", "--watch", "none")
    )
    assert "does not use transformers' attention functions" in told
    for path in (tmp_path / "j").glob("tokenizer*"):
        path.unlink()
    assert "has no tokenizer" in error_of(run("sparsify", str(tmp_path / "j"), *data))
    assert not (tmp_path / "o").exists()


def test_a_full_disk_leaves_no_half_model(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headlab.sparse.files.safetensors.torch.save_file", full)
    monkeypatch.setattr("headlab.sparse.keeping.safetensors.torch.save_file", full)
    told = error_of(run(*arguments(lab, tmp_path / "o", "-q")))
    assert "No space left on device" in told
    files = [path.name for path in (tmp_path / "o").rglob("*") if path.is_file()]
    assert files == [".lock"]
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "o", ignore_errors=True)


def test_help_has_an_example() -> None:
    told = run("sparsify", "--help").stdout
    assert "Example: headlab sparsify smollm2" in told
