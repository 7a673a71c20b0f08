"""How many tokens a pass may have, what it costs to start one, and when memory has run out."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

from headlab.tokens import Tokens

if TYPE_CHECKING:
    from headlab.model import Model

LARGEST = 32768  # tokens in a pass on a GPU: past this, larger matrices are no faster
_LARGEST_OF_SMALL = 131072  # where a pass of that many still takes longer to start than to run
CPU_BUDGET = 4096
GRAPH = 4  # a pass that is differentiated keeps about this many times more than one that is not
_LOGIT_BYTES = 2 * 2**30  # of logits in one pass, in float32, on a CPU
_LOGIT_SHARE = 32  # one in so many bytes of a GPU's memory
_START = 3e11  # operations that a GPU could do while the kernels of one layer are started
_START_ON_CPU = 32  # tokens


def find_budget(model: Model) -> int:
    """How many tokens a pass may have: a power of two that fits twice into what is free.

    Found once for a model and kept there, so that its later runs are cut into the same passes.
    """
    if model.budget is None:
        model.budget = _probe_budget(model) if on_gpu(model) else CPU_BUDGET
    return model.budget


def room_for_logits(model: Model) -> int:
    """Bytes: of the memory there is, not of what is free, for the same passes in every run."""
    if not on_gpu(model):
        return _LOGIT_BYTES
    return torch.cuda.get_device_properties(model.device).total_memory // _LOGIT_SHARE


def start_in_tokens(model: Model, there_and_back: bool = False) -> int:
    """How many tokens' arithmetic takes as long as starting a pass: many for a small model on a
    GPU, few on a CPU."""
    if not on_gpu(model):
        return _START_ON_CPU
    operations = 4 if there_and_back else 2  # of a weight
    return int(_START / (operations * _layer_weights(model)))


def largest_budget(weights: int) -> int:
    """The most tokens that a pass has on a GPU, for layers of so many weights: a power of two, by
    which it runs no shorter than it takes to start."""
    budget = LARGEST
    while budget < min(_START / (2 * weights), _LARGEST_OF_SMALL):
        budget *= 2
    return budget


def _layer_weights(model: Model) -> int:
    return sum(each.numel() for each in model.seam.blocks[0].parameters())


def on_gpu(model: Model) -> bool:
    return model.device.type == "cuda"


def make_room(model: Model) -> None:
    """Memory has run out: note it, and give back what nobody holds any more."""
    model.back_offs += 1
    gc.collect()
    if on_gpu(model):
        torch.cuda.empty_cache()


def _probe_budget(model: Model) -> int:
    tokens = Tokens(
        torch.zeros(16, 64, dtype=torch.long, device=model.device),
        torch.ones(16, 64, dtype=torch.bool, device=model.device),
    )
    zeros = torch.zeros(1, dtype=torch.long)
    model.logits_at(tokens, zeros, zeros)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    model.logits_at(tokens, zeros, zeros)
    per_token = max(1, torch.cuda.max_memory_allocated(model.device) - before) / tokens.ids.numel()
    free, _ = torch.cuda.mem_get_info(model.device)
    budget, largest = 1024, largest_budget(_layer_weights(model))
    while budget < largest and 2 * (2 * budget) * per_token < free:
        budget *= 2
    return budget
