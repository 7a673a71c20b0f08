"""The first MLP's activation: what fillers do to it (`activations.measuring`), and ARM, which
imitates them."""

from headlab.activations.arm import Arm, parse_arm
from headlab.activations.finding import Activation, find_activation

__all__ = ["Activation", "Arm", "find_activation", "parse_arm"]
