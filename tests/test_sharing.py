"""Rows that begin alike: one of them runs that for all, to the numbers of whole passes."""

from __future__ import annotations

import copy
import dataclasses
import random

import numpy as np
import pytest
import torch
from measuring import random_masks
from tiny import ARCHITECTURES, STRANGERS, tiny, tiny_tokenizer

import headlab
from headlab import Example, Gates, Head, Model, chunks, mean_reference, measure
from headlab.alike import ways_to_share
from headlab.batches import encode_all
from headlab.chunks import Sharing, _cut, families
from headlab.engine import _Sweep
from headlab.gatefits import Schedule, fit_gates
from headlab.gatefits.rows import Rows
from headlab.gatefits.slopes import summed_slopes
from headlab.gates import ZERO, Reference
from headlab.gradients import gate_gradients
from headlab.measures import MEASURES
from headlab.proofs import check

each_architecture = pytest.mark.parametrize("name", [*ARCHITECTURES, *STRANGERS])

# Two beginnings, prompts of different lengths, answers of one token and of several.
ONE, OTHER = "the cat sat on the mat, john gave", "mary gave john the apple, the cat"
EXAMPLES = [
    Example(f"{ONE} the", " apple", wrong=(" mat",), id="one"),
    Example(f"{ONE} mary the", " mat", wrong=(" cat",), id="long"),
    Example(f"{OTHER} sat", " on the", wrong=(" on", " gave the cat"), id="many"),
    Example(f"{ONE} mary the cat, the", " apple", wrong=(" sat",), id="longer"),
    Example(f"{OTHER}, the cat", " sat on", wrong=(" sat",), id="again"),
]

# Many answers to one prompt.
ANSWERED = [
    Example(
        "the cat sat on the mat, mary gave john the",
        " apple",
        "the mat sat on the mat, mary gave john the",
        wrong=(" mat, the", " cat sat on", " apple the cat"),
    ),
    Example(
        "the cat sat on the mat, mary gave",
        " john the",
        "the mat sat on the mat, john gave",
        wrong=(" the cat", " mary the"),
    ),
]


@pytest.fixture
def model(name: str) -> Model:
    made = Model(tiny(name), tiny_tokenizer(), name=name)
    check(made)
    return made


@pytest.fixture
def llama() -> Model:
    made = Model(tiny("llama-wide"), tiny_tokenizer(), name="llama-wide")
    check(made)
    return made


@pytest.fixture(autouse=True)
def cheap_starts(monkeypatch) -> None:
    """Whatever saves a token is worth a pass."""
    monkeypatch.setattr("headlab.budgets._START_ON_CPU", 0)


@pytest.fixture
def shapes(monkeypatch) -> list[tuple[int, int]]:
    """Rows and positions of the passes under gates."""
    seen: list[tuple[int, int]] = []
    own = headlab.Model.inputs

    def inputs(self, tokens):
        if self._gates is not None:
            seen.append(tuple(tokens.ids.shape))
        return own(self, tokens)

    monkeypatch.setattr(headlab.Model, "inputs", inputs)
    return seen


def apart(model: Model) -> Model:
    """The same, whose rows share nothing."""
    other = copy.copy(model)
    other.restart = dataclasses.replace(model.restart, shares=False)
    return other


def tokens_of(shapes: list[tuple[int, int]]) -> int:
    return sum(rows * positions for rows, positions in shapes)


# --- measured ---


@each_architecture
def test_rows_that_share_give_what_whole_passes_give(model, shapes):
    assert model.restart.shares
    masks = random_masks(9, seed=3)[:, : model.n_layers]
    together = measure(model, EXAMPLES, masks)
    ran = tokens_of(shapes)
    shapes.clear()
    alone = measure(model, EXAMPLES, masks, restart=False)
    assert ran < 0.7 * tokens_of(shapes)
    assert (together.values - alone.values).abs().max() < 1e-4
    assert alone.change.abs().amin(1)[2:].max() > 1e-3, "there is something to get wrong"


@each_architecture
def test_it_is_so_where_positions_and_masks_are_given(model, shapes):
    model.bare = False
    masks = random_masks(7, seed=4)[:, : model.n_layers]
    together = measure(model, EXAMPLES, masks)
    assert max(positions for _, positions in shapes) < 12
    alone = measure(model, EXAMPLES, masks, restart=False)
    assert (together.values - alone.values).abs().max() < 1e-4


@pytest.mark.parametrize("budget", [10, 31, 64, 200, 4096])
@pytest.mark.parametrize("joins", [True, False])
def test_masks_may_run_a_few_at_a_time(llama, budget, joins, shapes):
    """Behind a beginning that has run for these and for others."""
    llama.restart = dataclasses.replace(llama.restart, joins=joins)
    masks = Gates.stack([Gates.each_head(llama), Gates(random_masks(8, seed=5))])
    together = measure(llama, EXAMPLES, masks, budget=budget)
    ran = tokens_of(shapes)
    shapes.clear()
    alone = measure(apart(llama), EXAMPLES, masks, budget=budget)
    assert ran < 0.8 * tokens_of(shapes)
    assert (together.values - alone.values).abs().max() < 1e-5
    assert torch.equal(together.clean, alone.clean)


def test_no_more_masks_go_ahead_than_there_is_room_for(llama, shapes, monkeypatch):
    masks = random_masks(40, seed=5)
    measure(llama, EXAMPLES, masks, budget=200)
    assert max(rows * positions for rows, positions in shapes) <= 200
    whole = measure(llama, EXAMPLES, masks)
    begun = max(rows for rows, positions in shapes if positions >= 8)
    shapes.clear()
    # 5 rows of 14 tokens: what they keep for restarts, and little beside it.
    kept_by_one = 2 * 3 * 2 * (llama.seam.kv_heads * llama.head_width) * 4
    room = 5 * 14 * engine_of(llama, EXAMPLES)._stored_per_token
    assert room < 40 * kept_by_one * 9
    monkeypatch.setattr("headlab.engine._STORED_ON_CPU", room)
    found = measure(llama, EXAMPLES, masks)
    ahead = [rows for rows, positions in shapes if positions >= 8]
    assert ahead
    assert max(ahead) < begun
    assert (found.values - whole.values).abs().max() < 1e-5


def engine_of(model: Model, examples: list[Example], measured: str = "log-prob") -> _Sweep:
    given = Gates.each_head(model), MEASURES[measured], "zero", None, True, None
    return _Sweep(model, examples, *given)


@pytest.mark.parametrize("measured", ["log-prob", "kl"])
def test_what_is_kept_of_a_family_has_a_limit(llama, monkeypatch, measured):
    """Nor is anything kept that nobody reads."""
    monkeypatch.setattr("headlab.engine._STORED_ON_CPU", 300_000)
    kept = []
    own = _Sweep._measure_family

    def watched(self, chunks, alike):
        works = [self._work(chunk) for chunk in chunks]
        tensors = [
            tensor
            for work in works
            for tensor in (
                *work.stretch.clean.inputs.values(),
                *work.stretch.clean.z.values(),
                work.stretch.clean.logits,
                *([] if work.compared is None else [work.compared]),
            )
        ]
        kept.append(sum(each.untyped_storage().nbytes() for each in tensors))
        assert all(work.stretch.clean.logits.untyped_storage().nbytes() == 0 for work in works)
        own(self, chunks, alike)

    monkeypatch.setattr(_Sweep, "_measure_family", watched)
    examples = [dataclasses.replace(EXAMPLES[0], id=str(n)) for n in range(60)]
    measure(llama, examples, random_masks(4), measured)
    assert len(kept) > 1
    assert max(kept) <= 300_000
    per_token = [engine_of(llama, examples, each)._stored_per_token for each in ("kl", "log-prob")]
    length = len(encode_all(llama, examples[:1], MEASURES["kl"], False)[0].sequences[0].ids)
    assert per_token[0] - per_token[1] == -(-llama.vocabulary * 4 // length)


@pytest.mark.parametrize("measured", MEASURES)
def test_every_measure_may_be_read_behind_what_is_shared(llama, measured, shapes):
    masks = random_masks(7, seed=6)
    together = measure(llama, EXAMPLES, masks, measured)
    ran = tokens_of(shapes)
    shapes.clear()
    alone = measure(apart(llama), EXAMPLES, masks, measured)
    assert ran < tokens_of(shapes)
    assert (together.values - alone.values).abs().max() < 1e-5


def test_means_stand_in_for_heads_of_what_is_shared_as_well(llama, shapes):
    prompts = [example.prompt for example in EXAMPLES[:1]]
    same_length = [EXAMPLES[0], dataclasses.replace(EXAMPLES[0], prompt=f"{ONE} mary")]
    masks = random_masks(6, seed=7)
    for examples, reference in (
        (EXAMPLES, mean_reference(llama, prompts)),
        (same_length, mean_reference(llama, prompts, per_position=True)),
    ):
        shapes.clear()
        together = measure(llama, examples, masks, "log-prob", reference)
        assert max(positions for _, positions in shapes) < 12
        alone = measure(llama, examples, masks, "log-prob", reference, restart=False)
        assert (together.values - alone.values).abs().max() < 1e-5
        assert alone.change[2:].abs().amax(1).min() > 1e-4


@pytest.mark.parametrize("budget", [24, 39, 4096])
def test_what_differs_in_counterfactuals_is_not_shared(llama, shapes, budget):
    """Rows may share what is alike in both, behind where something changes at all; also rows of
    several chunks."""
    late = "the cat sat on the mat, {} gave the {} the"
    examples = [
        Example(late.format("john", one), " apple", late.format(other, one), (" mat",), id=str(n))
        for n, (one, other) in enumerate(
            [
                ("cat", "mary"),
                ("mat", "mary"),
                ("apple", "mary"),
                ("cat", "apple"),
                ("mat", "apple"),
            ]
        )
    ]
    masks = random_masks(8, seed=8)
    given = masks, "log-prob", "counterfactual"
    together = measure(llama, examples, *given, budget=budget)
    ran = tokens_of(shapes)
    shapes.clear()
    alone = measure(apart(llama), examples, *given, budget=budget)
    assert ran < tokens_of(shapes)
    whole = measure(llama, examples, masks, "log-prob", "counterfactual", restart=False)
    for other in (alone, whole):
        assert (together.values - other.values).abs().max() < 1e-5
    assert whole.change[2:].abs().amax(1).min() > 1e-4


def test_answers_of_one_example_share_its_prompt_and_its_counterfactual(llama, shapes):
    masks = random_masks(8, seed=9)
    for reference in ("zero", "counterfactual"):
        shapes.clear()
        together = measure(llama, ANSWERED[:1], masks, "logit-diff", reference)
        ran = tokens_of(shapes)
        shapes.clear()
        alone = measure(llama, ANSWERED[:1], masks, "logit-diff", reference, restart=False)
        assert ran < 0.6 * tokens_of(shapes)
        assert (together.values - alone.values).abs().max() < 1e-5


@each_architecture
@pytest.mark.parametrize("reference", ["zero", "counterfactual"])
def test_slopes_go_through_what_answers_of_one_example_share(model, reference, shapes):
    gates = random_masks(4, seed=4)[:, : model.n_layers]
    together = gate_gradients(model, ANSWERED, gates, "logit-diff-mean", reference)
    ran = tokens_of(shapes)
    shapes.clear()
    alone = gate_gradients(apart(model), ANSWERED, gates, "logit-diff-mean", reference)
    assert ran < 0.8 * tokens_of(shapes)
    assert (together.values - alone.values).abs().max() < 1e-4
    scale = alone.gradient.abs().max()
    assert scale > 1e-3
    assert (together.gradient - alone.gradient).abs().max() < 1e-4 * max(1, scale)


def test_gates_of_every_example_are_not_shared_with_others(llama, shapes):
    values = torch.stack([random_masks(5, seed=seed) for seed in range(5)], 1)
    together = measure(llama, EXAMPLES, Gates(values, "mask example layer head"))
    for column, example in enumerate(EXAMPLES):
        alone = Gates(values[:, column], "mask layer head")
        early = measure(llama, [example], alone, restart=False)
        assert (together.values[:, column] - early.values[:, 0]).abs().max() < 1e-5


def test_gates_of_every_position_are_shared(llama, shapes):
    longest = max(each.length for each in encode_all(llama, EXAMPLES, MEASURES["log-prob"], False))
    draw = torch.Generator().manual_seed(0)
    gates = Gates(torch.rand(6, 3, 4, longest, generator=draw), "mask layer head position")
    together = measure(llama, EXAMPLES, gates)
    assert max(positions for _, positions in shapes) < 12
    alone = measure(llama, EXAMPLES, gates, restart=False)
    assert (together.values - alone.values).abs().max() < 1e-5
    late = gates.values.clone()
    late[..., :5] = 1  # nothing changes there
    shapes.clear()
    together = measure(llama, EXAMPLES, Gates(late, " ".join(headlab.gates.AXES)))
    assert min(positions for _, positions in shapes) < 6
    alone = measure(llama, EXAMPLES, Gates(late, " ".join(headlab.gates.AXES)), restart=False)
    assert (together.values - alone.values).abs().max() < 1e-5


@pytest.mark.parametrize(("failures", "budget"), [(1, 40), (2, 100), (1, 4096), (5, 4096)])
def test_where_memory_runs_out_rows_run_by_themselves(llama, monkeypatch, failures, budget):
    own, failed = headlab.stretches.restarted, []

    def sometimes(*args, **kwargs):
        if len(failed) < failures:
            failed.append(True)
            raise torch.OutOfMemoryError("no room")
        return own(*args, **kwargs)

    monkeypatch.setattr(headlab.stretches, "restarted", sometimes)
    masks = random_masks(9, seed=6)
    found = measure(llama, EXAMPLES, masks, budget=budget)
    assert found.backed_off
    assert not found.values.isnan().any()
    early = measure(llama, EXAMPLES, masks, restart=False)
    assert (found.values - early.values).abs().max() < 1e-5


def test_every_mask_and_example_is_reported_once(llama):
    done = []
    measure(llama, EXAMPLES, random_masks(9, seed=2), budget=40, progress=done.append)
    assert sum(done) == 9 * len(EXAMPLES)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_short_rows_have_their_kernel_behind_what_is_shared(model, kernel):
    """Where there is no window; passes over what is shared come between."""
    masks = random_masks(6, seed=7)
    alone = measure(model, EXAMPLES, masks, restart=False)
    for budget in (20, 4096):
        kernel.clear()
        together = measure(model, EXAMPLES, masks, budget=budget)
        assert (together.values - alone.values).abs().max() < 1e-5
        behind = [shape for shape in kernel if shape[0] < shape[1]]
        assert bool(behind) == (model.name == "llama")


# --- proved ---


def longrope() -> Model:
    """A model whose rotary positions depend on how long a pass is."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0, 4.0, 5.0, 6.0],
        "original_max_position_embeddings": 12,  # the prompts have more, what they share fewer
        "partial_rotary_factor": 1.0,
    }
    torch.manual_seed(0)
    long = {"rope_parameters": rope, "original_max_position_embeddings": 12}
    config = type(tiny("phi3").config)(**{**tiny("phi3").config.to_dict(), **long})
    hf = type(tiny("phi3"))(config).eval()
    hf.load_state_dict(tiny("phi3").state_dict())
    return Model(hf, tiny_tokenizer(), name="longrope")


def test_nothing_is_shared_where_positions_depend_on_a_passs_length(shapes):
    model = longrope()
    result = check(model)
    refused = {proof.name: proof.note for proof in result.proofs if not proof.passed}
    assert "longrope" in refused["sharing"]
    assert model.restart.begins_late
    shapes.clear()
    masks = random_masks(5, seed=1)
    found = measure(model, EXAMPLES, masks)
    alone = measure(model, EXAMPLES, masks, restart=False)
    assert (found.values - alone.values).abs().max() < 1e-4


def test_sharing_is_not_trusted_where_it_cannot_be_proved(shapes):
    """Rotary positions that are stretched by the last one, and do not say so."""
    hf = copy.deepcopy(tiny("llama"))
    own = hf.model.rotary_emb.forward

    def stretched(hidden, position_ids):
        cos, sin = own(hidden, position_ids)
        return cos * (1 + 0.01 * position_ids.max()), sin

    hf.model.rotary_emb.forward = stretched
    model = Model(hf, tiny_tokenizer(), name="stretched")
    refused = [proof.name for proof in check(model).proofs if not proof.passed]
    assert refused == ["sharing"]
    masks = random_masks(5, seed=1)
    alone = measure(model, EXAMPLES, masks, restart=False)
    shapes.clear()
    found = measure(model, EXAMPLES, masks)
    assert (found.values - alone.values).abs().max() < 1e-4
    assert {positions for _, positions in shapes} == {14}
    assert Rows(model, EXAMPLES, 4).alike is None


# --- which rows run together ---


def test_ways_to_share_are_all_there_are():
    draw = random.Random(0)
    for _ in range(200):
        rows = [[draw.randint(0, 1) for _ in range(6)] for _ in range(draw.randint(1, 6))]
        owners = [draw.randint(0, 1) for _ in rows] if draw.random() < 0.5 else None
        limit = draw.randint(0, 6)
        found = {way.length: way.groups for way in ways_to_share(rows, limit, owners)}

        def groups(length, rows=rows, owners=owners):
            keys = [
                (tuple(row[:length]), owners and owners[number]) for number, row in enumerate(rows)
            ]
            return [sorted(set(keys), key=keys.index).index(key) for key in keys]

        for length, own in found.items():
            assert own == groups(length)
        # Of each number of groups, but for every row by itself, the longest.
        longest = {max(groups(length)) + 1: length for length in range(1, limit + 1)}
        longest.pop(len(rows), None)
        for number, length in longest.items():
            assert length in found, (number, length, found)


def test_families_hold_every_example_once_and_cost_no_more_than_without(llama):
    draw = random.Random(1)
    words = ["the", " cat", " sat", " on", " mat", " john", " gave", " mary"]

    def prompt(n: int) -> str:
        return "".join(draw.choice(words) for _ in range(n))

    for _ in range(30):
        beginnings = [prompt(draw.randint(2, 9)) for _ in range(draw.randint(1, 4))]
        examples = [
            Example(
                f"{draw.choice(beginnings)}{prompt(draw.randint(1, 8))}",
                " apple",
                wrong=(" the", " the cat")[: draw.randint(1, 2)],
                id=str(n),
            )
            for n in range(draw.randint(1, 14))
        ]
        encoded = encode_all(llama, examples, MEASURES["logit-diff"], False)
        tokens, masks = draw.choice([20, 60, 300]), draw.choice([1, 5, 50])
        sharing = Sharing(draw.choice([0, 10, 1000]), draw.choice([60, 200, 2000]))
        found = list(families(encoded, tokens, masks, None, sharing))
        members = [n for family in found for chunk in family.chunks for n in chunk.examples]
        assert sorted(members) == list(range(len(examples)))
        plain = list(families(encoded, tokens, masks))
        assert cost(encoded, found, masks) <= cost(encoded, plain, masks)
        for family in found:
            runs = [
                run
                for chunk in family.chunks
                for n in chunk.examples
                for run in encoded[n].sequences
            ]
            if family.alike is None:
                assert len(family.chunks) == 1
                continue
            assert len(family.alike.groups) == len(runs)
            assert family.alike.length <= min(run.start for run in runs)
            for run, group in zip(runs, family.alike.groups, strict=True):
                first = runs[family.alike.firsts[group]]
                length = family.alike.length
                assert torch.equal(run.ids[:length], first.ids[:length])


def test_chunks_have_room_for_their_longest_in_any_order():
    """Also where those that begin alike stand together, not those of one length."""
    assert list(_cut([0, 1, 2, 3], [9, 2, 2, 2], 18, [1] * 4)) == [[0, 1], [2, 3]]
    assert list(_cut([3, 1, 0, 2], [9, 2, 2, 2], 18, [1] * 4)) == [[3, 1], [0, 2]]


def test_planning_takes_time_as_there_are_examples_not_their_square(llama, monkeypatch):
    looked_at = []
    own = chunks.fmean
    monkeypatch.setattr(chunks, "fmean", lambda each: looked_at.append(len(each)) or own(each))
    draw = random.Random(2)
    examples = [
        Example(ONE + draw.choice([" cat", " mat"]) * draw.randint(1, 5), " apple", id=str(n))
        for n in range(200)
    ]
    encoded = encode_all(llama, examples, MEASURES["log-prob"], False)
    list(families(encoded, 4096, 50, None, Sharing(0, 10**6)))
    assert 0 < sum(looked_at) <= 200


@pytest.mark.parametrize(("sizes", "length"), [((6, 6, 6), 9), ((2, 1, 1), 4)])
def test_of_two_ways_to_share_the_cheaper_one_is_taken(llama, sizes, length):
    """A little of all rows, or much of each group's."""
    groups = [" cat sat on the mat,", " mat sat on the cat,", " apple sat on john,"]
    examples = [
        Example(f"mary gave{group} {word}", " apple", id=f"{group} {word}")
        for group, size in zip(groups, sizes, strict=True)
        for word in ("john", "mary", "cat", "mat", "on", "apple")[:size]
    ]
    encoded = encode_all(llama, examples, MEASURES["log-prob"], False)
    (family,) = families(encoded, 4096, 50, None, Sharing(0, 10**6))
    assert family.alike is not None
    assert family.alike.length == length


def cost(encoded, found, masks) -> int:
    """Tokens that run."""
    total = 0
    for family in found:
        shared = 0 if family.alike is None else family.alike.length
        total += 0 if family.alike is None else len(family.alike.firsts) * shared
        for chunk in family.chunks:
            own = [encoded[n] for n in chunk.examples]
            rows = sum(len(each.sequences) for each in own)
            total += rows * (max(each.length for each in own) - shared)
    return total * masks


def test_what_saves_less_than_a_pass_costs_is_not_shared(llama, monkeypatch, shapes):
    masks = random_masks(3, seed=2)
    monkeypatch.setattr("headlab.budgets._START_ON_CPU", 10**6)
    measure(llama, EXAMPLES, masks)
    assert {positions for _, positions in shapes} == {shapes[0][1]}, "whole rows"


# --- fits ---


def fit_slopes(
    model: Model,
    reference: Reference = ZERO,
    tokens: int = 4096,
    examples: list[Example] = EXAMPLES,
):
    rows = Rows(model, examples, 4)
    logits = torch.randn(
        3, model.n_layers, model.n_heads, generator=torch.Generator().manual_seed(1)
    )
    numbers = np.array([0, 1, 2, 4, 3, 2, 1, 0, 4, 3, 2, 1])
    return summed_slopes(
        model,
        rows,
        reference,
        logits,
        numbers,
        tokens,
        lambda log_probs, n: -log_probs * (1 + n % 3),
    )


@each_architecture
def test_slopes_of_fits_go_through_what_rows_share(model, shapes):
    losses, slopes = fit_slopes(model)
    ran = tokens_of(shapes)
    shapes.clear()
    own_losses, own_slopes = fit_slopes(apart(model))
    assert ran < 0.8 * tokens_of(shapes)
    assert torch.allclose(losses, own_losses, atol=1e-5)
    scale = own_slopes.abs().max()
    assert scale > 1e-3
    assert (slopes - own_slopes).abs().max() < 1e-4 * max(1, scale)


@pytest.mark.parametrize("tokens", [1, 15, 40, 100])
def test_fits_share_in_as_many_passes_as_memory_asks_for(llama, tokens):
    losses, slopes = fit_slopes(llama, tokens=tokens)
    own_losses, own_slopes = fit_slopes(apart(llama), tokens=tokens)
    assert torch.allclose(losses, own_losses, atol=1e-5)
    assert torch.allclose(slopes, own_slopes, atol=1e-6)


def test_fits_with_a_mean_for_closed_heads_share_as_well(llama):
    reference = mean_reference(llama, [EXAMPLES[0].prompt])
    _, slopes = fit_slopes(llama, reference)
    _, own_slopes = fit_slopes(apart(llama), reference)
    assert torch.allclose(slopes, own_slopes, atol=1e-6)


def test_fits_with_a_mean_of_each_position_share_as_well(llama, shapes):
    prompt = EXAMPLES[0].prompt
    alike = [
        dataclasses.replace(EXAMPLES[0], prompt=f"{prompt[:-4]} {word}", id=word)
        for word in ("the", "mary", "cat", "mat", "on")
    ]
    reference = mean_reference(llama, [prompt], per_position=True)
    _, slopes = fit_slopes(llama, reference, examples=alike)
    assert min(positions for _, positions in shapes) < 4
    _, own_slopes = fit_slopes(apart(llama), reference, examples=alike)
    assert own_slopes.abs().max() > 1e-3
    assert torch.allclose(slopes, own_slopes, atol=1e-6)


def one_layer(name: str, learns: bool) -> Model:
    """A model whose gates change no keys and values."""
    config = copy.deepcopy(tiny(name).config)
    config.num_hidden_layers = 1
    torch.manual_seed(0)
    made = Model(type(tiny(name))(config).eval(), tiny_tokenizer(), name="one layer")
    made.hf.requires_grad_(learns)
    check(made)
    return made


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox"])
def test_models_of_one_layer_share_too(name, learns, shapes):
    model = one_layer(name, learns)
    assert model.restart.shares
    shapes.clear()
    losses, slopes = fit_slopes(model)
    assert min(positions for _, positions in shapes) < 6
    own_losses, own_slopes = fit_slopes(apart(model))
    assert torch.allclose(losses, own_losses, atol=1e-5)
    assert torch.allclose(slopes, own_slopes, atol=1e-6)
    gates = random_masks(4, seed=4)[:, :1]
    for reference in ("zero", "counterfactual"):
        given = ANSWERED, gates, "logit-diff-mean", reference
        together, alone = (gate_gradients(each, *given) for each in (model, apart(model)))
        assert torch.allclose(together.gradient, alone.gradient, atol=1e-6)
        assert alone.gradient.abs().max() > 1e-4


def test_a_fit_that_shares_learns_the_same_gates(llama):
    schedule = Schedule(updates=12, batch=4)
    together = fit_gates(llama, EXAMPLES, [0, 1], schedule)
    alone = fit_gates(apart(llama), EXAMPLES, [0, 1], schedule)
    for name in ("free", "plus", "minus"):
        assert torch.allclose(getattr(together, name), getattr(alone, name), atol=1e-3), name


def test_blocks_hold_every_row_once_with_its_own_beginning(llama):
    rows = Rows(llama, EXAMPLES, 4)
    numbers = np.array([0, 1, 2, 4, 3, 2, 1, 0])
    for tokens in (1, 20, 60, 4096):
        seen = []
        for block in rows.blocks(numbers, 4, tokens, start=0):
            assert block.begins is not None
            for place in block.members:
                pair = int(block.begins.of[place])
                assert int(block.begins.fits[pair]) == place // 4
                ids = (
                    encode_all(llama, [EXAMPLES[numbers[place]]], MEASURES["log-prob"], False)[0]
                    .sequences[0]
                    .ids
                )
                assert torch.equal(block.begins.tokens.ids[pair], ids[: block.begin])
            seen += block.members.tolist()
        assert sorted(seen) == list(range(8))


def test_fits_share_nothing_where_that_saves_less_than_it_costs(llama):
    rows = Rows(llama, EXAMPLES, 4)
    (block,) = rows.blocks(np.arange(5), 5, 4096, start=10**6)
    assert block.begins is None


def test_heads_are_ablated_in_what_is_shared_too(llama):
    """A head off behind the beginning only would be another number."""
    head = Gates.ablate(llama, [Head(0, 1)])
    together = measure(llama, EXAMPLES, Gates.stack([head] * 5)).values[0]
    length = max(each.length for each in encode_all(llama, EXAMPLES, MEASURES["log-prob"], False))
    late = head.values.expand(-1, -1, -1, -1, length).clone()
    late[..., :8] = 1
    only_late = measure(llama, EXAMPLES, Gates(late, " ".join(headlab.gates.AXES)), restart=False)
    assert (together - only_late.values[0]).abs().min() > 1e-4
