"""Small models that write, and what they should write: for tests of text under gates."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import ARCHITECTURES, random_ids, tiny, tiny_tokenizer
from torch import Tensor

from headlab import Gates, Head, Model
from headlab.generation.batch import Batch
from headlab.proofs import check

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
NEW = 10
HEADS = [Head(0, 1), Head(1, 2)]


def made(name: str = "llama") -> Model:
    found = Model(tiny(name), tiny_tokenizer(), name=name)
    check(found)
    return found


def endless(name: str = "llama") -> Model:
    """Random weights soon hit on EOS; this one goes on."""
    found = Model(copy.deepcopy(tiny(name)), tiny_tokenizer(), name=name)
    check(found)
    found.hf.generation_config.eos_token_id = None
    return found


def prompts() -> list[Tensor]:
    return [random_ids(1, length, seed=length)[0] for length in (5, 9, 6, 7)]


def ids_of(found) -> list[list[list[int]]]:
    return [[written.ids for written in row] for row in found.rows]


def transformers_ids(model: Model, rows: list[Tensor], together: bool) -> list[list[int]]:
    """What transformers itself generates, in one padded batch or one by one, cut after EOS."""
    groups = [rows] if together else [[row] for row in rows]
    found = []
    for group in groups:
        tokens = model.tokens(group, padding="left")
        ids = model.hf.generate(
            input_ids=tokens.ids,
            attention_mask=tokens.mask.long(),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
        )
        found += ids[:, tokens.ids.shape[1] :].tolist()
    eos = model.hf.generation_config.eos_token_id
    return [row[: row.index(eos) + 1] if eos in row else row for row in found]


def plain_loop(model: Model, prompt: Tensor, gates: Gates, everywhere: bool = False) -> list[int]:
    """Greedy, one full pass a token, no cache: gates 1 at the prompt, as given after it."""
    ids, eos = prompt.clone(), model.hf.generation_config.eos_token_id
    values = gates.values[0, 0, :, :, 0]  # [layer, head]
    for _ in range(NEW):
        at = torch.ones(*values.shape, len(ids))
        at[:, :, 0 if everywhere else len(prompt) :] = values[..., None]
        with model.gated(Gates(at, "layer head position")):
            ids = torch.cat([ids, model(ids)[0, -1].argmax()[None]])
        if int(ids[-1]) == eos:
            break
    return ids[len(prompt) :].tolist()


def looking(monkeypatch, steps: int) -> None:
    """As a GPU does, which looks only every few tokens."""
    original = Batch.step_on
    monkeypatch.setattr(Batch, "step_on", lambda self, _: original(self, steps))
