"""Indirect objects: of two people, who receives? The one who is not named twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.tasks.words import NAMES, single_tokens

if TYPE_CHECKING:
    from headlab.model import Model

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


def generate(model: Model, n: int, seed: int = 0) -> list[Example]:
    """`n` different prompts in varied templates, the same for the same seed and tokenizer.

    The counterfactual has three other names in the three places, so that nothing tells who
    receives; it has the prompt's length in tokens, every name being one token.
    """
    names = single_tokens(model, NAMES, at_least=12, what="the names of ioi")
    draw = random.Random(seed)
    shapes = _shapes(draw)
    examples: dict[str, Example] = {}
    for _ in range(50 * n + 1000):
        template, receiver_first = next(shapes)
        receiver, giver, *others = draw.sample(names, 5)
        frame = template.replace("PLACE", draw.choice(PLACES))
        frame = frame.replace("OBJECT", draw.choice(OBJECTS))
        pair = (receiver, giver) if receiver_first else (giver, receiver)
        example = Example(
            _fill(frame, *pair, giver),
            f" {receiver}",
            counterfactual=_fill(frame, *others),
            wrong=(f" {giver}",),
            id=f"ioi-{seed}-{len(examples)}",
            category="ABBA" if receiver_first else "BABA",
        )
        examples.setdefault(example.prompt, example)
        if len(examples) == n:
            return list(examples.values())
    raise HeadlabError(f"ioi has no {n} different prompts for {model.name}")


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
