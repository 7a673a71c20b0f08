"""Tokens, BOS, joins and limits: what goes into a pass."""

from __future__ import annotations

import pytest
import torch
from tiny import random_ids, tiny, tiny_tokenizer

import headlab
from headlab import Head, HeadlabError, Model


@pytest.fixture
def model() -> Model:
    return headlab.load(tiny("llama"), tiny_tokenizer())


def test_bos_follows_the_policy():
    def first(tokenizer, policy):
        return int(Model(tiny("llama"), tokenizer, bos=policy).ids("the cat")[0])

    plain = tiny_tokenizer()
    the = plain("the")["input_ids"][0]
    assert [first(plain, policy) for policy in ("auto", "yes", "no")] == [the, 1, the]
    from tokenizers.processors import TemplateProcessing

    adding = type(plain).from_pretrained  # a copy through a file: the cached one stays as it is
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        plain.save_pretrained(folder)
        tokenizer = adding(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert tokenizer("the")["input_ids"] == [1, the, 2]
    assert [first(tokenizer, policy) for policy in ("auto", "yes", "no")] == [1, 1, the]
    model = Model(tiny("llama"), tokenizer)
    assert (model.bos, model.bos_policy) == (True, "auto")
    assert model.ids("the").tolist() == [1, the], "no EOS, whatever the tokenizer adds"
    assert model.ids("<s>the").tolist() == [1, the], "one BOS, not two"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<pad> <s> $A", special_tokens=[("<s>", 1), ("<pad>", 0)]
    )
    longer = Model(tiny("llama"), tokenizer)
    assert longer.ids("the").tolist() == [0, 1, the], "all that the tokenizer puts in front"
    assert longer.bos


def test_bos_without_a_bos_token_is_refused():
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer().backend_tokenizer)
    with pytest.raises(HeadlabError, match="has no BOS token"):
        Model(tiny("llama"), bare, name="bare", bos="yes")
    with pytest.raises(HeadlabError, match="bos is auto, yes or no, not 'maybe'"):
        Model(tiny("llama"), bare, bos="maybe")


def test_a_join_is_exact_in_tokens(model):
    joined, start = model.join("the cat", " sat on")
    assert model.token_texts(joined) == ["the", " cat", " sat", " on"]
    assert start == 2


def test_a_join_that_merges_tokens_is_refused_and_names_them(model):
    with pytest.raises(HeadlabError, match=r"ends in \['t', 'h'\], joined they give \['the'\]"):
        model.join("th", "e")
    with pytest.raises(HeadlabError, match=r"prompt ends in \[' '\].*\[' cat'\]"):
        model.join("the ", "cat")


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", "the prompt is empty"),
        ("ЖЖЖ", "has no tokens"),  # none of it is in this vocabulary
        ("the cat " * 40, r"the prompt has \d+ tokens, .* takes at most 64"),
        (torch.tensor([5, 96]), "run from 0 to 95, 5 to 96 were given"),
        (torch.tensor([[5, 6]]), "have shape"),
        (torch.tensor([0.5]), "have shape"),
    ],
)
def test_prompts_that_cannot_be_run_are_refused(model, prompt, sentence):
    with pytest.raises(HeadlabError, match=sentence):
        model.ids(prompt)


def test_targets_that_cannot_be_scored_are_refused(model):
    with pytest.raises(HeadlabError, match="the target is empty"):
        model.join("the cat", "")
    with pytest.raises(HeadlabError, match="the target 'Ж' has no tokens"):
        model.join("the cat", "Ж")
    with pytest.raises(HeadlabError, match="no prompts"):
        model.tokens([])


def test_heads_in_any_form(model):
    forms = ["L1H2", "L1H2,1.2", Head(1, 2), ["L1H2"], [Head(1, 2)], [(1, 2)]]
    values = [headlab.Gates.ablate(model, form).values for form in forms]
    assert all(torch.equal(value, values[0]) for value in values)
    assert values[0][0, 0, 1, 2, 0] == 0


def test_a_string_is_not_a_list_of_prompts(model):
    with pytest.raises(HeadlabError, match="needs a list of prompts"):
        headlab.mean_reference(model, "the cat")
    with pytest.raises(HeadlabError, match="needs lists of prompts"):
        headlab.counterfactual_reference(model, "the cat", "the mat")
    with (
        pytest.raises(HeadlabError, match="'mean' is not a reference"),
        model.gated(torch.ones(3, 4), "mean"),
    ):
        pass


def test_text_without_a_tokenizer_is_refused():
    with pytest.raises(HeadlabError, match="has no tokenizer; give token ids"):
        Model(tiny("llama"))("the cat")


def test_padding_side_and_positions(model):
    rows = [random_ids(1, 4)[0], random_ids(1, 2)[0]]
    right, left = model.tokens(rows), model.tokens(rows, padding="left")
    assert right.mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert left.mask.tolist() == [[True] * 4, [False, False, True, True]]
    assert left.positions[1].tolist() == [0, 0, 0, 1]


def test_dropout_is_off():
    hf = tiny("gpt2").train()
    assert not Model(hf).hf.training


# --- ablate: one prompt, before and after ---


def test_ablate_scores_every_target_token_where_it_is_predicted(model):
    joined, start = model.join("the cat", " sat on the")
    with torch.no_grad():
        scores = model.hf(joined[None]).logits[0].log_softmax(-1)
    expected = sum(scores[p - 1, joined[p]].item() for p in range(start, len(joined)))
    result = headlab.ablate(model, "the cat", ["L0H0"], " sat on the")
    assert abs(result.before.log_prob - expected) < 1e-5
    assert result.target_tokens == [" sat", " on", " the"]


def test_the_top_tokens_are_those_right_after_the_prompt(model):
    result = headlab.ablate(model, "the cat", ["L0H0"], " sat on the")
    expected = model("the cat")[0, -1].softmax(-1).topk(5)
    assert [prob for _, prob in result.before.top] == pytest.approx(expected.values.tolist())


def test_ablate_after_equals_a_gated_pass_by_hand(model):
    heads = [Head(0, 1), Head(2, 3)]
    result = headlab.ablate(model, "the cat", heads, " sat", scale=0.5)
    with model.gated(headlab.Gates.ablate(model, heads, scale=0.5)):
        scores = model("the cat")[0, -1].log_softmax(-1)
    assert abs(result.after.log_prob - scores[model.ids(" sat")[0]].item()) < 1e-6
    assert result.change == result.after.log_prob - result.before.log_prob
    assert [prob for _, prob in result.after.top] == pytest.approx(
        scores.exp().topk(5).values.tolist()
    )


def test_ablate_with_keep_gates_the_other_heads(model):
    every = [Head(layer, head) for layer in range(3) for head in range(4)]
    kept = headlab.ablate(model, "the cat", every[:5], " sat", keep=True)
    gone = headlab.ablate(model, "the cat", every[5:], " sat")
    assert kept.after == gone.after


def test_ablate_without_a_target_takes_the_likeliest_token(model):
    result = headlab.ablate(model, "the cat", ["L0H0"])
    assert not result.target_given
    assert result.before.prob == pytest.approx(result.before.top[0][1])


def test_ablate_from_a_counterfactual_with_a_long_target(model):
    """Both runs read the same target tokens; the reference is of prompt and target."""
    result = headlab.ablate(
        model,
        "the cat",
        ["L1H1"],
        " sat on",
        reference="counterfactual",
        counterfactual="the apple",
    )
    joined, _ = model.join("the cat", " sat on")
    corrupt, _ = model.join("the apple", " sat on")
    reference = headlab.counterfactual_reference(model, [joined[:-1]], [corrupt[:-1]])
    with model.gated(headlab.Gates.ablate(model, [Head(1, 1)]), reference):
        scores = model(joined[:-1])[0].log_softmax(-1)
    expected = scores[1, joined[2]] + scores[2, joined[3]]
    assert abs(result.after.log_prob - expected.item()) < 1e-5


def test_ablate_refuses_a_reference_it_cannot_build(model):
    with pytest.raises(HeadlabError, match="the prompt has 2 tokens and its counterfactual 3"):
        headlab.ablate(
            model, "the cat", ["L1H1"], " sat", reference="counterfactual",
            counterfactual="the cat sat",
        )  # fmt: skip
    with pytest.raises(HeadlabError, match="needs prompts to average over"):
        headlab.ablate(model, "the cat", ["L1H1"], " sat", reference="mean")
    with pytest.raises(HeadlabError, match="needs the counterfactual prompt"):
        headlab.ablate(model, "the cat", ["L1H1"], " sat", reference="counterfactual")
    with pytest.raises(HeadlabError, match="zero, mean or counterfactual, not 'median'"):
        headlab.ablate(model, "the cat", ["L1H1"], " sat", reference="median")
    with pytest.raises(HeadlabError, match="no heads given"):
        headlab.ablate(model, "the cat", [], " sat")


def test_ablate_hints_at_a_missing_space(model):
    (note,) = headlab.ablate(model, "the cat", ["L1H1"], "s").notes
    assert "did you mean ' s'?" in note
    assert not headlab.ablate(model, "the cat", ["L1H1"], " sat").notes
