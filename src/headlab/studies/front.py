"""One page over several runs: what each asked and found, its main figure, a link to its page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headlab.errors import HeadlabError
from headlab.files import write_whole
from headlab.report import render
from headlab.store import Run, is_run
from headlab.studies import STUDIES
from headlab.studies.cells import labels
from headlab.studies.facts import readable
from headlab.wording import count

_FEW = 3  # findings of a run; its own page has all
_MARK = '<meta name="generator" content="headlab, several runs">'  # of a page that is ours
# Beside the page: a browser may count every local file as another place than 'self'.
_PICTURES = "'self' file:"


def runs_in(folder: str | Path) -> list[Path]:
    """The runs that lie directly in a folder, by name."""
    folder = Path(folder).expanduser()
    return sorted(path for path in folder.iterdir() if is_run(path)) if folder.is_dir() else []


def write_front(
    folder: str | Path,
    runs: Sequence[Path] | None = None,
    title: str | None = None,
    says: str = "",
) -> Path:
    """report.html over the runs in a folder, or over those that are given; gives its path.

    Reports of the runs are left as they are; one that has none gets it. A run that cannot be read
    is named, with the reason.

    >>> write_front("runs")                                                   # doctest: +SKIP
    PosixPath('/home/me/runs/report.html')
    """
    folder = Path(folder).expanduser()
    require_front(folder)
    runs = runs_in(folder) if runs is None else runs
    if not runs:
        raise HeadlabError(
            f"{folder} is no run and holds none; a run has study.yaml and manifest.json "
            "(headlab ls lists runs)"
        )
    page = render(
        "front",
        {},
        pictures=_PICTURES,
        mark=_MARK,
        title=title or f"{count(len(runs), 'run')} in {readable(Path(folder.resolve().name))}",
        says=says,
        runs=[_shown(run, folder) for run in runs],
    )
    path = folder / "report.html"
    write_whole(path, page)
    return path.resolve()


def require_front(folder: Path) -> None:
    """Fail now if the page cannot be there: it replaces no run's report and no other's file."""
    if is_run(folder):
        raise HeadlabError(f"{folder} is a run itself; give a folder that holds runs, or another")
    path = folder / "report.html"
    if path.is_file() and _MARK not in path.read_text("utf-8", errors="replace"):
        raise HeadlabError(f"{path} is there already and is not Headlab's; move it away")


def _shown(path: Path, folder: Path) -> dict[str, Any]:
    known: dict[str, Any] = {"name": readable(Path(path.name)), "reason": None}
    try:
        return known | _read(path, folder)
    except Exception as error:  # whatever is wrong with one, the others are shown
        said = " ".join(str(error).split()) or type(error).__name__
        return known | {"reason": said[:500], "state": "cannot be read", "mark": "failed"}


def _read(path: Path, folder: Path) -> dict[str, Any]:
    run = Run.read(path)
    page, without = path / "report.html", None
    if not page.is_file():
        try:
            with run.locked():
                run.write_report()
        except HeadlabError as error:  # another process is at it, or the folder is not ours
            without = "it is running." if run.is_busy else str(error)
    spec, figure, state = run.spec, _main_figure(run), run.state
    findings = run.study.findings(run)
    done = sum(run.has(cell) for cell in run.cells)
    question = STUDIES[spec.study]
    return {
        "question": question[0].upper() + question[1:],
        "state": state,
        "mark": {"finished": "done", "interrupted": "missing", "running": "missing"}.get(
            state, "failed"
        ),
        "facts": [
            ("run", readable(Path(path.name))),
            ("models", ", ".join(labels(spec.models).values())),
            ("tasks", ", ".join(labels(spec.tasks).values())),
            ("study", f"{spec.study}, size {spec.size}"),
            ("cells", f"{done} of {len(run.cells)} done"),
        ],
        "lead": findings[:_FEW],
        "more": len(findings) - _FEW,
        "warnings": _warnings(run),
        "figure": None if figure is None else _link(figure, folder),
        "alt": run.study.shows or f"The main figure of {spec.study}",
        "page": _link(page, folder) if without is None else None,
        "without": without,
    }


def _warnings(run: Run) -> list[str]:
    """Where cells failed, the first reason beside how many: that is what one looks for."""
    told = run.study.warnings(run)
    failed = any(run.status(cell) == "failed" for cell in run.cells)
    return [" ".join(told[:2]), *told[2:]] if failed else told


def _main_figure(run: Run) -> Path | None:
    """The one that is called as the study is; of several methods, the first one's."""
    figures, name = run.folder / "figures", run.spec.study
    found = [figures / f"{name}.png", *sorted(figures.glob(f"{name}-*.png"))]
    return next((path for path in found if path.is_file()), None)


def _link(path: Path, folder: Path) -> str:
    """As the page in `folder` points to it: the two can be moved together."""
    return quote(os.fsencode(os.path.relpath(path, folder).replace(os.sep, "/")))
