"""TransformerLens: a TransformerBridge over the network, `run_with_hooks` on hook_z."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedModel

from . import gated, log_probs, midpoints, no_words, over_orders, twin


class Lens:
    name = "TransformerLens 4.3"

    def __init__(self, network: PreTrainedModel):
        # Its attention is written out for its hooks: there is no SDPA to choose.
        self.bridge = TransformerBridge.boot_transformers(
            "headlab-bench",
            hf_model=twin(network),
            dtype=network.dtype,
            device=network.device,
            tokenizer=no_words(),
        )
        self.bridge.eval()
        self.n_layers, self.n_heads = self.bridge.cfg.n_layers, self.bridge.cfg.n_heads
        self.points = [f"blocks.{layer}.attn.hook_z" for layer in range(self.n_layers)]

    def cache(self, ids: Tensor) -> list[Tensor]:
        """z of every layer, [prompt, position, head, width]."""
        with torch.no_grad():
            _, cache = self.bridge.run_with_cache(ids, names_filter=self.points, use_cache=False)
        return [cache[point] for point in self.points]

    def run(self, ids: Tensor, hooks: list) -> Tensor:
        return self.bridge.run_with_hooks(ids, fwd_hooks=hooks, use_cache=False)

    @torch.no_grad()
    def ablate(self, ids: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        found = []
        for number in heads:
            layer, head = divmod(int(number), self.n_heads)

            def zero(z, hook, head=head):
                z[:, :, head] = 0
                return z

            logits = self.run(ids, [(self.points[layer], zero)])
            found.append(log_probs(logits, targets))
        return torch.stack(found).cpu()

    @torch.no_grad()
    def patch(self, ids: Tensor, others: Tensor, targets: Tensor, heads: Sequence[int]) -> Tensor:
        other = self.cache(others)
        found = []
        for number in heads:
            layer, head = divmod(int(number), self.n_heads)

            def swap(z, hook, layer=layer, head=head):
                z[:, :, head] = other[layer][:, :, head]
                return z

            logits = self.run(ids, [(self.points[layer], swap)])
            found.append(log_probs(logits, targets))
        return torch.stack(found).cpu()

    @torch.no_grad()
    def keep(
        self, ids: Tensor, others: Tensor, targets: Tensor, orders: Tensor, ks: Sequence[int]
    ) -> Tensor:
        other = self.cache(others)

        def run(live: Tensor) -> Tensor:
            hooks = [
                (point, lambda z, hook, n=n: torch.where(live[n, :, None], z, other[n]))
                for n, point in enumerate(self.points)
            ]
            return log_probs(self.run(ids, hooks), targets)

        return over_orders(orders.to(ids.device), ks, self, run)

    def attribute(self, ids: Tensor, others: Tensor, targets: Tensor, steps: int) -> Tensor:
        """All pairs in one batch."""
        other = self.cache(others)
        total = torch.zeros(self.n_layers, self.n_heads, device=ids.device)
        for at in midpoints(steps):
            gates = torch.full_like(total, at, requires_grad=True)
            hooks = [
                (point, lambda z, hook, n=n, gates=gates: gated(z, gates[n], other[n]))
                for n, point in enumerate(self.points)
            ]
            value = log_probs(self.run(ids, hooks), targets).mean()
            total += torch.autograd.grad(value, gates)[0]
        return (total / steps).cpu()

    def attribute_alone(self, ids: Tensor, others: Tensor, targets: Tensor, steps: int) -> Tensor:
        """A pair at a time."""
        rows = [slice(n, n + 1) for n in range(len(ids))]
        found = [self.attribute(ids[row], others[row], targets[row], steps) for row in rows]
        return torch.stack(found).mean(0)

    @torch.no_grad()
    def generate(self, ids: Tensor, masks: Tensor, new: int) -> Tensor:
        found = []
        for mask in masks.to(ids.device, self.bridge.cfg.dtype):

            def scale(z, hook, mask=mask):
                if z.shape[1] > 1:  # the prompt
                    return z
                return z * mask[hook.layer()][:, None]

            with self.bridge.hooks(fwd_hooks=[(point, scale) for point in self.points]):
                written = self.bridge.generate(
                    ids,
                    max_new_tokens=new,
                    do_sample=False,
                    stop_at_eos=False,
                    use_past_kv_cache=True,
                    return_type="tokens",
                    verbose=False,
                )
            found.append(written[:, ids.shape[1] :])
        return torch.stack(found).cpu()
