"""The engine's table equals one plain pass per mask and example, whatever it does to be fast."""

from __future__ import annotations

import copy
import dataclasses
import random
import warnings

import pytest
import torch
from measuring import EXAMPLES, random_masks, references
from tiny import ARCHITECTURES, tiny, tiny_tokenizer

import headlab.engine
from headlab import Gates, HeadlabError, Model, mean_reference
from headlab.budgets import largest_budget
from headlab.engine import measure
from headlab.examples import Example
from headlab.gradients import gate_gradients
from headlab.measures import MEASURES
from headlab.noise import noise_floor
from headlab.proofs import check

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


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


def one_plain_pass(model, example, values, reference):
    """Log-prob of each answer, by full passes over one row with our seam but none of the engine."""
    answers = []
    for answer in example.answers:
        joined, start = model.join(example.prompt, answer)
        stand_in = reference
        if reference == "counterfactual":
            corrupt, _ = model.join(example.counterfactual, answer)
            stand_in = headlab.counterfactual_reference(model, [joined], [corrupt])
        elif reference == "zero":
            stand_in = headlab.Reference()
        with model.gated(Gates(values), stand_in):
            scores = model(joined)[0].log_softmax(-1)
        answers.append(sum(scores[p - 1, joined[p]].item() for p in range(start, len(joined))))
    return answers


@each_architecture
@pytest.mark.parametrize("kind", ["zero", "mean", "counterfactual"])
def test_any_masks_equal_one_plain_pass_each(model, kind):
    masks, reference = random_masks(6), references(model)[kind]
    table = measure(model, EXAMPLES, masks, "log-prob", reference)
    assert table.values.shape == (6, 3)
    assert table.restarted
    for column, example in enumerate(EXAMPLES):
        for row in range(6):
            expected = one_plain_pass(model, example, masks[row], reference)[0]
            assert abs(table.values[row, column] - expected) < 1e-4, (row, example.id)
        clean = one_plain_pass(model, example, torch.ones(3, 4), "zero")[0]
        assert abs(table.clean[column] - clean) < 1e-4


@each_architecture
def test_restarting_changes_nothing(model):
    masks = random_masks(8, seed=1)
    fast = measure(model, EXAMPLES, masks, "logit-diff")
    plain = measure(model, EXAMPLES, masks, "logit-diff", restart=False)
    assert not plain.restarted
    assert (fast.values - plain.values).abs().max() < 1e-5


@each_architecture
@pytest.mark.parametrize("joins", [True, False])
def test_masks_that_begin_in_different_layers_share_passes(model, joins, monkeypatch):
    assert model.restart.joins, "proved"
    monkeypatch.setattr(model, "restart", dataclasses.replace(model.restart, joins=joins))
    rows = []
    plain = Model.logits_at
    monkeypatch.setattr(
        Model,
        "logits_at",
        lambda self, tokens, *places: rows.append(len(tokens.ids)) or plain(self, tokens, *places),
    )
    deep = torch.ones(4, 3, 4)  # the first two begin in layer 1, then change layer 2 as well
    deep[0, 1, 2] = deep[0, 2, 0] = deep[2, 2, 1] = deep[3, 0, 3] = 0
    deep[1, 1, 0], deep[1, 2] = 0.5, torch.tensor([0.0, 1.0, 0.3, 1.0])
    masks = torch.cat([Gates.each_head(model).values[:, 0, ..., 0], deep])
    table = measure(model, EXAMPLES, masks, "log-prob", "counterfactual")
    each = rows[0]
    assert rows[1:] == ([16 * each] if joins else [5 * each, 6 * each, 5 * each])
    for number, mask in enumerate(masks):
        for column, example in enumerate(EXAMPLES):
            expected = one_plain_pass(model, example, mask, "counterfactual")[0]
            assert abs(table.values[number, column] - expected) < 1e-4, (number, example.id)


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gemma2", "gpt-oss"])
def test_windows_that_the_proofs_do_not_fill_are_heeded(name):
    """A prompt longer than the window has a mask, a shorter one may have none."""
    network = copy.deepcopy(tiny(name))
    network.config.sliding_window = 16
    for block in network.model.layers:
        if getattr(block.self_attn, "sliding_window", None):
            block.self_attn.sliding_window = 16
    windowed = Model(network, tiny_tokenizer(), name=name)
    check(windowed)
    assert windowed.restart.joins
    long = "the cat gave john the apple, the mat gave mary the cat, the cat sat on the"
    examples = [Example(long, " mat"), Example(long[14:], " apple")]
    assert min(len(windowed.ids(each.prompt)) for each in examples) > 16
    masks = Gates.each_head(windowed)
    fast = measure(windowed, examples, masks)
    plain = measure(windowed, examples, masks, restart=False)
    assert (fast.values - plain.values).abs().max() < 1e-5


@each_architecture
def test_the_restart_path_with_gates_of_one_changes_no_bit(model, monkeypatch):
    """A mask of ones is made to start at a layer instead of being answered by the clean pass."""
    for layer in range(3):
        monkeypatch.setattr(headlab.engine, "_first_layers", lambda _, n=layer: torch.tensor([n]))
        table = measure(model, EXAMPLES, torch.ones(1, 3, 4), "log-prob")
        assert torch.equal(table.values[0], table.clean)


@pytest.mark.parametrize("name", list(MEASURES))
def test_batched_equals_alone_for_every_measure(llama, name):
    masks = random_masks(5, seed=2)
    together = measure(llama, EXAMPLES, masks, name, "counterfactual")
    for column, example in enumerate(EXAMPLES):
        for row in range(5):
            alone = measure(llama, [example], masks[row], name, "counterfactual", budget=1)
            assert abs(together.values[row, column] - alone.values[0, 0]) < 1e-5


def test_every_measure_equals_its_definition(llama):
    masks = random_masks(5, seed=3)
    tables = {name: measure(llama, EXAMPLES, masks, name).values for name in MEASURES}
    for column, example in enumerate(EXAMPLES):
        for row in range(5):
            answers = torch.tensor(one_plain_pass(llama, example, masks[row], "zero"))
            target, wrong = answers[0], answers[1:]
            joined, start = llama.join(example.prompt, example.target)
            clean = llama(joined)[0].log_softmax(-1)
            with llama.gated(Gates(masks[row])):
                gated = llama(joined)[0].log_softmax(-1)
            read = slice(start - 1, len(joined) - 1)
            right = gated[read].argmax(-1) == joined[start:]
            kl = (clean.exp() * (clean - gated)).sum(-1)[read].mean()
            expected = {
                "log-prob": target,
                "log-prob-per-token": target / (len(joined) - start),
                "logit-diff": target - wrong.max(),
                "logit-diff-mean": target - wrong.mean(),
                "prob-diff": target.exp() - wrong.exp().sum(),
                "choice-accuracy": float(target > wrong.max()),
                "top1-accuracy": float(right.all()),
                "kl": kl,
            }
            for name, value in expected.items():
                assert abs(tables[name][row, column] - value) < 1e-5, name


def test_a_logit_difference_is_one_of_logits(llama):
    example = EXAMPLES[0]
    logits = llama(example.prompt)[0, -1]
    ids = [int(llama.ids(answer)[0]) for answer in example.answers]
    expected = logits[ids[0]] - torch.max(logits[ids[1]], logits[ids[2]])
    table = measure(llama, [example], torch.ones(3, 4), "logit-diff")
    assert abs(table.clean[0] - expected) < 1e-5


def test_shuffling_examples_or_masks_changes_nothing(llama):
    masks = random_masks(6, seed=4)
    table = measure(llama, EXAMPLES, masks).values
    examples, rows = [2, 0, 1], [5, 3, 0, 1, 4, 2]
    shuffled = measure(llama, [EXAMPLES[i] for i in examples], masks[rows]).values
    assert (shuffled - table[rows][:, examples]).abs().max() < 1e-5


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("masks_in_a_pass", [1, 3, 5])
def test_passes_that_hold_a_part_of_a_layers_heads(llama, joins, masks_in_a_pass):
    llama.restart = dataclasses.replace(llama.restart, joins=joins)
    masks, example = Gates.each_head(llama), [EXAMPLES[1]]
    tokens = len(llama.join(EXAMPLES[1].prompt, EXAMPLES[1].target)[0])
    table = measure(llama, example, masks, budget=masks_in_a_pass * tokens)
    plain = measure(llama, example, masks, restart=False)
    assert (table.values - plain.values).abs().max() < 1e-5


@pytest.mark.parametrize("budget", [1, 7, 40, 10_000])
def test_the_budget_changes_nothing(llama, budget):
    masks = random_masks(6, seed=5)
    table = measure(llama, EXAMPLES, masks, reference="counterfactual", budget=budget)
    usual = measure(llama, EXAMPLES, masks, reference="counterfactual")
    assert table.budget == budget
    assert (table.values - usual.values).abs().max() < 1e-5


def test_gates_may_differ_between_examples_and_positions(llama):
    generator = torch.Generator().manual_seed(6)
    by_example = torch.rand(2, 3, 3, 4, generator=generator)
    table = measure(llama, EXAMPLES, Gates(by_example, "mask example layer head")).values
    by_position = torch.rand(2, 3, 4, 12, generator=generator)
    other = measure(llama, EXAMPLES, Gates(by_position, "mask layer head position")).values
    for column, example in enumerate(EXAMPLES):
        for row in range(2):
            expected = one_plain_pass(llama, example, by_example[row, column], "zero")[0]
            assert abs(table[row, column] - expected) < 1e-4
            joined, start = llama.join(example.prompt, example.target)
            fed = len(joined) - 1
            gates = Gates(by_position[row, :, :, :fed], "layer head position")
            with llama.gated(gates):
                scores = llama(joined[:-1])[0].log_softmax(-1)
            expected = sum(scores[p - 1, joined[p]].item() for p in range(start, len(joined)))
            assert abs(other[row, column] - expected) < 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_running_out_of_memory_anywhere_changes_no_number(llama, monkeypatch, seed):
    masks = random_masks(8, seed=7)
    usual = measure(llama, EXAMPLES, masks, reference="counterfactual", budget=64)
    chance, plain = random.Random(seed), Model.logits_at

    def sometimes_full(self, *args):
        if args[0].ids.numel() > 20 and chance.random() < 0.4:  # never for one example alone
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return plain(self, *args)

    monkeypatch.setattr(Model, "logits_at", sometimes_full)
    done = []
    table = measure(
        llama, EXAMPLES, masks, reference="counterfactual", budget=64, progress=done.append
    )
    assert (table.values - usual.values).abs().max() < 1e-5
    assert table.backed_off == (table.budget < 64)
    assert sum(done) == 24, "every pair is reported once"


def test_an_example_that_never_fits_is_named(llama, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory (planted)")

    monkeypatch.setattr(Model, "logits_at", full)
    with pytest.raises(HeadlabError, match="example 'short' does not fit into memory, even alone"):
        measure(llama, EXAMPLES, random_masks(4))


def test_progress_reports_every_pair_once(llama):
    done = []
    measure(llama, EXAMPLES, random_masks(6), budget=20, progress=done.append)
    assert sum(done) == 18


def test_nan_logits_stop_with_the_example_named(llama, monkeypatch):
    plain = Model.logits_at

    def spoiled(self, tokens, rows, positions):
        logits = plain(self, tokens, rows, positions)
        logits[-1] = torch.nan
        return logits

    monkeypatch.setattr(Model, "logits_at", spoiled)
    with pytest.raises(HeadlabError, match=r"example '.*' has NaN logits"):
        measure(llama, EXAMPLES, random_masks(3))


def test_a_model_that_cannot_restart_runs_full_passes_and_says_so_once(llama):
    llama.restart = None
    with pytest.warns(UserWarning, match="llama-wide cannot be restarted"):
        table = measure(llama, EXAMPLES, random_masks(3))
    assert not table.restarted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure(llama, EXAMPLES, random_masks(3))


@pytest.mark.parametrize(
    ("examples", "options", "sentence"),
    [
        ([], {}, "no examples"),
        ([Example("the cat", " sat", id="a")], {"measure": "logit-diff"}, "'a' has none"),
        (
            [Example("the cat", " sat", wrong=(" sat",), id="a")],
            {"measure": "logit-diff"},
            "example 'a': the answers ' sat' and ' sat' are the same tokens",
        ),
        (
            [Example("the cat", " sat", id="a")],
            {"reference": "counterfactual"},
            "no counterfactual",
        ),
        (
            [Example("the cat", " sat", "the", id="a")],
            {"reference": "counterfactual"},
            "example 'a': the prompt has 2 tokens and its counterfactual 1",
        ),
        ([Example("th", "e", id="a")], {}, "example 'a': prompt and target merge"),
        ([Example("the cat", "", id="a")], {}, "example 'a': the target is empty"),
        (EXAMPLES, {"measure": "logit-dif"}, "did you mean 'logit-diff'"),
        (EXAMPLES, {"reference": "median"}, "not 'median'"),
    ],
)
def test_what_cannot_be_measured_is_refused(llama, examples, options, sentence):
    with pytest.raises(HeadlabError, match=sentence):
        measure(llama, examples, torch.ones(3, 4), **options)


def test_the_noise_floor_grows_with_coarser_numbers():
    floors = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = Model(tiny("llama-wide", dtype), tiny_tokenizer())
        check(model)
        floors[dtype] = noise_floor(model, EXAMPLES, Gates.each_head(model), "logit-diff")
    assert 0 < floors[torch.float32] < 1e-5
    assert 1e-3 < floors[torch.bfloat16] < 0.5


# Two shapes of answers interleaved, lengths not in order.
MIXED = [
    Example("the cat gave john the", " apple", wrong=(" mat",), id="a"),
    Example("the mat", " cat sat", wrong=(" on",), id="b"),
    Example("the apple", " sat", wrong=(" on",), also_right=(" mat",), id="c"),
    Example("on the mat", " cat", wrong=(" on",), id="d"),
    Example("the john", " cat sat", wrong=(" on",), id="e"),
]


@pytest.mark.parametrize("budget", [None, 12])
def test_examples_of_mixed_shapes_keep_their_columns(llama, budget):
    masks = torch.rand(4, 3, 4, generator=torch.Generator().manual_seed(0))
    together = measure(llama, MIXED, masks, "prob-diff", budget=budget).values
    for column, example in enumerate(MIXED):
        alone = measure(llama, [example], masks, "prob-diff").values[:, 0]
        assert (together[:, column] - alone).abs().max() < 1e-6


def test_all_right_answers_count(llama):
    probs = llama("the apple")[0, -1].softmax(-1)
    sat, mat, on = (probs[int(llama.ids(text)[0])] for text in (" sat", " mat", " on"))
    table = measure(llama, [MIXED[2]], torch.ones(3, 4), "prob-diff")
    assert abs(table.clean[0] - (sat + mat - on)) < 1e-6


@pytest.mark.parametrize("budget", [None, 12])
def test_gates_of_each_example_follow_it_when_lengths_are_not_sorted(llama, budget):
    gates = torch.rand(2, 5, 3, 4, generator=torch.Generator().manual_seed(1))
    together = measure(llama, MIXED, Gates(gates, "mask example layer head"), budget=budget).values
    for column, example in enumerate(MIXED):
        alone = measure(llama, [example], gates[:, column]).values[:, 0]
        assert (together[:, column] - alone).abs().max() < 1e-5


def test_masks_that_begin_together_and_go_on_apart(llama):
    masks = torch.ones(3, 3, 4)
    masks[:, 0, 1] = 0
    masks[1, 2, 0] = 0
    masks[2, 1, 3] = 0
    fast = measure(llama, MIXED, masks).values
    alone = torch.cat([measure(llama, MIXED, mask).values for mask in masks])
    assert (fast - alone).abs().max() < 1e-5
    assert (fast[0] - fast[1]).abs().max() > 1e-3


def test_a_mean_per_position_is_refused_for_examples_of_another_length(llama):
    """Whatever stands beside them in the batch."""
    mean = mean_reference(llama, ["the cat gave john the", "on the mat, the"], per_position=True)
    with pytest.raises(HeadlabError, match="of 5 positions does not fit example 'b'"):
        measure(llama, MIXED, Gates.each_head(llama), reference=mean)
    with pytest.raises(HeadlabError, match="of 5 positions does not fit example 'b'"):
        gate_gradients(llama, MIXED, Gates.ones(llama), reference=mean)
    assert measure(llama, MIXED[:1], Gates.each_head(llama), reference=mean).values.shape == (12, 1)


def test_a_measure_that_is_no_number_names_its_example(llama):
    llama.hf = copy.deepcopy(llama.hf)
    llama = Model(llama.hf, llama.tokenizer, name="inf")
    words = [int(llama.ids(text)[0]) for text in (" sat", " on")]
    head = llama.hf.get_output_embeddings()

    def cap(_, __, logits):
        logits[..., words] = -torch.inf
        return logits

    handle = head.register_forward_hook(cap)
    example = Example("the cat", " sat", wrong=(" on",), id="both")
    with pytest.raises(HeadlabError, match="logit-diff of example 'both' is not a number"):
        measure(llama, [example], torch.ones(3, 4), "logit-diff")
    handle.remove()


def test_the_noise_floor_of_float64_is_not_measured():
    model = Model(copy.deepcopy(tiny("llama")).double(), tiny_tokenizer(), name="wide")
    with pytest.raises(HeadlabError, match="no dtype is wider than float64"):
        noise_floor(model, MIXED, Gates.each_head(model))


@pytest.mark.parametrize(
    ("examples", "gates", "sentence"),
    [
        ("the cat", torch.ones(3, 4), "examples come as a list"),
        (EXAMPLES[0], torch.ones(3, 4), "examples come as a list"),
        (["the cat"], torch.ones(3, 4), "'the cat' is not an Example"),
        (EXAMPLES, None, "gates are a tensor of numbers, not None"),
        (EXAMPLES, torch.ones(2, 4), "gates for 2 layers x 4 heads do not fit llama-wide"),
        (EXAMPLES, torch.ones(9, 4), "gates for 9 layers x 4 heads do not fit llama-wide"),
    ],
)
def test_slips_are_one_sentence(llama, examples, gates, sentence):
    with pytest.raises(HeadlabError, match=sentence):
        measure(llama, examples, gates)


def test_wrong_answers_are_a_list():
    with pytest.raises(HeadlabError, match="wrong is a list of answers, not ' Rome'"):
        Example("a", " b", wrong=" Rome")
    assert Example("a", " b", wrong=[" c"]).wrong == (" c",)


@pytest.mark.parametrize("name", list(MEASURES))
def test_every_measure_has_a_noise_floor(llama, name):
    assert noise_floor(llama, MIXED, Gates.each_head(llama), name) < 1e-5


def test_small_models_have_larger_passes():
    """Where starting a pass takes longer than running it: fewer of them, to a limit."""
    shapes = {"smollm2": 3_540_096, "gpt2": 7_087_872, "1b": 60_821_504, "tiny": 9_000}
    found = {name: largest_budget(weights) for name, weights in shapes.items()}
    assert found == {"smollm2": 65536, "gpt2": 32768, "1b": 32768, "tiny": 131072}
