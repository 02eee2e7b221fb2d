"""Evaluating predicates: from the table of trials to one check per cell, pair of cells or series.

A check is decided only where the trials suffice: a missing trial leaves it open, and so does a saturated one unless
the bound that it gives proves or refutes the claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from typing import Any, Literal

import numpy as np
import pandas as pd

from runner import stats
from runner.axes import AXES
from runner.predicates import Endpoints, Linear, Monotone, Ratio, RatioOrder, Selector, Simple, Value, WithinPercent
from runner.sample import SAMPLED, Sample, compared, sample
from runner.stats import Estimate

Bound = Literal["", "lower", "upper", "none"]
"""What a figure is with respect to the true one; `none`: both sides were held back, so it may be above or below."""
NOTES: dict[Bound, str] = {
    "": "",
    "lower": "terminals were saturated: a lower bound",
    "upper": "terminals were saturated: an upper bound",
    "none": "terminals were saturated on both sides: no bound",
}
ABOVE_ONE = math.nextafter(1.0, 2.0)  # the least value that is more than one


class NotMeasuredError(Exception):
    """The table has no data to judge the predicate by."""


@dataclass(frozen=True)
class Check:
    """One comparison: `passed` is None where the trials that it needs are missing or prove nothing."""

    label: str
    value: float | None
    interval: list[float] | None
    passed: bool | None
    evidence: tuple[str, ...] = ()
    note: str = ""
    bound: Bound = ""
    certain: bool = True
    """False where the interval contains the limit: another set of trials could have decided otherwise."""
    trials: int = 0
    """Trials of the cell that has the fewest."""
    remarks: frozenset[str] = frozenset()
    """Flags of the trials behind it that weaken what they say (`runner.remarks`)."""


def checks(predicate: Simple, table: pd.DataFrame) -> list[Check]:
    """Evaluate a predicate; raises NotMeasuredError when the table has nothing planned that it could be judged by."""
    rows = _narrowed(table, predicate)
    rows = rows[rows["experiment"] == predicate.experiment]
    if rows.empty:
        raise NotMeasuredError(f"no trials of {predicate.experiment} in this run")
    if predicate.metric not in rows:
        raise NotMeasuredError(f"the trials have no {predicate.metric}")
    rows = rows[matches(rows, predicate.where)]
    found = list(_EVALUATORS[type(predicate)](predicate, rows))
    if not found:
        raise NotMeasuredError("none of the cells that the claim speaks of is planned in this run")
    return found


def _narrowed(table: pd.DataFrame, predicate: Simple) -> pd.DataFrame:
    """Leave out the columns that neither the predicate names nor `sample` looks at.

    Rows are chosen hundreds of times for a verdict, and pandas copies each of the hundred columns on its own.
    """
    named = {"experiment", *SAMPLED, *chain.from_iterable(_names(value) for _, value in predicate)}
    return table[[column for column in table if column in named]]


def _names(value: Any) -> Iterable[str]:
    """Return what may be names of columns in a predicate's field: a text, a list of texts, or a selector's keys."""
    return [value] if isinstance(value, str) else value if isinstance(value, list | dict) else []


def shown(value: Any) -> str:
    """Write a coordinate of a cell."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def matches(rows: pd.DataFrame, selector: Selector) -> pd.Series[bool]:
    """Tell for each row whether the selector takes it; raises NotMeasuredError for a column that is not there."""
    mask = pd.Series(True, index=rows.index)
    for column, wanted in selector.items():
        if column not in rows:
            raise NotMeasuredError(f"the trials have no {column}")
        mask &= rows[column].isin(wanted if isinstance(wanted, list) else [wanted])
    return mask


@dataclass(frozen=True)
class _Outcome:
    """Whether a value keeps a limit (None: it cannot be told), and whether its interval leaves that open."""

    passed: bool | None
    certain: bool


def _all(outcomes: Iterable[_Outcome]) -> _Outcome:
    """Combine outcomes that must all pass: one that fails for certain decides."""
    found = list(outcomes)
    if any(o.passed is False for o in found):
        return _Outcome(False, any(o.passed is False and o.certain for o in found))
    return _Outcome(None if any(o.passed is None for o in found) else True, all(o.certain for o in found))


@dataclass(frozen=True)
class Figure:
    """A measured figure with what it is with respect to the true one."""

    estimate: Estimate
    bound: Bound

    def keeps(self, at_least: float | None = None, at_most: float | None = None) -> _Outcome:
        """Compare with inclusive limits; a bound decides only where the true figure could not turn the answer."""
        value, outcomes = self.estimate.value, []
        may_be_lower, may_be_higher = self.bound in ("upper", "none"), self.bound in ("lower", "none")
        if at_least is not None:
            open_ = may_be_lower if value >= at_least else may_be_higher
            outcomes.append(_Outcome(None if open_ else value >= at_least, not self._contains(at_least)))
        if at_most is not None:
            open_ = may_be_higher if value <= at_most else may_be_lower
            outcomes.append(_Outcome(None if open_ else value <= at_most, not self._contains(at_most)))
        return _all(outcomes)

    def _contains(self, limit: float) -> bool:
        interval = self.estimate.interval
        return interval is not None and interval[0] <= limit <= interval[1]

    def check(self, label: str, samples: Sequence[Sample], outcome: _Outcome) -> Check:
        """Say what came of the comparison, with the trials behind it."""
        return Check(
            label,
            self.estimate.value,
            self.estimate.interval,
            outcome.passed,
            _hashes(samples),
            NOTES[self.bound],
            self.bound,
            outcome.certain,
            self.estimate.trials,
            compared(samples),
        )


def quotient(top: Sequence[Sample], bottom: Sequence[Sample]) -> Figure:
    """Divide the means of samples: held back in the numerator it is a lower bound, in the denominator an upper one."""
    held_back = (any(s.lower_bound for s in top), any(s.lower_bound for s in bottom))
    bounds: dict[tuple[bool, bool], Bound] = {
        (False, False): "",
        (True, False): "lower",
        (False, True): "upper",
        (True, True): "none",
    }
    return Figure(stats.quotient([s.values for s in top], [s.values for s in bottom]), bounds[held_back])


def _open(label: str, samples: Iterable[Sample], why: str) -> Check:
    return Check(label, None, None, None, _hashes(samples), why)


def _hashes(samples: Iterable[Sample]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(s.hashes for s in samples))


def _missing(samples: Iterable[Sample]) -> str:
    return " / ".join(s.missing for s in samples if s.missing)


def _groups(rows: pd.DataFrame, columns: list[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    for column in columns:
        if column not in rows:
            raise NotMeasuredError(f"the trials have no {column}")
    for key, group in rows.groupby(columns, sort=True, dropna=False):
        yield dict(zip(columns, key, strict=True)), group


def _label(cell: dict[str, Any]) -> str:
    shape = {axis.name: axis.shown for axis in AXES}
    told = {name: value for name, value in cell.items() if not pd.isna(value) and value != ""}
    return " ".join(shape.get(name, "{}").format(shown(value)) for name, value in told.items())


Pair = tuple[dict[str, Any], Sample, Sample]
"""A cell with both sides of a ratio in it."""


def _pairs(predicate: Ratio | WithinPercent | RatioOrder, rows: pd.DataFrame) -> Iterator[Pair]:
    """Yield the cells in which both sides are planned."""
    above, below = matches(rows, predicate.of), matches(rows, predicate.to)
    for cell, group in _groups(rows, predicate.by):
        top, bottom = group[above.loc[group.index]], group[below.loc[group.index]]
        if not top.empty and not bottom.empty:
            yield cell, sample(top, predicate.metric), sample(bottom, predicate.metric)


def _ratio(predicate: Ratio, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, *sides in _pairs(predicate, rows):
        label, missing = _label(cell), _missing(sides)
        if missing:
            yield _open(label, sides, missing)
            continue
        figure = quotient(sides[:1], sides[1:])
        yield figure.check(label, sides, figure.keeps(predicate.at_least, predicate.at_most))


def _within_percent(predicate: WithinPercent, rows: pd.DataFrame) -> Iterator[Check]:
    """Judge the ratio, and show by how many percent it is worse than one."""
    higher = predicate.better == "higher"
    share = predicate.percent / 100
    for cell, *sides in _pairs(predicate, rows):
        label, missing = _label(cell), _missing(sides)
        if missing:
            yield _open(label, sides, missing)
            continue
        ratio = quotient(sides[:1], sides[1:])
        outcome = ratio.keeps(at_least=1 - share) if higher else ratio.keeps(at_most=1 + share)
        yield _percent_worse(ratio, higher).check(label, sides, outcome)


def _percent_worse(ratio: Figure, higher_is_better: bool) -> Figure:
    found, bound = ratio.estimate, ratio.bound
    if not higher_is_better:
        low, high = (None if v is None else 100 * (v - 1) for v in (found.low, found.high))
        return Figure(Estimate(100 * (found.value - 1), low, high, found.trials), bound)
    low, high = (None if v is None else 100 * (1 - v) for v in (found.high, found.low))
    turned: dict[Bound, Bound] = {"lower": "upper", "upper": "lower"}
    return Figure(Estimate(100 * (1 - found.value), low, high, found.trials), turned.get(bound, bound))


def _monotone(predicate: Monotone, rows: pd.DataFrame) -> Iterator[Check]:
    rises = predicate.direction == "rises"
    for cell, group in _groups(rows, predicate.series):
        walk = sorted(group[predicate.along].unique(), reverse=predicate.order == "falling")
        if len(walk) < 2:  # noqa: PLR2004 - a single point has no direction
            continue
        samples = [sample(group[group[predicate.along] == at], predicate.metric) for at in walk]
        gone = [f"{shown(at)}: {s.missing}" for at, s in zip(walk, samples, strict=True) if s.missing]
        if gone:
            yield _open(_label(cell), samples, "; ".join(gone))
            continue
        steps = [_change(a, b, rises).keeps(at_least=1 - predicate.tolerance) for a, b in pairwise(samples)]
        whole = _change(samples[0], samples[-1], rises).keeps(at_least=ABOVE_ONE)
        figure = quotient([samples[-1]], [samples[0]])
        check = figure.check(_label(cell), samples, _all([*steps, whole]))
        yield _of_series(check, samples)


def _change(before: Sample, after: Sample, rises: bool) -> Figure:
    """Return by how much a step goes in the wanted direction: above one when it does."""
    return quotient([after], [before]) if rises else quotient([before], [after])


def _of_series(check: Check, samples: list[Sample]) -> Check:
    """Count the trials of every sample, and mention saturation between the ends."""
    note = check.note or ("terminals were saturated" if any(s.lower_bound for s in samples) else "")
    return replace(check, trials=min(len(s.values) for s in samples), note=note)


def _endpoints(predicate: Endpoints, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, group in _groups(rows, predicate.series):
        at = group[predicate.along]
        ends = [sample(group[at == place], predicate.metric) for place in (predicate.end, predicate.start)]
        missing = _missing(ends)
        if missing:
            yield _open(_label(cell), ends, missing)
            continue
        figure = quotient(ends[:1], ends[1:])
        yield figure.check(_label(cell), ends, figure.keeps(predicate.at_least, predicate.at_most))


def _ratio_order(predicate: RatioOrder, rows: pd.DataFrame) -> Iterator[Check]:
    greater = list(_pairs(predicate, rows[matches(rows, predicate.greater_at)]))
    than = list(_pairs(predicate, rows[matches(rows, predicate.than_at)]))
    for (cell, *left), (other, *right) in product(greater, than):
        if any(cell[c] != other[c] for c in predicate.match):
            continue
        label, sides = f"{_label(cell)} against {_label(other)}", [*left, *right]
        missing = _missing(sides)
        if missing:
            yield _open(label, sides, missing)
            continue
        figure = quotient([left[0], right[1]], [left[1], right[0]])
        yield figure.check(label, sides, figure.keeps(at_least=ABOVE_ONE))


def _linear(predicate: Linear, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, group in _groups(rows, predicate.series):
        samples = {at: sample(part, predicate.metric) for at, part in group.groupby(predicate.along)}
        found = list(samples.values())
        missing = _missing(found) or ("terminals were saturated" if any(s.lower_bound for s in found) else "")
        if missing or len(samples) < 3:  # noqa: PLR2004 - two points always lie on a line
            yield _open(_label(cell), found, missing or "fewer than three points")
            continue
        x = np.array(list(samples), dtype=float)
        y = np.array([np.mean(s.values) for s in found])
        # A constant, which has no correlation with anything, and what falls do not grow, on however straight a line.
        r = float(np.corrcoef(x, y)[0, 1]) if np.ptp(y) > 0 else 0.0
        trials = min(len(s.values) for s in found)
        bend = _slope_change(x, y) if r > 0 else None
        straight = bend is not None and 1 / predicate.slope_change_at_most <= bend <= predicate.slope_change_at_most
        note = "" if straight else "it does not grow" if bend is None else f"its slope changes {bend:.2g}-fold"
        grows = straight and r * r >= predicate.r2_at_least
        yield Check(_label(cell), r * r, None, grows, _hashes(found), note, trials=trials, remarks=compared(found))


def _slope_change(x: np.ndarray, y: np.ndarray) -> float | None:
    """Divide the slope of the upper half of the points by that of the lower one; None where one of them is none."""
    middle = len(x) // 2
    lower, upper = (float(np.polyfit(x[part], y[part], 1)[0]) for part in (slice(middle + 1), slice(middle, None)))
    return upper / lower if lower > 0 and upper > 0 else None


def _value(predicate: Value, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, group in _groups(rows, predicate.by):
        found = sample(group, predicate.metric)
        if found.missing:
            yield _open(_label(cell), [found], found.missing)
            continue
        figure = Figure(stats.mean(found.values), "lower" if found.lower_bound else "")
        yield figure.check(_label(cell), [found], figure.keeps(predicate.at_least, predicate.at_most))


_EVALUATORS: dict[type, Any] = {
    Ratio: _ratio,
    WithinPercent: _within_percent,
    Monotone: _monotone,
    Endpoints: _endpoints,
    RatioOrder: _ratio_order,
    Linear: _linear,
    Value: _value,
}
