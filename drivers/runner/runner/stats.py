"""Statistics over trials: the unit is the trial, never the second or the transaction (design §3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 20130826  # of the resampling only: the same table gives the same interval
SETTLED_MINIMUM_S = 10  # with fewer measured seconds a trend cannot be told from noise
SETTLED_DRIFT = 0.10  # a change of the level by more than this share of the median ...
SETTLED_P = 0.01  # ... that chance would explain in fewer than 1 of 100 trials


@dataclass(frozen=True)
class Estimate:
    """A mean (or a ratio of means) over trials with its 95 % interval; one trial gives no interval."""

    value: float
    low: float | None
    high: float | None
    trials: int

    @property
    def interval(self) -> list[float] | None:
        """Return [low, high], or None where there is only one trial."""
        return None if self.low is None or self.high is None else [self.low, self.high]


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of `values` with its bootstrap interval over trials; `values` must not be empty."""
    data = np.asarray(values, dtype=float)
    if data.size == 0:
        raise ValueError("the mean of no trials is not defined")
    if data.size == 1:
        return Estimate(float(data[0]), None, None, 1)
    if np.ptp(data) == 0:  # equal trials: the bootstrap distribution is a single point
        return Estimate(float(data[0]), float(data[0]), float(data[0]), data.size)
    result = stats.bootstrap(
        (data,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    low, high = result.confidence_interval
    return Estimate(float(data.mean()), float(low), float(high), data.size)


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Return mean(numerator) / mean(denominator) with its bootstrap interval, both sides resampled.

    Raises ValueError when a side is empty or the denominator's mean is zero.
    """
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if top.size == 0 or bottom.size == 0:
        raise ValueError("a ratio needs at least one trial on each side")
    if bottom.mean() == 0:
        raise ValueError("a ratio to a throughput of zero is not defined")
    value = float(top.mean() / bottom.mean())
    trials = int(min(top.size, bottom.size))
    if trials == 1 or (np.ptp(top) == 0 and np.ptp(bottom) == 0):
        return Estimate(value, None if trials == 1 else value, None if trials == 1 else value, trials)

    def of_means(a: NDArray[np.float64], b: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        return np.asarray(np.mean(a, axis=axis) / np.mean(b, axis=axis))

    result = stats.bootstrap(
        (top, bottom),
        of_means,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(SEED),
    )
    low, high = result.confidence_interval
    return Estimate(value, float(low), float(high), trials)


def settled(per_second: Sequence[float]) -> bool | None:
    """Tell whether a trial's throughput had settled: True, False, or None when it is too short to tell.

    Robust against single stalled seconds (evictions, checkpoints): a trial has not settled when the Theil-Sen line
    over its measured seconds changes by more than 10 % of the median and Kendall's tau finds that change significant.
    """
    data = np.asarray(per_second, dtype=float)
    if data.size < SETTLED_MINIMUM_S:
        return None
    level = float(np.median(data))
    if level <= 0:
        return False
    seconds = np.arange(data.size)
    slope = float(stats.theilslopes(data, seconds)[0])
    drift = abs(slope) * (data.size - 1) / level
    if drift <= SETTLED_DRIFT or np.ptp(data) == 0:
        return True
    return float(stats.kendalltau(seconds, data).pvalue) > SETTLED_P
