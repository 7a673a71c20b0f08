"""The study's figure and report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import spearmanr

from headlab.files import write_whole
from headlab.gatefits import few_updates
from headlab.gatefits.figures import NAMES
from headlab.gatefits.roles import METRICS, ROLES
from headlab.report import render, rounded
from headlab.studies.facts import asked, cite, facts, run_warnings
from headlab.studies.roles.cell import Found
from headlab.studies.roles.figure import draw_all
from headlab.studies.roles.panels import Panel, layout, published, read_panels
from headlab.studies.spec import MIN_ORDERS
from headlab.tasks import TASKS
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.roles.spec import RolesSpec

_PAPER = ("Causal Head Gating", "2505.13737", "2025")
_EVERY = 10  # updates between two points of a loss curve in the report


def write_report(run: Run) -> Path:
    """Figures and report.html of a run, finished or not; gives the page's path."""
    spec: RolesSpec = run.spec  # type: ignore[assignment]
    panels = read_panels(run)
    figures = draw_all(run, panels) if panels else []
    page = render(
        "roles" if panels else "frame",
        _data(spec, panels),
        title="Which heads help, hurt, or do nothing?",
        lead=_lead(panels),
        asked=[
            *asked(spec),
            (
                "fits",
                f"{count(len(spec.seeds), 'seed')}, {count(spec.updates, 'update')} each, "
                f"batch {spec.batch}",
            ),
            ("questions", _questions(spec, panels)),
            ("from", "built in" if spec.data is None else Path(spec.data).name),
            ("a closed gate gives", spec.reference),
            (
                "heads are ablated against",
                {"plus": "G+", "ones": "all heads", "raw": "raw G+"}[spec.base],
            ),
        ],
        warnings=_warnings(run, spec, panels),
        examples=[
            {
                "task": panel.task,
                "model": panel.model,
                "prompt": example["prompt"],
                "target": example["target"],
                "wrong": list(example.get("wrong", ())),
                "counterfactual": None,
            }
            for panel in panels
            for example in panel.found.examples
        ],
        figures=figures,
        **facts(run),
        cite=cite(*_PAPER),
    )
    path = run.folder / "report.html"
    write_whole(path, page)
    return path.resolve()


def _questions(spec: RolesSpec, panels: list[Panel]) -> str:
    if not panels:
        return f"{spec.n} to test on"
    train = sorted({panel.found.n_train for panel in panels})
    tested = sorted({len(panel.found.right) for panel in panels})
    one, other = (" to ".join(map(str, dict.fromkeys((n[0], n[-1])))) for n in (train, tested))
    return f"{one} to fit on, {other} others to test on"


# --- what is found, in words ---


def findings(run: Run) -> list[str]:
    """A sentence or two for each model and task."""
    return _lead(read_panels(run))


def _lead(panels: list[Panel]) -> list[str]:
    told = []
    for panel in panels:
        shares = panel.found.roles.shares()
        k = panel.found.deltas.ks[-1]
        f, i, n, r = (_signed(panel.at_end(line)) for line in ("F", "I", "N", "random"))
        at, most = panel.best("N")
        bump = f", at its best {most:+.2f} with {at}" if at not in (0, k) else ""
        told.append(
            f"{panel.task}, {panel.model}: {100 * shares['facilitating']['mean']:.0f} % of the "
            f"heads facilitate, {100 * shares['interfering']['mean']:.0f} % interfere, "
            f"{100 * shares['irrelevant']['mean']:.0f} % are irrelevant. Ablating the first {k} "
            f"changes the target's log-prob by {f} (facilitating), {i} (irrelevant), {n} "
            f"(interfering{bump}) and {r} (random)."
        )
    return told


def _signed(ends: tuple[float, float, float]) -> str:
    mean, low, high = ends
    return f"{mean:+.2f}" + ("" if math.isnan(low) else f" ({low:+.2f} to {high:+.2f})")


def warnings(run: Run) -> list[str]:
    return _warnings(run, run.spec, read_panels(run))  # type: ignore[arg-type]


def _warnings(run: Run, spec: RolesSpec, panels: list[Panel]) -> list[str]:
    told = run_warnings(run, any(panel.found.backed_off for panel in panels))
    fewer = {panel.task: len(panel.found.right) for panel in panels}
    fewer = {task: n for task, n in fewer.items() if n < spec.n}
    if fewer:
        each = ", ".join(f"{task} {n}" for task, n in fewer.items())
        told.append(f"{spec.n} questions were asked for, and fewer were there to test on: {each}.")
    if spec.random_orders < MIN_ORDERS:
        told.append(
            f"With {count(spec.random_orders, 'random order')} this is a quick look; at least "
            f"{MIN_ORDERS} stand behind a baseline."
        )
    if len(spec.seeds) < 5:
        seeds = count(len(spec.seeds), "seed")
        told.append(f"With {seeds} it is hardly told how certain a role is; the paper has 10.")
    told += few_updates(spec.updates)
    weak = [
        f"{panel.task}, {panel.model}"
        for panel in panels
        if panel.found.chance is not None and panel.accuracy[1] <= panel.found.chance
    ]
    if weak:
        told.append(f"No better than chance on {'; '.join(weak)}: roles say little there.")
    mixed = [panel for panel in panels if panel.found.roles.shares()["mixed"]["any"] > 0]
    if mixed:
        told.append(
            "Some heads score high on both facilitation and interference (G+ low, G− high): "
            + "; ".join(
                f"{100 * p.found.roles.shares()['mixed']['mean']:.1f} % on {p.task}, {p.model}"
                for p in mixed
            )
            + "."
        )
    return told


# --- what the page's script draws ---


def _data(spec: RolesSpec, panels: list[Panel]) -> dict[str, Any]:
    tasks, models = layout(panels)
    shapes = {panel.model: panel.found.roles.shape for panel in panels}
    return {
        "roles": list(ROLES),
        "models": [
            {"name": model, "layers": shapes[model][0], "heads": shapes[model][1]}
            for model in models
        ],
        "tasks": [
            {"name": task, "says": TASKS[task].says if task in TASKS else ""} for task in tasks
        ],
        "panels": [_panel_data(spec, panel) for panel in panels],
    }


def _panel_data(spec: RolesSpec, panel: Panel) -> dict[str, Any]:
    found, roles = panel.found, panel.found.roles
    role, agree = roles.agreement()
    value, low, high = panel.accuracy
    n = len(found.fit.seeds)
    losses = found.fit.losses.view(3, n, -1).mean(1)[:, ::_EVERY]
    grid_ = np.linspace(0, 1, 101)
    scores = {metric: roles.scores[metric].double().mean(0) for metric in METRICS}
    return {
        "model": panel.model,
        "task": panel.task,
        "n_heads": found.fit.plus[0].numel(),
        "seeds": found.fit.seeds,
        "n_train": found.n_train,
        "n": len(found.right),
        "base": spec.base,
        "reference": spec.reference,
        "accuracy": {
            "value": value,
            "low": low,
            "high": high,
            "chance": found.chance,
            "n": len(found.right),
        },
        "ks": found.deltas.ks,
        "lines": {line: _line(found, line) for line in NAMES},
        "shares": roles.shares(),
        "map": {
            "role": role.tolist(),
            "agree": agree.tolist(),
            **{metric: _grid(score) for metric, score in scores.items()},
            "g_plus": _grid(found.fit.g_plus.double().mean(0)),
            "g_minus": _grid(found.fit.g_minus.double().mean(0)),
        },
        "ecdf": {
            "x": [round(float(x), 2) for x in grid_],
            **{
                metric: rounded(
                    torch.from_numpy(
                        np.searchsorted(
                            np.sort(s := roles.scores[metric].flatten().numpy()), grid_, "right"
                        )
                        / len(s)
                    )
                )
                for metric in METRICS
            },
        },
        "loss": {
            "every": _EVERY,
            **{phase: rounded(losses[i]) for i, phase in enumerate(("free", "plus", "minus"))},
        },
        "published": _published_shares(panel.task),
        "published_mean": published()["mean_shares"].get(panel.task),
    }


def _line(found: Found, line: str) -> dict[str, Any]:
    low, high = found.deltas.band(line)
    return {
        "mean": rounded(found.deltas.mean(line)),
        "low": None if bool(low.isnan().all()) else rounded(low),
        "high": None if bool(high.isnan().all()) else rounded(high),
    }


def _published_shares(task: str) -> list[dict[str, Any]]:
    numbers = published()
    known = numbers["shares"].get(task)
    if known is None:
        return []
    return [
        {
            "name": name,
            **{
                when: {role: known[when][role][i] for role in ("facilitating", "interfering")}
                for when in ("always", "any")
            },
        }
        for i, name in enumerate(numbers["models"])
    ]


def _grid(values: torch.Tensor) -> list[list[float | None]]:
    return [rounded(row) for row in values]


# --- two runs side by side ---


def compare(one: Run, other: Run) -> list[dict[str, str]]:
    """A row for each model and task of both."""
    rows = []
    for a in read_panels(one):
        for b in read_panels(other):
            if (a.source, a.task) != (b.source, b.task):
                continue
            row = {"task": a.task, "model": a.model}
            for metric, name in METRICS.items():
                mine, theirs = (p.found.roles.scores[metric].mean(0).flatten() for p in (a, b))
                row[name] = f"rank correlation {spearmanr(mine, theirs).statistic:.2f}"
            same = (a.found.roles.agreement()[0] == b.found.roles.agreement()[0]).double().mean()
            row["same role"] = f"{100 * float(same):.0f} % of heads"
            row["Δ at the end, F"] = f"{_signed(a.at_end('F'))}; {_signed(b.at_end('F'))}"
            rows.append(row)
    return rows
