"""Text under gates: transformers' own tokens where no gate acts, a plain loop's where some do."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import random_ids, tiny, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D
from writing import (
    HEADS,
    NEW,
    each_architecture,
    endless,
    ids_of,
    made,
    plain_loop,
    prompts,
    transformers_ids,
)

import headlab
from headlab import Gates, Head, HeadlabError, Model, mean_reference
from headlab.generation import Choice, generate
from headlab.proofs import check
from headlab.texts import Texts


@pytest.fixture
def model(name: str) -> Model:
    return made(name)


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


def test_a_boost_stays_whole_where_its_head_is_gated():
    """g·z + boost, not g·(z + boost): with the head at 0 the boost is all there is."""
    model = endless()
    boost = torch.zeros(model.n_layers, model.n_heads, model.head_width)
    boost[1, 2] = torch.linspace(-3, 3, model.head_width)
    prompt = prompts()[0]

    def replace(_, args):
        z = args[0].clone()
        z[..., 2 * model.head_width : 3 * model.head_width] = boost[1, 2]
        return (z, *args[1:])

    hook = model.seam.projections[1].register_forward_pre_hook(replace)
    expected = transformers_ids(model, [prompt], together=False)
    hook.remove()
    gates = Gates.ablate(model, [Head(1, 2)])
    options = {"max_new_tokens": NEW, "positions": "all"}
    assert ids_of(generate(model, prompts(), gates, **options))[0][0] != expected[0]
    assert ids_of(generate(model, prompts(), gates, boost=boost, **options))[0][0] == expected[0]


def test_a_boost_is_added_in_float32_to_a_model_of_narrow_numbers():
    model = Model(copy.deepcopy(tiny("llama")).bfloat16(), tiny_tokenizer())
    check(model)
    boost = torch.randn(model.n_layers, model.n_heads, model.head_width)
    seen: list[Tensor] = []
    hook = model.seam.projections[0].register_forward_hook(
        lambda _, args, out: seen.append(args[0])
    )
    for each in (torch.zeros_like(boost), boost):
        generate(model, prompts()[0], boost=each, positions="all", max_new_tokens=1)
    hook.remove()
    clean, pushed = seen  # [1, position, head · width]
    wide = (clean.float() + boost[0].flatten()).bfloat16()
    assert torch.equal(pushed, wide)
    assert not torch.equal(pushed, clean + boost[0].flatten().bfloat16())


# --- text of tokens ---


def spaced() -> Texts:
    """A decoder that drops the space before a text's first word, as Llama's does."""
    words = ["a", "▁a", "▁the", "▁cat", "</s>", "<|im_end|>"]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.add_special_tokens(["</s>", "<|im_end|>"])
    return Texts(PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>"), "spaced")


def test_the_text_of_tokens_keeps_its_first_space_and_has_no_special_tokens():
    texts = spaced()
    assert texts.tokenizer.decode([2, 3]) == "the cat", "alone the space is lost"
    assert texts.continuation([2, 3]) == " the cat"
    assert texts.continuation([2, 5, 3, 4]) == " the cat"
    assert texts.continuation([5]) == texts.continuation([]) == ""
    assert texts.special_tokens == {"</s>": 4, "<|im_end|>": 5}


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
