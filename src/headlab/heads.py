"""Names of heads: `L5H1` is head 1 of layer 5, both counted from 0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from headlab.errors import HeadlabError

_SPELLINGS = re.compile(r"(?:L(\d+)H(\d+)|(\d+)\.(\d+)|a(\d+)\.h(\d+))", re.IGNORECASE)


class Head(NamedTuple):
    """One query head. `str` gives its name, `parse` reads every accepted spelling.

    >>> str(Head(5, 1))
    'L5H1'
    >>> Head.parse("a5.h1") == Head.parse("5.1") == Head.parse("l5h1") == Head(5, 1)
    True
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        match = _SPELLINGS.fullmatch(text.strip())
        if match is None:
            raise HeadlabError(
                f"{text.strip()!r} is not a head; write L5H1 (layer 5, head 1), 5.1 or a5.h1"
            )
        layer, number = (int(number) for number in match.groups() if number is not None)
        return cls(layer, number)


def parse_heads(text: str) -> list[Head]:
    """Read a comma-separated list, each head once, in the order given.

    >>> [str(head) for head in parse_heads("L5H1, 7.2,a5.h1")]
    ['L5H1', 'L7H2']
    """
    names = [name for name in text.split(",") if name.strip()]
    if not names:
        raise HeadlabError("no heads given; name at least one, e.g. --heads L5H1,L7H2")
    return list(dict.fromkeys(Head.parse(name) for name in names))


def as_heads(heads: str | Head | Iterable[str | Head | tuple[int, int]]) -> list[Head]:
    """Heads in any form a user may have them in.

    >>> as_heads("L5H1,7.2") == as_heads(["L5H1", Head(7, 2)]) == [Head(5, 1), (7, 2)]
    True
    """
    if isinstance(heads, str):
        return parse_heads(heads)
    if isinstance(heads, Head):
        return [heads]
    return [Head.parse(head) if isinstance(head, str) else Head(*head) for head in heads]


def require_in_range(
    heads: Iterable[Head], n_layers: int, n_heads: int, model_name: str
) -> list[Head]:
    """The same heads, or an error that names the first one the model does not have."""
    heads = list(heads)
    for head in heads:
        if not (0 <= head.layer < n_layers and 0 <= head.head < n_heads):
            raise HeadlabError(
                f"{head} is out of range: {model_name} has layers 0 to {n_layers - 1} "
                f"and heads 0 to {n_heads - 1}"
            )
    return heads
