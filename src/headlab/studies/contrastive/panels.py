"""A run's cells by the names that figures use, and what each says in numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.stats import mean_interval, share_interval
from headlab.studies.cells import labels
from headlab.studies.contrastive.cell import Found, from_record

if TYPE_CHECKING:
    from headlab.store import Run

NAMES = {"icl": "ten pairs shown", "instruction": "instruction and one pair"}


@dataclass(frozen=True)
class Panel:
    """A cell's findings, by the names that figures use."""

    model: str
    task: str  # left out of the fit
    source: str
    found: Found

    @property
    def kept(self) -> str:
        return self.found.kept

    @property
    def forgotten(self) -> str:
        return self.found.forgotten

    def accuracy(self, format_: str, variant: str) -> tuple[float, float, float]:
        """The share of pairs that are right, mean over masks, and its 95 % interval over pairs."""
        right = self.found.values["right", format_, variant].double()
        mean = float(right.mean())
        return mean, *share_interval(mean * right.shape[1], right.shape[1])

    def each_seed(self, format_: str) -> list[float]:
        right = self.found.values["right", format_, "gates"].double()
        return [float(share) for share in right.mean(1)]

    def log_prob(self, format_: str, variant: str) -> float:
        return float(self.found.values["log_prob", format_, variant].double().mean())

    @property
    def separates(self) -> bool:
        """Whether what is forgotten fell more than what is kept, on the same pairs, beyond the
        95 % interval over pairs."""
        kept, forgotten = (
            self.found.values["right", format_, "gates"].double().mean(0)
            - self.found.values["right", format_, "before"].double()[0]
            for format_ in (self.kept, self.forgotten)
        )
        low, _ = mean_interval(kept - forgotten)
        return bool(low > 0)


def published() -> dict[str, Any]:
    """The paper's numbers."""
    text = files("headlab.studies.contrastive").joinpath("published.json").read_text()
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def read_panels(run: Run) -> list[Panel]:
    models = labels(run.spec.models)
    panels = []
    for cell in run.cells:
        if not run.has(cell):
            continue
        try:
            found = from_record(run.read_cell(cell))
        except HeadlabError as error:
            raise HeadlabError(f"{run.path_of(cell)}: {error}") from None
        panels.append(Panel(models[cell.model], cell.task, cell.model, found))
    return panels


def layout(panels: Sequence[Panel]) -> tuple[list[str], list[str], list[str]]:
    """Formats kept, models and tasks, each once."""
    return (
        list(dict.fromkeys(panel.kept for panel in panels)),
        list(dict.fromkeys(panel.model for panel in panels)),
        list(dict.fromkeys(panel.task for panel in panels)),
    )


def gates_of(panels: Sequence[Panel], model: str, kept: str) -> Tensor | None:
    """Of a model, all fits that keep a format, [fit, layer, head]; None where there are none."""
    own = [p.found.fit.gates for p in panels if (p.model, p.kept) == (model, kept)]
    return torch.cat(own) if own else None
