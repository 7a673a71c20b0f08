"""The figure of activations under conditions: each statistic, and its paired difference below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from headlab.activations.measuring import Activations
from headlab.activations.statistics import STATISTICS
from headlab.figures import AMBER, BLUE, GREEN, GREY, ORANGE, PINK, STYLE, add_caption, save
from headlab.figures import save_table as save_rows
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (BLUE, GREEN, ORANGE, PINK, AMBER)  # of the conditions after the first, which is grey


def plot_activations(found: Activations) -> Figure:
    """Above, means over prompts; below, differences to the first condition, prompt by prompt."""
    table = {(row["statistic"], row["condition"]): row for row in found.table()}
    places = range(len(found.names))
    colours = [GREY, *(_COLOURS[n % len(_COLOURS)] for n in range(len(found.names)))]
    with plt.rc_context(STYLE):
        wide = max(1.5, 0.42 * len(found.names) + 0.7)
        figure, axes = plt.subplots(
            2, len(STATISTICS), figsize=(wide * len(STATISTICS), 4.2), sharex=True, squeeze=False
        )
        for column, statistic in enumerate(STATISTICS):
            above, below = axes[0][column], axes[1][column]
            above.set_title(statistic, loc="left")
            for axis, middle, start in ((above, "mean", ""), (below, "difference", "difference_")):
                for place, name in zip(places, found.names, strict=True):
                    row = table[statistic, name]
                    if axis is below and place == 0:
                        continue  # itself
                    ends = [
                        [row[middle] - row[f"{start}low"]],
                        [row[f"{start}high"] - row[middle]],
                    ]
                    known = all(end[0] == end[0] for end in ends)  # of one prompt there are none
                    axis.errorbar(
                        [place],
                        [row[middle]],
                        yerr=ends if known else None,
                        fmt="o",
                        ms=4,
                        capsize=2.5,
                        lw=1.2,
                        color=colours[place],
                    )
                axis.tick_params(labelsize=7)
                axis.margins(x=0.25)
            below.axhline(0, color="black", lw=0.5)
            below.set_xticks(list(places), found.names, rotation=45, ha="right")
        axes[0][0].set_ylabel("mean over prompts")
        axes[1][0].set_ylabel(f"difference to {found.names[0]}")
        figure.tight_layout()
        add_caption(figure, caption(found))
    return figure


def caption(found: Activations) -> str:
    which = "the question's tokens" if found.settings.get("which") == "question" else "all tokens"
    said = "; ".join(f"{condition.name}: {condition.says}" for condition in found.conditions)
    return (
        f"{found.model}, what {found.path} gives on {which} that every condition has, mean over "
        f"tokens, then over n = {count(found.n, 'prompt')}. Bars: 95 % bootstrap over prompts; "
        f"below, paired. Near zero: |x| <= {found.threshold:.3g} ({found.threshold_from}). {said}."
    )


def save_activations(found: Activations, folder: Path) -> Path:
    """activations.png, .pdf, .csv and activations-prompts.csv in `folder`; gives the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    save_rows(found.rows(), folder, "activations-prompts")
    return save(plot_activations(found), folder, "activations", found.table()).resolve()
