"""Text under ARM: its formula written out, the same luck in any batch."""

from __future__ import annotations

import pytest
import torch
from arms import transcribed_rows
from torch import Tensor
from writing import (
    HEADS,
    endless,
    ids_of,
    made,
    prompts,
)

import headlab
from headlab import Arm, Gates, HeadlabError, Model
from headlab.activations import find_activation
from headlab.generation import batch as batches
from headlab.generation import generate

ARM = Arm(c=0.5, p1=99.5)
MOE = {"mixtral", "qwen3-moe"}


def armed_loop(model: Model, prompt: Tensor, new: int, arm: Arm, gates: Gates | None) -> list[int]:
    """Greedy, one full pass a token, no cache; ARM written out with loops."""
    gates = gates or Gates.ones(model)
    values, ids = gates.values[0, 0, :, :, 0], prompt.clone()
    activation = find_activation(model)

    def written_out(_, args, output):
        rows = transcribed_rows(
            output.reshape(len(ids), -1), prompt.tolist(), arm.c, arm.p1, arm.seed
        )
        return rows.view(output.shape)

    hook = activation.module.register_forward_hook(written_out)
    try:
        for _ in range(new):
            at = torch.ones(*values.shape, len(ids))
            at[:, :, len(prompt) :] = values[..., None]
            with model.gated(Gates(at, "layer head position")):
                ids = torch.cat([ids, model(ids)[0, -1].argmax()[None]])
    finally:
        hook.remove()
    return ids[len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma2", "falcon"])
def test_arm_writes_what_its_formula_written_out_writes(name):
    model = endless(name)
    gates = Gates.stack([Gates.ones(model), Gates.ablate(model, HEADS)])
    found = ids_of(generate(model, prompts(), gates, arm=ARM, max_new_tokens=6))
    for mask, own in enumerate((None, Gates.ablate(model, HEADS))):
        for number, prompt in enumerate(prompts()):
            assert found[mask][number] == armed_loop(model, prompt, 6, ARM, own)
    clean = ids_of(generate(model, prompts(), gates, max_new_tokens=6))
    # More than a quarter of what OPT's ReLU gives is 0, which has no sign to be drawn anew with.
    assert (found != clean) == (name != "opt")
    assert found[0] != found[1]


@pytest.mark.parametrize("positions", ["generated", "all"])
def test_arm_gives_the_same_text_in_any_batch_and_another_for_another_seed(positions):
    model = endless()
    masks = Gates.stack([Gates.ones(model), Gates.ablate(model, HEADS)])
    options = {"positions": positions, "max_new_tokens": 20}
    together = ids_of(generate(model, prompts(), masks, arm=ARM, **options))
    for at_a_time in (1, 3):
        found = generate(model, prompts(), masks, arm=ARM, rows_at_a_time=at_a_time, **options)
        assert ids_of(found) == together
    for number, prompt in enumerate(prompts()):
        alone = ids_of(generate(model, prompt, arm=ARM, **options))
        assert alone[0][0] == together[0][number]
    other = Arm(ARM.c, ARM.p1, seed=1)
    assert ids_of(generate(model, prompts(), masks, arm=other, **options)) != together
    luck = {"temperature": 1.5, "seed": 3}
    sampled = ids_of(generate(model, prompts(), arm=ARM, **luck, **options))
    apart = [ids_of(generate(model, each, arm=ARM, **luck, **options))[0][0] for each in prompts()]
    assert sampled[0] == apart


def test_rows_that_leave_a_batch_take_their_luck_along(monkeypatch):
    model = endless()
    plain = ids_of(generate(model, prompts(), arm=ARM, max_new_tokens=20))[0]
    model.hf.generation_config.eos_token_id = plain[1][3]
    monkeypatch.setattr(batches, "_GONE", 0.01)
    for written, whole in zip(
        generate(model, prompts(), arm=ARM, max_new_tokens=20).rows[0], plain, strict=True
    ):
        end = whole.index(plain[1][3]) + 1 if plain[1][3] in whole else 20
        assert written.ids == whole[:end]


def test_masks_under_arm_share_one_pass_over_the_prompt():
    model = endless()
    read = []
    hook = model.seam.projections[0].register_forward_pre_hook(
        lambda _, args: read.append(tuple(args[0].shape[:2]))
    )
    generate(model, prompts(), Gates.each_head(model), max_new_tokens=2, arm=ARM)
    hook.remove()
    n = model.n_layers * model.n_heads
    assert read[-2:] == [(4, 9), (4 * n, 1)]


def test_without_arm_nothing_hangs_on_the_model_and_afterwards_neither():
    model = endless()
    activation = find_activation(model)
    before = generate(model, prompts(), max_new_tokens=8)
    found = generate(model, prompts(), max_new_tokens=8, arm=ARM)
    assert not activation.module._forward_hooks
    assert not activation.block._forward_pre_hooks
    assert generate(model, prompts(), max_new_tokens=8) == before
    assert "arm" not in before.settings
    assert found.settings["arm"] == {"c": 0.5, "p1": 99.5, "seed": 0}


def test_arm_where_there_is_no_single_mlp_is_refused():
    for name in MOE:
        with pytest.raises(HeadlabError, match="mixture of experts"):
            generate(made(name), prompts(), arm=ARM)
    with pytest.raises(HeadlabError, match="arm is an Arm"):
        generate(made(), prompts(), arm="c=0.1,p1=95")


def test_the_real_model_writes_other_text_under_arm():
    from headlab.embedded import embedded_gguf

    if embedded_gguf() is None:
        pytest.skip("the embedded model is not installed")
    model = headlab.load("smollm2")
    texts = ["The capital of France is", "Once upon a time, there was a small"]
    options = {"max_new_tokens": 24, "arm": Arm(0.32, 99.5)}
    found = generate(model, texts, **options).texts[0]
    assert found != generate(model, texts, max_new_tokens=24).texts[0]
    assert [generate(model, each, **options).texts[0][0] for each in texts] == found
