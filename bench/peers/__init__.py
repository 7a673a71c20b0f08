"""Head interventions as users of other libraries write them: one class a library, one interface.

    peer = load("hooks", network)              # or lens, nnsight, pyvene
    peer.ablate(ids, targets, heads)           # [head, prompt]
    peer.patch(ids, others, targets, heads)    # [head, prompt]
    peer.keep(ids, others, targets, orders, ks)  # [order, k, prompt]
    peer.attribute(ids, others, targets, steps)  # [layer, head]
    peer.generate(ids, masks, new)             # [mask, prompt, new]

`ids` and `others` are [prompt, position] on the network's device, `others` the counterfactuals;
`targets` [prompt] holds the token whose log-prob at the last position is read. Heads and orders are
flat numbers, layer * n_heads + head. A head's output z is its slice of what the output projection
is given. `together`, where a peer has it, ablates and patches several heads a pass. What a library
cannot do raises `Cannot`. Every peer works on its own modules that share the network's weights, so
several can live beside each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

PEERS = {  # name: module here, class, package
    "hooks": ("hooks", "Hooks", "transformers"),
    "lens": ("lens", "Lens", "transformer_lens"),
    "nnsight": ("nnsight_", "NNsight", "nnsight"),
    "pyvene": ("pyvene_", "Pyvene", "pyvene"),
}


class Cannot(Exception):  # noqa: N818 - it reads as a sentence
    """What a library is not able to do, in one sentence."""


def load(name: str, network: PreTrainedModel, **settings: Any) -> Any:
    """A peer by name, set up for this network."""
    module, kind, package = PEERS[name]
    if find_spec(package) is None:
        raise Cannot(f"{package} is not installed: make bench does it, or pip install '.[bench]'")
    try:
        found = import_module(f"{__name__}.{module}")
    except ImportError as error:
        raise Cannot(f"{package} does not import here: {error}") from error
    return getattr(found, kind)(network, **settings)


def twin(network: PreTrainedModel) -> PreTrainedModel:
    """Modules of its own, frozen, with the same weights in memory; no token ends a text."""
    shared = {id(weight): weight for weight in (*network.parameters(), *network.buffers())}
    own = copy.deepcopy(network, shared).eval().requires_grad_(False)
    own.config.eos_token_id = own.generation_config.eos_token_id = None
    return own


def projections(network: PreTrainedModel) -> list[nn.Module]:
    """Every layer's output projection; the ways here are written for one layout of a network."""
    try:
        return [layer.self_attn.o_proj for layer in network.model.layers]
    except AttributeError:
        raise Cannot("it is asked here for networks of Llama's layout only") from None


def no_words() -> PreTrainedTokenizerFast:
    """A tokenizer for libraries that ask for one; prompts come as ids."""
    core = Tokenizer(models.WordLevel({"w0": 0}, unk_token="w0"))
    tokens = {f"{kind}_token": "w0" for kind in ("bos", "eos", "pad", "unk")}
    named = {"name_or_path": "no-words", "add_bos_token": True}  # or it is looked up by name
    return PreTrainedTokenizerFast(tokenizer_object=core, **tokens, **named)


def log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """The target's log-prob at the last position, of logits [prompt, position, token]."""
    last = logits[:, -1].float().log_softmax(-1)
    return last.gather(1, targets[:, None])[:, 0]


def over_orders(
    orders: Tensor, ks: Sequence[int], peer: Any, run: Callable[[Tensor], Tensor]
) -> Tensor:
    """What `run` gives for the first k heads of each order, [order, k, prompt]. It is called with
    [layer, head], True where a head is kept."""

    def kept(order: Tensor, k: int) -> Tensor:
        live = torch.zeros(peer.n_layers * peer.n_heads, dtype=torch.bool, device=order.device)
        live[order[:k]] = True
        return live.view(peer.n_layers, peer.n_heads)

    rows = [torch.stack([run(kept(order, k)) for k in ks]) for order in orders]
    return torch.stack(rows).cpu()


def midpoints(steps: int) -> list[float]:
    """Where the gates of all heads stand: at 1, or at the middles of so many steps from 0 to 1."""
    return [1.0] if steps == 1 else [(i + 0.5) / steps for i in range(steps)]


def gated(z: Tensor, gate: Tensor, other: Tensor) -> Tensor:
    """gate * z + (1 - gate) * other in float32; z [..., head, width], gate [head]."""
    gate = gate[:, None]
    return (gate * z + (1 - gate) * other).to(z.dtype)
