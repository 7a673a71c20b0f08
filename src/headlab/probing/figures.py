"""Head maps of a probe: how important each head is for each function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from headlab.figures import ORANGE, STYLE, add_caption, save
from headlab.heads import Head
from headlab.tasks.cogqa import FUNCTIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headlab.probing.probe import Probed


def probe_maps(probed: Probed, model: str, functions: Sequence[str]) -> Figure:
    """A map for each function, layers from left to right, heads from top to bottom; the heads
    up to the bend of the sorted curve are marked."""
    _, layers, heads = probed.importance.shape
    columns = min(2, len(functions))
    rows = math.ceil(len(functions) / columns)
    with plt.rc_context(STYLE):
        cell = min(0.14, 5 / layers)
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(
                max(2.6, cell * layers + 0.7) * columns,
                (max(0.8, cell * heads) + 0.65) * rows,
            ),
            squeeze=False,
        )
        for axis in axes.flat[len(functions) :]:
            axis.set_visible(False)
        for axis, name in zip(axes.flat, functions, strict=False):
            sizes = probed.importance[probed.classes.index(name)].abs()
            axis.imshow(sizes.T.numpy(), cmap="Greys", vmin=0, aspect="auto")
            top = probed.top(name, probed.elbow(name))
            axis.scatter(*zip(*top, strict=True), s=3, color=ORANGE, lw=0)
            axis.set_title(f"{FUNCTIONS[name]} ({len(top)})", loc="left")
            axis.tick_params(length=0, labelsize=6.5)
            axis.spines[["left", "bottom"]].set_visible(False)
        for axis in axes[:, 0]:
            axis.set_ylabel("head")
        for axis in axes[-1]:
            axis.set_xlabel("layer")
        figure.tight_layout()
        add_caption(
            figure,
            f"{model}, {layers} x {heads} heads: size of gradient x activation in a probe that "
            f"names the function of an answer, mean over the training answers of each "
            f"({probed.n_train} in all). Right "
            f"on {100 * probed.accuracy:.0f} % of {probed.n_test} others (most frequent function "
            f"{100 * probed.majority:.0f} %, shuffled labels {100 * probed.shuffled:.0f} %). "
            "Orange, in brackets: heads up to the bend of the sorted curve.",
        )
    return figure


def save_maps(
    probed: Probed, model: str, functions: Sequence[str], folder: Path, name: str
) -> Path:
    """name.png, .pdf and .csv; gives the PNG's path."""
    _, layers, heads = probed.importance.shape
    rows = [
        {
            "function": function,
            "head": str(Head(layer, head)),
            "layer": layer,
            "number": head,
            "importance": float(probed.importance[number, layer, head]),
        }
        for number, function in enumerate(probed.classes)
        if function in functions
        for layer in range(layers)
        for head in range(heads)
    ]
    return save(probe_maps(probed, model, functions), folder, name, rows)
