"""Passes begin behind positions where nothing changes, and give what whole passes give."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from functools import partial

import pytest
import torch
from measuring import random_masks
from tiny import ARCHITECTURES, STRANGERS, tiny, tiny_tokenizer
from transformers.integrations import sdpa_attention

import headlab.stretches
from headlab import Example, Gates, Head, HeadlabError, Model, generate, measure
from headlab.batches import encode_all
from headlab.chunks import _by_beginning, families, first_changes
from headlab.gradients import gate_gradients
from headlab.measures import MEASURES
from headlab.proofs import check

each_architecture = pytest.mark.parametrize("name", [*ARCHITECTURES, *STRANGERS])

# They part at different places, run over different lengths, and read answers of several tokens.
LATE = Example(
    "the cat sat on the mat, john gave the",
    " apple",
    "the cat sat on the mat, mary gave the",
    wrong=(" mat",),
    id="late",
)
EXAMPLES = [
    LATE,
    Example(
        "the cat sat on the mat, the cat", " sat", "the cat sat on the mat, the mat", id="last"
    ),
    Example(
        "the cat sat on the mat, john",
        " sat on",
        "the cat sat on the mat, mary",
        wrong=(" gave", " gave the cat"),
        id="many",
    ),
    Example("the mat, the cat", " apple", "the cat, the cat", wrong=(" mat",), id="early"),
    Example("the cat sat on", " the", "the cat sat on", id="never"),
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


@pytest.fixture
def apart(monkeypatch) -> None:
    """Examples run apart wherever that saves a token."""
    monkeypatch.setattr(headlab.chunks, "_APART", 10**9)


@pytest.fixture
def lengths(monkeypatch) -> list[int]:
    """How many positions the passes under gates ran over."""
    seen: list[int] = []
    own = headlab.Model.inputs

    def inputs(self, tokens):
        if self._gates is not None:
            seen.append(tokens.ids.shape[1])
        return own(self, tokens)

    monkeypatch.setattr(headlab.Model, "inputs", inputs)
    return seen


def whole(model: Model) -> Model:
    """The same, whose passes begin with the first token."""
    other = copy.copy(model)
    other.restart = dataclasses.replace(model.restart, begins_late=False)
    return other


@each_architecture
def test_passes_behind_a_beginning_give_what_whole_passes_give(model, lengths, apart):
    assert model.restart.begins_late
    masks = random_masks(9, seed=3)[:, : model.n_layers]
    late = measure(model, EXAMPLES, masks, "log-prob", "counterfactual")
    assert max(lengths) < 10, "no pass ran over all of the longest prompt"
    assert min(lengths) == 1
    early = measure(model, EXAMPLES, masks, "log-prob", "counterfactual", restart=False)
    assert (late.values - early.values).abs().max() < 1e-4
    assert torch.equal(late.change[:, 4], torch.zeros(9)) or late.change[:, 4].abs().max() < 1e-5
    assert early.change[:, :4].abs().amin(1)[2:].max() > 1e-3, "there is something to get wrong"


@each_architecture
def test_slopes_behind_a_beginning_are_those_of_whole_passes(model, lengths, apart):
    gates = random_masks(4, seed=4)[:, : model.n_layers]
    late = gate_gradients(model, EXAMPLES, gates, "log-prob", "counterfactual")
    assert max(lengths) < 10
    early = gate_gradients(whole(model), EXAMPLES, gates, "log-prob", "counterfactual")
    assert (late.values - early.values).abs().max() < 1e-4
    scale = early.gradient.abs().max()
    assert scale > 1e-3
    assert (late.gradient - early.gradient).abs().max() < 1e-4 * max(1, scale)


@each_architecture
def test_it_is_so_where_positions_and_masks_are_given(model, apart):
    model.bare = False
    gates = random_masks(5, seed=8)[:, : model.n_layers]
    late = measure(model, EXAMPLES, gates, "log-prob", "counterfactual")
    early = measure(model, EXAMPLES, gates, "log-prob", "counterfactual", restart=False)
    assert (late.values - early.values).abs().max() < 1e-4


@pytest.mark.parametrize("measured", MEASURES)
def test_every_measure_may_be_read_behind_a_beginning(llama, measured):
    examples = [EXAMPLES[2], LATE]
    masks = random_masks(7, seed=5)
    late, early = (
        measure(each, examples, masks, measured, "counterfactual") for each in (llama, whole(llama))
    )
    assert (late.values - early.values).abs().max() < 1e-5


def test_gates_of_late_positions_begin_there_whatever_the_reference(llama, lengths):
    values = torch.ones(4, 3, 4, 10)
    values[1, 1, :, 6:] = values[2, 0, 2, 8:] = values[3, 0, 1, 6] = 0
    gates = Gates(values, "mask layer head position")
    by_position = headlab.mean_reference(llama, [LATE.prompt, LATE.counterfactual], True)
    for reference in ("zero", by_position, "counterfactual"):
        lengths.clear()
        late = measure(llama, [LATE], gates, "log-prob", reference)
        assert max(lengths) == (3 if reference == "counterfactual" else 4)
        early = measure(llama, [LATE], gates, "log-prob", reference, restart=False)
        assert (late.values - early.values).abs().max() < 1e-5
        assert early.change[1:3].abs().min() > 1e-4


def test_gates_of_every_example_stay_with_their_examples(llama, apart):
    """Also where examples run in another order, in groups of where they part."""
    values = torch.stack([random_masks(5, seed=seed) for seed in range(5)], 1)
    gates = Gates(values, "mask example layer head")
    late = measure(llama, EXAMPLES, gates, "log-prob", "counterfactual", budget=60)
    for column, example in enumerate(EXAMPLES):
        alone = Gates(values[:, column], "mask layer head")
        early = measure(llama, [example], alone, "log-prob", "counterfactual", restart=False)
        assert (late.values[:, column] - early.values[:, 0]).abs().max() < 1e-5


def test_other_references_run_whole(llama, lengths):
    measure(llama, [LATE], random_masks(3), "log-prob", "zero")
    mean = headlab.mean_reference(llama, [LATE.prompt])
    measure(llama, [LATE], random_masks(3), "log-prob", mean)
    assert set(lengths) == {10}


def test_memory_that_runs_out_behind_a_beginning_is_met_with_smaller_passes(
    llama, monkeypatch, apart
):
    own, failed = headlab.stretches.restarted, []

    def sometimes(*args, **kwargs):
        if len(failed) < 3:
            failed.append(True)
            raise torch.OutOfMemoryError("no room")
        return own(*args, **kwargs)

    monkeypatch.setattr(headlab.stretches, "restarted", sometimes)
    masks = random_masks(9, seed=6)
    found = measure(llama, EXAMPLES, masks, "log-prob", "counterfactual")
    assert found.backed_off
    early = measure(llama, EXAMPLES, masks, "log-prob", "counterfactual", restart=False)
    assert (found.values - early.values).abs().max() < 1e-5


def placed(hf) -> None:
    """An MLP that counts positions from where the pass begins."""

    class Placed(torch.nn.Module):
        def __init__(self, mlp):
            super().__init__()
            self.mlp = mlp

        def forward(self, hidden):
            return self.mlp(hidden) * (1 + 0.1 * torch.arange(hidden.shape[1])[:, None])

    hf.model.layers[0].mlp = Placed(hf.model.layers[0].mlp)


def embedded(hf) -> None:
    """Positions in the first hidden states that are counted from where the pass begins."""
    table = torch.randn(64, hf.config.hidden_size, generator=torch.Generator().manual_seed(0))
    hf.model.embed_tokens.register_forward_hook(lambda _, __, out: out + table[: out.shape[1]])


def forgetful(hf, layer: int) -> None:
    """Attention that keeps no keys of earlier passes."""
    attention = hf.model.layers[layer].self_attn
    own = attention.forward
    attention.forward = lambda *args, **named: own(*args, **{**named, "past_key_values": None})


def of_tuples(hf) -> None:
    """Code written for keys and values as tuples; it fails where it is given something else."""
    own = hf.model.forward

    def forward(*args, past_key_values=None, **named):
        if past_key_values is not None:
            past_key_values[0][0].size()
        return own(*args, **named)

    hf.model.forward = forward


@pytest.mark.parametrize(
    "odd",
    [placed, embedded, partial(forgetful, layer=0), partial(forgetful, layer=1), of_tuples],
    ids=["places", "embeddings", "no keys", "no keys later", "tuples"],
)
def test_a_beginning_that_cannot_be_proved_is_not_used(odd, lengths):
    hf = copy.deepcopy(tiny("llama"))
    odd(hf)
    model = Model(hf, tiny_tokenizer(), name="odd")
    result = check(model)
    assert result.passed
    assert "beginning" in [proof.name for proof in result.proofs if not proof.passed]
    assert not model.restart.begins_late
    lengths.clear()
    late = measure(model, [LATE], random_masks(5), "log-prob", "counterfactual")
    early = measure(model, [LATE], random_masks(5), "log-prob", "counterfactual", restart=False)
    assert (late.values - early.values).abs().max() < 1e-4
    gate_gradients(model, [LATE], random_masks(3), "log-prob", "counterfactual")
    assert set(lengths) == {10}


def test_a_beginning_is_that_of_the_whole_prompt():
    """Rotary positions may depend on how long a pass is."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0, 4.0, 5.0, 6.0],
        "original_max_position_embeddings": 8,  # the prompt has more, its beginning fewer
        "partial_rotary_factor": 1.0,
    }
    torch.manual_seed(0)
    long = {"rope_parameters": rope, "original_max_position_embeddings": 8}
    config = type(tiny("phi3").config)(**{**tiny("phi3").config.to_dict(), **long})
    hf = type(tiny("phi3"))(config).eval()
    hf.load_state_dict(tiny("phi3").state_dict())
    model = Model(hf, tiny_tokenizer(), name="longrope")
    check(model)
    assert model.restart.begins_late
    masks = random_masks(4, seed=9)
    late, early = (
        gate_gradients(each, [LATE], masks, "log-prob", "counterfactual")
        for each in (model, whole(model))
    )
    assert (late.gradient - early.gradient).abs().max() < 1e-4
    values = measure(model, [LATE], masks, "log-prob", "counterfactual").values
    assert (values - early.values).abs().max() < 1e-4


def test_gates_of_too_few_positions_are_refused(llama):
    """Also where those that are left might be taken for one of all positions."""
    for positions in (2, 7, 8, 9):
        values = torch.ones(1, 3, 4, positions)
        values[..., 7:] = 0
        gates = Gates(values, "mask layer head position")
        with pytest.raises(HeadlabError, match=f"gates for {positions} positions do not fit"):
            measure(llama, [LATE], gates, "log-prob", "counterfactual")


def test_what_is_not_run_makes_room_for_more_masks(llama, lengths):
    """But for its keys and values, which take room too."""
    masks = Gates.each_head(llama)
    for example, passes in ((LATE, 4), (EXAMPLES[1], 3)):  # 3 of 10 positions run, 1 of 9
        lengths.clear()
        measure(llama, [example], masks, "log-prob", "counterfactual", budget=9)
        assert len(lengths) == passes


def test_examples_are_grouped_where_that_saves_most():
    draw = random.Random(0)
    for _ in range(200):
        n = draw.randint(1, 7)
        lengths = [draw.randint(4, 20) for _ in range(n)]
        begins = [draw.randint(0, length - 1) for length in lengths]
        rows = [draw.randint(1, 3) for _ in range(n)]
        masks, overhead = draw.randint(1, 9), draw.choice([0, 10, 100, 1000])

        def cost(groups, lengths=lengths, rows=rows, masks=masks, overhead=overhead):
            return overhead * len(groups) + sum(
                masks * rows[k] * (lengths[k] - begin) for begin, group in groups for k in group
            )

        found = _by_beginning(begins, lengths, rows, masks, overhead)
        assert sorted(k for _, group in found for k in group) == list(range(n))
        assert all(begin == min(begins[k] for k in group) for begin, group in found)
        steps = sorted(set(begins))
        cheapest = min(
            cost(
                [
                    (a, [k for k in range(n) if a <= begins[k] < b])
                    for a, b in itertools.pairwise([*cuts, max(steps) + 1])
                ]
            )
            for count in range(len(steps))
            for cuts in ((steps[0], *some) for some in itertools.combinations(steps[1:], count))
        )
        assert cost(found) == cheapest


def test_a_chunk_begins_where_its_first_example_changes(llama):
    encoded = encode_all(llama, EXAMPLES, MEASURES["log-prob"], counterfactual=True)
    gates = torch.ones(1, 1, 3, 4, 1)
    begins = first_changes(encoded, gates, counterfactual=True)
    assert begins == [7, 8, 7, 1, 3]

    def chunks(*given):
        return [chunk for family in families(encoded, *given) for chunk in family.chunks]

    apart = [(sorted(each.examples), each.begin) for each in chunks(60, 100, begins)]
    assert apart == [([3], 1), ([4], 3), ([0, 2], 7), ([1], 8)]
    together = chunks(4096, 1, begins)
    assert [(sorted(each.examples), each.begin) for each in together] == [([0, 1, 2, 3, 4], 0)]
    assert first_changes(encoded, gates, counterfactual=False) == [0] * 5
    assert {each.begin for each in chunks(60)} == {0}


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_last_tokens_of_short_rows_attend_where_their_masks_show(model, kernel):
    """The kernel stands in where there is no window, and there alone."""
    masks = random_masks(6, seed=7)
    early = measure(model, [LATE], masks, "log-prob", "counterfactual", restart=False)
    kernel.clear()
    late = measure(model, [LATE], masks, "log-prob", "counterfactual")
    assert (late.values - early.values).abs().max() < 1e-5
    assert ((3, 10) in kernel) == (model.name == "llama")


def test_masks_of_texts_are_heeded_whatever_batches_came_before(llama, request):
    """A batch without pads, then one with, as long."""
    prompts = [LATE.prompt, LATE.counterfactual, "the cat sat on the mat, mary gave", "the cat sat"]
    expected = generate(llama, prompts, max_new_tokens=9, rows_at_a_time=2).texts
    kernel = request.getfixturevalue("kernel")
    assert generate(llama, prompts, max_new_tokens=9, rows_at_a_time=2).texts == expected
    assert kernel


def test_keys_of_a_beginning_are_not_repeated_for_every_query_head(llama, monkeypatch):
    repeated = []
    own = sdpa_attention.repeat_kv
    monkeypatch.setattr(
        sdpa_attention, "repeat_kv", lambda states, n: repeated.append(1) or own(states, n)
    )
    masks = Gates.ablate(llama, [Head(0, 1)])
    measure(llama, [LATE], masks, "log-prob", "counterfactual")
    gate_gradients(llama, [LATE], masks, "log-prob", "counterfactual")
    assert not repeated
