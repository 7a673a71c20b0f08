"""Filler conditions: what stands around a question besides its own tokens."""

from headlab.fillers.building import INSTRUCTION, Built, build
from headlab.fillers.conditions import CONDITIONS, Condition, parse_conditions

__all__ = ["CONDITIONS", "INSTRUCTION", "Built", "Condition", "build", "parse_conditions"]
