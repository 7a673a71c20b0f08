"""The study's figures: scores against masked heads, rankings compared, one function's heads on
another's questions, and which heads they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from headlab.aliases import ALIASES
from headlab.figures import AMBER, BLUE, GREEN, GREY, ORANGE, PINK, STYLE, add_caption, save
from headlab.heads import Head
from headlab.studies.masking.grades import ACCURACY
from headlab.studies.masking.panels import Panel, Point, published, rows_of
from headlab.tasks.cogqa import FUNCTIONS
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headlab.store import Run

RED = "#c1272d"
_RANKINGS = {"probe": BLUE, "gates": GREEN, "ablate": ORANGE, "attribute": PINK}


def draw_all(run: Run, panels: list[Panel]) -> list[dict[str, str]]:
    folder = run.folder / "figures"
    drawn = [("masking", "Accuracy and text quality against masked heads")]
    save(curves(panels), folder, "masking", rows_of(panels))
    if len({panel.ranking for panel in panels}) > 1:
        save(rankings(panels), folder, "rankings", ranking_rows(panels))
        drawn.append(("rankings", "What masking does, by how the heads were ranked"))
    if len(panels[0].functions) > 1 and any(panel.has_cross for panel in panels):
        save(cross(panels), folder, "cross", cross_rows(panels))
        drawn.append(("cross", "The heads of one function on the questions of another"))
    save(maps(panels), folder, "heads", _head_rows(panels))
    drawn.append(("heads", "How important each head is for each function"))
    return [
        {"name": name, "alt": alt, **{e: f"figures/{name}.{e}" for e in ("png", "pdf", "csv")}}
        for name, alt in drawn
    ]


def of_first_ranking(panels: Sequence[Panel]) -> list[Panel]:
    return [panel for panel in panels if panel.ranking == panels[0].ranking]


def curves(panels: Sequence[Panel]) -> Figure:
    """Rows models (and seeds), columns functions: TopK solid, RandomK dashed; accuracy blue, text
    quality red; bands over random draws."""
    own = of_first_ranking(panels)
    functions = own[0].functions
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(own),
            len(functions),
            figsize=(max(4.0, 2.35 * len(functions)), 2.5 * len(own) + 0.4),
            sharey=True,
            squeeze=False,
        )
        for row, panel in zip(axes, own, strict=True):
            for axis, name in zip(row, functions, strict=True):
                _draw(axis, panel, name)
                axis.set_title(FUNCTIONS[name], loc="left")
            row[0].set_ylabel(f"{_label(panel, own)}\nscore" if len(own) > 1 else "score")
        for axis in axes[-1]:
            axis.set_xlabel("# masked heads")
        figure.tight_layout()
        figure.legend(
            handles=_handles(own),
            loc="lower left",
            bbox_to_anchor=(0.01, 1.0),
            ncols=4 if len(functions) > 2 else 2,
            frameon=False,
            fontsize=7.5,
        )
        add_caption(figure, caption(own))
    return figure


def _label(panel: Panel, panels: Sequence[Panel]) -> str:
    """The model, and the seed where there are several."""
    several = len({each.seed for each in panels}) > 1
    return panel.model + (f", seed {panel.seed}" if several else "")


def _draw(axis: Any, panel: Panel, name: str) -> None:
    ks = panel.found.ks[name]
    start = ks[0] / 2  # K = 0 has no place on a log axis
    for score, colour in ((ACCURACY, BLUE), ("quality", RED)):
        if score not in panel.grades.labels:
            continue
        top, random, matched = (
            [panel.point(name, kind, k, score) for k in ks] for kind in ("top", "random", "matched")
        )
        axis.plot(ks, [p.mean for p in random], "o--", color=colour, lw=1.2, ms=3, mfc="white")
        axis.fill_between(
            ks, *zip(*(p.band for p in random), strict=True), color=colour, alpha=0.15, lw=0
        )
        axis.plot(ks, [p.mean for p in matched], ":", color=colour, lw=1)
        axis.plot(ks, [p.mean for p in top], "o-", color=colour, lw=1.6, ms=3.5)
        _whiskers(axis, top, colour)
        if score == ACCURACY:
            none = panel.unmasked(name, score)
            axis.plot(start, none.mean, "s", color=colour, ms=4, mfc="white")
            axis.plot([start, start], [none.low, none.high], color=colour, lw=0.9)
    if "published" in panel.grades.labels:
        points = [panel.point(name, "top", k, "published") for k in ks]
        axis.plot(ks, [p.mean for p in points], "-", color=AMBER, lw=0.9)
    _draw_published(axis, panel, name)
    axis.set_xscale("log", base=2)
    axis.set_xlim(start / 1.3, ks[-1] * 1.25)
    axis.set_xticks([start, *ks], ["0", *map(str, ks)])
    axis.minorticks_off()
    axis.set_ylim(-0.03, 1.03)


def _whiskers(axis: Any, points: list[Point], colour: str, aside: float = 1) -> None:
    for point in points:
        axis.plot([point.k * aside] * 2, [point.low, point.high], color=colour, lw=0.9, alpha=0.7)


def _draw_published(axis: Any, panel: Panel, name: str) -> None:
    known = published_for(panel, name)
    for kind, face in (("top", GREY), ("random", "white")):
        if known is not None:
            for score, marker in (("published", "D"), ("quality", "^")):
                value = known[kind][score] / 100
                axis.plot(known["k"], value, marker, mec=GREY, mfc=face, ms=4.5, mew=0.9)


def published_for(panel: Panel, name: str) -> dict[str, Any] | None:
    """The paper's numbers for a function, where the panel is of its very model."""
    numbers = published()
    if ALIASES.get(panel.source, panel.source) != numbers["model"] or name not in numbers["elbow"]:
        return None
    return {
        "k": numbers["elbow"][name],
        "top": numbers["top"][name],
        "random": numbers["random"][name],
    }


def published_cross(panel: Panel, heads_of: str, asked: str) -> dict[str, float] | None:
    """The paper's numbers, in percent, for one function's heads on another's questions."""
    numbers = published()
    if ALIASES.get(panel.source, panel.source) != numbers["model"]:
        return None
    return next(
        (
            {"published": row["published"], "quality": row["quality"]}
            for row in numbers["cross"]
            if (row["heads_of"], row["asked"]) == (heads_of, asked)
        ),
        None,
    )


def _handles(panels: Sequence[Panel]) -> list[Line2D]:
    grades = panels[0].grades.labels
    handles = [
        Line2D([], [], color=BLUE, marker="o", ms=3.5, label="TopK accuracy"),
        Line2D(
            [], [], color=BLUE, ls="--", marker="o", ms=3, mfc="white", label="RandomK accuracy"
        ),
    ]
    if "quality" in grades:
        label = grades["quality"]
        handles += [
            Line2D([], [], color=RED, marker="o", ms=3.5, label=f"TopK {label}"),
            Line2D(
                [], [], color=RED, ls="--", marker="o", ms=3, mfc="white", label=f"RandomK {label}"
            ),
        ]
    handles += [
        Line2D([], [], color="black", ls=":", lw=1, label="random, same layers"),
        Line2D([], [], color=BLUE, ls="", marker="s", mfc="white", ms=4, label="no head masked"),
    ]
    if "published" in grades:
        handles.append(Line2D([], [], color=AMBER, lw=0.9, label=f"TopK {grades['published']}"))
    if any(published_for(panel, name) for panel in panels for name in panel.functions):
        handles += [
            Line2D(
                [],
                [],
                color=GREY,
                ls="",
                marker="D",
                ms=4.5,
                label="published accuracy (hollow: random)",
            ),
            Line2D(
                [],
                [],
                color=GREY,
                ls="",
                marker="^",
                ms=4.5,
                label="published COMET (hollow: random)",
            ),
        ]
    return handles


def caption(panels: Sequence[Panel]) -> str:
    """What the figure must say by itself."""
    panel = panels[0]
    name = panel.functions[0]
    k = panel.found.ks[name][0]
    draws = len(panel.point(name, "random", k).draws)
    drawn = count(draws, "random draw")
    told = _numbers(panels)
    heads = " and ".join(dict.fromkeys(f"{each.model}, {each.total} heads" for each in panels))
    return (
        f"{heads}, ranked by {panel.ranking} on training questions; {told} others a function, "
        f"masked {panel.where}. Accuracy: the number of calculations, else word F1 of 0.6 with the "
        f"gold answer; whiskers: 95 % interval over questions. Dashed: {drawn} "
        "without the top heads, band: all of them; dotted: as many heads of each layer. Left: no "
        f"head masked. {count(len(panels), 'cell')}, seed "
        f"{', '.join(dict.fromkeys(str(each.seed) for each in panels))}."
    )


def _numbers(panels: Sequence[Panel]) -> str:
    """How many questions a function has."""
    n = sorted({each.unmasked(name).n for each in panels for name in each.functions})
    return f"n = {n[0]}" if len(n) == 1 else f"n = {n[0]} to {n[-1]}"


# --- rankings ---


def rankings(panels: Sequence[Panel]) -> Figure:
    """Accuracy under the top K of each ranking, and under random ones."""
    first = panels[0]
    own = [p for p in panels if (p.model, p.seed) == (first.model, first.seed)]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1,
            len(first.functions),
            figsize=(max(4.0, 2.35 * len(first.functions)), 2.6),
            sharey=True,
            squeeze=False,
        )
        for axis, name in zip(axes[0], first.functions, strict=True):
            for place, panel in enumerate(own):
                ks, colour = panel.found.ks[name], _RANKINGS[panel.ranking]
                top = [panel.point(name, "top", k) for k in ks]
                aside = 2 ** (0.09 * (place - (len(own) - 1) / 2))  # else whiskers hide each other
                at = [k * aside for k in ks]
                axis.plot(at, [p.mean for p in top], "o-", color=colour, lw=1.4, ms=3.5)
                _whiskers(axis, top, colour, aside)
            ks = first.found.ks[name]
            bands = [_all_draws(own, name, k) for k in ks]
            axis.fill_between(
                ks, [min(b) for b in bands], [max(b) for b in bands], color=GREY, alpha=0.2, lw=0
            )
            axis.plot(ks, [np.mean(b) for b in bands], "--", color=GREY, lw=1)
            axis.set_xscale("log", base=2)
            axis.set_xticks(ks, [str(k) for k in ks])
            axis.minorticks_off()
            axis.set_title(FUNCTIONS[name], loc="left")
            axis.set_xlabel("# masked heads")
        axes[0][0].set_ylabel("accuracy")
        _, highest = axes[0][0].get_ylim()
        axes[0][0].set_ylim(-0.03 * min(1.0, highest), min(1.03, highest))
        figure.tight_layout()
        handles = [
            Line2D([], [], color=_RANKINGS[p.ranking], marker="o", ms=3.5, label=p.ranking)
            for p in own
        ]
        handles.append(Line2D([], [], color=GREY, ls="--", label="random heads"))
        figure.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.01, 1.0), ncols=5, frameon=False
        )
        add_caption(
            figure,
            f"{first.model}: accuracy with the top K heads of each ranking masked {first.where}; "
            f"whiskers: 95 % interval over questions ({_numbers(own)}, seed {first.seed}); grey: "
            "all random draws of all rankings.",
        )
    return figure


def _all_draws(panels: Sequence[Panel], name: str, k: int) -> list[float]:
    return [
        draw
        for panel in panels
        if k in panel.found.ks[name]
        for draw in panel.point(name, "random", k).draws
    ]


def ranking_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """How much each ranking's top K cost, against random K."""
    rows = []
    for panel in panels:
        for name in panel.functions:
            for k in panel.found.ks[name]:
                apart, low, high = panel.fall(name, k)
                rows.append(
                    {
                        "model": panel.model,
                        "ranking": panel.ranking,
                        "seed": panel.seed,
                        "function": name,
                        "k": k,
                        "top": panel.point(name, "top", k).mean,
                        "random": panel.point(name, "random", k).mean,
                        "fall": apart,
                        "low": low,
                        "high": high,
                        "verdict": panel.verdict(name, k),
                    }
                )
    return rows


# --- crossed ---


def cross(panels: Sequence[Panel]) -> Figure:
    """Rows whose heads, columns whose questions: accuracy at the largest K, and without masks."""
    own = of_first_ranking(panels)
    functions = own[0].functions
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1,
            len(own),
            figsize=(0.95 * len(functions) * len(own) + 2.2, 0.55 * len(functions) + 1.6),
            squeeze=False,
        )
        for axis, panel in zip(axes[0], own, strict=True):
            values = np.array(
                [[point.mean for point in row] for row in _crossed(panel)]
            )  # [heads of, asked]
            axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            for (row, column), value in np.ndenumerate(values):
                axis.text(
                    column,
                    row,
                    f"{value:.2f}",
                    ha="center",
                    va="center",
                    color="white" if value > 0.55 else "black",
                    fontweight="bold" if row == column + 1 else None,
                )
            titles = [FUNCTIONS[name] for name in functions]
            short = [title.replace(" ", "\n").replace("-", "-\n") for title in titles]
            axis.set_xticks(range(len(functions)), short, fontsize=8)
            axis.xaxis.tick_top()
            axis.set_yticks(range(len(functions) + 1), ["no head", *titles])
            axis.tick_params(length=0)
            axis.spines[["left", "bottom"]].set_visible(False)
            axis.set_ylabel("heads masked")
            axis.set_title(f"{_label(panel, own)}: questions of", loc="left", pad=10)
        figure.tight_layout()
        add_caption(
            figure,
            "Accuracy with the top heads of one function masked "
            f"({own[0].where}) on the questions of another, at the largest K ({_numbers(own)}); "
            "bold: a function's own heads. Intervals and random heads: in the CSV.",
        )
    return figure


def _crossed(panel: Panel) -> list[list[Point]]:
    """[no head and heads of each function][questions of each]"""
    rows = [[panel.unmasked(name) for name in panel.functions]]
    for heads_of in panel.functions:
        k = panel.found.ks[heads_of][-1]
        rows.append([panel.point(asked, "top", k, heads_of=heads_of) for asked in panel.functions])
    return rows


def cross_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    return [
        row
        for row in rows_of(panels)
        if row["kind"] in ("top", "none") and row["score"] == ACCURACY
    ]


# --- heads ---


def maps(panels: Sequence[Panel]) -> Figure:
    """Columns functions, rows models and rankings: layers from left to right, heads from top to
    bottom; the top heads of the largest K are marked. Of several seeds, the first."""
    seeds = {panel.seed for panel in panels}
    panels = [panel for panel in panels if panel.seed == panels[0].seed]
    functions = panels[0].functions
    with plt.rc_context(STYLE):
        layers = max(panel.found.shape[0] for panel in panels)
        cell = min(0.11, 3.4 / layers)
        figure, axes = plt.subplots(
            len(panels),
            len(functions),
            figsize=(
                max(1.6, cell * layers + 0.5) * len(functions) + 0.3,
                sum(max(0.7, cell * panel.found.shape[1]) + 0.55 for panel in panels),
            ),
            squeeze=False,
        )
        for row, panel in zip(axes, panels, strict=True):
            for axis, name in zip(row, functions, strict=True):
                sizes = panel.sizes(name)
                axis.imshow(
                    sizes.T.numpy(),
                    cmap="Greys",
                    vmin=0,
                    vmax=float(sizes.max()) or 1,
                    aspect="auto",
                )
                top = np.array(panel.order(name)[: panel.found.ks[name][-1]])
                axis.scatter(
                    top // panel.found.shape[1], top % panel.found.shape[1], s=3, color=ORANGE, lw=0
                )
                axis.set_title(FUNCTIONS[name], loc="left", fontsize=8)
                axis.tick_params(length=0, labelsize=6)
                axis.spines[["left", "bottom"]].set_visible(False)
            row[0].set_ylabel(f"{panel.model}\n{panel.ranking}", fontsize=7)
        figure.tight_layout()
        add_caption(
            figure,
            "Importance of each head, layers from left to right, heads from top to bottom; orange: "
            "the top K of the largest K. Of the probe: size of gradient x activation on training "
            f"answers.{f' Seed {panels[0].seed}.' if len(seeds) > 1 else ''}",
        )
    return figure


def _head_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    return [
        {
            "model": panel.model,
            "ranking": panel.ranking,
            "seed": panel.seed,
            "function": name,
            "head": str(Head(layer, head)),
            "score": float(scores[layer, head]),
        }
        for panel in panels
        for name, scores in panel.found.scores.items()
        for layer in range(panel.found.shape[0])
        for head in range(panel.found.shape[1])
    ]
