"""Text under gates: transformers' own tokens where no gate acts, a plain loop's where some do."""

from __future__ import annotations

import copy

import pytest
import torch
from arms import transcribed_rows
from tiny import ARCHITECTURES, random_ids, tiny, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AttentionInterface, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.pytorch_utils import Conv1D

import headlab
from headlab import Arm, Gates, Head, HeadlabError, Model, mean_reference
from headlab.activations import find_activation
from headlab.generation import Choice, generate, planning
from headlab.generation import batch as batches
from headlab.generation.attention import grouped_queries
from headlab.generation.batch import Batch
from headlab.generation.keys import RoomyLayer, make_cache
from headlab.generation.planning import Plan
from headlab.proofs import check
from headlab.texts import Texts

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


# --- rows that end ---


def looking(monkeypatch, steps: int) -> None:
    """As a GPU does, which looks only every few tokens."""
    original = Batch.step_on
    monkeypatch.setattr(Batch, "step_on", lambda self, _: original(self, steps))


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


def given_tokens(monkeypatch, *tokens: int) -> None:
    """Every row writes these."""
    given = iter(tokens)
    monkeypatch.setattr(
        Choice, "choose", lambda self, logits, number: torch.full((len(logits),), next(given))
    )


@pytest.mark.parametrize("is_eos", [False, True])
def test_a_special_token_named_as_stop_ends_a_row_and_is_no_text(monkeypatch, is_eos):
    model = endless()
    special = model.tokenizer.convert_tokens_to_ids("</s>")
    words = model.ids("the cat").tolist()
    if is_eos:
        model.hf.generation_config.eos_token_id = special
    given_tokens(monkeypatch, *words, special, *words)
    (written,) = generate(model, prompts()[0], stop=["]", "</s>"], max_new_tokens=9).rows[0]
    assert (written.text, written.end) == ("the cat", "stop")
    assert written.ids == [*words, special]
    given_tokens(monkeypatch, *words, special, *words)
    if not is_eos:  # not named, it is a token as any other
        (written,) = generate(model, prompts()[0], max_new_tokens=2 * len(words) + 1).rows[0]
        assert (written.text, written.end) == ("the catthe cat", "length")


@pytest.mark.parametrize("where", ["nowhere", "config", "generation config"])
def test_a_row_ends_at_the_eos_that_transformers_ends_at(where):
    model = endless()
    rows = [random_ids(1, 6, seed=seed)[0] for seed in range(20)]
    written = zip(rows, transformers_ids(model, rows, together=False), strict=True)
    known = len(model.tokenizer)  # the model writes tokens beyond
    prompt, token = next((row, ids[1]) for row, ids in written if ids[0] != ids[1] < known)
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.eos_token = model.tokenizer.convert_ids_to_tokens(token)
    assert model.tokenizer.eos_token_id == token
    if where == "config":
        model.hf.config.eos_token_id = token
    if where == "generation config":
        model.hf.generation_config.eos_token_id = token
    theirs = transformers_ids(model, [prompt], together=False)[0]
    assert ids_of(generate(model, prompt, max_new_tokens=NEW)) == [[theirs]]
    assert len(theirs) == (2 if where == "generation config" else NEW)


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


def ending_first(model: Model, rows: list[Tensor]) -> list[list[int]]:
    """Make the first row, and no other, end at its second token; what all would write."""
    plain = ids_of(generate(model, rows, max_new_tokens=NEW))[0]
    assert not any(plain[0][1] in row for row in plain[1:])
    model.hf.generation_config.eos_token_id = plain[0][1]
    return [plain[0][:2], *plain[1:]]


def test_rows_are_copied_only_when_enough_have_left(monkeypatch):
    model = endless()
    rows = [random_ids(1, 6, seed=seed)[0] for seed in range(8)]
    expected = ending_first(model, rows)
    sizes: list[int] = []
    hook = model.seam.projections[0].register_forward_pre_hook(
        lambda _, args: sizes.append(args[0].shape[0])
    )
    for share, left in ((0.25, 8), (1 / 8, 7)):
        monkeypatch.setattr(batches, "_GONE", share)
        sizes.clear()
        assert ids_of(generate(model, rows, max_new_tokens=NEW))[0] == expected
        assert sizes == [8] * 2 + [left] * (NEW - 2)
    hook.remove()


def test_what_an_ended_row_would_go_on_to_is_ignored(monkeypatch):
    model = endless()
    rows = [random_ids(1, 6, seed=seed)[0] for seed in range(8)]
    expected = ending_first(model, rows)
    original = Batch._pass

    def spoilt(self, *args):
        logits = original(self, *args)
        if self.done >= 2:
            logits[self.rows.index((0, 0))] = torch.nan
        return logits

    monkeypatch.setattr(batches, "_GONE", 0.25)
    monkeypatch.setattr(Batch, "_pass", spoilt)
    assert ids_of(generate(model, rows, max_new_tokens=NEW))[0] == expected


@pytest.mark.parametrize("look", [1, 8])
@pytest.mark.parametrize("name", ["gpt2", "opt", "bloom"])
def test_an_ended_row_does_not_run_past_the_models_positions(monkeypatch, look, name):
    looking(monkeypatch, look)
    monkeypatch.setattr(batches, "_GONE", 0.5)
    model = endless(name)
    monkeypatch.setattr(Model, "max_length", 64)  # BLOOM has no limit of its own
    rows = [random_ids(1, 62)[0], *(random_ids(1, 6, seed=seed)[0] for seed in range(7))]
    found = generate(model, rows, max_new_tokens=12).rows[0]
    assert [len(written.ids) for written in found] == [2, *[12] * 7]
    for row, written in zip(rows[1:], found[1:], strict=True):
        assert generate(model, row, max_new_tokens=12).rows[0] == [written]
    model.hf.generation_config.eos_token_id = found[0].ids[0]  # it ends with a position left
    for row, written in zip(rows, generate(model, rows, max_new_tokens=12).rows[0], strict=True):
        assert generate(model, row, max_new_tokens=12).rows[0] == [written]


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


def test_grouped_queries_attend_as_transformers_own():
    own = AttentionInterface()["sdpa"]
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    key, value = numbers(5, 2, 11, 8), numbers(5, 2, 11, 8)
    padding = torch.arange(11) >= torch.tensor([0, 3, 10, 1, 5])[:, None]
    shared = padding[:, None, None]  # [row, 1, 1, position]
    for length, mask in (
        (1, shared),
        (1, shared.float().log()),
        (1, shared.expand(-1, 6, -1, -1)),
        (1, None),
        (2, shared.expand(-1, -1, 2, -1)),
    ):
        query = numbers(5, 6, length, 8)
        expected, _ = own(module, query, key, value, mask, scaling=0.4)
        with grouped_queries():
            found, _ = AttentionInterface()["sdpa"](module, query, key, value, mask, scaling=0.4)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-6)
    assert AttentionInterface()["sdpa"] is own
    with pytest.raises(KeyError), grouped_queries():
        raise KeyError
    assert AttentionInterface()["sdpa"] is own


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


# --- ARM ---

ARM = Arm(c=0.5, p1=99.5)
MOE = {"mixtral", "qwen3-moe"}


def armed_loop(model: Model, prompt: Tensor, new: int, arm: Arm, gates: Gates | None) -> list[int]:
    """Greedy, one full pass a token, no cache; ARM written out with loops."""
    gates = gates or Gates.ones(model)
    values, ids = gates.values[0, 0, :, :, 0], prompt.clone()
    activation = find_activation(model)

    def written_out(_, args, output):
        rows = transcribed_rows(
            output.reshape(len(ids), -1), prompt.tolist(), arm.c, arm.p1, arm.seed
        )
        return rows.view(output.shape)

    hook = activation.module.register_forward_hook(written_out)
    try:
        for _ in range(new):
            at = torch.ones(*values.shape, len(ids))
            at[:, :, len(prompt) :] = values[..., None]
            with model.gated(Gates(at, "layer head position")):
                ids = torch.cat([ids, model(ids)[0, -1].argmax()[None]])
    finally:
        hook.remove()
    return ids[len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma2", "falcon"])
def test_arm_writes_what_its_formula_written_out_writes(name):
    model = endless(name)
    gates = Gates.stack([Gates.ones(model), Gates.ablate(model, HEADS)])
    found = ids_of(generate(model, prompts(), gates, arm=ARM, max_new_tokens=6))
    for mask, own in enumerate((None, Gates.ablate(model, HEADS))):
        for number, prompt in enumerate(prompts()):
            assert found[mask][number] == armed_loop(model, prompt, 6, ARM, own)
    clean = ids_of(generate(model, prompts(), gates, max_new_tokens=6))
    # More than a quarter of what OPT's ReLU gives is 0, which has no sign to be drawn anew with.
    assert (found != clean) == (name != "opt")
    assert found[0] != found[1]


@pytest.mark.parametrize("positions", ["generated", "all"])
def test_arm_gives_the_same_text_in_any_batch_and_another_for_another_seed(positions):
    model = endless()
    masks = Gates.stack([Gates.ones(model), Gates.ablate(model, HEADS)])
    options = {"positions": positions, "max_new_tokens": 20}
    together = ids_of(generate(model, prompts(), masks, arm=ARM, **options))
    for at_a_time in (1, 3):
        found = generate(model, prompts(), masks, arm=ARM, rows_at_a_time=at_a_time, **options)
        assert ids_of(found) == together
    for number, prompt in enumerate(prompts()):
        alone = ids_of(generate(model, prompt, arm=ARM, **options))
        assert alone[0][0] == together[0][number]
    other = Arm(ARM.c, ARM.p1, seed=1)
    assert ids_of(generate(model, prompts(), masks, arm=other, **options)) != together
    luck = {"temperature": 1.5, "seed": 3}
    sampled = ids_of(generate(model, prompts(), arm=ARM, **luck, **options))
    apart = [ids_of(generate(model, each, arm=ARM, **luck, **options))[0][0] for each in prompts()]
    assert sampled[0] == apart


def test_rows_that_leave_a_batch_take_their_luck_along(monkeypatch):
    model = endless()
    plain = ids_of(generate(model, prompts(), arm=ARM, max_new_tokens=20))[0]
    model.hf.generation_config.eos_token_id = plain[1][3]
    monkeypatch.setattr(batches, "_GONE", 0.01)
    for written, whole in zip(
        generate(model, prompts(), arm=ARM, max_new_tokens=20).rows[0], plain, strict=True
    ):
        end = whole.index(plain[1][3]) + 1 if plain[1][3] in whole else 20
        assert written.ids == whole[:end]


def test_masks_under_arm_share_one_pass_over_the_prompt():
    model = endless()
    read = []
    hook = model.seam.projections[0].register_forward_pre_hook(
        lambda _, args: read.append(tuple(args[0].shape[:2]))
    )
    generate(model, prompts(), Gates.each_head(model), max_new_tokens=2, arm=ARM)
    hook.remove()
    n = model.n_layers * model.n_heads
    assert read[-2:] == [(4, 9), (4 * n, 1)]


def test_without_arm_nothing_hangs_on_the_model_and_afterwards_neither():
    model = endless()
    activation = find_activation(model)
    before = generate(model, prompts(), max_new_tokens=8)
    found = generate(model, prompts(), max_new_tokens=8, arm=ARM)
    assert not activation.module._forward_hooks
    assert not activation.block._forward_pre_hooks
    assert generate(model, prompts(), max_new_tokens=8) == before
    assert "arm" not in before.settings
    assert found.settings["arm"] == {"c": 0.5, "p1": 99.5, "seed": 0}


def test_arm_where_there_is_no_single_mlp_is_refused():
    for name in MOE:
        with pytest.raises(HeadlabError, match="mixture of experts"):
            generate(made(name), prompts(), arm=ARM)
    with pytest.raises(HeadlabError, match="arm is an Arm"):
        generate(made(), prompts(), arm="c=0.1,p1=95")


def test_the_real_model_writes_other_text_under_arm():
    from headlab.embedded import embedded_gguf

    if embedded_gguf() is None:
        pytest.skip("the embedded model is not installed")
    model = headlab.load("smollm2")
    texts = ["The capital of France is", "Once upon a time, there was a small"]
    options = {"max_new_tokens": 24, "arm": Arm(0.32, 99.5)}
    found = generate(model, texts, **options).texts[0]
    assert found != generate(model, texts, max_new_tokens=24).texts[0]
    assert [generate(model, each, **options).texts[0][0] for each in texts] == found
