"""Build a prompt under a condition from token ids: exactly its count is put in, and the original
tokens are the same in every condition.

Text alone would not do: after a full stop "/" becomes "./", and "//" is often one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.fillers.conditions import Condition
from headlab.luck import generator_of

if TYPE_CHECKING:
    from headlab.texts import Texts

# As the released code has it, before the problem.
INSTRUCTION = r"Please reason step by step and put your final answer within \boxed{}."
_DRAWS = 200  # of random tokens for each that is needed, before giving up


@dataclass(frozen=True)
class Built:
    """A prompt under a condition."""

    condition: Condition
    ids: Tensor  # [position]
    inserted: Tensor  # [position], True where the condition put a token in
    positions: Tensor  # [position], 0, 1, 2 ...; after a gap further on
    question: Tensor  # [position], True at the question's own tokens
    instruction: Tensor  # [position], True at the instruction's
    pieces: list[str]  # [position], each token as text

    @property
    def original(self) -> Tensor:
        """The ids that every condition has."""
        return self.ids[~self.inserted]

    @property
    def gap(self) -> int:
        """Positions that no token has."""
        return int(self.positions[-1]) - len(self.ids) + 1

    @property
    def has_gap(self) -> bool:
        return self.gap > 0


@dataclass(frozen=True)
class _Plain:
    """The original tokens and where they can be parted: so many come before each place."""

    ids: Tensor
    before: int  # the instruction (after BOS, and a chat's first words)
    between: int
    end: int  # after the question


def build(
    texts: Texts, condition: Condition, question: str, instruction: str = INSTRUCTION
) -> Built:
    """Instruction and question with what the condition puts in. `texts` is a model or its
    tokenizer (`headlab.loading.load_texts`).

    >>> built = build(texts, CONDITIONS["mless"], "What is 2 + 3?")           # doctest: +SKIP
    >>> int(built.inserted.sum()), built.pieces[15:18]                        # doctest: +SKIP
    (55, ['.', ' /', ' /'])
    """
    plain = _plain(texts, condition, question, instruction)
    n = len(plain.ids)
    places = _places(condition, plain)  # [inserted], how many original tokens come before each
    new = _new_tokens(texts, condition, plain.ids)
    order = np.argsort(np.concatenate([np.arange(n) + 0.5, places]), kind="stable")
    ids = torch.cat([plain.ids, new])[torch.from_numpy(order)]
    inserted = torch.from_numpy(order >= n)
    question_own, instruction_own = (
        torch.from_numpy((order >= start) & (order < end))
        for start, end in ((plain.between, plain.end), (plain.before, plain.between))
    )
    positions = torch.arange(len(ids))
    if condition.kind == "gap":
        positions[plain.between :] += condition.count
    if int(inserted.sum()) != condition.inserts or not torch.equal(ids[~inserted], plain.ids):
        raise AssertionError(f"{condition.name} was not built as it should be")
    texts.ids(ids)  # refused if too long
    pieces = texts.token_texts(ids)
    return Built(condition, ids, inserted, positions, question_own, instruction_own, pieces)


def _plain(texts: Texts, condition: Condition, question: str, instruction: str) -> _Plain:
    if texts.tokenizer is None:
        raise HeadlabError(f"{texts.name} has no tokenizer; conditions need one")
    if not question.strip():
        raise HeadlabError("the question is empty; give at least one word")
    space = " " if instruction and not question[0].isspace() else ""
    content = f"{instruction}{space}{question}"
    if condition.template == "raw":
        ids, whole, start = texts.ids(content), content, 0
        extra = len(ids) - len(_bare(texts, content))  # BOS
    else:
        content = content.strip()
        ids = texts.chat(content)
        whole = str(
            texts.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
        )
        start, extra = whole.rfind(content), 0
        if start < 0 or _bare(texts, whole) != ids.tolist():
            raise HeadlabError(
                f"the chat template of {texts.name} changes what the user says; use the template "
                "raw"
            )
        instruction = instruction.lstrip()
    cuts = (start, start + len(instruction), start + len(content))
    before, between, end = (extra + _tokens_before(texts, whole, cut) for cut in cuts)
    return _Plain(ids, before, between, end)


def _bare(texts: Texts, text: str) -> list[int]:
    """The tokens of a text as it stands."""
    assert texts.tokenizer is not None
    return list(texts.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _tokens_before(texts: Texts, whole: str, cut: int) -> int:
    """How many tokens the text has before a place, where no token may stand across."""
    first, all_of_it = _bare(texts, whole[:cut]), _bare(texts, whole)
    if all_of_it[: len(first)] != first:
        raise HeadlabError(
            f"for {texts.name} a token stands across {whole[max(0, cut - 12) : cut]!r} and "
            f"{whole[cut : cut + 12]!r}, so nothing can be put between; end the first with a full "
            "stop, or start the second with a word"
        )
    return len(first)


def _places(condition: Condition, plain: _Plain) -> np.ndarray:
    """For each inserted token, how many original tokens come before it."""
    if condition.position == "random":
        if plain.end - plain.before < 2:
            raise HeadlabError("random places need a prompt of at least two tokens")
        draw = generator_of(condition.seed, plain.ids)
        # Between the first and the last token of instruction and question.
        return np.sort(draw.integers(plain.before + 1, plain.end, condition.inserts))
    place = {"before": plain.before, "between": plain.between, "end": plain.end}[condition.position]
    return np.full(condition.inserts, place)


def _new_tokens(texts: Texts, condition: Condition, ids: Tensor) -> Tensor:
    """[inserted]"""
    count = condition.inserts
    if not count:
        return ids[:0]
    if condition.kind == "random-tokens":
        return torch.tensor(_ordinary(texts, condition, ids))
    if isinstance(condition.filler, tuple):
        own = torch.tensor(condition.filler)
        texts.ids(own)  # refused if no tokens of this vocabulary
        return own.repeat(1 + count // len(own))[:count]
    return torch.full((count,), find_token(texts, condition.filler))


def find_token(texts: Texts, filler: str) -> int:
    """The one token of a filler text between spaces: " /" if the tokenizer has it, else "/".

    >>> find_token(texts, "/")                                                # doctest: +SKIP
    2272
    """
    word = filler.strip()
    tried = []
    before = _bare(texts, "a")
    for text in (f" {word}", word):
        tokens = _bare(texts, f"a{text}")
        after = tokens[len(before) :] if tokens[: len(before)] == before else _bare(texts, text)
        # An unknown word, too, is one token, which says something else.
        if len(after) == 1 and texts.token_texts(after)[0].strip() == word:
            return after[0]
        tried.append(after)
    shortest = min(tried, key=len)
    made = " + ".join(repr(piece) for piece in texts.token_texts(shortest))
    raise HeadlabError(
        f"{texts.name} has no single token for the filler {filler!r} (it makes {made}); take "
        "another filler, or give token ids"
    )


def _ordinary(texts: Texts, condition: Condition, ids: Tensor) -> list[int]:
    """Tokens of letters alone, perhaps after a space, drawn for this prompt."""
    assert texts.tokenizer is not None
    # Of places and of tokens there may be both: each has luck of its own.
    draw = generator_of(condition.seed + 2**32, ids)
    special = set(texts.special_tokens.values())
    size, found = len(texts.tokenizer), []
    for _ in range(_DRAWS):
        drawn = draw.integers(0, size, condition.count).tolist()
        pieces = texts.token_texts(drawn)
        found += [
            number
            for number, piece in zip(drawn, pieces, strict=True)
            if number not in special and piece.removeprefix(" ").isalpha()
        ]
        if len(found) >= condition.count:
            return found[: condition.count]
    raise HeadlabError(f"{texts.name} has hardly any tokens of letters; random ones need them")
