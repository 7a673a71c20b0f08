"""Headlab: a laboratory for the attention heads of causal language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headlab.ablation import Ablation, ablate
    from headlab.activations import Arm
    from headlab.activations.measuring import Activations, measure_activations
    from headlab.curves import Curve, curve
    from headlab.engine import Measured, measure
    from headlab.errors import HeadlabError
    from headlab.examples import Example
    from headlab.gates import Gates, Reference, counterfactual_reference, mean_reference
    from headlab.generation import Generated, generate
    from headlab.gradients import Gradients, gate_gradients
    from headlab.grading import Graded, grade
    from headlab.heads import Head, parse_heads
    from headlab.loading import load
    from headlab.model import Model
    from headlab.noise import noise_floor
    from headlab.proofs import Check, check
    from headlab.ranking import rank
    from headlab.scores import HeadScores, read_scores, write_scores
    from headlab.store import Run
    from headlab.studies.running import run_study
    from headlab.studies.spec import make_spec, read_spec
    from headlab.tasks import make_examples
    from headlab.tasks.jsonl import read_examples

__version__ = "0.1.0"

# Imported at first use: `headlab --help` must not wait for torch.
# Modules are nouns and functions verbs, so that no module hides a function of its name.
_HOMES = {
    "Ablation": "ablation",
    "Activations": "activations.measuring",
    "Arm": "activations",
    "Check": "proofs",
    "Curve": "curves",
    "Example": "examples",
    "Gates": "gates",
    "Generated": "generation",
    "Graded": "grading",
    "Gradients": "gradients",
    "Head": "heads",
    "HeadScores": "scores",
    "HeadlabError": "errors",
    "Measured": "engine",
    "Model": "model",
    "Reference": "gates",
    "Run": "store",
    "ablate": "ablation",
    "check": "proofs",
    "counterfactual_reference": "gates",
    "curve": "curves",
    "gate_gradients": "gradients",
    "grade": "grading",
    "generate": "generation",
    "load": "loading",
    "make_examples": "tasks",
    "make_spec": "studies.spec",
    "mean_reference": "gates",
    "measure": "engine",
    "measure_activations": "activations.measuring",
    "noise_floor": "noise",
    "parse_heads": "heads",
    "rank": "ranking",
    "read_examples": "tasks.jsonl",
    "read_scores": "scores",
    "read_spec": "studies.spec",
    "run_study": "studies.running",
    "write_scores": "scores",
}
__all__ = [
    "Ablation",
    "Activations",
    "Arm",
    "Check",
    "Curve",
    "Example",
    "Gates",
    "Generated",
    "Graded",
    "Gradients",
    "Head",
    "HeadScores",
    "HeadlabError",
    "Measured",
    "Model",
    "Reference",
    "Run",
    "__version__",
    "ablate",
    "check",
    "counterfactual_reference",
    "curve",
    "gate_gradients",
    "generate",
    "grade",
    "load",
    "make_examples",
    "make_spec",
    "mean_reference",
    "measure",
    "measure_activations",
    "noise_floor",
    "parse_heads",
    "rank",
    "read_examples",
    "read_scores",
    "read_spec",
    "run_study",
    "write_scores",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headlab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headlab.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
