"""The curve that proves an order of heads."""

from headlab.curves.making import NoEffect, curve, expected_masks
from headlab.curves.record import Curve

__all__ = ["Curve", "NoEffect", "curve", "expected_masks"]
