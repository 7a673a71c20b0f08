"""Formulas as one GPU kernel each, tried on the machine before they are used."""

from headlab.fused.kernels import (
    MOST_PLACES,
    attend,
    can_attend,
    can_gate,
    can_swiglu,
    can_turn,
    gate,
    gate_back,
    swiglu,
    swiglu_back,
    turn,
)
from headlab.fused.trials import TRIALS, works

__all__ = [
    "MOST_PLACES",
    "TRIALS",
    "attend",
    "can_attend",
    "can_gate",
    "can_swiglu",
    "can_turn",
    "gate",
    "gate_back",
    "swiglu",
    "swiglu_back",
    "turn",
    "works",
]
