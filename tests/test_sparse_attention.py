"""Gated attention: its formulas, its gradients, and models that have it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import transformers
from tiny import random_ids, tiny, tiny_tokenizer
from torch import Tensor

import headlab
from headlab import Gates, Head, Model
from headlab.errors import HeadlabError
from headlab.loading import load_texts
from headlab.sparse import attention as module
from headlab.sparse import edges_kept, gate_attention
from headlab.sparse.attention import drawn_attention, gated_attention
from headlab.sparse.files import save_model

NAMED = ["llama", "llama-wide", "llama-mqa", "gpt2", "qwen2", "olmo"]
REFUSED = ["gptj", "falcon", "bloom"]
SUPPORTED = [*NAMED, "qwen3", "gemma2", "gemma3", "mistral", "phi3", "gpt-neox", "opt", "olmo2"]


def sparse(name: str, bias: float = 0.3, dtype: torch.dtype = torch.float64) -> Model:
    """A tiny model with a b of its own for every head."""
    model = Model(copy.deepcopy(tiny(name)).to(dtype), tiny_tokenizer(), name=name)
    spread = torch.linspace(-1, 1, model.n_layers * model.n_heads)
    shape = model.n_layers, model.n_heads
    gate_attention(model.hf, model.seam, name, spread.reshape(shape) + bias)
    return model


def inputs(heads: int = 4, keys: int = 2, length: int = 7, rows: int = 2) -> list[Tensor]:
    random = torch.Generator().manual_seed(3)
    shapes = [(rows, heads, length, 5), (rows, keys, length, 5), (rows, keys, length, 6)]
    drawn = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    return [*drawn, torch.linspace(-0.5, 0.5, heads, dtype=torch.float64)]


def plain(q: Tensor, k: Tensor, v: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """The formula written out, head by head and query by query."""
    rows, heads, length, width = q.shape
    found = torch.zeros(rows, heads, length, v.shape[-1], dtype=q.dtype)
    for row in range(rows):
        for head in range(heads):
            own = head // (heads // k.shape[1])
            for i in range(length):
                keys = [j for j in range(i + 1) if mask is None or bool(mask[row, 0, i, j])]
                if not keys:
                    continue
                s = torch.stack([q[row, head, i] @ k[row, own, j] / width**0.5 for j in keys])
                for weight, each, j in zip(s.softmax(0), s, keys, strict=True):
                    if each + b[head] > 0:
                        found[row, head, i] += weight * v[row, own, j]
    return found


def test_hard_gates_are_the_formula() -> None:
    q, k, v, b = inputs()
    found = gated_attention(q, k, v, b)
    assert torch.allclose(found, plain(q, k, v, b), atol=1e-13)
    assert not torch.allclose(found, plain(q, k, v, b + 10), atol=1e-3)  # some edges are closed


def test_a_mask_hides_keys_from_the_softmax_too() -> None:
    q, k, v, b = inputs()
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    mask[0, :, :, :2] = False  # two pads on the left of the first row: two queries see nothing
    found = gated_attention(q, k, v, b, mask)
    assert torch.allclose(found, plain(q, k, v, b, mask), atol=1e-13)
    assert bool((found[0, :, :2] == 0).all())


def test_all_gates_open_are_plain_attention() -> None:
    q, k, v, b = inputs()
    dense = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(gated_attention(q, k, v, b + 1e4), dense, atol=1e-13)
    infinite = torch.full_like(b, torch.inf)
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    assert torch.allclose(gated_attention(q, k, v, infinite, mask), dense, atol=1e-13)


def test_a_query_that_sees_nothing_gives_zero() -> None:
    q, k, v, b = inputs()
    found = gated_attention(q, k, v, b - 100)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("masked", [False, True])
def test_blocks_equal_the_whole_and_two_log_sum_exps(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, b = inputs(length=37)
    mask = torch.ones(2, 1, 37, 37, dtype=torch.bool).tril() if masked else None
    if mask is not None:
        mask[1, :, :, :5] = False
    whole = gated_attention(q, k, v, b, mask)
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", 4 * 2 * 4 * 37 * 5)  # five queries a block
    assert len(list(module.blocks(q, k))) == 8
    assert torch.allclose(gated_attention(q, k, v, b, mask), whole, atol=1e-14)
    # masked attention × exp(lse of open edges − lse of all)
    allowed = torch.ones(37, 37, dtype=torch.bool).tril() if mask is None else mask
    s = q @ k.repeat_interleave(2, 1).mT / 5**0.5
    s = s.masked_fill(~allowed, -torch.inf)
    kept = s.masked_fill(s + b[:, None, None] <= 0, -torch.inf)
    share = (kept.logsumexp(-1) - s.logsumexp(-1)).exp().nan_to_num(0.0)
    values = kept.softmax(-1).nan_to_num(0.0) @ v.repeat_interleave(2, 1)
    assert torch.allclose(whole, values * share[..., None], atol=1e-13)


def test_memory_grows_with_the_length_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", 2**16)
    sizes = {}
    for length in (256, 512, 1024):
        largest = 0
        watch = torch.utils._python_dispatch.TorchDispatchMode

        class Largest(watch):  # type: ignore[valid-type, misc]
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                nonlocal largest
                result = func(*args, **(kwargs or {}))
                if isinstance(result, Tensor):
                    largest = max(largest, result.numel() * result.element_size())
                return result

        q, k, v, b = inputs(length=length, rows=1)
        with Largest():
            gated_attention(q, k, v, b)
        sizes[length] = largest
    assert sizes[1024] <= 4.1 * sizes[256]
    assert sizes[1024] < 1024 * 1024 * 4 * 4 / 8  # far below one square of logits


def test_gates_are_decided_in_float32_whatever_the_dtype() -> None:
    random = torch.Generator().manual_seed(5)
    q, k = (torch.randn(1, 1, 64, 16, generator=random).bfloat16() for _ in range(2))
    v = torch.eye(64).bfloat16()[None, None]  # the output is the weights
    b = torch.full((1,), -1.0)  # a threshold at which bfloat16 has few numbers
    s = (q.float() @ k.float().mT / 4)[0, 0]
    allowed = torch.ones(64, 64, dtype=torch.bool).tril()
    expected = (s > 1) & allowed & (s.masked_fill(~allowed, -torch.inf).softmax(-1) > 1e-30)
    assert torch.equal(gated_attention(q, k, v, b)[0, 0] > 0, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gated_attention(q.float(), k.float(), v, b)[0, 0] > 0, expected)
        counted = drawn_attention(q.float(), k.float(), v, b, drawn()).open
    assert int(counted) == int(((s > 1) & allowed).sum())
    narrow = (q @ k.mT / 4)[0, 0]
    assert not torch.equal((narrow > 1) & allowed, expected)  # bfloat16 would decide otherwise


# --- training ---


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_drawn_gates_are_the_formula_and_so_is_their_gradient() -> None:
    q, k, v, b = (each.requires_grad_() for each in inputs(heads=4, keys=4))
    found = drawn_attention(q, k, v, b, drawn())
    s = (q @ k.mT / 5**0.5).detach().requires_grad_()
    allowed = torch.ones(7, 7, dtype=torch.bool).tril()
    u = torch.rand(s.shape, generator=drawn(), dtype=torch.float64)
    noisy = s + b[:, None, None] + u.logit(1e-6)
    hard, g = (noisy > 0) & allowed, noisy.sigmoid()
    p = s.masked_fill(~allowed, -torch.inf).softmax(-1)
    output = (p * hard) @ v
    assert torch.allclose(found.output, output, atol=1e-13)
    assert 0.1 < float(hard[allowed.expand_as(hard)].double().mean()) < 0.9
    slope = torch.randn(output.shape, generator=drawn(1), dtype=torch.float64)
    own = torch.autograd.grad((found.output * slope).sum(), [q, k, v, b])
    # d out / d s = softmax · [(g(1−g) + A)(dO·v) − dO·O], and b has the gate's part of it
    to_v, to_o = slope @ v.mT, (slope * output).sum(-1, keepdim=True)
    by_gate = p * g * (1 - g) * to_v * allowed
    to_s = (by_gate + p * (hard * to_v - to_o)).detach()
    assert torch.allclose(own[0], to_s @ k / 5**0.5, atol=1e-12)
    assert torch.allclose(own[1], to_s.mT @ q / 5**0.5, atol=1e-12)
    assert torch.allclose(own[2], (p * hard).mT @ slope, atol=1e-12)
    assert torch.allclose(own[3], by_gate.sum((0, 2, 3)).detach(), atol=1e-12)


def test_the_penalty_is_the_mean_openness_of_causal_edges_with_a_true_slope() -> None:
    q, k, v, b = inputs(heads=4, keys=2)
    b.requires_grad_()
    q.requires_grad_()

    def penalty(q: Tensor, b: Tensor) -> Tensor:
        found = drawn_attention(q, k, v, b, drawn())
        return found.penalty / found.allowed

    allowed = torch.ones(7, 7, dtype=torch.bool).tril()
    s = q @ k.repeat_interleave(2, 1).mT / 5**0.5 + b[:, None, None]
    by_hand = s.sigmoid().masked_fill(~allowed, 0).sum((0, 2, 3)) / (2 * 28)
    assert torch.allclose(penalty(q, b), by_hand, atol=1e-14)
    assert torch.autograd.gradcheck(penalty, (q, b))


def test_open_edges_are_counted_where_they_are_allowed() -> None:
    q, k, v, b = inputs()
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    mask[0, :, :, :2] = False
    found = drawn_attention(q, k, v, b, drawn(), mask)
    assert int(found.allowed) == 28 + 15
    s = q @ k.repeat_interleave(2, 1).mT / 5**0.5 + b[:, None, None]
    assert torch.equal(found.open, ((s > 0) & mask).sum((0, 2, 3)))


def test_the_mean_of_drawn_gates_is_their_chance() -> None:
    q, k, _, b = inputs(rows=1)
    ones = torch.ones(1, 2, 7, 1, dtype=torch.float64)
    sums = sum(drawn_attention(q, k, ones, b, drawn(seed)).output for seed in range(3000))
    s = q @ k.repeat_interleave(2, 1).mT / 5**0.5
    allowed = torch.ones(7, 7, dtype=torch.bool).tril()
    p = s.masked_fill(~allowed, -torch.inf).softmax(-1)
    expected = (p * (s + b[:, None, None]).sigmoid()).sum(-1, keepdim=True)
    assert torch.allclose(sums / 3000, expected, atol=0.04)


# --- models ---


@pytest.mark.parametrize("name", SUPPORTED)
def test_open_gates_give_the_dense_model_and_its_checks_pass(name: str) -> None:
    model = Model(copy.deepcopy(tiny(name)).double(), name=name)
    ids = random_ids(2, 13)
    with torch.no_grad():
        dense = model.hf(ids).logits
        gating = gate_attention(
            model.hf, model.seam, name, torch.full((model.n_layers, model.n_heads), 1e4)
        )
        assert (model.hf(ids).logits - dense).abs().max() < (1e-6 if name == "gemma2" else 1e-12)
        with gating.dense():
            same = model.hf(ids).logits
            assert torch.equal(same, dense) or name == "gemma2"  # its own softmax is float32
        for layer in gating.layers:
            layer.bias.data.fill_(0.1)
        assert (model.hf(ids).logits - dense).abs().max() > 0.01
    check = headlab.check(model)
    assert check.passed
    assert all(proof.passed for proof in check.proofs if proof.name != "rotary")
    assert model.restartable


@pytest.mark.parametrize("name", NAMED)
def test_batched_and_padded_rows_are_as_alone(name: str) -> None:
    model = sparse(name)
    rows = [random_ids(1, length, seed=length)[0] for length in (5, 11, 8)]
    for padding in ("right", "left"):
        tokens = model.tokens(rows, padding)
        together = model(tokens)
        for row, ids in enumerate(rows):
            alone = model(ids[None])[0]
            assert torch.allclose(together[row][tokens.mask[row]], alone, atol=1e-11)


@pytest.mark.parametrize("name", NAMED)
def test_text_with_a_cache_is_as_without(name: str) -> None:
    model = sparse(name)
    headlab.check(model)
    prompts = [random_ids(1, length, seed=length)[0] for length in (4, 9)]
    made = headlab.generate(model, prompts, max_new_tokens=8)
    for number, prompt in enumerate(prompts):
        ids = prompt
        for _ in range(8):
            ids = torch.cat([ids, model(ids[None])[0, -1].argmax()[None]])
        own = made.rows[0][number]
        length = len(own.ids)
        assert length == 8 or own.ids[-1] == 2
        assert own.ids == ids[len(prompt) : len(prompt) + length].tolist()


@pytest.mark.parametrize("name", [*NAMED, "mistral", "gemma3"])
def test_a_cache_of_fixed_size_gives_the_same_text(name: str) -> None:
    model = sparse(name)
    ids = random_ids(1, 7)
    given = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    mask = torch.ones_like(ids)
    texts = [
        model.hf.generate(ids, attention_mask=mask, cache_implementation=kind, **given)
        for kind in ("dynamic", "static")
    ]
    assert torch.equal(*texts)
    cache = transformers.StaticCache(config=model.hf.config, max_cache_len=20)
    with torch.no_grad():
        logits = model.hf(ids, past_key_values=cache, use_cache=True).logits
    assert torch.allclose(logits, model(ids), atol=1e-11)


def test_engine_and_ranking_work_on_it_exactly() -> None:
    model = sparse("llama")
    headlab.check(model)
    prompts = ["the cat sat", "mary on an apple"]
    examples = [headlab.Example(prompt, " the") for prompt in prompts]
    table = headlab.measure(model, examples, Gates.each_head(model), "log-prob")
    for mask, head in enumerate([Head(0, 0), Head(0, 1)]):
        with model.gated(Gates.ablate(model, [head])):
            for column, prompt in enumerate(prompts):
                logits = model(prompt)[0, -1].log_softmax(-1)
                target = model.tokenizer.encode(" the", add_special_tokens=False)[0]
                assert table.values[mask, column] == pytest.approx(float(logits[target]), abs=1e-9)


def test_the_share_of_open_edges_takes_a_text_too() -> None:
    model = sparse("llama")
    assert torch.equal(edges_kept(model, "the cat sat"), edges_kept(model, ["the cat sat"]))
    with pytest.raises(HeadlabError, match="no prompts"):
        edges_kept(model, [])
    with pytest.raises(HeadlabError, match="is dense"):
        edges_kept(Model(tiny("llama"), tiny_tokenizer(), name="plain"), ["the cat"])


def test_the_share_of_open_edges_knows_padding() -> None:
    model = sparse("llama")
    rows = [random_ids(1, length, seed=length)[0] for length in (5, 11)]
    found = edges_kept(model, rows)
    is_open, allowed = torch.zeros(3, 4, dtype=torch.float64), 0
    for ids in rows:
        alone = edges_kept(model, [ids])
        edges = len(ids) * (len(ids) + 1) // 2
        is_open, allowed = is_open + alone * edges, allowed + edges
    assert torch.allclose(found, is_open / allowed)
    assert 0.05 < float(found.mean()) < 0.95


def test_profiles_see_the_gated_weights() -> None:
    from headlab.attention.watching import watch

    model = sparse("llama")
    ids = random_ids(1, 9)
    blocks = []
    watch(model, model.tokens(ids), {1: [2, 3]}, blocks.append)
    weights = torch.cat([block.weights for block in blocks], 2)  # [row, head, query, key]
    seen: dict[str, Tensor] = {}

    def keep(_: object, args: tuple[object, ...], kwargs: dict[str, Tensor]) -> None:
        seen["hidden"] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]  # type: ignore[assignment]

    attention = model.seam.attentions[1]
    handle = attention.register_forward_pre_hook(keep, with_kwargs=True)
    z = model.head_outputs(ids)[1, 0]  # [position, head, width]
    handle.remove()
    values = attention.v_proj(seen["hidden"]).reshape(9, 2, 8)[:, 1]  # of the heads' key head
    expected = torch.einsum("hqk,kw->qhw", weights[0].double(), values)
    assert torch.allclose(expected, z[:, 2:], atol=1e-5)
    assert float(weights.sum(-1).max()) <= 1 + 1e-6
    assert float(weights.sum(-1).min()) < 0.99  # closed edges' weight goes nowhere


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "does not use transformers' attention functions") for name in REFUSED),
        ("gpt-oss", "attention sinks"),
    ],
)
def test_models_without_the_attention_seam_are_told_so(name: str, says: str) -> None:
    model = Model(copy.deepcopy(tiny(name)), name=name)
    shape = model.n_layers, model.n_heads
    before = model(random_ids(1, 5))
    with pytest.raises(HeadlabError, match=says):
        gate_attention(model.hf, model.seam, name, torch.zeros(shape))
    assert model.sparse is None
    assert torch.equal(model(random_ids(1, 5)), before)


def test_gates_of_another_shape_are_refused() -> None:
    model = Model(copy.deepcopy(tiny("llama")), name="small")
    with pytest.raises(HeadlabError, match="gates for 2 x 4 heads do not fit small"):
        gate_attention(model.hf, model.seam, "small", torch.zeros(2, 4))
    with pytest.raises(HeadlabError, match="not numbers"):
        gate_attention(model.hf, model.seam, "small", torch.full((3, 4), torch.nan))


# --- on disk ---


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Model]:
    model = sparse("llama", dtype=torch.float32)
    assert model.sparse is not None
    save_model(
        tmp_path / "level-30",
        model.hf,
        model.tokenizer,
        "# A card",
        model.sparse.bias,
        {"level": 30},
    )
    return tmp_path / "level-30", model


def test_a_saved_model_is_the_same_model(saved: tuple[Path, Model]) -> None:
    folder, model = saved
    again = headlab.load(folder)
    ids = random_ids(2, 10)
    assert torch.equal(again(ids), model(ids))
    assert again.hf.config.headlab_sparse["level"] == 30
    assert not hasattr(model.hf.config, "headlab_sparse")
    assert any("plain transformers would load it dense" in note for note in again.notes)
    assert load_texts(str(folder)).vocabulary == len(model.tokenizer)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["level-30"]


def test_saved_gates_that_are_gone_or_newer_are_one_sentence(saved: tuple[Path, Model]) -> None:
    folder, _ = saved
    with pytest.raises(HeadlabError, match="no other can stand for it"):
        headlab.load(folder, attn_implementation="eager")
    plain_model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(HeadlabError, match="loaded as dense"):
        headlab.load(plain_model)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"version": 1', '"version": 9'))
    with pytest.raises(HeadlabError, match="version 9, and this Headlab knows 1"):
        headlab.load(folder)
    (folder / "config.json").write_text(config)
    (folder / "headlab_sparse.safetensors").write_bytes(b"broken")
    with pytest.raises(HeadlabError, match="cannot be read"):
        headlab.load(folder)
    (folder / "headlab_sparse.safetensors").unlink()
    with pytest.raises(HeadlabError, match="cannot be read"):
        headlab.load(folder)


def test_a_sparse_model_saved_as_dense_is_dense(saved: tuple[Path, Model], tmp_path: Path) -> None:
    folder, _ = saved
    again = headlab.load(folder)
    save_model(tmp_path / "dense", again.hf, again.tokenizer, "")
    assert again.hf.config.headlab_sparse["level"] == 30
    assert headlab.load(tmp_path / "dense").sparse is None


def test_other_gates_are_another_model(saved: tuple[Path, Model], tmp_path: Path) -> None:
    from headlab.studies.provenance import fingerprint

    folder, model = saved
    assert model.sparse is not None
    other = model.sparse.bias
    other[1, 1] += 0.5
    save_model(tmp_path / "other", model.hf, model.tokenizer, "", other, {"level": 30})
    assert fingerprint(headlab.load(folder)) != fingerprint(headlab.load(tmp_path / "other"))
