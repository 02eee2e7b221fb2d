"""The change-point check against series whose answer is known: how often it is wrong, and what it does not miss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner import steady

Series = NDArray[np.float64]
NONE = np.array([])


def noise(autocorrelation: float, count: int, cases: int, seed: int) -> Series:
    """Series (one to a row) of throughput around 1000 with a standard deviation of 50."""
    generator = np.random.default_rng(seed)
    series = generator.normal(size=(cases, count))
    for place in range(1, count):
        fresh = math.sqrt(1 - autocorrelation**2) * series[:, place]
        series[:, place] = autocorrelation * series[:, place - 1] + fresh
    return 1000 + 50 * series


def share_found(series: Series, width_s: float = 1.0) -> float:
    return float(np.mean([steady.find(each, width_s) is not None for each in series]))


@pytest.mark.parametrize(
    ("autocorrelation", "at_most"), [(-0.3, 0.01), (0.0, 0.01), (0.3, 0.03), (0.5, 0.05), (0.7, 0.09)]
)
@pytest.mark.parametrize(("count", "width_s"), [(20, 0.5), (60, 0.5), (120, 1.0)])
def test_steady_noise_is_steady(autocorrelation: float, at_most: float, count: int, width_s: float) -> None:
    cases = 200
    assert share_found(noise(autocorrelation, count, cases, seed=count), width_s) <= at_most


def test_skewed_noise_is_steady() -> None:
    """Most seconds a little below the mean, some far above it, or below."""
    skewed = np.random.default_rng(4).exponential(size=(200, 60))
    assert share_found(1000 + 50 * skewed) <= 0.01
    assert share_found(1000 - 50 * skewed) <= 0.01


@pytest.mark.parametrize(("autocorrelation", "at_least"), [(0.0, 0.99), (0.5, 0.6)])
def test_a_level_that_changes_is_found_where_it_changes(autocorrelation: float, at_least: float) -> None:
    series = noise(autocorrelation, 60, 200, seed=5)
    series[:, 30:] -= 120
    found = [change for each in series if (change := steady.find(each, 0.5)) is not None]
    assert len(found) >= at_least * len(series)
    assert np.median([change.second for change in found]) == pytest.approx(15.0, abs=1.0)
    assert np.median([change.share for change in found]) == pytest.approx(-0.12, abs=0.03)


def test_a_warm_up_that_was_too_short_is_found() -> None:
    """5 of 30 s at 60 % of the throughput."""
    series = noise(0.3, 60, 100, seed=6)
    series[:, :10] -= 400
    found = [steady.find(each, 0.5) for each in series]
    assert sum(change is not None and 4 <= change.second <= 6 for change in found) >= 97
    assert all(0.3 < change.share < 0.5 for change in found if change is not None)


def test_a_drift_is_found_although_it_looks_like_autocorrelation() -> None:
    for slope in (300, -300):
        series = noise(0.3, 60, 100, seed=7) + np.linspace(-slope / 2, slope / 2, 60)
        assert share_found(series, 0.5) >= 0.95
    assert steady.find(np.linspace(500, 1000, 30)) is not None


def test_a_throughput_that_rises_and_falls_again_is_found() -> None:
    """One change hides the other in part: it takes more values, or less autocorrelation, than a single one."""
    for autocorrelation, count in ((0.0, 60), (0.3, 120)):
        series = noise(autocorrelation, count, 100, seed=14)
        series[:, : count // 5] -= 250
        series[:, -count // 5 :] -= 250
        assert share_found(series, 30 / count) >= 0.7, count


def test_stalled_seconds_are_no_change_of_level() -> None:
    series = noise(0.3, 60, 100, seed=8)
    scattered, periodic, at_the_end = series.copy(), series.copy(), series.copy()
    scattered[:, [15, 16, 40, 41, 55]] = 0
    periodic[:, ::6] = 100
    at_the_end[:, -2:] = 0
    for stalled in (scattered, periodic, at_the_end):
        assert share_found(stalled, 0.5) <= 0.03


def test_a_trial_is_judged_by_the_size_of_the_change_too() -> None:
    quiet = 1000 + (noise(0.0, 120, 1, seed=9)[0] - 1000) / 3
    small, large = quiet.copy(), quiet.copy()
    small[60:] *= 0.96
    large[60:] *= 0.85
    found = steady.level(small, NONE)
    assert found.settled is True
    assert found.change is not None, "real, and too small to matter"
    found = steady.level(large, NONE)
    assert found.settled is False
    assert found.change is not None
    assert found.change.second == pytest.approx(60, abs=3)
    assert found.change.share == pytest.approx(-0.15, abs=0.03)


def test_short_and_empty_trials() -> None:
    assert steady.level(np.full(9, 1000.0), NONE) == steady.Level(None), "too short to tell"
    assert steady.level(NONE, NONE) == steady.Level(None)
    assert steady.level(np.zeros(30), NONE) == steady.Level(False), "nothing was done"
    assert steady.level(np.full(30, 1000.0), NONE) == steady.Level(True)
    mostly_idle = np.array([0.0, 0.0, 1.0] * 10)
    assert steady.level(mostly_idle, NONE) == steady.Level(False)


def test_short_intervals_are_looked_at_more_finely_and_very_long_ones_less() -> None:
    tenths = np.random.default_rng(10).normal(100, 10, 120)
    tenths[:35] *= 0.5
    seconds = tenths.reshape(-1, 10).sum(axis=1)
    found = steady.level(seconds, tenths)
    assert found.settled is False
    assert found.change is not None
    assert found.change.second == pytest.approx(3.5, abs=0.2), "by fifths of a second"
    long = np.random.default_rng(10).normal(1000, 50, 1000)
    long[600:] += 200
    found = steady.level(long, np.repeat(long / 10, 10))
    assert found.change is not None
    assert found.change.second == 600
    assert found.change.second % 4 == 0, "250 values of four seconds each"
    cut_off = steady.level(seconds, tenths[:100])
    assert cut_off.change is None or cut_off.change.second % 1 == 0, "the tenths do not cover the interval"


def test_counts_of_which_most_are_equal() -> None:
    counts = np.array([3.0] * 20 + [2.0, 4.0, 3.0, 3.0, 2.0, 3.0, 4.0, 3.0, 3.0, 3.0])
    assert steady.find(counts) is None
    assert steady.find(np.array([3.0] * 20 + [6.0] * 10)) is not None


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 1e6), st.integers(10, 60))
def test_a_constant_rate_is_steady(rate: float, seconds: int) -> None:
    assert steady.level(np.full(seconds, rate), NONE) == steady.Level(True)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 50), st.floats(0.1, 1e4))
def test_the_unit_does_not_matter(seed: int, factor: float) -> None:
    series = noise(0.3, 40, 1, seed)[0]
    series[20:] += 100
    one, other = steady.find(series), steady.find(factor * series)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert other.second == one.second
        assert other.share == pytest.approx(one.share)


def test_the_same_series_gets_the_same_answer() -> None:
    series = noise(0.5, 60, 1, seed=3)[0]
    first = steady.find(series)
    steady._steady.cache_clear()
    assert steady.find(series) == first
