"""Intervals cover what they should, and scores say what they are."""

from __future__ import annotations

import math

import pytest
import torch

from headlab import Head
from headlab.scores import HeadScores
from headlab.stats import bootstrap_means, expected_by_chance, mean_interval


def test_the_interval_covers_the_mean_about_as_often_as_it_says():
    random = torch.Generator().manual_seed(0)
    samples = torch.randn(400, 40, generator=random) + 3
    low, high = mean_interval(samples)
    covered = ((low < 3) & (high > 3)).double().mean()
    assert 0.90 < covered < 0.98
    widths = (high - low).mean()
    assert widths == pytest.approx(2 * 1.96 / math.sqrt(40), rel=0.1)


def test_a_resampled_mean_is_a_mean_of_the_examples():
    values = torch.tensor([1.0, 10.0, 100.0])
    means = bootstrap_means(values, n=500)
    possible = {
        round((a + b + c) / 3, 6) for a in (1, 10, 100) for b in (1, 10, 100) for c in (1, 10, 100)
    }
    assert {round(float(mean), 6) for mean in means} <= possible
    assert torch.equal(means, bootstrap_means(values, n=500)), "the same seed, the same resamples"


@pytest.mark.parametrize(("n", "share"), [(3, 0.25), (40, 0.06)])
def test_what_chance_alone_would_give_is_counted(n, share):
    """Three examples of one sign leave out 0 whatever they are: a quarter of all heads do."""
    random = torch.Generator().manual_seed(1)
    values = torch.randn(400, n, generator=random)
    values[:200] += 5  # half of the rows are far from 0; that must not count as chance
    expected = expected_by_chance(values) / 400
    assert expected == pytest.approx(share, abs=0.05)


def test_one_example_has_no_interval():
    low, high = mean_interval(torch.tensor([[2.0]]))
    assert low.isnan().all()
    assert high.isnan().all()


def scores(values: torch.Tensor, noise: float | None = None) -> HeadScores:
    names = [str(n) for n in range(values.shape[-1])]
    return HeadScores("m", "ablate", "log-prob", "zero", names, values, torch.zeros(1), noise)


def test_scores_are_ordered_and_marked():
    values = torch.tensor([[[1.0, 3.0], [-5.0, -5.5]], [[-1.0, 1.5], [1e-7, 1e-7]]])
    made = scores(values, noise=1e-6)
    assert made.order() == [Head(0, 0), Head(1, 0), Head(1, 1), Head(0, 1)]
    assert made.order(by_size=True)[0] == Head(0, 1)
    assert made.in_noise.tolist() == [[False, False], [False, True]]
    assert made.beyond_chance.tolist() == [[True, True], [False, False]]
    rows = {row["head"]: row for row in made.rows()}
    assert rows["L0H1"]["score"] == -5.25
    assert (
        made.as_dict()["heads"]["L0H1"]["low"] <= -5.25 <= made.as_dict()["heads"]["L0H1"]["high"]
    )
