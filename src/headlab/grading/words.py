"""Scores of words: exact match, token F1, ROUGE-1 and ROUGE-L."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_ARTICLES = {"a", "an", "the"}
_QUOTES = "\"'“”‘’«»`"
# A number keeps its sign and its point: 3.5 is neither 35 nor 3 and 5.
_TOKEN = re.compile(r"(?<!\w)-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)|[^\W_]+")
_WORD = re.compile(r"[^\W_]+")


def exact(prediction: str, gold: str) -> float:
    """1 if the texts are the same but for case, spaces, quotes around and a stop at the end.

    >>> exact(' "Paris." ', "paris"), exact("Paris, France", "Paris")
    (1.0, 0.0)
    """
    return float(_plain(prediction) == _plain(gold))


def token_f1(prediction: str, gold: str) -> float:
    """F1 of the words in common, without articles.

    >>> token_f1("The red car", "a red bus"), token_f1("1,000", "1000"), token_f1("-5", "5")
    (0.5, 1.0, 0.0)
    """
    return _f_of_counts(_tokens(prediction), _tokens(gold), prediction, gold)


def rouge_1(prediction: str, gold: str) -> float:
    """F of the words in common, all words, no stemming.

    >>> rouge_1("the red car", "a red car")
    0.6666666666666666
    """
    return _f_of_counts(_words(prediction), _words(gold), prediction, gold)


def rouge_l(prediction: str, gold: str) -> float:
    """F of the longest run of words that both have in this order, gaps allowed.

    >>> rouge_l("a b c d", "a c b d"), rouge_1("a b c d", "a c b d")
    (0.75, 1.0)
    """
    ours, theirs = _words(prediction), _words(gold)
    if not ours or not theirs:
        return _of_nothing(prediction, gold)
    return 2 * _common_in_order(ours, theirs) / (len(ours) + len(theirs))


def _plain(text: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    while (shorter := text.strip(_QUOTES + " ").rstrip(".!?,;: ")) != text:
        text = shorter
    return text


def _tokens(text: str) -> list[str]:
    text = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    found = [token.replace(",", "") for token in _TOKEN.findall(text)]
    return [token for token in found if token not in _ARTICLES] or found  # "A" is an answer too


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _f_of_counts(ours: list[str], theirs: list[str], prediction: str, gold: str) -> float:
    if not ours or not theirs:
        return _of_nothing(prediction, gold)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def _of_nothing(prediction: str, gold: str) -> float:
    """Where one side has no words, only the same text is right."""
    return float(prediction.strip() == gold.strip())


def _common_in_order(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Length of the longest common subsequence, a row of the table as the bits of one integer.

    A 0 bit marks where the length grows by one; a table of 20,000 x 20,000 words takes a second.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(ours):
        places[word] = places.get(word, 0) | 1 << place
    full = (1 << len(ours)) - 1
    row = full
    for word in theirs:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(ours) - row.bit_count()
