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


def test_settled() -> None:
    noise = np.random.default_rng(1).normal(0, 20, 30)
    assert stats.settled(list(1000 + noise)) is True
    assert stats.settled(list(np.linspace(500, 1000, 30) + noise)) is False, "still warming up"
    assert stats.settled(list(np.linspace(1000, 700, 30) + noise)) is False, "getting slower"
    stalls = 1000 + noise
    stalls[[5, 15, 25]] = 50
    assert stats.settled(list(stalls)) is True, "single stalled seconds are no trend"
    assert stats.settled([1000.0] * 30) is True
    assert stats.settled([0.0] * 30) is False
    assert stats.settled([1000.0] * 5) is None, "too short to tell"


@settings(max_examples=30, deadline=None)
@given(st.floats(10.0, 1e6), st.integers(10, 60))
def test_a_constant_rate_is_settled(rate: float, seconds: int) -> None:
    assert stats.settled([rate] * seconds) is True
