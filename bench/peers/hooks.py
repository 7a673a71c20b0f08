"""The plain way: a forward hook of torch before the output projection, a pass a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from . import gated, log_probs, midpoints, over_orders, projections, twin

Edit = Callable[[int, Tensor], Tensor | None]  # layer, z [prompt, position, head, width]


class Hooks:
    name = "hooks"

    def __init__(self, network: PreTrainedModel):
        self.network = twin(network)
        self.n_layers = network.config.num_hidden_layers
        self.n_heads = network.config.num_attention_heads
        self.projections = projections(self.network)
        self.together = Together(self)

    @contextmanager
    def editing(self, edit: Edit, layers: Sequence[int]) -> Iterator[None]:
        def before(layer: int):
            def hook(_, args):
                z = edit(layer, args[0].unflatten(-1, (self.n_heads, -1)))
                return None if z is None else (z.flatten(-2), *args[1:])

            return hook

        handles = [self.projections[n].register_forward_pre_hook(before(n)) for n in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def run(self, ids: Tensor) -> Tensor:
        return self.network(ids, use_cache=False).logits

    def cache(self, ids: Tensor) -> list[Tensor]:
        """z of every layer."""
        found: list[Tensor] = []
        with self.editing(lambda _, z: found.append(z), range(self.n_layers)), torch.no_grad():
            self.run(ids)
        return found

    @torch.no_grad()
    def ablate(self, ids: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        found = []
        for number in heads:
            layer, head = divmod(int(number), self.n_heads)

            def zero(_, z, head=head):
                z = z.clone()
                z[:, :, head] = 0
                return z

            with self.editing(zero, [layer]):
                found.append(log_probs(self.run(ids), targets))
        return torch.stack(found).cpu()

    @torch.no_grad()
    def patch(self, ids: Tensor, others: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        other = self.cache(others)
        found = []
        for number in heads:
            layer, head = divmod(int(number), self.n_heads)

            def swap(layer, z, head=head):
                z = z.clone()
                z[:, :, head] = other[layer][:, :, head]
                return z

            with self.editing(swap, [layer]):
                found.append(log_probs(self.run(ids), targets))
        return torch.stack(found).cpu()

    @torch.no_grad()
    def keep(
        self, ids: Tensor, others: Tensor, targets: Tensor, orders: Tensor, ks: Sequence[int]
    ) -> Tensor:
        other = self.cache(others)

        def run(live: Tensor) -> Tensor:
            def swap(layer, z):
                return torch.where(live[layer, :, None], z, other[layer])

            with self.editing(swap, range(self.n_layers)):
                return log_probs(self.run(ids), targets)

        return over_orders(orders.to(ids.device), ks, self, run)

    def attribute(self, ids: Tensor, others: Tensor, targets: Tensor, steps: int) -> Tensor:
        other = self.cache(others)
        total = torch.zeros(self.n_layers, self.n_heads, device=ids.device)
        for at in midpoints(steps):
            gates = torch.full_like(total, at, requires_grad=True)

            def move(layer, z, gates=gates):
                return gated(z, gates[layer], other[layer])

            with self.editing(move, range(self.n_layers)):
                value = log_probs(self.run(ids), targets).mean()
            total += torch.autograd.grad(value, gates)[0]
        return (total / steps).cpu()

    @torch.no_grad()
    def generate(self, ids: Tensor, masks: Tensor, new: int) -> Tensor:
        found = []
        for mask in masks.to(ids.device, self.network.dtype):

            def scale(layer, z, mask=mask):
                if z.shape[1] > 1:  # the prompt
                    return None
                return z * mask[layer][:, None]

            with self.editing(scale, range(self.n_layers)):
                written = self.network.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=new,
                    min_new_tokens=new,
                    do_sample=False,
                    pad_token_id=0,
                )
            found.append(written[:, ids.shape[1] :])
        return torch.stack(found).cpu()


class Together:
    """What a careful user makes of it: heads side by side in a batch, each on prompts of its own,
    and logits only of the position that is read."""

    heads_a_pass = 8
    how = f", {heads_a_pass} heads a pass, last logits"
    devices = ("cpu", "cuda")

    def __init__(self, alone: Hooks):
        self.alone, self.name = alone, alone.name

    def ablate(self, ids: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        return self._run(ids, targets, heads, None)

    def patch(self, ids: Tensor, others: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        with torch.no_grad():
            return self._run(ids, targets, heads, self.alone.cache(others))

    @torch.no_grad()
    def _run(
        self, ids: Tensor, targets: Tensor, heads: Sequence[int], other: list[Tensor] | None
    ) -> Tensor:
        found = []
        for start in range(0, len(heads), self.heads_a_pass):
            places = [
                divmod(int(n), self.alone.n_heads) for n in heads[start:][: self.heads_a_pass]
            ]

            def edit(layer: int, z: Tensor, places=places) -> Tensor:
                z = z.clone()
                for rows, (at, head) in zip(z.split(len(ids)), places, strict=True):
                    if at == layer:
                        rows[:, :, head] = 0 if other is None else other[layer][:, :, head]
                return z

            with self.alone.editing(edit, sorted({layer for layer, _ in places})):
                logits = self.alone.network(
                    ids.repeat(len(places), 1), use_cache=False, logits_to_keep=1
                ).logits
            found.append(log_probs(logits, targets.repeat(len(places))).view(-1, len(ids)))
        return torch.cat(found).cpu()
