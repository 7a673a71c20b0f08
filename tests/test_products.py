"""Maps of one input as one product give what they give one by one."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from tiny import random_ids, tiny
from torch import nn
from writing import HEADS, NEW, each_architecture, endless, ids_of, prompts

from headlab import Gates
from headlab.generation import generate, products, writing
from headlab.generation.products import find_kin, joined_products

_BOTH = {"llama", "llama-wide", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo", "olmo2"}


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """The width of every joined product."""
    seen: list[int] = []
    plain = products.linear

    def counted(x, weight, bias):
        seen.append(len(weight))
        return plain(x, weight, bias)

    monkeypatch.setattr(products, "linear", counted)
    return seen


@each_architecture
def test_joined_products_give_the_same_logits(name, calls):
    network = tiny(name)
    ids = random_ids(2, 7)
    kin = find_kin(network)
    with torch.no_grad():
        plain = network(ids).logits
        with joined_products(network):
            joined = network(ids).logits
        again = network(ids).logits
    assert torch.allclose(joined, plain, atol=1e-5 * float(plain.abs().max()))
    assert torch.equal(again, plain), "afterwards all is as it was"
    assert calls == [sum(part.out_features for part in parts) for parts in kin]
    if name in _BOTH:
        assert len(calls) == 2 * network.config.num_hidden_layers


def test_text_is_the_same_with_joined_products(calls, monkeypatch):
    model = endless("qwen2")  # its projections have biases
    masks = Gates.stack([Gates.ones(model), Gates.ablate(model, HEADS)])
    plain = ids_of(generate(model, prompts(), masks, max_new_tokens=NEW))
    assert not calls, "on a CPU they gain nothing"
    monkeypatch.setattr(writing.Writer, "joined", lambda self: joined_products(self.model.hf))
    assert ids_of(generate(model, prompts(), masks, max_new_tokens=NEW)) == plain
    assert calls


def layer(bias: bool = True) -> nn.Module:
    found = nn.Module()
    torch.manual_seed(0)
    for name, size in (("q_proj", 8), ("k_proj", 4), ("v_proj", 4)):
        found.add_module(name, nn.Linear(6, size, bias=bias))
    return found.requires_grad_(False)


@pytest.mark.parametrize("bias", [True, False])
def test_a_part_that_is_given_something_else_is_asked_itself(bias, calls):
    own = layer(bias)
    expected = copy.deepcopy(own)
    x, other = torch.randn(2, 3, 6)
    with joined_products(own):
        for given in ([x, x, x], [x, other, x], [x, x.clone(), x.clone()], [other, other, x]):
            for name, each in zip(("q_proj", "k_proj", "v_proj"), given, strict=True):
                right = expected.get_submodule(name)(each)
                assert torch.allclose(own.get_submodule(name)(each), right, atol=1e-6)
        own.q_proj(x)
        x += 1
        assert torch.allclose(own.k_proj(x), expected.k_proj(x), atol=1e-6), "x is another now"
        own.v_proj(x)
        with torch.inference_mode():
            given = torch.randn(3, 6)
            assert torch.allclose(own.q_proj(given), expected.q_proj(given), atol=1e-6)
    assert calls == [16] * 5


def test_nothing_is_kept_once_all_parts_have_theirs():
    joined = products.Joined([*layer().children()])
    forwards = [joined.standing_for(number, lambda x: x) for number in range(3)]
    x = torch.randn(3, 6)
    for forward in forwards:
        forward(x)
    assert joined._given is None
    assert joined._found == ()


def test_what_is_no_plain_map_is_left_alone():
    assert len(find_kin(layer())) == 1
    hooked, changed, mixed, half, wide = (layer() for _ in range(5))
    hooked.k_proj.register_forward_hook(lambda *_: None)
    changed.v_proj.forward = lambda x: x
    mixed.k_proj = nn.Linear(6, 4, bias=False)
    half.k_proj.half()
    wide.v_proj = nn.Linear(7, 4)
    for each in (hooked, changed, mixed, half, wide):
        assert find_kin(each) == []

    class Adapted(nn.Linear):
        pass

    adapted = layer()
    adapted.q_proj = Adapted(6, 8)
    assert find_kin(adapted) == []


def test_copies_are_made_where_there_is_room(monkeypatch):
    network = layer(bias=False)
    wanted = 16 * 6 * 4
    model = SimpleNamespace(hf=network, device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 200)
    for free, fits in ((8 * wanted - 100, False), (8 * wanted - 99, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 10**9))
        assert products.has_room(model) == fits
