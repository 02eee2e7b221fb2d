"""Statistics over trials: the unit is the trial, never the second or the transaction (design §3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

CONFIDENCE = 0.95
BOOTSTRAP_TRIALS = 6  # with fewer the percentile bootstrap promises more than it holds
RESAMPLES = 2000
SEED = 20130826  # of the resampling only: the same table gives the same interval


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
    """Return the mean of `values`, none of them negative, with its interval over trials; `values` must not be empty.

    Below `BOOTSTRAP_TRIALS` trials it is Student's t interval, cut off at zero: a percentile bootstrap of three trials
    never leaves their range and holds the true mean in three cases of four only. From there on it is the bootstrap.
    """
    data = np.asarray(values, dtype=float)
    if data.size == 0:
        raise ValueError("the mean of no trials is not defined")
    value = float(data.mean())
    if data.size == 1:
        return Estimate(value, None, None, 1)
    if np.ptp(data) == 0:  # equal trials: every interval is a single point
        return Estimate(value, value, value, data.size)
    if data.size < BOOTSTRAP_TRIALS:
        half = _t_quantile(data.size - 1) * _standard_error(data)
        return Estimate(value, max(0.0, value - half), value + half, data.size)
    low, high = _bootstrap([data], lambda *means: means[0])
    return Estimate(value, low, high, data.size)


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Return mean(numerator) / mean(denominator) with its interval over trials, see `quotient`."""
    return quotient([numerator], [denominator])


def quotient(numerators: Sequence[Sequence[float]], denominators: Sequence[Sequence[float]]) -> Estimate:
    """Return the product of the numerators' means divided by that of the denominators', with its interval.

    Where a side has fewer than `BOOTSTRAP_TRIALS` trials it is a t interval of the logarithm, with the degrees of
    freedom of Welch and Satterthwaite: a ratio and its inverse then say the same. From there on it is the percentile
    bootstrap, every side resampled. `trials` is the number of the side that has the fewest; with one trial on a side
    there is no interval. Raises ValueError when a side is empty or a mean in the denominator is zero.
    """
    top = [np.asarray(values, dtype=float) for values in numerators]
    bottom = [np.asarray(values, dtype=float) for values in denominators]
    sides = [*top, *bottom]
    if any(side.size == 0 for side in sides):
        raise ValueError("a ratio needs at least one trial on each side")
    if any(side.mean() == 0 for side in bottom):
        raise ValueError("a ratio to a throughput of zero is not defined")

    def of_means(*means: Any) -> Any:
        return np.prod(means[: len(top)], axis=0) / np.prod(means[len(top) :], axis=0)

    value = float(of_means(*(side.mean() for side in sides)))
    trials = min(int(side.size) for side in sides)
    if trials == 1 or value == 0:  # zero has no logarithm, and all of its trials are zero
        return Estimate(value, None, None, trials)
    if all(np.ptp(side) == 0 for side in sides):
        return Estimate(value, value, value, trials)
    if trials >= BOOTSTRAP_TRIALS:
        low, high = _bootstrap(sides, of_means)
        return Estimate(value, low, high, trials)
    half = _half_width_of_logarithm(sides)
    return Estimate(value, value * math.exp(-half), value * math.exp(half), trials)


def chance(top: Sequence[float], bottom: Sequence[float]) -> float | None:
    """Return the probability that sides with equal means differ by as much as these do, or by more.

    Welch's t test on the logarithm of the means, so it says the same of a ratio and of its inverse. None with one
    trial on a side or a mean of zero.
    """
    sides = [np.asarray(values, dtype=float) for values in (top, bottom)]
    if min(side.size for side in sides) <= 1 or any(side.mean() <= 0 for side in sides):
        return None
    distance = abs(math.log(sides[0].mean() / sides[1].mean()))
    if all(np.ptp(side) == 0 for side in sides):
        return 1.0 if distance == 0 else 0.0
    error, freedom = _logarithm(sides)
    return float(2 * special.stdtr(freedom, -distance / error))


def chance_of_factor(values: Sequence[float]) -> float | None:
    """Return the probability that positive `values` around 1 have a geometric mean as far from it as these, or farther.

    Student's t test on their logarithm. None for a single value.
    """
    logarithms = np.log(np.asarray(values, dtype=float))
    if logarithms.size == 1:
        return None
    if np.ptp(logarithms) == 0:
        return 1.0 if logarithms[0] == 0 else 0.0
    distance = abs(logarithms.mean()) / _standard_error(logarithms)
    return float(2 * special.stdtr(logarithms.size - 1, -distance))


def holm(chances: Sequence[float]) -> list[float]:
    """Return the probabilities of several tests corrected for their number (Holm 1979), in the same order.

    Those below 0.05 then hold together: the risk that any one of them is by chance is 5 %.
    """
    corrected, least = [0.0] * len(chances), 0.0
    for rank, index in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        least = max(least, min(1.0, (len(chances) - rank) * chances[index]))
        corrected[index] = least
    return corrected


def geometric_mean(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive `values` with Student's t interval of their logarithm.

    For ratios of several cells: the interval is over the cells, which is what "a system as a whole" can mean.
    """
    logarithms = np.log(np.asarray(values, dtype=float))
    value = math.exp(logarithms.mean())
    if logarithms.size == 1:
        return Estimate(value, None, None, 1)
    half = _t_quantile(logarithms.size - 1) * _standard_error(logarithms)
    return Estimate(value, value * math.exp(-half), value * math.exp(half), logarithms.size)


def _half_width_of_logarithm(sides: Sequence[NDArray[np.float64]]) -> float:
    """Return half of the t interval of a sum and difference of log means."""
    error, freedom = _logarithm(sides)
    return _t_quantile(freedom) * error


def _logarithm(sides: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return standard error and degrees of freedom of a sum of log means, each with the variance (s / mean)² / n."""
    variances = np.array([(_standard_error(side) / side.mean()) ** 2 for side in sides])
    freedom = np.array([side.size - 1 for side in sides])
    welch = variances.sum() ** 2 / (variances**2 / freedom).sum()
    return math.sqrt(variances.sum()), float(welch)


def _t_quantile(freedom: float) -> float:
    """Return Student's t for a two-sided interval of `CONFIDENCE`."""
    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _standard_error(data: NDArray[np.float64]) -> float:
    return float(data.std(ddof=1) / math.sqrt(data.size))


def _bootstrap(samples: Sequence[NDArray[np.float64]], of_means: Callable[..., Any]) -> tuple[float, float]:
    from scipy import stats  # noqa: PLC0415 - its import takes half of the start of a command, and few need it

    result = stats.bootstrap(
        samples,
        lambda *resampled, axis: of_means(*(np.mean(sample, axis=axis) for sample in resampled)),
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(SEED),
    )
    low, high = result.confidence_interval
    return float(low), float(high)
