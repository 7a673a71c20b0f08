"""Which heads tell what a model is doing: a probe on their outputs while it answers."""

from headlab.probing.pooling import Pooled, answer_tokens, pool
from headlab.probing.probe import Probed, Training, elbow, fit_probe

__all__ = ["Pooled", "Probed", "Training", "answer_tokens", "elbow", "fit_probe", "pool"]
