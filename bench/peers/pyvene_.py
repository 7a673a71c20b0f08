"""pyvene: an IntervenableModel over the network, interventions on o_proj's input."""

from __future__ import annotations

from collections.abc import Sequence

import pyvene
import torch
from torch import Tensor
from transformers import PreTrainedModel

from . import gated, log_probs, midpoints, over_orders, projections, twin


class Edit(pyvene.ConstantSourceIntervention):
    """Whatever is set as `how`, of z [prompt, position, head * width]."""

    how = staticmethod(lambda z: z)

    def forward(self, base, source=None, subspaces=None, **_):
        return self.how(base)


class Pyvene:
    name = "pyvene 0.1.8"

    def __init__(self, network: PreTrainedModel):
        self.network = twin(network)
        self.n_layers = network.config.num_hidden_layers
        self.n_heads = network.config.num_attention_heads
        self.width = projections(self.network)[0].in_features // self.n_heads
        # Faster than head_attention_value_output, which gathers and scatters by index.
        places = [f"model.layers[{layer}].self_attn.o_proj.input" for layer in range(self.n_layers)]
        self.edits = [Edit(keep_last_dim=True) for _ in places]
        pairs = list(zip(places, self.edits, strict=True))
        self.alone = [self.wrapped([pair]) for pair in pairs]
        self.all = self.wrapped(pairs)
        self.collector = self.wrapped([(place, pyvene.CollectIntervention()) for place in places])

    def wrapped(self, pairs: list) -> pyvene.IntervenableModel:
        return pyvene.IntervenableModel(
            [{"component": place, "intervention": edit} for place, edit in pairs], self.network
        )

    def run(self, model: pyvene.IntervenableModel, ids: Tensor) -> Tensor:
        return model({"input_ids": ids}, use_cache=False)[1].logits

    def cache(self, ids: Tensor) -> list[Tensor]:
        """o_proj's input of every layer, [prompt, position, head * width]."""
        with torch.no_grad():
            (_, found), _ = self.collector({"input_ids": ids}, use_cache=False)
        return found

    def slice_of(self, number: int) -> tuple[int, slice]:
        layer, head = divmod(int(number), self.n_heads)
        return layer, slice(head * self.width, (head + 1) * self.width)

    @torch.no_grad()
    def ablate(self, ids: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        found = []
        for number in heads:
            layer, own = self.slice_of(number)

            def zero(z, own=own):
                z[:, :, own] = 0
                return z

            self.edits[layer].how = zero
            found.append(log_probs(self.run(self.alone[layer], ids), targets))
        return torch.stack(found).cpu()

    @torch.no_grad()
    def patch(self, ids: Tensor, others: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        other = self.cache(others)
        found = []
        for number in heads:
            layer, own = self.slice_of(number)

            def swap(z, layer=layer, own=own):
                z[:, :, own] = other[layer][:, :, own]
                return z

            self.edits[layer].how = swap
            found.append(log_probs(self.run(self.alone[layer], ids), targets))
        return torch.stack(found).cpu()

    @torch.no_grad()
    def keep(
        self, ids: Tensor, others: Tensor, targets: Tensor, orders: Tensor, ks: Sequence[int]
    ) -> Tensor:
        other = self.cache(others)

        def run(live: Tensor) -> Tensor:
            live = live.repeat_interleave(self.width, -1)  # [layer, head * width]
            for n, edit in enumerate(self.edits):
                edit.how = lambda z, n=n: torch.where(live[n], z, other[n])
            return log_probs(self.run(self.all, ids), targets)

        return over_orders(orders.to(ids.device), ks, self, run)

    def attribute(self, ids: Tensor, others: Tensor, targets: Tensor, steps: int) -> Tensor:
        # It writes into z in place, which SDPA still needs on the way back.
        before = self.network.config._attn_implementation
        self.network.set_attn_implementation("eager")
        try:
            return self._attribute(ids, others, targets, steps)
        finally:
            self.network.set_attn_implementation(before)

    def _attribute(self, ids: Tensor, others: Tensor, targets: Tensor, steps: int) -> Tensor:
        by_head = (self.n_heads, -1)
        other = [z.unflatten(-1, by_head) for z in self.cache(others)]
        total = torch.zeros(self.n_layers, self.n_heads, device=ids.device)
        for at in midpoints(steps):
            gates = torch.full_like(total, at, requires_grad=True)
            for n, edit in enumerate(self.edits):
                edit.how = lambda z, n=n, gates=gates: gated(
                    z.unflatten(-1, by_head), gates[n], other[n]
                ).flatten(-2)
            value = log_probs(self.run(self.all, ids), targets).mean()
            total += torch.autograd.grad(value, gates)[0]
        return (total / steps).cpu()

    @torch.no_grad()
    def generate(self, ids: Tensor, masks: Tensor, new: int) -> Tensor:
        found = []
        for mask in masks.to(ids.device, self.network.dtype):
            scale = mask.repeat_interleave(self.width, -1)  # [layer, head * width]
            for n, edit in enumerate(self.edits):
                edit.how = lambda z, n=n, scale=scale: z * scale[n]
            _, written = self.all.generate(
                {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
                intervene_on_prompt=False,
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
            found.append(written[:, ids.shape[1] :])
        return torch.stack(found).cpu()
