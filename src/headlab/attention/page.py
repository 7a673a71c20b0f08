"""The page of a look at heads: profiles, and each head's map on one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.attention.figures import TITLES, caption
from headlab.attention.maps import attention_maps
from headlab.attention.profiles import Profiles
from headlab.attention.watching import Block, watch
from headlab.files import write_whole
from headlab.heads import Head
from headlab.report import render, rounded

if TYPE_CHECKING:
    from torch import Tensor

    from headlab.model import Model

_LONGEST = 160  # tokens of a map
_FILES = ("attention.png", "attention.pdf", "attention.csv")


def write_page(model: Model, profiles: Profiles, prompt: str, folder: Path) -> Path:
    """attention.html in a folder, with links to the figures that are there; gives its path.

    `prompt`, whose maps are shown, is the first of those in the profiles.
    """
    page = render(
        "attention",
        page_data(model, profiles, prompt),
        title="What do these heads attend to?",
        caption=caption(profiles),
        figures=[name for name in _FILES if (folder / name).is_file()],
    )
    path = folder / "attention.html"
    write_whole(path, page)
    return path.resolve()


def page_data(model: Model, profiles: Profiles, prompt: str) -> dict[str, Any]:
    whole = model.ids(prompt)
    ids = whole[:_LONGEST]
    maps = attention_maps(model, ids, profiles.heads)
    return {
        "model": profiles.model,
        "heads": [str(head) for head in profiles.heads],
        "titles": TITLES,
        "profiles": {
            name: [
                {
                    "mean": rounded(profiles.mean(name)[number], 4),
                    "low": rounded(low[number], 4),
                    "high": rounded(high[number], 4),
                    "uniform": rounded(profiles.mean(name, null=True)[number], 4),
                    "ratio_low": rounded(ratio_low[number], 4),
                    "ratio_high": rounded(ratio_high[number], 4),
                }
                for number in range(len(profiles.heads))
            ]
            for name in profiles.values
            for (low, high), (ratio_low, ratio_high) in [
                (profiles.band(name), profiles.ratio_band(name))
            ]
        },
        "reached": {  # by how many prompts a position is
            name: (~values[:, 0].isnan()).sum(0).tolist()
            for name, values in profiles.values.items()
        },
        "prompts": len(profiles.lengths),
        "inserted": profiles.inserted,
        "shown": profiles.tokens[0],  # by position in the profiles: without inserted ones
        "tokens": model.token_texts(ids),
        "length": len(whole),
        "maps": [[rounded(row[: n + 1], 3) for n, row in enumerate(own)] for own in maps],
        "reach": _reach(model, ids, profiles.heads),
    }


def _reach(model: Model, ids: Tensor, heads: Sequence[Head]) -> list[list[int]]:
    """[head][query]: the first key that a query may look at, later than 0 where a window ends."""
    first: dict[int, list[int]] = {head.layer: [] for head in heads}

    def add(block: Block) -> None:
        first[block.layer] += block.allowed[0, 0].int().argmax(-1).tolist()

    watch(model, model.tokens([ids]), {layer: [0] for layer in first}, add)
    return [first[head.layer] for head in heads]
