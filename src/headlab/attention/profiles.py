"""Attention of chosen heads over the positions of prompts, beside what even attention would give.

Weights A[i, j] are what query i gives key j. For every position:

    received  mean over later queries i > j of A[i, j]: what later tokens give it
    given     1 - A[i, i]: what it gives to tokens before it
    entropy   of A[i, :], in nats
    first     A[i, 0]: what it gives to the first token
    distance  by d: mean over queries i >= d of A[i, i - d]; i and j are positions, so that one
              that no token has, or a hidden one has, is given nothing

The last token receives nothing. The null of each is the same statistic of queries that look evenly
at all they may look at: with more tokens each gets less, whatever a head does. It knows of windows,
since what a query may look at is taken from the mask of the pass itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headlab.activations import Arm, find_activation
from headlab.activations.arm import armed
from headlab.attention.watching import Block, watch
from headlab.budgets import find_budget
from headlab.chunks import by_length
from headlab.engine import Progress
from headlab.errors import HeadlabError
from headlab.heads import Head
from headlab.standins import gpu_kernels
from headlab.stats import mean_interval
from headlab.texts import PerPrompt, Prompt

if TYPE_CHECKING:
    import pandas as pd

    from headlab.model import Model
    from headlab.tokens import Tokens

STATISTICS = ("received", "given", "entropy", "first", "distance")


@dataclass(frozen=True)
class Profiles:
    """Statistics of heads on prompts, [prompt, head, position]; NaN where a prompt has no such."""

    model: str
    heads: list[Head]
    values: dict[str, Tensor]
    null: dict[str, Tensor]
    tokens: list[list[str]]  # of each prompt, those that are shown
    lengths: list[int]  # of each prompt, all tokens
    inserted: int = 0  # tokens left out of each prompt, at most

    def mean(self, statistic: str, null: bool = False) -> Tensor:
        """[head, position], over the prompts that have such a position."""
        return (self.null if null else self.values)[statistic].double().nanmean(0)

    def band(self, statistic: str) -> tuple[Tensor, Tensor]:
        """95 % interval of the mean over prompts, [head, position] twice; NaN where there are
        fewer than two."""
        values = self.values[statistic].double()
        low, high = (torch.full(values.shape[1:], torch.nan, dtype=torch.float64) for _ in "lh")
        for prompts, places in _alike(values):
            own = values[prompts][:, :, places].permute(1, 2, 0)  # [head, position, prompt]
            low[:, places], high[:, places] = mean_interval(own, n=500)
        most = None if statistic == "entropy" else 1.0  # weights are shares
        return low.clamp(0.0, most), high.clamp(0.0, most)

    def ratio(self, statistic: str) -> Tensor:
        """Observed over uniform, [head, position]: a ratio of means over prompts."""
        return self.mean(statistic) / self.mean(statistic, null=True)

    def ratio_band(self, statistic: str) -> tuple[Tensor, Tensor]:
        """95 % interval of the ratio, [head, position] twice: what prompts of other lengths would
        change by themselves is in both of its parts and cancels."""
        values, null = self.values[statistic].double(), self.null[statistic].double()
        ratio, even = self.ratio(statistic), self.mean(statistic, null=True)
        low, high = (torch.full_like(ratio, torch.nan) for _ in "lh")
        for prompts, places in _alike(values):
            seen, plain = (each[prompts][:, :, places] for each in (values, null))
            apart = (seen - ratio[None, :, places] * plain).permute(1, 2, 0)
            for end, into in zip(mean_interval(apart, n=500), (low, high), strict=True):
                into[:, places] = (end / even[:, places] + ratio[:, places]).clamp(min=0)
        return low, high

    def table(self, statistics: Sequence[str] = STATISTICS) -> pd.DataFrame:
        """A row a head, statistic and position: mean, interval, null, ratio, number of prompts."""
        import pandas as pd

        parts = []
        for statistic in statistics:
            mean, null = self.mean(statistic), self.mean(statistic, null=True)
            low, high = self.band(statistic)
            ratio_low, ratio_high = self.ratio_band(statistic)
            count = (~self.values[statistic].isnan()).sum(0)
            for number, head in enumerate(self.heads):
                parts.append(
                    pd.DataFrame(
                        {
                            "head": str(head),
                            "statistic": statistic,
                            "position": range(mean.shape[1]),
                            "mean": mean[number],
                            "low": low[number],
                            "high": high[number],
                            "uniform": null[number],
                            "ratio": mean[number] / null[number],
                            "ratio_low": ratio_low[number],
                            "ratio_high": ratio_high[number],
                            "prompts": count[number],
                        }
                    )
                )
        table = pd.concat(parts, ignore_index=True)
        return table[table["prompts"] > 0]


def _alike(values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Positions that the same prompts have, two at least: those prompts [prompt], and the positions
    [position]. One resampling serves all of them."""
    there = ~values[:, 0].isnan()  # [prompt, position]
    kinds, which = torch.unique(there, dim=1, return_inverse=True)
    return [
        (kinds[:, kind], which == kind)
        for kind in range(kinds.shape[1])
        if int(kinds[:, kind].sum()) > 1
    ]


def profile(
    model: Model,
    prompts: Sequence[Prompt],
    heads: Sequence[Head],
    inserted: Sequence[Tensor] | None = None,
    *,
    position_ids: PerPrompt = None,
    hidden: PerPrompt = None,
    arm: Arm | None = None,
    progress: Progress | None = None,
) -> Profiles:
    """Statistics of the heads on every prompt.

    `inserted` marks tokens of each prompt that are not its own (fillers): as queries they are not
    counted, as keys they are left out, and the others close up, so that prompts with and without
    them line up. `position_ids` are the positions of each prompt's tokens, from 0 and growing
    (None: 0, 1, 2 ...); `hidden` marks tokens of each prompt that keep their positions and that no
    query may look at: they count as inserted. `arm` changes the first MLP's activations, which the
    first layer's heads come before.

    >>> found = profile(model, prompts, [Head(0, 4)])                         # doctest: +SKIP
    >>> found.ratio("received").shape                                         # doctest: +SKIP
    torch.Size([1, 61])
    """
    prompts, heads = list(prompts), list(dict.fromkeys(heads))
    if not prompts:
        raise HeadlabError("no prompts were given")
    for head in heads:
        if not (0 <= head.layer < model.n_layers and 0 <= head.head < model.n_heads):
            raise HeadlabError(
                f"{model.name} has {model.n_layers} layers of {model.n_heads} heads; there is no "
                f"{head}"
            )
    runs = [model.ids(prompt) for prompt in prompts]
    own = [torch.ones(len(run), dtype=torch.bool) for run in runs]
    if inserted is not None:
        own = [~torch.as_tensor(each, dtype=torch.bool) for each in inserted]
        if [len(each) for each in own] != [len(run) for run in runs]:
            raise HeadlabError("what is inserted must be marked for every token of every prompt")
    given, unseen = model.placed(runs, position_ids, hidden)
    if unseen is not None:
        own = [mine & ~covered for mine, covered in zip(own, unseen, strict=True)]
    short = [number for number, each in enumerate(own) if int(each.sum()) < 2]
    if short:
        raise HeadlabError(f"prompt {short[0] + 1} has fewer than two tokens to look at")
    longest = max(int(each.sum()) for each in own)
    shape = (len(runs), len(heads), longest)
    values, null = (
        {name: torch.full(shape, torch.nan) for name in STATISTICS} for _ in ("observed", "null")
    )
    for rows in by_length([len(run) for run in runs], find_budget(model)):
        tokens = model.tokens(
            [runs[row] for row in rows],
            position_ids=None if given is None else [given[row] for row in rows],
            hidden=None if unseen is None else [unseen[row] for row in rows],
        )
        sums = _Sums(tokens, [own[row] for row in rows], heads)
        with gpu_kernels(model), _armed(model, arm, [runs[row] for row in rows], tokens):
            watch(model, sums.tokens, sums.by_layer, sums.add)
        for into, found in ((values, sums.observed), (null, sums.even)):
            for name, each in found.statistics(sums).items():
                into[name][rows, :, : each.shape[-1]] = each
        if progress is not None:
            progress(len(rows))
    return Profiles(
        model.name,
        heads,
        values,
        null,
        [
            [text for text, mine in zip(model.token_texts(run), each.tolist(), strict=True) if mine]
            for run, each in zip(runs, own, strict=True)
        ],
        [len(run) for run in runs],
        max(int((~each).sum()) for each in own),
    )


def _armed(
    model: Model, arm: Arm | None, runs: list[Tensor], tokens: Tokens
) -> AbstractContextManager[Any]:
    if arm is None:
        return nullcontext()
    return armed(find_activation(model), arm, arm.keys(runs), tokens.positions)


class _Sums:
    """What is added up over the blocks of one batch, for the heads and for even attention."""

    def __init__(self, tokens: Tokens, own: list[Tensor], heads: list[Head]):
        self.tokens, self.heads = tokens, heads
        self.by_layer: dict[int, list[int]] = {}
        self.places: dict[int, list[int]] = {}  # of a layer's heads among all
        for place, head in enumerate(heads):
            self.by_layer.setdefault(head.layer, []).append(head.head)
            self.places.setdefault(head.layer, []).append(place)
        rows, positions = tokens.ids.shape
        self.own = torch.zeros(rows, positions, dtype=torch.bool, device=tokens.ids.device)
        for row, mine in zip(self.own, own, strict=True):
            row[: len(mine)] = mine.to(row.device)
        shape = (rows, len(heads), positions)
        self.observed, self.even = (_Statistics(shape, tokens.ids.device) for _ in ("o", "e"))

    def add(self, block: Block) -> None:
        places = self.places[block.layer]
        self.observed.add(block, block.weights, self, places)
        even = block.allowed.float()
        even = even / even.sum(-1, keepdim=True).clamp(min=1)
        self.even.add(block, even, self, places)


class _Statistics:
    """Sums over queries of the weights [row, head, query, key] that blocks bring."""

    def __init__(self, shape: tuple[int, int, int], device: torch.device):
        self.sums = {name: torch.zeros(shape, device=device) for name in STATISTICS}

    def add(self, block: Block, weights: Tensor, sums: _Sums, places: list[int]) -> None:
        positions, width = weights.shape[-1], weights.shape[-2]
        own, given = sums.own, sums.tokens.given
        rows, heads = own.shape[0], len(places)
        queries = torch.arange(block.first, block.first + width, device=weights.device)
        keys = torch.arange(positions, device=weights.device)
        counted = weights * own[:, None, queries, None]  # queries that are not inserted, nor pads
        apart = queries[:, None] - keys  # [query, key]
        later = counted.masked_fill(apart <= 0, 0.0)
        self.sums["received"][:, places] += later.sum(2)
        per_query = {
            "given": 1 - weights[..., torch.arange(width, device=weights.device), queries],
            "entropy": torch.special.entr(weights).sum(-1),
            "first": weights[..., 0],
        }
        for name, values in per_query.items():
            spread = values.expand(rows, heads, width)
            self.sums[name][:, places, block.first : block.first + width] = spread
        apart = apart[None]  # [row|1, query, key]
        if given is not None:
            apart = given[:, queries, None] - given[:, None, :]
        # Longer ones than there are tokens are not shown.
        within = counted.masked_fill(((apart < 0) | (apart >= positions))[:, None], 0.0)
        flat = within.expand(rows, heads, width, positions).flatten(2)
        where = apart.clamp(0, positions - 1).flatten(1)[:, None].expand_as(flat)
        by_distance = torch.zeros(rows, heads, positions, device=weights.device)
        by_distance.scatter_add_(2, where, flat)
        self.sums["distance"][:, places] += by_distance

    def statistics(self, sums: _Sums) -> dict[str, Tensor]:
        """Means by position of the prompts' own tokens, closed up; NaN where there is none."""
        own = sums.own  # [row, position]
        from_here = own.flip(1).cumsum(1).flip(1)  # own queries at and after each place
        counts = {"received": from_here - own.long(), "distance": from_here}
        if sums.tokens.given is not None:
            at = sums.tokens.given.clamp(max=own.shape[1] - 1)
            by_position = torch.zeros_like(from_here).scatter_add(1, at, own.long())
            counts["distance"] = by_position.flip(1).cumsum(1).flip(1)
        found = {}
        longest = int(own.sum(1).max())
        for name, total in self.sums.items():
            values = total
            if name in counts:
                count = counts[name][:, None]
                values = torch.where(count > 0, total / count.clamp(min=1), torch.nan)
            closed = torch.full((*total.shape[:2], longest), torch.nan)
            for row, mine in enumerate(own):
                if name == "distance":  # of distances, not of positions
                    n = min(longest, int(sums.tokens.positions[row][mine].max()) + 1)
                    closed[row, :, :n] = values[row, :, :n].cpu()
                else:
                    n = int(mine.sum())
                    closed[row, :, :n] = values[row][:, mine].cpu()
            found[name] = closed
        return found


def rows_of(profiles: Profiles) -> list[dict[str, Any]]:
    """The table as rows for a CSV."""
    return profiles.table().to_dict("records")
