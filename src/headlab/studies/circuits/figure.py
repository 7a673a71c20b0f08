"""The study's figure: explained effect against heads kept, a panel a task, two models a panel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from headlab.aliases import ALIASES
from headlab.figures import BLUE, GREEN, GREY, ORANGE, PINK, STYLE, add_caption, save
from headlab.studies.circuits.lines import Line, multiplier
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#E69F00", "#000000")
_MARKS = "o", "D"  # published: dense, sparse


def draw(
    lines: Sequence[Line], pairs: Sequence[Sequence[str]], level: float, published: list[Any]
) -> Figure:
    """A row for each pair and one for the models in none, a column a task."""
    rows = groups_of(list(dict.fromkeys(line.model for line in lines)), pairs)
    tasks = list(dict.fromkeys(line.task for line in lines))
    every = dict.fromkeys(model for models in rows for model in models)
    colours = {model: COLOURS[n % len(COLOURS)] for n, model in enumerate(every)}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(rows),
            len(tasks),
            figsize=(max(4.2, 2.9 * len(tasks)), 2.5 * len(rows) + 0.4),
            sharey=True,
            squeeze=False,
        )
        for row, models in zip(axes, rows, strict=True):
            for axis, task in zip(row, tasks, strict=True):
                own = [
                    line for m in models for line in lines if (line.model, line.task) == (m, task)
                ]
                marks = [number for number in published if number["task"] == task]
                _panel(axis, own, colours, level, marks, models in pairs)
                axis.set_title(task, loc="left")
            row[0].set_ylabel("explained effect")
        for axis in axes[-1]:
            axis.set_xlabel("number of heads kept")
        axes[0, 0].set_ylim(bottom=min(-0.1, axes[0, 0].get_ylim()[0]))
        figure.tight_layout()
        marked = bool({number["task"] for number in published} & set(tasks))
        _legend(figure, colours, marked)
        add_caption(figure, _caption(lines, marked))
    return figure


def _panel(
    axis: Axes,
    lines: Sequence[Line],
    colours: dict[str, str],
    level: float,
    published: list[Any],
    is_pair: bool,
) -> None:
    drawn = [line for line in lines if not line.finding]
    for line in drawn:
        colour = colours[line.model]
        axis.plot(
            line.random_ks, line.random.mean(0), "--", color=colour, lw=0.9, alpha=0.65, zorder=1
        )
        if len(drawn) == 1:  # the spread of two models' random orders would hide each other
            ends = line.random.quantile(0.025, 0), line.random.quantile(0.975, 0)
            axis.fill_between(line.random_ks, *ends, color=GREY, alpha=0.15, lw=0, zorder=0)
        axis.plot(line.ks, line.explained, color=colour, lw=1.6)
        axis.fill_between(line.ks, *line.band, color=colour, alpha=0.22, lw=0)
    axis.axhline(0, color="black", lw=0.4)
    _mark_crossings(axis, drawn, colours, level, is_pair)
    _mark_published(axis, drawn, published)
    gone = [f"{_fitting(line.model)}:\nno effect seen" for line in lines if line.finding]
    if gone:
        axis.text(
            *(0.98, 0.04),
            "\n".join(gone),
            transform=axis.transAxes,
            ha="right",
            fontsize=7,
            color=GREY,
        )
    if drawn:
        axis.set_xlim(0, max(line.n_heads for line in drawn))


def _mark_crossings(
    axis: Axes, lines: Sequence[Line], colours: dict[str, str], level: float, is_pair: bool
) -> None:
    """The threshold: between a pair with its multiplier, else with each model's k."""
    if is_pair and len(lines) == 2:
        found = multiplier(lines[0], lines[1], level)
        ends = sorted(line.crossing(level) or 0 for line in lines)
        if found.value is not None:
            axis.axhline(level, color=GREY, lw=0.5, ls=(0, (1, 2)))
            axis.plot(ends, [level, level], color="black", lw=1.2, ls=(0, (3, 2)), zorder=4)
            axis.annotate(
                f"{found.value:.1f}x ({found.low:.1f} to {found.high:.1f})",
                (max(ends), level),
                xytext=(4, -11),
                textcoords="offset points",
                fontsize=8,
            )
            return
    axis.axhline(level, color="black", lw=0.6, ls=(0, (4, 3)))
    for number, line in enumerate(lines):
        k = line.crossing(level)
        if k is not None:
            colour = colours[line.model]
            axis.plot([k, k], [0, level], color=colour, lw=0.7, ls=(0, (4, 3)))
            right = k > 0.6 * line.n_heads
            axis.annotate(
                f"k{100 * level:g} = {k}",
                (k, 0.05 + 0.1 * number),
                xytext=(-3 if right else 3, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                fontsize=7.5,
                color=colour,
            )


def _mark_published(axis: Axes, lines: Sequence[Line], published: list[Any]) -> None:
    """At the published number of heads for the same model, else at the same share of heads."""
    if not lines:
        return
    sources = {ALIASES.get(line.source, line.source) for line in lines}
    heads = max(line.n_heads for line in lines)
    for number in published:
        same = number["dense"]["hub_id"] in sources
        for kind, mark in zip(("dense", "sparse"), _MARKS, strict=True):
            model = number[kind]
            k = model["k"] if same else model["k"] / model["heads"] * heads
            axis.plot(
                k,
                number["threshold"],
                mark,
                mfc="none",
                mec=GREY,
                ms=5,
                mew=1,
                zorder=3,
                clip_on=False,
            )


def _legend(figure: Figure, colours: dict[str, str], with_marks: bool) -> None:
    handles = [
        Line2D([], [], color=colour, lw=1.6, label=_fitting(model))
        for model, colour in colours.items()
    ]
    handles.append(Line2D([], [], color=GREY, ls="--", lw=0.9, label="its random orders"))
    marks = [
        Line2D([], [], color=GREY, marker="o", mfc="none", ls="", ms=5, label="published, dense"),
        Line2D([], [], color=GREY, marker="D", mfc="none", ls="", ms=5, label="published, sparse"),
    ]
    handles += marks if with_marks else []
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.01, 1.0),
        ncols=max(1, min(len(handles), int(figure.get_figwidth() / 1.7))),
        frameon=False,
        fontsize=7.5,
    )


def _fitting(name: str, most: int = 28) -> str:
    """A long name with its middle left out."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def _caption(lines: Sequence[Line], with_marks: bool) -> str:
    first = next((line for line in lines if not line.finding), None)
    if first is None:
        return "No model does any of these tasks."
    curve = first.curves[0]
    numbers = sorted({line.n for line in lines if not line.finding})
    heads = ", ".join(
        f"{model} {n}" for model, n in dict.fromkeys((ln.model, ln.n_heads) for ln in lines)
    )
    each = ", an order for each prompt" if curve.per_prompt else ""
    marks = (
        " Grey marks: published numbers (arXiv 2512.05865), for other models at their share of "
        "the heads."
    )
    return (
        f"Heads: {heads}. Ranked by {first.method}{each}; the others' outputs from the reference "
        f"{curve.reference}; n = {' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} "
        f"prompts, {curve.sample}; seeds {', '.join(map(str, first.seeds))}. Bands: 95 % bootstrap "
        f"over prompts; dashed: mean of {count(len(first.random), 'random order')}."
        f"{marks if with_marks else ''}"
    )


def rows_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The figure's data, a row a point."""
    rows = []
    for line in lines:
        if line.finding:
            continue
        known = {"model": line.model, "task": line.task, "method": line.method}
        low, high = line.band
        for i, k in enumerate(line.ks):
            point = {"k": k, "explained": float(line.explained[i])}
            ends = {"low": float(low[i]), "high": float(high[i])}
            rows.append({**known, "line": "ranked", **point, **ends})
        for name, values in (("random", line.random), ("layer-matched random", line.matched)):
            for i, k in enumerate(line.random_ks):
                ends = {f"q{q}": float(values[:, i].quantile(q / 1000)) for q in (25, 975)}
                point = {"k": k, "explained": float(values[:, i].mean())}
                rows.append(
                    {**known, "line": name, **point, "low": ends["q25"], "high": ends["q975"]}
                )
    return rows


def groups_of(models: Sequence[str], pairs: Sequence[Sequence[str]]) -> list[list[str]]:
    """What shares a row of panels: each pair; of models in no pair, all together."""
    paired = {model for pair in pairs for model in pair}
    rest = [model for model in models if model not in paired]
    return [list(pair) for pair in pairs] + ([rest] if rest else [])


def save_figure(
    lines: Sequence[Line],
    pairs: Sequence[Sequence[str]],
    level: float,
    published: list[Any],
    folder: Path,
    name: str,
) -> Path:
    return save(draw(lines, pairs, level, published), folder, name, rows_of(lines))
