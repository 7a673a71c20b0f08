"""An example: a prompt, the answer that should follow, and what the answer is compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headlab.errors import HeadlabError


@dataclass(frozen=True)
class Example:
    """One row of a task.

    >>> Example("The capital of France is", " Paris", wrong=(" Rome", " Berlin")).answers
    (' Paris', ' Rome', ' Berlin')
    """

    prompt: str
    target: str
    counterfactual: str | None = None  # a prompt of the same length in tokens
    wrong: tuple[str, ...] = ()
    also_right: tuple[str, ...] = ()  # beside the target, for measures over sets of answers
    id: str = ""
    category: str = ""

    def __post_init__(self) -> None:
        for field in ("wrong", "also_right"):
            answers = getattr(self, field)
            if isinstance(answers, str):
                raise HeadlabError(f"{field} is a list of answers, not {answers!r}")
            object.__setattr__(self, field, tuple(answers))

    @property
    def answers(self) -> tuple[str, ...]:
        """The target first, then what else is right, then what is wrong."""
        return (self.target, *self.also_right, *self.wrong)

    def as_dict(self) -> dict[str, Any]:
        """As a line of a JSONL file, what is empty left out."""
        return {key: value for key, value in asdict(self).items() if value}

    @property
    def fingerprint(self) -> str:
        """The same for the same prompt, target and counterfactual, whatever the id."""
        told = "\0".join((self.prompt, self.target, self.counterfactual or ""))
        return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()[:16]

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"example {self.id!r}" if self.id else f"the example {self.prompt!r}"


def name_examples(examples: Sequence[Example]) -> list[Example]:
    """The same examples, those without an id named by their number; none may come twice."""
    named = [
        example if example.id else replace(example, id=str(number))
        for number, example in enumerate(examples, start=1)
    ]
    for key in ("id", "fingerprint"):
        seen: dict[str, Example] = {}
        for example in named:
            first = seen.setdefault(getattr(example, key), example)
            if first is not example:
                what = "have one id" if key == "id" else "are the same"
                raise HeadlabError(f"{first.name} and {example.name} {what}; give each once")
    return named
