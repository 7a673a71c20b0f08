"""Whole attention maps of heads on one prompt, for looking at, and which tokens were inserted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.attention.watching import Block, watch
from headlab.errors import HeadlabError
from headlab.heads import Head
from headlab.texts import Prompt

if TYPE_CHECKING:
    from headlab.model import Model
    from headlab.texts import Texts


def attention_maps(model: Model, prompt: Prompt, heads: Sequence[Head]) -> Tensor:
    """Weights [head, query, key] of one prompt: all of them, so for short ones."""
    tokens = model.tokens([prompt])
    n = tokens.ids.shape[1]
    maps = torch.zeros(len(heads), n, n)
    by_layer: dict[int, list[int]] = {}
    for head in heads:
        by_layer.setdefault(head.layer, []).append(head.head)

    def add(block: Block) -> None:
        width = block.weights.shape[2]
        for place, head in enumerate(heads):
            if head.layer == block.layer:
                own = by_layer[head.layer].index(head.head)
                maps[place, block.first : block.first + width] = block.weights[0, own].cpu()

    watch(model, tokens, by_layer, add)
    return maps


def inserted_tokens(texts: Texts, prompt: str, inserted: str | Sequence[int]) -> Tensor:
    """[position], True where a token holds any of the inserted text: a part of the prompt, or the
    numbers of its first letter and of the one after its last."""
    if isinstance(inserted, str):
        text = inserted.strip()
        start = prompt.find(text)
        if not text or start < 0:
            raise HeadlabError(f"{inserted[:40]!r} was to be inserted, and is not in its prompt")
        if prompt.find(text, start + 1) >= 0:
            raise HeadlabError(
                f"{inserted[:40]!r} is in its prompt more than once; say where it was inserted: "
                '"inserted": [first, last]'
            )
        stop = start + len(text)
    else:
        try:
            start, stop = (int(end) for end in inserted)
        except (TypeError, ValueError, OverflowError):
            start, stop = -1, -1
        if not 0 <= start < stop <= len(prompt):
            raise HeadlabError(
                'what is inserted is a part of the prompt: its text, or "inserted": [first, last]'
            )
    if texts.tokenizer is None or not texts.tokenizer.is_fast:
        raise HeadlabError(f"{texts.name} has no tokenizer that knows where its tokens stand")
    spans = texts.tokenizer(prompt, return_offsets_mapping=True, add_special_tokens=False)
    where = [(first, last) for first, last in spans["offset_mapping"]]
    marks = [first < stop and last > start for first, last in where]
    for (first, last), mine in zip(where, marks, strict=True):
        own = (prompt[max(first, 0) : start] + prompt[stop:last]).strip()
        if mine and own:
            raise HeadlabError(
                f"a token of {texts.name} holds both inserted text and {own!r} of the prompt; put "
                "spaces around what is inserted"
            )
    before = len(texts.ids(prompt)) - len(marks)  # a BOS
    return torch.tensor([False] * before + marks)
