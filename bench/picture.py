"""The picture of docs/benchmarks.md from what race.py and growth.py found.

python bench/picture.py race.json growth.json --shape llama-3.2-1b --out docs/img/benchmarks.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from growth import slope
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from race import ROWS

from headlab.figures import BLUE, GREEN, GREY, ORANGE, PINK, STYLE

_COLOURS = {"hooks": GREY, "TransformerLens 4.3": ORANGE, "nnsight 0.8": BLUE, "pyvene 0.1.8": PINK}
_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("race", type=Path)
    options.add_argument("growth", type=Path)
    options.add_argument("--shape", default="llama-3.2-1b", help="whose growth is drawn")
    options.add_argument("--out", type=Path, required=True)
    asked = options.parse_args()
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(10, 3.6), gridspec_kw={"width_ratios": [2, 1], "wspace": 0.25}
        )
        draw_ratios(left, json.loads(asked.race.read_text()))
        draw_growth(right, json.loads(asked.growth.read_text())[asked.shape], asked.shape)
        figure.savefig(asked.out, bbox_inches="tight")


def draw_ratios(axis: plt.Axes, race: dict) -> None:
    """How many times longer every other way takes; a library's second way is hollow."""
    named = set()
    names = sorted(race, key=[*ROWS, *race].index)
    for place, row in enumerate(race[name] for name in names):
        others = [each for each in row["ways"] if each["way"] != "headlab"]
        for number, each in enumerate(others):
            way = each["way"]
            peer, _, how = way.partition(", ")
            at = place + 0.16 * (number - (len(others) - 1) / 2)
            axis.bar(
                *(at, each["ratio"] - 1, 0.14, 1),
                color="white" if how else _COLOURS[peer],
                edgecolor=_COLOURS[peer],
                label=None if way in named else way,
                zorder=2,
            )
            named.add(way)
    axis.axhline(1, color="black", lw=0.8, zorder=3)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(_PLAIN)
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(range(len(names)), [name.replace("-", "\n") for name in names])
    axis.set_ylabel("seconds of others, Headlab = 1")
    axis.legend(frameon=False, fontsize=7, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def draw_growth(axis: plt.Axes, growth: dict, shape: str) -> None:
    for (name, found), colour in zip(growth.items(), (BLUE, GREEN, ORANGE, PINK), strict=True):
        steep = slope(found["sizes"], found["seconds"])
        axis.plot(
            found["sizes"],
            found["seconds"],
            "o-",
            color=colour,
            ms=4,
            label=f"{name}, slope {steep:.2f}",
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(_PLAIN)
        each.set_minor_formatter(NullFormatter())
    axis.set_title(f"a sweep of {shape} (s)", loc="left")
    axis.legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    main()
