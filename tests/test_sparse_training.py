"""Sparse post-training: its loss, its data, its steps."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import random_ids, tiny_tokenizer
from training import corpus, loader, steps, trainer

from headlab.errors import HeadlabError
from headlab.sparse.adapting import merged_weights
from headlab.sparse.corpus import cut, make_corpus, read_texts
from headlab.sparse.keeping import keep, kept, require_key
from headlab.sparse.objective import distilled
from headlab.sparse.settings import Settings, make_settings
from headlab.sparse.training import State

# --- the loss ---


@pytest.mark.parametrize(("kl", "own"), [(1.0, 0.0), (0.5, 1.0), (0.0, 1.0)])
def test_the_loss_and_its_slope_are_those_of_plain_formulas(
    kl: float, own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlab.sparse.objective._ROWS", 3)  # several chunks
    random = torch.Generator().manual_seed(0)
    logits, dense = (torch.randn(7, 11, generator=random, dtype=torch.float64) for _ in range(2))
    targets = torch.randint(11, (7,), generator=random)
    logits.requires_grad_()
    found = distilled(logits, dense, targets, kl, own)
    again = logits.detach().requires_grad_()
    divergence = torch.nn.functional.kl_div(
        again.log_softmax(-1), dense.log_softmax(-1), log_target=True, reduction="sum"
    )
    loss = torch.nn.functional.cross_entropy(again, targets, reduction="sum")
    assert float(found.kl.detach()) == pytest.approx(divergence.item(), abs=1e-12)
    assert float(found.loss) == pytest.approx(loss.item(), abs=1e-12)
    theirs = torch.nn.functional.cross_entropy(dense, targets, reduction="sum")
    assert float(found.dense) == pytest.approx(float(theirs), abs=1e-12)
    (2.5 * found.objective).backward()
    (2.5 * (kl * divergence + own * loss)).backward()
    assert torch.allclose(logits.grad, again.grad, atol=1e-13)


# --- settings ---


def test_the_weight_of_the_penalty_follows_the_constraint() -> None:
    kl = make_settings("kl", bound=0.2, dual=0.1)
    assert kl.next_beta(1.0, 0.0) == pytest.approx(np.exp(0.1))  # all room
    assert kl.next_beta(1.0, 0.2) == 1.0
    assert kl.next_beta(1.0, 0.4) == pytest.approx(np.exp(-0.1))
    loss = make_settings("loss", bound=3.5)
    assert loss.next_beta(2.0, 3.0) == pytest.approx(2 * np.exp(0.1 * 0.5))
    assert loss.next_beta(2.0, 4.0) == pytest.approx(2 * np.exp(-0.1 * 0.5))
    assert loss.next_beta(1e10, -100) == 1e10
    assert loss.next_beta(1e-10, 100) == 1e-10
    assert make_settings("loss", bound=1e6, dual=1e3).next_beta(1.0, 0.0) == 1e10


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"constraint": "l2"}, "kl or loss, not 'l2'"),
        ({"bound": 0.0}, "bound above 0"),
        ({"bound": float("nan")}, "finite"),
        ({"levels": (3.0, 10.0)}, "densest first"),
        ({"levels": (10.0, 10.0)}, "densest first"),
        ({"levels": (130.0,)}, "above 0 and below 100"),
        ({"steps": 0}, "at least one step"),
        ({"context": 1}, "two tokens"),
        ({"rate": 0.0}, "rate is above 0, not 0"),
        ({"distill": 0.0}, "weight of distillation"),
        ({"smooth": 1.0}, "below 1"),
        ({"lora": 0}, "rank of at least 1"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(given: dict[str, object], says: str) -> None:
    with pytest.raises(HeadlabError, match=says):
        make_settings(**given)


def test_rates_warm_up_and_come_down_to_a_tenth() -> None:
    settings = Settings(steps=100, warmup=10)
    scales = [settings.scale(step) for step in range(100)]
    assert scales[0] == pytest.approx(0.1)
    assert max(scales) == scales[9] == scales[10] == 1.0
    assert scales[10:] == sorted(scales[10:], reverse=True)
    assert scales[99] == pytest.approx(0.1)
    assert Settings(steps=1, warmup=0).scale(0) == 1.0


# --- text ---


def test_contexts_come_once_before_any_comes_again_and_held_ones_never() -> None:
    text = corpus(n=23)
    assert len(text.held) == 2
    assert sorted([*text.held, *text.trained]) == list(range(23))
    seen = [tuple(row) for step in range(7) for row in text.batch(step, 3, seed=1)]
    rows = {tuple(text.contexts[n]) for n in text.trained}
    assert set(seen) == rows
    assert len(rows) == 21
    later = [tuple(row) for step in range(7, 14) for row in text.batch(step, 3, seed=1)]
    assert set(later) == rows
    assert later != seen
    assert not np.array_equal(text.batch(0, 3, seed=1), text.batch(0, 3, seed=2))
    across = text.batch(2, 8, seed=1)  # 16 to 24: the end of one round and the start of the next
    assert [tuple(row) for row in across[:5]] == seen[16:21]
    assert [tuple(row) for row in across[5:]] == later[:3]


def test_files_of_all_kinds_are_read(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    texts = ["the cat sat", "on an apple"]
    lines = "".join(json.dumps({"text": each}) + "\n" for each in texts)
    (tmp_path / "a.jsonl").write_text(lines + "\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(lines)
    (tmp_path / "c.txt").write_text("\n".join(texts))
    one, two = (
        make_corpus([str(tmp_path / name)], tokenizer, 3) for name in ("a.jsonl", "b.jsonl.gz")
    )
    assert np.array_equal(one.contexts, two.contexts)
    expected = [
        id
        for each in texts
        for id in [*tokenizer.encode(each, add_special_tokens=False), tokenizer.eos_token_id]
    ]
    assert one.contexts.reshape(-1).tolist() == expected[: one.tokens]
    plain = make_corpus([str(tmp_path / "c.txt")], tokenizer, 3).contexts.reshape(-1)
    assert (
        plain.tolist() == tokenizer.encode("\n".join(texts), add_special_tokens=False)[: len(plain)]
    )
    assert tokenizer.eos_token_id not in plain  # one text
    said: list[str] = []
    both = make_corpus([str(tmp_path / n) for n in ("a.jsonl", "c.txt")], tokenizer, 3, said.append)
    assert both.tokens > one.tokens
    assert said[0] == f"a.jsonl: {len(expected)} tokens"


def test_sources_share_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlab.sparse.corpus._MOST", 60)
    (tmp_path / "a.txt").write_text("the cat sat on " * 100)
    (tmp_path / "b.txt").write_text("mary john " * 100)
    said: list[str] = []
    both = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    found = make_corpus(both, tiny_tokenizer(), 10, said.append)
    assert found.tokens == 60
    assert said == ["a.txt: 30 tokens", "b.txt: 30 tokens"]


def test_of_the_hub_no_more_is_read_than_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def rows(*_: object, **__: object):  # type: ignore[no-untyped-def]
        for number in range(100_000):
            read.append(number)
            yield {"text": "the cat sat on mary " * 20}

    fake = SimpleNamespace(load_dataset=rows)
    monkeypatch.setitem(__import__("sys").modules, "datasets", fake)
    monkeypatch.setattr("headlab.sparse.corpus._CHUNK", 1000)
    found = make_corpus(["hub:x"], tiny_tokenizer(), 8, needed=10_000)
    assert found.tokens == 10_000
    assert len(read) < 1000


def test_a_data_set_of_the_hub_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path, config, split, streaming):  # type: ignore[no-untyped-def]
        asked.append((path, config, split, streaming))
        return iter([{"text": "the cat"}, {"text": ""}, {"text": "sat"}])

    fake = SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(__import__("sys").modules, "datasets", fake)
    assert list(read_texts("hub:wikitext:wikitext-2-raw-v1")) == ["the cat", "sat"]
    assert asked == [("wikitext", "wikitext-2-raw-v1", "train", True)]
    list(read_texts("hub"))
    assert asked[1][0] == "HuggingFaceFW/fineweb-edu"
    fake.load_dataset = lambda *_, **__: iter([{"content": "x"}])
    with pytest.raises(HeadlabError, match="no column 'text'"):
        list(read_texts("hub:other"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.txt", None, "no file"),
        ("a.csv", b"x", "neither .txt nor .jsonl"),
        ("a.txt", b"", "has no text"),
        ("a.txt", b"\xff\xfe\xff", "cannot be read as text"),
        ("a.txt.gz", b"not gzip", "cannot be read as text"),
        (
            "a.txt.gz",
            gzip.compress(b"the cat " * 999, mtime=0)[:-12] + b"x" * 12,
            "cannot be read as text",
        ),
        (
            "a.txt.gz",
            gzip.compress(b"the cat", mtime=0)[:12] + b"\xff" * 9,
            "cannot be read as text",
        ),
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n', "line 2 has no text"),
        ("a.jsonl", b"[1]\n", "line 1 has no text"),
        ("a.jsonl", b"{text\n", "line 1 is not JSON"),
    ],
)
def test_text_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(HeadlabError, match=says):
        list(read_texts(str(tmp_path / name)))


def test_too_little_text_is_one_sentence() -> None:
    with pytest.raises(HeadlabError, match="15 tokens, and two contexts of 8"):
        cut(np.arange(15), 8)


# --- steps ---


def test_a_step_follows_the_objective_and_the_penalty() -> None:
    """The slopes of a step against the loss written out, with the same draws."""
    one = trainer(constraint="loss", distill=0.7, beta=3.0, start=0.5)
    ids = torch.from_numpy(one.corpus.batch(0, 4, 0)).long()
    with one.gating.drawing(0):
        logits = one.model.hf(ids).logits[:, :-1]
        parts = [layer.drawn[0] for layer in one.gating.layers]
        penalty, shares = one.gating.collected()
    by_hand = torch.stack([part.penalty / part.allowed for part in parts])  # [layer, head]
    assert penalty.item() == pytest.approx(by_hand.mean().item(), abs=1e-9)
    with torch.no_grad():
        dense = loader()().hf(ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    kl = (dense.softmax(-1) * (dense.log_softmax(-1) - logits.log_softmax(-1))).sum(-1).mean()
    every = [*one.weights.values(), *one.gates]
    slopes = torch.autograd.grad(loss + 0.7 * kl + 3.0 * penalty, every)
    row = one._slopes()
    assert row["kl"] == pytest.approx(kl.item(), abs=1e-9)
    assert row["loss"] == pytest.approx(loss.item(), abs=1e-9)
    assert row["penalty"] == pytest.approx(penalty.item(), abs=1e-6)
    assert row["edges"] == pytest.approx(float(shares.mean()), abs=1e-6)
    for each, slope in zip(every, slopes, strict=True):
        assert torch.allclose(each.grad, slope, atol=1e-7)
    assert float(slopes[-1].abs().max()) > 1e-4


@pytest.mark.parametrize("twin", [True, False])
def test_several_passes_are_one_batch(twin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def even(shape, generator, device, dtype):  # type: ignore[no-untyped-def]
        return torch.full(shape, 0.5, device=device, dtype=dtype)  # the same draws in any pass

    monkeypatch.setattr("headlab.sparse.attention.torch.rand", even)
    whole, parts = (trainer(twin, start=0.5, beta=3.0) for _ in range(2))
    parts.state.rows = 3  # 3 and 1
    rows = whole._slopes(), parts._slopes()
    assert rows[0] == pytest.approx(rows[1], abs=1e-6)
    every = [[*each.weights.values(), *each.gates] for each in (whole, parts)]
    for one, other in zip(*every, strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-8)


def test_rates_are_those_of_the_schedule() -> None:
    one = trainer(steps=20, warmup=4, rate=1e-3, gate_rate=0.1)
    for step in range(6):
        one.step()
        rates = [group["lr"] for group in one.optimiser.param_groups]
        scale = one.settings.scale(step)
        assert rates == pytest.approx([1e-3 * scale, 0.1 * scale])
        assert one.state.log[-1]["rate"] == pytest.approx(1e-3 * scale)


def test_a_model_that_starts_open_starts_as_the_dense_one() -> None:
    row = trainer(start=60.0)._slopes()
    assert row["kl"] == pytest.approx(0, abs=1e-12)
    assert row["loss"] == pytest.approx(row["dense_loss"], abs=1e-12)
    assert row["edges"] == pytest.approx(1.0)


def test_edges_close_while_there_is_room_and_open_again_when_there_is_none() -> None:
    shut = trainer(steps=60, beta=30.0, bound=50.0, gate_rate=0.2)
    steps(shut, 60)
    edges = [row["edges"] for row in shut.state.log]
    assert edges[-1] < 0.3 * edges[0]
    assert shut.state.beta > 30.0
    tight = trainer(steps=60, beta=30.0, bound=1e-3, gate_rate=0.2)
    steps(tight, 60)
    assert tight.state.beta < 1.0
    assert tight.state.log[-1]["edges"] > 2 * edges[-1]
    assert tight.state.log[0]["beta"] == 30.0


def test_the_twin_learns_the_text_with_all_edges_open() -> None:
    twin = trainer(twin=True, steps=60, rate=3e-3)
    steps(twin, 60)
    losses = [row["loss"] for row in twin.state.log]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    assert twin.gating is None
    assert twin.model.sparse is None
    same = trainer(steps=2)
    same.step()
    # It starts as the dense model does, on the same contexts.
    assert same.state.log[0]["dense_loss"] == pytest.approx(losses[0], abs=1e-6)
    assert not {"kl", "dense_loss", "edges"} & set(twin.state.log[0])


def test_a_twin_goes_on_from_a_state_that_had_more_in_its_log() -> None:
    """Of an older version: whether the loss runs away must be told as ever."""
    first, second = (trainer(twin=True, steps=60) for _ in range(2))
    steps(first, 30)
    state = copy.deepcopy(first.state)
    for row in state.log:
        row |= {"kl": 0.1, "dense_loss": float("nan")}
    second.restore({name: each.clone() for name, each in first.tensors().items()}, state)
    assert second.state.log == first.state.log
    for row in second.state.log:
        row["loss"] += 10 * (row["step"] > 5)
    with pytest.raises(HeadlabError, match="runs away"):
        second._require_sound({"loss": 15.0}, 1.0)


def test_training_that_goes_on_is_as_if_it_had_never_stopped() -> None:
    whole, first, second = (trainer(steps=9) for _ in range(3))
    steps(whole, 9)
    steps(first, 4)
    kept = {name: each.clone() for name, each in first.tensors().items()}
    second.restore(kept, copy.deepcopy(first.state))
    steps(second, 5)
    assert second.state == whole.state
    for name, each in whole.tensors().items():
        assert torch.equal(each, second.tensors()[name]), name


def test_a_loss_that_is_no_number_stops() -> None:
    one = trainer()
    one.step()
    before = {name: each.clone() for name, each in one.tensors().items()}
    one.model.hf.model.norm.weight.data.fill_(torch.nan)
    with pytest.raises(HeadlabError, match="not a number at step 2"):
        one.step()
    one.model.hf.model.norm.weight.data.copy_(before["weight model.norm.weight"])
    assert one.state.step == 1
    assert all(torch.equal(each, before[name]) for name, each in one.tensors().items())


def test_a_loss_that_runs_away_stops() -> None:
    wild = trainer(steps=200, rate=3.0)
    with pytest.raises(HeadlabError, match="the loss runs away: over 20 steps"):
        steps(wild, 200)
    assert 19 <= wild.state.step < 100


def test_the_last_two_states_stay_and_a_damaged_one_gives_way(tmp_path: Path) -> None:
    key = {"settings": {"rate": 1.0}}
    for step in (2, 4, 6, 8):
        state = State(step=step, beta=1.0, rows=4, log=[{"step": step, "loss": 1.5}])
        keep(tmp_path / "state", "sparse", key, {"weight a": torch.full((2,), step)}, state)
    names = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert names == ["sparse-0000006", "sparse-0000008"]
    found = list(kept(tmp_path / "state", "sparse", key))
    assert [state.step for _, state in found] == [8, 6]
    assert found[0][0]["weight a"].tolist() == [8, 8]
    assert found[1][1].log == [{"step": 6, "loss": 1.5}]
    (tmp_path / "state/sparse-0000008/tensors.safetensors").write_bytes(b"half")
    assert [state.step for _, state in kept(tmp_path / "state", "sparse", key)] == [6]
    assert list(kept(tmp_path / "state", "twin", key)) == []
    with pytest.raises(HeadlabError, match=r"other settings \(rate 2.0, there 1.0\)"):
        require_key(tmp_path / "state", {"settings": {"rate": 2.0}})


# --- adapters ---


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "olmo", "mixtral", "qwen3-moe"])
def test_adapters_leave_the_weights_and_merge_to_the_same_model(name: str) -> None:
    pytest.importorskip("peft")
    load = loader(name, torch.float32 if name in ("mixtral", "qwen3-moe") else torch.float64)
    one = trainer(load=load, lora=2, steps=12, rate=1e-2)
    before = {key: each.clone() for key, each in one.model.hf.state_dict().items()}
    dense = load()
    ids = random_ids(2, 8)
    steps(one, 12)
    for key, each in one.model.hf.state_dict().items():
        assert ("lora_" in key) or torch.equal(each, before[key]), key
    with torch.no_grad():
        assert torch.allclose(one.dense_logits(ids), dense.hf(ids).logits, atol=1e-5)
        adapted = one.model.hf(ids).logits
        assert (adapted - dense.hf(ids).logits).abs().max() > 1e-2
        plain = load()
        plain.hf.load_state_dict(merged_weights(one.model.hf), strict=False)
        from headlab.sparse import gate_attention

        gate_attention(plain.hf, plain.seam, name, one.gating.bias)
        assert torch.allclose(plain.hf(ids).logits, adapted, atol=1e-5)


@pytest.mark.parametrize("name", ["llama-mqa", "gpt2", "qwen2", "olmo"])
def test_every_kind_of_model_trains(name: str) -> None:
    one = trainer(name=name, steps=30, beta=20.0, bound=20.0, gate_rate=0.2)
    steps(one, 30)
    edges = [row["edges"] for row in one.state.log]
    assert edges[-1] < 0.7 * edges[0]
    assert all(np.isfinite(list(row.values())).all() for row in one.state.log)
