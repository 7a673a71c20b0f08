"""The head map of a sparse model's edges: the share of each head's that are open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap, LogNorm

from headlab.figures import BLUE, STYLE, add_caption, draw_cells, save
from headlab.heads import Head
from headlab.studies.circuits.lines import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

LEAST, MOST = 0.01, 100.0  # percent: the colours' ends, the same in all maps; between, logarithmic


def draw_edges(line: Line, edges: Tensor) -> Figure:
    """Percent of edges, [layer, head] as a share; a head with none is white."""
    colours = LinearSegmentedColormap.from_list("edges", ["#deebf7", BLUE, "#08203f"])
    percent = 100 * edges
    with plt.rc_context(STYLE):
        figure, _, _ = draw_cells(
            percent.masked_fill(percent <= 0, float("nan")),
            f"Edges kept by {line.model} on {line.task}",
            "open edges, %",
            cmap=colours,
            norm=LogNorm(LEAST, MOST, clip=True),
        )
        figure.axes[-1].yaxis.set_major_formatter("{x:g}")  # 0.1, not a power of ten
        figure.tight_layout()
        add_caption(figure, _caption(line, percent))
    return figure


def _caption(line: Line, percent: Tensor) -> str:
    layers, heads = percent.shape
    return (
        f"{line.model}, {layers} x {heads} heads, task {line.task}: the share of causal edges "
        f"whose gate is open, on the n = {line.n} prompts the order was tested on. Mean "
        f"{float(percent.mean()):.3g} %; {int((percent <= 0).sum())} heads keep none (white), "
        f"{int((percent < 0.1).sum())} less than 0.1 %."
    )


def rows_of_edges(edges: Tensor) -> list[dict[str, Any]]:
    """The map's data, a row a head."""
    return [
        {
            "head": str(Head(layer, number)),
            "layer": layer,
            "number": number,
            "percent": 100 * float(share),
        }
        for layer, row in enumerate(edges)
        for number, share in enumerate(row)
    ]


def save_edges(line: Line, edges: Tensor, folder: Path, name: str) -> Path:
    return save(draw_edges(line, edges), folder, name, rows_of_edges(edges))
