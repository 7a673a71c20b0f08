"""What a model in training is worth: edges, distance, losses and tasks, with hard gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headlab.engine import measure
from headlab.errors import HeadlabError
from headlab.gates import Gates
from headlab.ranking import measure_for
from headlab.sparse.attention import Edges
from headlab.sparse.gating import count_edges, share_open
from headlab.sparse.objective import distilled
from headlab.tasks import find_task, make_examples

if TYPE_CHECKING:
    from headlab.examples import Example
    from headlab.model import Model

_ROWS = 8  # contexts in a pass
_TAKEN = (
    "edges",
    "kl",
    "map",
    "step",
    "name",
    "in bound",
)  # what rows have beside tasks and losses


@dataclass(frozen=True)
class Yardstick:
    """What models are measured with: contexts of texts, and examples of tasks."""

    texts: Mapping[str, np.ndarray]  # [context, position]; the first is held out of the training
    tasks: Mapping[str, tuple[list[Example], str]]  # examples and measure

    @torch.no_grad()
    def read(self, model: Model, dense_logits: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """The share of open edges, KL and loss on the texts, and the mean measure of the tasks."""
        (first, held), *others = self.texts.items()
        kl, loss, edges = _on_text(model, held, dense_logits)
        found: dict[str, Any] = {"edges": float(edges.mean()), "kl": kl, f"loss {first}": loss}
        if model.sparse is not None:
            found["map"] = edges.tolist()
        for name, contexts in others:
            _, found[f"loss {name}"], _ = _on_text(model, contexts)
        ones = Gates.ones(model)
        for name, (examples, by) in self.tasks.items():
            found[name] = float(measure(model, examples, ones, by, restart=False).values.mean())
        return found


def _on_text(
    model: Model,
    contexts: np.ndarray,
    dense_logits: Callable[[Tensor], Tensor] | None = None,
) -> tuple[float, float, Tensor]:
    """Nats a token: from the dense model, if one is given, and of the text; the share of edges
    that are open, [layer, head]."""
    rows = _ROWS
    while True:
        try:
            return _in_rows(model, contexts, dense_logits, rows)
        except torch.OutOfMemoryError:
            if rows == 1:
                raise HeadlabError(
                    f"memory does not hold the logits of {contexts.shape[1]} tokens of "
                    f"{model.name}; take a shorter --context"
                ) from None
        rows //= 2


def _in_rows(
    model: Model,
    contexts: np.ndarray,
    dense_logits: Callable[[Tensor], Tensor] | None,
    rows: int,
) -> tuple[float, float, Tensor]:
    kl = loss = 0.0
    counts = []
    gating = model.sparse
    ids = torch.from_numpy(contexts).long().to(model.device)
    for first in range(0, len(ids), rows):
        part = ids[first : first + rows]
        watching: AbstractContextManager[list[list[Edges]]] = (
            nullcontext([]) if gating is None else gating.watched()
        )
        with watching as edges:
            logits = model.hf(input_ids=part, use_cache=False).logits[:, :-1].flatten(0, 1)
        if gating is not None:
            counts.append(count_edges(edges, torch.ones_like(part, dtype=torch.bool)))
        dense = logits
        if dense_logits is not None:
            dense = dense_logits(part)[:, :-1].flatten(0, 1)
        losses = distilled(logits, dense, part[:, 1:].flatten(), 1.0, 0.0)
        kl, loss = kl + float(losses.kl), loss + float(losses.loss)
    places = ids[:, 1:].numel()
    shares = share_open(counts) if counts else torch.ones(model.n_layers, model.n_heads)
    kl = 0.0 if -1e-6 < kl / places < 0 else kl / places  # rounding
    return kl, loss / places, shares


def make_tasks(
    model: Model, names: Sequence[str], n: int, seed: int
) -> tuple[dict[str, tuple[list[Example], str]], list[str]]:
    """Examples of the tasks that this tokenizer can have, and why not of the others."""
    found: dict[str, tuple[list[Example], str]] = {}
    told = []
    for name in names:
        find_task(name)  # one that is not there is an error
        label = Path(name).stem if Path(name).is_file() else name
        if label in found or label in _TAKEN:
            raise HeadlabError(f"two numbers would be called {label}; give the task another name")
        try:
            examples = make_examples(model, name, n, seed)
            found[label] = examples, measure_for(name, examples, None).name
        except HeadlabError as error:
            told.append(f"{name} is not watched: {error}")
    return found, told
