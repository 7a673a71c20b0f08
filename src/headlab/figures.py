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


def ablation_bars(panels: Sequence[Mapping[str, Any]], caption: str) -> Figure:
    """A measure with all heads, without the chosen ones, and without as many random ones.

    A panel has title, clean, chosen (each a mean with its interval: mean, low, high), random (the
    mean of each draw: dots, bar at their mean, line over their range) and a label for the bars.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(2.8 * len(panels), 2.7), squeeze=False)
        for axis, panel in zip(axes[0], panels, strict=True):
            draws = panel["random"]
            means = [panel["clean"][0], panel["chosen"][0], sum(draws) / len(draws)]
            lines = [panel["clean"][1:], panel["chosen"][1:], (min(draws), max(draws))]
            axis.bar(range(3), means, color=[GREY, ORANGE, BLUE], width=0.65, alpha=0.85)
            for x, (low, high) in enumerate(lines):
                axis.plot([x, x], [low, high], color="black", lw=1.2, zorder=3)
            spread = [
                2 + 0.22 * ((i * 7) % len(draws) / len(draws) - 0.5) for i in range(len(draws))
            ]
            axis.scatter(spread, draws, s=7, color="black", alpha=0.35, linewidths=0, zorder=2)
            axis.axhline(0, color="black", lw=0.6)
            axis.set_xticks(range(3), ["all heads", *panel["labels"]])
            axis.set_title(panel["title"], loc="left")
        figure.tight_layout()
        add_caption(figure, caption)
    return figure


def head_map(scores: HeadScores, caption: str, title: str = "", label: str = "") -> Figure:
    """Layers from left to right, heads from top to bottom, one cell a head: the change without it.

    Blue where the head has a positive score. The largest cells carry their heads' names; a dot
    marks those no larger than the noise.
    """
    layers, heads = scores.shape
    values = scores.change
    limit = float(values.abs().max()) or 1.0
    colours = LinearSegmentedColormap.from_list("effect", [ORANGE, "white", BLUE])
    with plt.rc_context(STYLE):
        cell = min(0.3, 10 / layers)
        figure, axis = plt.subplots(figsize=(max(3.2, cell * layers + 1.4), cell * heads + 0.9))
        picture = axis.imshow(
            values.T.numpy(),
            cmap=colours if scores.is_distance else colours.reversed(),
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
        figure.tight_layout()
        add_caption(figure, caption)
    return figure


def save_head_map(scores: HeadScores, folder: Path) -> Path:
    """head-map.png, .pdf and .csv in `folder`; gives the PNG's path."""
    layers, heads = scores.shape
    floor = "not measured" if scores.noise_floor is None else f"{scores.noise_floor:.1g}"
    done = f"at gate {scores.scale:g}" if scores.scale else "off"
    caption = (
        f"{scores.model}, {layers} x {heads} heads, each {done} alone, reference "
        f"{scores.reference}; mean over n = {len(scores.examples)} examples, "
        f"{float(scores.clean.double().mean()):.3g} with all heads. Noise floor {floor}."
    )
    figure = head_map(scores, caption, f"Every head {done} in turn", f"change of {scores.measure}")
    folder.mkdir(parents=True, exist_ok=True)
    change, (low, high) = scores.change, scores.change_interval
    noise, beyond = scores.in_noise, scores.beyond_chance
    rows = [
        {
            "head": str(head),
            "layer": head.layer,
            "number": head.head,
            "measure": scores.measure,
            "change": float(change[head]),
            "low": float(low[head]),
            "high": float(high[head]),
            "in_noise": bool(noise[head]),
            "beyond_chance": bool(beyond[head]),
        }
        for head in scores.heads
    ]
    return save(figure, folder, "head-map", rows).resolve()


def add_caption(figure: Figure, caption: str) -> None:
    """What a figure must say by itself, small and grey below it."""
    wide = int(19 * figure.get_figwidth())
    lines = textwrap.fill(caption, wide)
    figure.text(0.01, -0.01, lines, fontsize=7, color=GREY, ha="left", va="top")
