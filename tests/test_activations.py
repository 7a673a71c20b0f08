"""The first MLP's activations: found, described as by hand, and changed as ARM's formula says."""

from __future__ import annotations

import copy
import csv
import json
import math

import pytest
import torch
from arms import drawn, transcribed_rows
from commands import error_of, run
from tiny import ARCHITECTURES, STRANGERS, lettered, save_lettered, tiny, tiny_tokenizer

import headlab
from headlab import Gates, HeadlabError, Model, measure_activations
from headlab.activations import Arm, find_activation, parse_arm
from headlab.activations import arm as arms
from headlab.activations.arm import uniform
from headlab.activations.statistics import STATISTICS, describe_tokens
from headlab.fillers import CONDITIONS, Condition, build
from headlab.proofs import check
from headlab.stats import mean_interval

EXPERTS = {"mixtral", "qwen3-moe", "gpt-oss"}
PARALLEL = {"gptj", "gpt-neox", "cohere", "falcon", "falcon-mqa"}
QUESTIONS = [
    "what is it?",
    "is the answer in the question, or not?",
    "how many are 3 and 4 of these?",
]
SHORT = [Condition("none", kind="none"), Condition("mless", "/", 9), Condition("mful", "e", 9)]


def model_of(name: str = "llama") -> Model:
    model = Model(tiny(name), tiny_tokenizer(), name=name)
    check(model)
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    found = lettered()
    check(found)
    return found


# --- found by what it does ---


@pytest.mark.parametrize("name", [*ARCHITECTURES, *STRANGERS])
def test_the_activation_is_found_or_its_absence_is_said(name):
    model = Model(tiny(name), name=name)
    if name in EXPERTS:
        with pytest.raises(HeadlabError, match=f"first MLP of {name} is a mixture of experts"):
            find_activation(model)
        return
    found = find_activation(model)
    assert "act" in found.path or "gelu" in found.path
    assert found.path.split(".").count("0") == 1
    seen, after = [], []
    whole = found.module.register_forward_hook(lambda _, args, out: after.append(out.clone()))
    ids = torch.arange(3, 13).view(2, 5)
    with torch.no_grad(), found.changed(lambda x: seen.append(x)):
        model(ids)
    whole.remove()
    assert seen[0].shape[:2] == (2, 5)
    assert torch.equal(seen[0].flatten(), after[0].flatten())
    assert not found.module._forward_hooks
    assert not found.block._forward_pre_hooks


def test_a_layer_without_an_activation_is_named():
    model = Model(copy.deepcopy(tiny("llama")), name="llama")
    model.seam.blocks[0].mlp.act_fn = torch.nn.Identity()
    with pytest.raises(HeadlabError, match=r"no activation function found .* \(LlamaDecoderLayer"):
        find_activation(model)


# --- statistics ---


def by_hand(x: list[float], threshold: float) -> list[float]:
    sizes = [abs(value) for value in x]
    n, mean = len(x), sum(x) / len(x)
    apart = sum(abs(a - b) for a in sizes for b in sizes)
    return [
        sum(size <= threshold for size in sizes) / n,
        sum(sizes),
        math.sqrt(sum(value * value for value in x)),
        apart / (2 * n * sum(sizes)),
        sum((value - mean) ** 2 for value in x) / n,
    ]


def test_statistics_are_those_by_hand():
    x = torch.randn(4, 11, generator=torch.Generator().manual_seed(0))
    found = describe_tokens(x, 0.4)
    expected = torch.tensor([by_hand(row.tolist(), 0.4) for row in x], dtype=torch.float64).T
    assert torch.allclose(found, expected, atol=1e-6)
    assert describe_tokens(torch.zeros(1, 4), 0.0)[:, 0].tolist() == [1, 0, 0, 0, 0]
    one = describe_tokens(torch.tensor([[0.0, 0, 0, 2]]), 0)
    assert one[:, 0].tolist() == [0.75, 2, 2, 0.75, 0.75]


@pytest.mark.parametrize("which", ["original", "question"])
def test_measured_are_the_original_tokens_of_a_plain_pass(model, which):
    found = measure_activations(
        model, QUESTIONS, SHORT, instruction="the answer.", which=which, threshold=0.05
    )
    for c, condition in enumerate(SHORT):
        for p, question in enumerate(QUESTIONS):
            built = build(model, condition, question, "the answer.")
            seen = []
            activation = model.hf.model.layers[0].mlp.act_fn
            handle = activation.register_forward_hook(
                lambda _, args, out, seen=seen: seen.append(out)
            )
            with torch.no_grad():
                model.hf(input_ids=built.ids[None])
            handle.remove()
            kept = ~built.inserted if which == "original" else built.question
            rows = [by_hand(row.tolist(), 0.05) for row in seen[0][0][kept]]
            expected = torch.tensor(rows, dtype=torch.float64).mean(0)
            assert torch.allclose(found.values[:, c, p], expected, rtol=1e-4, atol=1e-6)
            assert found.tokens[p] == len(rows)
    assert not torch.allclose(found.values[:, 0], found.values[:, 1], rtol=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "gemma2", "phi3", "bloom"])
def test_batches_and_padding_change_nothing(name):
    model = model_of(name)
    texts = ["the cat", "mary gave john the apple on the mat", "a mat"]
    conditions = [Condition("none", kind="none"), Condition("f", "a", 5)]
    together = measure_activations(model, texts, conditions, instruction="the.")
    few = measure_activations(model, texts, conditions, instruction="the.", budget=1)
    assert torch.allclose(together.values, few.values, rtol=1e-5, atol=1e-7)
    for p, text in enumerate(texts):
        alone = measure_activations(
            model, [text], conditions, instruction="the.", threshold=together.threshold
        )
        assert torch.allclose(alone.values[..., 0], together.values[..., p], rtol=1e-5, atol=1e-7)


def test_the_threshold_is_arms_in_the_first_condition(model):
    found = measure_activations(model, QUESTIONS, SHORT, instruction="the answer.")
    epsilons = []
    for question in QUESTIONS:
        seen = []
        with torch.no_grad(), find_activation(model).changed(lambda x, seen=seen: seen.append(x)):
            model(build(model, SHORT[0], question, "the answer.").ids)
        sizes = seen[0][0].double().abs().numpy()
        from numpy import median

        middle = median(sizes, axis=1, keepdims=True)
        epsilons += (1.4826 * 0.13 * median(abs(sizes - middle), axis=1)).tolist()
    epsilons.sort()
    middle = epsilons[(len(epsilons) - 1) // 2]
    assert math.isclose(found.threshold, middle, rel_tol=1e-5)
    assert found.threshold_from.endswith("under none")
    turned = measure_activations(model, QUESTIONS, SHORT[::-1], instruction="the answer.")
    assert turned.threshold != found.threshold


def test_differences_are_paired_and_to_the_first_condition(model):
    found = measure_activations(model, QUESTIONS, SHORT, instruction="the answer.")
    for row in found.table():
        s, c = list(STATISTICS).index(row["statistic"]), found.names.index(row["condition"])
        own, first = found.values[s, c], found.values[s, 0]
        assert math.isclose(row["mean"], own.mean(), rel_tol=1e-9)
        assert math.isclose(row["difference"], own.mean() - first.mean(), abs_tol=1e-9)
        assert row["low"] < row["mean"] < row["high"]
        low, high = mean_interval((own - first)[None])
        assert (row["difference_low"], row["difference_high"]) == pytest.approx(
            (float(low), float(high))
        )
    assert len(found.rows()) == len(QUESTIONS) * len(SHORT)


def test_a_gap_moves_positions_and_needs_them(model):
    gap = Condition("gap", count=9, kind="gap")
    found = measure_activations(model, QUESTIONS, [SHORT[0], gap], instruction="the answer.")
    built = build(model, gap, QUESTIONS[1], "the answer.")
    seen = []
    with torch.no_grad(), find_activation(model).changed(lambda x: seen.append(x)):
        ones = torch.ones_like(built.ids)[None]
        model.hf(input_ids=built.ids[None], attention_mask=ones, position_ids=built.positions[None])
    expected = describe_tokens(seen[0][0], found.threshold).mean(-1)
    assert torch.allclose(found.values[:, 1, 1], expected, rtol=1e-5)
    assert not torch.allclose(found.values[:, 1, 1], found.values[:, 0, 1], rtol=1e-4)
    with pytest.raises(HeadlabError, match="bloom does not heed positions"):
        measure_activations(model_of("bloom"), ["the cat"], [gap], instruction="a.")
    far = Condition("gap", count=70, kind="gap")
    with pytest.raises(HeadlabError, match=r"reaches position 7\d; gpt2 has 64"):
        measure_activations(model_of("gpt2"), ["the cat"], [far], instruction="a.")


@pytest.mark.parametrize("name", ["llama", "gptj", "falcon"])
def test_an_mlp_beside_the_attention_hears_no_filler(name):
    conditions = [Condition("none", kind="none"), Condition("f", "a", 5)]
    found = measure_activations(model_of(name), ["the cat", "a mat"], conditions, instruction="a.")
    assert found.is_deaf == (name in PARALLEL)


def test_arm_is_a_condition(model):
    arm = Condition("arm", kind="none", arm=Arm(0.3, 90))
    found = measure_activations(model, QUESTIONS, [SHORT[0], arm], instruction="the answer.")
    ids = build(model, arm, QUESTIONS[0], "the answer.").ids
    seen = []
    with torch.no_grad(), find_activation(model).changed(lambda x: seen.append(x)):
        model(ids)
    rows = transcribed_rows(seen[0][0], ids.tolist(), 0.3, 90)
    expected = describe_tokens(rows, found.threshold).mean(-1)
    assert torch.allclose(found.values[:, 1, 0], expected, rtol=1e-4)
    assert found.values[0, 1].max() < found.values[0, 0].min(), "fewer are near zero"


# --- ARM ---


@pytest.mark.parametrize(("c", "p1"), [(0.13, 99.5), (0.1, 95), (0.32, 90), (5, 50), (1e-6, 100)])
@pytest.mark.parametrize("width", [40, 41, 200])
def test_arm_is_its_formula_written_out(c, p1, width):
    random = torch.Generator().manual_seed(width)
    x = torch.nn.functional.silu(torch.randn(3, 5, width, generator=random))
    x[0, 0, :7] = 0
    x[1, 1] = -x[1, 1].abs()  # nothing above 0
    x[2, 2] = 0
    prompts = [[3, 4, 5], [3, 4, 6], [9]]
    arm = Arm(c, p1, seed=4)
    keys = arm.keys([torch.tensor(ids) for ids in prompts])
    found = arm.redistribute(x, keys, torch.arange(5)[None])
    for row, ids in enumerate(prompts):
        assert torch.allclose(found[row], transcribed_rows(x[row], ids, c, p1, 4), atol=1e-6)
    changed = (found != x).sum(-1).float() / width
    assert changed.max() <= 0.25 + 1 / width
    assert changed[0, 1] >= 0.02 - 1 / width
    if c == 5:
        assert changed[0, 1] == round(0.25 * width) / width


def test_arm_is_by_token_in_any_batch_and_any_cut(monkeypatch):
    x = torch.randn(3, 6, 50)
    arm = Arm(0.3, 95)
    keys, positions = arm.keys([torch.tensor([n]) for n in (5, 6, 7)]), torch.arange(6)[None]
    whole = arm.redistribute(x, keys, positions)
    parts = [
        arm.redistribute(x[:, a:b], keys, positions[:, a:b]) for a, b in ((0, 2), (2, 3), (3, 6))
    ]
    assert torch.equal(torch.cat(parts, 1), whole)
    rows = [arm.redistribute(x[n : n + 1], keys[n : n + 1], positions) for n in range(3)]
    assert torch.equal(torch.cat(rows), whole)
    monkeypatch.setattr(arms, "_CHUNK", 120)
    assert torch.equal(arm.redistribute(x, keys, positions), whole)
    other = Arm(0.3, 95, seed=1)
    assert not torch.equal(
        other.redistribute(x, other.keys([torch.tensor([n]) for n in (5, 6, 7)]), positions), whole
    )


def test_the_numbers_are_even_and_belong_to_prompt_position_and_place():
    keys = Arm(0.1, 95, seed=3).keys([torch.tensor([1, 2]), torch.tensor([1, 3])])
    found = uniform(keys, torch.tensor([7, 7]), 4000)
    assert [float(found[0, n]) for n in (0, 1, 3999)] == [
        drawn([1, 2], 7, n, 3) for n in (0, 1, 3999)
    ]
    for row in found:
        shares = torch.histc(row, 10, 0, 1) / 4000
        assert (shares - 0.1).abs().max() < 0.02
        assert row.min() >= 0
        assert row.max() < 1
    near = torch.stack([*found, *uniform(keys[:1].expand(2), torch.tensor([8, 9]), 4000)])
    assert torch.corrcoef(near).fill_diagonal_(0).abs().max() < 0.07


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_the_numbers_are_the_same_on_a_gpu():
    keys, places = torch.arange(5, 9) * 10**17, torch.arange(4)
    assert torch.equal(uniform(keys.cuda(), places.cuda(), 500).cpu(), uniform(keys, places, 500))


def test_arm_in_a_narrow_model_keeps_its_dtype():
    x = torch.randn(1, 2, 64).bfloat16()
    arm = Arm(0.3, 95)
    keys, positions = arm.keys([torch.tensor([1])]), torch.arange(2)[None]
    found = arm.redistribute(x, keys, positions)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, arm.redistribute(x.float(), keys, positions).bfloat16())


def test_arm_is_written_as_text():
    assert parse_arm("c=0.13,p1=99.5") == Arm(0.13, 99.5)
    assert parse_arm(" p1=90, c=0.32, seed=7") == Arm(0.32, 90, 7)
    assert (
        parse_arm(str(Arm(0.1, 95, 2))) == parse_arm(Arm(0.1, 95, 2).as_dict()) == Arm(0.1, 95, 2)
    )
    for given, says in (
        ("", "no setting of ARM"),
        ("0.13", "no setting of ARM"),
        ("c=0.1,c=0.2,p1=90", "no setting of ARM"),
        ("c=0.1", "ARM needs p1"),
        ("c=0.1,p2=95", "not 'p2'"),
        ("c=a,p1=95", "are numbers"),
        ("c=0.1,p1=95,seed=1.5", "are numbers"),
        ("c=0,p1=95", "c is above 0"),
        ("c=nan,p1=95", "c is above 0"),
        ("c=0.1,p1=101", "p1 is a percentile"),
        ("c=0.1,p1=0", "p1 is a percentile"),
        ("c=0.1,p1=95,seed=-1", "seed is a whole number"),
    ):
        with pytest.raises(HeadlabError, match=says):
            parse_arm(given)


# --- as a user types it ---


def test_the_command_writes_table_and_figure(tmp_path):
    folder = str(save_lettered(tmp_path / "m"))
    (tmp_path / "q.txt").write_text("\n".join(QUESTIONS))
    out = tmp_path / "out"
    options = ("--data", str(tmp_path / "q.txt"), "--out", str(out), "--n", "2")
    result = run("activations", folder, *options)
    assert result.exit_code == 0, result.output
    assert "minus none" in result.stdout
    assert "2 prompts" in result.stdout
    assert str(out / "activations.png") in result.stdout
    assert (out / "activations.pdf").stat().st_size > 1000
    rows = list(csv.DictReader((out / "activations.csv").open()))
    assert len(rows) == 3 * len(STATISTICS)
    assert len(list(csv.DictReader((out / "activations-prompts.csv").open()))) == 6
    python = measure_activations(headlab.load(folder), QUESTIONS[:2])
    assert [float(row["difference"]) for row in rows] == pytest.approx(
        [row["difference"] for row in python.table()]
    )
    one = run("activations", folder, "--n", "1", "--out", str(out), "--conditions", "arm", "--json")
    assert json.loads(one.stdout)["table"][0]["low"] is None, "one prompt has no interval"
    assert "Example: headlab activations" in run("activations", "--help").stdout


def test_wrong_input_is_answered_in_a_sentence(tmp_path):
    folder = str(save_lettered(tmp_path / "m"))
    tiny("mixtral").save_pretrained(tmp_path / "moe")
    tiny_tokenizer().save_pretrained(tmp_path / "moe")
    (tmp_path / "q.jsonl").write_text('{"question": "a"}\n')
    (tmp_path / "q.txt").write_text("a\n")
    out = ("--out", str(tmp_path / "out"))
    for args, says in (
        ((folder, "--conditions", "mles"), "did you mean 'mless'"),
        ((folder, "--tokens", "all"), "original or question"),
        ((folder, "--data", str(tmp_path / "no.txt")), "no file"),
        ((folder, "--data", str(tmp_path / "q.jsonl")), 'no "prompt"'),
        ((folder, "--threshold", "-1", "--data", str(tmp_path / "q.txt")), "threshold is a finite"),
        ((str(tmp_path / "moe"), "--data", str(tmp_path / "q.txt")), "mixture of experts"),
    ):
        assert says in error_of(run("activations", *args, *out, "-q"))
    assert not (tmp_path / "out").exists()


def test_arm_on_the_command_line(tmp_path):
    folder = str(save_lettered(tmp_path / "m"))

    def write(*args: str):
        return run("generate", folder, "--prompt", "what is", "--max-new-tokens", "6", *args)

    result = write("--arm", "c=0.5,p1=95", "--heads", "L0H1", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["settings"]["arm"] == {"c": 0.5, "p1": 95, "seed": 0}
    model = headlab.load(folder)
    masks = Gates.stack([Gates.ones(model), Gates.ablate(model, "L0H1")])
    texts = headlab.generate(model, "what is", masks, arm=Arm(0.5, 95), max_new_tokens=6).texts
    assert [row["prediction"] for row in found["rows"]] == [texts[0][0], texts[1][0]]
    assert {row["arm"] for row in found["rows"]} == {"c=0.5,p1=95,seed=0"}
    assert "ARM c=0.5,p1=95,seed=1)" in write("--arm", "c=0.5,p1=95,seed=1").stdout
    assert "ARM needs p1" in error_of(write("--arm", "c=0.5"))


def test_what_cannot_be_compared_is_refused(model):
    two = [SHORT[0], Condition("chat", kind="none", template="chat")]
    with pytest.raises(HeadlabError, match="no chat template"):
        measure_activations(model, QUESTIONS, two)
    with pytest.raises(HeadlabError, match="questions come as a list"):
        measure_activations(model, "what?", SHORT)
    with pytest.raises(HeadlabError, match="original or question"):
        measure_activations(model, QUESTIONS, SHORT, which="all")
    assert CONDITIONS["arm"].arm == Arm(0.13, 99.5)
