"""Generated tasks are what they claim; broken files are named by line."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import transformers as hf
from tiny import tiny, tiny_tokenizer, worded
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from headlab import HeadlabError, Model
from headlab.tasks import docstring, greater_than, ioi, make_examples
from headlab.tasks.jsonl import LONGEST_LINE, read_examples
from headlab.tasks.words import NAMES, single_tokens
from headlab.texts import Texts


def test_ioi_asks_for_the_name_that_is_not_repeated():
    for example in ioi.generate(worded(), 60):
        words = example.prompt.replace(",", "").split()
        names = [word for word in words if word in NAMES]
        receiver, giver = example.target.strip(), example.wrong[0].strip()
        assert sorted(names) == sorted([receiver, giver, giver])
        assert names[-1] == giver
        assert (names[0] == receiver) == (example.category == "ABBA")


def test_ioi_counterfactuals_have_three_other_names_and_the_same_length():
    model = worded()
    for example in ioi.generate(model, 60):
        ours, theirs = example.prompt.split(), example.counterfactual.split()
        changed = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
        assert len(changed) == 3
        assert len({b for _, b in changed}) == 3, "nothing tells who receives"
        assert not {a for a, _ in changed} & {b for _, b in changed}
        assert len(model.ids(example.prompt)) == len(model.ids(example.counterfactual))
        assert ours[-1] == theirs[-1]


def test_ioi_is_varied_seeded_and_of_any_size():
    model = worded()
    examples = ioi.generate(model, 400, seed=3)
    assert len({example.prompt for example in examples}) == 400
    assert len({example.id for example in examples}) == 400
    assert examples == ioi.generate(model, 400, seed=3)
    assert examples[:50] == ioi.generate(model, 50, seed=3)
    assert examples != ioi.generate(model, 400, seed=4)
    assert Counter(example.category for example in examples)["ABBA"] == pytest.approx(200, abs=15)
    frames = Counter(
        " ".join("_" if w in {*NAMES, *ioi.PLACES, *ioi.OBJECTS} else w for w in words)
        for words in (example.prompt.replace(",", " ,").split() for example in examples)
    )
    assert max(frames.values()) <= 0.1 * 400
    assert len(frames) == 15


def test_names_that_are_several_tokens_are_refused():
    model = Model(tiny("llama"), tiny_tokenizer(), name="tiny")
    with pytest.raises(HeadlabError, match="the names of ioi must be single tokens, and only 0 of"):
        ioi.generate(model, 4)
    assert single_tokens(model, ["cat", "mat", "zebra"], 1, "words") == ["cat", "mat"]


def numbered(split: str) -> Texts:
    """Words of the generated tasks as tokens, and numbers: a token a digit, two, or three."""
    words = {*docstring.NAMES, *docstring.WORDS, *greater_than.NOUNS, "and", "year", "the", "def"}
    words |= {f"{n:0{width}d}" for width in (1, 2, 3) for n in range(10**width)}
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(sorted(words))}, unk_token="the"))
    size = {"digit": 1, "pair": 2, "three": 3}[split]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Split(Regex(f"[0-9]{{1,{size}}}"), "isolated"),
        ]
    )
    return Texts(hf.PreTrainedTokenizerFast(tokenizer_object=core), split)


@pytest.mark.parametrize("split", ["digit", "pair"])
def test_greater_than_asks_for_a_later_year(split):
    texts = numbered(split)
    examples = greater_than.generate(texts, 200)
    for example in examples:
        year = next(part for part in re.findall(r"[0-9]+", example.prompt) if len(part) == 4)
        assert example.prompt.endswith(year[:2])
        assert 11 <= int(year[:2]) <= 17
        right = {int(answer) for answer in (example.target, *example.also_right)}
        wrong = {int(answer) for answer in example.wrong}
        if split == "pair":
            assert right == set(range(int(year[2:]) + 1, 100))
            assert wrong == set(range(int(year[2:]) + 1))
        else:  # the tens; the equal one is neither right nor wrong
            tens = int(year[2])
            assert 2 <= tens <= 7
            assert right == set(range(tens + 1, 10))
            assert wrong == set(range(tens))
        assert example.counterfactual == example.prompt.replace(year, f"{year[:2]}01", 1)
        ours, theirs = texts.ids(example.prompt), texts.ids(example.counterfactual)
        assert len(ours) == len(theirs)
        for answer in example.answers:
            joined, start = texts.join(example.prompt, answer)
            assert len(joined) == start + 1, "one token"
    frames = Counter(re.sub(r"[0-9]+", "0", e.prompt).split("the ")[0] for e in examples)
    assert len(frames) >= 8


def test_years_of_three_and_one_are_refused():
    with pytest.raises(
        HeadlabError, match=r"needs years of two tokens \(17\|43\) or a token a digit"
    ):
        greater_than.generate(numbered("three"), 4)


def test_docstring_asks_for_the_third_argument_that_stands_together():
    texts = numbered("digit")
    examples = docstring.generate(texts, 200)
    for example in examples:
        arguments = re.search(r"\(self, (.*)\):", example.prompt)[1].split(", ")
        first, second = re.findall(r":param (\w+):", example.prompt)
        assert len(set(arguments)) == 6
        at = arguments.index(first)
        assert arguments[at + 1] == second
        assert arguments[at + 2] == example.target.strip()
        others = set(arguments) - {example.target.strip()}
        assert {answer.strip() for answer in example.wrong} == others
        others = re.search(r"\(self, (.*)\):", example.counterfactual)[1].split(", ")
        assert [a == b for a, b in zip(arguments, others, strict=True)].count(False) == 3
        assert not {first, second, example.target.strip()} & set(others)
        assert len(texts.ids(example.prompt)) == len(texts.ids(example.counterfactual))
    shapes = Counter(example.category for example in examples)
    assert max(shapes.values()) <= 0.1 * len(examples)


def test_ioi_long_is_ioi_after_a_sentence():
    examples = ioi.generate_long(worded(), 120)
    openings = Counter(example.prompt.split(".")[0] for example in examples)
    assert max(openings.values()) == 10, "none makes more than a tenth"
    for example in examples:
        opening = next(each for each in ioi.OPENINGS if example.prompt.startswith(each))
        assert example.counterfactual.startswith(opening)
        assert example.prompt.count(example.wrong[0].strip()) == 2


# --- which examples a command takes ---


def test_splits_are_halves_that_share_nothing(tmp_path):
    lines = [{"prompt": f"p{n}", "target": " t"} for n in range(11)]
    path = str(write(tmp_path / "x.jsonl", *lines))
    for task, n in ((path, None), ("ioi", 20)):
        rank_, curve_ = (
            make_examples(worded(), task, n, split=split) for split in ("rank", "curve")
        )
        assert not {e.id for e in rank_} & {e.id for e in curve_}
        assert make_examples(worded(), task, n, split="rank") == rank_
    assert len(make_examples(worded(), path)) == 11
    assert len(make_examples(worded(), path, split="rank")) == 6
    assert len(make_examples(worded(), path, split="curve")) == 5
    assert len(make_examples(worded(), path, 3)) == 3


def test_used_examples_are_left_out(tmp_path):
    for split in (None, "rank"):
        used = {e.fingerprint for e in make_examples(worded(), "ioi", 10, split=split)}
        others = make_examples(worded(), "ioi", 10, split=split, without=used)
        assert len(others) == 10
        assert not used & {example.fingerprint for example in others}
    lines = [{"prompt": f"p{n}", "target": " t"} for n in range(4)]
    path = str(write(tmp_path / "x.jsonl", *lines))
    first = make_examples(worded(), path, 1)[0].fingerprint
    assert [e.prompt for e in make_examples(worded(), path, without={first})] == ["p1", "p2", "p3"]


def test_an_unknown_task_is_named_with_the_nearest():
    with pytest.raises(HeadlabError, match="no task 'docstrin'; did you mean 'docstring'"):
        make_examples(worded(), "docstrin")


# --- files ---


def write(path, *records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines))
    return path


def test_every_field_of_a_line_is_read(tmp_path):
    record = {
        "prompt": "a b",
        "target": " c",
        "counterfactual": "a d",
        "wrong": [" e", " f"],
        "also_right": [" g"],
        "category": "x",
        "id": 7,
        "source": "kept by the user, ignored here",
    }
    path = write(tmp_path / "x.jsonl", record, "", {"prompt": "a", "target": " b"})
    first, second = read_examples(path)
    assert (first.prompt, first.target, first.counterfactual) == ("a b", " c", "a d")
    assert (first.wrong, first.also_right) == ((" e", " f"), (" g",))
    assert (first.category, first.id) == ("x", "7")
    assert second.id == "3", "the line's number"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ({"prompt": "a"}, "line 2 has no 'target'"),
        ({"target": "a"}, "line 2 has no 'prompt'"),
        ({"prompt": "", "target": "a"}, "line 2 has no text in 'prompt'"),
        ({"prompt": "a", "target": 3}, "line 2 has no text in 'target'"),
        ({"prompt": "a", "target": "b", "wrong": "c"}, "something else than a list of texts"),
        ({"prompt": "a", "target": "b", "wrong": [""]}, "something else than a list of texts"),
        ({"prompt": "a", "target": "b", "wrong": 0}, "something else than a list of texts"),
        ({"prompt": "a", "target": "b", "wrong": ["b"]}, "line 2 has the answer 'b' twice"),
        ({"prompt": "\ud800", "target": "b"}, "half a character (a surrogate) in 'prompt'"),
        ({"prompt": "a", "target": "b", "id": [1]}, "neither a text nor a number in 'id'"),
        ({"prompt": "a", "target": "b", "id": 1}, "line 2 has the id '1' of line 1"),
        ({"prompt": "a", "target": "b", "wrongs": ["c"]}, "did you mean 'wrong'?"),
        ("[" * 100_000, "line 2 is not JSON"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, sentence):
    good = {"prompt": "a", "target": " b"}
    with pytest.raises(HeadlabError) as error:
        read_examples(write(tmp_path / "x.jsonl", good, line, {**good, "id": 9}))
    assert sentence in str(error.value)
    assert "line 3" not in str(error.value)


def test_many_wrong_lines_are_counted(tmp_path):
    with pytest.raises(HeadlabError, match=r"line 1 .*line 5 .*\(and 4 more\)"):
        read_examples(write(tmp_path / "x.jsonl", *["{"] * 9))


def test_files_that_are_no_examples(tmp_path):
    with pytest.raises(HeadlabError, match="no file"):
        read_examples(tmp_path / "none.jsonl")
    with pytest.raises(HeadlabError, match="is a folder"):
        read_examples(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(HeadlabError, match="is empty"):
        read_examples(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é", "target": "b"}'.encode("latin-1"))
    with pytest.raises(HeadlabError, match="line 1 is not UTF-8 text"):
        read_examples(tmp_path / "latin.jsonl")


def test_a_line_of_a_hundred_megabytes_is_refused_without_reading_it_whole(tmp_path):
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"prompt": "')
        for _ in range(100):
            file.write(b"a" * 10**6)
        file.write(b'", "target": "b"}\n{"prompt": "a", "target": " b"}\n{')
    with pytest.raises(HeadlabError, match=f"line 1 is longer than {LONGEST_LINE:,} .*; line 3 "):
        read_examples(path)
