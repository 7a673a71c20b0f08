"""A run's cells by model and problem set, and what each says in numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from headlab.aliases import ALIASES
from headlab.errors import HeadlabError
from headlab.fillers import CONDITIONS, Condition
from headlab.heads import Head
from headlab.paired import holm, mcnemar, paired_difference, sign_flips
from headlab.stats import bootstrap_means, resampled_interval, share_interval
from headlab.studies.cells import Cell, labels
from headlab.studies.fillers.cell import Found, from_record
from headlab.studies.fillers.grades import BOXED, SCORES, grades_of
from headlab.studies.graded import Grades, Told, part_of

if TYPE_CHECKING:
    from headlab.store import Run


class Share(NamedTuple):
    """A share of problems, with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Change:
    """A condition against its baseline on the same problems."""

    condition: str
    baseline: str
    mean: float
    low: float
    high: float
    gained: float  # problems that only the condition solves; of several seeds, on average
    lost: float
    p: float  # McNemar's exact; of several seeds, by flipping signs
    adjusted: float = math.nan  # Holm's, over all models, problem sets and conditions of a run

    @property
    def verdict(self) -> str:
        """better, worse or open."""
        if not self.adjusted <= 0.05:
            return "open"
        return "better" if self.mean > 0 else "worse"


@dataclass(frozen=True)
class Shift:
    """What a condition does to the attention that a part of the prompt receives: factors against
    the baseline, of what is observed, of even attention, and of one over the other."""

    condition: str
    baseline: str
    region: str
    observed: float
    uniform: float
    beyond: float  # observed / uniform, against the baseline's
    low: float
    high: float
    n: int  # prompts

    @property
    def verdict(self) -> str:
        """less or more attention than more tokens alone would give, or open."""
        if self.high < 1:
            return "less"
        return "more" if self.low > 1 else "open"


@dataclass(frozen=True)
class Panel:
    """The cells of a model and a problem set, one for each seed, graded."""

    model: str
    source: str
    task: str
    seeds: list[int]
    founds: list[Found]
    grades: list[Grades]

    @property
    def found(self) -> Found:
        """The first seed's: prompts and attention are much the same in all."""
        return self.founds[0]

    @property
    def conditions(self) -> list[Condition]:
        return self.found.conditions

    @property
    def names(self) -> list[str]:
        return [condition.name for condition in self.conditions]

    @property
    def scores(self) -> list[str]:
        """What all cells are graded by, the first the one that counts."""
        return [name for name in SCORES if all(name in each.labels for each in self.grades)]

    @property
    def problems(self) -> list[str]:
        """Those of every seed."""
        shared = set.intersection(*(set(found.problems) for found in self.founds))
        return [id for id in self.found.problems if id in shared]

    def baseline(self, name: str) -> str | None:
        """What a condition is compared with: the plain one of the same template and decoding, else
        of the same template; where there is none, that template's first. The plain one itself: of
        another decoding with the usual one's, in a chat template with the raw one."""
        own = self.condition(name)
        alike = [each for each in self.conditions if each.template == own.template]
        plain = [each for each in alike if each.is_plain]
        same = [each for each in plain if _decoding(each) == _decoding(own)]
        usual = [each for each in plain if _decoding(each) == (None, None)]
        if not own.is_plain:
            choices = same or usual or plain or alike[:1]
        elif same[0].name != name:
            choices = same
        elif usual != same and usual:
            choices = usual
        else:
            others = [each for each in self.conditions if each.template != own.template]
            raw = own.template == "chat"
            choices = [
                each
                for each in others
                if raw and each.is_plain and _decoding(each) == _decoding(own)
            ]
        found = choices[0].name if choices else None
        return None if found == name else found

    def values(self, name: str, score: str) -> np.ndarray:
        """[problem], of several seeds the mean."""
        return self._values(name, score).mean(0)

    def _values(self, name: str, score: str) -> np.ndarray:
        """[seed, problem]"""
        return np.stack([table[score].loc[name].to_numpy(np.float64) for table in self._tables])

    @cached_property
    def _tables(self) -> list[dict[str, pd.DataFrame]]:
        """By score, [condition, problem]; one for each seed."""
        found = []
        for each, grades in zip(self.founds, self.grades, strict=True):
            table = pd.concat(
                [each.texts[["end", "tokens"]], grades.table.reset_index(drop=True)], axis=1
            )
            table["truncated"] = table["end"] == "length"
            table["unboxed"] = ~table[BOXED].astype(bool)
            table["empty"] = each.texts["text"].str.strip() == ""
            names = [*self.scores, "truncated", "unboxed", "empty", "tokens"]
            if "ungraded" in table:
                names.append("ungraded")
            wide = table.pivot(index="condition", columns="problem")
            found.append({name: wide[name][self.problems].astype(float) for name in names})
        return found

    def share(self, name: str, score: str) -> Share:
        """Of right answers, of truncated or of unboxed ones under a condition."""
        values = self.values(name, score)
        mean = float(values.mean())
        return Share(mean, *share_interval(mean * len(values), len(values)), len(values))

    def tokens(self, name: str) -> float:
        """How many an answer has, on average."""
        return float(self.values(name, "tokens").mean())

    @property
    def ungraded(self) -> int:
        """Answers whose grading took longer than it may, or broke down."""
        return sum(
            int(table["ungraded"].to_numpy().sum()) for table in self._tables if "ungraded" in table
        )

    def change(self, name: str, score: str) -> Change | None:
        """Against the baseline, if it has one; not adjusted for others."""
        baseline = self.baseline(name)
        if baseline is None:
            return None
        before, after = self.values(baseline, score), self.values(name, score)
        single = len(self.seeds) == 1
        gained, lost = (
            float((self._values(a, score) > self._values(b, score)).sum(1).mean())
            for a, b in ((name, baseline), (baseline, name))
        )
        p = mcnemar(before, after).p if single else sign_flips(before, after)
        return Change(name, baseline, *paired_difference(before, after), gained, lost, p)

    # --- attention ---

    @property
    def heads(self) -> list[Head]:
        return self.found.heads

    def lines(self, name: str, view: str, head: str | None = None) -> pd.DataFrame:
        """By position: mean, low, high, uniform; of one head, or their mean (without a band)."""
        if view == "whole" and not self.condition(name).inserts:
            view = "original"  # the same
        own = self._attention.get((name, view), self.found.attention[:0])
        if head is not None:
            return own[own["head"] == head].sort_values("position")
        means = own.groupby("position")[["mean", "uniform", "prompts"]].mean().reset_index()
        return means.assign(low=np.nan, high=np.nan)

    @cached_property
    def _attention(self) -> dict[Any, pd.DataFrame]:
        return dict(list(self.found.attention.groupby(["condition", "view"])))

    def condition(self, name: str) -> Condition:
        return next(condition for condition in self.conditions if condition.name == name)

    def shifts(self, head: str | None = None) -> list[Shift]:
        """Of every condition and part of the prompt; of one head, or of their mean."""
        if head not in self._shifts:
            self._shifts[head] = self._find_shifts(head)
        return self._shifts[head]

    @cached_property
    def _shifts(self) -> dict[str | None, list[Shift]]:
        return {}

    def _find_shifts(self, head: str | None) -> list[Shift]:
        table = self.found.regions
        if head is not None:
            table = table[table["head"] == head]
        means = table.groupby(["condition", "region", "problem"])[["observed", "uniform"]].mean()
        found = []
        for name in self.names:
            baseline = self.baseline(name)
            if baseline is None or name not in means.index.get_level_values(0):
                continue
            for region in ("instruction", "question"):
                if (shift := _shift(means, name, baseline, region)) is not None:
                    found.append(shift)
        return found

    def parts(self) -> pd.DataFrame:
        """What every part of the prompt receives, by condition and head: the mean over prompts,
        that of even attention, and the ratio."""
        by = ["condition", "region", "head"]
        means = self.found.regions.groupby(by, sort=False)[["observed", "uniform"]].mean()
        return means.assign(ratio=means["observed"] / means["uniform"]).reset_index()


def _shift(means: pd.DataFrame, name: str, baseline: str, region: str) -> Shift | None:
    try:
        after, before = means.loc[(name, region)], means.loc[(baseline, region)]
    except KeyError:
        return None
    both = after.index.intersection(before.index)
    if len(both) < 2:
        return None
    columns = [
        torch.tensor(table.loc[both, column].to_numpy(np.float64))
        for table in (after, before)
        for column in ("observed", "uniform")
    ]
    seen, even, seen_before, even_before = (float(column.mean()) for column in columns)
    beyond = (seen / even) / (seen_before / even_before)
    a, b, c, d = bootstrap_means(torch.stack(columns)).unbind(1)  # [resample] each
    resampled = ((a / b) / (c / d)).log()
    low, high = resampled_interval(torch.tensor(math.log(beyond)), resampled, len(both))
    return Shift(
        *(name, baseline, region, seen / seen_before, even / even_before, beyond),
        *(float(low.exp()), float(high.exp()), len(both)),
    )


def read_panels(run: Run, told: Told | None = None) -> list[Panel]:
    """The cells that are done, graded, by model and problem set; `told` how much of that is."""
    models = labels(run.spec.models)
    done = [cell for cell in run.cells if run.has(cell)]
    groups: dict[tuple[str, str], list[tuple[Cell, Found, Grades]]] = {}
    for number, cell in enumerate(done):
        try:
            found = from_record(run.read_cell(cell))
        except HeadlabError as error:
            raise HeadlabError(f"{run.path_of(cell)}: {error}") from None
        grades = grades_of(run, cell, found, part_of(told, number, len(done)))
        groups.setdefault((cell.model, cell.task), []).append((cell, found, grades))
    return [
        Panel(
            models[model],
            model,
            task,
            [cell.seed for cell, _, _ in own],
            [found for _, found, _ in own],
            [grades for _, _, grades in own],
        )
        for (model, task), own in groups.items()
    ]


def changes(panels: Sequence[Panel], score: str | None = None) -> dict[int, list[Change]]:
    """By place of the panel, all changes, their p-values adjusted together. Of each panel by the
    score that counts there, if none is named."""
    found = []
    for place, panel in enumerate(panels):
        by = panel.scores[0] if score is None else score
        for name in panel.names if by in panel.scores else []:
            if (change := panel.change(name, by)) is not None:
                found.append((place, change))
    adjusted = holm([change.p for _, change in found])
    by_panel: dict[int, list[Change]] = {place: [] for place in range(len(panels))}
    for (place, change), p in zip(found, adjusted, strict=True):
        by_panel[place].append(Change(**{**vars(change), "adjusted": p}))
    return by_panel


def published() -> dict[str, Any]:
    """The paper's numbers."""
    text = files("headlab.studies.fillers").joinpath("published.json").read_text()
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def published_for(panel: Panel) -> dict[str, float]:
    """By condition, in percent, where the panel is of one of the paper's models and its task."""
    numbers = published()
    if panel.task != numbers["task"]:
        return {}
    own = numbers["models"].get(ALIASES.get(panel.source, panel.source), {})
    return {
        condition.name: own[condition.name]
        for condition in panel.conditions
        if condition.name in own and _is_known(condition)
    }


def _is_known(condition: Condition) -> bool:
    """Whether it is what its name stands for, whatever its luck."""
    known = CONDITIONS[condition.name]
    arm = condition.arm and known.arm and replace(condition.arm, seed=known.arm.seed)
    return replace(condition, seed=known.seed, arm=arm) == known


def _decoding(condition: Condition) -> tuple[float | None, float | None]:
    return condition.temperature, condition.top_p
