"""Learned gates: the paper's fit, seeds that share passes and nothing else, rightly named roles."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from planted import in_formats, pairs, planted, roled, two_formats
from torch.nn.functional import cross_entropy

from headlab import Gates, Head, HeadlabError, mean_reference, measure
from headlab.figures import plt
from headlab.gatefits import (
    ROLES,
    GateFit,
    Roles,
    Schedule,
    ablation_deltas,
    few_updates,
    fit_contrast,
    fit_gates,
)
from headlab.gatefits.figures import fit_paths
from headlab.gatefits.fitting import CLAMP
from headlab.gatefits.rows import Rows, order_of

NEEDED, HARMFUL = Head(1, 0), Head(1, 3)


@pytest.fixture(scope="module")
def fit() -> GateFit:
    return fit_gates(roled(), pairs(40), range(5), Schedule(updates=150, batch=16))


def alone(fit: GateFit, number: int) -> GateFit:
    """One seed of a fit."""
    n = len(fit.seeds)
    rows = [number, n + number, 2 * n + number]
    own = {name: getattr(fit, name)[number : number + 1] for name in ("free", "plus", "minus")}
    return dataclasses.replace(
        fit, seeds=[fit.seeds[number]], losses=fit.losses[rows], paths=fit.paths[rows], **own
    )


# --- roles ---


def test_planted_roles_are_named_rightly_in_every_seed(fit):
    roles = Roles(fit).roles
    for seed in range(5):
        for layer in range(2):
            for head in range(4):
                wanted = {NEEDED: "facilitating", HARMFUL: "interfering"}.get(
                    Head(layer, head), "irrelevant"
                )
                assert ROLES[roles[seed, layer, head]] == wanted, (seed, layer, head)


def test_ablating_by_role_lowers_raises_or_leaves_the_targets_log_prob(fit):
    deltas = ablation_deltas(roled(), pairs(10), Roles(fit), range(4))
    assert deltas.mean("F")[1] < -1
    assert deltas.mean("N")[1] > 0.1
    assert deltas.mean("I").abs().max() < 1e-4
    assert deltas.mean("random")[3] < 0


def test_scores_are_the_papers_table():
    corners = {(1, 1): "facilitating", (0, 0): "interfering", (1, 0): "irrelevant", (0, 1): "mixed"}
    logit = torch.tensor([-9.0, 9.0])
    plus = torch.stack([logit[p] for p, _ in corners])[None, None]
    minus = torch.stack([logit[m] for _, m in corners])[None, None]
    nothing = torch.zeros(3, 1)
    made = GateFit("m", "t", [0], plus, plus, minus, nothing, nothing)
    roles = Roles(made)
    assert [ROLES[n] for n in roles.roles[0, 0].tolist()] == list(corners.values())
    g_plus, g_minus = made.g_plus, made.g_minus
    assert torch.equal(roles.scores["F"], g_minus)
    assert torch.equal(roles.scores["N"], 1 - g_plus)
    assert torch.allclose(roles.scores["I"], g_plus * (1 - g_minus))
    quarter, half = (dict.fromkeys(("mean", "always", "any"), share) for share in (0.25, 0.5))
    assert roles.shares() == {
        "facilitating": half,  # by the score alone: a mixed head counts
        "irrelevant": quarter,
        "interfering": half,
        "mixed": quarter,
        "none": dict.fromkeys(("mean", "always", "any"), 0.0),
    }


def test_shares_over_seeds_are_of_all_and_of_any():
    high, low = 9.0, -9.0
    plus = torch.tensor([[[high, high, low, high]], [[high, low, low, high]]])
    minus = torch.tensor([[[high, low, low, low]], [[high, low, low, high]]])
    nothing = torch.zeros(6, 1)
    shares = Roles(GateFit("m", "t", [0, 1], plus, plus, minus, nothing, nothing)).shares()
    assert shares["facilitating"] == {"mean": 3 / 8, "always": 1 / 4, "any": 2 / 4}
    assert shares["interfering"] == {"mean": 3 / 8, "always": 1 / 4, "any": 2 / 4}
    assert shares["irrelevant"] == {"mean": 2 / 8, "always": 0, "any": 2 / 4}


def test_saturated_gates_are_ordered_by_their_logits():
    plus = torch.tensor([[[30.0, 40.0, 35.0]]])
    made = GateFit("m", "t", [0], plus, plus, plus + 20, torch.zeros(3, 1), torch.zeros(3, 1))
    roles = Roles(made)
    assert roles.scores["F"].unique().tolist() == [1.0]
    assert roles.order("F").tolist() == [[1, 2, 0]]
    assert roles.order("N").tolist() == [[0, 2, 1]]
    assert roles.order("F", aggregated=True).tolist() == [[1, 2, 0]]


def test_one_order_for_all_seeds_is_by_their_mean_score():
    minus = torch.tensor([[[3.0, 2.0, -3.0]], [[-3.0, 2.0, 3.5]]])
    made = GateFit("m", "t", [0, 1], minus, minus, minus, torch.zeros(6, 1), torch.zeros(6, 1))
    assert Roles(made).order("F").tolist() == [[0, 1, 2], [2, 1, 0]]
    assert Roles(made).order("F", aggregated=True).tolist() == [[1, 2, 0]] * 2


def test_agreement_counts_seeds(fit):
    role, agree = Roles(fit).agreement()
    assert ROLES[role[NEEDED]] == "facilitating"
    assert int(agree[NEEDED]) == 5
    table = Roles(fit).table()
    assert len(table) == 5 * 8
    assert set(table["role"]) == {"facilitating", "irrelevant", "interfering"}
    best = Roles(fit).as_head_scores("F").order()[0]
    assert best == NEEDED


# --- the fit ---


def test_seeds_together_are_each_alone(fit):
    for number in range(5):
        single = fit_gates(roled(), pairs(40), [number], Schedule(updates=150, batch=16))
        own = alone(fit, number)
        for name in ("free", "plus", "minus"):
            assert torch.allclose(getattr(single, name), getattr(own, name), atol=2e-3), name
        assert torch.allclose(single.losses, own.losses, atol=1e-4)


def test_micro_batches_are_one_batch():
    schedule = Schedule(updates=20, batch=16)
    whole = fit_gates(planted(), pairs(40), range(2), schedule)
    parts = fit_gates(planted(), pairs(40), range(2), schedule, budget=12)
    assert torch.allclose(whole.plus, parts.plus, atol=1e-3)
    assert torch.allclose(whole.losses, parts.losses, atol=1e-5)


def plain_fit(model, examples, seed: int, schedule: Schedule) -> dict[str, torch.Tensor]:
    """The paper's loop written out: torch's own Adam and clipping, one example after the other."""
    start = torch.rand(2, 4, generator=torch.Generator().manual_seed(seed)).logit()
    start = start.clamp(-CLAMP, CLAMP)
    found = {}
    for number, (phase, pull) in enumerate({"free": 0.0, "plus": 0.1, "minus": -0.1}.items()):
        logits = (start if phase == "free" else found["free"]).clone().requires_grad_()
        adam = torch.optim.Adam([logits], lr=1.0)
        first, last = schedule.free_rates if phase == "free" else schedule.rates
        for step in range(schedule.updates):
            batch = order_of(len(examples), schedule.batch, range(step, step + 1), (seed, number))
            nll = 0.0
            for index in batch[0]:
                ids, begin = model.join(examples[index].prompt, examples[index].target)
                with model.gated(Gates(logits.sigmoid())):
                    out = model.hf(ids[None]).logits[0]
                nll = nll + cross_entropy(out[begin - 1 : -1], ids[begin:]) / schedule.batch
            loss = nll - pull * logits.clamp(-4, 4).mean()
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([logits], schedule.clip)
            adam.param_groups[0]["lr"] = first + (last - first) * step / (schedule.updates - 1)
            adam.step()
        found[phase] = logits.detach()
    return found


def test_the_fit_is_the_papers_loop_written_out():
    schedule = Schedule(updates=12, batch=6)
    examples = [
        dataclasses.replace(each, target=f"{each.target} is the", wrong=()) if n % 2 else each
        for n, each in enumerate(pairs(20))
    ]  # targets of one token and of three: each example counts the same
    fit = fit_gates(planted(), examples, [3], schedule)
    plain = plain_fit(planted(), examples, 3, schedule)
    for name, logits in plain.items():
        assert torch.allclose(getattr(fit, name)[0], logits, atol=1e-3), name


def test_a_closed_gate_may_give_the_mean():
    model = planted()
    mean = mean_reference(model, [each.prompt for each in pairs(20)])
    schedule = Schedule(updates=5, batch=8)
    zero = fit_gates(model, pairs(20), [0], schedule)
    other = fit_gates(model, pairs(20), [0], schedule, reference=mean)
    assert other.settings["reference"] == "mean"
    assert not torch.allclose(zero.plus, other.plus, atol=1e-4)


def test_weights_stay_as_they_are_and_get_no_gradient():
    model = planted()
    before = {name: value.clone() for name, value in model.hf.state_dict().items()}
    fit_gates(model, pairs(20), [0], Schedule(updates=3, batch=8))
    assert all(torch.equal(before[n], value) for n, value in model.hf.state_dict().items())
    assert all(parameter.grad is None for parameter in model.hf.parameters())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": []}, "needs seeds"),
        ({"seeds": [1, 1]}, "each once"),
        ({"schedule": Schedule(batch=64)}, "a batch has 64 examples, and there are 20"),
    ],
)
def test_a_fit_that_cannot_be_is_refused(changes, says):
    with pytest.raises(HeadlabError, match=says):
        fit_gates(planted(), pairs(20), **{"seeds": [0], **changes})


def test_short_fits_are_called_a_quick_look():
    assert few_updates(1) == ["Fits of 1 update are a quick look; the paper has 500."]
    assert few_updates(199) == ["Fits of 199 updates are a quick look; the paper has 500."]
    assert few_updates(200) == []


def test_a_schedule_without_sense_is_refused():
    for wrong in ({"updates": 0}, {"strength": -0.1}, {"clip": 0.0}, {"rates": (0.5, 0.0)}):
        with pytest.raises(HeadlabError):
            Schedule(**wrong)


# --- contrastive gates ---


def test_one_format_is_kept_and_the_other_forgotten():
    model = two_formats()
    first, second = in_formats(16)
    schedule = Schedule(updates=400, batch=8)
    for keep, forget, needed, closed in (
        (first, second, Head(1, 0), Head(1, 3)),
        (second, first, Head(1, 3), Head(1, 0)),
    ):
        fit = fit_contrast(model, keep, forget, range(3), schedule)
        assert (fit.gates[:, needed.layer, needed.head] > 0.5).all()
        assert (fit.gates[:, closed.layer, closed.head] < 0.2).all()
        kept = measure(model, keep, fit.gates, "top1-accuracy").values
        gone = measure(model, forget, fit.gates, "top1-accuracy").values
        assert kept.mean() == 1
        assert gone.mean() < 0.3


@pytest.mark.parametrize("sure", [1, 8])
def test_the_contrastive_loss_is_the_papers_written_out(sure):
    model = two_formats()
    with torch.no_grad():
        model.hf.lm_head.weight.mul_(sure)
    first, second = in_formats(16)
    if sure > 1:  # of a wrong answer it is so sure that it is forgotten enough
        targets = [each.target for each in [*second[1:], second[0]]]
        pairs_ = zip(second, targets, strict=True)
        second = [dataclasses.replace(each, target=target) for each, target in pairs_]
    fit = fit_contrast(model, first, second, range(8), Schedule(updates=1, batch=16))
    floored = 0
    for seed in range(8):
        logits = torch.rand(2, 4, generator=torch.Generator().manual_seed(seed)).logit()
        logits = logits.clamp(-CLAMP, CLAMP).requires_grad_()
        terms = []
        for one, other in zip(first, second, strict=True):
            found = []
            for example in (one, other):
                ids, begin = model.join(example.prompt, example.target)
                with model.gated(Gates(logits.sigmoid())):
                    out = model.hf(ids[None]).logits[0]
                found.append(-cross_entropy(out[begin - 1 : -1], ids[begin:]))
            apart = found[1] - found[0].detach()
            floored += bool(apart < -5)
            terms.append(-found[0] + apart.clamp(min=-5))
        loss = torch.stack(terms).mean()
        assert float(fit.losses[seed, 0]) == pytest.approx(float(loss.detach()), abs=1e-4)
        (loss - 0.1 * logits.clamp(-4, 4).mean()).backward()
        step = torch.sign(logits.grad) * 0.1  # Adam's first step
        assert torch.allclose(fit.logits[seed], (logits - step).detach(), atol=1e-3)
    assert (floored > 0) == (sure > 1)


def test_contrastive_seeds_together_are_each_alone_and_pairs_are_pairs():
    first, second = in_formats(16)
    schedule = Schedule(updates=30, batch=4)
    both = fit_contrast(two_formats(), first, second, [0, 1], schedule)
    for number in range(2):
        single = fit_contrast(two_formats(), first, second, [number], schedule)
        assert torch.allclose(single.logits[0], both.logits[number], atol=1e-3)
    parts = fit_contrast(two_formats(), first, second, [0, 1], schedule, budget=8)
    assert torch.allclose(parts.logits, both.logits, atol=1e-3)
    with pytest.raises(HeadlabError, match="they come in pairs"):
        fit_contrast(two_formats(), first, second[:-1], [0], schedule)


# --- rows and orders ---


def test_orders_go_through_all_examples_before_any_comes_again():
    order = order_of(10, 4, range(5), key=(7, 0)).flatten()
    assert sorted(order[:10]) == list(range(10))
    assert sorted(order[10:20]) == list(range(10))
    assert (order_of(10, 4, range(3, 5), key=(7, 0)).flatten() == order[12:]).all()
    assert (order_of(10, 4, range(5), key=(8, 0)).flatten() != order).any()
    assert (order[:10] != order[10:20]).any(), "each epoch has an order of its own"


def test_rows_hold_each_prompt_and_read_only_its_target():
    model = planted()
    examples = [dataclasses.replace(each, wrong=()) for each in pairs(3)]
    examples[1] = dataclasses.replace(examples[1], target=f"{examples[1].target} is the word")
    rows = Rows(model, examples, 3)
    for budget in (1, 10, 1000):
        seen = {}
        for drawn in rows.draw(torch.tensor([2, 1, 0]).numpy(), budget, start=0):
            for row, number in enumerate(drawn.numbers.tolist()):
                ids, start = model.join(examples[2 - number].prompt, examples[2 - number].target)
                length = int(drawn.tokens.mask[row].sum())
                assert drawn.tokens.ids[row, :length].tolist() == ids[:-1].tolist()
                own = drawn.rows == row
                assert drawn.targets[own].tolist() == ids[start:].tolist()
                assert drawn.positions[own].tolist() == list(range(start - 1, len(ids) - 1))
                seen[number] = True
        assert len(seen) == 3


def test_short_rows_are_not_padded_to_long_ones_where_that_costs_more():
    model = planted()
    short = [dataclasses.replace(each, wrong=()) for each in pairs(30)]
    long = [
        dataclasses.replace(each, prompt=f"is the word the word the {each.prompt}", id=f"l{n}")
        for n, each in enumerate(short[:2])
    ]
    rows = Rows(model, [*short, *long], 32)

    def shapes(tokens: int, start: int) -> list[tuple[int, ...]]:
        drawn = rows.draw(np.arange(len(rows)), tokens, start)
        return [tuple(each.tokens.ids.shape) for each in drawn]

    assert shapes(tokens=80, start=10) == [(2, 10), (20, 4), (10, 4)]
    assert shapes(tokens=800, start=10) == [(2, 10), (30, 4)]
    assert shapes(tokens=800, start=30 * 6 - 1) == [(2, 10), (30, 4)]
    assert shapes(tokens=800, start=30 * 6) == [(32, 10)]  # a pass would cost what it saves


# --- deltas ---


@pytest.mark.parametrize("base", ["plus", "ones", "raw"])
@pytest.mark.parametrize("aggregated", [False, True])
def test_delta_k_is_two_full_passes_with_the_gates_written_out(fit, base, aggregated):
    model, roles = roled(), Roles(fit)
    examples = [
        dataclasses.replace(each, target=f"{each.target} is the", wrong=()) for each in pairs(6)
    ]
    deltas = ablation_deltas(
        model, examples, roles, [0, 1, 3, 8], base=base, aggregated=aggregated, random_orders=7
    )
    assert deltas.ks == [0, 1, 3, 8]
    for metric in ("F", "I", "N"):
        order = roles.order(metric, aggregated)
        assert deltas.lines[metric].shape == (5, 4, 6)
        assert deltas.lines[metric][:, 0].abs().max() == 0
        for seed in range(5):
            for i, k in enumerate(deltas.ks):
                ground = torch.ones(8) if base == "ones" else fit.g_plus[seed].flatten()
                closed, opened = ground.clone(), ground.clone()
                closed[order[seed][:k]] = 0
                if base == "plus":
                    opened[order[seed][:k]] = 1
                gates = torch.stack([closed, opened]).view(2, 2, 4)
                low, high = measure(model, examples, gates, "log-prob").values
                assert torch.allclose(deltas.lines[metric][seed, i], low - high, atol=1e-5)
    assert deltas.lines["random"].shape == (7, 4, 6)
    for number in range(5):  # a random order is ablated against its own seed's gates
        lone = ablation_deltas(model, examples, Roles(alone(fit, number)), [8], base=base)
        assert torch.allclose(deltas.lines["random"][number, 3], lone.lines["F"][0, 0], atol=1e-5)
    if aggregated:
        assert (roles.order("F", True) == roles.order("F", True)[0]).all()


def test_the_band_is_over_seeds(fit):
    deltas = ablation_deltas(roled(), pairs(6), Roles(fit), range(3))
    low, high = deltas.band("F")
    assert (low[1:] <= deltas.mean("F")[1:]).all()
    assert (deltas.mean("F")[1:] <= high[1:]).all()
    single = ablation_deltas(roled(), pairs(6), Roles(alone(fit, 0)), range(3), random_orders=1)
    assert math.isnan(float(single.band("F")[0][1]))


def test_wrong_requests_of_deltas_are_refused(fit):
    with pytest.raises(HeadlabError, match="the base is"):
        ablation_deltas(roled(), pairs(4), Roles(fit), base="minus")
    with pytest.raises(HeadlabError, match="k runs from 0 to 8"):
        ablation_deltas(roled(), pairs(4), Roles(fit), [9])


# --- figures ---


def test_the_three_fits_have_colours_that_no_score_has(fit):
    figure = fit_paths(Roles(fit))
    losses, shares, scores = (
        {line.get_color() for line in axis.lines if not line.get_label().startswith("_")}
        for axis in figure.axes
    )
    plt.close(figure)
    assert (len(losses), len(scores)) == (3, 3)
    assert shares < losses
    assert not losses & scores


@pytest.mark.parametrize(("updates", "points"), [(10, [10]), (25, [25, 35, 45])])
def test_shares_of_gates_stand_at_the_updates_they_are_of_and_can_be_seen(updates, points):
    figure = fit_paths(
        Roles(fit_gates(planted(), pairs(20), [0], Schedule(updates=updates, batch=8)))
    )
    lines = figure.axes[1].lines
    plt.close(figure)
    assert len(lines) == 4
    assert all(line.get_xdata().tolist() == points for line in lines)
    assert all((line.get_marker() == ".") == (len(points) == 1) for line in lines)


@pytest.mark.parametrize(
    "wrong", [{"strength": math.nan}, {"clip": math.inf}, {"rates": (0.1, math.nan)}]
)
def test_a_schedule_is_of_finite_numbers(wrong):
    with pytest.raises(HeadlabError, match="finite"):
        Schedule(**wrong)
