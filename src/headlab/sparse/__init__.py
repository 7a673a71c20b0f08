"""Sparse attention: gates on edges, the training that closes them, and models that have them."""

from headlab.sparse.gating import Gating as Gating
from headlab.sparse.gating import edges_kept as edges_kept
from headlab.sparse.gating import find_gating as find_gating
from headlab.sparse.gating import gate_attention as gate_attention
