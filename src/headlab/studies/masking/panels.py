"""A run's cells by model, ranking and function, and what each says in numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from headlab.errors import HeadlabError
from headlab.paired import mean_of_pairs
from headlab.stats import mean_interval, share_interval
from headlab.studies.cells import Cell, labels
from headlab.studies.graded import Grades, Told, part_of
from headlab.studies.masking.cell import Found, from_record
from headlab.studies.masking.grades import ACCURACY, grades_of
from headlab.studies.masking.masks import borrowed
from headlab.tasks.cogqa import FUNCTIONS

if TYPE_CHECKING:
    from headlab.store import Run


@dataclass(frozen=True)
class Point:
    """A score at one number of masked heads. Of several draws, each draw's mean and their middle;
    the interval is over questions."""

    k: int
    mean: float
    low: float
    high: float
    n: int  # questions
    draws: tuple[float, ...]  # the mean of each; one for the top

    @property
    def band(self) -> tuple[float, float]:
        """From the lowest draw to the highest."""
        return min(self.draws), max(self.draws)


@dataclass(frozen=True)
class Panel:
    """A cell, graded."""

    model: str
    source: str
    ranking: str
    seed: int
    found: Found
    grades: Grades
    positions: str  # where masks act
    scale: float

    @property
    def where(self) -> str:
        """How heads are masked, in words."""
        places = "generated tokens" if self.positions == "generated" else "all tokens"
        return f"on {places} (z x {self.scale:g})"

    @property
    def probe_says(self) -> str | None:
        """How well the probe tells functions apart, where it ranks."""
        told = self.found.probe
        if told is None:
            return None
        return (
            f"{self.model}: the probe names the function of {100 * told['accuracy']:.0f} % of "
            f"{told['n_test']} answers it has not seen (always the most frequent: "
            f"{100 * told['majority']:.0f} %; trained on shuffled labels: "
            f"{100 * told['shuffled']:.0f} %)."
        )

    @property
    def has_cross(self) -> bool:
        return any(key[0] != key[2] and key[1] == "top" for key in self._by)

    @cached_property
    def texts(self) -> pd.DataFrame:
        """Texts with their scores."""
        return pd.concat([self.found.texts, self.grades.table], axis=1)

    @property
    def functions(self) -> list[str]:
        return [name for name in FUNCTIONS if name in self.found.ks]

    @property
    def total(self) -> int:
        return self.found.shape[0] * self.found.shape[1]

    def sizes(self, function: str) -> torch.Tensor:
        """[layer, head], what heads are ordered by: of a probe's importance its size."""
        scores = self.found.scores[function]
        return scores.abs() if self.ranking == "probe" else scores

    def order(self, function: str) -> list[int]:
        """[rank], numbers of heads: the top K are the first K."""
        found: list[int] = (
            self.sizes(function).flatten().argsort(descending=True, stable=True).tolist()
        )
        return found

    def unmasked(self, function: str, score: str = ACCURACY) -> Point:
        return self.point(function, "none", 0, score, heads_of="")

    def point(
        self, function: str, kind: str, k: int, score: str = ACCURACY, heads_of: str | None = None
    ) -> Point:
        """A score of a function's questions with some heads masked: its own, or another's."""
        values = self.values(function, kind, k, score, heads_of)  # [draw, question]
        each = values.mean(0)
        mean = float(each.mean())
        if score == "quality":
            low, high = (float(end) for end in mean_interval(torch.from_numpy(each)))
            if "chrF" in self.grades.labels[score]:  # COMET's may lie outside
                low, high = max(0.0, low), min(1.0, high)
        else:
            low, high = share_interval(mean * len(each), len(each))
        return Point(k, mean, low, high, len(each), tuple(values.mean(1).tolist()))

    def values(
        self, function: str, kind: str, k: int, score: str = ACCURACY, heads_of: str | None = None
    ) -> np.ndarray:
        """[draw, question]"""
        rows = self._by.get((function, kind, function if heads_of is None else heads_of, k))
        if rows is None:
            raise HeadlabError(f"no texts of {function} with {k} {kind} heads masked")
        return rows[score].to_numpy(np.float64).reshape(rows["draw"].nunique(), -1)

    @cached_property
    def _by(self) -> dict[Any, pd.DataFrame]:
        # every draw has the same questions, so that rows in this order are [draw, question]
        texts = self.texts.sort_values(["draw", "item"], kind="stable")
        return dict(list(texts.groupby(["asked", "kind", "heads_of", "k"])))

    def has(self, kind: str, function: str) -> bool:
        return any(key[:2] == (function, kind) for key in self._by)

    def fall(self, function: str, k: int, score: str = ACCURACY) -> tuple[float, float, float]:
        """How far the top K fall below random K on the same questions: the mean difference, and
        its 95 % interval over questions."""
        random = self.values(function, "random", k, score).mean(0)
        apart = random - self.values(function, "top", k, score)[0]
        return mean_of_pairs(apart)

    def gain(self, function: str, k: int) -> tuple[float, float, float]:
        """How far accuracy with the top K boosted lies above the whole model's on the same
        questions: the mean difference, and its 95 % interval over questions."""
        before = self.values(function, "none", 0, heads_of="")[0]
        apart = self.values(function, "boosted", k)[0] - before
        return mean_of_pairs(apart)

    def draw_p(self, function: str, k: int, score: str = ACCURACY) -> float:
        """How often a random draw would be as low as the top K, were they one: its rank."""
        top, random = (self.point(function, kind, k, score) for kind in ("top", "random"))
        return (1 + sum(draw <= top.mean for draw in random.draws)) / (1 + len(random.draws))

    def borrowed(self, function: str, k: int) -> int:
        """Heads of the same-layer control that had to come from other layers."""
        return borrowed(self.order(function)[:k], self.found.shape[1])

    def verdict(self, function: str, k: int, score: str = ACCURACY) -> str:
        """below: under the band of the draws, and beyond the interval; above: the other way round;
        else nothing can be said."""
        top, random = (self.point(function, kind, k, score) for kind in ("top", "random"))
        _, low, high = self.fall(function, k, score)
        if low > 0 and top.mean < random.band[0]:
            return "below"
        return "above" if high < 0 and top.mean > random.band[1] else "open"


def read_panels(run: Run, told: Told | None = None) -> list[Panel]:
    """The cells that are done, graded; `told` how much of that is."""
    models = labels(run.spec.models)
    panels: list[Panel] = []
    done = [cell for cell in run.cells if run.has(cell)]
    for number, cell in enumerate(done):
        found = _found(run, cell)
        grades = grades_of(run, cell, found, part_of(told, number, len(done)))
        panels.append(
            Panel(
                models[cell.model],
                cell.model,
                cell.method,
                cell.seed,
                found,
                grades,
                cell.settings["positions"],
                cell.settings["scale"],
            )
        )
    return panels


def _found(run: Run, cell: Cell) -> Found:
    try:
        return from_record(run.read_cell(cell))
    except HeadlabError as error:
        raise HeadlabError(f"{run.path_of(cell)}: {error}") from None


def rows_of(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Every number of the figures, a row each: the CSV."""
    rows = []
    for panel in panels:
        shared = {"model": panel.model, "ranking": panel.ranking, "seed": panel.seed}
        for key in sorted(panel._by):
            function, kind, heads_of, k = key
            for score, label in panel.grades.labels.items():
                point = panel.point(function, kind, k, score, heads_of)
                low, high = point.band
                rows.append(
                    {
                        **shared,
                        "function": function,
                        "heads_of": heads_of,
                        "kind": kind,
                        "k": k,
                        "heads": panel.total,
                        "score": label,
                        "mean": point.mean,
                        "low": point.low,
                        "high": point.high,
                        "n": point.n,
                        "draws": len(point.draws),
                        "draws_low": low,
                        "draws_high": high,
                    }
                )
    return rows


def published() -> dict[str, Any]:
    """The paper's tables."""
    text = files("headlab.studies.masking").joinpath("published.json").read_text()
    numbers: dict[str, Any] = json.loads(text)
    return numbers
