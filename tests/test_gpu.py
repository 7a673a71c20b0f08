"""The same claims on a GPU, where there is one."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from tiny import ARCHITECTURES, random_ids, tiny, tiny_tokenizer
from training import steps, trainer
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from writing import ids_of

import headlab.engine
from headlab import Example, Gates, Head, Model, counterfactual_reference, fused, generate, measure
from headlab.gatefits import Schedule, fit_gates
from headlab.gatefits.fitting import FitWork, begin
from headlab.gatefits.rows import Rows
from headlab.gates import ZERO, gate_heads
from headlab.generation import writing as text_writing
from headlab.gradients import gate_gradients
from headlab.proofs import check
from headlab.sparse import edges_kept, gate_attention
from headlab.standins import rotate, swiglu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
THERE = "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_check_passes_on_a_gpu(name, dtype):
    model = Model(copy.deepcopy(tiny(name, dtype)).cuda(), name=name)
    result = check(model)
    assert result.passed, result
    assert model.restartable, result
    # Faster kernels for the same formula are used where they are as exact, and only there.
    refused = {proof.name for proof in result.proofs if not proof.passed}
    assert refused <= {"ending", "norms", "mlps", "rotary"}
    if name == "llama":
        assert not refused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_fused_kernels_give_their_formulas_and_slopes(dtype):
    there = torch.device("cuda", 0)
    short = [
        *((1, 16, 64, 16), (3, 9, 64, 9), (4, 64, 128, 64), (8, 33, 80, 33)),
        *((1, 5, 64, 16), (3, 1, 64, 17), (4, 32, 128, 64), (8, 13, 80, 33)),
        *((3, 40, 64, 40), (4, 16, 128, 16)),
    ]
    of_sizes = {
        "attend": [(1, 64), (3, 64), (4, 128), (2, 256)],
        "attend_all": short,
        "attend_all_back": short,
    }
    for kernel in fused.TRIALS:
        for sizes in of_sizes.get(kernel, [()]):
            assert fused.works(kernel, there, dtype, *sizes), (kernel, sizes)
    torch.manual_seed(0)
    allowed = 1e-5 if dtype == torch.float32 else 2e-2

    def found(function, *inputs):
        """What a function gives, and the slopes of its inputs, of these numbers."""
        inputs = [each.detach().clone().requires_grad_() for each in inputs]
        given = function(*inputs)
        given = given if isinstance(given, tuple) else (given,)
        sum((each * each.detach()).sum() for each in given).backward()
        return [each.detach().double() for each in given], [each.grad.double() for each in inputs]

    def compare(ours, theirs, *inputs):
        exact = found(theirs, *(each.double() for each in inputs))
        for mine, right in zip(found(ours, *inputs), exact, strict=True):
            for a, b in zip(mine, right, strict=True):
                assert (a - b).abs().max() < allowed * b.abs().max()

    z = torch.randn(6, 5, 9, 24, device="cuda").to(dtype)
    for shape, rows in (((6, 5), 2), ((6, 1), 6), ((1, 5), 1), ((1, 1), 3), ((6, 1), None)):
        g = torch.rand(*shape, 9, 1, device="cuda")
        r = None if rows is None else torch.randn(rows, 5, 9, 24, device="cuda").to(dtype)
        again = 0 if r is None else r.double().repeat(6 // rows, 1, 1, 1)
        assert fused.can_gate(z, g, r, z)
        compare(
            lambda z, g, r=r: gate_heads(z, g, r),
            lambda z, g, again=again: g * z + (1 - g) * again,
            *(z, g),
        )
        if r is not None:
            assert torch.equal(gate_heads(z, torch.ones_like(g), r), z)
            assert torch.equal(gate_heads(z, torch.zeros_like(g), r), again.to(dtype))
    gate, up = torch.randn(2, 3, 7, 333, device="cuda").to(dtype)
    compare(swiglu, lambda gate, up: torch.nn.functional.silu(gate) * up, gate, up)
    for heads, width, rows in ((9, 64, 1), (5, 24, 4), (32, 128, 4)):
        q, k = (torch.randn(4, 6, n, width, device="cuda").to(dtype) for n in (heads, 3))
        cos, sin = torch.randn(2, rows, 6, width, device="cuda").to(dtype)

        def turned(q, k, cos=cos, sin=sin):  # as models have them: heads after positions
            cos, sin = cos.to(q.dtype).expand(4, -1, -1), sin.to(q.dtype).expand(4, -1, -1)
            return apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)

        def ours(q, k, cos=cos, sin=sin):
            return rotate(apply_rotary_pos_emb, q.transpose(1, 2), k.transpose(1, 2), cos, sin)

        compare(ours, turned, q, k)
        with torch.no_grad():
            mine, right = ours(q, k), turned(q.double(), k.double())
        assert all(
            (a - b).abs().max() < allowed * b.abs().max() for a, b in zip(mine, right, strict=True)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 6, 2, 70, 24), (2, 4, 4, 200, 16), (5, 32, 8, 300, 128)])
def test_attention_of_one_token_sees_what_its_mask_shows(shape, dtype):
    rows, heads, keys, places, width = shape
    torch.manual_seed(0)
    query = torch.randn(rows, 1, heads, width, device="cuda").to(dtype).transpose(1, 2)
    key, value = torch.randn(2, rows, keys, places + 9, width, device="cuda").to(dtype)
    mask = torch.rand(rows, 1, 1, places + 9, device="cuda") > 0.5
    mask[0, ..., :66], mask[-1, ..., -30:], mask[..., 68] = False, False, True
    hidden = ~mask[:, :, 0, :, None].expand_as(value)
    value[hidden] = 1e4  # it must not count
    key, value, mask = key[:, :, :places], value[:, :, :places], mask[..., :places]
    assert fused.can_attend(query, key, value, mask)
    wide = [each.double() for each in (query, key, value)]
    exact = torch.nn.functional.scaled_dot_product_attention(
        *wide, attn_mask=mask, scale=0.3, enable_gqa=True
    )
    found = fused.attend(query, key, value, mask, 0.3)
    assert found.shape == exact.shape
    assert (found - exact).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 9, 3, 16, 64), (3, 32, 8, 64, 128), (2, 4, 4, 1, 16)])
@pytest.mark.parametrize("cached", [False, True])
def test_attention_of_short_rows_is_torchs(shape, cached, dtype):
    rows, heads, keys, length, width = shape
    torch.manual_seed(0)
    query = torch.randn(rows, length, heads, width, device="cuda").to(dtype).transpose(1, 2)
    key, value = torch.randn(2, rows, keys, length + 9, width, device="cuda").to(dtype)
    key, value = key[:, :, :length], value[:, :, :length]
    if not cached:
        key, value = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (key, value))
    assert fused.can_attend_all(query, key, value)
    wide = [each.double() for each in (query, key, value)]
    exact = torch.nn.functional.scaled_dot_product_attention(
        *wide, is_causal=True, scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    found = fused.attend_all(query, key, value, 0.3)
    assert found.shape == exact.shape
    assert found.is_contiguous()
    assert (found - exact).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 9, 3, 40, 64), (3, 32, 8, 64, 128), (2, 4, 4, 1, 16)])
@pytest.mark.parametrize("before", [0, 9])
def test_slopes_of_short_rows_are_torchs(shape, before, dtype):
    rows, heads, keys, places, width = shape
    length = max(1, places - before)
    torch.manual_seed(0)
    given = [
        torch.randn(rows, n, count, width, device="cuda").to(dtype).transpose(1, 2)
        for n, count in ((length, heads), (places, keys), (places, keys))
    ]
    seen = torch.ones(length, places, dtype=torch.bool, device="cuda").tril(places - length)
    slope = torch.randn(rows, length, heads, width, device="cuda").to(dtype)
    wide = [each.double().requires_grad_() for each in given]
    exact = torch.nn.functional.scaled_dot_product_attention(
        *wide, attn_mask=seen, scale=0.3, enable_gqa=True
    )
    slopes = torch.autograd.grad(exact.transpose(1, 2), wide, slope.double())
    assert fused.can_attend_all(*(each.requires_grad_() for each in given))
    for one, right in zip(fused.attend_all_back(slope, *given, 0.3), slopes, strict=True):
        assert one.shape == right.shape
        assert (one - right).abs().max() < (
            1e-5 if dtype == torch.float32 else 2e-2
        ) * right.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_slopes_through_short_rows_are_those_of_torchs_attention(name, monkeypatch):
    model = Model(copy.deepcopy(tiny(name)).to(THERE), tiny_tokenizer(), name=name)
    check(model)
    examples = [Example("the cat", " sat"), Example("the cat gave john the", " apple on")]
    gates = torch.rand(3, model.n_layers, model.n_heads)
    backs = []
    own = fused.attend_all_back
    monkeypatch.setattr(fused, "attend_all_back", lambda *given: backs.append(1) or own(*given))
    found = gate_gradients(model, examples, gates).gradient
    assert backs
    monkeypatch.setattr(fused, "can_attend_all", lambda *_: False)
    plain = gate_gradients(model, examples, gates).gradient
    assert (found - plain).abs().max() < 1e-4 * plain.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_answers_are_read_off_sums_of_all_words(dtype):
    torch.manual_seed(0)
    logits = (20 * torch.randn(3, 5, 50001, device="cuda")).to(dtype)
    logits[0, 1, :20000] = -torch.inf
    logits[1, 2, 7], logits[1, 3] = torch.nan, -torch.inf
    logits[2, 0, 5] = torch.inf
    tops, sums = fused.log_sum(logits)
    expected = logits.double().log_softmax(-1)[..., 50000]
    found = logits[..., 50000].float() - tops - sums
    assert torch.equal(found.isnan(), expected.isnan())
    assert int(expected.isnan().sum()) == 3
    assert torch.allclose(found.double(), expected, atol=2e-5, equal_nan=True)


@pytest.fixture
def passes(monkeypatch) -> list[int]:
    """Of sweeps, the rows under each mask; a pass that waits for the GPU is an error."""
    seen, own = [], headlab.engine._Sweep._pass

    def watched(sweep, stretch, *args, **kwargs):
        seen.append(len(stretch.tokens.ids))
        torch.cuda.set_sync_debug_mode("error")
        try:
            return own(sweep, stretch, *args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(headlab.engine._Sweep, "_pass", watched)
    return seen


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma2"])
def test_passes_of_a_sweep_wait_for_nothing(name, request):
    """While one runs the next is prepared; what is read is waited for later."""
    model = Model(copy.deepcopy(tiny(name)).to(THERE), tiny_tokenizer(), name=name)
    check(model)
    examples = [Example("the cat", " sat"), Example("the cat gave john the", " apple")]
    expected = measure(model, examples, Gates.each_head(model))
    passes = request.getfixturevalue("passes")  # the first time, kernels are built and tried
    found = measure(model, examples, Gates.each_head(model))
    assert passes
    assert torch.equal(found.values, expected.values)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "qwen3", "gemma2"])
def test_rows_that_share_give_what_whole_passes_give_on_a_gpu(name, request, monkeypatch):
    monkeypatch.setattr("headlab.budgets._START", 0)
    model = Model(copy.deepcopy(tiny(name)).to(THERE), tiny_tokenizer(), name=name)
    check(model)
    assert model.restart.shares
    alike = "the cat sat on the mat, john gave"
    examples = [
        Example(f"{alike} the", " apple", wrong=(" mat",)),
        Example(f"{alike} mary the", " mat", wrong=(" cat", " sat on the mat")),
        Example(f"{alike}, the cat", " sat", wrong=(" on",)),
    ]
    gates = Gates.each_head(model)
    whole = measure(model, examples, gates, restart=False)
    measure(model, examples, gates)
    passes = request.getfixturevalue("passes")
    shared = measure(model, examples, gates)
    assert min(passes) == 1, "one row begins for all"
    assert (shared.values - whole.values).abs().max() < 1e-4
    assert shared.change.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_slopes_of_fits_that_share_are_those_of_whole_passes_on_a_gpu(name, monkeypatch):
    monkeypatch.setattr("headlab.budgets._START", 0)
    model = Model(copy.deepcopy(tiny(name)).to(THERE), tiny_tokenizer(), name=name)
    check(model)
    alike = "the cat sat on the mat, john gave"
    examples = [Example(f"{alike} the", " apple"), Example(f"{alike} mary the", " mat")]
    apart = copy.copy(model)
    apart.restart = dataclasses.replace(model.restart, shares=False)
    schedule = Schedule(updates=4, batch=2)
    shared, own = (fit_gates(each, examples, [0, 1], schedule) for each in (model, apart))
    assert torch.allclose(shared.plus, own.plus, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_updates_of_a_fit_wait_for_nothing(name, monkeypatch):
    """While one runs the next is prepared; what it gives is waited for later."""
    model = Model(copy.deepcopy(tiny(name)).to(THERE), tiny_tokenizer(), name=name)
    check(model)
    examples = [Example("the cat", " sat"), Example("the cat gave john the", " apple on")]
    schedule = Schedule(updates=9, batch=2)
    work = FitWork(model, Rows(model, examples, 2), schedule, ZERO)
    state = begin(model, [0, 1], schedule, 6, tokens=64)
    fits = [("free", 0), ("free", 1)]
    work.update(state, fits)  # kernels are built and tried
    work.settle()
    with monkeypatch.context() as there:
        there.setattr(FitWork, "settle", lambda _: None)
        torch.cuda.set_sync_debug_mode("error")
        try:
            work.update(state, fits)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    work.settle()
    assert state.losses[:2, :2].isfinite().all()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gpu_gives_the_cpus_numbers(name):
    ids, other = random_ids(2, 8), random_ids(2, 8, seed=1)
    logits = []
    for network in (tiny(name), copy.deepcopy(tiny(name)).cuda()):
        model = Model(network)
        reference = counterfactual_reference(model, list(ids), list(other))
        with model.gated(Gates.ablate(model, [Head(1, 2)], scale=0.3), reference):
            logits.append(model(ids).cpu())
    assert (logits[0] - logits[1]).abs().max() < 1e-4


@pytest.mark.parametrize("reference", ["zero", "counterfactual"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_engine_on_a_gpu_gives_the_cpus_table(name, reference):
    """With its faster kernels, its passes in flight and its budget found by probing."""
    examples = [
        Example("the cat", " sat", "the apple", wrong=(" on", " the")),
        Example("the mat, the", " cat sat on", "the cat, the", wrong=(" mat", " apple the")),
    ]
    tables = []
    for network in (tiny(name), copy.deepcopy(tiny(name)).cuda()):
        model = Model(network, tiny_tokenizer(), name=name)
        check(model)
        tables.append(measure(model, examples, Gates.each_head(model), "kl", reference).values)
        scored = measure(
            model, examples, Gates.each_head(model), "logit-diff", reference, budget=40
        )
        tables.append(scored.values)
    assert (tables[0] - tables[2]).abs().max() < 1e-4
    assert (tables[1] - tables[3]).abs().max() < 1e-4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_steps_that_are_replayed_write_the_same(name, monkeypatch):
    model = Model(copy.deepcopy(tiny(name)).cuda(), tiny_tokenizer(), name=name)
    check(model)
    model.hf.generation_config.eos_token_id = None
    rows = [random_ids(1, length, seed=length)[0] for length in (5, 9, 6)]
    replays = []
    plain = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: replays.append(1) or plain(graph)
    )
    found = generate(model, rows, Gates.each_head(model), max_new_tokens=40, replay=True)
    if name in ("llama", "gpt2", "qwen2", "olmo", "gpt-neox"):
        assert len(replays) == 38, "the first token is the prompt's, the second is recorded"
        replays.clear()
        once_more = generate(model, rows, Gates.each_head(model), max_new_tokens=40)
        assert len(replays) == 38
        assert ids_of(once_more) == ids_of(found)
    monkeypatch.setattr(fused, "can_attend", lambda *_: False)  # torch's attention
    monkeypatch.setattr(
        text_writing, "is_worth_joining", lambda _: False
    )  # and a product for each map
    again = generate(model, rows, Gates.each_head(model), max_new_tokens=40, replay=False)
    assert ids_of(found) == ids_of(again)
    torch.cuda.empty_cache()  # a recording that broke off would have left the allocator unable to
    assert torch.randn(1, device="cuda").isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "olmo"])
def test_sparse_attention_on_a_gpu_gives_the_cpus_numbers(name, dtype):
    found = []
    for device in ("cpu", "cuda"):
        model = Model(copy.deepcopy(tiny(name, dtype)).to(device), tiny_tokenizer(), name=name)
        bias = torch.linspace(-1, 1, model.n_layers * model.n_heads)
        gate_attention(model.hf, model.seam, name, bias.reshape(model.n_layers, model.n_heads))
        assert check(model).passed
        found.append((model(random_ids(2, 9)).cpu(), edges_kept(model, list(random_ids(2, 9)))))
    (logits, edges), (other, others) = found
    if dtype == torch.float32:
        assert (logits - other).abs().max() < 1e-4
        assert (edges - others).abs().max() < 1e-6
    else:  # an edge at the threshold may open or close with a rounding before it
        assert (edges - others).abs().mean() < 0.05


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_sparse_training_on_a_gpu_closes_edges(narrow):
    trained = trainer(
        load=lambda: Model(copy.deepcopy(tiny("llama")).cuda(), tiny_tokenizer(), name="llama"),
        dtype=narrow,
        steps=40,
        beta=30.0,
        bound=50.0,
        gate_rate=0.2,
    )
    steps(trained, 20)
    kept = {name: each.clone() for name, each in trained.tensors().items()}
    state = copy.deepcopy(trained.state)
    steps(trained, 20)
    edges = [row["edges"] for row in trained.state.log]
    assert edges[-1] < 0.5 * edges[0]
    trained.restore(kept, state)
    steps(trained, 20)
    again = [row["edges"] for row in trained.state.log]
    assert edges == pytest.approx(again, abs=1e-3)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_passes_behind_a_beginning_give_what_whole_passes_give_on_a_gpu(name):
    model = Model(copy.deepcopy(tiny(name)).to(THERE), tiny_tokenizer(), name=name)
    check(model)
    assert model.restart.begins_late
    alike = "the cat sat on the mat, "
    example = Example(alike + "john gave the", " apple", alike + "mary gave the")
    gates = Gates.each_head(model)
    late, whole = (
        measure(model, [example], gates, "log-prob", "counterfactual", restart=restart)
        for restart in (True, False)
    )
    assert (late.values - whole.values).abs().max() < 1e-4
    assert late.change.abs().max() > 1e-3
