"""What heads attend to: profiles over positions beside what even attention would give, and known
types of heads."""

from headlab.attention.profiles import STATISTICS, Profiles, profile
from headlab.attention.types import TYPES, HeadTypes, find_types
from headlab.attention.watching import Block, watch

__all__ = [
    "STATISTICS",
    "TYPES",
    "Block",
    "HeadTypes",
    "Profiles",
    "find_types",
    "profile",
    "watch",
]
