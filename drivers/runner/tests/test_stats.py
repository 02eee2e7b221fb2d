"""Statistics over trials, against known values and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import stats

throughputs = st.lists(st.floats(1.0, 1e7), min_size=2, max_size=6)


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
@given(throughputs)
def test_the_interval_encloses_the_mean_and_lies_within_the_trials(values: list[float]) -> None:
    found = stats.mean(values)
    assert found.value == pytest.approx(sum(values) / len(values))
    assert found.low is not None
    assert found.high is not None
    slack = 1e-9 * found.value
    assert min(values) - slack <= found.low <= found.value + slack
    assert found.value - slack <= found.high <= max(values) + slack


def test_the_interval_of_three_trials_is_known() -> None:
    # With three trials the extreme means (all three draws the same) have probability 1/27 = 3.7 % each, more than the
    # 2.5 % that the interval cuts off: it is the range of the trials.
    found = stats.mean([90.0, 100.0, 110.0])
    assert (found.low, found.high) == (90.0, 110.0)


def test_the_interval_of_many_trials_approaches_the_normal_one() -> None:
    values = np.random.default_rng(7).normal(1000, 100, 400)
    found = stats.mean(list(values))
    half = 1.96 * values.std() / math.sqrt(values.size)
    assert found.low == pytest.approx(values.mean() - half, rel=0.005)
    assert found.high == pytest.approx(values.mean() + half, rel=0.005)


@settings(max_examples=30, deadline=None)
@given(throughputs, throughputs, st.floats(0.1, 10.0))
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
