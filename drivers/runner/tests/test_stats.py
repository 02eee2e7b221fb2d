"""Statistics over trials, against known values and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import stats

few = st.lists(st.floats(1.0, 1e7), min_size=2, max_size=stats.BOOTSTRAP_TRIALS - 1)
many = st.lists(st.floats(1.0, 1e7), min_size=stats.BOOTSTRAP_TRIALS, max_size=9)


def test_one_trial_has_no_interval() -> None:
    assert stats.mean([5.0]) == stats.Estimate(5.0, None, None, 1)
    assert stats.mean([5.0]).interval is None
    assert stats.ratio([9.0], [3.0, 3.0]).interval is None


def test_no_trial_is_an_error() -> None:
    with pytest.raises(ValueError, match="no trials"):
        stats.mean([])
    with pytest.raises(ValueError, match="at least one"):
        stats.ratio([], [1.0])
    with pytest.raises(ValueError, match="zero"):
        stats.ratio([1.0], [0.0])


@settings(max_examples=30, deadline=None)
@given(many)
def test_the_bootstrap_encloses_the_mean_and_lies_within_the_trials(values: list[float]) -> None:
    found = stats.mean(values)
    assert found.value == pytest.approx(sum(values) / len(values))
    assert found.low is not None
    assert found.high is not None
    slack = 1e-9 * found.value
    assert min(values) - slack <= found.low <= found.value + slack
    assert found.value - slack <= found.high <= max(values) + slack


@settings(max_examples=30, deadline=None)
@given(few)
def test_the_t_interval_encloses_the_mean_and_is_not_negative(values: list[float]) -> None:
    found = stats.mean(values)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value * (1 + 1e-9)
    assert found.high >= found.value * (1 - 1e-9)


def test_the_interval_of_three_trials_is_students() -> None:
    # s = 10, so the half width is t(0.975, 2 degrees of freedom) = 4.3027 times 10 / sqrt(3).
    found = stats.mean([90.0, 100.0, 110.0])
    assert found.interval == pytest.approx([100 - 24.84, 100 + 24.84], abs=0.01)
    assert stats.mean([1.0, 100.0]).low == 0.0, "no throughput is negative"


def test_the_ratio_of_three_trials_has_a_t_interval_on_its_logarithm() -> None:
    # Both sides vary by 10 %: variance 0.1² / 3 each, and 4 degrees of freedom: t(0.975, 4) = 2.7764.
    found = stats.ratio([90.0, 100.0, 110.0], [9.0, 10.0, 11.0])
    factor = math.exp(2.7764 * 0.1 * math.sqrt(2 / 3))
    assert found.interval == pytest.approx([10 / factor, 10 * factor], rel=1e-4)
    inverse = stats.ratio([9.0, 10.0, 11.0], [90.0, 100.0, 110.0])
    assert inverse.interval == pytest.approx([0.1 / factor, 0.1 * factor], rel=1e-4)


def test_three_trials_cover_the_truth_as_often_as_they_promise() -> None:
    # The percentile bootstrap holds the true value in 75 to 80 % of such cases instead of 95 %.
    generator = np.random.default_rng(3)
    held_mean = held_ratio = 0
    cases = 1000
    for _ in range(cases):
        top, bottom = generator.normal(1000, 50, 3), generator.normal(100, 5, 3)
        mean, ratio = stats.mean(list(top)), stats.ratio(list(top), list(bottom))
        assert mean.interval is not None
        assert ratio.interval is not None
        held_mean += mean.interval[0] <= 1000 <= mean.interval[1]
        held_ratio += ratio.interval[0] <= 10 <= ratio.interval[1]
    assert held_mean > 0.93 * cases
    assert held_ratio > 0.93 * cases


def test_the_interval_of_many_trials_approaches_the_normal_one() -> None:
    values = np.random.default_rng(7).normal(1000, 100, 400)
    found = stats.mean(list(values))
    half = 1.96 * values.std() / math.sqrt(values.size)
    assert found.low == pytest.approx(values.mean() - half, rel=0.005)
    assert found.high == pytest.approx(values.mean() + half, rel=0.005)


@settings(max_examples=30, deadline=None)
@given(few | many, few | many, st.floats(0.1, 10.0))
def test_a_ratio_scales_and_encloses_its_value(top: list[float], bottom: list[float], factor: float) -> None:
    found = stats.ratio(top, bottom)
    assert found.value == pytest.approx(np.mean(top) / np.mean(bottom))
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value * (1 + 1e-9)
    assert found.high >= found.value * (1 - 1e-9)
    scaled = stats.ratio([factor * v for v in top], bottom)
    assert scaled.value == pytest.approx(factor * found.value)
    assert scaled.low == pytest.approx(factor * found.low)


def test_a_quotient_of_ratios() -> None:
    found = stats.quotient([[30.0, 33.0, 36.0], [10.0, 10.0, 10.0]], [[10.0, 10.0, 10.0], [22.0, 22.0, 22.0]])
    assert found.value == pytest.approx(1.5)
    assert found.trials == 3
    assert found.low is not None
    assert found.low < 1.5


def test_a_ratio_of_zero_has_no_logarithm_and_no_interval() -> None:
    assert stats.ratio([0.0, 0.0], [1.0, 2.0]) == stats.Estimate(0.0, None, None, 2)


def test_the_same_trials_give_the_same_interval() -> None:
    assert stats.mean([1.0, 2.0, 4.0, 8.0]) == stats.mean([1.0, 2.0, 4.0, 8.0])


def test_the_chance_of_a_difference_is_welchs() -> None:
    # As above: a tenth of spread on both sides, 4 degrees of freedom; a factor of exp(2.7764 se) is at 5 %.
    factor = math.exp(2.7764 * 0.1 * math.sqrt(2 / 3))
    sides = [90.0, 100.0, 110.0], [factor * v for v in (90.0, 100.0, 110.0)]
    assert stats.chance(*sides) == pytest.approx(0.05, abs=1e-5)
    assert stats.chance(*reversed(sides)) == pytest.approx(0.05, abs=1e-5)
    assert stats.chance([90.0, 100.0, 110.0], [90.0, 100.0, 110.0]) == 1.0
    assert stats.chance([1.0], [2.0, 3.0]) is None
    assert stats.chance([0.0, 0.0], [2.0, 3.0]) is None
    assert (stats.chance([5.0, 5.0], [5.0, 5.0]), stats.chance([5.0, 5.0], [6.0, 6.0])) == (1.0, 0.0)


def test_equal_sides_differ_by_chance_as_often_as_they_should() -> None:
    generator = np.random.default_rng(11)
    found = [stats.chance(*generator.normal(1000, 50, (2, 3)).tolist()) for _ in range(1000)]
    assert 0.015 < np.mean([p is not None and p < 0.05 for p in found]) < 0.07


def test_holms_correction() -> None:
    # Holm's procedure by hand: 0.01 x 4, 0.02 x 3, 0.03 x 2 raised to the one before, 0.5 x 1.
    assert stats.holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_holms_correction_keeps_the_order_and_lowers_nothing(chances: list[float]) -> None:
    corrected = stats.holm(chances)
    assert all(c >= p for c, p in zip(corrected, chances, strict=True))
    assert [corrected[i] for i in np.argsort(chances, kind="stable")] == sorted(corrected)


def test_the_chance_of_a_factor() -> None:
    assert stats.chance_of_factor([0.5, 2.0]) == 1.0
    assert stats.chance_of_factor([1.0, 1.0]) == 1.0
    assert stats.chance_of_factor([2.0, 2.0]) == 0.0
    assert stats.chance_of_factor([2.0]) is None
    # The interval of the mean touches 1 where the chance is 5 %.
    values = [1.1, 1.2, 1.3, 0.98]
    mean, chance = stats.geometric_mean(values), stats.chance_of_factor(values)
    assert mean.low is not None
    assert chance is not None
    assert (mean.low > 1) == (chance < 0.05)


def test_the_geometric_mean_of_ratios() -> None:
    found = stats.geometric_mean([0.5, 2.0, 1.0])
    assert found.value == pytest.approx(1.0)
    assert found.low == pytest.approx(1 / (found.high or 0.0)), "a ratio and its inverse say the same"
    # The logarithms' s is ln 2, so half the interval is 4.3027 ln 2 / sqrt(3).
    assert found.high == pytest.approx(math.exp(4.3027 * math.log(2) / math.sqrt(3)), rel=1e-4)
    single = stats.geometric_mean([3.0])
    assert single.value == pytest.approx(3.0)
    assert (single.interval, single.trials) == (None, 1)
