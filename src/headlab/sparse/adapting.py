"""Adapters (LoRA, by peft): small matrices trained beside frozen weights, added to them at last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def with_adapters(hf: PreTrainedModel, rank: int) -> Any:
    """The model with an adapter in every linear layer but the vocabulary's, of float32."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise HeadlabError(
            "--lora needs the peft package; pip install 'headlab[sparse]' brings it"
        ) from None
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules=[
            name
            for name, module in hf.named_modules()
            if isinstance(module, (nn.Linear, Conv1D)) and module is not hf.get_output_embeddings()
        ],
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in hf.modules()),
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(0)  # where adapters start
    adapted = get_peft_model(hf, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


@torch.no_grad()
def merged_weights(adapted: Any) -> dict[str, Tensor]:
    """The weights of the model without adapters that computes the same, on the CPU.

    The adapted model stays as it is: adding and taking away again would leave rounding behind.
    """
    base = adapted.get_base_model()
    found: dict[str, Tensor] = {}
    for name, value in base.state_dict().items():
        if ".lora_" not in name:
            found[name.replace(".base_layer.", ".")] = value.cpu()
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight"):
            delta = module.get_delta_weight("default").cpu()
            weight = found[f"{name}.weight"]
            found[f"{name}.weight"] = (weight.float() + delta.float()).to(weight.dtype)
    return found
