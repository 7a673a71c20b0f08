"""Prompts whose tokens come with positions of their own, and tokens that nobody may look at."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from tiny import ARCHITECTURES, CONFIGS, STRANGERS, random_ids, tiny
from torch import Tensor

import headlab
from headlab import Arm, Gates, Head, HeadlabError, Model
from headlab.attention import STATISTICS, profile
from headlab.fillers import CONDITIONS, build
from headlab.generation import generate
from headlab.proofs import check

GAP, NEW, ROOM = 55, 20, 256
DEAF = ["falcon-alibi", "bloom", "mpt"]  # ALiBi counts tokens by itself
HEEDING = [name for name in (*ARCHITECTURES, *STRANGERS) if name not in DEAF]
ROWS = ("gap", "hidden")
TOLD = ["llama", "qwen2", "gemma2", "gemma3", "gpt2", "opt"]  # those decoded step by step


@cache
def roomy(name: str, window: int = ROOM, eos: int | None = None) -> Model:
    """A tiny model with room for a gap, whose windows, if any, are as long as all it reads."""
    config = (CONFIGS.get(name) or STRANGERS[name])()
    for field in ("max_position_embeddings", "n_positions"):
        if hasattr(config, field):
            setattr(config, field, ROOM)
    for field in ("sliding_window", "window_size"):
        if getattr(config, field, None):
            setattr(config, field, window)
    config.eos_token_id = eos
    config.tie_word_embeddings = False  # tied and random it would say one word over and over
    torch.manual_seed(0)
    network = hf.AutoModelForCausalLM.from_config(config)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:  # large, and no biases: such a model says many things
                parameter.add_(0.25 * torch.randn(parameter.shape, generator=random))
    model = Model(network.eval(), name=name)
    check(model)
    return model


def gapped(
    n: int, cut: int, seed: int, gap: int = GAP
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A prompt, its positions with a gap, and it with fillers there, hidden: ids, positions of the
    gap; ids, hidden, places of the original tokens among them."""
    ids, fillers = random_ids(1, n, seed)[0], random_ids(1, gap, seed + 100)[0]
    positions = torch.arange(n)
    positions[cut:] += gap
    full = torch.cat([ids[:cut], fillers, ids[cut:]])
    hidden = torch.zeros(n + gap, dtype=torch.bool)
    hidden[cut : cut + gap] = True
    return ids, positions, full, hidden, (~hidden).nonzero().flatten()


def by_hand(model: Model, ids: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
    """Logits [position, vocabulary] of one prompt under a mask written out in full; hidden tokens
    see themselves, lest they see nothing."""
    n = len(ids)
    seen = torch.ones(n, n, dtype=torch.bool).tril() & ~hidden
    seen |= torch.eye(n, dtype=torch.bool)
    mask = torch.zeros(1, 1, n, n).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        return model.hf(
            input_ids=ids[None],
            attention_mask=mask,
            position_ids=positions[None],
            use_cache=False,
        ).logits[0]


def written_by_hand(model: Model, ids: Tensor, positions: Tensor, hidden: Tensor) -> list[int]:
    """Greedy, one whole pass a token, no cache."""
    eos, start = model.hf.config.eos_token_id, len(ids)
    for _ in range(NEW):
        new = by_hand(model, ids, positions, hidden)[-1].argmax()[None]
        ids, positions = torch.cat([ids, new]), torch.cat([positions, positions[-1:] + 1])
        hidden = torch.cat([hidden, torch.tensor([False])])
        if int(new) == eos:
            break
    return ids[start:].tolist()


def ids_of(found) -> list[list[list[int]]]:
    return [[written.ids for written in row] for row in found.rows]


# --- one pass ---


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", HEEDING)
def test_a_gap_equals_hidden_fillers_beside_other_rows(name, padding):
    model = roomy(name)
    ids, positions, full, hidden, original = gapped(9, 4, seed=3)
    other = random_ids(1, 14, seed=5)[0]
    with torch.no_grad():
        jumped = model(model.tokens([ids, other], padding, position_ids=[positions, None]))
        covered = model(model.tokens([full, other], padding, hidden=[hidden, None]))
        plain, beside = model(ids)[0], model(other)[0]

    def own(logits: Tensor, n: int) -> Tensor:
        return logits[:n] if padding == "right" else logits[len(logits) - n :]

    jump = own(jumped[0], 9)
    assert torch.allclose(jump, own(covered[0], len(full))[original], atol=1e-4)
    assert torch.allclose(jump[:4], plain[:4], atol=1e-4), "before the gap nothing changes"
    assert not torch.allclose(jump[4:], plain[4:], atol=1e-2)
    for found in (jumped, covered):
        assert torch.allclose(own(found[1], 14), beside, atol=1e-4)


@pytest.mark.parametrize("name", TOLD)
def test_gaps_and_hidden_tokens_equal_a_mask_written_out(name):
    model = roomy(name)
    ids = random_ids(1, 20, seed=1)[0]
    positions = torch.arange(20) * 3 + (torch.arange(20) > 7) * 11
    hidden = torch.tensor([True, False, True, True] * 5)
    hidden[-1] = False
    expected = by_hand(model, ids, positions, hidden)[~hidden]
    with torch.no_grad():
        for padding in ("right", "left"):
            tokens = model.tokens([ids], padding, position_ids=[positions], hidden=[hidden])
            assert torch.allclose(model(tokens)[0, ~hidden], expected, atol=1e-4)


def test_without_a_mask_a_gap_is_taken_for_two_texts_and_we_always_pass_one():
    model = roomy("llama")
    ids, positions, *_ = gapped(9, 4, seed=3)
    expected = by_hand(model, ids, positions, torch.zeros(9, dtype=torch.bool))
    inputs = model.inputs(model.tokens(ids, position_ids=positions))
    with torch.no_grad():
        assert torch.allclose(model.hf(**inputs).logits[0], expected, atol=1e-4)
        packed = model.hf(**{**inputs, "attention_mask": None}).logits[0]
    assert not torch.allclose(packed, expected, atol=1e-2), "transformers has learned: docs, too"


def test_a_window_counts_tokens_so_that_hidden_ones_fill_it():
    """The one thing in which a gap and hidden fillers differ."""
    model = roomy("gemma3", window=8)
    ids, positions, full, hidden, original = gapped(9, 4, seed=3)
    with torch.no_grad():
        jumped = model(model.tokens(ids, position_ids=positions))[0]
        covered = model(model.tokens(full, hidden=hidden))[0, original]
    assert torch.allclose(jumped[:4], covered[:4], atol=1e-4)
    assert not torch.allclose(jumped[4:], covered[4:], atol=1e-2)


def test_gates_act_on_prompts_with_gaps():
    model = roomy("llama")
    ids, positions, full, hidden, original = gapped(9, 4, seed=3)
    gap = model.tokens([ids, ids], position_ids=[positions, None])
    fill = model.tokens([full, ids], hidden=[hidden, None])
    with torch.no_grad(), model.gated(Gates.each_head(model)):
        jumped, covered = model(gap), model(fill)
    assert torch.allclose(jumped[0::2, :9], covered[0::2][:, original], atol=1e-4)
    assert torch.allclose(jumped[1::2, :9], covered[1::2, :9], atol=1e-4)


# --- decoding ---


def rows_of(how: str) -> dict[str, list[Tensor | None]]:
    """Two prompts with gaps, or with hidden fillers there, between two plain ones."""
    (ids, positions, full, hidden, _), (ids_2, positions_2, full_2, hidden_2, _) = (
        gapped(9, 4, seed=3),
        gapped(6, 2, seed=4, gap=7),
    )
    plain = [random_ids(1, n, seed=n)[0] for n in (14, 5)]
    if how == "gap":
        prompts, key = [plain[0], ids, plain[1], ids_2], "position_ids"
        given = [None, positions, None, positions_2]
    else:
        prompts, key = [plain[0], full, plain[1], full_2], "hidden"
        given = [None, hidden, None, hidden_2]
    return {"prompts": prompts, key: given}


def expected_texts(model: Model) -> list[list[int]]:
    rows = rows_of("gap")
    found = []
    for ids, positions in zip(rows["prompts"], rows["position_ids"], strict=True):
        positions = torch.arange(len(ids)) if positions is None else positions
        nothing = torch.zeros(len(ids), dtype=torch.bool)
        found.append(written_by_hand(model, ids, positions, nothing))
    return found


@pytest.mark.parametrize("name", TOLD)
def test_a_gap_is_kept_through_decoding_and_equals_hidden_fillers(name):
    model = roomy(name)
    expected = expected_texts(model)
    assert all(len(row) == NEW and len(set(row)) > 2 for row in expected), "texts say too little"
    for how in ROWS:
        for at_a_time in (None, 1, 3):
            found = generate(model, **rows_of(how), max_new_tokens=NEW, rows_at_a_time=at_a_time)
            assert ids_of(found) == [expected]
    bare = generate(model, rows_of("gap")["prompts"], max_new_tokens=NEW)
    assert ids_of(bare)[0][0::2] == expected[0::2]
    assert ids_of(bare)[0][1] != expected[1], "the gap did nothing"


@pytest.mark.parametrize("name", [name for name in HEEDING if name not in TOLD])
def test_other_models_write_the_same_after_a_gap_and_after_hidden_fillers(name):
    model = roomy(name)
    gap, hidden = (ids_of(generate(model, **rows_of(how), max_new_tokens=8)) for how in ROWS)
    assert gap == hidden


def test_a_row_alone_needs_no_other_to_keep_its_gap():
    """Without pads there would be no mask."""
    model = roomy("llama")
    ids, positions, full, hidden, _ = gapped(9, 4, seed=3)
    expected = expected_texts(model)[1]
    for found in (
        generate(model, ids, position_ids=positions, max_new_tokens=NEW),
        generate(model, ids, position_ids=[positions], max_new_tokens=NEW),
        generate(model, full, hidden=hidden, max_new_tokens=NEW),
    ):
        assert ids_of(found) == [[expected]]


def test_rows_that_end_leave_the_gaps_of_others_as_they_are():
    endless = expected_texts(roomy("llama"))
    lengths = []
    for eos in range(3, 96):  # one at which rows end at different steps, and one with a gap last
        ends = [row.index(eos) + 1 if eos in row else NEW for row in endless]
        if len(set(ends)) >= 3 and max(ends[1], ends[3]) == max(ends):
            lengths = ends
            break
    assert lengths
    model = roomy("llama", eos=eos)
    expected = [row[:n] for row, n in zip(endless, lengths, strict=True)]
    assert expected_texts(model) == expected
    for how in ROWS:
        assert ids_of(generate(model, **rows_of(how), max_new_tokens=NEW)) == [expected]


@pytest.mark.parametrize("positions", ["generated", "all"])
def test_masks_write_the_same_after_a_gap_and_after_hidden_fillers(positions):
    model = roomy("llama")
    masks = Gates.stack([Gates.ablate(model, [Head(0, n)]) for n in range(4)])
    options = {"positions": positions, "max_new_tokens": NEW}
    gap, hidden = (ids_of(generate(model, **rows_of(how), gates=masks, **options)) for how in ROWS)
    assert gap == hidden
    assert len({tuple(row[1]) for row in gap}) > 1, "the masks did nothing"
    alone = ids_of(generate(model, **rows_of("gap"), gates=masks, **options, rows_at_a_time=1))
    assert gap == alone


def test_samples_and_arm_do_not_depend_on_what_is_beside_a_gap():
    model = roomy("llama")
    for options in ({"temperature": 1.0}, {"arm": Arm(c=0.3, p1=90)}):
        options["max_new_tokens"] = NEW
        together, alone = (
            ids_of(generate(model, **rows_of("gap"), **options, rows_at_a_time=n))
            for n in (None, 1)
        )
        assert together == alone


def test_what_is_written_ends_where_positions_do():
    model = Model(tiny("llama"), name="tiny")  # 64 positions
    model.hf.generation_config.eos_token_id, own = None, model.hf.generation_config.eos_token_id
    try:
        ids = random_ids(1, 6, seed=2)[0]
        positions = torch.tensor([0, 1, 2, 58, 59, 60])
        found = generate(model, [ids, ids], position_ids=[positions, None], max_new_tokens=10)
        assert [(len(row.ids), row.end) for row in found.rows[0]] == [(3, "length"), (10, "length")]
        alone = generate(model, ids, max_new_tokens=10)
        assert alone.rows[0][0].ids == found.rows[0][1].ids
        with pytest.raises(HeadlabError, match="a prompt has 64 positions, which leaves tiny no"):
            generate(model, ids, position_ids=torch.tensor([0, 1, 2, 3, 4, 63]))
    finally:
        model.hf.generation_config.eos_token_id = own


def test_where_a_model_sets_no_limit_a_gap_takes_nothing_from_what_is_written(monkeypatch):
    model = roomy("llama")
    expected = expected_texts(model)
    monkeypatch.setattr(Model, "max_length", property(lambda _: None))
    assert ids_of(generate(model, **rows_of("gap"), max_new_tokens=NEW)) == [expected]


def test_settings_tell_of_gaps_and_hidden_tokens_where_there_are_any():
    model = roomy("llama")
    assert generate(model, **rows_of("gap"), max_new_tokens=1).settings["gap"] == GAP
    assert generate(model, **rows_of("hidden"), max_new_tokens=1).settings["hidden"] == GAP
    plain = generate(model, random_ids(2, 5), max_new_tokens=1).settings
    assert not {"gap", "hidden"} & set(plain)


# --- who heeds them ---


@pytest.mark.parametrize("name", DEAF)
def test_models_that_do_not_heed_positions_say_so(name):
    model = roomy(name)
    assert not model.heeds_positions
    ids, positions, full, hidden, _ = gapped(9, 4, seed=3)
    for call in (generate, lambda *a, **b: profile(*a, [Head(0, 0)], **b)):
        for prompt, options in ((ids, {"position_ids": [positions]}), (full, {"hidden": [hidden]})):
            with pytest.raises(HeadlabError, match=f"{name} does not heed positions"):
                call(model, [prompt], **options)
    # Nothing is asked of them by positions that are as always.
    usual = {"position_ids": [torch.arange(9)], "hidden": [torch.zeros(9, dtype=torch.bool)]}
    found, plain = (generate(model, [ids], max_new_tokens=4, **each) for each in (usual, {}))
    assert ids_of(found) == ids_of(plain)


@pytest.mark.parametrize("name", HEEDING)
def test_all_others_heed_them(name):
    assert Model(tiny(name)).heeds_positions


def test_whether_they_are_heeded_is_not_asked_under_gates():
    model = Model(tiny("llama"))
    ids, positions, *_ = gapped(9, 4, seed=3, gap=5)
    with (
        model.gated(Gates.ablate(model, [Head(0, 0)])),
        pytest.raises(HeadlabError, match="make the tokens before the gated block"),
    ):
        model.tokens(ids, position_ids=positions)
    model.tokens(ids, position_ids=positions)


# --- attention ---


def same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in HEEDING if name != "gpt-oss"])  # has sinks
def test_profiles_of_a_gap_equal_those_of_hidden_fillers(name):
    model = roomy(name)
    heads = [Head(0, 1), Head(1, 3)]
    ids, positions, full, hidden, _ = gapped(9, 4, seed=3)
    other = random_ids(1, 14, seed=5)[0]
    gap = profile(model, [ids, other], heads, position_ids=[positions, None])
    fill = profile(model, [full, other], heads, hidden=[hidden, None])
    alone = profile(model, [ids], heads, position_ids=[positions])
    plain, beside = profile(model, [ids], heads), profile(model, [other], heads)
    for statistic in STATISTICS:
        for kind in ("values", "null"):
            jumped, covered, single, bare, plainly = (
                getattr(each, kind)[statistic] for each in (gap, fill, alone, plain, beside)
            )
            assert same(jumped, covered)
            assert same(jumped[:1, :, :9], single)
            assert same(jumped[1:], plainly)
            if kind == "null" and statistic != "distance":
                assert same(single, bare), "even attention knows no positions"
    assert not same(alone.values["received"], plain.values["received"])
    assert gap.tokens == fill.tokens


def test_distances_are_of_positions():
    model = roomy("llama")
    ids = random_ids(1, 6, seed=2)[0]
    doubled = profile(model, [ids], [Head(0, 0)], position_ids=[torch.arange(6) * 2])
    distance = doubled.values["distance"][0, 0]
    assert distance[1] == distance[3] == distance[5] == 0
    assert (distance[0::2] > 0).all()
    # By d: queries at positions d and above, of 0, 2, 4 ... 10.
    maps = by_hand_weights(model, ids, torch.arange(6) * 2)
    expected = [maps.diagonal(-d // 2).sum() / (6 - d // 2) for d in (0, 2, 4)]
    assert same(distance[0::2], torch.stack(expected))


def by_hand_weights(model: Model, ids: Tensor, positions: Tensor) -> Tensor:
    """What layer 0's head 0 gives, from eager attention."""
    own = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return model.hf(
                input_ids=ids[None],
                attention_mask=torch.ones_like(ids)[None],
                position_ids=positions[None],
                output_attentions=True,
            ).attentions[0][0, 0]
    finally:
        model.hf.set_attn_implementation(own)


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"position_ids": [torch.tensor([1, 2, 3])]}, "positions start at 0 .* prompt 1 are 1, 2"),
        ({"position_ids": [torch.tensor([0, 2, 2])]}, "grow from token to token"),
        ({"position_ids": [torch.tensor([0, 2, 1])]}, "grow from token to token"),
        ({"position_ids": [torch.tensor([0, 1])]}, "a whole number for each of its 3 tokens, not"),
        ({"position_ids": [torch.tensor([0.0, 1.0, 2.0])]}, "not float32 of shape"),
        ({"position_ids": [torch.tensor([False, True, True])]}, "not bool of shape"),
        ({"position_ids": [None, None]}, "position_ids of 2 prompts were given for 1"),
        ({"position_ids": [torch.tensor([0, 1, 256])]}, "reaches position 256; llama has 256"),
        ({"hidden": [torch.tensor([True, True, True])]}, "all tokens of prompt 1 are hidden"),
        ({"hidden": [torch.tensor([0, 1, 0])]}, "true or false for each of its 3 tokens, not int"),
        ({"hidden": torch.tensor([True, False])}, "not bool of shape"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(options, said):
    model, ids = roomy("llama"), torch.tensor([5, 6, 7])
    for call in (generate, lambda *a, **b: profile(*a, [Head(0, 0)], **b)):
        with pytest.raises(HeadlabError, match=said):
            call(model, [ids], **options)


def test_nothing_is_written_after_a_hidden_token():
    with pytest.raises(HeadlabError, match="the last token of prompt 1 is hidden"):
        generate(
            roomy("llama"), torch.tensor([5, 6, 7]), hidden=[torch.tensor([False, False, True])]
        )


# --- the control of the fillers study, on the real model ---


@pytest.mark.embedded
def test_the_gap_control_of_smollm2_equals_its_hidden_fillers():
    from headlab.embedded import embedded_gguf

    if embedded_gguf() is None:
        pytest.skip("the embedded model is not installed")
    model = headlab.load("smollm2")
    questions = ["What is 12 / 4?", "Natalia sold 48 clips. How many are left of 50?"]
    fill, gap, none = (
        [build(model, CONDITIONS[name], question) for question in questions]
        for name in ("mless", "gap", "none")
    )
    options = {"max_new_tokens": NEW}
    jumped = generate(
        model,
        [each.ids for each in (*gap, *none)],
        position_ids=[each.positions for each in (*gap, *none)],
        **options,
    )
    covered = generate(
        model,
        [each.ids for each in (*fill, *none)],
        hidden=[each.inserted for each in (*fill, *none)],
        **options,
    )
    assert ids_of(jumped) == ids_of(covered)
    assert (
        ids_of(jumped)[0][2:] == ids_of(generate(model, [each.ids for each in none], **options))[0]
    )
    with torch.no_grad():
        one = model(model.tokens(gap[0].ids, position_ids=gap[0].positions))[0]
        other = model(model.tokens(fill[0].ids, hidden=fill[0].inserted))[0, ~fill[0].inserted]
        bare = model(none[0].ids)[0]
    assert torch.allclose(one, other, atol=1e-4)
    assert not torch.allclose(one, bare, atol=1e-1)
