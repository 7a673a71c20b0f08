"""z' = g·z + (1 − g)·r: every shape of gates and every reference against a computation by hand."""

from __future__ import annotations

import pytest
import torch
from tiny import ARCHITECTURES, random_ids, tiny

import headlab.gates
from headlab import Gates, Head, HeadlabError, Model, Reference
from headlab.gates import counterfactual_reference, gate_heads, mean_reference

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture
def model(name: str) -> Model:
    return Model(tiny(name), name=name)


@pytest.fixture
def llama() -> Model:
    return Model(tiny("llama-wide"), name="llama-wide")


def run_by_hand(model, ids, change=None):
    """Each layer's z on `ids` (no padding) and the logits, with plain hooks of our own.

    `change(layer, z)` gets and gives [example, position, head · width].
    """
    seen, handles = {}, []
    for layer, path in enumerate(model.seam.paths):

        def hook(_, args, layer=layer):
            seen[layer] = args[0].clone()
            return None if change is None else (change(layer, args[0]), *args[1:])

        handles.append(model.hf.get_submodule(path).register_forward_pre_hook(hook))
    with torch.no_grad():
        logits = model.hf(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
        ).logits
    for handle in handles:
        handle.remove()
    return seen, logits


def random_values(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 1.5 - 0.2


# --- references ---


@each_architecture
def test_a_counterfactual_reference_equals_patching_by_hand(model):
    ids, other = random_ids(2, 7), random_ids(2, 7, seed=9)
    corrupt, _ = run_by_hand(model, other)
    width, off = model.head_width, {0: [1], 2: [0, 3]}

    def patch(layer, z):
        z = z.clone()
        for head in off.get(layer, []):
            columns = slice(head * width, (head + 1) * width)
            z[..., columns] = corrupt[layer][..., columns]
        return z

    _, expected = run_by_hand(model, ids, patch)
    reference = counterfactual_reference(model, list(ids), list(other))
    heads = [Head(layer, head) for layer in off for head in off[layer]]
    with model.gated(Gates.ablate(model, heads), reference):
        assert (model(ids) - expected).abs().max() < 1e-5


@each_architecture
def test_a_mean_reference_equals_the_mean_by_hand(model):
    ids = random_ids(2, 7)
    prompts = [random_ids(1, length, seed=length)[0] for length in (4, 9, 6)]  # of unequal length
    runs = [run_by_hand(model, prompt[None])[0] for prompt in prompts]  # alone: no pads at all
    width = model.head_width
    means = [torch.cat([run[layer][0] for run in runs]).mean(0) for layer in range(3)]

    def damp(layer, z):
        z = z.clone()
        columns = slice(2 * width, 3 * width)
        z[..., columns] = 0.25 * z[..., columns] + 0.75 * means[layer][columns]
        return z

    _, expected = run_by_hand(model, ids, damp)
    gates = Gates.ablate(model, [Head(layer, 2) for layer in range(3)], scale=0.25)
    with model.gated(gates, mean_reference(model, prompts)):
        assert (model(ids) - expected).abs().max() < 1e-5


@each_architecture
def test_keeping_no_head_on_the_counterfactual_gives_the_counterfactual_run(model):
    ids = random_ids(2, 6)
    other = random_ids(2, 6, seed=4)
    other[:, -1] = ids[:, -1]  # the residual stream at the end starts from the same token
    reference = counterfactual_reference(model, list(ids), list(other))
    with model.gated(Gates.keep(model, []), reference):
        gated = model(ids)[:, -1]
    assert (gated - run_by_hand(model, other)[1][:, -1]).abs().max() < 1e-4


def test_a_mean_per_position_equals_the_mean_by_hand(llama):
    ids, prompts = random_ids(2, 5), random_ids(4, 5, seed=8)
    runs, _ = run_by_hand(llama, prompts)
    reference = mean_reference(llama, list(prompts), per_position=True)

    def replace(layer, z):
        return runs[layer].mean(0, keepdim=True).expand_as(z)

    _, expected = run_by_hand(llama, ids, replace)
    with llama.gated(Gates.keep(llama, []), reference):
        assert (llama(ids) - expected).abs().max() < 1e-5


def test_a_mean_per_position_is_refused_for_prompts_of_different_length(llama):
    with pytest.raises(HeadlabError, match="these have 4 to 6; take the mean over positions"):
        mean_reference(llama, [random_ids(1, 4)[0], random_ids(1, 6)[0]], per_position=True)


def test_a_mean_per_position_is_refused_on_a_prompt_of_another_length(llama):
    reference = mean_reference(llama, list(random_ids(3, 5)), per_position=True)
    with (
        llama.gated(Gates.keep(llama, []), reference),
        pytest.raises(HeadlabError, match="5 positions does not fit a pass over 6"),
    ):
        llama(random_ids(1, 6))


def test_a_mean_does_not_depend_on_how_the_prompts_are_split_into_passes(llama, monkeypatch):
    prompts = [random_ids(1, 3 + n % 5, seed=n)[0] for n in range(7)]
    whole = mean_reference(llama, prompts).values
    monkeypatch.setattr(headlab.gates, "_CHUNK", 2)
    assert torch.allclose(mean_reference(llama, prompts).values, whole, atol=1e-6)


def test_references_come_from_clean_runs_only(llama):
    with llama.gated(Gates.ablate(llama, [Head(0, 0)])):
        with pytest.raises(HeadlabError, match="clean runs"):
            mean_reference(llama, list(random_ids(2, 5)))
        with pytest.raises(HeadlabError, match="clean runs"):
            counterfactual_reference(llama, list(random_ids(1, 5)), list(random_ids(1, 5)))


def test_a_mean_is_frozen_under_masks(llama):
    """The gates below do not reach a reference above them."""
    reference = mean_reference(llama, list(random_ids(3, 6)))
    before = reference.values.clone()
    with llama.gated(Gates.keep(llama, []), reference):
        llama(random_ids(2, 6))
    assert torch.equal(reference.values, before)


def test_a_reference_names_the_prompts_it_comes_from(llama):
    prompts = list(random_ids(2, 4))
    assert mean_reference(llama, prompts).examples == tuple(str(prompt) for prompt in prompts)


def test_a_counterfactual_of_another_length_is_refused(llama):
    with pytest.raises(HeadlabError, match="the prompt has 5 tokens and its counterfactual 6"):
        counterfactual_reference(llama, [random_ids(1, 5)[0]], [random_ids(1, 6)[0]])
    with pytest.raises(HeadlabError, match="pair 2: the prompt has 4 tokens"):
        counterfactual_reference(
            llama, list(random_ids(2, 4)), [random_ids(1, 4)[0], random_ids(1, 3)[0]]
        )


def test_counterfactuals_of_padded_pairs_are_each_prompts_own(llama):
    prompts = [random_ids(1, 7)[0], random_ids(1, 4, seed=2)[0]]
    others = [random_ids(1, 7, seed=3)[0], random_ids(1, 4, seed=4)[0]]
    gates = Gates.ablate(llama, [Head(1, 1), Head(2, 0)])
    with llama.gated(gates, counterfactual_reference(llama, prompts, others)):
        together = llama(prompts)
    for number, length in ((0, 7), (1, 4)):
        pair = [prompts[number]], [others[number]]
        with llama.gated(gates, counterfactual_reference(llama, *pair)):
            alone = llama(prompts[number])[0]
        assert (alone - together[number, :length]).abs().max() < 1e-5


def test_left_padding_is_refused_where_positions_matter(llama):
    prompts = [random_ids(1, 6)[0], random_ids(1, 4)[0]]
    reference = counterfactual_reference(llama, prompts, prompts)
    gates = Gates(torch.ones(3, 4, 6), "layer head position")
    with (
        llama.gated(Gates.ones(llama), reference),
        pytest.raises(HeadlabError, match="need padding on the right"),
    ):
        llama(prompts, padding="left")
    with llama.gated(gates), pytest.raises(HeadlabError, match="need padding on the right"):
        llama(prompts, padding="left")


def test_a_reference_of_another_model_is_refused(llama):
    other = mean_reference(Model(tiny("llama")), list(random_ids(2, 4)))
    with (
        pytest.raises(HeadlabError, match="heads of width 8 is of another model than llama-wide"),
        llama.gated(Gates.ones(llama), other),
    ):
        pass


def test_gates_are_computed_in_float32_over_bfloat16():
    z = torch.full((1, 1, 1, 1), 1.0, dtype=torch.bfloat16)
    r = torch.full((1, 1, 1, 1), -1.0, dtype=torch.bfloat16)
    g = torch.full((1, 1, 1, 1), 0.50390625 + 2**-12)  # not a bfloat16
    assert gate_heads(z, g, r).item() == pytest.approx(2 * g.item() - 1, rel=2**-8)


# --- shapes of gates ---


@pytest.mark.parametrize(
    "axes", ["layer head", "mask layer head", "mask example layer head", "mask layer head position"]
)
@pytest.mark.parametrize("kind", ["zero", "mean", "counterfactual"])
def test_every_shape_of_gates_equals_the_formula_by_hand(llama, axes, kind):
    n, length, masks = 3, 6, 2
    sizes = {"mask": masks, "example": n, "layer": 3, "head": 4, "position": length}
    values = random_values(*[sizes[axis] for axis in axes.split()])
    ids = random_ids(n, length)
    reference = {
        "zero": Reference(),
        "mean": mean_reference(llama, list(random_ids(4, 5, seed=1))),
        "counterfactual": counterfactual_reference(
            llama, list(ids), list(random_ids(n, length, seed=2))
        ),
    }[kind]
    with llama.gated(Gates(values, axes), reference):
        got = llama(ids)
    got = got.view(-1, n, *got.shape[1:])  # [mask, example, position, vocabulary]
    names = axes.split()
    for mask in range(got.shape[0]):
        for example in range(n):

            def by_hand(layer, z, mask=mask, example=example):
                z = z.clone()  # [1, position, head · width]
                for head in range(4):
                    for position in range(length):
                        place = {
                            "mask": mask,
                            "example": example,
                            "layer": layer,
                            "head": head,
                            "position": position,
                        }
                        g = values[tuple(place[axis] for axis in names)]
                        columns = slice(12 * head, 12 * head + 12)
                        r = torch.zeros(12)
                        if reference.values is not None:
                            r = reference.values[
                                layer,
                                min(example, reference.values.shape[1] - 1),
                                min(position, reference.values.shape[2] - 1),
                                head,
                            ]
                        z[0, position, columns] = g * z[0, position, columns] + (1 - g) * r
                return z

            _, expected = run_by_hand(llama, ids[example][None], by_hand)
            assert (got[mask, example] - expected[0]).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_formula_is_exact_at_its_ends(dtype):
    z, r = torch.randn(2, 3, 4, 5).to(dtype), torch.randn(2, 3, 4, 5).to(dtype)
    ones, zeros = torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 4, 1)
    assert torch.equal(gate_heads(z, ones, r), z)
    assert torch.equal(gate_heads(z, zeros, r), r)
    assert torch.equal(gate_heads(z, zeros, None), torch.zeros_like(z))
    assert gate_heads(z, ones, r).dtype == dtype


def test_gradients_reach_the_gates_and_equal_finite_differences():
    model = Model(tiny("gpt2", torch.float64))  # Llama's norms fall back to float32 inside
    ids = random_ids(2, 5)
    values = random_values(3, 4).double().requires_grad_()

    def measure(values):
        with model.gated(Gates(values)):
            return model(ids)[:, -1, 7].sum()

    (gradient,) = torch.autograd.grad(measure(values), values)
    step = 1e-6
    for layer, head in ((0, 0), (1, 3), (2, 2)):
        nudge = torch.zeros_like(values)
        nudge[layer, head] = step
        with torch.no_grad():
            slope = (measure(values + nudge) - measure(values - nudge)) / (2 * step)
        assert abs(slope - gradient[layer, head]) < 1e-7 * max(1, abs(slope))


def test_a_model_that_is_not_learning_builds_no_graph(llama):
    assert all(parameter.requires_grad for parameter in llama.hf.parameters())
    assert not llama(random_ids(1, 4)).requires_grad


def test_gates_work_under_generate(llama):
    ids = random_ids(1, 5)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    plain = llama.hf.generate(ids, **options)
    with llama.gated(Gates.ones(llama)):
        assert torch.equal(llama.hf.generate(ids, **options), plain)
    with llama.gated(Gates.keep(llama, [])):
        assert not torch.equal(llama.hf.generate(ids, **options), plain)


# --- what is refused ---


@pytest.mark.parametrize(
    ("values", "axes", "sentence"),
    [
        (torch.ones(2, 3, 4, 5), None, r"\[2, 3, 4, 5\] need their axes named"),
        (torch.ones(3, 4), "mask layer head", "do not have the axes"),
        (torch.ones(3, 4), "layer layer", "do not have the axes"),
        (torch.ones(3, 4), "mask head", "the axes of gates are layer and head"),
        (torch.ones(3, 4), "layer neuron", "the axes of gates are layer and head"),
        (torch.full((3, 4), float("nan")), None, "must be finite"),
        (torch.ones(0, 3, 4), None, "hold no mask"),
    ],
)
def test_malformed_gates_are_refused(values, axes, sentence):
    with pytest.raises(HeadlabError, match=sentence):
        Gates(values, axes)


def test_gates_of_another_model_are_refused(llama):
    with (
        pytest.raises(HeadlabError, match=r"5 layers x 4 heads do not fit llama-wide.*3 x 4"),
        llama.gated(torch.ones(5, 4)),
    ):
        pass


def test_a_batch_that_does_not_fit_the_masks_is_refused(llama):
    with llama.gated(torch.ones(3, 3, 4)), pytest.raises(HeadlabError, match="3 masks need"):
        llama.hf(random_ids(4, 5))
    gates = Gates(torch.ones(1, 5, 3, 4), "mask example layer head")
    with llama.gated(gates), pytest.raises(HeadlabError, match="5 examples do not fit 2"):
        llama(random_ids(2, 5))


def test_gated_blocks_do_not_nest_and_leave_nothing_behind(llama):
    ids = random_ids(1, 5)
    plain = llama(ids)
    with pytest.raises(HeadlabError, match="already active"), llama.gated(torch.zeros(3, 4)):  # noqa: SIM117
        with llama.gated(torch.ones(3, 4)):
            pass
    assert torch.equal(llama(ids), plain)
    assert not any(projection._forward_pre_hooks for projection in llama.seam.projections)


@pytest.mark.parametrize("head", [Head(3, 0), Head(0, 4), Head(-1, 0)])
def test_a_head_out_of_range_is_refused(llama, head):
    with pytest.raises(HeadlabError, match="llama-wide has layers 0 to 2 and heads 0 to 3"):
        Gates.ablate(llama, [head])


def test_builders_of_gates(llama):
    ablated = Gates.ablate(llama, [Head(1, 2)], scale=0.5).values[0, 0, :, :, 0]
    kept = Gates.keep(llama, [Head(1, 2)]).values[0, 0, :, :, 0]
    assert ablated[1, 2] == 0.5
    assert ablated.sum() == 11.5
    assert kept[1, 2] == 1
    assert kept.sum() == 1
    each = Gates.each_head(llama).values[:, 0, :, :, 0]
    assert each.shape == (12, 3, 4)
    assert each[6].sum() == 11
    assert each[6, 1, 2] == 0
    assert Gates.stack([Gates.ones(llama), Gates.each_head(llama)]).n_masks == 13


def test_a_gate_is_not_rounded_to_the_models_dtype():
    z = torch.linspace(1, 2, 64).bfloat16()[None, None, None]
    for value in (0.3, 1 - 1 / 512):
        g = torch.full((1, 1, 1, 1), value)
        assert torch.equal(gate_heads(z, g, None), (g * z.float()).bfloat16())


@pytest.mark.parametrize("rows", [None, 1, 3, 6])
@pytest.mark.parametrize("shape", [(6, 1, 4, 1), (1, 1, 4, 1), (6, 5, 4, 1)])
def test_the_gradient_of_a_gated_head_is_that_of_the_formula(shape, rows):
    random = torch.Generator().manual_seed(0)
    z, weight = (torch.randn(6, 5, 4, 2, generator=random, dtype=torch.float64) for _ in range(2))
    g = torch.rand(shape, generator=random, dtype=torch.float64)
    r, again = None, torch.zeros_like(z)
    if rows is not None:  # its rows come again for every mask
        r = torch.randn(rows, 5, 4, 2, generator=random, dtype=torch.float64)
        again = torch.cat([r] * (6 // rows))
    assert torch.allclose(gate_heads(z, g, r), g * z + (1 - g) * again, atol=1e-12)
    found = []
    for formula in (lambda z, g: g * z + (1 - g) * again, lambda z, g: gate_heads(z, g, r)):
        one, other = z.clone().requires_grad_(), g.clone().requires_grad_()
        found.append(torch.autograd.grad((formula(one, other) * weight).sum(), (one, other)))
    for plain, ours in zip(*found, strict=True):
        assert torch.allclose(plain, ours, atol=1e-12)


@pytest.mark.parametrize("rows", [None, 2])
def test_the_slopes_slope_of_a_gated_head_is_that_of_the_formula(rows):
    random = torch.Generator().manual_seed(0)
    z = torch.randn(2, 1, 3, 2, generator=random, dtype=torch.float64)
    g = torch.rand(1, 1, 3, 1, generator=random, dtype=torch.float64)
    r = None if rows is None else torch.randn(z.shape, generator=random, dtype=torch.float64)
    other = torch.zeros_like(z) if r is None else r
    hessian = torch.autograd.functional.hessian
    right = hessian(lambda g: (g * z + (1 - g) * other).square().sum(), g)
    assert torch.allclose(hessian(lambda g: gate_heads(z, g, r).square().sum(), g), right)
    assert right.abs().max() > 1
