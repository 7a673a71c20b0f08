"""A run's cells by the names that figures use, and what each says in numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from headlab.errors import HeadlabError
from headlab.stats import share_interval
from headlab.studies.cells import Cell, labels
from headlab.studies.roles.cell import Found, from_record

if TYPE_CHECKING:
    from headlab.store import Run


@dataclass(frozen=True)
class Panel:
    """A cell's findings, by the names that figures use."""

    model: str
    task: str
    source: str
    found: Found
    base: str = "plus"
    aggregated: bool = False

    @property
    def accuracy(self) -> tuple[float, float, float]:
        right = self.found.right
        ends = share_interval(int(right.sum()), len(right))
        return float(right.double().mean()), *ends

    def best(self, line: str) -> tuple[int, float]:
        """The k of the largest mean Δ, and that Δ."""
        mean = self.found.deltas.mean(line)
        place = int(mean.argmax())
        return self.found.deltas.ks[place], float(mean[place])

    def at_end(self, line: str) -> tuple[float, float, float]:
        deltas = self.found.deltas
        low, high = deltas.band(line)
        return float(deltas.mean(line)[-1]), float(low[-1]), float(high[-1])


def published() -> dict[str, Any]:
    """The paper's numbers."""
    text = files("headlab.studies.roles").joinpath("published.json").read_text()
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def read_panels(run: Run) -> list[Panel]:
    models, tasks = labels(run.spec.models), labels(run.spec.tasks)
    return [
        Panel(
            models[cell.model],
            tasks[cell.task],
            cell.model,
            _found(run, cell),
            cell.settings["base"],
            cell.settings["aggregated"],
        )
        for cell in run.cells
        if run.has(cell)
    ]


def _found(run: Run, cell: Cell) -> Found:
    try:
        return from_record(run.read_cell(cell))
    except HeadlabError as error:
        raise HeadlabError(f"{run.path_of(cell)}: {error}") from None


def layout(panels: Sequence[Panel]) -> tuple[list[str], list[str]]:
    """Tasks and models, each once."""
    return (
        list(dict.fromkeys(panel.task for panel in panels)),
        list(dict.fromkeys(panel.model for panel in panels)),
    )
