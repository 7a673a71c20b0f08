"""Learned gates: which heads a task needs, which it could do without, which are in its way."""

from headlab.gatefits.contrast import ContrastFit, fit_contrast
from headlab.gatefits.deltas import Deltas, ablation_deltas
from headlab.gatefits.fitting import GateFit, Schedule, State, few_updates, fit_gates
from headlab.gatefits.roles import METRICS, ROLES, Roles

__all__ = [
    "METRICS",
    "ROLES",
    "ContrastFit",
    "Deltas",
    "GateFit",
    "Roles",
    "Schedule",
    "State",
    "ablation_deltas",
    "few_updates",
    "fit_contrast",
    "fit_gates",
]
