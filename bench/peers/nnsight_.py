"""nnsight: the network wrapped, a trace a pass, edits of the output projection's input."""

from __future__ import annotations

from collections.abc import Sequence

import nnsight
import torch
from torch import Tensor
from transformers import PreTrainedModel

from . import gated, log_probs, midpoints, no_words, over_orders, projections, twin


class NNsight:
    name = "nnsight 0.8"

    def __init__(self, network: PreTrainedModel):
        self.network = twin(network)
        self.n_layers = network.config.num_hidden_layers
        self.n_heads = network.config.num_attention_heads
        self.width = projections(self.network)[0].in_features // self.n_heads
        # The bare wrapper adds less to a pass; the one of `together` can batch invokes.
        self.model = nnsight.NNsight(self.network)
        self.projections = [layer.self_attn.o_proj for layer in self.model.model.layers]
        self.together = Together(self)

    @torch.no_grad()
    def cache(self, ids: Tensor) -> list[Tensor]:
        """o_proj's input of every layer, [prompt, position, head * width]."""
        with self.model.trace(input_ids=ids, use_cache=False):
            found = nnsight.save([])
            for projection in self.projections:
                found.append(projection.input)
        return found

    def slice_of(self, number: int) -> tuple[int, slice]:
        layer, head = divmod(int(number), self.n_heads)
        return layer, slice(head * self.width, (head + 1) * self.width)

    @torch.no_grad()
    def ablate(self, ids: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        found = []
        for number in heads:
            layer, own = self.slice_of(number)
            with self.model.trace(input_ids=ids, use_cache=False):
                self.projections[layer].input[:, :, own] = 0
                value = log_probs(self.model.output.logits, targets).save()
            found.append(value)
        return torch.stack(found).cpu()

    @torch.no_grad()
    def patch(self, ids: Tensor, others: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        other = self.cache(others)
        found = []
        for number in heads:
            layer, own = self.slice_of(number)
            with self.model.trace(input_ids=ids, use_cache=False):
                self.projections[layer].input[:, :, own] = other[layer][:, :, own]
                value = log_probs(self.model.output.logits, targets).save()
            found.append(value)
        return torch.stack(found).cpu()

    @torch.no_grad()
    def keep(
        self, ids: Tensor, others: Tensor, targets: Tensor, orders: Tensor, ks: Sequence[int]
    ) -> Tensor:
        other = self.cache(others)

        def run(live: Tensor) -> Tensor:
            live = live.repeat_interleave(self.width, -1)  # [layer, head * width]
            with self.model.trace(input_ids=ids, use_cache=False):
                for layer, projection in enumerate(self.projections):
                    projection.input = torch.where(live[layer], projection.input, other[layer])
                value = log_probs(self.model.output.logits, targets).save()
            return value

        return over_orders(orders.to(ids.device), ks, self, run)

    def attribute(self, ids: Tensor, others: Tensor, targets: Tensor, steps: int) -> Tensor:
        other = [z.unflatten(-1, (self.n_heads, -1)) for z in self.cache(others)]
        total = torch.zeros(self.n_layers, self.n_heads, device=ids.device)
        for at in midpoints(steps):
            gates = torch.full_like(total, at, requires_grad=True)
            with self.model.trace(input_ids=ids, use_cache=False):
                for layer, projection in enumerate(self.projections):
                    z = projection.input.unflatten(-1, (self.n_heads, -1))
                    projection.input = gated(z, gates[layer], other[layer]).flatten(-2)
                value = log_probs(self.model.output.logits, targets).mean().save()
            total += torch.autograd.grad(value, gates)[0]
        return (total / steps).cpu()

    @torch.no_grad()
    def generate(self, ids: Tensor, masks: Tensor, new: int) -> Tensor:
        found = []
        asked = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": new,
            "min_new_tokens": new,
            "do_sample": False,
            "pad_token_id": 0,
        }
        for mask in masks.to(ids.device, self.network.dtype):
            scale = mask.repeat_interleave(self.width, -1)  # [layer, head * width]
            with self.model.trace(fn=self.network.generate, **asked) as tracer:
                for _ in tracer.iter[1:new]:  # step 0 is the prompt
                    for layer, projection in enumerate(self.projections):
                        projection.input = projection.input * scale[layer]
                written = tracer.result.save()
            found.append(written[:, ids.shape[1] :])
        return torch.stack(found).cpu()


class Together:
    """Several heads in a trace, an invoke each, are one larger batch: faster where a pass waits for
    Python more than for arithmetic, as on a GPU."""

    heads_a_trace = 8
    how = f", {heads_a_trace} heads a pass"
    devices = ("cuda",)

    def __init__(self, alone: NNsight):
        self.alone, self.name = alone, alone.name
        network = alone.network
        self.model = nnsight.TransformersModel(
            twin(network), task="text-generation", tokenizer=no_words(), device=network.device
        )

    def ablate(self, ids: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        return self._run(ids, targets, heads, None)

    def patch(self, ids: Tensor, others: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        return self._run(ids, targets, heads, self.alone.cache(others))

    @torch.no_grad()
    def _run(
        self, ids: Tensor, targets: Tensor, heads: Sequence[int], other: list[Tensor] | None
    ) -> Tensor:
        projections = [layer.self_attn.o_proj for layer in self.model.model.layers]
        found: list[Tensor] = []
        for start in range(0, len(heads), self.heads_a_trace):
            with self.model.trace(use_cache=False) as tracer:
                values = nnsight.save([])
                for number in heads[start : start + self.heads_a_trace]:
                    layer, own = self.alone.slice_of(number)
                    with tracer.invoke(input_ids=ids):
                        given = 0 if other is None else other[layer][:, :, own]
                        projections[layer].input[:, :, own] = given
                        values.append(log_probs(self.model.output.logits, targets))
            found.extend(values)
        return torch.stack(found).cpu()
