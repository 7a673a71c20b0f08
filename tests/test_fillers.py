"""Filler conditions: exactly so many tokens, whatever the tokenizer; the original ones stay."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from commands import error_of, run
from tiny import lettered, save_lettered, tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from headlab import HeadlabError, Model
from headlab.activations import Arm
from headlab.fillers import CONDITIONS, INSTRUCTION, Condition, build, parse_conditions
from headlab.fillers.building import find_token
from headlab.texts import Texts

QUESTIONS = ["Natalia sold 48 clips.", "What is 12 / 4?", "// how many slashes?", "he said 7"]
POSITIONS = ("before", "between", "end", "random")
SLASHES = ["and / or", "http://a.b//c", "// // //", "./run ./run", "he / she said //", "12 / 4 = 3"]
CORPUS = [INSTRUCTION, *QUESTIONS, *SLASHES, "the cat and the man said he is here"] * 30


def wrapped(core: Tokenizer, name: str, **special: str) -> Texts:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **special)
    tokenizer.chat_template = (
        "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}"
    )
    return Texts(tokenizer, name)


@cache
def digits() -> Texts:
    """Byte-level BPE that splits digits, with a BOS of its own."""
    core = Tokenizer(models.BPE())
    split = [pre_tokenizers.Digits(individual_digits=True)]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<u>", "</u>", "<a>", "stop"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return wrapped(core, "digits", bos_token="<s>")


@cache
def slashed() -> Texts:
    """BPE that merges "//" and "./", across what others keep apart."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<u>", "</u>", "<a>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=4,
        show_progress=False,
    )
    core.train_from_iterator(["//", "./", " / / /", "he he", "said. he"] * 30, trainer)
    return wrapped(core, "slashed")


@cache
def pieced() -> Texts:
    """SentencePiece's way: words begin with ▁, unigrams."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=160,
        special_tokens=["<unk>", "<s>", "<u>", "</u>", "<a>"],
        unk_token="<unk>",
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return wrapped(core, "pieced", bos_token="<s>", unk_token="<unk>")


@cache
def smollm2() -> Texts:
    from headlab.embedded import embedded_gguf
    from headlab.loading import load_texts

    if embedded_gguf() is None:
        pytest.skip("the embedded model is not installed")
    return load_texts("smollm2")


TOKENIZERS = {"smollm2": smollm2, "digits": digits, "slashed": slashed, "pieced": pieced}
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


@pytest.fixture
def texts(name: str) -> Texts:
    return TOKENIZERS[name]()


# --- the count, and the original tokens ---


@each_tokenizer
@pytest.mark.parametrize("template", ["raw", "chat"])
def test_every_condition_inserts_its_count_and_leaves_the_original_tokens(texts, template):
    for question in QUESTIONS:
        content = f"{INSTRUCTION} {question}"
        plain = texts.ids(content) if template == "raw" else texts.chat(content)
        for name, condition in CONDITIONS.items():
            for position in POSITIONS if name != "gap" else ("between",):
                own = {"name": name, "like": name, "position": position, "template": template}
                (made,) = parse_conditions([own])
                built = build(texts, made, question)
                expected = 55 if name in ("mless", "mful", "random") else 0
                assert int(built.inserted.sum()) == expected == len(built.ids) - len(plain)
                assert torch.equal(built.original, plain)
                assert len(built.ids) == len(built.inserted) == len(built.positions)
                assert len(built.pieces) == len(built.question) == len(built.ids)
                assert not (built.question & built.inserted).any()
                assert condition.inserts == expected


@each_tokenizer
def test_a_filler_stands_where_it_is_said_to(texts):
    question = "Natalia sold 48 clips."
    before = len(texts.ids(INSTRUCTION))
    n, bos = len(texts.ids(f"{INSTRUCTION} {question}")), len(texts.prefix)
    for position, place in (("before", bos), ("between", before), ("end", n)):
        condition = Condition("own", "/", 7, position)
        inserted = build(texts, condition, question).inserted.nonzero().flatten().tolist()
        assert inserted == list(range(place, place + 7))
    built = build(texts, Condition("own", "/", 7, "between"), question)
    text = "".join(texts.token_texts(built.ids[built.question])).strip()
    assert text == question
    assert len(set(built.ids[built.inserted].tolist())) == 1
    assert {piece.strip() for piece in built.pieces[before : before + 7]} == {"/"}


def test_a_slash_after_a_full_stop_does_not_fuse():
    for texts in (smollm2(), slashed()):
        stop, fused = texts.ids("said."), texts.ids("said./")
        assert fused[: len(stop)].tolist() != stop.tolist(), "in text it does"
        built = build(texts, Condition("own", "/", 3), "What is it?", "He said.")
        before = texts.ids("He said.").tolist()
        assert built.ids[: len(before)].tolist() == before
        assert built.inserted[len(before) : len(before) + 3].all()
        assert built.pieces[len(before) - 1].endswith(".")


def test_slashes_that_merge_in_text_stay_apart():
    texts = slashed()
    assert len(texts.ids("//")) == 1
    built = build(texts, Condition("own", "/", 4), "What is it?")
    assert [piece.strip() for piece in built.pieces if "/" in piece] == ["/"] * 4


def test_the_spaced_token_is_taken_where_there_is_one():
    texts = smollm2()
    assert texts.token_texts([find_token(texts, "/"), find_token(texts, "he")]) == [" /", " he"]
    assert pieced().token_texts([find_token(pieced(), "he")]) == [" he"]
    letters = lettered()
    assert len(letters.ids("a /")) == 3, "there is none"
    assert letters.token_texts([find_token(letters, "/")]) == ["/"]


@each_tokenizer
def test_a_filler_of_several_tokens_is_refused(texts):
    with pytest.raises(HeadlabError, match=f"{texts.name} has no single token for the filler"):
        build(texts, Condition("own", "incomprehensibly 77", 5), "What?")


def test_an_unknown_word_is_no_filler_though_it_is_one_token():
    unknown = pieced().tokenizer.unk_token_id
    assert pieced().ids("Ω").tolist().count(unknown) == 1
    with pytest.raises(HeadlabError, match="no single token"):
        build(pieced(), Condition("own", "Ω", 5), "What is it?")


def test_token_ids_are_taken_as_they_are():
    texts = digits()
    built = build(texts, Condition("own", (40, 41, 42), 8), "What is it?")
    assert built.ids[built.inserted].tolist() == [40, 41, 42, 40, 41, 42, 40, 41]
    with pytest.raises(HeadlabError, match="run from 0 to"):
        build(texts, Condition("own", (10**6,), 8), "What is it?")


# --- chance ---


@each_tokenizer
def test_random_tokens_are_ordinary_and_the_prompts_own(texts):
    special = set(texts.special_tokens.values())

    def drawn(question: str, seed: int = 0) -> list[int]:
        built = build(texts, Condition("r", count=55, kind="random-tokens", seed=seed), question)
        return built.ids[built.inserted].tolist()

    first = drawn("What is 2 + 3?")
    assert first == drawn("What is 2 + 3?")
    assert first != drawn("What is 2 + 4?")
    assert first != drawn("What is 2 + 3?", seed=1)
    assert len(set(first)) > 5
    for number, piece in zip(first, texts.token_texts(first), strict=True):
        assert number not in special
        assert piece.strip().isalpha()


def test_a_special_token_is_not_ordinary_though_it_is_of_letters():
    special = digits().special_tokens["stop"]
    for seed in range(30):
        condition = Condition("r", count=55, kind="random-tokens", seed=seed)
        assert special not in build(digits(), condition, "What?").ids


def test_random_places_are_seeded_and_inside_the_prompt():
    texts = digits()

    def places(seed: int) -> list[bool]:
        return build(texts, Condition("r", "/", 9, "random", seed=seed), "What?").inserted.tolist()

    assert places(0) == places(0) != places(1)
    for seed in range(20):
        at = places(seed)
        assert sum(at) == 9
        assert not any(at[:2]), "BOS and the first token come first"
        assert not at[-1]


# --- the gap ---


def test_only_a_gap_moves_positions():
    texts = digits()
    built = {name: build(texts, each, "What?") for name, each in CONDITIONS.items()}
    for name, each in built.items():
        expected = torch.arange(len(each.ids))
        if name == "gap":
            expected[len(texts.ids(INSTRUCTION)) :] += 55
        assert torch.equal(each.positions, expected)
        assert each.has_gap == (name == "gap")


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
def test_a_gap_equals_hiding_the_filler_with_running_positions(architecture):
    """What tokens after the filler see, were it not there but its positions."""
    model = Model(tiny(architecture), lettered().tokenizer, name=architecture)
    model.tokenizer = None  # ids alone: the tiny vocabulary is another
    texts = lettered()
    fill, gap = (
        build(texts, each, "ab", "c.")
        for each in (Condition("f", "/", 9), Condition("g", count=9, kind="gap"))
    )

    def few(ids: torch.Tensor) -> torch.Tensor:
        return ids[None] % 90 + 3

    n = len(fill.ids)
    seen = torch.ones(n, n).tril().bool() & ~fill.inserted[None, :]
    seen |= torch.eye(n, dtype=torch.bool)  # a hidden row must see something
    with torch.no_grad():
        hidden = model.hf(
            input_ids=few(fill.ids),
            attention_mask=seen[None, None],
            position_ids=fill.positions[None],
        ).logits[0]
        jumped = model.hf(
            input_ids=few(gap.ids),
            attention_mask=torch.ones_like(gap.ids)[None],
            position_ids=gap.positions[None],
        ).logits[0]
        plain = model.hf(
            input_ids=few(gap.ids), attention_mask=torch.ones_like(gap.ids)[None]
        ).logits[0]
    assert torch.allclose(hidden[~fill.inserted], jumped, atol=1e-5)
    assert not torch.allclose(plain, jumped, atol=1e-3)


# --- as data ---


def test_conditions_by_name_and_as_mappings():
    assert [each.name for each in parse_conditions("none, mless,mful")] == ["none", "mless", "mful"]
    assert parse_conditions(["gap"]) == [CONDITIONS["gap"]]
    (own,) = parse_conditions([{"name": "dots", "filler": ".", "count": 3, "position": "end"}])
    assert own == Condition("dots", ".", 3, "end")
    (ids,) = parse_conditions([{"name": "ids", "filler": [5, 6], "count": 3}])
    assert ids.filler == (5, 6)
    (nothing, armed) = parse_conditions([{"name": "x"}, {"name": "a", "arm": "c=0.1,p1=95"}])
    assert nothing.kind == armed.kind == "none"
    assert armed.arm == Arm(0.1, 95)
    for each in (*CONDITIONS.values(), own, ids, armed):
        assert parse_conditions([json.loads(json.dumps(each.as_dict()))]) == [each]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("mles", "did you mean 'mless'"),
        ("zzz", "there are none, mless"),
        ("", "no condition ''"),
        ([], "no conditions"),
        ("none,none", "two conditions are called 'none'"),
        ([{"filler": "/"}], "has no name"),
        ([{"name": "a", "fill": "/"}], "not 'fill'"),
        ([{"name": "a", "filler": "/", "count": -1}], "count is a whole number"),
        ([{"name": "a", "filler": "/", "count": True}], "count is a whole number"),
        ([{"name": "a", "filler": "/", "count": 0}], "count of 0"),
        ([{"name": "a", "count": 5}], "the filler is a text"),
        ([{"name": "a", "filler": [1.5], "count": 5}], "the filler is a text"),
        ([{"name": "a", "filler": "/", "count": 5, "position": "middle"}], "position is before"),
        ([{"name": "a", "filler": "/", "count": 5, "template": "x"}], "template is raw, chat"),
        ([{"name": "a", "filler": "/", "count": 5, "kind": "gap"}], "has no filler"),
        ([{"name": "a", "like": "gap", "position": "end"}], "a gap is between"),
        ([{"name": "a", "arm": "c=1"}], "ARM needs p1"),
        ([7], "a name or a mapping"),
    ],
)
def test_wrong_conditions_are_answered_in_a_sentence(given, says):
    with pytest.raises(HeadlabError, match=says):
        parse_conditions(given)


def test_prompts_that_cannot_be_built_are_answered_in_a_sentence():
    with pytest.raises(HeadlabError, match="the question is empty"):
        build(digits(), CONDITIONS["none"], " ")
    with pytest.raises(HeadlabError, match="no tokenizer"):
        build(Texts(None, "bare"), CONDITIONS["none"], "a")
    pieces = ["a", "b", ".", " ", ". "]
    core = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [(".", " ")]))
    across = Texts(PreTrainedTokenizerFast(tokenizer_object=core), "across")
    with pytest.raises(HeadlabError, match=r"a token stands across 'a\.' and ' b'"):
        build(across, CONDITIONS["none"], "b", "a.")
    with pytest.raises(HeadlabError, match="takes at most 64"):
        build(lettered(64), CONDITIONS["mless"], "what is it?", "the answer is here.")
    alone = build(digits(), CONDITIONS["mless"], "What is it?", instruction="")
    assert torch.equal(alone.original, digits().ids("What is it?"))


# --- as a user types it ---


def test_show_prints_the_tokens_around_the_join(tmp_path):
    folder = str(save_lettered(tmp_path / "m"))
    result = run("fillers", "show", folder, "--conditions", "none,mless,gap", "--question", "a b")
    assert result.exit_code == 0, result.output
    assert "'.' '/' '/' '/' (51 more) '/' ' ' 'a' ' ' 'b'" in result.stdout
    assert "55 of them put in" in result.stdout
    n = len(lettered().ids(INSTRUCTION))
    assert f"(position {n + 55})" in result.stdout
    found = json.loads(run("fillers", "show", folder, "--json", "--question", "a b").stdout)
    assert [sum(each["inserted"]) for each in found] == [0, 55, 55, 0, 55]
    assert found[3]["positions"][-1] == found[1]["positions"][-1]
    for name, says in (("mles", "did you mean 'mless'"), ("none,,", "no condition ''")):
        assert says in error_of(run("fillers", "show", folder, "--conditions", name))
    assert "no chat template" in error_of(run("fillers", "show", folder, "--chat"))
    assert "Example: headlab fillers show" in run("fillers", "show", "--help").stdout
