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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b7280"  # Okabe and Ito: safe for colour-blind eyes
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
        lines = textwrap.fill(caption, 50 * len(panels))
        figure.text(0.01, -0.01, lines, fontsize=7, color=GREY, ha="left", va="top")
    return figure
