"""The study's figures and report."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scipy.stats import spearmanr

from headlab.files import write_whole
from headlab.gatefits import few_updates
from headlab.report import render, rounded
from headlab.studies.contrastive.cell import VARIANTS
from headlab.studies.contrastive.figure import draw_all, published_for
from headlab.studies.contrastive.panels import (
    NAMES,
    Panel,
    gates_of,
    layout,
    read_panels,
)
from headlab.studies.facts import asked, cite, facts, run_warnings
from headlab.tasks.word_pairs import FORMATS, INSTRUCTIONS
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.contrastive.spec import ContrastiveSpec

_PAPER = ("Causal Head Gating", "2505.13737", "2025")
_WEAK = 0.2  # right before: with less, there is little to keep or to forget
_EVERY = 10  # updates between two points of a loss curve in the report


def write_report(run: Run) -> Path:
    """Figures and report.html of a run, finished or not; gives the page's path."""
    spec: ContrastiveSpec = run.spec  # type: ignore[assignment]
    panels = read_panels(run)
    figures = draw_all(run, panels) if panels else []
    page = render(
        "contrastive" if panels else "frame",
        _data(panels),
        title="Can gates keep one prompt format and forget the other?",
        lead=_lead(panels),
        asked=[
            *asked(spec),
            ("kept", ", ".join(spec.keep)),
            (
                "fits",
                f"{count(len(spec.seeds), 'seed')}, {count(spec.updates, 'update')} each, "
                f"batch {spec.batch}",
            ),
            ("pairs", f"up to {spec.train} of each other task to fit on, {spec.n} to test on"),
            ("from", "built in" if spec.data is None else Path(spec.data).name),
            ("a closed gate gives", spec.reference),
        ],
        warnings=_warnings(run, spec, panels),
        examples=_examples(panels),
        figures=figures,
        **facts(run),
        cite=cite(*_PAPER),
    )
    path = run.folder / "report.html"
    write_whole(path, page)
    return path.resolve()


def _examples(panels: list[Panel]) -> list[dict[str, Any]]:
    """Each task's prompts once: they are the same for every cell of a model."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for panel in panels:
        for example in panel.found.examples:
            seen.setdefault(
                (panel.task, example["prompt"]),
                {
                    "task": panel.task,
                    "model": NAMES[example["format"]],
                    "prompt": example["prompt"],
                    "target": example["target"],
                    "wrong": [],
                    "counterfactual": None,
                },
            )
    return list(seen.values())


# --- what is found, in words ---


def findings(run: Run) -> list[str]:
    """A sentence for each model and format kept."""
    return _lead(read_panels(run))


def _lead(panels: list[Panel]) -> list[str]:
    kept, models, _ = layout(panels)
    told = []
    for model in models:
        for format_ in kept:
            own = [panel for panel in panels if (panel.model, panel.kept) == (model, format_)]
            if not own:
                continue
            parts = [
                f"{word} ({NAMES[asked_]}) {_percent(own, asked_, 'before')} before, "
                f"{_percent(own, asked_, 'gates')} after, "
                f"{_percent(own, asked_, 'shuffled')} with shuffled gates"
                for word, asked_ in (("kept", format_), ("forgotten", own[0].forgotten))
            ]
            apart = sum(panel.separates for panel in own)
            tasks = f"{count(len(own), 'task')} left out"
            told.append(
                f"{model}, right on {tasks}: {'; '.join(parts)}. "
                "What is forgotten fell more than what is kept, beyond the interval, "
                f"on {apart} of {len(own)}."
            )
    return told


def _percent(panels: list[Panel], format_: str, variant: str) -> str:
    mean = statistics.mean(panel.accuracy(format_, variant)[0] for panel in panels)
    return f"{100 * mean:.0f} %"


def warnings(run: Run) -> list[str]:
    return _warnings(run, run.spec, read_panels(run))  # type: ignore[arg-type]


def _warnings(run: Run, spec: ContrastiveSpec, panels: list[Panel]) -> list[str]:
    told = run_warnings(run, any(panel.found.backed_off for panel in panels))
    fewer = {p.task: len(p.found.tested) for p in panels if len(p.found.tested) < spec.n}
    if fewer:
        each = ", ".join(f"{task} {n}" for task, n in fewer.items())
        told.append(f"{spec.n} pairs were asked for, and fewer were there to test on: {each}.")
    if len(spec.seeds) < 3:
        seeds = count(len(spec.seeds), "seed")
        told.append(f"With {seeds} it is hardly told how much the start of a fit matters.")
    told += few_updates(spec.updates)
    weak = dict.fromkeys(
        f"{panel.task} ({NAMES[format_]}), {panel.model}"
        for panel in panels
        for format_ in FORMATS
        if panel.accuracy(format_, "before")[0] < _WEAK
    )
    if weak:
        told.append(
            f"Right on less than {100 * _WEAK:.0f} % even before: {'; '.join(weak)}. There is "
            "little to keep or to forget there."
        )
    return told


# --- the report's data ---


def _data(panels: list[Panel]) -> dict[str, Any]:
    kept, models, tasks = layout(panels)
    sizes = {panel.model: panel.found.fit.logits.shape[1:] for panel in panels}
    return {
        "models": [
            {"name": model, "layers": sizes[model][0], "heads": sizes[model][1]} for model in models
        ],
        "formats": NAMES,
        "kept": kept,
        "tasks": [{"name": task, "says": INSTRUCTIONS[task]} for task in tasks],
        "panels": [_panel(panel) for panel in panels],
        "maps": [_map(panels, model, format_) for model in models for format_ in kept],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    found = panel.found
    losses = found.fit.losses.double().mean(0)[::_EVERY]
    return {
        "model": panel.model,
        "task": panel.task,
        "kept": panel.kept,
        "n": len(found.tested),
        "n_train": found.n_train,
        "seeds": found.fit.seeds,
        "separates": panel.separates,
        "accuracy": {
            format_: {
                **{variant: rounded(panel.accuracy(format_, variant)) for variant in VARIANTS},
                "seeds": rounded(panel.each_seed(format_)),
            }
            for format_ in FORMATS
        },
        "log_prob": {
            format_: dict(
                zip(VARIANTS, rounded(panel.log_prob(format_, v) for v in VARIANTS), strict=True)
            )
            for format_ in FORMATS
        },
        "closed": float((found.fit.gates < 0.5).double().mean()),
        "loss": {"every": _EVERY, "mean": rounded(losses.tolist())},
        "published": published_for(panel),
    }


def _map(panels: list[Panel], model: str, format_: str) -> dict[str, Any]:
    gates = gates_of(panels, model, format_)
    known: dict[str, Any] = {"model": model, "kept": format_}
    if gates is None:
        return {**known, "fits": 0, "gate": None, "closed": None}
    return {
        **known,
        "fits": len(gates),
        "gate": [rounded(row) for row in gates.mean(0).tolist()],
        "closed": [rounded(row) for row in (gates < 0.5).double().mean(0).tolist()],
    }


# --- two runs side by side ---


def compare(one: Run, other: Run) -> list[dict[str, str]]:
    """A row for each model, task left out and format kept of both."""
    rows = []
    for a in read_panels(one):
        for b in read_panels(other):
            if (a.source, a.task, a.kept) != (b.source, b.task, b.kept):
                continue
            mine, theirs = (panel.found.fit.gates.mean(0).flatten() for panel in (a, b))
            row = {"left out": a.task, "model": a.model, "kept": NAMES[a.kept]}
            for word, format_ in (("kept", a.kept), ("forgotten", a.forgotten)):
                ends = [f"{100 * p.accuracy(format_, 'gates')[0]:.0f} %" for p in (a, b)]
                row[f"right, {word}"] = "; ".join(ends)
            row["gates"] = f"rank correlation {_correlation(mine, theirs):.2f}"
            rows.append(row)
    return rows


def _correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(spearmanr(a, b).statistic)
