"""Overlap with a reference by sacrebleu: sentence BLEU and chrF, from 0 to 1."""

from __future__ import annotations

import functools
from typing import Any


def bleu(prediction: str, reference: str) -> float:
    """Sentence BLEU of up to four words, fewer where the text is shorter; case counts."""
    return _score("BLEU", prediction, reference)


def chrf(prediction: str, reference: str) -> float:
    """chrF2: F of the n-grams of up to six characters, spaces left out."""
    return _score("CHRF", prediction, reference)


def _score(kind: str, prediction: str, reference: str) -> float:
    if not prediction.strip() or not reference.strip():
        return float(prediction.strip() == reference.strip())
    score = _metric(kind).sentence_score(prediction, [reference]).score / 100
    return min(1.0, max(0.0, float(score)))  # of itself it is 1.0000000000000004


@functools.cache
def _metric(kind: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(effective_order=True) if kind == "BLEU" else CHRF()
