"""Where a row of a batch ends, and that the others do not notice."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import random_ids
from torch import Tensor
from writing import (
    NEW,
    endless,
    ids_of,
    looking,
    made,
    prompts,
    transformers_ids,
)

from headlab import Gates, HeadlabError, Model
from headlab.generation import Choice, generate
from headlab.generation import batch as batches
from headlab.generation.batch import Batch


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


@pytest.mark.parametrize("temperature", [None, 1.0])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_not_written_as_text(wrong, temperature):
    model = endless()
    with torch.no_grad():
        model.hf.get_output_embeddings().weight[5, 0] = wrong
    with pytest.raises(HeadlabError, match="NaN or infinity"):
        generate(model, prompts(), max_new_tokens=3, temperature=temperature)


def test_a_number_that_was_none_once_is_remembered(monkeypatch):
    """Also where nobody looks before the step after."""
    model = endless()
    looking(monkeypatch, 8)
    passes = []
    plain = batches.Batch._pass

    def once(self, *given):
        passes.append(1)
        logits = plain(self, *given)
        return logits * torch.nan if len(passes) == 3 else logits

    monkeypatch.setattr(batches.Batch, "_pass", once)
    with pytest.raises(HeadlabError, match="NaN or infinity"):
        generate(model, prompts(), max_new_tokens=12)
    assert len(passes) == 8, "seen at the first look"


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


@pytest.mark.parametrize("look", [1, 4])
def test_progress_counts_every_token_that_need_not_be_waited_for(look, monkeypatch):
    looking(monkeypatch, look)
    model = endless()
    model.hf.generation_config.eos_token_id = ids_of(generate(model, prompts()))[0][1][2]
    seen: list[int] = []
    generate(model, prompts(), Gates.each_head(model), max_new_tokens=9, progress=seen.append)
    assert sum(seen) == model.n_layers * model.n_heads * 4 * 9
    assert min(seen) >= 0
