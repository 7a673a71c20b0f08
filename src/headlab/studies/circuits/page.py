"""The study's report: figures and one page that explains itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headlab.aliases import ALIASES
from headlab.files import write_whole
from headlab.report import render, rounded
from headlab.studies.circuits.drawing import draw_all, published
from headlab.studies.circuits.lines import Line, read_lines
from headlab.studies.circuits.multipliers import in_percent, levels_of, pairing_of
from headlab.studies.circuits.words import tell_findings, tell_warnings
from headlab.studies.facts import asked, cite, facts
from headlab.tasks import TASKS

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.circuits.spec import CircuitsSpec

_PAPER = (
    "Sparse Attention Post-Training for Mechanistic Interpretability",
    "2512.05865",
    "2025",
)


def write_report(run: Run) -> Path:
    """Figures and report.html of a run, finished or not; gives the page's path."""
    spec: CircuitsSpec = run.spec  # type: ignore[assignment]
    lines = read_lines(run)
    figures = draw_all(run, spec, lines)
    page = render(
        "circuits" if lines else "frame",  # with no cell done there is nothing to draw
        _data(spec, lines),
        title="How few heads explain the effect?",
        lead=tell_findings(spec, lines),
        asked=[
            *asked(spec),
            ("methods", ", ".join(spec.methods)),
            *([("exact", f"{spec.exact} heads")] if spec.exact else []),
            ("prompts", _prompts(spec, lines)),
            ("other heads give", spec.reference),
            ("random orders", str(spec.orders)),
            ("threshold", f"{100 * spec.threshold:g} %"),
        ],
        warnings=tell_warnings(run, spec, lines),
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
    held_out = [line for line in lines if not spec.is_per_prompt(line.method)]
    ranked = _span([len(line.scores.examples) for line in lines] or [spec.n])
    tested = _span([line.n for line in held_out] or [spec.n])
    told = f"{ranked} to rank the heads, {tested} others to test the order"
    own = [method for method in spec.methods if spec.is_per_prompt(method)]
    if not own:
        return told
    each = f"{ranked}, an order for each and tested on it (in-sample)"
    return each if len(own) == len(spec.methods) else f"{told}; {', '.join(own)}: {each}"


def _span(numbers: list[int]) -> str:
    return " to ".join(str(n) for n in sorted({min(numbers), max(numbers)}))


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
    pairing = pairing_of(spec, lines)
    return {
        "threshold": spec.threshold,
        "level": in_percent(spec.threshold),
        "pairs": pairing.pairs,
        "models": [
            {"name": model, "hub_id": ALIASES.get(source), "layers": layers, "heads": heads}
            for model, (source, layers, heads) in shapes.items()
        ],
        "tasks": [
            {"name": task, "says": TASKS[task].says if task in TASKS else "", "measure": by}
            for task, by in tasks.items()
        ],
        "methods": list(dict.fromkeys(line.method for line in lines)),
        "lines": [_line_data(line, levels_of(spec)) for line in lines],
        "in_sample": [method for method in spec.methods if spec.is_per_prompt(method)],
        "multipliers": pairing.every(spec.threshold, levels_of(spec)),
        "published": [
            {**number, "source": published()["paper"]}
            for number in published()["numbers"]
            if number["task"] in tasks
        ],
    }


def _line_data(line: Line, levels: list[float]) -> dict[str, Any]:
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
        "curve": _curve_data(line, levels) if line.curves else None,
        "edges": None if line.edges is None else _grid(line.edges),
        "edges_mean": None if line.edges is None else float(line.edges.mean()),
        "map": {
            **{
                name: _grid(v)
                for name, v in (("score", scores.score), ("low", low), ("high", high))
            },
            "estimated": scores.is_estimated.tolist() if scores.estimated else None,
        },
    }


def _curve_data(line: Line, levels: list[float]) -> dict[str, Any]:
    low, high = line.band
    crossings = {}
    for level in levels:
        early, late = line.crossing_interval(level)
        crossings[in_percent(level)] = {
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


def _grid(values: torch.Tensor) -> list[list[float | None]]:
    return [rounded(row) for row in values]
