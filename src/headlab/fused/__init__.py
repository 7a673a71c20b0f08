"""Formulas as one GPU kernel each, tried on the machine before they are used."""

from headlab.fused.attending import (
    MOST_PLACES,
    SHORT,
    attend,
    attend_all,
    attend_all_back,
    can_attend,
    can_attend_all,
)
from headlab.fused.formulas import (
    can_gate,
    can_log_sum,
    can_swiglu,
    can_turn,
    gate,
    gate_back,
    log_sum,
    swiglu,
    swiglu_back,
    turn,
)
from headlab.fused.launching import wants_slopes
from headlab.fused.trials import TRIALS, works

__all__ = [
    "MOST_PLACES",
    "SHORT",
    "TRIALS",
    "attend",
    "attend_all",
    "attend_all_back",
    "can_attend",
    "can_attend_all",
    "can_gate",
    "can_log_sum",
    "can_swiglu",
    "can_turn",
    "gate",
    "gate_back",
    "log_sum",
    "swiglu",
    "swiglu_back",
    "turn",
    "wants_slopes",
    "works",
]
