"""`grade`: a column of scores for every grader, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from headlab.errors import HeadlabError
from headlab.grading.registry import Options, find_graders
from headlab.grading.rows import Row

if TYPE_CHECKING:
    import pandas

_BOOTSTRAPPED = 10_000  # rows; beyond, the bootstrap is the normal interval and fills memory


@dataclass(frozen=True)
class Column:
    """One score of every row; None where the row lacks what it takes."""

    name: str  # the grader's
    label: str  # the column's: cosine[MiniLM]
    kind: Literal["share", "mean"]
    scores: list[float | None]
    span: tuple[float, float] = (0.0, 1.0)  # what a score can be
    timed_out: frozenset[int] = frozenset()  # places of rows
    failed: frozenset[int] = frozenset()
    unparsed: frozenset[int] = frozenset()

    @property
    def scored(self) -> list[float]:
        return [score for score in self.scores if score is not None]

    def part(self, places: Sequence[int]) -> Column:
        """The same of some rows."""
        at = {place: number for number, place in enumerate(places)}

        def among(troubled: frozenset[int]) -> frozenset[int]:
            return frozenset(at[place] for place in troubled if place in at)

        return replace(
            self,
            scores=[self.scores[place] for place in places],
            timed_out=among(self.timed_out),
            failed=among(self.failed),
            unparsed=among(self.unparsed),
        )

    def summary(self) -> dict[str, Any]:
        """n, mean, its 95 % interval, and how many rows stand behind which trouble."""
        values = self.scored
        low, high = _interval(values, self.kind, self.span)
        return {
            "n": len(values),
            "mean": sum(values) / len(values) if values else math.nan,
            "low": low,
            "high": high,
            "kind": self.kind,
            "timed_out": len(self.timed_out),
            "failed": len(self.failed),
            "unparsed": len(self.unparsed),
            "not_scored": len(self.scores) - len(values),
        }


@dataclass(frozen=True)
class Graded:
    """Rows and their scores.

    >>> graded = grade([{"prediction": "Paris.", "gold": "paris"}], "exact")
    >>> graded["exact"].scores, graded.summary()["exact"]["mean"]
    ([1.0], 1.0)
    """

    rows: list[Mapping[str, Any]]
    columns: dict[str, Column]  # by label
    in_json: int = 0  # answers that stood in JSON; of the others the whole text was scored
    prompts_cut: int = 0  # predictions that began with their prompt
    notes: list[str] = field(default_factory=list)  # what to be careful with, a sentence each

    def __getitem__(self, name: str) -> Column:
        for label, column in self.columns.items():
            if name in (label, column.name):
                return column
        raise KeyError(name)

    @property
    def table(self) -> pandas.DataFrame:
        """A row a row, a column a score, by id (or the row's number)."""
        import pandas

        ids = [row.get("id", place) for place, row in enumerate(self.rows)]
        scores = {label: column.scores for label, column in self.columns.items()}
        return pandas.DataFrame(scores, index=pandas.Index(ids, name="id"), dtype=float)

    def as_rows(self) -> list[dict[str, Any]]:
        """The rows as they came, with a field a score, and `math_timed_out` where it was."""
        graded = []
        for place, row in enumerate(self.rows):
            made = dict(row)
            for label, column in self.columns.items():
                made[label] = column.scores[place]
                made.pop(f"{label}_timed_out", None)  # of an earlier grading
                if place in column.timed_out:
                    made[f"{label}_timed_out"] = True
            graded.append(made)
        return graded

    def summary(self) -> dict[str, dict[str, Any]]:
        return {label: column.summary() for label, column in self.columns.items()}

    def by(self, name: str) -> dict[str, dict[str, dict[str, Any]]]:
        """The summary of each group of rows with one value of a field, in order of appearance."""
        groups: dict[str, list[int]] = {}
        for place, row in enumerate(self.rows):
            groups.setdefault(str(row.get(name, "")), []).append(place)
        return {
            value: {label: column.part(places).summary() for label, column in self.columns.items()}
            for value, places in groups.items()
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": len(self.rows),
            "answers_in_json": self.in_json,
            "prompts_cut": self.prompts_cut,
            "scores": self.summary(),
            "notes": self.notes,
        }


def grade(
    rows: Iterable[Mapping[str, Any]],
    graders: str | Sequence[str],
    *,
    time_limit: float = 5.0,
    workers: int | None = None,
    checkpoint: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Graded:
    """Score each row `{prediction, gold, unmasked?, prompt?, id?}` with each grader.

    `time_limit` is in seconds for one pair of `math`, `workers` its processes, `checkpoint` the
    one of `comet`. `progress` is called with the number of scores made since the last call.
    """
    if not (time_limit > 0 and math.isfinite(time_limit)):
        raise HeadlabError(f"the time limit is a number of seconds above 0, not {time_limit}")
    if workers is not None and workers < 1:
        raise HeadlabError(f"at least one worker is needed, not {workers}")
    options = Options(time_limit, workers, checkpoint)
    chosen = find_graders(graders)
    for grader in chosen:
        grader.require(options)
    given = list(rows)
    for place, record in enumerate(given):
        if not isinstance(record, Mapping):
            kind = type(record).__name__
            raise HeadlabError(f"row {place + 1} is of type {kind}; give a dict with its fields")
    made = [Row.of(record) for record in given]
    columns = {}
    for grader in chosen:
        places = [place for place, row in enumerate(made) if grader.scores(row)]
        scored = grader.score([made[place] for place in places], options, progress)
        if progress:
            progress(len(made) - len(places))
        scores: list[float | None] = [None] * len(made)
        for place, score in zip(places, scored.scores, strict=True):
            scores[place] = score
        label = grader.label(options)
        columns[label] = Column(
            name=grader.name,
            label=label,
            kind=grader.kind,
            scores=scores,
            span=grader.range(options),
            timed_out=frozenset(places[each] for each in scored.timed_out),
            failed=frozenset(places[each] for each in scored.failed),
            unparsed=frozenset(places[each] for each in scored.unparsed),
        )
    return Graded(
        rows=given,
        columns=columns,
        in_json=sum(row.in_json for row in made),
        prompts_cut=sum(row.prompt_cut for row in made),
        notes=_notes(made, columns, time_limit),
    )


def _notes(rows: list[Row], columns: dict[str, Column], seconds: float) -> list[str]:
    notes = []
    total = len(rows)
    for field_name, what in (("answer", "prediction"), ("gold", "gold")):
        missing = sum(getattr(row, field_name) is None for row in rows)
        if missing:
            have = _some(missing, total, "row", "has", "have")
            notes.append(f"{have} no {what!r} and no score")
    unmasked = sum(row.unmasked is None for row in rows)
    asking = [
        label
        for label, column in columns.items()
        if column.name in ("comet", "quality", "published")
    ]
    if unmasked and asking:
        need = " and ".join(asking) + (" need" if len(asking) > 1 else " needs")
        have = _some(unmasked, total, "row", "has", "have")
        notes.append(f"{have} no 'unmasked' text, which {need}")
    if in_json := sum(row.in_json for row in rows):
        rest = total - in_json
        if rest:
            hold = _some(rest, total, "prediction", "holds", "hold")
            notes.append(f"{hold} no answer in JSON: scored whole")
    if cut := sum(row.prompt_cut for row in rows):
        began = _some(cut, total, "prediction", "began with its", "began with their")
        notes.append(f"{began} prompt, which was cut off")
    for label, column in columns.items():
        if column.timed_out:
            late = len(column.timed_out)
            took = _some(late, total, "row", "took", "took")
            notes.append(f"{label}: {took} longer than {seconds:g} s and {_counts(late)} as wrong")
        if column.failed:
            lost = len(column.failed)
            broke = _some(lost, total, "row", "broke", "broke")
            notes.append(f"{label}: {broke} the grader and {_counts(lost)} as wrong")
    return notes


def _some(count: int, total: int, what: str, one: str, many: str) -> str:
    """`1 of 4 rows has`, `2 of 4 rows have`, `1 of 1 row has`"""
    named = what if total == 1 else f"{what}s"
    return f"{count:,} of {total:,} {named} {one if count == 1 else many}"


def _counts(count: int) -> str:
    return "counts" if count == 1 else "count"


def _interval(values: list[float], kind: str, span: tuple[float, float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    from headlab.stats import mean_interval, share_interval

    if kind == "share":
        return share_interval(sum(values), len(values))
    import torch

    scores = torch.tensor(values, dtype=torch.float64)
    if len(values) > _BOOTSTRAPPED:
        mean, spread = float(scores.mean()), 1.96 * float(scores.std()) / math.sqrt(len(values))
        low, high = mean - spread, mean + spread
    else:
        low, high = map(float, mean_interval(scores))
    if math.isnan(low):  # one row has none
        return low, high
    return max(span[0], low), min(span[1], high)
