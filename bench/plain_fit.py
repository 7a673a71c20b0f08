"""A gate fit as one would write it: hooks, full logits, torch's Adam."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headlab.gatefits import Schedule
from headlab.gatefits.fitting import CLAMP, PHASES
from headlab.gatefits.rows import order_of


class PlainFit:
    """One seed's; it starts, and draws its batches, as Headlab does."""

    def __init__(self, hooks: Any, ids: Tensor, target: int, schedule: Schedule, seed: int):
        self.hooks, self.ids, self.start = hooks, ids, ids.shape[1] - target
        self.schedule, self.step = schedule, 0
        shape = hooks.n_layers, hooks.n_heads
        drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
        self.logits = drawn.logit().clamp(-CLAMP, CLAMP).to(ids.device).requires_grad_()
        self.adam = torch.optim.Adam([self.logits], lr=schedule.rate("free", 0))
        self.order = order_of(
            len(ids), schedule.batch, range(schedule.updates), key=(seed, PHASES.index("free"))
        )

    def update(self) -> float:
        """One update of the first fit, which has λ = 0; the loss before it."""
        ids = self.ids[torch.from_numpy(self.order[self.step]).to(self.ids.device)]
        gates = self.logits.sigmoid().to(self.hooks.network.dtype)
        edit = self.hooks.editing(
            lambda layer, z: z * gates[layer][:, None], range(self.hooks.n_layers)
        )
        with edit, torch.enable_grad():
            found = self.hooks.run(ids)
        wanted = found[:, self.start - 1 : -1].flatten(0, 1).float()
        loss = cross_entropy(wanted, ids[:, self.start :].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_([self.logits], self.schedule.clip)
        self.adam.param_groups[0]["lr"] = self.schedule.rate("free", self.step)
        self.adam.step()
        self.adam.zero_grad()
        self.step += 1
        return float(loss.detach())
