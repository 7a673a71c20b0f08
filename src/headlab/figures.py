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
from headlab.wording import count

matplotlib.use("Agg")  # files only: no screen is needed

from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from headlab.curves import Curve
    from headlab.scores import HeadScores

# Okabe and Ito's: safe for colour-blind eyes.
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6b7280"
AMBER = "#b37a00"  # darker than theirs, for thin lines
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
    save_table(rows, folder, name)
    return folder / f"{name}.png"


def save_table(rows: Sequence[Mapping[str, Any]], folder: Path, name: str) -> None:
    """name.csv"""
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / f"{name}.csv", table.getvalue())


def head_map(scores: HeadScores, caption: str, title: str = "", label: str = "") -> Figure:
    """Layers from left to right, heads from top to bottom, one cell a head: the change without it
    where heads were switched off, else the score.

    Blue where the head has a positive score. The largest cells carry their heads' names; a dot
    marks those no larger than the noise; where not all were run, those that were have a frame.
    """
    values = scores.shown
    limit = float(values.abs().max()) or 1.0
    colours = LinearSegmentedColormap.from_list("effect", [ORANGE, "white", BLUE])
    with plt.rc_context(STYLE):
        figure, axis, cell = draw_cells(
            values,
            title,
            label or "score",
            cmap=colours.reversed() if scores.shows_change and not scores.is_distance else colours,
            vmin=-limit,
            vmax=limit,
        )
        for head in scores.order(by_size=True)[:_NAMED]:
            strong = abs(float(values[head])) > 0.55 * limit
            if cell >= 0.24 and abs(float(values[head])) > 0.15 * limit:
                axis.text(
                    *head,
                    f"L{head.layer}\nH{head.head}",
                    fontsize=5.5,
                    ha="center",
                    va="center",
                    color="white" if strong else "black",
                )
        dots = scores.in_noise.nonzero()
        axis.scatter(dots[:, 0], dots[:, 1], s=2, color=GREY, linewidths=0)
        for head in scores.heads if scores.estimated else []:
            if not scores.is_estimated[head]:
                corner = head.layer - 0.5, head.head - 0.5
                axis.add_patch(Rectangle(corner, 1, 1, fill=False, lw=0.7, color="black"))
        figure.tight_layout()
        add_caption(figure, caption)
    return figure


def draw_cells(
    values: Tensor, title: str, label: str, **colours: Any
) -> tuple[Figure, Axes, float]:
    """A coloured cell for each head of [layer, head]; the figure, its axes, a cell's size."""
    layers, heads = values.shape
    cell = min(0.3, 10 / layers)
    figure, axis = plt.subplots(figsize=(max(3.2, cell * layers + 1.4), cell * heads + 0.9))
    picture = axis.imshow(values.T.numpy(), aspect="equal", **colours)
    axis.set_xticks(range(0, layers, 1 + (layers - 1) // 40))
    axis.set_yticks(range(0, heads, 1 + (heads - 1) // 40))
    axis.set_xlabel("layer")
    axis.set_ylabel("head")
    axis.set_title(title, loc="left")
    axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axis.tick_params(length=0, labelsize=7)
    axis.set_xticks([x - 0.5 for x in range(layers + 1)], minor=True)
    axis.set_yticks([y - 0.5 for y in range(heads + 1)], minor=True)
    axis.grid(which="minor", color="#e5e7eb", linewidth=0.4)
    axis.tick_params(which="minor", length=0)
    bar = figure.colorbar(picture, ax=axis, fraction=0.03, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return figure, axis, cell


def plot_scores(scores: HeadScores) -> Figure:
    """The head map of a ranking, with its own caption."""
    layers, heads = scores.shape
    floor = "not measured" if scores.noise_floor is None else f"{scores.noise_floor:.1g}"
    if scores.method in ("ablate", "patch"):
        done = f"at gate {scores.scale:g}" if scores.scale else "off"
        done = f"patched ({scores.settings['direction']})" if scores.method == "patch" else done
        title, what = f"Every head {done} in turn", f"each {done} alone"
        if scores.estimated:
            title = f"Heads {done} in turn, others by gradients"
            what = f"{what} where framed"
    else:
        title = what = f"Scores by {scores.method}"
    task = f", task {scores.task}" if scores.task else ""
    caption = (
        f"{scores.model}, {layers} x {heads} heads{task}; {what}, reference {scores.reference}; "
        "mean over n = "
    )
    if scores.method == "probe":
        caption += f"{count(len(scores.examples), 'training answer')}."
    elif bool(scores.clean.isnan().all()):  # learned, not measured
        caption += f"{count(len(scores.examples), 'seed')} of learned gates."
    else:
        dots = " (dots: heads below it)" if scores.in_noise.any() else ""
        clean = float(scores.clean.double().mean())
        examples = count(len(scores.examples), "example")
        caption += f"{examples}, {clean:.3g} {scores.base}. Noise floor {floor}{dots}."
    if scores.estimated:
        from headlab.screening import missed, ran

        caption += f" Framed: {ran(scores)}{missed(scores)}. Others are estimates."
    told = scores.settings.get("score", scores.measure)
    label = f"change of {told}" if scores.shows_change else f"score ({told})"
    return head_map(scores, caption, title, label)


def save_head_map(scores: HeadScores, folder: Path, name: str = "head-map") -> Path:
    """name.png, .pdf and .csv in `folder`; gives the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    low, high = scores.shown_interval
    change = scores.shown
    noise, beyond = scores.in_noise, scores.leaves_out_zero
    rows = [
        {
            "head": str(head),
            "layer": head.layer,
            "number": head.head,
            "measure": scores.measure,
            ("change" if scores.shows_change else "score"): float(change[head]),
            "low": float(low[head]),
            "high": float(high[head]),
            "in_noise": bool(noise[head]),
            "leaves_out_zero": bool(beyond[head]),
            "estimated": bool(scores.is_estimated[head]),
        }
        for head in scores.heads
    ]
    return save(plot_scores(scores), folder, name, rows).resolve()


def plot_curve(curve: Curve) -> Figure:
    """Explained effect against heads kept (or ablated), with its band and both random baselines."""
    from headlab.screening import ranked_by

    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.6, 3.1))
        ks, (low, high) = curve.ks, curve.band
        for values, style, label in (
            (curve.random_explained, "--", count(len(curve.random), "random order")),
            (curve.matched_explained, ":", "random, as many of each layer"),
        ):
            axis.plot(curve.random_ks, values.mean(0), style, color=GREY, lw=1.2, label=label)
            if style == "--":
                ends = values.quantile(0.025, 0), values.quantile(0.975, 0)
                axis.fill_between(curve.random_ks, *ends, color=GREY, alpha=0.18, lw=0)
        axis.plot(ks, curve.explained, color=BLUE, lw=1.8, label=f"by {curve.method}")
        axis.fill_between(ks, low, high, color=BLUE, alpha=0.22, lw=0)
        level = curve.threshold if curve.mode == "keep" else 1 - curve.threshold
        crossing = curve.crossing()
        axis.axhline(level, color="black", lw=0.6, ls=(0, (4, 3)))
        if crossing is not None:
            axis.plot([crossing, crossing], [0, level], color="black", lw=0.6, ls=(0, (4, 3)))
            name = f"k{100 * curve.threshold:g} = {crossing}"
            right = crossing > 0.7 * curve.n_heads
            axis.annotate(
                name,
                (crossing, 0.03),
                xytext=(-4 if right else 4, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                fontsize=8,
            )
        axis.axhline(0, color="black", lw=0.4)
        axis.set_xlim(0, curve.n_heads)
        axis.set_xlabel(f"number of heads {'kept' if curve.mode == 'keep' else 'ablated'}")
        axis.set_ylabel("explained effect")
        axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        each = ", an order for each prompt" if curve.per_prompt else ""
        ranked = ranked_by(curve.method, curve.settings.get("ranking", {}))
        axis.set_title(f"{curve.task or 'examples'}, {curve.model}", loc="left")
        figure.tight_layout()
        add_caption(
            figure,
            f"{curve.model}, {curve.n_heads} heads ranked by {ranked}{each}; "
            f"{curve.measure}, reference {curve.reference}; "
            f"n = {len(curve.examples)} prompts, {curve.sample}. "
            f"Band: 95 % bootstrap over prompts; grey: {count(len(curve.random), 'random order')} "
            f"(mean, 95 % of the orders; seed {curve.settings.get('seed', 0)}).",
        )
    return figure


def add_caption(figure: Figure, caption: str) -> None:
    """What a figure must say by itself, small and grey below it."""
    wide = int(19 * figure.get_figwidth())
    lines = textwrap.fill(caption, wide).replace("$", r"\$")  # a dollar, no formula
    figure.text(0.01, -0.01, lines, fontsize=7, color=GREY, ha="left", va="top")
