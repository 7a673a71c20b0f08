"""The study's figures: Δ log-prob against heads ablated, and how the scores spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from headlab.aliases import ALIASES
from headlab.figures import GREY, STYLE, add_caption, save, save_table
from headlab.gatefits.figures import COLOURS, NAMES, draw_deltas, draw_ecdf
from headlab.studies.roles.panels import Panel, layout, published
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headlab.store import Run


_AT = 50  # heads ablated where the paper's numbers were read off
_BASES = {
    "plus": "the others at G+",
    "ones": "against all heads open",
    "raw": "against G+ as it is",
}


def draw_all(run: Run, panels: list[Panel]) -> list[dict[str, str]]:
    folder = run.folder / "figures"
    save(grid(panels), folder, "roles", _rows(panels))
    save(ecdfs(panels), folder, "scores", _score_rows(panels))
    save_table(_share_rows(panels), folder, "shares")
    told = (
        ("roles", "Δ log-prob of the target against heads ablated"),
        ("scores", "The share of heads with at most a score"),
    )
    return [
        {"name": name, "alt": alt, **{e: f"figures/{name}.{e}" for e in ("png", "pdf", "csv")}}
        for name, alt in told
    ]


def grid(panels: Sequence[Panel]) -> Figure:
    """Rows tasks, columns models, one y axis a row; of one model, a row with a column a task."""
    tasks, models = layout(panels)
    alone = len(models) == 1
    rows, columns = (1, len(tasks)) if alone else (len(tasks), len(models))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(max(4.2, 2.4 * columns + 0.8), 2.0 * rows + 0.5),
            sharex=True,
            sharey=False if alone else "row",
            squeeze=False,
        )
        for panel in panels:
            task, model = tasks.index(panel.task), models.index(panel.model)
            axis = axes[0, task] if alone else axes[task, model]
            draw_deltas(axis, panel.found.deltas)
            _mark_published(axis, panel)
        if not alone:
            for row, name in zip(axes, tasks, strict=True):
                row[0].set_ylabel(name)
        titles = [f"{name}, {models[0]}" for name in tasks] if alone else models
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_title(title, loc="left")
        for axis in axes[-1]:
            axis.set_xlabel("number of ablated heads")
        figure.supylabel("Δ log-prob of the target", fontsize=9)
        figure.tight_layout()
        handles = [
            Line2D([], [], color=COLOURS[line], ls="--" if line == "random" else "-", label=name)
            for line, name in NAMES.items()
        ]
        marked = any(_published_at_end(panel) for panel in panels)
        if marked:
            handles.append(
                Line2D([], [], color=GREY, marker="o", mfc="none", ls="", label="published, F")
            )
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.01, 1.0),
            ncols=len(handles) if columns > 1 else 3,
            frameon=False,
            fontsize=7.5,
        )
        add_caption(figure, _caption(panels))
    return figure


def _published_at_end(panel: Panel) -> list[float]:
    """The paper's Δ at 50 facilitating heads: of the very model, else of all of its four."""
    numbers = published()
    known = numbers["facilitation_at_50"].get(panel.task, [])
    if panel.found.deltas.ks[-1] < _AT or panel.base != "plus":
        return []
    hub_id = ALIASES.get(panel.source, panel.source)
    if hub_id in numbers["hub_ids"]:
        return known[numbers["hub_ids"].index(hub_id) :][:1]
    return list(known)


def _mark_published(axis: Any, panel: Panel) -> None:
    for delta in _published_at_end(panel):
        axis.plot(_AT, delta, "o", mfc="none", mec=GREY, ms=4, mew=0.9, clip_on=False)


def ecdfs(panels: Sequence[Panel]) -> Figure:
    tasks, models = layout(panels)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(tasks),
            len(models),
            figsize=(max(3.6, 2.4 * len(models) + 0.6), 2.0 * len(tasks) + 0.4),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for panel in panels:
            axis = axes[tasks.index(panel.task), models.index(panel.model)]
            draw_ecdf(axis, panel.found.roles)
            axis.set_title(f"{panel.task}, {panel.model}", loc="left")
        figure.tight_layout()
        fit = panels[0].found.fit
        add_caption(
            figure,
            f"Scores of every head in each of {count(len(fit.seeds), 'seed')}; "
            f"{count(fit.settings['updates'], 'update')} each of three fits, batch "
            f"{fit.settings['batch']}, λ = ±{fit.settings['strength']:g}, reference "
            f"{fit.settings['reference']}. A head has a role from 0.5 on.",
        )
    return figure


def _caption(panels: Sequence[Panel]) -> str:
    first = panels[0].found
    heads = dict.fromkeys(f"{p.model} {p.found.fit.plus[0].numel()} heads" for p in panels)
    numbers = sorted({len(panel.found.right) for panel in panels})
    n = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    base = first.fit.settings
    told = _BASES[panels[0].base]
    told += ", one order for all seeds" if panels[0].aggregated else ""
    circles = f" Circles: the paper's models at {_AT} heads."
    return (
        f"{', '.join(heads)}. Gates of {count(len(first.fit.seeds), 'seed')}, "
        f"{count(base['updates'], 'update')} "
        f"each of three fits, batch {base['batch']}, λ = ±{base['strength']:g}, reference "
        f"{base['reference']}; Δ on n = {n} questions the fit has not seen, summed over target "
        f"tokens, {told}. Bands: 95 % over seeds; dashed: "
        f"{count(len(first.deltas.lines['random']), 'random order')}, their band over orders."
        f"{circles if any(map(_published_at_end, panels)) else ''}"
    )


def _rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    rows = []
    for panel in panels:
        deltas = panel.found.deltas
        for line, name in NAMES.items():
            low, high = deltas.band(line)
            for i, k in enumerate(deltas.ks):
                rows.append(
                    {
                        "model": panel.model,
                        "task": panel.task,
                        "line": name,
                        "k": k,
                        "delta": float(deltas.mean(line)[i]),
                        "low": float(low[i]),
                        "high": float(high[i]),
                    }
                )
    return rows


def _score_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    rows = []
    for panel in panels:
        table = panel.found.roles.table()
        for row in table.to_dict("records"):
            rows.append({"model": panel.model, "task": panel.task, **row})
    return rows


def _share_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    rows = []
    for panel in panels:
        value, low, high = panel.accuracy
        known = {"model": panel.model, "task": panel.task}
        for role, share in panel.found.roles.shares().items():
            row = {**known, "role": role, **share, "accuracy": value}
            rows.append({**row, "accuracy_low": low, "accuracy_high": high})
    return rows
