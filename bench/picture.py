"""The picture of docs/benchmarks.md from what race.py and growth.py found.

python bench/picture.py race.json growth.json --shape llama-3.2-1b --out docs/img/benchmarks.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import Kept, plainly
from growth import slope
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from race import ROWS

from headlab import HeadlabError
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
    race, growth = (_read(each) for each in (asked.race, asked.growth))
    if asked.shape not in growth:
        raise HeadlabError(
            f"{asked.growth} has no growth of {asked.shape}: growth.py --shape {asked.shape} "
            f"--out {asked.growth} adds it"
        )
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(11.5, 3.6), gridspec_kw={"width_ratios": [2.7, 1], "wspace": 0.2}
        )
        draw_ratios(left, race)
        draw_growth(right, growth[asked.shape], asked.shape)
        figure.savefig(asked.out, bbox_inches="tight")


def _read(path: Path) -> dict:
    if not path.exists():
        raise HeadlabError(f"there is no {path}; race.py and growth.py write theirs with --out")
    return Kept(path).found


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
    axis.set_xticks(range(len(names)), [name.replace("-", "\n") for name in names], fontsize=8)
    axis.set_ylabel("times Headlab's seconds")
    axis.legend(frameon=False, fontsize=7, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))


def draw_growth(axis: plt.Axes, growth: dict, shape: str) -> None:
    for (name, found), colour in zip(growth.items(), (BLUE, GREEN, ORANGE, PINK), strict=True):
        steep, note = slope(found["sizes"], found["seconds"]), found.get("note")
        axis.plot(
            found["sizes"],
            found["seconds"],
            "o-",
            color=colour,
            ms=6 - 2 * (name == "tokens"),  # it lies upon prompts, which would not be seen
            label=f"{name}, slope {steep:.2f}" + (f", {note}" if note else ""),
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(_PLAIN)
        each.set_minor_formatter(NullFormatter())
    axis.set_xlabel("number of each, else 32 x 32")
    axis.set_ylabel(f"seconds of a sweep, {shape}")
    axis.legend(frameon=False, fontsize=7, ncols=2, loc="lower right", bbox_to_anchor=(1.02, 1))


if __name__ == "__main__":
    plainly(main)
