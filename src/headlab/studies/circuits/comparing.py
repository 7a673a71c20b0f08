"""Two runs side by side: the same cells of both, their ks, their heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scipy.stats import spearmanr

from headlab.studies.circuits.lines import Line, read_lines
from headlab.studies.circuits.multipliers import Multiplier, compared

if TYPE_CHECKING:
    from headlab.store import Run

_BEST = 10


def compare(one: Run, other: Run) -> list[dict[str, str]]:
    """A row for each task and method of both; of two runs with a model each, whatever its name."""
    level = one.spec.threshold  # type: ignore[attr-defined]
    rows = []
    for a, b in _matched(read_lines(one), read_lines(other)):
        rows.append(
            {
                "task": a.task,
                "method": a.method,
                "models": a.model if a.model == b.model else f"{a.model}, {b.model}",
                f"first k{100 * level:g}": _k(a, level),
                f"second k{100 * level:g}": _k(b, level),
                "first / second": _ratio(compared(a, b, level)),
                "CPR": f"{_cpr(a)}, {_cpr(b)}",
                "heads agree": _agreement(a, b),
            }
        )
    return rows


def _ratio(found: Multiplier) -> str:
    if found.value is None:
        return f"none, {found.brief}"
    return f"{found.value:.2f}x ({found.low:.2f} to {found.high:.2f})"


def _matched(first: list[Line], second: list[Line]) -> list[tuple[Line, Line]]:
    alone = len({line.model for line in first}) == 1 == len({line.model for line in second})
    return [
        (a, b)
        for a in first
        for b in second
        if (a.task, a.method) == (b.task, b.method) and (alone or a.source == b.source)
    ]


def _k(line: Line, level: float) -> str:
    if line.finding:
        return "no effect seen"
    low, high = ("-" if k is None else str(k) for k in line.crossing_interval(level))
    k = line.crossing(level)
    return f"{'-' if k is None else k} of {line.n_heads} ({low} to {high})"


def _cpr(line: Line) -> str:
    return "-" if line.finding else f"{line.mean('cpr'):.3f}"


def _agreement(a: Line, b: Line) -> str:
    """Rank correlation of the scores, and shared heads among the ten best."""
    if a.scores.shape != b.scores.shape:
        return "other shapes"
    if (a.scores.values.shape == b.scores.values.shape) and bool(
        (a.scores.values == b.scores.values).all()
    ):
        return "the same scores"
    rho = spearmanr(a.scores.score.flatten(), b.scores.score.flatten()).statistic
    best = min(_BEST, max(1, a.n_heads // 4))
    shared = len(set(a.scores.order()[:best]) & set(b.scores.order()[:best]))
    return f"rank correlation {rho:.2f}, {shared} of the best {best}"
