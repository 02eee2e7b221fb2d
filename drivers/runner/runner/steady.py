"""Whether a trial's throughput kept one level over the measured interval; if not, when it changed and by how much.

The test is a CUSUM: of all places at which the interval could be divided, the one where the mean before and the mean
after differ most. Three things about throughput make a plain CUSUM cry wolf, and each has its answer:

- *Single stalled seconds* (evictions, checkpoints). Each value counts by its distance from the median, in robust
  standard deviations, and never for more than `CLIP` of them (Huber's score, as robust CUSUM tests have it).
- *Autocorrelation*: a slow second follows a slow second. What the largest difference is worth is asked of simulated
  series without any change, of the same length and with the same autocorrelation (first order). A change looks like
  autocorrelation, too; so it is estimated in three ways that are blind to one kind of change each, and the smallest
  counts: from what is left beside a step, from what is left beside a straight line, and from how much further values
  two apart differ than neighbours do. It is corrected for how much such an estimate falls short, and taken as
  `LEAST_AUTOCORRELATION` where it is smaller, because short series tell little about it. How much values vary is
  taken from neighbours as well: a throughput that rises and falls again hides one change behind the other.
- *Changes that do not matter*: one that chance does not explain is a flag only where it is `LEAST_SHARE` of the median.

The tests hold it against series with known answers. Of steady ones it finds a change in 1 of 100 up to an
autocorrelation of 0.3, in 3 of 100 at 0.5, in 5 of 100 at 0.7, before the size is asked for.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MINIMUM_S = 10
"""With fewer measured seconds a change of level cannot be told from noise."""
LEAST_SHARE = 0.05
"""Of the median; as much as a steady drift by 10 % from the first second to the last makes between the two halves."""
LEAST_CHANCE = 0.01
CLIP = 3.0
LEAST_AUTOCORRELATION = 0.3
WIDTHS_TENTHS = ((30, 2), (60, 5))
"""Intervals shorter than so many seconds are looked at by so many tenths of a second, others by whole seconds."""
MOST_VALUES = 300  # longer ones by several seconds
SIMULATED = 999
SEED = 20130826
TENTHS_PER_S = 10
_GRID = tuple(step / 20 for step in range(20))  # autocorrelations that are simulated
_NOTHING = 1e-12  # of variance: what is left of a step without any noise
_CONSISTENT = 1.4826  # times the median absolute deviation = the standard deviation of normal noise

Series = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """A change of level."""

    second: float
    """When the new level began, from the start of the measured interval."""
    share: float
    """How far the median after it lies above that before it, as a share of the whole interval's median."""


@dataclass(frozen=True)
class Level:
    """What can be said of a trial: `settled` is None where it was too short, or nothing was counted by the second."""

    settled: bool | None
    change: Change | None = None


def level(seconds: Series, tenths: Series) -> Level:
    """Judge a trial by its committed transactions of every whole second, and tenth of a second where there are any.

    An interval in which most seconds had no transaction has not settled, whatever they had in common.
    """
    if len(seconds) < MINIMUM_S:
        return Level(None)
    if float(np.median(seconds)) <= 0:
        return Level(False)
    counts, width_s = _values(np.asarray(seconds, dtype=float), np.asarray(tenths, dtype=float))
    change = find(counts, width_s)
    return Level(change is None or abs(change.share) < LEAST_SHARE, change)


def find(counts: Series, width_s: float = 1.0) -> Change | None:
    """Return the change of level that chance does not explain, whatever its size; None without one.

    `counts` are of neighbouring intervals of `width_s` seconds.
    """
    middle = float(np.median(counts))
    if np.ptp(counts) == 0 or middle <= 0:
        return None
    margin = _margin(len(counts), width_s)
    found = _largest(counts[np.newaxis], margin)
    at = int(found.place[0])
    if _chance(float(found.size[0]), float(found.autocorrelation[0]), len(counts), margin) > LEAST_CHANCE:
        return None
    share = float(np.median(counts[at:]) - np.median(counts[:at])) / middle
    return Change(at * width_s, share)


def _values(seconds: Series, tenths: Series) -> tuple[Series, float]:
    """Choose how finely to look: parts of seconds of a short interval, several seconds of a very long one."""
    length_s = len(seconds)
    width = next((width for below_s, width in WIDTHS_TENTHS if length_s < below_s), TENTHS_PER_S)
    if width < TENTHS_PER_S and len(tenths) >= length_s * TENTHS_PER_S:
        return tenths[: length_s * TENTHS_PER_S].reshape(-1, width).sum(axis=1), width / TENTHS_PER_S
    each = math.ceil(length_s / MOST_VALUES)
    whole = length_s // each * each
    return seconds[:whole].reshape(-1, each).sum(axis=1), float(each)


def _margin(count: int, width_s: float) -> int:
    """Return how many values a level has to last: what is shorter is a stall.

    A tenth of the interval, or 5 s; of less than half a minute a sixth.
    """
    length_s = count * width_s
    return max(3, round(max(length_s / 10, min(5.0, length_s / 6)) / width_s))


@dataclass(frozen=True)
class _Largest:
    """Of each series the place where a division separates most, by how much, and the autocorrelation beside it."""

    place: NDArray[np.intp]
    size: Series
    autocorrelation: Series


def _scores(series: Series) -> Series:
    """Return every series' distances from its median in robust standard deviations, none beyond `CLIP` of them."""
    distance, deviation = _robust(series)
    return np.asarray(np.clip(distance / deviation, -CLIP, CLIP))


def _robust(series: Series) -> tuple[Series, Series]:
    """Return distances from the median, and the robust deviation of each series: the standard one where most are equal.

    It is above zero also where all are equal.
    """
    distance = series - np.median(series, axis=1, keepdims=True)
    deviation = _CONSISTENT * np.median(np.abs(distance), axis=1, keepdims=True)
    deviation = np.where(deviation > 0, deviation, series.std(axis=1, keepdims=True) + _NOTHING)
    return distance, deviation


def _variance(differences: Series) -> Series:
    """Return the variance of differences between values, in which a few jumps from level to level count for little."""
    distance, deviation = _robust(differences)
    return np.asarray(np.clip(distance, -CLIP * deviation, CLIP * deviation).var(axis=1) + _NOTHING)


def _largest(series: Series, margin: int) -> _Largest:
    """Find the division of every series (one to a row) after at least `margin` values and before as many."""
    scores = _scores(series)
    rows, count = np.arange(len(scores)), scores.shape[1]
    places = np.arange(margin, count - margin + 1)
    sums = scores.cumsum(axis=1)
    total = sums[:, -1]
    height = np.abs(sums[:, places - 1] - total[:, np.newaxis] * places / count)
    height /= np.sqrt(places * (count - places) / count)
    best = height.argmax(axis=1)
    place = places[best]
    before = sums[rows, place - 1]
    means = np.stack([before / place, (total - before) / (count - place)])[:, :, np.newaxis]
    beside_step = scores - np.where(np.arange(count) < place[:, np.newaxis], means[0], means[1])
    of_neighbours, two_apart = _variance(scores[:, 1:] - scores[:, :-1]), _variance(scores[:, 2:] - scores[:, :-2])
    estimates = _autocorrelation(beside_step), _autocorrelation(_beside_line(scores)), two_apart / of_neighbours - 1
    return _Largest(place, height[rows, best] / np.sqrt(of_neighbours / 2), np.min(estimates, axis=0))


def _beside_line(scores: Series) -> Series:
    """Take the straight line of least squares out of every series."""
    from_middle = np.arange(scores.shape[1]) - (scores.shape[1] - 1) / 2
    slope = (scores @ from_middle) / (from_middle @ from_middle)
    return np.asarray(scores - scores.mean(axis=1, keepdims=True) - np.outer(slope, from_middle))


def _autocorrelation(rest: Series) -> Series:
    """Return that of first order, of series with the mean zero."""
    return np.asarray((rest[:, 1:] * rest[:, :-1]).mean(axis=1) / ((rest**2).mean(axis=1) + _NOTHING))


@dataclass(frozen=True)
class _Steady:
    """What series without a change come to: the largest divisions in rising order, the median autocorrelation."""

    sizes: Series
    autocorrelation: float


@functools.lru_cache(maxsize=1024)
def _steady(autocorrelation: float, count: int, margin: int) -> _Steady:
    """Simulate normal noise with an autocorrelation of first order."""
    noise = np.random.default_rng(SEED).normal(size=(SIMULATED, count))
    series = np.empty_like(noise)
    series[:, 0] = noise[:, 0]
    for place in range(1, count):
        series[:, place] = autocorrelation * series[:, place - 1] + math.sqrt(1 - autocorrelation**2) * noise[:, place]
    found = _largest(series, margin)
    return _Steady(np.sort(found.size), float(np.median(found.autocorrelation)))


def _chance(size: float, autocorrelation: float, count: int, margin: int) -> float:
    """Return the share of series without a change whose largest division is at least as large."""
    estimates = np.maximum.accumulate([_steady(each, count, margin).autocorrelation for each in _GRID])
    true = max(LEAST_AUTOCORRELATION, float(np.interp(autocorrelation, estimates, _GRID)))
    next_higher = _GRID[min(len(_GRID) - 1, math.ceil(round(true * 20, 6)))]
    sizes = _steady(next_higher, count, margin).sizes
    return float(1 + len(sizes) - np.searchsorted(sizes, size)) / (1 + len(sizes))
