"""What a circuits run found, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headlab.curves import MIN_ORDERS
from headlab.gradients import ALL_HEADS, BY_PASSES
from headlab.screening import missed, ran
from headlab.studies.circuits.lines import Line, read_lines
from headlab.studies.circuits.multipliers import Multiplier, in_percent, pairing_of
from headlab.studies.circuits.spec import way_of
from headlab.studies.facts import run_warnings
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.circuits.spec import CircuitsSpec


def findings(run: Run) -> list[str]:
    """A sentence for each pair and each line."""
    return tell_findings(run.spec, read_lines(run))  # type: ignore[arg-type]


def tell_findings(spec: CircuitsSpec, lines: list[Line]) -> list[str]:
    pairing, level = pairing_of(spec, lines), spec.threshold
    told = []
    for one, other, is_twin in pairing.declared():
        pair = f"{one.task}: {one.model} against {other.model}{' (its twin)' if is_twin else ''}"
        pair += f", {one.method}" if len(spec.methods) > 1 else ""
        told.append(f"{pair}: {_ratio(pairing.multiplier(one, other, level), level, other.n)}.")
    for line in lines:
        where = f"{line.task}, {line.model}"
        where += f", {line.method}" if len(spec.methods) > 1 else ""
        told.append(f"{where}: {_needed(line, level)}.")
    return told


def _needed(line: Line, level: float) -> str:
    if line.finding:
        return line.finding
    k, (low, high) = line.crossing(level), line.crossing_interval(level)
    if k is None:
        return f"no number of heads explains {in_percent(level)} % of the effect"
    each = [curve.crossing(level) for curve in line.curves]
    seeds = f" (by seed {', '.join(map(_or_none, each))})" if len(each) > 1 else ""
    beside = f"; as many random heads explain {round(100 * line.random_at(k))} %"
    hardly = (high or line.n_heads) - (low or 0) > line.n_heads / 2
    return (
        f"{k} of {line.n_heads} heads (95 % interval {_or_none(low)} to "
        f"{_or_none(high)}) explain {in_percent(level)} % of the effect{seeds}"
        f"{'' if line.method == 'random' else beside}"
        f"{f'; {line.n} prompts hardly tell' if hardly else ''}"
    )


def _ratio(found: Multiplier, level: float, n: int) -> str:
    if found.value is None or found.low is None or found.high is None:
        return f"no multiplier, {found.reason}"
    unclear = found.low <= 1 <= found.high and found.low < found.high
    return (
        f"{found.value:.2f}x as many heads (95 % interval {found.low:.2f} to {found.high:.2f}) for "
        f"{in_percent(level)} % of the effect"
        f"{f'; {n} prompts do not tell which needs fewer' if unclear else ''}"
    )


def _or_none(k: int | None) -> str:
    return "none" if k is None else str(k)


def warnings(run: Run) -> list[str]:
    return tell_warnings(run, run.spec, read_lines(run))  # type: ignore[arg-type]


def tell_warnings(run: Run, spec: CircuitsSpec, lines: list[Line]) -> list[str]:
    told = run_warnings(run, any(each.backed_off for line in lines for each in line.found))
    held_out = [line for line in lines if not spec.is_per_prompt(line.method)]
    fewer = {line.task: line.n for line in held_out if 0 < line.n < spec.n}
    if fewer:
        each = ", ".join(f"{task} {n}" for task, n in fewer.items())
        told.append(f"{spec.n} prompts were asked for, and fewer were there to test on: {each}.")
    if spec.orders < MIN_ORDERS:
        told.append(
            f"With {count(spec.orders, 'random order')} this is a quick look; at least "
            f"{MIN_ORDERS} stand behind a baseline."
        )
    in_sample = [method for method in spec.methods if spec.is_per_prompt(method)]
    if in_sample:
        which = f" by {', '.join(in_sample)}" if len(in_sample) < len(spec.methods) else ""
        told.append(f"Heads were ranked{which} on the very prompts they are tested on: in-sample.")
    for line in lines:
        for seed, found in zip(line.seeds, line.found, strict=True):
            if found.scores.estimated:
                each = f", seed {seed}" if len(line.seeds) > 1 else ""
                told.append(
                    f"{line.task}, {line.model}, {line.method}{each}: "
                    f"{ran(found.scores)}{missed(found.scores)}."
                )
    by_slope = [line for line in lines if way_of(line.method) == "attribute"]
    sparse = dict.fromkeys(line.model for line in by_slope if line.edges is not None)
    if sparse:
        told.append(f"{BY_PASSES}; attribute was asked of {', '.join(sparse)}.")
    picked = dict.fromkeys(
        line.model
        for line in lines
        if line.edges is not None and any(each.scores.estimated for each in line.found)
    )
    if picked:
        told.append(f"{ALL_HEADS}. Some were of {', '.join(picked)}.")
    return told
