"""Words for generated tasks, filtered by the model's own tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.examples import Example
    from headlab.texts import Texts

T = TypeVar("T")

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


def single_tokens(texts: Texts, words: Sequence[str], at_least: int, what: str) -> list[str]:
    """Those words that are one token after a space, or an error where too few are."""
    kept = [word for word in words if _is_one_token(texts, word)]
    if len(kept) < at_least:
        raise HeadlabError(
            f"{what} must be single tokens, and only {len(kept)} of {len(words)} are one token "
            f"for {texts.name}; at least {at_least} are needed"
        )
    return kept


def _is_one_token(texts: Texts, word: str) -> bool:
    """Whether " word" adds one token to a text before it, and that token is the whole word."""
    before = texts.ids("and").tolist()
    after = texts.ids(f"and {word}").tolist()
    return after[:-1] == before and texts.token_texts(after[-1:])[0].strip() == word


def dealt(items: Sequence[T], draw: random.Random) -> Iterator[T]:
    """The items in a random order, and again in another, without end: all come equally often."""
    while True:
        yield from draw.sample(items, len(items))


def collect(example: Callable[[int], Example], n: int, task: str) -> list[Example]:
    """`n` examples with different prompts; `example` is given the number it will have."""
    if n < 1:
        raise HeadlabError(f"at least one example is needed, not {n}")
    found: dict[str, Example] = {}
    for _ in range(50 * n + 1000):
        made = example(len(found))
        found.setdefault(made.prompt, made)
        if len(found) == n:
            return list(found.values())
    raise HeadlabError(f"{task} has only about {len(found)} different prompts, {n} were asked for")
