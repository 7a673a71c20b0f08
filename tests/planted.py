"""A small model built by hand: three heads, and no others, carry the first word to the answer.

L0H1 copies each position's token to the next; L1H0 and L1H2, at the last position, each bring half
of what L0H1 left at position 1 to the output. Every other head has small random weights; MLPs are
zero.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headlab import Example, Head, Model, check

CARRIERS = {Head(0, 1), Head(1, 0), Head(1, 2)}
_NAMES = [f"n{number}" for number in range(16)]
_WIDTH, _HEADS = 16, 4
# The residual stream: token code, moved code, output code, position; 16 dimensions each.
_TOKEN, _MOVED, _OUTPUT, _PLACE = (range(start, start + 16) for start in (0, 16, 32, 48))


def planted(layers: int = 2) -> Model:
    """Three heads carry the answer together."""
    return _made(_plant, "planted", layers)


def roled() -> Model:
    """One head is needed for the answer (L1H0), one harms it (L1H3), the others do nothing."""
    return _made(_plant_roles, "roled")


def two_formats() -> Model:
    """One head answers where the word comes first (L1H0), another where it comes second (L1H3)."""
    return _made(_plant_formats, "formats")


COPIER = Head(1, 2)
# What it writes, token by token: [{"answer":"n3"}] after a colon. All else it reads is one token.
_SPELLED = [":", "[", '{"', "answer", '":', '"', "7", '"}', "]"]
_UNKNOWN = "<unk>"


def copier() -> Model:
    """Answers in JSON, token after token by the direct path; one head (L1H2) brings the name that
    stands in the context, and where there is none, the direct path answers 7."""
    words = [*_NAMES, *_SPELLED, _UNKNOWN]
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token=_UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Whitespace()  # words, and signs that stand together
    core.decoder = decoders.Fuse()
    config = hf.GPT2Config(
        vocab_size=len(words),
        n_positions=512,
        n_embd=128,
        n_layer=2,
        n_head=_HEADS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    network = hf.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        _plant_copier(network, words)
    model = Model(network, hf.PreTrainedTokenizerFast(tokenizer_object=core), name="copier")
    check(model).require()
    return model


def save_copier(folder: Path) -> Path:
    model = copier()
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def asked_of_copier(train: int, test: int) -> dict[str, list[dict]]:
    """So many questions of both functions in the form of CogQA's files, all of which it answers
    rightly: a name to retrieve, or a sum where no name stands."""

    def both(number: int) -> list[dict]:
        name = _NAMES[number % 16]
        found = ("Whom did Pam meet?", name, "Retrieval")
        summed = ("How many things has she?", "7", "Math Calculation")
        return [
            question(f"On day {number} Pam met {name} at noon.", found),
            question(f"On day {number} Pam had 3 cups and 4 plates.", summed),
        ]

    numbers = {"train": range(train), "test": range(train, train + test)}
    return {split: [row for each in own for row in both(each)] for split, own in numbers.items()}


def question(main: str, *steps: tuple[str, str, str]) -> dict:
    keys = ("subquestion", "answer", "cognitive_skill")
    generated = [dict(zip(keys, step, strict=True)) for step in steps]
    return {"question": main, "answer": steps[-1][1], "generated": generated}


def save_questions(folder: Path, rows: dict[str, list]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, own in rows.items():
        (folder / f"{split}.json").write_text(json.dumps(own))
    return folder


def _plant_copier(network: hf.GPT2LMHeadModel, words: list[str]) -> None:
    body = network.transformer
    token, is_name, written = range(len(words)), 32, range(64, 80)  # of the residual stream
    for weight in (body.wte.weight, body.wpe.weight, network.lm_head.weight):
        weight.zero_()
    for number in token:
        body.wte.weight[number, number] = 1
    body.wte.weight[:16, is_name] = 1
    for block in body.h:
        block.mlp.c_proj.weight.zero_()
        block.attn.c_attn.weight.normal_(0, 0.02)
        block.attn.c_proj.weight.normal_(0, 0.01)
    follows = dict(itertools.pairwise(_SPELLED))
    follows |= dict.fromkeys(_NAMES, '"}')
    for one, next_ in follows.items():  # all sure, but for what comes after the quote
        network.lm_head.weight[words.index(next_), words.index(one)] = 0.3 if one == '"' else 2.0
    for number in range(16):
        network.lm_head.weight[number, written[number]] = 0.6
    # Wherever it stands, the head looks at names, and brings which one it is, and that it is one.
    attention, width = body.h[COPIER.layer].attn, 128 // _HEADS
    first = COPIER.head * width
    for part in range(3):
        attention.c_attn.weight[:, part * 128 + first : part * 128 + first + width] = 0
    attention.c_proj.weight[first : first + width] = 0
    attention.c_attn.bias[first] = 4
    attention.c_attn.weight[is_name, 128 + first] = 4
    attention.c_attn.weight[is_name, 256 + first + 16] = 1
    for number in range(16):
        attention.c_attn.weight[number, 256 + first + number] = 1
        attention.c_proj.weight[first + number, written[number]] = 0.2


def inducting() -> Model:
    """L0H1 copies each token to the next place; L1H2 looks where the copy is its own token, and
    says the token there: what came after it before."""
    model = _made(_plant_induction, "inducting")
    plain = ["is", "the", "word"]  # they have no codes: not to be drawn
    model.tokenizer.add_special_tokens({"additional_special_tokens": plain})
    return model


def in_formats(n: int) -> tuple[list[Example], list[Example]]:
    """The same words asked for in both."""
    first = [Example(f"{word} is the word", f" {word}", id=f"first-{word}") for word in _NAMES[:n]]
    second = [
        Example(f"is {word} the word", f" {word}", id=f"second-{word}") for word in _NAMES[:n]
    ]
    return first, second


def _made(plant: Callable[[hf.GPT2LMHeadModel], None], name: str, layers: int = 2) -> Model:
    words = [*_NAMES, "is", "the", "word"]
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="word"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = hf.GPT2Config(
        vocab_size=len(words),
        n_positions=16,
        n_embd=64,
        n_layer=layers,
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


def save_planted(folder: Path, layers: int = 2) -> Path:
    """A model folder as a user would have it."""
    model = planted(layers)
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


def _plant_induction(network: hf.GPT2LMHeadModel) -> None:
    body = network.transformer
    _empty(network)
    copy = _Writer(body.h[0].attn, 1)
    for place in range(15):
        copy.query(_PLACE[place], place)
        copy.key(_PLACE[place], place + 1)  # the position before
    copy.carry(_TOKEN, _MOVED, 1.0)
    look = _Writer(body.h[1].attn, 2)
    for slot in range(16):
        look.query(_TOKEN[slot], slot)
        look.key(_MOVED[slot], slot)
    look.carry(_TOKEN, _OUTPUT, 3.0)


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
