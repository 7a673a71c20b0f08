"""Which heads are masked: the top K, K others at random, and K others of the same layers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.probing import elbow
from headlab.studies.masking.spec import SHARES


class Mask(NamedTuple):
    """Heads that are taken away together."""

    heads_of: str  # the function whose heads they are, or stand beside
    kind: str  # top, random, matched; boosted and boosted-random where they are boosted
    k: int
    draw: int  # 0 for the one top
    heads: tuple[int, ...]  # numbers, layer by layer


def wanted_ks(ks: str | Sequence[int | str], sizes: Tensor) -> list[int]:
    """The numbers of heads, from a setting and the sizes of a function's scores, [layer, head].

    >>> wanted_ks("shares", torch.rand(30, 9)), wanted_ks([16, 3], torch.rand(30, 9))
    ([4, 8, 17, 34], [3, 16])
    """
    total = sizes.numel()
    if ks == "shares":
        found = [max(1, round(share * total)) for share in SHARES]
    else:
        bend = min(elbow(sizes), max(1, total // 2))  # a line has none: no more than can be drawn
        found = [bend if k == "elbow" else int(k) for k in ks]
    for k in found:
        if 2 * k > total:
            raise HeadlabError(
                f"{k} of {total} heads leave no {k} others to compare with; K is at most "
                f"{total // 2} here"
            )
    return sorted(set(found))


def draw_masks(
    name: str, order: Tensor, shape: tuple[int, int], ks: Sequence[int], draws: int, key: str
) -> list[Mask]:
    """For every K the top K heads of an order [rank], and for each draw K others at random and K
    others of the same layers. Every draw has luck of its own, from the key, the function and K."""
    masks = []
    for k in ks:
        top = order[:k].tolist()
        others = sorted(set(range(shape[0] * shape[1])) - set(top))
        masks.append(Mask(name, "top", k, 0, tuple(sorted(top))))
        for draw in range(draws):
            one, other = (
                random.Random(f"{key} {name} {k} {draw} {kind}").sample(others, len(others))
                for kind in ("random", "matched")
            )
            masks.append(Mask(name, "random", k, draw, tuple(sorted(one[:k]))))
            masks.append(Mask(name, "matched", k, draw, _matched(top, other, shape[1])))
    return masks


def _matched(top: list[int], others: list[int], width: int) -> tuple[int, ...]:
    """As many others of each layer as the top has; where a layer has too few, of the next ones.

    >>> _matched([0, 1, 2, 9], [4, 3, 8, 7, 6, 5, 11, 10], width=4)
    (3, 4, 7, 8)
    """
    left: dict[int, list[int]] = {}
    for head in others:
        left.setdefault(head // width, []).append(head)
    chosen, wanting = [], []
    for head in sorted(top):
        own = left.get(head // width)
        if own:
            chosen.append(own.pop(0))
        else:
            wanting.append(head // width)
    for layer in wanting:
        near = min(
            (each for each in left if left[each]), key=lambda each: (abs(each - layer), each)
        )
        chosen.append(left[near].pop(0))
    return tuple(sorted(chosen))


def borrowed(top: Sequence[int], width: int) -> int:
    """How many of the heads of the same layers must come from others: a layer of which more than
    half are in the top has too few left.

    >>> borrowed([0, 1, 2, 9], width=4)
    2
    """
    return sum(max(0, 2 * own - width) for own in Counter(head // width for head in top).values())


def gates_of(masks: Sequence[Mask], shape: tuple[int, int], scale: float) -> Tensor:
    """[mask, layer, head]: `scale` at the heads of each, 1 elsewhere."""
    gates = torch.ones(len(masks), shape[0] * shape[1])
    for row, mask in zip(gates, masks, strict=True):
        row[list(mask.heads)] = scale
    return gates.view(-1, *shape)
