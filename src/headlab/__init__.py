"""Headlab: a laboratory for the attention heads of causal language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headlab.ablation import Ablation, ablate
    from headlab.errors import HeadlabError
    from headlab.gates import Gates, Reference, counterfactual_reference, mean_reference
    from headlab.heads import Head, parse_heads
    from headlab.loading import load
    from headlab.model import Model
    from headlab.proofs import Check, check

__version__ = "0.1.0"

# Imported at first use: `headlab --help` must not wait for torch.
# Modules are nouns and functions verbs, so that no module hides a function of its name.
_HOMES = {
    "Ablation": "ablation",
    "Check": "proofs",
    "Gates": "gates",
    "Head": "heads",
    "HeadlabError": "errors",
    "Model": "model",
    "Reference": "gates",
    "ablate": "ablation",
    "check": "proofs",
    "counterfactual_reference": "gates",
    "load": "loading",
    "mean_reference": "gates",
    "parse_heads": "heads",
}
__all__ = [
    "Ablation",
    "Check",
    "Gates",
    "Head",
    "HeadlabError",
    "Model",
    "Reference",
    "__version__",
    "ablate",
    "check",
    "counterfactual_reference",
    "load",
    "mean_reference",
    "parse_heads",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headlab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headlab.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
