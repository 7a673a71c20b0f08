"""The benchmarks run, and notice when another library does another work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from tiny import lettered, worded

import headlab
from headlab import HeadlabError
from headlab.proofs import check

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def race(monkeypatch):
    """bench/race.py, its small model made tiny."""
    if not BENCH.exists():
        pytest.skip("bench is not part of a source archive")
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    import common
    import race

    tiny = hf.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    monkeypatch.setitem(common.SHAPES, "small", lambda: tiny)
    monkeypatch.setattr(race, "matrix_rate", lambda *_: 1e9)
    monkeypatch.setattr(race, "bandwidth", lambda *_: 1e9)
    yield race
    for name in set(sys.modules) - known:  # "common" may be another's name
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run(race, monkeypatch, *options: str) -> None:
    line = ["race.py", "--device", "cpu", "--repeats", "1", "--peers", "hooks"]
    line += [] if "--work" in options else ["--small"]
    monkeypatch.setattr(sys, "argv", [*line, *options])
    race.main()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_work_is_raced_and_agrees_with_hooks(race, dtype, monkeypatch, tmp_path, capsys):
    out = tmp_path / "race.json"
    run(race, monkeypatch, "--dtype", dtype, "--out", str(out))
    found = json.loads(out.read_text())
    wanted = "ablate ablate-shared patch patch-late attribute keep fit generate"
    assert list(found) == wanted.split()
    for row in found.values():
        ours, theirs, *batched = row["ways"]
        assert (ours["way"], theirs["way"]) == ("headlab", "hooks")
        sweeps = row in [found[name] for name in wanted.split()[:4]]
        assert [each["way"] for each in batched] == (
            ["hooks, 8 heads a pass, last logits"] if sweeps else []
        )
        assert theirs["ratio"] == pytest.approx(theirs["seconds"] / ours["seconds"])
        assert row["floor"] > 0
    assert found["patch-late"]["floor"] == pytest.approx(found["patch"]["floor"] / 2)
    saved = 7 / 16  # 7 of 8 prompts need not run the half that they all begin with
    floor = found["ablate"]["floor"] * (1 - saved)
    assert found["ablate-shared"]["floor"] == pytest.approx(floor)
    assert found["fit"]["ways"][1]["scaled"] == 10
    assert "floors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rows", "nosuch"], "no row 'nosuch'; there are ablate, ablate-shared, patch"),
        (["--work", "keep", "--size", "prompts=4,lengthy=8"], "'lengthy=8' is no size of keep"),
        (["--work", "keep", "--size", "prompts=0,length=8"], "'prompts=0' is no size of keep"),
        (["--work", "keep", "--size", "prompts=4"], "the size has no length"),
        (["--peers", "hooks,nosuch"], "no peer 'nosuch'; there are hooks"),
        (["--repeats", "0"], "at least one run"),
        (["--out", __file__], "is no JSON"),
        (["--out", "/tmp"], "/tmp is a folder; give a file"),
        (["--device", "gpu"], "no device 'gpu' here"),
        (["--work", "keep", "--small"], "--work comes instead of --rows and --small"),
    ],
)
def test_what_cannot_be_raced_is_one_sentence_before_anything_runs(
    race, options, says, monkeypatch, capsys
):
    monkeypatch.setattr(race, "matrix_rate", lambda *_: 1 / 0)
    with pytest.raises(HeadlabError, match=says):
        run(race, monkeypatch, *options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["patch", "--size", "prompts=2,length=4,alike=3"], "have at most 2 alike"),
        (["ablate", "--size", "prompts=2,length=4,shared=5"], "share at most 4"),
        (["fit", "--size", "prompts=2,length=4,target=4"], "at most 3 are the target"),
    ],
)
def test_sizes_that_leave_nothing_are_one_sentence(race, options, says, monkeypatch):
    with pytest.raises(HeadlabError, match=says):
        run(race, monkeypatch, "--work", *options, "--shape", "small")


def test_rows_for_a_gpu_are_not_begun_on_a_cpu(race, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["race.py", "--device", "cpu"])
    with pytest.raises(HeadlabError, match="for a GPU; --small has some for a CPU"):
        race.main()
    monkeypatch.setattr("os.sysconf", lambda _: 1024)  # 1 MiB in all
    monkeypatch.setattr(sys, "argv", ["race.py", "--device", "cpu", "--rows", "ablate-8b"])
    with pytest.raises(HeadlabError, match=r"weights of llama-3\.1-8b take 30 GiB in float32"):
        race.main()


def test_results_of_different_sizes_stand_beside_each_other(race, monkeypatch, tmp_path):
    out = tmp_path / "race.json"
    for n in (2, 3):
        size = f"prompts={n},length=4,masks=2,new=2,sample=9"
        asked = ["generate", "--shape", "small", "--size", size, "--out", str(out)]
        run(race, monkeypatch, "--work", *asked)
    found = json.loads(out.read_text())
    assert [row["size"]["prompts"] for row in found.values()] == [2, 3]
    for row in found.values():
        assert row["ways"][1]["scaled"] == 1, "there are no more than two masks to write under"
        assert row["machine"]["versions"]["torch"] == torch.__version__
    out.write_text("[]")
    with pytest.raises(HeadlabError, match="has no results by name"):
        run(race, monkeypatch, "--out", str(out))


def test_networks_of_another_layout_are_listed_as_such(race, monkeypatch, capsys):
    import common

    other = hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    monkeypatch.setitem(common.SHAPES, "gpt2", lambda: other)
    asked = ["ablate", "--shape", "gpt2", "--size", "prompts=2,length=4"]
    run(race, monkeypatch, "--work", *asked)
    assert "cannot: it is asked here for networks of Llama's layout only" in capsys.readouterr().out


def test_our_own_breakdown_is_no_row_without_us(race, monkeypatch):
    from works import Ablate

    monkeypatch.setattr(Ablate, "ours", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(race, monkeypatch, "--rows", "ablate")


@pytest.mark.parametrize(
    ("task", "made", "works"),
    [
        ("ioi", worded, ("patch", "keep", "attribute")),
        ("antonym-instruction", lettered, ("off", "keep", "fit")),
    ],
)
def test_what_beginnings_save_is_shown_and_their_numbers_are_compared(
    race, task, made, works, monkeypatch, capsys
):
    import beginnings

    model = made()
    check(model)
    monkeypatch.setattr(headlab, "load", lambda name: model)
    asked = ["--tasks", task, "--prompts", "3", "--heads", "4", "--masks", "2"]
    monkeypatch.setattr(sys, "argv", ["beginnings.py", *asked, "--repeats", "1"])
    beginnings.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[task, work] for work in works]
    monkeypatch.setitem(beginnings._ALLOWED, torch.float32, -1.0)
    with pytest.raises(SystemExit, match="numbers differ"):
        beginnings.main()


def test_another_work_is_noticed(race, monkeypatch, capsys):
    from peers.hooks import Hooks

    ablate = Hooks.ablate
    monkeypatch.setattr(
        Hooks, "ablate", lambda self, ids, targets, heads: ablate(self, ids, targets, heads[::-1])
    )
    with pytest.raises(SystemExit, match="numbers differ"):
        run(race, monkeypatch, "--rows", "ablate")


def test_a_library_that_is_missing_or_breaks_down_is_listed(race, monkeypatch, capsys):
    import peers
    from peers.hooks import Hooks

    def broken(*_):
        raise KeyError("no such module")

    monkeypatch.setitem(peers.PEERS, "lens", ("lens", "Lens", "not_installed_anywhere"))

    monkeypatch.setattr(Hooks, "patch", broken)
    run(race, monkeypatch, "--rows", "patch", "--peers", "hooks,lens")
    shown = capsys.readouterr().out
    assert "cannot: breaks down: KeyError" in shown
    assert "not_installed_anywhere is not installed: make bench does it" in shown


def test_what_screening_saves_and_misses_is_counted(race, monkeypatch, tmp_path, capsys):
    import screening

    monkeypatch.setattr("headlab.screening.CHECKED", 2)
    out = tmp_path / "screening.json"
    asked = ["--shape", "small", "--prompts", "3", "--length", "6", "--exact", "3,16"]
    monkeypatch.setattr(sys, "argv", ["screening.py", *asked, "--device", "cpu", "--out", str(out)])
    screening.main()
    found = json.loads(out.read_text())["small"]
    assert list(found["exact"]) == ["3"], "with 16 all heads are run"
    row = found["exact"]["3"]
    assert row["run"] == 5
    assert 1 <= row["ten largest"] <= 5
    assert 2 <= row["first not run"] <= 6 or row["ten largest"] < 3
    assert 0 < row["its share of the largest"] <= 1
    assert "all 16 heads" in capsys.readouterr().out
