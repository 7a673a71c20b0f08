"""Text under gates: transformers' own tokens where no gate acts, a plain loop's where some do."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import ARCHITECTURES, random_ids, tiny, tiny_tokenizer
from torch import Tensor
from transformers.pytorch_utils import Conv1D

import headlab
from headlab import Gates, Head, HeadlabError, Model, mean_reference
from headlab.generation import Choice, generate
from headlab.generation.keys import make_cache
from headlab.proofs import check

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
NEW = 10
HEADS = [Head(0, 1), Head(1, 2)]


@pytest.fixture
def model(name: str) -> Model:
    return made(name)


def made(name: str = "llama") -> Model:
    found = Model(tiny(name), tiny_tokenizer(), name=name)
    check(found)
    return found


def endless(name: str = "llama") -> Model:
    """Random weights soon hit on EOS; this one goes on."""
    found = Model(copy.deepcopy(tiny(name)), tiny_tokenizer(), name=name)
    check(found)
    found.hf.generation_config.eos_token_id = None
    found.hf.config.eos_token_id = None
    found.tokenizer.eos_token = None
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


# --- as transformers does it ---


@each_architecture
@pytest.mark.parametrize("gated", [False, True])
def test_all_gates_one_give_transformers_own_tokens(model, gated):
    rows = prompts()
    gates = Gates(torch.ones(2, model.n_layers, model.n_heads)) if gated else None
    together, alone = (transformers_ids(model, rows, together) for together in (True, False))
    assert together == alone
    for at_a_time in (None, 1, 3):
        found = generate(model, rows, gates, max_new_tokens=NEW, rows_at_a_time=at_a_time)
        assert ids_of(found) == [alone] * (2 if gated else 1)


def test_the_real_model_writes_what_transformers_writes():
    from headlab.embedded import embedded_gguf

    if embedded_gguf() is None:
        pytest.skip("the embedded model is not installed")
    model = headlab.load("smollm2")
    rows = [model.ids(text) for text in ("The capital of France is", "Once upon a time, there was")]
    theirs = transformers_ids(model, rows, together=False)
    found = generate(model, rows, max_new_tokens=NEW)
    assert ids_of(found)[0] == theirs
    assert found.texts[0][0].startswith(" Paris")


# --- under gates ---


@each_architecture
def test_masks_on_generated_tokens_equal_a_plain_loop_without_cache(model):
    gates = [Gates.ablate(model, HEADS), Gates.ablate(model, [Head(1, 0)], scale=0.3)]
    rows = prompts()
    found = ids_of(generate(model, rows, Gates.stack(gates), max_new_tokens=NEW))
    clean = ids_of(generate(model, rows, max_new_tokens=NEW))[0]
    for mask, own in enumerate(gates):
        for number, prompt in enumerate(rows):
            assert found[mask][number] == plain_loop(model, prompt, own)
            assert found[mask][number][0] == clean[number][0], "the first is the untouched model's"


@each_architecture
def test_masks_on_all_positions_equal_zeros_in_the_output_projection(model):
    cut = copy.deepcopy(model.hf)
    for head in HEADS:
        projection = cut.get_submodule(model.seam.paths[head.layer])
        columns = slice(head.head * model.head_width, (head.head + 1) * model.head_width)
        with torch.no_grad():
            if isinstance(projection, Conv1D):
                projection.weight[columns] = 0
            else:
                projection.weight[:, columns] = 0
    surgery = Model(cut, tiny_tokenizer())
    rows = prompts()
    gates = Gates.ablate(model, HEADS)
    found = generate(model, rows, gates, positions="all", max_new_tokens=NEW)
    assert ids_of(found)[0] == transformers_ids(surgery, rows, together=False)


def test_the_gates_do_something_and_where_they_act_matters():
    model = endless()
    gates = Gates.ablate(model, [Head(0, n) for n in range(4)])
    texts = {
        how: ids_of(generate(model, prompts(), given, positions=where, max_new_tokens=30))[0]
        for how, given, where in (
            ("none", None, "all"),
            ("generated", gates, "generated"),
            ("all", gates, "all"),
        )
    }
    assert texts["none"] != texts["generated"]
    assert texts["generated"] != texts["all"]


@pytest.mark.parametrize("positions", ["generated", "all"])
def test_many_masks_together_are_each_alone(positions):
    model = endless()
    masks = Gates.each_head(model)
    rows = prompts()
    options = {"positions": positions, "max_new_tokens": 6}
    together = ids_of(generate(model, rows, masks, **options))
    for mask in range(masks.n_masks):
        alone = Gates(masks.values[mask : mask + 1], "mask example layer head position")
        assert ids_of(generate(model, rows, alone, **options))[0] == together[mask]
    for at_a_time in (1, 3, 7):
        assert ids_of(generate(model, rows, masks, **options, rows_at_a_time=at_a_time)) == together


def test_masks_on_generated_tokens_share_one_pass_over_the_prompt(monkeypatch):
    model = endless()
    read = []
    hook = model.seam.projections[0].register_forward_pre_hook(
        lambda _, args: read.append(tuple(args[0].shape[:2]))
    )
    generate(model, prompts(), Gates.each_head(model), max_new_tokens=3)
    hook.remove()
    n = model.n_layers * model.n_heads
    assert read == [(4, 9), (4 * n, 1), (4 * n, 1)]


def test_a_mean_stands_in_for_heads_and_single_prompts_do_not():
    model = endless()
    gates = Gates.ablate(model, HEADS)
    mean = mean_reference(model, prompts())
    zero, found = (
        ids_of(
            generate(model, prompts(), gates, reference=each, max_new_tokens=20, positions="all")
        )
        for each in (headlab.gates.ZERO, mean)
    )
    assert zero != found
    ids = prompts()[0].clone()
    for _ in range(5):
        with model.gated(gates, mean):
            ids = torch.cat([ids, model(ids)[0, -1].argmax()[None]])
    assert found[0][0][:5] == ids[5:].tolist()
    one = headlab.counterfactual_reference(model, prompts()[:1], prompts()[:1])
    with pytest.raises(HeadlabError, match="none for new tokens"):
        generate(model, prompts()[:1], gates, reference=one)


def test_a_boost_is_added_to_the_heads_output():
    model = endless()
    boost = torch.zeros(model.n_layers, model.n_heads, model.head_width)
    boost[1, 2] = torch.linspace(-3, 3, model.head_width)
    prompt = prompts()[0]

    def push(_, args):
        z = args[0].clone()
        z[..., 2 * model.head_width : 3 * model.head_width] += boost[1, 2]
        return (z, *args[1:])

    hook = model.seam.projections[1].register_forward_pre_hook(push)
    expected = transformers_ids(model, [prompt], together=False)
    hook.remove()
    assert expected != transformers_ids(model, [prompt], together=False)
    options = {"max_new_tokens": NEW, "positions": "all"}
    assert ids_of(generate(model, prompts(), boost=boost, **options))[0][0] == expected[0]
    two = torch.stack([torch.zeros_like(boost), boost])
    gates = Gates(torch.ones(2, model.n_layers, model.n_heads))
    plain, pushed = ids_of(generate(model, prompts(), gates, boost=two, **options))
    assert plain == ids_of(generate(model, prompts(), max_new_tokens=NEW))[0]
    assert pushed[0] == expected[0]
    only = ids_of(generate(model, prompts(), boost=two, **options))
    assert only == [plain, pushed]


# --- rows that end ---


def looking(monkeypatch, steps: int) -> None:
    """As a GPU does, which looks only every few tokens."""
    original = headlab.generation.writing._Batch.step_on
    monkeypatch.setattr(
        headlab.generation.writing._Batch, "step_on", lambda self, _: original(self, steps)
    )


def test_a_row_leaves_the_batch_when_it_ends():
    model = made()
    rows = prompts()
    plain = transformers_ids(endless(), rows, together=False)
    model = endless()
    model.hf.generation_config.eos_token_id = plain[1][2]  # the second prompt's third token
    sizes = []
    hook = model.seam.projections[0].register_forward_pre_hook(
        lambda _, args: sizes.append(args[0].shape[0])
    )
    found = generate(model, rows, max_new_tokens=NEW).rows[0]
    hook.remove()
    for written, whole in zip(found, plain, strict=True):
        end = whole.index(plain[1][2]) + 1 if plain[1][2] in whole else NEW
        assert written.ids == whole[:end]
        assert written.end == ("eos" if plain[1][2] in whole else "length")
    assert sizes[0] == 4
    assert sizes[-1] == sum(written.end == "length" for written in found) < 4


def test_a_stop_string_ends_a_row_even_where_tokens_go_beyond_it():
    model = endless()
    text = generate(model, "the cat sat", max_new_tokens=40).texts[0][0]
    for start in (3, 8, 15):
        stop = text[start : start + 3]
        (written,) = generate(model, "the cat sat", max_new_tokens=40, stop=stop).rows[0]
        assert written.end == "stop"
        assert written.text == text[: text.index(stop) + 3]
        assert model.continuation(written.ids).startswith(written.text)
        assert stop not in model.continuation(written.ids[:-1])
    (written,) = generate(model, "the cat sat", max_new_tokens=40, stop=["\x00", text[5:7]]).rows[0]
    assert written.text == text[: text.index(text[5:7]) + 2]
    assert generate(model, "the cat sat", max_new_tokens=4, stop="\x00").rows[0][0].end == "length"


def test_every_token_of_a_list_of_eos_ends_a_row():
    model = endless()
    plain = ids_of(generate(model, prompts(), max_new_tokens=8))[0]
    model.hf.generation_config.eos_token_id = [plain[0][3], plain[2][5]]
    found = generate(model, prompts(), max_new_tokens=8).rows[0]
    assert found[0].end == found[2].end == "eos"
    assert len(found[2].ids) <= 6


def test_a_stop_string_may_be_of_many_bytes(monkeypatch):
    model = endless()
    wanted = "\N{SNOWMAN}\N{COMET}\N{UMBRELLA}" * 4
    written = b"ab" + wanted.encode() + b"cd"
    letters = sorted(set(written))  # a token each
    given = iter([letters.index(byte) for byte in written])

    def text_of(ids):
        return bytes(letters[number] for number in ids).decode("utf-8", "replace")

    monkeypatch.setattr(model, "continuation", text_of)
    monkeypatch.setattr(
        Choice, "choose", lambda self, logits, number: torch.full((len(logits),), next(given))
    )
    (written,) = generate(model, prompts()[0], max_new_tokens=40, stop=wanted).rows[0]
    assert written.end == "stop"
    assert written.text == "ab" + wanted


def test_numbers_that_are_none_are_not_written_as_text():
    model = endless()
    with torch.no_grad():
        model.hf.get_output_embeddings().weight[5, 0] = torch.nan
    with pytest.raises(HeadlabError, match="NaN or infinity"):
        generate(model, prompts(), max_new_tokens=3)


@pytest.mark.parametrize("look", [1, 3, 8, 100])
def test_how_often_one_looks_changes_nothing(monkeypatch, look):
    model = endless()
    rows = prompts()
    text = generate(model, rows, max_new_tokens=20).texts[0]
    stop = [text[0][4:6], text[2][9:12]]
    model.hf.generation_config.eos_token_id = ids_of(generate(model, rows))[0][3][6]
    expected = generate(model, rows, max_new_tokens=20, stop=stop).rows
    assert {written.end for written in expected[0]} >= {"stop", "eos"}
    sampled = {"temperature": 1.5, "seed": 2, "max_new_tokens": 20}
    boost = torch.randn(4, model.n_layers, model.n_heads, model.head_width) * 0.5
    pushed = generate(model, rows, boost=boost, **sampled).rows
    assert {written.end for row in pushed for written in row} == {"eos", "length"}
    looking(monkeypatch, look)
    assert generate(model, rows, max_new_tokens=20, stop=stop).rows == expected
    assert generate(model, rows, boost=boost, **sampled).rows == pushed
    for mask in range(4):  # rows that leave take nothing of others with them
        alone = generate(model, rows, boost=boost[mask], **sampled, rows_at_a_time=1).rows
        assert alone == [pushed[mask]]
    few = generate(model, rows, boost=boost, **sampled, rows_at_a_time=3).rows
    assert few == pushed


@pytest.mark.parametrize("look", [1, 8])
def test_a_row_ends_where_the_model_can_take_no_more(monkeypatch, look):
    looking(monkeypatch, look)
    model = endless("gpt2")
    room = model.max_length
    prompt = random_ids(1, room - 3)[0]
    found = generate(model, [prompt, prompts()[0]], max_new_tokens=12).rows[0]
    assert [len(written.ids) for written in found] == [3, 12]
    with pytest.raises(HeadlabError, match="no room to write"):
        generate(model, random_ids(1, room)[0])


def test_progress_counts_every_token_that_need_not_be_waited_for():
    model = endless()
    model.hf.generation_config.eos_token_id = ids_of(generate(model, prompts()))[0][1][2]
    seen: list[int] = []
    generate(model, prompts(), Gates.each_head(model), max_new_tokens=9, progress=seen.append)
    assert sum(seen) == model.n_layers * model.n_heads * 4 * 9
    assert min(seen) >= 0


# --- sampling ---


def test_sampling_gives_the_same_text_whatever_the_batch():
    model = endless()
    masks = Gates.stack([Gates.ones(model), Gates.ablate(model, HEADS)])
    options = {"max_new_tokens": 15, "temperature": 1.3, "seed": 7}
    together = ids_of(generate(model, prompts(), masks, **options))
    for at_a_time in (1, 3):
        again = generate(model, prompts(), masks, **options, rows_at_a_time=at_a_time)
        assert ids_of(again) == together
    for number, prompt in enumerate(prompts()):
        assert ids_of(generate(model, prompt, masks, **options)) == [
            [row[number]] for row in together
        ]
    assert ids_of(generate(model, prompts()[::-1], masks, **options))[0] == together[0][::-1]
    other = ids_of(generate(model, prompts(), masks, **{**options, "seed": 8}))
    assert other != together
    assert together[0] != ids_of(generate(model, prompts(), max_new_tokens=15))[0]


def test_tokens_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0, 0.5])
    numbers = (torch.arange(10_000) + 0.5) / 10_000
    for temperature in (0.5, 1.0, 2.0):
        drawn = Choice(temperature).choose(logits.expand(10_000, -1), numbers)
        shares = torch.bincount(drawn, minlength=5) / 10_000
        assert torch.allclose(shares, (logits / temperature).softmax(-1), atol=2e-4)


def test_top_p_leaves_the_likeliest_that_have_so_much_together():
    shares = torch.tensor([0.1, 0.5, 0.05, 0.3, 0.05])
    numbers = (torch.arange(10_000) + 0.5) / 10_000
    for top_p, kept in ((0.4, [1]), (0.5, [1]), (0.6, [1, 3]), (0.85, [0, 1, 3])):
        drawn = Choice(1.0, top_p).choose(shares.log().expand(10_000, -1), numbers)
        expected = torch.zeros(5)
        expected[kept] = shares[kept] / shares[kept].sum()
        found = torch.bincount(drawn, minlength=5) / 10_000
        assert torch.allclose(found, expected, atol=2e-4), top_p


def test_random_numbers_are_even_and_belong_to_seed_and_prompt():
    rows = [random_ids(1, 6, seed=n)[0] for n in range(200)]
    numbers = Choice(1.0, seed=3).numbers(rows, 50)
    assert abs(float(numbers.mean()) - 0.5) < 0.02
    assert len(numbers.flatten().unique()) == numbers.numel()
    assert torch.equal(Choice(1.0, seed=3).numbers(rows[5:6], 20)[0], numbers[5, :20])
    assert not torch.equal(Choice(1.0, seed=4).numbers(rows[:1], 50)[0], numbers[0])


# --- memory ---


@each_architecture
def test_a_cache_with_room_holds_what_transformers_own_holds(model):
    from transformers import DynamicCache

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


def test_out_of_memory_is_met_with_smaller_batches(monkeypatch):
    model = endless()
    masks = Gates.each_head(model)
    expected = ids_of(generate(model, prompts(), masks, max_new_tokens=4))
    original = headlab.generation.writing._Batch.__init__

    def tight(self, writer, own, picked):
        if len(own) * len(picked) > 3:
            raise torch.OutOfMemoryError("too much")
        original(self, writer, own, picked)

    monkeypatch.setattr(headlab.generation.writing._Batch, "__init__", tight)
    assert ids_of(generate(model, prompts(), masks, max_new_tokens=4)) == expected
    assert model.back_offs > 0
    monkeypatch.setattr(headlab.generation.writing._Batch, "__init__", original)
    step, failed, seen = headlab.generation.writing._Batch.step_on, [], []

    def once(self, steps):
        if self.done == 2 and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("too much")
        step(self, steps)

    monkeypatch.setattr(headlab.generation.writing._Batch, "step_on", once)
    again = generate(model, prompts(), masks, max_new_tokens=4, progress=seen.append)
    assert ids_of(again) == expected
    assert sum(seen) == masks.n_masks * 4 * 4

    def never(self, writer, own, picked):
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(headlab.generation.writing._Batch, "__init__", never)
    with pytest.raises(HeadlabError, match="even alone"):
        generate(model, prompts(), masks, max_new_tokens=4)


def test_bad_input_is_answered_in_a_sentence():
    model = made()
    ones = torch.ones(model.n_layers, model.n_heads)
    for options, says in (
        ({"positions": "prompt"}, "generated or on all positions"),
        ({"max_new_tokens": 0}, "at least one token"),
        ({"temperature": 0.0}, "temperature is above 0"),
        ({"temperature": float("nan")}, "temperature is above 0"),
        ({"top_p": 0.5}, "needs a temperature"),
        ({"temperature": 1.0, "top_p": 0.0}, "top-p is above 0"),
        ({"stop": ["a", ""]}, "stop string is empty"),
        ({"rows_at_a_time": 0}, "at least one row"),
        ({"gates": torch.ones(3, 3)}, "do not fit"),
        ({"gates": Gates(ones[None].expand(2, -1, -1), "example layer head")}, "between examples"),
        ({"boost": torch.ones(2, 2, 2)}, "a boost has the shape"),
        ({"boost": torch.full((3, 4, 8), torch.nan)}, "finite"),
        (
            {"boost": torch.ones(3, 3, 4, 8), "gates": Gates(ones.expand(2, -1, -1))},
            "3 boosts do not fit 2 masks",
        ),
    ):
        with pytest.raises(HeadlabError, match=says):
            generate(model, prompts(), **{"max_new_tokens": 2, **options})
    with pytest.raises(HeadlabError, match="no prompts"):
        generate(model, [])
    with pytest.raises(HeadlabError, match="the prompt is empty"):
        generate(model, ["a", ""])
    with pytest.raises(HeadlabError, match="stop strings need one"):
        generate(Model(tiny("llama")), prompts(), stop="a")
