"""The curve that proves an order of heads."""

from headlab.curves.making import MIN_ORDERS, NoEffect, curve, expected_masks
from headlab.curves.record import Curve

__all__ = ["MIN_ORDERS", "Curve", "NoEffect", "curve", "expected_masks"]
