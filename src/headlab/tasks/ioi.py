"""Indirect objects: of two people, who receives? The one who is not named twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headlab.examples import Example
from headlab.tasks.words import NAMES, collect, dealt, single_tokens

if TYPE_CHECKING:
    from headlab.texts import Texts

# X and Y are the two people in either order; S, one of them, hands something to the other.
TEMPLATES = (
    "Then, X and Y went to the PLACE, and S gave a OBJECT to",
    "When X and Y got to the PLACE, S handed a OBJECT to",
    "After X and Y had met at the PLACE, S showed a OBJECT to",
    "While X and Y were walking to the PLACE, S passed a OBJECT to",
    "Yesterday X and Y sat in the PLACE until S brought a OBJECT to",
    "Last week X and Y looked around the PLACE, where S sold a OBJECT to",
    "As soon as X and Y arrived at the PLACE, S offered a OBJECT to",
    "Because X and Y were both in the PLACE, S could give a OBJECT to",
    "In the morning X and Y opened the PLACE, and later S lent a OBJECT to",
    "Friends of X and Y waited near the PLACE while S threw a OBJECT to",
    "It was raining when X and Y left the PLACE, so S gave a OBJECT to",
    "Once X and Y had finished work at the PLACE, S mailed a OBJECT to",
    "Everyone saw X and Y at the PLACE, and then S carried a OBJECT to",
    "The day X and Y moved close to the PLACE, S presented a OBJECT to",
    "Before X and Y said goodbye at the PLACE, S returned a OBJECT to",
)
PLACES = ("store", "school", "park", "garden", "office", "station", "house", "hospital")
OBJECTS = ("drink", "book", "ring", "ball", "letter", "key", "basket", "kiss")
# Said before the sentence above in the long form; nothing in them bears on the answer.
OPENINGS = (
    "The winter had been long and the roads were still covered with snow that nobody had cleared.",
    "For three days the whole town had talked about nothing else than the music at the fair.",
    "Nothing much had happened since the old bridge was closed and the trains began to run late.",
    "It took the neighbours most of the afternoon to carry the chairs and tables back inside.",
    "The newspaper said that the summer would be dry, and for once the newspaper was right.",
    "After many years abroad it felt strange to hear the same bells ring at the same hour again.",
    "The film was over sooner than expected, and most people stayed to talk about the ending.",
    "On the radio they were still discussing the election, though the votes were counted long ago.",
    "The cook had tried a new recipe that week, and the smell of it filled the entire street.",
    "Since the library had moved to a larger building, there was always somebody looking for it.",
    "A thin fog lay over the fields, and the first buses of the day came slowly up the hill.",
    "Every autumn the market is held on the square, with apples, cheese and a great many hats.",
)


def generate(texts: Texts, n: int, seed: int = 0) -> list[Example]:
    """`n` different prompts in varied templates, the same for the same seed and tokenizer.

    The counterfactual has three other names in the three places, so that nothing tells who
    receives; it has the prompt's length in tokens, every name being one token.
    """
    return _generate(texts, n, seed, "ioi", [""])


def generate_long(texts: Texts, n: int, seed: int = 0) -> list[Example]:
    """The same after a sentence that has nothing to do with it."""
    return _generate(texts, n, seed, "ioi-long", [f"{opening} " for opening in OPENINGS])


def _generate(texts: Texts, n: int, seed: int, task: str, openings: Sequence[str]) -> list[Example]:
    names = single_tokens(texts, NAMES, at_least=12, what=f"the names of {task}")
    draw = random.Random(seed)
    shapes, opening = _shapes(draw), dealt(openings, draw)

    def example(number: int) -> Example:
        template, receiver_first = next(shapes)
        receiver, giver, *others = draw.sample(names, 5)
        frame = template.replace("PLACE", draw.choice(PLACES))
        frame = next(opening) + frame.replace("OBJECT", draw.choice(OBJECTS))
        pair = (receiver, giver) if receiver_first else (giver, receiver)
        return Example(
            _fill(frame, *pair, giver),
            f" {receiver}",
            counterfactual=_fill(frame, *others),
            wrong=(f" {giver}",),
            id=f"{task}-{seed}-{number}",
            category="ABBA" if receiver_first else "BABA",
        )

    return collect(example, n, task)


def _shapes(draw: random.Random) -> Iterator[tuple[str, bool]]:
    """Every template once with one order of names, then once with the other, and again."""
    while True:
        first = {template: draw.random() < 0.5 for template in TEMPLATES}
        for flipped in (False, True):
            for template in draw.sample(TEMPLATES, len(TEMPLATES)):
                yield template, first[template] != flipped


def _fill(frame: str, x: str, y: str, s: str) -> str:
    words = {"X": x, "Y": y, "S": s}
    return " ".join(words.get(word, word) for word in frame.split(" "))
