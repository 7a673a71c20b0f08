"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError

_FILES = {".csv", ".html", ".json", ".jsonl", ".md", ".parquet", ".pdf", ".png", ".txt"}


def write_whole(path: Path, content: bytes | str) -> None:
    """Write beside `path`, then rename into place: a killed run leaves the old file or none."""
    if path.exists() and not path.is_file():  # renaming would replace a device or a folder
        raise HeadlabError(f"{path} is not a file; give another name")
    data = content.encode() if isinstance(content, str) else content
    handle, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # on the disk before it takes the old file's place
        os.chmod(part, 0o644)  # mkstemp's own is for secrets
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def as_json(value: Any) -> str:
    """JSON that every reader takes: infinity and NaN, which it has not, become null."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def require_folder(folder: Path) -> None:
    """Fail now, not after the work, if `folder` cannot be written to. Leaves no trace."""
    if folder.exists() and not folder.is_dir():
        raise HeadlabError(f"{folder} is a file; give a folder")
    if not folder.exists() and folder.suffix in _FILES:
        raise HeadlabError(
            f"{folder} reads like a file, and several are written; give a folder, e.g. "
            f"{folder.with_suffix('')}"
        )
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise HeadlabError(f"cannot make the folder {folder}: {there} is a file")
    try:
        os.rmdir(tempfile.mkdtemp(dir=there))
    except OSError:
        raise HeadlabError(f"cannot write to {there}; give another folder") from None
