"""Text in the memory there is: room for keys, batches that fit, steps that repeat no keys."""

from __future__ import annotations

import pytest
import torch
from tiny import random_ids
from transformers.cache_utils import DynamicCache, DynamicLayer
from writing import (
    each_architecture,
    endless,
    ids_of,
    made,
    prompts,
)

from headlab import Gates, HeadlabError, Model
from headlab.generation import Choice, generate, planning
from headlab.generation.batch import Batch
from headlab.generation.keys import RoomyLayer, make_cache
from headlab.generation.planning import Plan


@pytest.fixture
def model(name: str) -> Model:
    return made(name)


@each_architecture
def test_a_cache_with_room_holds_what_transformers_own_holds(model):
    ids = random_ids(3, 6)
    caches = [make_cache(model, room=9), DynamicCache(config=model.hf.config)]
    for cache in caches:
        with torch.no_grad():
            model.hf(input_ids=ids[:, :4], past_key_values=cache, use_cache=True)
            cache.batch_select_indices(torch.tensor([2, 0, 0]))
            model.hf(input_ids=ids[[2, 0, 0], 4:], past_key_values=cache, use_cache=True)
    for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
        assert ours.get_seq_length() == theirs.get_seq_length() == 6


@each_architecture
def test_a_cache_holds_the_room_it_was_given_and_no_more(model):
    cache, ids = make_cache(model, room=9), random_ids(3, 6)
    roomy = [layer for layer in cache.layers if isinstance(layer, RoomyLayer)]
    plain = [type(each) is DynamicLayer for each in DynamicCache(config=model.hf.config).layers]
    assert [isinstance(layer, RoomyLayer) for layer in cache.layers] == plain
    places: list[list[int]] = []
    with torch.no_grad():
        for part in (ids[:, :4], ids[:, 4:5], ids[:, 5:]):
            model.hf(input_ids=part, past_key_values=cache, use_cache=True)
            places.append([layer.keys.data_ptr() for layer in roomy])
            assert {layer.keys.untyped_storage().nbytes() for layer in roomy} <= {
                3 * layer.keys.shape[1] * 9 * layer.keys.shape[3] * 4 for layer in roomy
            }
        assert places[0] == places[1] == places[2], "written into its place, not joined anew"
        cache.batch_select_indices(torch.tensor([0, 2]))
    for layer in roomy:
        _, heads, filled, width = layer.values.shape
        assert filled == 6
        assert layer.values.untyped_storage().nbytes() == 2 * heads * 9 * width * 4


def planned(model: Model, lengths: list[int], n_masks: int = 1, new: int = 10, **options):
    choice = options.pop("choice", Choice())
    given = {"shares_prompts": True, "cuts_logits": True, **options}
    return list(Plan(model, new, choice, **given).batches(lengths, n_masks))


@pytest.mark.parametrize(("choice", "copies"), [(Choice(), 0), (Choice(1.0), 4)])
def test_keys_values_and_logits_of_a_batch_fit_into_the_room(monkeypatch, choice, copies):
    model = endless()  # 3 layers of 2 key heads of 8 numbers of 4 bytes; keys and values
    a_row = 2 * 3 * 2 * 8 * 4 * (6 + 10) + model.vocabulary * (4 + 4 + 8 * copies)
    for room, rows in ((3 * a_row, 3), (3 * a_row - 1, 2), (1, 1)):
        monkeypatch.setattr(planning, "_CPU_ROOM", room)
        found = planned(model, [6] * 6, choice=choice)
        assert [len(prompts) for prompts, _ in found] == [rows] * (6 // rows)
        masks = planned(model, [6], 6, choice=choice)
        assert [len(own) for _, own in masks] == [rows] * (6 // rows)


def test_a_model_that_projects_every_position_reads_fewer_prompts_at_a_time(monkeypatch):
    model = endless()
    monkeypatch.setattr(planning, "_CPU_ROOM", 20 * model.vocabulary * 8)
    assert [len(own) for own, _ in planned(model, [9] * 4, new=1, cuts_logits=False)] == [2, 2]


def test_sampling_from_the_likeliest_takes_more_room_than_greed():
    copies = [each.wide_copies for each in (Choice(), Choice(1.0), Choice(1.0, 0.9))]
    assert copies == sorted(set(copies))


@pytest.mark.parametrize("positions", ["generated", "all"])
def test_a_pass_over_prompts_has_no_more_tokens_than_the_budget(positions):
    model = endless()
    model.budget = 20
    read = []
    hook = model.seam.projections[0].register_forward_pre_hook(
        lambda _, args: read.append(tuple(args[0].shape[:2]))
    )
    gates = Gates.each_head(model)
    found = generate(model, prompts(), gates, max_new_tokens=1, positions=positions)
    hook.remove()
    if positions == "generated":
        assert read == [(2, 9), (2, 6)]
    else:
        assert max(rows * length for rows, length in read) <= 20
        assert sum(rows for rows, _ in read) == gates.n_masks * 4
    model.budget = None
    assert generate(model, prompts(), gates, max_new_tokens=1, positions=positions) == found


def test_a_batch_that_did_not_fit_is_not_tried_again_in_the_same_call(monkeypatch):
    model = endless()
    masks = Gates.each_head(model)  # 12
    expected = ids_of(generate(model, prompts(), masks, max_new_tokens=4))
    original, refused = Batch.__init__, []

    def tight(self, writer, own, picked):
        if len(own) * len(picked) > 3:
            refused.append(len(own) * len(picked))
            raise torch.OutOfMemoryError("too much")
        original(self, writer, own, picked)

    monkeypatch.setattr(Batch, "__init__", tight)
    for at_a_time, sizes in ((None, [48, 24, 12, 6]), (24, [24, 12, 6]), (5, [5])):
        refused.clear()
        found = generate(model, prompts(), masks, max_new_tokens=4, rows_at_a_time=at_a_time)
        assert ids_of(found) == expected
        assert refused == sizes


def test_out_of_memory_is_met_with_smaller_batches(monkeypatch):
    model = endless()
    masks = Gates.each_head(model)
    expected = ids_of(generate(model, prompts(), masks, max_new_tokens=4))
    original = Batch.__init__

    def tight(self, writer, own, picked):
        if len(own) * len(picked) > 3:
            raise torch.OutOfMemoryError("too much")
        original(self, writer, own, picked)

    monkeypatch.setattr(Batch, "__init__", tight)
    assert ids_of(generate(model, prompts(), masks, max_new_tokens=4)) == expected
    assert model.back_offs > 0
    monkeypatch.setattr(Batch, "__init__", original)
    step, failed, seen = Batch.step_on, [], []

    def once(self, steps):
        if self.done == 2 and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("too much")
        step(self, steps)

    monkeypatch.setattr(Batch, "step_on", once)
    again = generate(model, prompts(), masks, max_new_tokens=4, progress=seen.append)
    assert ids_of(again) == expected
    assert sum(seen) == masks.n_masks * 4 * 4

    def never(self, writer, own, picked):
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(Batch, "__init__", never)
    with pytest.raises(HeadlabError, match="even alone"):
        generate(model, prompts(), masks, max_new_tokens=4)


# --- grouped queries under a mask ---


def test_a_step_under_a_mask_repeats_no_keys(monkeypatch):
    from transformers.integrations import sdpa_attention

    model = endless()
    repeated = []
    original = sdpa_attention.repeat_kv

    def repeat(states, times):
        repeated.append(states.shape[2])
        return original(states, times)

    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeat)
    generate(model, prompts(), max_new_tokens=5)
    assert repeated == [9] * 2 * model.n_layers, "only the pass over prompts"
