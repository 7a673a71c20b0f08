"""A run's folder: cells as Parquet files that appear whole or not at all.

    RUN/study.yaml       what was asked, in full
    RUN/manifest.json    versions, models, token budgets, timings, cells that failed
    RUN/cells/*.parquet  one file a cell: a long-form table, its meaning in the file's metadata
    RUN/figures/         PNG, PDF and CSV
    RUN/report.html

Which cells are done is told by their files alone. Names in the folder are made here, never read
from a file, and links are not followed: nothing is written outside the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from pydantic import BaseModel, Field, ValidationError

from headlab.errors import HeadlabError
from headlab.files import as_json, write_whole
from headlab.studies import Study, find_study
from headlab.studies.cells import Cell, Record
from headlab.studies.spec import Spec, read_spec
from headlab.wording import count

_META = b"headlab"
_FORMAT = 1
_PART = re.compile(r"\..+\.(yaml|json|html|parquet|png|pdf|csv)-[a-z0-9_]{8}")  # of write_whole


class RunStopped(HeadlabError):  # noqa: N818, what happened to the run, not to a cell
    """The run's folder cannot be written to: no other cell would fare better."""


class Run:
    """One run of a study, finished or not."""

    def __init__(self, folder: Path, spec: Spec, manifest: dict[str, Any] | None = None):
        self.folder, self.spec = folder, spec
        self.manifest = manifest or _new_manifest()

    # --- opening ---

    @classmethod
    def start(cls, folder: str | Path, spec: Spec) -> Run:
        """A new run, or the one that is there if it is of the same study."""
        run = cls(Path(folder).expanduser(), spec)
        if run._is_there:
            run._require_same_study()
            return cls.read(folder)
        if not run._is_free:
            raise HeadlabError(f"{run.folder} is there already and is no run; give another folder")
        return run

    @classmethod
    def read(cls, folder: str | Path, strictly: bool = False) -> Run:
        """The run in a folder. `strictly`: its models and files must be here too, to go on."""
        folder = Path(folder).expanduser()
        for name in ("study.yaml", "manifest.json"):  # a study file alone is not a run
            if not (folder / name).is_file():
                missing = "is a file" if folder.exists() else "is not there"
                why = f"has no {name}" if folder.is_dir() else missing
                raise HeadlabError(f"{folder} is no run: it {why} (headlab ls lists runs)")
        spec = read_spec(folder / "study.yaml", stored=not strictly)
        return cls(folder, spec, _read_manifest(folder / "manifest.json"))

    @property
    def _is_there(self) -> bool:
        return is_run(self.folder)

    @property
    def _is_free(self) -> bool:
        """Nothing is there, or what a run leaves that was stopped before it could say its study."""
        if not self.folder.exists():
            return True
        ours = {".lock", "manifest.json", "cells", "figures", "grades", "scratch"}
        return self.folder.is_dir() and all(
            (path.name in ours and not (path.is_dir() and any(path.iterdir())))
            or _PART.fullmatch(path.name)
            for path in self.folder.iterdir()
        )

    def _require_same_study(self) -> None:
        there = Run.read(self.folder).spec
        if there != self.spec:
            mine, theirs = self.spec.model_dump(mode="json"), there.model_dump(mode="json")
            other = [key for key, value in theirs.items() if mine.get(key) != value]
            raise HeadlabError(
                f"{self.folder} holds a run of another study ({', '.join(other)} differ); give "
                f"another folder, or go on with it: {self.resume_command}"
            )

    def __repr__(self) -> str:
        done = sum(self.has(cell) for cell in self.cells)
        cells = count(len(self.cells), "cell")
        return f"Run({str(self.folder)!r}, {self.spec.study}, {done} of {cells})"

    @property
    def _own_hash(self) -> str:
        """Of its settings."""
        return _hash(self.spec.as_yaml())

    @property
    def resume_command(self) -> str:
        return f"headlab resume {shlex.quote(str(self.folder))}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time writes to a run. Gone with the process, however it ends."""
        with _says_why(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (".lock", "cells", "figures", "grades", "scratch"):
                if (self.folder / name).is_symlink():
                    raise HeadlabError(
                        f"{self.folder / name} is a link; a run's files lie in its own folder"
                    )
            lock = FileLock(self.folder / ".lock")
            try:
                lock.acquire(timeout=1)  # one that only looks holds it for a moment
            except Timeout:
                raise HeadlabError(
                    f"another process is writing to {self.folder}; wait for it, or give another "
                    "folder"
                ) from None
        try:
            with _says_why(self.folder):
                if self._is_there:  # another process may have begun, or gone on, before the lock
                    self._require_same_study()
                    self.manifest = _read_manifest(self.folder / "manifest.json")
                    # Word for word, where earlier versions knew fewer settings.
                    written = (self.folder / "study.yaml").read_text(encoding="utf-8")
                    if self.manifest.get("study") not in (_hash(written), self._own_hash):
                        raise HeadlabError(
                            f"{self.folder / 'study.yaml'} has been changed since this run began; "
                            "copy it and start a new run"
                        )
                for place in (self.folder, self.folder / "cells", self.folder / "figures"):
                    place.mkdir(exist_ok=True)
                    for part in place.iterdir():
                        if _PART.fullmatch(part.name):  # of a process that was killed
                            part.unlink()
                if not (self.folder / "study.yaml").exists():
                    self.manifest["study"] = self._own_hash
                    self.save()
                    write_whole(self.folder / "study.yaml", self.spec.as_yaml())
            yield
        finally:
            lock.release()

    @property
    def is_busy(self) -> bool:
        """Whether a process is writing to it now."""
        if not (self.folder / ".lock").is_file() or (self.folder / ".lock").is_symlink():
            return False
        try:
            with FileLock(self.folder / ".lock", blocking=False):
                return False
        except Timeout:
            return True
        except OSError:  # not ours to write to: it cannot be us who is writing
            return False

    @property
    def state(self) -> str:
        """How it stands, in a word or two."""
        states = [self.status(cell) for cell in self.cells]
        failed = states.count("failed")
        if self.is_busy:
            return "running"
        if failed:
            return f"{failed} failed"
        return "finished" if states.count("done") == len(states) else "interrupted"

    # --- cells ---

    @property
    def study(self) -> Study:
        return find_study(self.spec.study)

    @cached_property
    def cells(self) -> list[Cell]:
        """All of the study, those of a model beside each other."""
        return self.study.cells(self.spec)

    def path_of(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.id}.parquet"

    def has(self, cell: Cell) -> bool:
        """Whether its file is there and whole."""
        try:
            return _META in (pq.read_schema(self.path_of(cell)).metadata or {})
        except (OSError, pa.ArrowException):
            return False

    def status(self, cell: Cell) -> str:
        if self.has(cell):
            return "done"
        return "failed" if "reason" in self.known(cell) else "missing"

    def known(self, cell: Cell) -> dict[str, Any]:
        """What the manifest says of it: seconds, or the reason of a failure."""
        known: dict[str, Any] = self.manifest["cells"].get(cell.id, {})
        return known

    def write(self, cell: Cell, record: Record, seconds: float) -> None:
        table = pa.Table.from_pandas(record.table, preserve_index=False)
        about = json.dumps({"format": _FORMAT, **record.about}, sort_keys=True)
        buffer = io.BytesIO()
        pq.write_table(
            table.replace_schema_metadata({_META: about.encode()}), buffer, compression="zstd"
        )
        with _says_why(self.folder):
            write_whole(self.path_of(cell), buffer.getvalue())
        self.note(cell, seconds=round(seconds, 3))

    @contextlib.contextmanager
    def scratch(self, cell: Cell) -> Iterator[Path]:
        """A folder for a cell's unfinished work: there again when the run goes on."""
        folder = self.folder / "scratch" / cell.id
        with _says_why(self.folder):
            if (self.folder / "scratch").is_symlink() or folder.is_symlink():
                raise HeadlabError(f"{folder} is a link; a run's files lie in its own folder")
        yield folder

    def clear(self, cell: Cell) -> None:
        """What was unfinished is done."""
        shutil.rmtree(self.folder / "scratch" / cell.id, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may be in it
            (self.folder / "scratch").rmdir()

    def read_cell(self, cell: Cell) -> Record:
        try:
            table = pq.read_table(self.path_of(cell))
            about = json.loads((table.schema.metadata or {})[_META])
            if about["format"] != _FORMAT:
                raise ValueError("it was written by another version of Headlab")
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise HeadlabError(f"{self.path_of(cell)} is no cell of a run: {error}") from None
        return Record(table.to_pandas(), about)

    def grade(self, told: Callable[[float], None]) -> None:
        """Score the texts that are not scored yet; `told` how much of that is done."""
        with _says_why(self.folder):
            self.study.grade(self, told)

    def write_report(self) -> Path:
        """Figures and page, from the cells alone."""
        with _says_why(self.folder):
            return self.study.write_report(self)

    # --- the manifest ---

    def note(self, cell: Cell, **known: Any) -> None:
        """What is known of a cell, beside its record."""
        self.manifest["cells"][cell.id] = known
        self.save()

    def save(self) -> None:
        with _says_why(self.folder):
            write_whole(self.folder / "manifest.json", as_json(self.manifest) + "\n")


def is_run(folder: Path) -> bool:
    """Whether a run lies there; a study file alone is none."""
    return (folder / "study.yaml").is_file() and (folder / "manifest.json").is_file()


def find_runs(folder: str | Path) -> list[Run | str]:
    """The runs in a folder and one below it; of one that cannot be read, its folder's name."""
    folder = Path(folder).expanduser()
    found: list[Run | str] = []
    for depth in ("manifest.json", "*/manifest.json", "*/*/manifest.json"):
        for path in sorted(folder.glob(depth)):
            if is_run(path.parent):
                try:
                    found.append(Run.read(path.parent))
                except (HeadlabError, OSError):
                    found.append(str(path.parent))
    return found


def next_folder(study: str, parent: Path = Path("runs")) -> Path:
    """runs/circuits-1, or the first number that is free."""
    number = 1
    while (parent / f"{study}-{number}").exists():
        number += 1
    return parent / f"{study}-{number}"


def _hash(written: str) -> str:
    return hashlib.sha256(written.encode()).hexdigest()[:16]


def _new_manifest() -> dict[str, Any]:
    return {"format": _FORMAT, "models": {}, "files": {}, "cells": {}, "sessions": []}


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _new_manifest()
    except (OSError, ValueError) as error:
        raise HeadlabError(f"{path} cannot be read: {error}") from None
    try:
        Manifest.model_validate(manifest)
    except ValidationError:
        raise HeadlabError(f"{path} is not the manifest of a run") from None
    return dict(manifest)


class _Session(BaseModel):
    started: str
    versions: dict[str, str]
    machine: dict[str, Any]


class _KnownModel(BaseModel):
    fingerprint: str
    budget: Annotated[int, Field(ge=1)]


class _KnownCell(BaseModel):
    seconds: float | None = None
    reason: str | None = None


class Manifest(BaseModel):
    """What must be in a manifest.json, whoever wrote it; there may be more."""

    models: dict[str, _KnownModel]
    files: dict[str, str]
    cells: dict[str, _KnownCell]
    sessions: list[_Session]


@contextlib.contextmanager
def _says_why(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "no space is left on the disk"
        begun = (folder / "study.yaml").exists()
        go_on = (
            f"finished cells are kept, go on later with: headlab resume {shlex.quote(str(folder))}"
        )
        raise RunStopped(
            f"cannot write to {folder}: {reason}; {go_on if begun else 'give another folder'}"
        ) from error
