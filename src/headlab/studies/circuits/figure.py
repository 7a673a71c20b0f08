"""The study's figure: explained effect against heads kept, what is compared in one panel."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from headlab.aliases import ALIASES
from headlab.figures import BLUE, GREEN, GREY, ORANGE, PINK, STYLE, add_caption, save
from headlab.screening import ranked_by
from headlab.studies.circuits.lines import Line
from headlab.studies.circuits.multipliers import Multiplier, Pairing
from headlab.studies.circuits.pairs import families
from headlab.studies.circuits.spec import way_of
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#E69F00", "#000000")
_MARKS = "o", "D"  # published: dense, sparse
_NOTE, _WIDE = 8.5, 52  # a line above a panel: its height in points, its characters


def draw(
    lines: Sequence[Line], pairs: Sequence[Sequence[str]], level: float, published: list[Any]
) -> Figure:
    """A row for each dense model with all that is paired with it and one for the models in no
    pair, a column a task. All lines are of one method."""
    pairing = Pairing(lines, pairs)
    rows = groups_of(list(dict.fromkeys(line.model for line in lines)), pairs)
    tasks = list(dict.fromkeys(line.task for line in lines))
    looks = _looks(rows, pairs)
    panels = [[_Panel(lines, pairing, row, task, level) for task in tasks] for row in rows]
    notes = max(len(panel.notes(looks)) for row in panels for panel in row)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(rows),
            len(tasks),
            figsize=(
                max(4.2, 2.9 * len(tasks)),
                (2.5 + notes * _NOTE / 72) * len(rows) + 0.4,
            ),
            sharey=True,
            squeeze=False,
        )
        for row, own in zip(axes, panels, strict=True):
            for axis, panel in zip(row, own, strict=True):
                marks = [number for number in published if number["task"] == panel.task]
                _draw_panel(axis, panel, looks, marks)
            row[0].set_ylabel(_effect(lines))
        for axis in axes[-1]:
            axis.set_xlabel("number of heads kept")
        axes[0, 0].set_ylim(*_limits(lines))
        figure.tight_layout()
        marked = bool({number["task"] for number in published} & set(tasks))
        _legend(figure, looks, marked)
        add_caption(figure, _caption(lines, marked))
    return figure


def _limits(lines: Sequence[Line]) -> tuple[float, float]:
    """Room for every line; a band that is wider, of few prompts, is cut off."""
    drawn = [line for line in lines if not line.finding]
    values = [float(x) for line in drawn for x in (*line.explained, *line.random.mean(0))]
    ends = [float(end) for line in drawn for band in line.band for end in band]
    low, high = min([0.0, *values]), max([1.0, *values])
    room = 0.5 * (high - low)
    return (
        max(low - room, min([low - 0.1, *ends])),
        min(high + room, max([high + 0.05, *ends])),
    )


@dataclass(frozen=True)
class _Look:
    """How a model is drawn, and what figures call it."""

    name: str
    colour: str
    is_twin: bool

    @property
    def line(self) -> dict[str, Any]:
        """A twin is quieter."""
        style = {"ls": (0, (6, 2, 1, 2)), "lw": 1.0} if self.is_twin else {"lw": 1.6}
        return {"color": self.colour, **style}


def _looks(rows: list[list[str]], pairs: Sequence[Sequence[str]]) -> dict[str, _Look]:
    twins = {name for family in families(pairs) for name in family.twins}
    found = {}
    for n, model in enumerate(dict.fromkeys(model for row in rows for model in row)):
        says = ", twin" if model in twins and "twin" not in model else ""
        colour = COLOURS[n % len(COLOURS)]
        found[model] = _Look(_fitting(model) + says, colour, model in twins)
    return found


class _Panel:
    """One task of the models in a row."""

    def __init__(
        self, lines: Sequence[Line], pairing: Pairing, models: list[str], task: str, level: float
    ):
        self.task, self.level = task, level
        self.lines = [
            line for m in models for line in lines if (line.model, line.task) == (m, task)
        ]
        self.drawn = [line for line in self.lines if not line.finding]
        self.found = [
            pairing.multiplier(one, other, level)
            for one, other, _ in pairing.declared()
            if (one.model, one.task) == (models[0], task)
        ]

    @property
    def is_listed(self) -> bool:
        """Several multipliers stand in a list; one, between its two lines."""
        return len(self.found) > 1

    def notes(self, looks: dict[str, _Look]) -> list[tuple[str, str]]:
        """What stands above the panel, clear of its curves, and in which colour."""
        told = {line.model: self._says(line) for line in self.lines}
        return [
            (part, looks[model].colour)
            for model, says in told.items()
            if says
            for part in textwrap.wrap(f"{_fitting(looks[model].name, 20)}: {says}", _WIDE)
        ]

    def _says(self, line: Line) -> str:
        found = next((each for each in self.found if each.sparse == line.model), None)
        if found and found.value is None:
            return _told(found)
        if line.finding:
            return "no effect seen"
        if not self.is_listed:
            return ""
        k = line.crossing(self.level)
        needs = f"k{100 * self.level:g} = {k}" if k is not None else "not reached"
        return f"{needs}, {_told(found)}" if found else needs


def _told(found: Multiplier) -> str:
    if found.value is None:
        return f"no multiplier, {found.brief}"
    return f"{found.value:.1f}x ({found.low:.1f} to {found.high:.1f})"


def _effect(lines: Sequence[Line]) -> str:
    in_sample = any(curve.in_sample for line in lines for curve in line.curves)
    return f"explained effect{', in-sample' if in_sample else ''}"


def _draw_panel(axis: Axes, panel: _Panel, looks: dict[str, _Look], published: list[Any]) -> None:
    many = len(panel.drawn) > 2
    for line in panel.drawn:
        colour = looks[line.model].colour
        faint: dict[str, Any] = {"lw": 0.6, "alpha": 0.5} if many else {"lw": 0.9, "alpha": 0.65}
        axis.plot(line.random_ks, line.random.mean(0), "--", color=colour, zorder=1, **faint)
        if len(panel.drawn) == 1:  # the spread of two models' random orders would hide each other
            ends = line.random.quantile(0.025, 0), line.random.quantile(0.975, 0)
            axis.fill_between(line.random_ks, *ends, color=GREY, alpha=0.15, lw=0, zorder=0)
        axis.plot(line.ks, line.explained, **looks[line.model].line)
        axis.fill_between(line.ks, *line.band, color=colour, alpha=0.12 if many else 0.22, lw=0)
    axis.axhline(0, color="black", lw=0.4)
    _mark_crossings(axis, panel, looks)
    _mark_published(axis, panel.drawn, published)
    if panel.drawn:
        axis.set_xlim(0, max(line.n_heads for line in panel.drawn))
    notes = panel.notes(looks)
    axis.set_title(panel.task, loc="left", pad=6 + _NOTE * len(notes))
    for number, (text, colour) in enumerate(reversed(notes)):
        axis.annotate(
            text,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 5 + _NOTE * number),
            textcoords="offset points",
            fontsize=6.5,
            color=colour,
        ).set_in_layout(False)  # no wider than the panel; the title leaves room above it


def _mark_crossings(axis: Axes, panel: _Panel, looks: dict[str, _Look]) -> None:
    """The threshold: between a pair with its multiplier, in a list of several with a dot, else
    with each model's k."""
    lines, level = panel.drawn, panel.level
    crossed = [(line, k) for line in lines if (k := line.crossing(level)) is not None]
    one = panel.found[0] if len(panel.found) == 1 else None
    if panel.is_listed or (one and one.value is not None):
        axis.axhline(level, color=GREY, lw=0.5, ls=(0, (1, 2)))
    if panel.is_listed:
        for line, k in crossed:
            axis.plot(k, level, "o", ms=3.5, mew=0, color=looks[line.model].colour, zorder=4)
        return
    if one and one.value is not None:
        ends = sorted(k for _, k in crossed)
        axis.plot(ends, [level, level], color="black", lw=1.2, ls=(0, (3, 2)), zorder=4)
        axis.annotate(
            _told(one),
            (max(ends), level),
            xytext=(4, -11),
            textcoords="offset points",
            fontsize=8,
        )
        return
    axis.axhline(level, color="black", lw=0.6, ls=(0, (4, 3)))
    for number, (line, k) in enumerate(crossed):
        colour = looks[line.model].colour
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


def _legend(figure: Figure, looks: dict[str, _Look], with_marks: bool) -> None:
    handles = [Line2D([], [], label=look.name, **look.line) for look in looks.values()]
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
    n = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    heads = ", ".join(
        f"{model} {n}" for model, n in dict.fromkeys((ln.model, ln.n_heads) for ln in lines)
    )
    each = ", an order for each prompt" if curve.per_prompt else ""
    ranked = ranked_by(way_of(first.method), first.scores.settings)
    marks = (
        " Grey marks: published numbers (arXiv 2512.05865), for other models at their share of "
        "the heads."
    )
    return (
        f"Heads: {heads}. Ranked by {ranked}{each}; the others' outputs from the "
        f"reference {curve.reference}; n = {n} prompts, {curve.sample}; seeds "
        f"{', '.join(map(str, first.seeds))}. Bands: 95 % bootstrap over prompts; dashed: mean "
        f"of {count(len(first.random), 'random order')}.{marks if with_marks else ''}"
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
    """What shares a row of panels: a dense model and all that is paired with it; of models in no
    pair, all together."""
    groups = [family.models for family in families(pairs)]
    paired = {model for group in groups for model in group}
    rest = [model for model in models if model not in paired]
    return groups + ([rest] if rest else [])


def save_figure(
    lines: Sequence[Line],
    pairs: Sequence[Sequence[str]],
    level: float,
    published: list[Any],
    folder: Path,
    name: str,
) -> Path:
    return save(draw(lines, pairs, level, published), folder, name, rows_of(lines))
