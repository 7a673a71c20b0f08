"""Intervals cover what they should, and scores say what they are."""

from __future__ import annotations

import math

import pytest
import torch

from headlab import Head
from headlab.scores import HeadScores
from headlab.stats import (
    bootstrap_means,
    expected_by_chance,
    leaves_out_zero,
    mean_interval,
    share_interval,
)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16, 40])
def test_the_interval_covers_the_mean_as_often_as_it_says(n):
    random = torch.Generator().manual_seed(n)
    samples = torch.randn(1500, n, generator=random) + 3
    low, high = mean_interval(samples)
    covered = ((low < 3) & (high > 3)).double().mean()
    assert 0.93 < covered < (0.985 if n > 3 else 1)


def test_the_interval_of_many_is_the_normal_one():
    random = torch.Generator().manual_seed(0)
    low, high = mean_interval(torch.randn(100, 200, generator=random))
    assert (high - low).mean() == pytest.approx(2 * 1.96 / math.sqrt(200), rel=0.05)


def test_a_share_of_all_has_a_width():
    assert share_interval(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)  # Wilson's table
    assert share_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


def test_a_resampled_mean_is_a_mean_of_the_examples():
    values = torch.tensor([1.0, 10.0, 100.0])
    means = bootstrap_means(values, n=500)
    possible = {
        round((a + b + c) / 3, 6) for a in (1, 10, 100) for b in (1, 10, 100) for c in (1, 10, 100)
    }
    assert {round(float(mean), 6) for mean in means} <= possible
    assert torch.equal(means, bootstrap_means(values, n=500)), "the same seed, the same resamples"


@pytest.mark.parametrize("n", [8, 40])
def test_what_chance_alone_would_give_is_counted(n):
    random = torch.Generator().manual_seed(1)
    values = torch.randn(400, n, generator=random)
    assert expected_by_chance(values) / 400 == pytest.approx(0.05, abs=0.02)
    values[:200] += 5  # half of the rows are far from 0; that must not count as chance
    assert expected_by_chance(values) / 400 < 0.08


def test_two_examples_of_one_sign_may_be_chance():
    values = torch.tensor([[1.0, 1.1], [1.0, 5.0]])
    assert leaves_out_zero(values).tolist() == [True, False]


def test_one_example_has_no_interval():
    low, high = mean_interval(torch.tensor([[2.0]]))
    assert low.isnan().all()
    assert high.isnan().all()


def scores(values: torch.Tensor, noise: float | None = None) -> HeadScores:
    names = [str(n) for n in range(values.shape[-1])]
    return HeadScores("m", "", "ablate", "log-prob", "zero", names, values, torch.zeros(1), noise)


def test_scores_are_ordered_and_marked():
    values = torch.tensor([[[1.0, 3.0], [-5.0, -5.5]], [[-1.0, 1.5], [1e-7, 1e-7]]])
    made = scores(values, noise=1e-6)
    assert made.order() == [Head(0, 0), Head(1, 0), Head(1, 1), Head(0, 1)]
    assert made.order(by_size=True)[0] == Head(0, 1)
    assert made.in_noise.tolist() == [[False, False], [False, True]]
    assert made.leaves_out_zero.tolist() == [[False, True], [False, False]], "1 and 3 may be chance"
    assert made.as_dict()["heads"]["L0H1"]["score"] == -5.25
    assert (
        made.as_dict()["heads"]["L0H1"]["low"] <= -5.25 <= made.as_dict()["heads"]["L0H1"]["high"]
    )
