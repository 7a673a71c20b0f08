"""COMET by its own program, `comet-score`, in an environment of its own.

The package `unbabel-comet` needs transformers < 5 and numpy < 2 and so cannot be installed beside
Headlab. `install` makes a virtual environment for it, and `score` calls the program there.

A COMET checkpoint is a pickle, and reading a pickle can run code that lies in it. This is the only
place in Headlab where one is read: on request, by `comet-score`, in that program's own process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from filelock import FileLock, Timeout

from headlab.embedded import cache_folder
from headlab.errors import HeadlabError
from headlab.files import require_folder, write_whole

VERSION = "2.2.7"
HUB_ID = "Unbabel/wmt22-comet-da"
# torch by its exact pin: pip may have that very build at hand. COMET's dependencies import
# pkg_resources, which setuptools 81 has no more.
PINS = ("torch==2.13.0", f"unbabel-comet=={VERSION}", "setuptools<81")
PYTHONS = ((3, 10), (3, 12))  # torch needs 3.10; numpy < 2 has no wheels after 3.12
EMPTY = "N/A"  # what stands for an empty text

_MARK = (
    "headlab-comet.json"  # there from the start; says that the environment is whole only at the end
)
_FILES = ("checkpoints/model.ckpt", "hparams.yaml")

State = Literal["whole", "absent", "half-made", "outdated", "moved", "foreign"]


class Row(NamedTuple):
    """One answer to be scored. COMET calls the three src, mt and ref."""

    gold: str
    prediction: str
    unmasked: str


def environment_folder() -> Path:
    """Where COMET's environment is or would be: $HEADLAB_COMET, or in Headlab's cache."""
    own = os.environ.get("HEADLAB_COMET")
    folder = Path(own).expanduser() if own else cache_folder() / f"comet-{VERSION}"
    return folder.resolve()


def environment_state(folder: Path) -> State:
    """Whole, absent, half-made, outdated (other pins), moved (its programs name the folder they
    were made in), or foreign: not made by `install`."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return "absent"
    if not (folder / _MARK).exists():
        return "foreign"
    try:
        mark = json.loads((folder / _MARK).read_text())
        made, pins, whole = mark["folder"], mark["pins"], mark["whole"]
    except (OSError, ValueError, KeyError, TypeError):
        return "half-made"
    if not whole or not (_program(folder, "python").exists() and _program(folder).exists()):
        return "half-made"
    if pins != list(PINS):
        return "outdated"
    return "whole" if made == str(folder) else "moved"


def install(
    force: bool = False, python: str | None = None, tell: Callable[[str], None] | None = None
) -> Path:
    """Make COMET's environment unless it is there and whole; returns its folder.

    `python` is the interpreter to make it with (default: this one); `tell` is called with every
    line that pip prints. If it fails or is interrupted, what was made is removed, and an
    environment that was there before is there again.
    """
    folder, python, tell = environment_folder(), python or sys.executable, tell or _ignore
    if environment_state(folder) == "foreign":
        raise HeadlabError(
            f"{folder} was not made by 'headlab comet install', and is left as it is; "
            "set HEADLAB_COMET to another folder"
        )
    if environment_state(folder) == "whole" and not force:
        return folder
    _require_python(python)
    require_folder(folder.parent)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0), _instead_of(folder):
            _fill(folder, python, tell)
    except Timeout:
        raise HeadlabError(
            f"another 'headlab comet install' is making {folder}; wait until it has ended"
        ) from None
    return folder


def default_checkpoint() -> str | None:
    """What to score with if nothing is named: $HEADLAB_COMET_CHECKPOINT, or wmt22-comet-da where
    the hub cache holds it. None: there is none here, and a caller takes a substitute, by its name.
    """
    if own := os.environ.get("HEADLAB_COMET_CHECKPOINT"):
        return own
    return HUB_ID if _cached(HUB_ID) else None


def local_checkpoint(name: str) -> Path | None:
    """The file of a checkpoint named by path or hub id; None if it would have to be downloaded."""
    path = Path(os.path.abspath(Path(name).expanduser()))  # not resolved: the hub cache has links
    if path.is_dir():
        inside = (path / _FILES[0], path / "model.ckpt")
        path = next((file for file in inside if file.is_file()), inside[0])
    if path.is_file() and path.suffix == ".ckpt":
        if not (path.parents[1] / _FILES[1]).is_file():
            raise HeadlabError(
                f"{path} has no hparams.yaml one folder above; a COMET checkpoint is a folder with "
                "hparams.yaml and checkpoints/model.ckpt"
            )
        return path
    if not _is_hub_id(name) or os.path.lexists(Path(name).expanduser()):
        raise HeadlabError(
            f"no COMET checkpoint {name!r}; give a folder with hparams.yaml and "
            f"checkpoints/model.ckpt, that .ckpt file, or a hub id such as {HUB_ID}"
        )
    return _cached(name)


def score(
    rows: Sequence[Row | tuple[str, str, str]],
    checkpoint: str,
    batch_size: int = 16,
    gpus: int = 1,
) -> list[float]:
    """COMET of every row (gold, prediction, unmasked), in the order of the rows.

    `checkpoint` is a hub id, downloaded if it is not in the hub cache, or a local path. `gpus=1`
    takes a GPU if there is one, else the CPU; 0 is the CPU. The program computes in half
    precision, so the third decimal of a score can depend on the rows beside it.

        score([Row("Paris", "Paris is it", "Paris")], "Unbabel/wmt22-comet-da")
    """
    if batch_size < 1 or gpus < 0:
        raise HeadlabError(
            f"a batch has 1 row or more and gpus is 0 or more; given {batch_size} and {gpus}"
        )
    if not rows:
        return []
    program = require_environment()
    path = local_checkpoint(checkpoint) or _download(checkpoint)
    texts = [tuple(_one_line(text) for text in row) for row in rows]
    with tempfile.TemporaryDirectory(prefix="headlab-comet-") as room:
        files = [Path(room, name) for name in ("src.txt", "mt.txt", "ref.txt")]
        for file, column in zip(files, zip(*texts, strict=True), strict=True):
            file.write_bytes("".join(f"{line}\n" for line in column).encode())
        scores = Path(room, "scores.json")
        src, mt, ref = map(str, files)
        command = [str(program), "-s", src, "-t", mt, "-r", ref, "--model", str(path)]
        command += ["--batch_size", str(batch_size), "--gpus", str(gpus)]
        command += ["--to_json", str(scores), "--only_system", "--quiet"]
        status, lines = _run(command)
        if status != 0:
            raise HeadlabError(_why(status, lines, checkpoint))
        return _read_scores(scores, texts)


def _fill(folder: Path, python: str, tell: Callable[[str], None]) -> None:
    _write_mark(folder, whole=False)
    tell(f"making {folder}")
    status, lines = _run([python, "-m", "venv", str(folder)])
    if status != 0:
        raise HeadlabError(
            f"{python} cannot make a virtual environment: {_last(lines)}; install its venv module, "
            "or name another Python with --python"
        )
    own = str(_program(folder, "python"))
    status, lines = _run([own, "-m", "pip", "install", *PINS], tell)
    if status != 0:
        raise HeadlabError(
            f"pip could not install COMET: {_last(lines)}; nothing half-made was left, "
            "so run 'headlab comet install' again when that is mended"
        )
    tell("trying comet-score")
    status, lines = _run([str(_program(folder)), "--help"])
    if status != 0:
        raise HeadlabError(
            f"COMET was installed, but its comet-score does not start: {_last(lines)}; "
            "it was removed again; another Python (--python) may do"
        )
    _write_mark(folder, whole=True)


def _write_mark(folder: Path, whole: bool) -> None:
    mark = {"folder": str(folder), "pins": PINS, "whole": whole}
    write_whole(folder / _MARK, json.dumps(mark, indent=1))


@contextlib.contextmanager
def _instead_of(folder: Path) -> Iterator[None]:
    """`folder`, empty, to be filled. If that fails: gone, and what stood there is back.

    The programs of an environment name the folder it was made in, so the new one cannot be made
    elsewhere and moved in. It is the old one that moves, and back to the place its programs name.
    """
    old = folder.with_name(f".{folder.name}-old")
    if environment_state(folder) == "half-made":  # of a killed install; what it moved may be there
        shutil.rmtree(folder)
    elif environment_state(folder) != "absent":
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    elif folder.exists():
        folder.rmdir()
    try:
        folder.mkdir()
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if old.exists():
            with contextlib.suppress(OSError):  # what went wrong first is what the user reads
                os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _require_python(python: str) -> None:
    asked = "import sys; print(*sys.version_info[:2])"
    try:
        status, lines = _run([python, "-c", asked])
        version = tuple(int(number) for number in lines[-1].split())
    except (OSError, IndexError, ValueError):
        status, version = 1, ()
    if status != 0:
        raise HeadlabError(f"{python} is not a Python; give one with --python, e.g. python3.12")
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        low, high, given = (".".join(map(str, each)) for each in (*PYTHONS, version))
        raise HeadlabError(
            f"COMET {VERSION} needs Python {low} to {high}, and {python} is {given}; name another: "
            "headlab comet install --python python3.12"
        )


def require_environment() -> Path:
    """The comet-score program, or a sentence that says why there is none."""
    folder = environment_folder()
    state = environment_state(folder)
    if state == "absent":
        raise HeadlabError(f"COMET is not installed in {folder}; run 'headlab comet install'")
    if state == "foreign":
        raise HeadlabError(
            f"{folder} was not made by 'headlab comet install'; set HEADLAB_COMET to another "
            "folder and run it"
        )
    if state != "whole":
        raise HeadlabError(
            f"COMET's environment {folder} is {state}; 'headlab comet install' makes it anew"
        )
    return _program(folder)


def _program(folder: Path, name: str = "comet-score") -> Path:
    if os.name == "nt":
        return folder / "Scripts" / f"{name}.exe"
    return folder / "bin" / name


def _run(command: list[str], tell: Callable[[str], None] | None = None) -> tuple[int, list[str]]:
    """The exit status and last lines of a program, which ends when we are interrupted."""
    ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}  # would lead it to our packages
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    environ |= {
        "PYTHONNOUSERSITE": "1",
        "PYTHONUTF8": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    lines: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line := line.strip():
                    lines.append(line)
                    if tell:
                        tell(line)
        except BaseException:
            process.kill()
            raise
    return process.returncode, list(lines)


def _last(lines: list[str]) -> str:
    """The line that says what went wrong: the last error, or else the last line."""
    errors = [line for line in lines if re.match(r"(?i)(error:|[\w.]*(error|exception)\b)", line)]
    text = (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: ")
    return text if len(text) <= 300 else text[:300] + " ..."


def _why(status: int, lines: list[str], checkpoint: str) -> str:
    """One sentence for a comet-score that failed."""
    text = "\n".join(lines)
    if status < 0:
        return (
            f"comet-score was killed (signal {-status}), perhaps for want of memory; "
            "try a smaller batch size"
        )
    if "out of memory" in text:
        return (
            "comet-score had not enough memory on the GPU; try a smaller batch size, or gpus=0, "
            "the CPU"
        )
    if re.search(r"comet.encoders.+ in from_pretrained", text):  # what it says then misleads
        return (
            f"comet-score cannot load the encoder that {checkpoint} names as its pretrained_model: "
            "it is not here and the hub does not give it; run it once with a network, or take a "
            "checkpoint whose encoder is here"
        )
    return (
        f"comet-score failed on {checkpoint}: {_last(lines)}; if the checkpoint is sound, "
        "'headlab comet install --force' makes COMET's environment anew"
    )


def _one_line(text: str) -> str:
    """What comet-score reads as one segment: it takes every line break for the next row."""
    return " ".join(text.split()).encode(errors="replace").decode() or EMPTY


def _read_scores(path: Path, texts: list[tuple[str, ...]]) -> list[float]:
    try:
        (given,) = json.loads(path.read_text(encoding="utf-8")).values()
        read = [(each["src"], each["mt"], each["ref"]) for each in given]
        scores = [float(each["COMET"]) for each in given]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadlabError(
            "comet-score wrote no scores that can be read; 'headlab comet install --force' makes "
            "COMET's environment anew"
        ) from error
    if read != texts:  # it repeats what it has scored: each number is that of its own row
        raise HeadlabError(
            f"comet-score gave back other rows ({len(read)}) than the {len(texts)} it was given, "
            "or not in their order; 'headlab comet install --force' makes its environment anew"
        )
    for number, value in enumerate(scores, start=1):
        if not math.isfinite(value):
            raise HeadlabError(
                f"comet-score gave {value} for row {number}; the checkpoint may be damaged"
            )
    return scores


def _is_hub_id(name: str) -> bool:
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)) and not name.endswith(".ckpt")


def _cached(hub_id: str) -> Path | None:
    """The checkpoint's file in the hub cache, if all that it needs is there."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(hub_id, file) for file in _FILES]
    return Path(str(found[0])) if all(isinstance(path, str) for path in found) else None


def _download(hub_id: str) -> Path:
    """By us, not by comet-score, which says of every failure that the model is not supported."""
    from huggingface_hub import errors, snapshot_download

    try:
        path = Path(snapshot_download(hub_id, allow_patterns=list(_FILES)), _FILES[0])
    except errors.GatedRepoError:
        raise HeadlabError(
            f"{hub_id} is gated: accept its licence on the hub, then log in with 'hf auth login' "
            "(or set HF_TOKEN)"
        ) from None
    except errors.RepositoryNotFoundError:
        raise HeadlabError(
            f"no COMET checkpoint {hub_id!r} on the hub, and no folder of that name"
        ) from None
    except Exception as error:  # no network has many names
        reason = _unreached(error)
        raise HeadlabError(
            f"no COMET checkpoint {hub_id!r} here: it is not in the local hub cache and {reason}; "
            "give the path of a local one"
        ) from error
    if not (path.is_file() and (path.parents[1] / _FILES[1]).is_file()):
        raise HeadlabError(
            f"{hub_id} is not a COMET checkpoint, or was not downloaded whole: {_FILES[0]} or "
            f"{_FILES[1]} is missing"
        )
    return path


def _unreached(error: Any) -> str:
    from huggingface_hub import errors

    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return "the hub cannot be reached"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"the download failed ({text[:200]})"


def _ignore(line: str) -> None:
    pass
