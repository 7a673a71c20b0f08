"""Each fit's loss and its slope, pass by pass. What rows of a fit begin with alike runs once: the
slopes of its keys and values are summed over all that look back at them, then led back through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headlab.budgets import GRAPH, find_budget, on_gpu, start_in_tokens
from headlab.gatefits.rows import Begins, Drawn, Rows
from headlab.gates import Gates, Reference
from headlab.sdpa import short_rows_behind_beginnings
from headlab.standins import gpu_kernels
from headlab.tokens import Beginning, Tokens

if TYPE_CHECKING:
    from headlab.model import Model

_LARGEST = 2**16  # tokens in a pass on a GPU


def summed_slopes(
    model: Model,
    rows: Rows,
    reference: Reference,
    logits: Tensor,
    numbers: np.ndarray,
    tokens: int,
    value: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The mean over each fit's batch of a value of log p, and its gradient with respect to the
    fits' logits [fit, layer, head]; `numbers` are the rows of all batches, fit by fit.

    `value` is given the mean log-prob of the target's tokens and the number of each row.
    """
    start = start_in_tokens(model, there_and_back=True)
    batch = len(numbers) // len(logits)
    at = logits.detach().requires_grad_()
    losses = torch.zeros(len(logits), device=logits.device)
    slope = torch.zeros_like(logits)
    with torch.enable_grad(), gpu_kernels(model), short_rows_behind_beginnings():
        for block in rows.blocks(numbers, batch, tokens, start):
            begun = None
            if block.begins is not None:
                begun = _Begun(model, block.begins, at, reference)
            rest = reference.part(slice(block.begin, None))
            for drawn in rows.draw(numbers, block.tokens, start, block.members, block.begin):
                owners = drawn.numbers // batch  # [row], the fit
                ids = drawn.tokens if begun is None else begun.followed_by(drawn)
                with model.gated(_by_row(at.sigmoid()[owners]), rest):
                    found = model.logits_at(ids, drawn.rows, drawn.positions - block.begin)
                surprise = cross_entropy(found.float(), drawn.targets, reduction="none")  # [read]
                share = surprise / drawn.lengths[drawn.rows]
                means = torch.zeros(len(owners), device=share.device)
                each = value(-means.index_add(0, drawn.rows, share), drawn.numbers) / batch
                leaves = [] if begun is None else begun.leaves
                own, *back = torch.autograd.grad(each.sum(), [at, *leaves])
                slope += own
                losses.index_add_(0, owners, each.detach())
                if begun is not None:
                    begun.add(back)
            if begun is not None:
                slope += begun.slope(at)
    return losses, slope


class _Begun:
    """What rows begin with, run under the gates of their fits."""

    def __init__(self, model: Model, begins: Begins, at: Tensor, reference: Reference):
        rows, length = begins.tokens.ids.shape
        beginning = Beginning(length, rows)
        some = torch.zeros(1, dtype=torch.long, device=at.device)  # of the logits nothing is read
        with model.gated(_by_row(at.sigmoid()[begins.fits]), reference.part(slice(0, length))):
            model.logits_at(begins.tokens.keeping(beginning), some, some)
        self._of = begins.of
        self._ends: list[Tensor] = []  # keys and values that gates have changed
        self.leaves: list[Tensor] = []  # the same, from which slopes go no further by themselves
        layers = {}
        for layer, kept in beginning.layers.items():
            layers[layer] = keys, values = kept[0].detach(), kept[1].detach()
            for end, leaf in zip(kept, (keys, values), strict=True):
                if end.requires_grad:
                    self._ends.append(end)
                    self.leaves.append(leaf.requires_grad_())
        self._beginning = replace(beginning, layers=layers)
        self._slopes = [torch.zeros_like(each) for each in self.leaves]

    def followed_by(self, drawn: Drawn) -> Tokens:
        """What is left of these rows."""
        return drawn.tokens.behind(replace(self._beginning, of=self._of[drawn.numbers]))

    def add(self, slopes: Sequence[Tensor]) -> None:
        for total, own in zip(self._slopes, slopes, strict=True):
            total += own

    def slope(self, at: Tensor) -> Tensor:
        """Of all that was added, by way of the gates."""
        # In a model of one layer gates change no keys and values.
        (found,) = torch.autograd.grad(self._ends, at, self._slopes, materialize_grads=True)
        return found


def _by_row(gates: Tensor) -> Gates:
    """[row, layer, head]"""
    return Gates.unseen(gates[None, :, :, :, None])


def graph_budget(model: Model, rows: Rows) -> int:
    """Tokens in a pass that is differentiated: on a GPU what a small one takes, scaled to two
    thirds of what is free."""
    if not on_gpu(model):
        return find_budget(model) // GRAPH
    longest = np.argsort(-rows.lengths)[:8]
    gates = torch.ones(len(longest), model.n_layers, model.n_heads, device=model.device)
    gates = gates.requires_grad_()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(model.device)
    before = torch.cuda.memory_allocated(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    (drawn,) = rows.draw(longest, tokens=10**9, start=10**9)
    with torch.enable_grad(), model.gated(_by_row(gates)):
        found = model.logits_at(drawn.tokens, drawn.rows, drawn.positions)
        torch.autograd.grad(cross_entropy(found.float(), drawn.targets), gates)
    taken = torch.cuda.max_memory_allocated(model.device) - before
    per_token = taken / drawn.tokens.ids.numel()
    room = max(256, min(_LARGEST, int(free * 2 / 3 / per_token)))
    return int(2 ** math.floor(math.log2(room)))  # not of how much happens to be free today
