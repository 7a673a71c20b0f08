"""Studies: published figures computed for any model. A study is a grid of cells.

Each study is a package here that offers one `Study`: its spec, its cells, how one is computed, and
how a run is drawn and told. Running, storing and resuming are the same for all.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from pathlib import Path

    from headlab.engine import Progress
    from headlab.model import Model
    from headlab.store import Run
    from headlab.studies.cells import Cell, Record
    from headlab.studies.spec import Spec
    from headlab.texts import Texts

STUDIES = {
    "circuits": "how few heads explain the effect?",
    "roles": "which heads help, hurt, or do nothing?",
    "contrastive": "can gates keep one prompt format and forget the other?",
    "masking": "do the top heads of a function carry it, against random ones?",
    "fillers": "do filler tokens before a question help, and where does attention go?",
}


class Work(NamedTuple):
    """What a cell takes."""

    pairs: int  # of a mask and an example: what its progress counts up to
    passes: float  # whole forward passes of an example: what its time depends on


def sample_examples(cell: Cell, texts: Texts, n: int, task: str | None = None) -> list[str]:
    """Of a task, that of the cell if none is named."""
    from headlab.tasks import make_examples, takes_data

    task = cell.task if task is None else task
    data = cell.settings.get("data") if takes_data(task) else None
    examples = make_examples(texts, task, n, cell.seed, data=data)
    return [example.prompt + example.target for example in examples]


def nothing_to_check(cell: Cell, texts: Texts, shape: tuple[int, int]) -> None:
    pass


def nothing_to_grade(run: Run, told: Callable[[float], None]) -> None:
    pass


@dataclass(frozen=True)
class Study:
    """What a study is made of."""

    name: str
    Spec: type[Spec]
    cells: Callable[[Any], list[Cell]]  # of a spec, those of a model beside each other
    work: Callable[[Cell, int], Work]  # of a cell, given the model's number of heads
    run_cell: Callable[[Cell, Model, Progress, Path], Record]  # the folder: for unfinished work
    findings: Callable[[Run], list[str]]  # of a run, finished or not: in sentences
    warnings: Callable[[Run], list[str]]  # what a reader should know first
    write_report: Callable[[Run], Path]  # figures and page
    compare: Callable[[Run, Run], list[dict[str, str]]]  # a row a cell that both have
    # Some prompts of a cell with what is scored after them: its work depends on their length.
    sample: Callable[[Cell, Texts, int], list[str]] = sample_examples
    # Says what cannot be done with a model's tokens and layers x heads, before its weights come.
    check: Callable[[Cell, Texts, tuple[int, int]], Any] = nothing_to_check
    # Scores texts that are not scored yet, and tells how much of that is done, from 0 to 1.
    grade: Callable[[Run, Callable[[float], None]], Any] = nothing_to_grade
    shows: str = ""  # what its main figure shows; that one is figures/NAME.png, or NAME-*.png


def later(module: str, name: str) -> Callable[..., Any]:
    """A function that is imported when it is called: to list runs, torch is not needed."""

    def call(*args: Any, **named: Any) -> Any:
        found = getattr(importlib.import_module(f"headlab.studies.{module}"), name)
        return found(*args, **named)

    return call


def require_study(name: Any) -> None:
    if not isinstance(name, str) or name not in STUDIES:
        close = difflib.get_close_matches(str(name), STUDIES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise HeadlabError(f"no study {name!r}{hint} (there are {', '.join(STUDIES)})")


def template(name: str) -> str:
    """A commented study file to start from."""
    require_study(name)
    return (files("headlab") / "studies" / name / "template.yaml").read_text("utf-8")


def find_study(name: Any) -> Study:
    require_study(name)
    found: Study = importlib.import_module(f"headlab.studies.{name}").STUDY
    return found
