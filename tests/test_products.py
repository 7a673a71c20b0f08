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
    monkeypatch.setattr(writing.Writer, "_joined", lambda self: joined_products(self.model.hf))
    assert ids_of(generate(model, prompts(), masks, max_new_tokens=NEW)) == plain
    assert calls


def layer(bias: bool = True) -> nn.Module:
    found = nn.Module()
    torch.manual_seed(0)
    for name, size in (("q_proj", 8), ("k_proj", 4), ("v_proj", 4)):
        found.add_module(name, nn.Linear(6, size, bias=bias))
    return found.requires_grad_(False)


NAMES = ("q_proj", "k_proj", "v_proj")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], (NAMES[1], NAMES[0], NAMES[2])])
def test_parts_may_be_asked_in_any_order(order, bias, calls):
    own, x = layer(bias), torch.randn(3, 6)
    expected = {name: own.get_submodule(name)(x) for name in NAMES}
    with joined_products(own):
        for _ in range(2):
            for name in order:
                found = own.get_submodule(name)(x)
                assert torch.allclose(found, expected[name], atol=1e-6)
    assert calls == [16, 16]


@pytest.mark.parametrize("how", ["another", "copied", "changed", "again", "named"])
def test_a_part_that_is_given_something_else_is_asked_itself(how, calls):
    own = layer()
    expected = copy.deepcopy(own)
    x, other = torch.randn(2, 3, 6)
    with joined_products(own):
        own.q_proj(x)
        if how == "changed":
            x += 1
        given = {"another": other, "copied": x.clone()}.get(how, x)
        if how == "again":
            assert torch.allclose(own.q_proj(x), expected.q_proj(x), atol=1e-6)
        found = own.k_proj(input=given) if how == "named" else own.k_proj(given)
        assert torch.allclose(found, expected.k_proj(given), atol=1e-6)
        assert torch.allclose(own.v_proj(x), expected.v_proj(x), atol=1e-6)
        own.q_proj(x), own.k_proj(x), own.v_proj(x)
    assert len(calls) == 1, "and from then on all are"


def test_tensors_without_versions_are_left_to_the_parts(calls):
    own = layer()
    with joined_products(own), torch.inference_mode():
        own.q_proj(torch.randn(3, 6))
    assert not calls


def test_nothing_is_kept_longer_than_to_the_next_product():
    slot = products._Slot()
    first, second = (products.Joined([*layer().children()], slot) for _ in range(2))
    x = torch.randn(3, 6)

    def ask(joined, number):
        return joined.standing_for(number, lambda x: x)(x)

    for number in range(3):
        ask(first, number)
    assert slot.given is None
    assert not slot.parts
    ask(first, 0)
    ask(second, 0)
    assert slot.owner is second
    ask(first, 0)
    assert slot.owner is None, "of both a part was not asked"


def test_a_product_that_fails_leaves_no_answer_to_another(monkeypatch):
    slot = products._Slot()
    joined = products.Joined([*layer().children()], slot)
    a, b = torch.randn(2, 3, 6)
    joined.standing_for(0, lambda x: x)(a)

    def full(*_):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(products, "linear", full)
    joined._apart = False
    with pytest.raises(torch.OutOfMemoryError):
        products.Joined([*layer().children()], slot).standing_for(0, lambda x: x)(b)
    assert slot.given is None


def test_what_is_no_plain_map_is_left_alone():
    assert len(find_kin(layer())) == 1
    hooked, watched, changed, mixed, half, wide, quantised = (layer() for _ in range(7))
    hooked.k_proj.register_forward_hook(lambda *_: None)
    watched.k_proj.register_forward_pre_hook(lambda *_: None)
    changed.v_proj.forward = lambda x: x
    mixed.k_proj = nn.Linear(6, 4, bias=False)
    half.k_proj.half()
    wide.v_proj = nn.Linear(7, 4)

    class Quantised(nn.Parameter):
        pass

    quantised.q_proj.weight = Quantised(torch.randn(8, 6))
    away = layer().to("meta")
    for each in (hooked, watched, changed, mixed, half, wide, quantised, away):
        assert find_kin(each) == []

    class Adapted(nn.Linear):
        pass

    adapted = layer()
    adapted.q_proj = Adapted(6, 8)
    assert find_kin(adapted) == []


def test_without_room_for_copies_products_stay_apart(monkeypatch, calls):
    def full(*_):
        raise torch.OutOfMemoryError("none left")

    own, x = layer(), torch.randn(3, 6)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "cat", full)
        with joined_products(own):
            own.q_proj(x)
    assert not calls


@pytest.mark.parametrize(("beside", "joins"), [(8 * 16 * 6 * 4, False), (8 * 16 * 6 * 4 + 1, True)])
def test_products_are_joined_where_a_gpu_has_room(beside, joins, monkeypatch):
    """Of the memory there is beside the weights."""
    network = layer(bias=False)
    total = SimpleNamespace(total_memory=16 * 6 * 4 + beside)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: total)
    model = SimpleNamespace(hf=network, device=torch.device("cuda"))
    assert products.is_worth_joining(model) == joins
