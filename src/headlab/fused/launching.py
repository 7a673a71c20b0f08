"""Where a kernel may be launched, and that it works there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from headlab.fused.trials import works

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def suits(kernel: str, *tensors: Tensor, sizes: tuple[int, ...] = ()) -> bool:
    """On a GPU where it works, of one dtype that float32 holds, and not empty."""
    first = tensors[0]
    if not first.numel() or first.dtype not in DTYPES:
        return False
    alike = all(each.dtype == first.dtype and each.device == first.device for each in tensors)
    return alike and works(kernel, first.device, first.dtype, *sizes)


def where_it_is(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current GPU, whichever its inputs are on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def wants_slopes(*tensors: Tensor) -> bool:
    """Whether somebody will ask for the slopes of what these give."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
