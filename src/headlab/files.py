"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headlab.errors import HeadlabError


def write_whole(path: Path, content: bytes | str) -> None:
    """Write beside `path`, then rename into place: a killed run leaves the old file or none."""
    data = content.encode() if isinstance(content, str) else content
    handle, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(part, 0o644)  # mkstemp's own is for secrets
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def require_folder(folder: Path) -> None:
    """Fail now, not after the work, if `folder` cannot be written to. Leaves no trace."""
    if folder.exists() and not folder.is_dir():
        raise HeadlabError(f"{folder} is a file; give a folder")
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise HeadlabError(f"cannot make the folder {folder}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise HeadlabError(f"cannot write to {there}; give another folder")
