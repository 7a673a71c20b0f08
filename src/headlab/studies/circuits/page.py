"""The study's report: figures and one page that explains itself."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headlab.aliases import ALIASES
from headlab.curves import MIN_ORDERS
from headlab.figures import save_head_map, save_table
from headlab.files import write_whole
from headlab.report import render, rounded
from headlab.studies.cells import labels, slug
from headlab.studies.circuits.figure import save_figure
from headlab.studies.circuits.lines import Line, all_multipliers, multiplier, read_lines
from headlab.studies.facts import asked, cite, facts, run_warnings
from headlab.tasks import TASKS
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.circuits.spec import CircuitsSpec

_LEVELS = (0.8, 0.9, 0.95)
_PAPER = (
    "Sparse Attention Post-Training for Mechanistic Interpretability",
    "2512.05865",
    "2025",
)


def published() -> dict[str, Any]:
    """The paper's numbers."""
    text = files("headlab.studies.circuits").joinpath("published.json").read_text()
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def write_report(run: Run) -> Path:
    """Figures and report.html of a run, finished or not; gives the page's path."""
    spec: CircuitsSpec = run.spec  # type: ignore[assignment]
    lines = read_lines(run)
    figures = _draw(run, spec, lines)
    page = render(
        "circuits" if lines else "frame",  # with no cell done there is nothing to draw
        _data(spec, lines),
        title="How few heads explain the effect?",
        lead=_lead(spec, lines),
        asked=[
            *asked(spec),
            ("methods", ", ".join(spec.methods)),
            ("prompts", _prompts(spec, lines)),
            ("other heads give", spec.reference),
            ("random orders", str(spec.orders)),
            ("threshold", f"{100 * spec.threshold:g} %"),
        ],
        warnings=_warnings(run, spec, lines),
        examples=_examples(lines),
        figures=figures,
        **facts(run),
        cite=cite(*_PAPER),
    )
    path = run.folder / "report.html"
    write_whole(path, page)
    return path.resolve()


def _prompts(spec: CircuitsSpec, lines: list[Line]) -> str:
    """How many were used: a file may have fewer than were asked for."""
    ranked = _span([len(line.scores.examples) for line in lines] or [spec.n])
    tested = _span([line.n for line in lines] or [spec.n])
    if spec.per_prompt:
        return f"{ranked}, an order for each and tested on it"
    return f"{ranked} to rank the heads, {tested} others to test the order"


def _span(numbers: list[int]) -> str:
    return " to ".join(str(n) for n in sorted({min(numbers), max(numbers)}))


def _draw(run: Run, spec: CircuitsSpec, lines: list[Line]) -> list[dict[str, str]]:
    folder = run.folder / "figures"
    drawn = []
    for method in spec.methods:
        own = [line for line in lines if line.method == method]
        if any(not line.finding for line in own):
            name = "circuits" if len(spec.methods) == 1 else f"circuits-{method}"
            save_figure(
                own, _present(spec, own), spec.threshold, published()["numbers"], folder, name
            )
            drawn.append((name, f"Explained effect against heads kept, ranked by {method}"))
    if lines:
        save_table(_numbers(spec, lines), folder, "numbers")
    for line in lines:
        name = "head-map-" + "-".join(slug(word) for word in _key(line))
        twins = sum(each.startswith(name) for each, _ in drawn)  # names that differ by signs only
        name += f"-{twins + 1}" if twins else ""
        save_head_map(line.scores, folder, name)
        drawn.append((name, f"Head map of {line.model} on {line.task}, {line.method}"))
    return [
        {"name": name, "alt": alt, **{e: f"figures/{name}.{e}" for e in ("png", "pdf", "csv")}}
        for name, alt in drawn
    ]


def _numbers(spec: CircuitsSpec, lines: list[Line]) -> list[dict[str, Any]]:
    """The report's table of numbers, a row a line."""
    rows = []
    for line in lines:
        row: dict[str, Any] = {"model": line.model, "task": line.task, "method": line.method}
        row |= {"measure": line.measure, "prompts": line.n, "heads": line.n_heads}
        row |= {"clean": line.mean("clean"), "none": line.mean("none")}
        for level in sorted({*_LEVELS, spec.threshold}):
            ends = line.crossing_interval(level) if line.curves else (None, None)
            name = f"k{_percent(level)}"
            row[name] = line.crossing(level) if line.curves else None
            row[f"{name}_low"], row[f"{name}_high"] = ends
        k = line.crossing(spec.threshold) if line.curves else None
        row["random_at_k"] = None if k is None else line.random_at(k)
        for name in ("cpr", "cmd", "random_cpr", "matched_cpr", "beats_random", "beats_matched"):
            row[name] = line.mean(name) if line.curves else None
        rows.append({**row, "finding": line.finding})
    return rows


def _key(line: Line) -> tuple[str, str, str]:
    return line.model, line.task, line.method


def _present(spec: CircuitsSpec, lines: list[Line]) -> list[list[str]]:
    """The pairs of which both models have lines, by the names that figures use."""
    names, there = labels(spec.models), {line.model for line in lines}
    pairs = [[names[model] for model in pair] for pair in spec.pairs]
    return [pair for pair in pairs if there.issuperset(pair)]


# --- what is found, in words ---


def findings(run: Run) -> list[str]:
    """A sentence for each line and each pair."""
    return _lead(run.spec, read_lines(run))  # type: ignore[arg-type]


def _lead(spec: CircuitsSpec, lines: list[Line]) -> list[str]:
    level = spec.threshold
    told = []
    for line in lines:
        where = f"{line.task}, {line.model}"
        where += f", {line.method}" if len(spec.methods) > 1 else ""
        if line.finding:
            told.append(f"{where}: {line.finding}.")
            continue
        k, (low, high) = line.crossing(level), line.crossing_interval(level)
        if k is None:
            told.append(f"{where}: no number of heads explains {100 * level:g} % of the effect.")
            continue
        each = [curve.crossing(level) for curve in line.curves]
        seeds = f" (by seed {', '.join(map(_or_none, each))})" if len(each) > 1 else ""
        beside = f"; as many random heads explain {round(100 * line.random_at(k))} %"
        hardly = (high or line.n_heads) - (low or 0) > line.n_heads / 2
        told.append(
            f"{where}: {k} of {line.n_heads} heads (95 % interval {_or_none(low)} to "
            f"{_or_none(high)}) explain {100 * level:g} % of the effect{seeds}"
            f"{'' if line.method == 'random' else beside}"
            f"{f'; {line.n} prompts hardly tell' if hardly else ''}."
        )
    for dense, sparse in _present(spec, lines):
        for one in lines:
            for other in lines:
                if _key(one) == (dense, one.task, one.method) and _key(other) == (
                    *(sparse, one.task, one.method),
                ):
                    told.append(_ratio(one, other, level, len(spec.methods) > 1))
    return told


def _ratio(one: Line, other: Line, level: float, say_method: bool) -> str:
    found = multiplier(one, other, level)
    pair = f"{one.task}: {one.model} against {other.model}"
    pair += f", {one.method}" if say_method else ""
    if found.value is None:
        return f"{pair}: no multiplier, {found.reason}."
    return (
        f"{pair}: {found.value:.1f}x as many heads ({found.low:.1f} to {found.high:.1f}) for "
        f"{100 * level:g} %."
    )


def _or_none(k: int | None) -> str:
    return "none" if k is None else str(k)


def warnings(run: Run) -> list[str]:
    return _warnings(run, run.spec, read_lines(run))  # type: ignore[arg-type]


def _warnings(run: Run, spec: CircuitsSpec, lines: list[Line]) -> list[str]:
    told = run_warnings(run, any(each.backed_off for line in lines for each in line.found))
    fewer = {line.task: line.n for line in lines if 0 < line.n < spec.n}
    if fewer and not spec.per_prompt:
        each = ", ".join(f"{task} {n}" for task, n in fewer.items())
        told.append(f"{spec.n} prompts were asked for, and fewer were there to test on: {each}.")
    if spec.orders < MIN_ORDERS:
        told.append(
            f"With {count(spec.orders, 'random order')} this is a quick look; at least "
            f"{MIN_ORDERS} stand behind a baseline."
        )
    if spec.per_prompt:
        told.append("Heads were ranked on the very prompts they are tested on: in-sample.")
    return told


def _examples(lines: list[Line]) -> list[dict[str, Any]]:
    """Some of each task, as each model was asked them: a model may have words of its own."""
    once = {(line.task, line.model): line.found[0].examples for line in reversed(lines)}
    return [
        {
            "task": task,
            "model": model,
            "prompt": example["prompt"],
            "target": example["target"],
            "wrong": list(example.get("wrong", ())),
            "counterfactual": example.get("counterfactual"),
        }
        for task, model in dict.fromkeys((line.task, line.model) for line in lines)
        for example in once[task, model]
    ]


# --- what the page's script draws ---


def _data(spec: CircuitsSpec, lines: list[Line]) -> dict[str, Any]:
    shapes = {line.model: (line.source, *line.scores.shape) for line in lines}
    tasks = {line.task: line.measure for line in lines}
    return {
        "threshold": spec.threshold,
        "level": _percent(spec.threshold),
        "pairs": _present(spec, lines),
        "models": [
            {"name": model, "hub_id": ALIASES.get(source), "layers": layers, "heads": heads}
            for model, (source, layers, heads) in shapes.items()
        ],
        "tasks": [
            {"name": task, "says": TASKS[task].says if task in TASKS else "", "measure": by}
            for task, by in tasks.items()
        ],
        "methods": list(dict.fromkeys(line.method for line in lines)),
        "lines": [_line_data(line, spec.threshold) for line in lines],
        "multipliers": [
            {
                **vars(found),
                "dense": found.dense,
                "sparse": found.sparse,
                "task": found.task,
            }
            for found in all_multipliers(lines, spec.threshold)
        ],
        "published": [
            {**number, "source": published()["paper"]}
            for number in published()["numbers"]
            if number["task"] in tasks
        ],
    }


def _line_data(line: Line, threshold: float) -> dict[str, Any]:
    scores = line.scores
    low, high = scores.interval
    return {
        "model": line.model,
        "task": line.task,
        "method": line.method,
        "seeds": line.seeds,
        "n": line.n or len(scores.examples),
        "n_heads": line.n_heads,
        "sample": line.curves[0].sample if line.curves else "",
        "measure": line.measure,
        "clean": line.mean("clean"),
        "none": line.mean("none"),
        "noise_floor": scores.noise_floor,
        "finding": line.finding,
        "curve": _curve_data(line, threshold) if line.curves else None,
        "map": {
            name: _grid(v) for name, v in (("score", scores.score), ("low", low), ("high", high))
        },
    }


def _curve_data(line: Line, threshold: float) -> dict[str, Any]:
    low, high = line.band
    crossings = {}
    for level in sorted({*_LEVELS, threshold}):
        early, late = line.crossing_interval(level)
        crossings[_percent(level)] = {
            "k": line.crossing(level),
            "low": early,
            "high": late,
            "stay": line.crossing(level, stay=True),
        }
    return {
        "ks": line.ks,
        "explained": rounded(line.explained),
        "low": rounded(low),
        "high": rounded(high),
        "random": {
            "orders": len(line.random),
            "ks": line.random_ks,
            "mean": rounded(line.random.mean(0)),
            "low": rounded(line.random.quantile(0.025, 0)),
            "high": rounded(line.random.quantile(0.975, 0)),
        },
        "matched": {"ks": line.random_ks, "mean": rounded(line.matched.mean(0))},
        "crossings": crossings,
        **{name: line.mean(name) for name in ("cpr", "cmd", "beats_random", "beats_matched")},
        "random_cpr": line.mean("random_cpr"),
    }


def _percent(level: float) -> str:
    return f"{100 * level:g}"


def _grid(values: torch.Tensor) -> list[list[float | None]]:
    return [rounded(row) for row in values]
