"""Figures of what heads attend to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from matplotlib import patheffects, ticker
from matplotlib import pyplot as plt

from headlab.attention.profiles import Profiles, rows_of
from headlab.attention.types import TYPES, HeadTypes
from headlab.figures import BLUE, GREY, STYLE, add_caption, save
from headlab.heads import Head
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

TITLES = {
    "received": "received from later tokens",
    "given": "given to earlier tokens",
    "entropy": "entropy (nats)",
    "first": "given to the first token",
    "distance": "by distance",
}
_LOG = ("received", "distance")


def plot_profiles(profiles: Profiles) -> Figure:
    """Rows heads, columns statistics: blue observed with its band over prompts, grey even
    attention, which more tokens alone would change."""
    names = list(profiles.values)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(profiles.heads),
            len(names),
            figsize=(2.3 * len(names), 1.75 * len(profiles.heads) + 0.5),
            squeeze=False,
        )
        bands = {name: profiles.band(name) for name in names}
        for row, head in zip(axes, range(len(profiles.heads)), strict=True):
            for axis, name in zip(row, names, strict=True):
                _draw(axis, profiles, name, head, bands[name])
            row[0].set_ylabel(str(profiles.heads[head]))
        for axis, name in zip(axes[0], names, strict=True):
            axis.set_title(TITLES[name], loc="left", fontsize=8)
        for axis, name in zip(axes[-1], names, strict=True):
            axis.set_xlabel("distance" if name == "distance" else "position", fontsize=8)
        figure.tight_layout()
        add_caption(figure, caption(profiles))
    return figure


def _draw(axis: Any, profiles: Profiles, name: str, head: int, band: tuple[Tensor, Tensor]) -> None:
    mean, null = profiles.mean(name)[head], profiles.mean(name, null=True)[head]
    low, high = (end[head] for end in band)
    places = range(len(mean))
    axis.plot(places, null, color=GREY, lw=1, ls="--")
    axis.plot(places, mean, color=BLUE, lw=1.1)
    axis.fill_between(places, low, high, color=BLUE, alpha=0.2, lw=0)
    # A band over few prompts can reach past what there can be, and would then set the scale.
    shown = torch.cat([mean, null])
    shown = shown[~shown.isnan()]
    if name in _LOG and bool((shown > 0).all()):
        axis.set_yscale("log")
        bottom, top = float(shown.min()) / 1.6, min(1.15, 1.6 * float(shown.max()))
        axis.set_ylim(bottom, top)
        steps = (1.0,) if top > 300 * bottom else (1.0, 3.0) if top > 20 * bottom else (1, 2, 5)
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=steps))
        axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axis.yaxis.set_minor_locator(ticker.NullLocator())
    elif name == "entropy":
        axis.set_ylim(0, 1.04 * float(shown.max()) or 1)
    else:
        axis.set_ylim(0, 1.04)
    axis.tick_params(labelsize=7)


def caption(profiles: Profiles) -> str:
    prompts = count(len(profiles.lengths), "prompt")
    shortest, longest = min(profiles.lengths), max(profiles.lengths)
    lengths = f"{longest} tokens" if shortest == longest else f"{shortest} to {longest} tokens"
    told = (
        f"{profiles.model}: attention of {count(len(profiles.heads), 'head')} on {prompts} of "
        f"{lengths}"
    )
    if len(profiles.lengths) > 1:
        told += "; mean over the prompts that reach a position, band: 95 % interval over them"
    told += (
        ". Dashed (uniform): even attention over all a query may look at, which falls with the "
        "number of tokens by itself."
    )
    if profiles.inserted:
        told += (
            f" Up to {count(profiles.inserted, 'inserted token')} of each prompt left out, as "
            "queries and as keys."
        )
    return told


def save_profiles(profiles: Profiles, folder: Path, name: str = "attention") -> Path:
    """name.png, .pdf and .csv; gives the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    return save(plot_profiles(profiles), folder, name, rows_of(profiles)).resolve()


def plot_types(types: HeadTypes) -> Figure:
    """A map for each type: layers from left to right, heads from top to bottom; the strongest
    heads carry their names."""
    names = list(TYPES)
    layers, heads, n = types.scores[names[0]].shape
    with plt.rc_context(STYLE):
        cell = min(0.17, 5.5 / layers)
        columns = 2
        rows = math.ceil(len(names) / columns)
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=((cell * layers + 1.3) * columns, (cell * heads + 0.8) * rows),
            squeeze=False,
        )
        for axis, name in zip(axes.flat, names, strict=True):
            mean = types.scores[name].double().mean(-1)
            picture = axis.imshow(mean.T.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            for head, score in types.top(name, 4):
                if score > max(0.1, 3 * float(types.null[name][head.layer])):
                    late = head.layer > 0.85 * layers  # its name stands on the left
                    axis.annotate(
                        str(head),
                        head,
                        xytext=(-7 if late else 7, 0),
                        textcoords="offset points",
                        ha="right" if late else "left",
                        va="center",
                        fontsize=6,
                        color="black",
                        path_effects=[patheffects.withStroke(linewidth=1.8, foreground="white")],
                    )
            axis.set_title(f"{name}: {TYPES[name]}", loc="left", fontsize=7.5)
            axis.tick_params(length=0, labelsize=6.5)
            axis.spines[["left", "bottom"]].set_visible(False)
            bar = figure.colorbar(picture, ax=axis, fraction=0.03, pad=0.02)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=6)
        for axis in axes[:, 0]:
            axis.set_ylabel("head", fontsize=8)
        for axis in axes[-1]:
            axis.set_xlabel("layer", fontsize=8)
        figure.tight_layout()
        even = ", ".join(f"{name} {float(types.null[name].mean()):.3f}" for name in names)
        add_caption(
            figure,
            f"{types.model}, {layers} x {heads} heads: mean weight of the queries in the second "
            f"half of {types.length} random tokens said twice; n = {n} sequences (seed "
            f"{types.seed}). Even attention would give: {even}.",
        )
    return figure


def type_rows(types: HeadTypes) -> list[dict[str, Any]]:
    """A row a head, with every type's score and interval."""
    found = {name: types.as_head_scores(name) for name in TYPES}
    heads: Sequence[Head] = next(iter(found.values())).heads
    rows = []
    for head in heads:
        row: dict[str, Any] = {"head": str(head), "layer": head.layer, "number": head.head}
        for name, scores in found.items():
            low, high = scores.interval
            row |= {
                name: float(scores.score[head]),
                f"{name}_low": max(0.0, float(low[head])),
                f"{name}_high": min(1.0, float(high[head])),
                f"{name}_uniform": float(types.null[name][head.layer]),
            }
        rows.append(row)
    return rows


def save_types(types: HeadTypes, folder: Path, name: str = "types") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return save(plot_types(types), folder, name, type_rows(types)).resolve()
