"""What heads attend to: equal to eager weights, beside an exact null, in blocks, and by type."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import transformers as hf
from commands import error_of, run
from planted import inducting, planted
from tiny import CONFIGS, lettered, random_ids, save_lettered, tiny, tiny_tokenizer

import headlab
from headlab import Head, Model
from headlab.attention import STATISTICS, find_types, profile, watching
from headlab.attention.maps import attention_maps, inserted_tokens
from headlab.attention.types import repeated
from headlab.errors import HeadlabError

LENGTHS = (9, 14, 30)


def checked(name: str) -> Model:
    model = Model(tiny(name), tiny_tokenizer(), name=name)
    headlab.check(model)
    return model


def prompts() -> list[torch.Tensor]:
    return [random_ids(1, n, seed=n)[0] for n in LENGTHS]


def every_head(model: Model) -> list[Head]:
    return [Head(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]


def eager(name: str) -> hf.PreTrainedModel:
    """The same weights with transformers' plainest attention."""
    own = tiny(name)
    config = copy.deepcopy(own.config)  # it is told its implementation
    plain = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    plain.load_state_dict(own.state_dict())
    return plain.eval()


def by_hand(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """The statistics of one map [query, key], written out."""
    n = len(weights)
    received = [float(weights[j + 1 :, j].mean()) if j + 1 < n else math.nan for j in range(n)]
    return {
        "received": torch.tensor(received),
        "given": 1 - weights.diagonal(),
        "entropy": -(weights * weights.clamp(min=1e-38).log()).sum(-1),
        "first": weights[:, 0],
        "distance": torch.stack([weights.diagonal(-d).mean() for d in range(n)]),
    }


# --- exact ---


@pytest.mark.parametrize("name", CONFIGS)
def test_profiles_equal_those_of_eager_weights(name):
    model = checked(name)
    if name == "falcon-alibi":  # transformers adds the bias twice there when eager
        model = Model(eager(name), tiny_tokenizer(), name=name)
    found = profile(model, prompts(), every_head(model))
    with torch.no_grad():
        for number, ids in enumerate(prompts()):
            maps = eager(name)(ids[None], output_attentions=True).attentions
            for place, head in enumerate(every_head(model)):
                wanted = by_hand(maps[head.layer][0, head.head].float())
                for statistic, values in wanted.items():
                    got = found.values[statistic][number, place, : len(ids)]
                    torch.testing.assert_close(got, values, atol=1e-5, rtol=0, equal_nan=True)
                    assert bool(found.values[statistic][number, place, len(ids) :].isnan().all())


def test_smollm2_equals_its_eager_weights():
    smollm2 = headlab.load("smollm2")
    ids = [smollm2.ids("When Mary and John went to the store, John gave a drink to")]
    heads = [Head(0, 4), Head(18, 6), Head(29, 8)]
    found = profile(smollm2, ids, heads)
    own = smollm2.hf.config._attn_implementation
    smollm2.hf.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            maps = smollm2.hf(ids[0][None], output_attentions=True).attentions
    finally:
        smollm2.hf.set_attn_implementation(own)
    for place, head in enumerate(heads):
        for statistic, values in by_hand(maps[head.layer][0, head.head]).items():
            got = found.values[statistic][0, place]
            torch.testing.assert_close(got, values, atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "falcon"])
def test_padding_and_batches_change_nothing(name):
    model = checked(name)
    heads = every_head(model)[:3]
    together = profile(model, prompts(), heads)
    for number, ids in enumerate(prompts()):
        alone = profile(model, [ids], heads)
        for statistic in STATISTICS:
            for kind in ("values", "null"):
                one, many = (getattr(each, kind)[statistic] for each in (alone, together))
                torch.testing.assert_close(
                    one[0], many[number, :, : len(ids)], atol=1e-6, rtol=0, equal_nan=True
                )


def test_blocks_of_any_size_give_the_same(monkeypatch):
    model = checked("mistral")
    whole = profile(model, prompts(), every_head(model))
    monkeypatch.setattr(watching, "_BLOCK_BYTES", {"cpu": 4 * 3 * 30 * 4 * 3})
    cut = profile(model, prompts(), every_head(model))
    for statistic in STATISTICS:
        torch.testing.assert_close(
            whole.values[statistic], cut.values[statistic], atol=1e-6, rtol=0, equal_nan=True
        )


def test_layers_above_those_asked_for_do_not_run():
    model = checked("llama")
    ran = []
    handles = [
        block.register_forward_hook(lambda *_, layer=layer: ran.append(layer))
        for layer, block in enumerate(model.seam.blocks)
    ]
    profile(model, prompts()[:1], [Head(1, 0)])
    for handle in handles:
        handle.remove()
    assert ran == [0]
    assert model(prompts()[:1]).shape[1] == LENGTHS[0]  # nothing of the watch is left


# --- the null ---


def even(model: Model) -> Model:
    """Queries of zero: every head looks evenly at all it may look at."""
    with torch.no_grad():
        for name, parameter in model.hf.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    return model


@pytest.mark.parametrize(("name", "window"), [("llama", None), ("mistral", 5)])
def test_even_attention_is_exactly_the_null_which_knows_the_window(name, window):
    config = tiny(name).config
    network = hf.AutoModelForCausalLM.from_config(config)
    if window:
        assert config.sliding_window
        config = type(config)(**{**config.to_dict(), "sliding_window": window})
        network = hf.AutoModelForCausalLM.from_config(config)
    model = even(Model(network.eval(), tiny_tokenizer()))
    headlab.check(model)
    n = 17
    found = profile(model, [random_ids(1, n)[0]], [Head(0, 0), Head(1, 1)])
    maps = torch.zeros(n, n)
    for i in range(n):
        first = 0 if window is None else max(0, i - window + 1)
        maps[i, first : i + 1] = 1 / (i + 1 - first)
    for statistic, values in by_hand(maps).items():
        for place in range(2):
            for each in (found.values, found.null):
                torch.testing.assert_close(
                    each[statistic][0, place], values, atol=1e-6, rtol=0, equal_nan=True
                )
    torch.testing.assert_close(
        found.ratio("entropy")[:, 1:], torch.ones(2, n - 1, dtype=torch.float64), atol=1e-5, rtol=0
    )


def test_the_ratio_of_even_attention_is_1_whatever_the_prompts_lengths():
    network = hf.AutoModelForCausalLM.from_config(tiny("llama").config)
    model = even(Model(network.eval(), tiny_tokenizer()))
    headlab.check(model)
    found = profile(model, [random_ids(1, n)[0] for n in (8, 15, 30, 60)], [Head(0, 0)])
    for end in found.ratio_band("received"):
        torch.testing.assert_close(
            end[:, :7], torch.ones(1, 7, dtype=torch.float64), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("name", ["gptj", "llama", "gemma2"])
def test_the_null_is_causal_in_narrow_dtypes_too(name):
    model = Model(copy.deepcopy(tiny(name)).to(torch.float16), tiny_tokenizer(), name=name)
    headlab.check(model)
    found = profile(model, [random_ids(1, 12)[0]], [Head(0, 0)])
    wanted = torch.tensor([1 / (i + 1) for i in range(12)])
    torch.testing.assert_close(found.null["first"][0, 0][:4], wanted[:4], atol=1e-6, rtol=0)


def test_the_null_falls_with_more_tokens_alone():
    model = checked("llama")
    short, long = (profile(model, [random_ids(1, n)[0]], [Head(0, 0)]) for n in (20, 40))
    assert float(long.null["received"][0, 0, 5]) < 0.75 * float(short.null["received"][0, 0, 5])


# --- inserted tokens ---


def test_inserted_tokens_are_no_queries_and_no_keys_and_the_rest_closes_up():
    model = checked("llama")
    ids = random_ids(1, 12)[0]
    inserted = torch.zeros(12, dtype=torch.bool)
    inserted[4:7] = True
    found = profile(model, [ids], [Head(1, 2)], [inserted])
    (weights,) = attention_maps(model, ids, [Head(1, 2)])
    own = [place for place in range(12) if not 4 <= place < 7]
    for place, j in enumerate(own):
        later = [i for i in own if i > j]
        wanted = weights[later, j].mean() if later else torch.tensor(math.nan)
        torch.testing.assert_close(
            found.values["received"][0, 0, place], wanted, atol=1e-6, rtol=0, equal_nan=True
        )
        assert float(found.values["first"][0, 0, place]) == pytest.approx(float(weights[j, 0]))
    assert len(found.tokens[0]) == 9
    assert found.inserted == 3


def test_inserted_text_is_found_among_the_tokens():
    model = lettered()
    text = "Think. / / / What is it?"
    marks = inserted_tokens(model, text, "/ / /")
    ids = model.ids(text)
    assert len(marks) == len(ids)
    told = model.tokenizer.decode(ids[marks])
    assert told.strip() == "/ / /"
    assert torch.equal(marks, inserted_tokens(model, text, [7, 12]))
    assert torch.equal(marks, inserted_tokens(model, text, " / / / "))
    for wrong in ("none of it", [3, 2], [0, 99], "", None, [1, 1e400], "/"):
        with pytest.raises(HeadlabError):
            inserted_tokens(model, text, wrong)
    with pytest.raises(HeadlabError, match="holds both inserted text and 't' of the prompt"):
        inserted_tokens(model, "in the answer", "he")


# --- types ---


def test_the_head_that_copies_the_token_before_is_a_previous_token_head():
    found = find_types(planted(), n=4, length=5)
    (head, score), *_ = found.top("previous-token")
    assert (head, score > 0.9) == (Head(0, 1), True)
    even = sum(1 / (i + 1) for i in range(5, 10)) / 5
    assert found.null["previous-token"].tolist() == pytest.approx([even, even], abs=1e-6)


def test_a_planted_induction_head_is_found_and_breaks_with_its_partner():
    model = inducting()
    found = find_types(model, n=4, length=6)
    (head, score), (_, next_best), *_ = found.top("induction", 2)
    assert (head, score > 0.9, next_best < 0.4) == (Head(1, 2), True, True)
    assert found.top("previous-token", 1)[0][0] == Head(0, 1)
    ids = repeated(model, 2, 6, seed=3)
    assert torch.equal(ids[:, :6], ids[:, 6:])
    with torch.no_grad():  # it does what its name says: the next token comes out
        logits = model(list(ids))
    assert torch.equal(logits[:, 7:-1].argmax(-1), ids[:, 8:])


def test_scores_are_the_mean_weight_where_a_type_looks():
    model = checked("llama")
    found = find_types(model, n=3, length=8, seed=2)
    ids = repeated(model, 3, 8, seed=2)
    start = ids.shape[1] - 16
    for number in range(3):
        (weights,) = attention_maps(model, ids[number], [Head(2, 3)])
        for name, back in (("previous-token", 1), ("induction", 7), ("duplicate-token", 8)):
            wanted = [float(weights[i, i - back]) for i in range(start + 8, start + 16)]
            got = float(found.scores[name][2, 3, number])
            assert got == pytest.approx(sum(wanted) / 8, abs=1e-6)
        wanted = [float(weights[i, 0]) for i in range(start + 8, start + 16)]
        assert float(found.scores["first-token"][2, 3, number]) == pytest.approx(sum(wanted) / 8)


# --- the command ---


def test_the_command_leaves_figures_table_and_page(tmp_path):
    save_lettered(tmp_path / "m")
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "one two three / / four"}\n'
        '{"prompt": "five / / six seven", "inserted": "/ /"}\n'
    )
    told = run(
        *("attention", str(tmp_path / "m"), "--data", str(tmp_path / "p.jsonl")),
        *("--heads", "L0H1,L1H0", "--rows", "original", "--out", str(tmp_path / "o")),
    )
    assert told.exit_code == 0, told.output
    for name in ("attention.png", "attention.pdf", "attention.csv", "attention.html"):
        assert (tmp_path / "o" / name).stat().st_size > 100
    head = (tmp_path / "o" / "attention.csv").read_text().splitlines()[0]
    assert head == (
        "head,statistic,position,mean,low,high,uniform,ratio,ratio_low,ratio_high,prompts"
    )


def test_the_command_names_types(tmp_path):
    save_lettered(tmp_path / "m")
    told = run(
        *("attention", str(tmp_path / "m"), "--types", "--length", "6", "--sequences", "2"),
        *("--out", str(tmp_path / "o")),
    )
    assert told.exit_code == 0, told.output
    for word in ("previous-token", "induction", "duplicate-token", "first-token"):
        assert word in told.output
    assert (tmp_path / "o" / "types.csv").read_text().count("\n") == 1 + 12


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--heads", "L0H1"], "give --prompt"),
        (["--prompt", "a b"], "give --heads"),
        (["--types", "--heads", "L0H1"], "give --heads to look at some, or --types"),
        (["--types", "--prompt", "a"], "makes its own sequences"),
        (["--prompt", "a b", "--heads", "L9H0"], "there is no L9H0"),
        (["--prompt", "a b", "--heads", "L0H1", "--rows", "some"], "all or original"),
        (["--prompt", "a b", "--heads", "L0H1", "--rows", "original"], 'needs "inserted"'),
        (["--prompt", "a", "--heads", "L0H1"], "fewer than two tokens"),
        (["--types", "--length", "4000"], "279 ordinary tokens"),
        (["--types", "--length", "2"], "three tokens at least"),
        (["--types", "--n", "3"], "are for --heads"),
        (["--prompt", "a b", "--heads", "L0H1", "--length", "9"], "are for --types"),
        (["--prompt", "a b", "--heads", "L0H1", "--n", "9"], "--n is for --data"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path, options, says):
    save_lettered(tmp_path / "m")
    told = error_of(run("attention", str(tmp_path / "m"), *options, "--out", str(tmp_path / "o")))
    assert says in told
