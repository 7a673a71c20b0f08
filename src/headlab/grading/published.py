"""The accuracy of the masking study as published: any of three likenesses will do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headlab.grading.embeddings import cosines
from headlab.grading.overlaps import bleu
from headlab.grading.rows import Row
from headlab.grading.scored import Scored
from headlab.grading.words import rouge_1

BLEU_ABOVE = 0.8  # of the whole text with that of the untouched model
ROUGE_ABOVE = 0.6  # of the answer with the gold
COSINE_ABOVE = 0.6  # of the answer with the gold


def published(rows: Sequence[Row], progress: Callable[[int], None] | None = None) -> Scored:
    """1 where the text is that of the untouched model, or the answer is like the gold."""
    scores = []
    for row in rows:
        answer, gold = row.answer or "", row.gold or ""
        same = bleu(row.text or "", row.unmasked or "") > BLEU_ABOVE
        scores.append(float(same or rouge_1(answer, gold) > ROUGE_ABOVE))
    open_still = [place for place, score in enumerate(scores) if not score]
    if progress:
        progress(len(rows) - len(open_still))
    pairs = [(rows[place].answer or "", rows[place].gold or "") for place in open_still]
    for place, cosine in zip(open_still, cosines(pairs, progress), strict=True):
        scores[place] = float(cosine > COSINE_ABOVE)
    return Scored(scores)
