"""Figures fit for a paper: one look, PNG and PDF, the data beside them as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

from headlab.files import write_whole

matplotlib.use("Agg")  # files only: no screen is needed

from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headlab.scores import HeadScores

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b7280"  # Okabe and Ito: safe for colour-blind eyes
_NAMED = 10  # heads of a map that carry their names
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "pdf.fonttype": 42,  # text stays text
    "figure.dpi": 100,
    "savefig.dpi": 200,
}


def save(figure: Figure, folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write name.png, name.pdf and name.csv; give the PNG's path."""
    for ending in ("png", "pdf"):
        # A date in the file would make every run's bytes differ.
        metadata = {"CreationDate": None} if ending == "pdf" else {"Software": None}
        picture = io.BytesIO()
        figure.savefig(picture, format=ending, bbox_inches="tight", metadata=metadata)
        write_whole(folder / f"{name}.{ending}", picture.getvalue())
    plt.close(figure)
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / f"{name}.csv", table.getvalue())
    return folder / f"{name}.png"


def probability_bars(panels: Sequence[Mapping[str, Any]], caption: str) -> Figure:
    """One panel a prompt: the answer's probability with all heads, without the chosen ones, and
    without as many random ones (each draw a dot, bar at their mean, line over their range).

    A panel has title, clean, chosen (numbers), random (numbers of the draws).
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(2.6 * len(panels), 2.7), sharey=True, squeeze=False
        )
        for axis, panel in zip(axes[0], panels, strict=True):
            draws = panel["random"]
            heights = [panel["clean"], panel["chosen"], sum(draws) / len(draws)]
            axis.bar(range(3), heights, color=[GREY, ORANGE, BLUE], width=0.65, alpha=0.85)
            axis.plot([2, 2], [min(draws), max(draws)], color="black", lw=1.2, zorder=3)
            spread = [
                2 + 0.22 * ((i * 7) % len(draws) / len(draws) - 0.5) for i in range(len(draws))
            ]
            axis.scatter(spread, draws, s=7, color="black", alpha=0.35, linewidths=0, zorder=2)
            axis.set_xticks(range(3), ["all heads", panel["chosen_label"], panel["random_label"]])
            axis.set_title(panel["title"], loc="left")
            axis.set_ylim(0, 1)
        axes[0][0].set_ylabel("probability of the answer")
        figure.tight_layout()
        add_caption(figure, caption)
    return figure


def head_map(
    scores: HeadScores, caption: str, title: str = "", sign: int = 1, label: str = ""
) -> Figure:
    """Layers from left to right, heads from top to bottom, one cell a head.

    `sign` -1 shows changes, not scores. The largest cells carry their heads' names; a dot marks
    those no larger than the noise.
    """
    layers, heads = scores.shape
    values = sign * scores.score
    limit = float(values.abs().max()) or 1.0
    colours = LinearSegmentedColormap.from_list("effect", [ORANGE, "white", BLUE])
    with plt.rc_context(STYLE):
        cell = min(0.3, 10 / layers)
        figure, axis = plt.subplots(figsize=(max(3.2, cell * layers + 1.4), cell * heads + 0.9))
        picture = axis.imshow(
            values.T.numpy(),
            cmap=colours if sign > 0 else colours.reversed(),
            vmin=-limit,
            vmax=limit,
            aspect="equal",
        )
        for head in scores.order(by_size=True)[:_NAMED]:
            strong = abs(float(values[head])) > 0.55 * limit
            if cell >= 0.24:
                axis.text(
                    *head,
                    f"{head.layer}.{head.head}",
                    fontsize=5,
                    ha="center",
                    va="center",
                    color="white" if strong else "black",
                )
        dots = scores.in_noise.nonzero()
        axis.scatter(dots[:, 0], dots[:, 1], s=2, color=GREY, linewidths=0)
        axis.set_xticks(range(0, layers, 1 + (layers - 1) // 16))
        axis.set_yticks(range(0, heads, 1 + (heads - 1) // 16))
        axis.set_xlabel("layer")
        axis.set_ylabel("head")
        axis.set_title(title, loc="left")
        axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
        axis.tick_params(length=0)
        axis.set_xticks([x - 0.5 for x in range(layers + 1)], minor=True)
        axis.set_yticks([y - 0.5 for y in range(heads + 1)], minor=True)
        axis.grid(which="minor", color="#e5e7eb", linewidth=0.4)
        axis.tick_params(which="minor", length=0)
        bar = figure.colorbar(picture, ax=axis, fraction=0.03, pad=0.02)
        bar.set_label(label or "score")
        bar.outline.set_visible(False)
        add_caption(figure, caption)
    return figure


def add_caption(figure: Figure, caption: str) -> None:
    """What a figure must say by itself, small and grey below it."""
    wide = int(19 * figure.get_figwidth())
    lines = textwrap.fill(caption, wide)
    figure.text(0.01, -0.01, lines, fontsize=7, color=GREY, ha="left", va="top")
