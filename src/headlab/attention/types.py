"""Known types of heads by their usual tests, on random tokens that are repeated once.

A head looks at the token before (previous-token), at the same token's first occurrence (duplicate),
at what came after that (induction), or at the first token of all (sink): the mean weight it gives
there, over the queries of the repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.attention.watching import Block, watch
from headlab.budgets import find_budget
from headlab.chunks import by_length
from headlab.engine import Progress
from headlab.errors import HeadlabError
from headlab.heads import Head
from headlab.scores import HeadScores
from headlab.standins import gpu_kernels

if TYPE_CHECKING:
    from headlab.model import Model

TYPES = {
    "previous-token": "looks at the token before",
    "induction": "looks at what came after the same token before",
    "duplicate-token": "looks at the same token before",
    "first-token": "looks at the first token of all",
}


@dataclass(frozen=True)
class HeadTypes:
    """How much every head does of each type."""

    model: str
    scores: dict[str, Tensor]  # by type, [layer, head, sequence]
    null: dict[str, Tensor]  # by type, [layer], of even attention; layers may have windows
    length: int  # tokens that are repeated
    seed: int

    def top(self, name: str, n: int = 5) -> list[tuple[Head, float]]:
        """The heads that do it most, with their scores."""
        mean = self.scores[name].double().mean(-1)
        order = mean.flatten().argsort(descending=True, stable=True)[:n].tolist()
        heads = [Head(*divmod(number, mean.shape[1])) for number in order]
        return [(head, float(mean[head])) for head in heads]

    def as_head_scores(self, name: str) -> HeadScores:
        n = self.scores[name].shape[-1]
        return HeadScores(
            model=self.model,
            task=f"{self.length} random tokens, twice",
            method="attention",
            measure=f"{name} attention",
            reference="none",
            examples=[f"sequence-{number}" for number in range(n)],
            values=self.scores[name],
            clean=torch.full((n,), torch.nan),
            settings={
                "seed": self.seed,
                "length": self.length,
                "uniform": self.null[name].tolist(),
            },
        )


def find_types(
    model: Model,
    n: int = 16,
    length: int = 64,
    seed: int = 0,
    *,
    progress: Progress | None = None,
) -> HeadTypes:
    """Every head's score of every type, on n sequences of so many random tokens, repeated once.

    >>> found = find_types(model)                                             # doctest: +SKIP
    >>> found.top("induction", 1)                                             # doctest: +SKIP
    [(Head(layer=7, head=2), 0.93)]
    """
    if n < 2 or length < 3:
        raise HeadlabError("two sequences of three tokens at least are needed to tell types apart")
    ids = repeated(model, n, length, seed)
    start = ids.shape[1] - 2 * length  # a BOS stands before
    limit = model.max_length
    if limit is not None and ids.shape[1] > limit:
        raise HeadlabError(
            f"{length} tokens twice are {ids.shape[1]}, and {model.name} takes {limit} at most"
        )
    shape = (model.n_layers, model.n_heads, n)
    scores = {name: torch.zeros(shape) for name in TYPES}
    # where each type looks, as a distance from the query
    ways = {"previous-token": 1, "induction": length - 1, "duplicate-token": length}
    second = range(start + length, ids.shape[1])  # queries of the repetition
    everything = {layer: list(range(model.n_heads)) for layer in range(model.n_layers)}
    null = {name: torch.zeros(model.n_layers) for name in TYPES}
    for rows in by_length([ids.shape[1]] * n, find_budget(model)):

        def add(block: Block, rows: list[int] = rows) -> None:
            width = block.weights.shape[2]
            own = [place for place in second if block.first <= place < block.first + width]
            if not own:
                return
            queries = torch.tensor(own, device=block.weights.device)
            there = queries - block.first
            even = block.allowed.float()
            even = even / even.sum(-1, keepdim=True)
            for name in TYPES:
                keys = queries - ways[name] if name in ways else torch.zeros_like(queries)
                found = block.weights[:, :, there, keys].sum(-1) / length  # [row, head]
                scores[name][block.layer, :, rows] += found.T.cpu()
                share = even[:, :, there, keys].mean((0, 1)).sum() / length
                null[name][block.layer] += float(share) * len(rows) / n

        with gpu_kernels(model):
            watch(model, model.tokens(list(ids[rows])), everything, add)
        if progress is not None:
            progress(len(rows))
    return HeadTypes(model.name, scores, null, length, seed)


def repeated(model: Model, n: int, length: int, seed: int) -> Tensor:
    """[sequence, position]: random ordinary tokens, each once, then all of them again; after BOS
    where the model has one."""
    special = set(model.special_tokens.values()) if model.tokenizer is not None else set()
    ordinary = torch.tensor([token for token in range(model.vocabulary) if token not in special])
    if model.tokenizer is not None:  # rows of the embedding that no token has
        ordinary = ordinary[ordinary < len(model.tokenizer)]
    if len(ordinary) < length:
        raise HeadlabError(
            f"{model.name} has {len(ordinary)} ordinary tokens, {length} were asked for"
        )
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        own = ordinary[torch.randperm(len(ordinary), generator=random)[:length]]
        rows.append(torch.cat([own, own]))
    made = torch.stack(rows)
    if not model.bos or model.tokenizer is None or model.tokenizer.bos_token_id is None:
        return made
    first = torch.full((n, 1), model.tokenizer.bos_token_id)
    return torch.cat([first, made], 1)
