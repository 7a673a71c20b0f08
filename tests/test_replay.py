"""Steps of fixed shapes write what other steps write. Only their recording needs a GPU."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tiny import random_ids
from writing import HEADS, NEW, each_architecture, endless, ids_of, looking, made, prompts

from headlab import Gates, mean_reference
from headlab.generation import batch, generate, replay
from headlab.generation.replay import FixedSteps


@pytest.fixture
def fixed(monkeypatch) -> list[int]:
    """The places of all steps of fixed shapes, which are now taken wherever they can be."""
    places: list[int] = []
    step = FixedSteps.step

    def counted(self, ids, where, stop):
        places.append(stop)
        assert stop <= self.width
        return step(self, ids, where, stop)

    monkeypatch.setattr(FixedSteps, "step", counted)
    monkeypatch.setattr(replay, "is_on_one_gpu", lambda model: True)
    monkeypatch.setattr(batch, "WORTH", 1)
    monkeypatch.setattr(replay, "_PLACES", 4)  # so that attention grows on the way
    return places


def masks(model) -> Gates:
    return Gates.stack([Gates.ones(model), Gates.ablate(model, HEADS), Gates.keep(model, HEADS)])


# Sliding windows have caches of their own; the others do not take a mask as it is given.
_ODD = ("mistral", "gemma2", "gemma3", "gptj", "falcon", "falcon-mqa", "falcon-alibi", "bloom")


@each_architecture
def test_steps_of_fixed_shapes_write_the_same(name, fixed, monkeypatch):
    model = endless(name)
    found = ids_of(generate(model, prompts(), masks(model), max_new_tokens=NEW))
    assert len(fixed) == (0 if name in _ODD else NEW - 1)
    plain = generate(model, prompts(), masks(model), max_new_tokens=NEW, replay=False)
    assert found == ids_of(plain)
    assert len({tuple(row) for rows in found for row in rows}) > 4, "masks matter"


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("worth", [1, 6])
def test_rows_leave_between_steps_of_fixed_shapes(steps, worth, fixed, monkeypatch):
    """A row that ends, after which steps may run as ever."""
    looking(monkeypatch, steps)
    monkeypatch.setattr(batch, "WORTH", worth)
    model = endless()
    whole = ids_of(generate(model, prompts(), max_new_tokens=NEW, replay=False))[0]
    model.hf.generation_config.eos_token_id = whole[1][3]
    fixed.clear()
    found = generate(model, prompts(), masks(model), max_new_tokens=NEW)
    assert fixed
    again = generate(model, prompts(), masks(model), max_new_tokens=NEW, replay=False)
    assert ids_of(found) == ids_of(again)
    assert {each.end for row in found.rows for each in row} == {"eos", "length"}


def test_gaps_hidden_tokens_luck_and_boosts_go_with_fixed_shapes(fixed, monkeypatch):
    model = made()
    rows = list(random_ids(2, 8))
    places = [torch.tensor([0, 1, 2, 3, 9, 10, 11, 12]), torch.arange(8)]
    hidden = [torch.zeros(8, dtype=torch.bool), torch.arange(8) == 3]
    boost = torch.randn(3, 4, model.head_width, generator=torch.Generator().manual_seed(0))
    options = {
        "max_new_tokens": NEW,
        "temperature": 1.0,
        "top_p": 0.9,
        "position_ids": places,
        "hidden": hidden,
        "boost": boost,
    }
    found = ids_of(generate(model, rows, masks(model), **options))
    assert fixed
    assert found == ids_of(generate(model, rows, masks(model), **options, replay=False))


@pytest.mark.parametrize("good", [1, 2])
@pytest.mark.parametrize("how", ["error", "kernel", "memory", "numbers"])
def test_steps_that_turn_out_not_to_replay_go_on_as_ever(good, how, fixed, monkeypatch):
    model = endless()
    plain = generate(model, prompts(), masks(model), max_new_tokens=NEW, replay=False)
    expected = ids_of(plain)
    fixed.clear()
    run = FixedSteps._run
    calls = []

    def broken(self):
        calls.append(1)
        if len(calls) < good:
            return run(self)
        if how == "numbers":  # of one row
            logits = run(self)
            return torch.cat([logits[:-1], logits[-1:].flip(-1)])
        raise {
            "error": RuntimeError("this waits for the GPU"),
            "kernel": ValueError("no such kernel"),
            "memory": torch.OutOfMemoryError("none left"),
        }[how]

    monkeypatch.setattr(FixedSteps, "_run", broken)
    found = generate(model, prompts(), masks(model), max_new_tokens=NEW)
    assert ids_of(found) == expected
    assert len(fixed) == good, "and never again"
    assert model.back_offs == (how == "memory")
    assert not model.replayed, "nothing was seen to be right"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("words", [50, 100_000])
def test_steps_are_told_apart_from_rounding(words, dtype):
    random = torch.Generator().manual_seed(0)
    expected = (3 * torch.randn(6, words, generator=random)).to(dtype)
    own = replay.TOLERANCE[dtype] * torch.randn(6, words, generator=random)

    def near(difference) -> bool:
        return bool(replay._are_near((expected + difference).to(dtype), expected))

    assert near(0)
    assert near(2 * own), "rounding, as far as that goes"
    assert near(2 * own + 0.1), "and what is added to all words"
    assert not near(20 * own)
    for fault in (0.5, torch.nan):
        one = torch.zeros(6, 1)
        one[4] = fault
        assert not near(one * torch.randn(6, words, generator=random)), "one row"
    one = torch.zeros(6, words)
    one[2, 7] = 60
    assert not near(one), "one word"
    assert not near(expected.roll(1, 0) - expected), "rows of others"


def test_what_steps_of_a_shape_have_shown_is_not_asked_again(fixed, monkeypatch):
    model = endless()
    as_ever: list[int] = []
    plain = FixedSteps._as_ever

    def counted(self, stop):
        as_ever.append(stop)
        return plain(self, stop)

    monkeypatch.setattr(FixedSteps, "_as_ever", counted)
    monkeypatch.setattr(replay, "_PLACES", 64)

    def asked(rows=slice(None), **options) -> list[list[list[int]]]:
        as_ever.clear()
        options = {"max_new_tokens": NEW, **options}
        return ids_of(generate(model, prompts()[rows], masks(model), **options))

    first = asked()
    assert len(as_ever) == 2, "the step and the first replay"
    assert asked() == first
    assert not as_ever
    assert first == asked(replay=False)
    asked(slice(2))
    assert len(as_ever) == 2, "fewer rows are another shape"
    mean = mean_reference(model, prompts())
    boost = torch.ones(model.n_layers, model.n_heads, model.head_width)
    for other in ({"boost": boost}, {"reference": mean}, {"max_new_tokens": NEW + 1}):
        asked(**other)
        assert len(as_ever) == 2, "and so are other steps"
    as_ever.clear()
    generate(model, [row for row in prompts() for _ in range(3)], max_new_tokens=NEW)
    assert len(as_ever) == 2, "also without gates"
    monkeypatch.setattr(FixedSteps, "_recorded", lambda self: None)
    assert asked() == first, "also where it cannot be recorded this time"
    assert not as_ever
    monkeypatch.setattr(FixedSteps, "_tried", lambda self: 1 / 0)
    assert asked() == first, "or not even be taken"
    assert len(as_ever) == 1
    model.hf.double()
    asked()
    assert len(as_ever) == 1, "and of wider numbers nothing is known"


def test_batches_that_are_done_leave_nothing_behind(fixed, monkeypatch):
    """Keys, values and recordings of one batch must be gone when the next one needs the room."""
    alive: list[weakref.ref] = []
    begin = batch.Batch.__init__

    def counted(self, *args):
        assert not [each for each in alive if each() is not None]
        alive.append(weakref.ref(self))
        begin(self, *args)

    monkeypatch.setattr(batch.Batch, "__init__", counted)
    gc.collect()
    gc.disable()
    try:
        generate(endless(), prompts(), max_new_tokens=NEW, rows_at_a_time=1)
    finally:
        gc.enable()
    assert len(alive) == 4
    assert fixed


def test_few_steps_are_not_worth_a_recording(fixed, monkeypatch):
    monkeypatch.setattr(batch, "WORTH", 12)
    generate(endless(), prompts(), max_new_tokens=12)
    assert not fixed
    generate(endless(), prompts(), max_new_tokens=14)
    assert fixed == [10, 11, 12], "then there are too few left for a wider one"


def test_only_torchs_attention_on_one_gpu_is_recorded(monkeypatch):
    model = made()
    assert not replay.can_replay(model)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert replay.can_replay(model)
    monkeypatch.setattr(model.hf, "hf_device_map", {"a": 0, "b": 1}, raising=False)
    assert not replay.can_replay(model)
    monkeypatch.setattr(model.hf, "hf_device_map", {"": 0}, raising=False)
    assert replay.can_replay(model)
    handle = model.hf.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert not replay.can_replay(model), "replayed, it would be silent"
    handle.remove()
    model.hf(random_ids(1, 4), output_hidden_states=True)  # transformers leaves hooks behind
    assert replay.can_replay(model)
    handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    assert not replay.can_replay(model)
    handle.remove()
    assert replay.can_replay(model)
    model.records = False
    assert not replay.can_replay(model), "it was tried and failed"
    model.records = True
    monkeypatch.setattr(model.hf.config, "_attn_implementation", "eager")
    assert not replay.can_replay(model)
