"""What a run's cells say together: a line for each model, task and method, over its seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headlab.curves import Curve
from headlab.errors import HeadlabError
from headlab.scores import HeadScores
from headlab.stats import bootstrap_weights, resampled_interval
from headlab.studies.cells import Cell, labels
from headlab.studies.circuits.cell import Found, from_record

if TYPE_CHECKING:
    from headlab.store import Run


@dataclass(frozen=True)
class Line:
    """Explained effect against heads kept: the mean over seeds, each with prompts of its own."""

    model: str  # as figures call it
    task: str
    method: str
    seeds: list[int]
    found: list[Found]  # one a seed
    source: str = ""  # what the model was loaded from

    @property
    def finding(self) -> str | None:
        """Why there is no curve, if there is none."""
        for seed, each in zip(self.seeds, self.found, strict=True):
            if each.finding:
                said = each.finding.replace(each.scores.model, self.model)
                return said if len(self.seeds) == 1 else f"seed {seed}: {said}"
        return None

    @cached_property
    def curves(self) -> list[Curve]:
        return [] if self.finding else [each.curve for each in self.found if each.curve]

    @cached_property
    def scores(self) -> HeadScores:
        """Over the prompts of all seeds; one that several seeds drew (a file's) counts once."""
        all_ = [each.scores for each in self.found]
        prints, columns = _distinct([each.fingerprints for each in all_])
        values = torch.zeros(*all_[0].shape, len(prints), dtype=torch.float64)
        clean = torch.zeros(len(prints), dtype=torch.float64)
        times = torch.zeros(len(prints), dtype=torch.float64)
        for each, own in zip(all_, columns, strict=True):
            values[..., own] += each.values
            clean[own] += each.clean
            times[own] += 1
        floors = [each.noise_floor for each in all_ if each.noise_floor is not None]
        return replace(
            all_[0],
            model=self.model,
            task=self.task,
            values=values / times,
            clean=clean / times,
            examples=prints if len(all_) > 1 else all_[0].examples,
            fingerprints=prints,
            noise_floor=max(floors) if floors else None,
            estimated=list(dict.fromkeys(name for each in all_ for name in each.estimated)),
            checked=all_[0].checked if len(all_) == 1 else {},
        )

    @property
    def n_heads(self) -> int:
        return self.found[0].scores.score.numel()

    @property
    def n(self) -> int:
        """Different prompts the order was tested on."""
        return len(self._tested[0])

    @cached_property
    def _tested(self) -> tuple[list[str], list[Tensor]]:
        return _distinct([each.tested for each in self.found])

    @property
    def measure(self) -> str:
        return self.found[0].scores.measure

    @cached_property
    def edges(self) -> Tensor | None:
        """The share of edges that are open on the prompts tested, [layer, head]: the mean over
        seeds. None of a dense model."""
        known = [each.edges for each in self.found if each.edges is not None]
        return torch.stack(known).mean(0) if known else None

    def mean(self, name: str) -> float:
        """The mean over seeds of a curve's number (cpr, cmd, ...) or measure (clean, none)."""
        ends = name in ("clean", "none")  # known where there is no curve too
        values = [getattr(each, name) for each in (self.found if ends else self.curves)]
        return float(np.mean([torch.as_tensor(each).double().mean().item() for each in values]))

    # --- explained effect ---

    @cached_property
    def ks(self) -> list[int]:
        """Those that were measured; of several seeds, which look closer in different places, all,
        with a straight line between measured ones."""
        return self.curves[0].ks if len(self.curves) == 1 else list(range(self.n_heads + 1))

    @cached_property
    def explained(self) -> Tensor:
        """[k]"""
        return torch.stack([self._at_ks(c.ks, c.explained[None])[0] for c in self.curves]).mean(0)

    @cached_property
    def resampled(self) -> Tensor:
        """[resample, k]: prompts drawn again, each in all the seeds that have it."""
        prints, columns = self._tested
        weights = bootstrap_weights(len(prints))
        return torch.stack(
            [
                self._at_ks(curve.ks, curve.resampled(weights[:, own]))
                for curve, own in zip(self.curves, columns, strict=True)
            ]
        ).mean(0)

    @cached_property
    def band(self) -> tuple[Tensor, Tensor]:
        """95 % bootstrap interval over prompts, [k] twice."""
        return resampled_interval(self.explained, self.resampled, self.n)

    def _at_ks(self, ks: list[int], values: Tensor) -> Tensor:
        """[row, k] at this line's ks: another seed may have looked closer elsewhere."""
        return _interpolated(self.ks, ks, values)

    @cached_property
    def random(self) -> Tensor:
        """[order, k] of `random_ks`, of all seeds"""
        parts = [(curve.random_ks, curve.random_explained) for curve in self.curves]
        return torch.cat([_interpolated(self.random_ks, *part) for part in parts])

    @cached_property
    def matched(self) -> Tensor:
        parts = [(curve.random_ks, curve.matched_explained) for curve in self.curves]
        return torch.cat([_interpolated(self.random_ks, *part) for part in parts])

    @cached_property
    def random_ks(self) -> list[int]:
        return sorted({k for curve in self.curves for k in curve.random_ks})

    def random_at(self, k: int) -> float:
        """What k random heads explain: measured at a seed's own k of the threshold, elsewhere on a
        straight line between measured numbers."""
        return float(np.interp(k, self.random_ks, self.random.mean(0).numpy()))

    # --- how many heads ---

    def crossing(self, level: float, stay: bool = False) -> int | None:
        return self._first(self.explained[None], level, stay)[0]

    def crossing_interval(self, level: float) -> tuple[int | None, int | None]:
        low, high = self.band
        early, late = self._first(torch.stack([high, low]), level)
        return early, late

    def _first(self, explained: Tensor, level: float, stay: bool = False) -> list[int | None]:
        """The first k of each row [row, k] that reaches the level."""
        done = explained >= level - 1e-9  # 1 is reached up to rounding
        if stay:
            done = done.flip(1).cumprod(1).bool().flip(1)
        first = done.int().argmax(1)
        return [
            self.ks[int(k)] if bool(row[int(k)]) else None
            for k, row in zip(first, done, strict=True)
        ]

    @cached_property
    def _resampled_crossings(self) -> dict[float, np.ndarray]:
        return {}

    def crossings_again(self, level: float) -> np.ndarray:
        """[resample], all heads where the level is not reached."""
        if level not in self._resampled_crossings:
            found = self._first(self.resampled, level)
            ks = np.array([self.n_heads if k is None else k for k in found])
            self._resampled_crossings[level] = ks
        return self._resampled_crossings[level]


def _interpolated(wanted: list[int], ks: list[int], values: Tensor) -> Tensor:
    """[row, k] at the wanted ks."""
    if ks == wanted:
        return values
    return torch.from_numpy(np.stack([np.interp(wanted, ks, row) for row in values.numpy()]))


def _distinct(prints: list[list[str]]) -> tuple[list[str], list[Tensor]]:
    """Fingerprints without repeats, and where each list's own are among them."""
    places = {each: n for n, each in enumerate(dict.fromkeys(p for own in prints for p in own))}
    return list(places), [torch.tensor([places[each] for each in own]) for own in prints]


def read_lines(run: Run) -> list[Line]:
    """The lines of all cells that are done; a line has the seeds that are."""
    models, tasks = labels(run.spec.models), labels(run.spec.tasks)
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in run.cells:
        if run.has(cell):
            groups.setdefault((cell.model, cell.task, cell.method), []).append(cell)
    return [
        Line(
            models[model],
            tasks[task],
            method,
            [cell.seed for cell in cells],
            [_found(run, cell) for cell in cells],
            model,
        )
        for (model, task, method), cells in groups.items()
    ]


def _found(run: Run, cell: Cell) -> Found:
    try:
        return from_record(run.read_cell(cell))
    except HeadlabError as error:
        raise HeadlabError(f"{run.path_of(cell)}: {error}") from None
