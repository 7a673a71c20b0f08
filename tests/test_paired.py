"""Paired statistics: cases worked out by hand, effects that were planted, and none."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from scipy.stats import binomtest, kstest

from headlab import HeadlabError
from headlab.paired import McNemar, holm, mcnemar, mean_of_pairs, paired_difference, sign_flips

N, STUDIES = 500, 200


def pairs(gained: int, lost: int, both: int = 3, neither: int = 2) -> tuple[list[int], list[int]]:
    before = [0] * gained + [1] * lost + [1] * both + [0] * neither
    after = [1] * gained + [0] * lost + [1] * both + [0] * neither
    return before, after


def simulate(random: np.random.Generator, gain: float, loss: float, base: float = 0.6):
    """500 problems, of which `base` are right before, and these shares change."""
    before = random.random(N) < base
    luck = random.random(N)
    after = np.where(before, luck >= loss / base, luck < gain / (1 - base))
    return before, after


# --- McNemar ---


def test_the_exact_p_is_that_of_a_count_by_hand():
    # 6 changed, 1 of them for the worse: 2 * (1 + 6) / 2^6 = 14 / 64
    assert mcnemar(*pairs(5, 1)) == McNemar(5, 1, 14 / 64)
    # 8 changed, all for the better: 2 * 1 / 2^8
    assert mcnemar(*pairs(8, 0)) == McNemar(8, 0, pytest.approx(2 / 256))
    # 10 changed, 2 for the better: 2 * (1 + 10 + 45) / 2^10 = 112 / 1024
    assert mcnemar(*pairs(2, 8)) == McNemar(2, 8, pytest.approx(112 / 1024))
    # as many either way: 2 * (1 + 4 + 6) / 2^4 is more than 1
    assert mcnemar(*pairs(2, 2)) == McNemar(2, 2, 1.0)
    assert mcnemar(*pairs(0, 0)) == McNemar(0, 0, 1.0)


def test_problems_that_both_or_neither_solve_say_nothing():
    assert mcnemar(*pairs(9, 2)) == mcnemar(*pairs(9, 2, both=900, neither=70))


def test_p_is_scipys_and_the_same_both_ways():
    for gained in range(0, 60, 3):
        for lost in range(0, 60, 4):
            found = mcnemar(*pairs(gained, lost))
            same = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
            assert found.p == pytest.approx(same, rel=1e-9)
            assert mcnemar(*pairs(lost, gained)).p == found.p
    assert mcnemar(*pairs(900, 700)).p == pytest.approx(binomtest(900, 1600).pvalue, rel=1e-6)


def test_five_points_on_500_pairs_are_found():
    # 35 gained and 10 lost are expected: 7 % and 2 % of the pairs.
    random = np.random.default_rng(0)
    found = [mcnemar(*simulate(random, 0.07, 0.02)) for _ in range(STUDIES)]
    assert np.mean([each.gained - each.lost for each in found]) / N == pytest.approx(0.05, abs=3e-3)
    assert np.mean([each.p < 0.05 for each in found]) >= 0.9


def test_no_effect_gives_p_values_that_hold_what_they_promise():
    random = np.random.default_rng(1)
    found = [mcnemar(*simulate(random, 0.06, 0.06)) for _ in range(STUDIES)]
    # Of 200 valid tests at most 10 are expected below 0.05; 18 or more come in 1 % of the time.
    assert sum(each.p < 0.05 for each in found) < 18
    assert sum(each.p < 0.25 for each in found) < 65  # 50 expected

    # An exact p counts the whole of what was seen. Counting a random part of it, p is uniform.
    def without_seen(each: McNemar) -> float:
        fewer, changed = min(each.gained, each.lost) - 1, each.gained + each.lost
        return binomtest(fewer, changed).pvalue if fewer >= 0 else 0.0

    part = random.random(STUDIES)
    shares = [
        low + u * (each.p - low)
        for u, each in zip(part, found, strict=True)
        for low in [without_seen(each)]
    ]
    assert kstest(shares, "uniform").pvalue > 0.05
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)


# --- the difference ---


def test_the_difference_is_that_of_the_means_and_its_interval_the_normal_one():
    before, after = pairs(40, 15, both=245, neither=200)
    mean, low, high = paired_difference(before, after)
    assert mean == pytest.approx((40 - 15) / 500)
    # Variance of a difference: 55 / 500 - 0.05^2 = 0.1075; error sqrt(0.1075 / 500) = 0.01466
    assert (high - low) / 2 == pytest.approx(1.96 * 0.01466, rel=0.06)
    assert (low + high) / 2 == pytest.approx(mean, abs=0.003)
    wide = paired_difference(before, after, level=0.99)
    assert wide[1] < low < high < wide[2]
    assert paired_difference(before, after) == (mean, low, high)
    assert paired_difference(before, after, seed=1)[1:] != (low, high)
    back = paired_difference(after, before)
    assert back == pytest.approx((-mean, -high, -low), abs=0.003)


def test_shares_of_several_draws_are_scores_too():
    mean, low, high = paired_difference([0.25, 0.5, 0.75, 1.0], [0.5, 0.5, 1.0, 1.0])
    assert mean == 0.125
    assert -0.45 < low < 0.125 < high < 0.57  # four pairs: as many may not have been seen


def test_pairs_that_all_differ_alike_have_an_interval_of_some_width():
    # Wilson's interval of 10 of 10 begins at 10 / (10 + 1.96^2) = 0.7225, so 0.2775 are unseen.
    same = paired_difference([1, 0] * 5, [1, 0] * 5)
    assert same == pytest.approx((0, -0.2775, 0.2775), abs=1e-4)
    # All better: 0.7225 * 1 + 0.2775 * -1
    assert paired_difference([0] * 10, [1] * 10) == pytest.approx((1, 0.4450, 1), abs=1e-4)
    assert paired_difference([0], [0])[1] < -0.7
    # 6.635 is the square of the normal's 2.576
    unseen = 6.635 / (10 + 6.635)
    assert mean_of_pairs(np.zeros(10), level=0.99)[2] == pytest.approx(unseen, abs=1e-3)


def test_the_interval_covers_what_was_planted():
    random = np.random.default_rng(2)
    covered, above = 0, 0
    for _ in range(STUDIES):
        _, low, high = paired_difference(*simulate(random, 0.07, 0.02))
        covered += low <= 0.05 <= high
        above += low > 0
    assert 0.90 <= covered / STUDIES <= 0.99
    assert above / STUDIES >= 0.9


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ([1, 0], [1], r"two lists of one length, not \(2,\) and \(1,\)"),
        ([], [], r"two lists of one length, not \(0,\)"),
        ([[1]], [[1]], "two lists"),
        ([1, math.nan], [1, 0], "lie between 0 and 1, and none is missing"),
        ([1, 0], [100, 0], "lie between 0 and 1"),
    ],
)
def test_pairs_that_are_none_are_refused(before, after, says):
    for test in (mcnemar, paired_difference):
        with pytest.raises(HeadlabError, match=says):
            test(before, after)
    with pytest.raises(HeadlabError, match="right and wrong alone"):
        mcnemar([0.5, 1], [1, 1])


# --- Holm ---


def test_holm_multiplies_by_how_many_are_left():
    # In order: 4 * 0.005, 3 * 0.01, 2 * 0.03, 1 * 0.04; the last is raised to the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6, 0.9]) == [1.0, 1.0, 1.0]  # 1.5 is no p-value
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
    assert holm([0.02, 0.02]) == [0.04, 0.04]


def test_a_test_that_was_none_does_not_count():
    found = holm([0.01, math.nan, 0.04])
    assert math.isnan(found[1])
    assert [found[0], found[2]] == holm([0.01, 0.04]) == [0.02, 0.04]
    assert all(map(math.isnan, holm([math.nan, math.nan])))


def test_holm_does_not_depend_on_the_order():
    ps = [0.3, 0.001, 0.04, 0.04, 0.012]
    expected = dict(zip(ps, holm(ps), strict=True))
    for order in permutations(ps):
        assert holm(order) == [expected[p] for p in order]
    by_size = [expected[p] for p in sorted(ps)]
    assert by_size == sorted(by_size)


@pytest.mark.parametrize("ps", [[0.1, 1.5], [-0.1, 0.2]])
def test_what_is_no_p_value_is_refused(ps):
    with pytest.raises(HeadlabError, match="between 0 and 1"):
        holm(ps)


def test_holm_keeps_false_finds_of_a_family_to_one_in_twenty():
    random = np.random.default_rng(3)
    families, false, plain, true = 4000, 0, 0, 0
    for _ in range(families):
        ps = random.random(8)
        ps[:2] = ps[:2] ** 12  # two real effects
        adjusted = holm(ps.tolist())
        false += min(adjusted[2:]) <= 0.05
        plain += min(ps[2:]) <= 0.05
        true += adjusted[0] <= 0.05
    assert plain / families == pytest.approx(1 - 0.95**6, abs=0.03), "without: one in four"
    assert 0.02 < false / families < 0.05 + 0.01
    assert true / families > 0.5


# --- scores that are shares ---


def test_flipping_signs_gives_the_exact_p_of_a_few_pairs():
    """Of four pairs with differences 3, 2, 1, 1 (eighths) all sixteen signs can be written out."""
    before, after = [0.0, 0.0, 0.5, 0.5], [0.375, 0.25, 0.625, 0.625]
    apart = [3, 2, 1, 1]
    sums = [
        abs(sum(sign * each for sign, each in zip(signs, apart, strict=True)))
        for signs in product((-1, 1), repeat=4)
    ]
    exact = sum(total >= sum(apart) for total in sums) / 16
    assert sign_flips(before, after) == pytest.approx(exact, abs=0.01)
    assert sign_flips(after, before) == pytest.approx(exact, abs=0.01)
    assert sign_flips(before, before) == 1.0


def test_flipping_signs_holds_what_it_promises_and_finds_what_is_there():
    luck = np.random.default_rng(3)
    ps = []
    for _ in range(200):
        before, after = (luck.random(60) for _ in "ab")
        ps.append(sign_flips(before, after, draws=500))
    assert kstest(ps, "uniform").pvalue > 0.01
    before = luck.integers(0, 3, 200) / 3
    assert sign_flips(before, np.minimum(1, before + (luck.random(200) < 0.2) / 3)) < 0.001
