"""A small model built by hand: three heads, and no others, carry the first word to the answer.

L0H1 copies each position's token to the next; L1H0 and L1H2, at the last position, each bring half
of what L0H1 left at position 1 to the output. Every other head has small random weights; MLPs are
zero.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

from headlab import Example, Head, Model, check

CARRIERS = {Head(0, 1), Head(1, 0), Head(1, 2)}
_NAMES = [f"n{number}" for number in range(16)]
_WIDTH, _HEADS = 16, 4
# The residual stream: token code, moved code, output code, position; 16 dimensions each.
_TOKEN, _MOVED, _OUTPUT, _PLACE = (range(start, start + 16) for start in (0, 16, 32, 48))


def planted() -> Model:
    """Three heads carry the answer together."""
    return _made(_plant, "planted")


def roled() -> Model:
    """One head is needed for the answer (L1H0), one harms it (L1H3), the others do nothing."""
    return _made(_plant_roles, "roled")


def two_formats() -> Model:
    """One head answers where the word comes first (L1H0), another where it comes second (L1H3)."""
    return _made(_plant_formats, "formats")


def in_formats(n: int) -> tuple[list[Example], list[Example]]:
    """The same words asked for in both."""
    first = [Example(f"{word} is the word", f" {word}", id=f"first-{word}") for word in _NAMES[:n]]
    second = [
        Example(f"is {word} the word", f" {word}", id=f"second-{word}") for word in _NAMES[:n]
    ]
    return first, second


def _made(plant: Callable[[hf.GPT2LMHeadModel], None], name: str) -> Model:
    words = [*_NAMES, "is", "the", "word"]
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="word"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = hf.GPT2Config(
        vocab_size=len(words),
        n_positions=16,
        n_embd=64,
        n_layer=2,
        n_head=_HEADS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    network = hf.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        plant(network)
    model = Model(network, hf.PreTrainedTokenizerFast(tokenizer_object=core), name=name)
    check(model).require()
    return model


def pairs(n: int, seed: int = 0) -> list[Example]:
    """The first word is the answer; in the counterfactual it is another one. At most 40; those of
    one seed are not those of another."""
    both = [(a, b) for a in range(16) for b in range(16) if a != b]
    order = torch.randperm(len(both), generator=torch.Generator().manual_seed(0)).tolist()
    found = []
    for number in range(n):
        right, wrong = (_NAMES[i] for i in both[order[40 * seed + number]])
        found.append(
            Example(
                f"{right} is the word",
                f" {right}",
                counterfactual=f"{wrong} is the word",
                wrong=(f" {wrong}",),
                id=f"pair-{seed}-{number}",
            )
        )
    return found


def save_planted(folder: Path) -> Path:
    """A model folder as a user would have it."""
    model = planted()
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def _plant_roles(network: hf.GPT2LMHeadModel) -> None:
    body = network.transformer
    _empty(network)
    for block in body.h:
        block.attn.c_proj.weight.zero_()
    network.lm_head.weight.mul_(0.4)  # not so sure that nothing is left to gain
    for head, weight in ((0, 0.6), (3, -0.4)):
        bring = _Writer(body.h[1].attn, head)
        bring.query(_PLACE[3], 0)
        bring.key(_PLACE[0], 0)
        bring.carry(_TOKEN, _OUTPUT, weight)


def _plant_formats(network: hf.GPT2LMHeadModel) -> None:
    body = network.transformer
    _empty(network)
    for block in body.h:
        block.attn.c_proj.weight.zero_()
    network.lm_head.weight.mul_(0.5)  # not so sure that gates have no slope
    for head, place in ((0, 0), (3, 1)):
        bring = _Writer(body.h[1].attn, head)
        bring.query(_PLACE[3], 0)
        bring.key(_PLACE[place], 0)
        bring.carry(_TOKEN, _OUTPUT, 0.5)


def _empty(network: hf.GPT2LMHeadModel) -> None:
    """Codes for tokens and places, MLPs that do nothing, heads with small random weights."""
    body = network.transformer
    body.wte.weight.zero_()
    body.wpe.weight.zero_()
    network.lm_head.weight.zero_()
    for number in range(16):
        body.wte.weight[number, _TOKEN[number]] = 1
        network.lm_head.weight[number, _OUTPUT[number]] = 1
        body.wpe.weight[number, _PLACE[number]] = 1
    for block in body.h:
        block.mlp.c_proj.weight.zero_()
        block.mlp.c_proj.bias.zero_()
        block.attn.c_attn.weight.normal_(0, 0.02)
        block.attn.c_proj.weight.normal_(0, 0.02)


def _plant(network: hf.GPT2LMHeadModel) -> None:
    body = network.transformer
    _empty(network)
    copy = _Writer(body.h[0].attn, 1)
    for place in range(15):
        copy.query(_PLACE[place], place)
        copy.key(_PLACE[place], place + 1)  # the position before
    copy.carry(_TOKEN, _MOVED, 1.0)
    for head in (0, 2):
        bring = _Writer(body.h[1].attn, head)
        bring.query(_PLACE[3], 0)
        bring.key(_PLACE[1], 0)
        bring.carry(_MOVED, _OUTPUT, 0.5)


class _Writer:
    """Sets the weights of one head of a GPT-2 attention."""

    def __init__(self, attention: torch.nn.Module, head: int):
        self._all, self._out = attention.c_attn.weight, attention.c_proj.weight
        self._first = head * _WIDTH
        for part in range(3):
            self._all[:, self._columns(part)] = 0
        self._out[self._first : self._first + _WIDTH] = 0

    def _columns(self, part: int) -> slice:
        start = part * _HEADS * _WIDTH + self._first
        return slice(start, start + _WIDTH)

    def query(self, dimension: int, slot: int) -> None:
        self._all[dimension, self._columns(0).start + slot] = 2

    def key(self, dimension: int, slot: int) -> None:
        self._all[dimension, self._columns(1).start + slot] = 2

    def carry(self, read: range, write: range, weight: float) -> None:
        for slot in range(_WIDTH):
            self._all[read[slot], self._columns(2).start + slot] = 1
            self._out[self._first + slot, write[slot]] = weight
