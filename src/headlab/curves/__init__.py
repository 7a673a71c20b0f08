"""The curve that proves an order of heads."""

from headlab.curves.making import NoEffect, curve
from headlab.curves.record import Curve

__all__ = ["Curve", "NoEffect", "curve"]
