"""Words for generated tasks, filtered by the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.model import Model

# First names of one syllable or a few, common enough to be one token in most vocabularies.
_NAMES = (
    "Aaron Adam Alan Albert Alex Alice Amy Andrew Angela Anna Anne Anthony Arthur Barbara Ben "
    "Betty Bill Bob Brian Bruce Carl Carol Charles Charlie Chris Clara Daniel David Dean Diana "
    "Donald Dorothy Edward Elizabeth Ellen Emily Emma Eric Eva Frank Fred Gary George Grace Grant "
    "Greg Harry Helen Henry Howard Ian Jack Jacob James Jane Jason Jean Jeff Jennifer Jessica Jim "
    "Joe John Jordan Joseph Julia Karen Kate Keith Kelly Kevin Laura Lee Leo Lewis Linda Lisa "
    "Louis Lucy Luke Margaret Maria Mark Martha Martin Mary Matt Max Michael Michelle Mike Nancy "
    "Neil Nicholas Nick Oliver Oscar Patrick Paul Peter Philip Rachel Ralph Ray Rebecca Richard "
    "Robert Roger Rose Ross Roy Ruth Ryan Sam Sarah Scott Simon Sophie Stephen Steve Susan Taylor "
    "Thomas Tim Tom Tony Victor Victoria Walter William "
)
NAMES = _NAMES.split()


def single_tokens(model: Model, words: Sequence[str], at_least: int, what: str) -> list[str]:
    """Those words that are one token after a space, or an error where too few are."""
    kept = [word for word in words if _is_one_token(model, word)]
    if len(kept) < at_least:
        raise HeadlabError(
            f"{what} must be single tokens, and only {len(kept)} of {len(words)} are one token "
            f"for {model.name}; at least {at_least} are needed"
        )
    return kept


def _is_one_token(model: Model, word: str) -> bool:
    """Whether " word" adds one token to a text before it, and that token is the whole word."""
    before = model.ids("and").tolist()
    after = model.ids(f"and {word}").tolist()
    return after[:-1] == before and model.token_texts(after[-1:])[0].strip() == word
