"""The closed set of predicates over the table of trials that ``claims.yml`` may use.

A predicate turns the table into *checks*, one per cell, pair of cells or series; the quantifier (`share`, 1.0 unless
the claim says otherwise) decides over them. Where trials are missing, the decision is taken only when it would be the
same whatever they had measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from runner import stats
from runner.workload import Strict

Selector = dict[str, str | int | float | list[str] | list[int] | list[float]]
SELECTOR = "columns of the table with a value or a list of values, e.g. {mix: read-only, skew: [1.5, 1.25]}"
CLIENT_SATURATED = "client_saturated"
"""The flag of a trial whose terminals were the bottleneck: invalid, but its throughput is a lower bound."""


class NotMeasuredError(Exception):
    """The table has no data to judge the predicate by."""


@dataclass(frozen=True)
class Check:
    """One comparison: `passed` is None where a trial that it needs is missing."""

    label: str
    value: float | None
    interval: list[float] | None
    passed: bool | None
    evidence: tuple[str, ...] = ()
    note: str = ""


@dataclass
class Sample:
    """The trials of one cell: throughput (or another metric) of the valid ones."""

    values: list[float] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    lower_bound: bool = False
    missing: str = ""


class Predicate(Strict):
    """What all kinds share: which experiment, which cells, how many checks have to hold."""

    experiment: str = Field(description="the experiment whose trials are judged, e.g. fig06")
    where: Selector = Field(default={}, description=SELECTOR)
    by: list[str] = Field(
        ["mix", "skew", "data_memory_ratio"], description="the columns that tell one cell from another"
    )
    metric: str = Field("throughput_txn_s", description="the column that is compared")
    share: float = Field(1.0, gt=0, le=1, description="a share above 0 and up to 1 of the checks that must hold")
    holds_in: Literal["every", "any"] = Field("every", description="every (or `share` of the) cells, or any cell")


class Bounds(Strict):
    """Limits of a value, both inclusive."""

    at_least: float | None = Field(default=None, description="a number")
    at_most: float | None = Field(default=None, description="a number")

    def hold(self, value: float) -> bool:
        """Tell whether `value` keeps the limits."""
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)


class Ratio(Predicate, Bounds):
    """In each cell: metric of `of` divided by the metric of `to` keeps the bounds."""

    kind: Literal["ratio"]
    of: Selector = Field(description=SELECTOR)
    to: Selector = Field(description=SELECTOR)


class WithinPercent(Predicate):
    """In each cell: `of` is at most `percent` worse than `to` (being better is within)."""

    kind: Literal["within_percent"]
    of: Selector = Field(description=SELECTOR)
    to: Selector = Field(description=SELECTOR)
    percent: float = Field(ge=0, le=100, description="a number from 0 to 100")
    better: Literal["higher", "lower"] = Field("higher", description="higher or lower")


class Monotone(Predicate):
    """In each series: the metric falls (rises) with every step along a column, save for a tolerance.

    A series passes when no step goes the wrong way by more than `tolerance` (measurement noise) and its end lies
    on the right side of its start. The value is the metric at the end divided by that at the start.
    """

    kind: Literal["monotone"]
    along: str = Field(description="a numeric column, e.g. data_memory_ratio")
    order: Literal["rising", "falling"] = Field("rising", description="in which order `along` is walked")
    direction: Literal["falls", "rises"] = Field(description="falls or rises")
    tolerance: float = Field(0.05, ge=0, le=1, description="a share from 0 to 1")
    series: list[str] = Field(description="the columns that tell one series from another")


class Endpoints(Predicate, Bounds):
    """In each series: the metric at one value of a column, divided by that at another, keeps the bounds."""

    kind: Literal["endpoints"]
    along: str = Field(description="a column, e.g. data_memory_ratio")
    end: float = Field(description="the value of `along` in the numerator")
    start: float = Field(description="the value of `along` in the denominator")
    series: list[str] = Field(description="the columns that tell one series from another")


class RatioOrder(Predicate):
    """The ratio `of` / `to` is greater in every cell of `greater_at` than in the matching cells of `than_at`."""

    kind: Literal["ratio_order"]
    of: Selector = Field(description=SELECTOR)
    to: Selector = Field(description=SELECTOR)
    greater_at: Selector = Field(description=SELECTOR)
    than_at: Selector = Field(description=SELECTOR)
    match: list[str] = Field(default=[], description="the columns in which both cells have to agree")


class Linear(Predicate):
    """In each series: the metric lies on a line over a column with at least this coefficient of determination."""

    kind: Literal["linear"]
    along: str = Field(description="a numeric column")
    r2_at_least: float = Field(ge=0, le=1, description="a number from 0 to 1")
    series: list[str] = Field(description="the columns that tell one series from another")


class Value(Predicate, Bounds):
    """In each cell: the metric itself keeps the bounds."""

    kind: Literal["value"]


Simple = Annotated[
    Ratio | WithinPercent | Monotone | Endpoints | RatioOrder | Linear | Value, Field(discriminator="kind")
]


def checks(predicate: Simple, table: pd.DataFrame) -> list[Check]:
    """Evaluate a predicate; raises NotMeasuredError when the table has nothing planned that it could be judged by."""
    rows = table[table["experiment"] == predicate.experiment]
    if rows.empty:
        raise NotMeasuredError(f"no trials of {predicate.experiment} in this run")
    if predicate.metric not in rows:
        raise NotMeasuredError(f"the trials have no {predicate.metric}")
    rows = rows[_matches(rows, predicate.where)]
    found = list(_EVALUATORS[type(predicate)](predicate, rows))
    if not found:
        raise NotMeasuredError("none of the cells that the claim speaks of is planned in this run")
    return found


def absent(predicate: Simple, table: pd.DataFrame) -> str:
    """Say which values that the claim names are not part of the run, e.g. a skew that the scale leaves out."""
    rows = table[table["experiment"] == predicate.experiment]
    missing = []
    for column, wanted in predicate.where.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        gone = [v for v in values if column in rows and not (rows[column] == v).any()]
        if gone:
            missing.append(f"{column} {', '.join(_shown(v) for v in gone)}")
    return "; ".join(missing)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _matches(rows: pd.DataFrame, selector: Selector) -> pd.Series[bool]:
    mask = pd.Series(True, index=rows.index)
    for column, wanted in selector.items():
        if column not in rows:
            raise NotMeasuredError(f"the trials have no {column}")
        mask &= rows[column].isin(wanted if isinstance(wanted, list) else [wanted])
    return mask


def _sample(rows: pd.DataFrame, metric: str) -> Sample:
    """Gather the trials of one cell; `missing` says why there is no usable one."""
    sample = Sample()
    usable = rows[(rows["status"] == "ok") & rows[metric].notna()]
    if usable.empty:
        bounded = rows[(rows["status"] == "invalid") & rows[metric].notna() & (rows["flags"] == CLIENT_SATURATED)]
        if not bounded.empty:
            usable, sample.lower_bound = bounded, True
    sample.values = [float(v) for v in usable[metric]]
    sample.hashes = [str(h) for h in usable["trial_hash"]]
    if not sample.values:
        first = rows.iloc[0] if not rows.empty else None
        sample.missing = "not planned" if first is None else f"{first['status']}: {first['reason']}"
    return sample


def _groups(rows: pd.DataFrame, columns: list[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    for column in columns:
        if column not in rows:
            raise NotMeasuredError(f"the trials have no {column}")
    for key, group in rows.groupby(columns, sort=True, dropna=False):
        yield dict(zip(columns, key, strict=True)), group


def _label(cell: dict[str, Any]) -> str:
    shape = {"skew": "s={}", "data_memory_ratio": "{}x"}
    return " ".join(shape.get(name, "{}").format(_shown(value)) for name, value in cell.items())


@dataclass(frozen=True)
class _Pair:
    """Both sides of a ratio in one cell."""

    cell: dict[str, Any]
    top: Sample
    bottom: Sample

    @property
    def missing(self) -> str:
        return " / ".join(m for m in (self.top.missing, self.bottom.missing) if m)

    @property
    def hashes(self) -> tuple[str, ...]:
        return (*self.top.hashes, *self.bottom.hashes)


def _pairs(rows: pd.DataFrame, of: Selector, to: Selector, by: list[str], metric: str) -> Iterator[_Pair]:
    """Yield the cells in which both sides are planned."""
    above, below = _matches(rows, of), _matches(rows, to)
    for cell, group in _groups(rows, by):
        top, bottom = group[above.loc[group.index]], group[below.loc[group.index]]
        if not top.empty and not bottom.empty:
            yield _Pair(cell, _sample(top, metric), _sample(bottom, metric))


def _ratio(predicate: Ratio, rows: pd.DataFrame) -> Iterator[Check]:
    for pair in _pairs(rows, predicate.of, predicate.to, predicate.by, predicate.metric):
        label = _label(pair.cell)
        if pair.missing:
            yield Check(label, None, None, None, pair.hashes, pair.missing)
            continue
        found = stats.ratio(pair.top.values, pair.bottom.values)
        passed: bool | None = predicate.hold(found.value)
        note = ""
        if pair.top.lower_bound or pair.bottom.lower_bound:
            # A saturated client hides how much more the server could do: the ratio is only bounded, from below when
            # the numerator was held back. That suffices to show "at least", and for nothing else.
            shows = predicate.at_most is None and pair.top.lower_bound and not pair.bottom.lower_bound and passed
            passed = True if shows else None
            note = "terminals were saturated: a lower bound" if pair.top.lower_bound else "terminals were saturated"
        yield Check(label, found.value, found.interval, passed, pair.hashes, note)


def _within_percent(predicate: WithinPercent, rows: pd.DataFrame) -> Iterator[Check]:
    for pair in _pairs(rows, predicate.of, predicate.to, predicate.by, predicate.metric):
        label = _label(pair.cell)
        held_back = "terminals were saturated" if pair.top.lower_bound or pair.bottom.lower_bound else ""
        if pair.missing or held_back:
            yield Check(label, None, None, None, pair.hashes, pair.missing or held_back)
            continue
        found = stats.ratio(pair.top.values, pair.bottom.values)
        sign = 1 if predicate.better == "higher" else -1
        worse = 100 * sign * (1 - found.value)
        interval = None
        if found.low is not None and found.high is not None:
            interval = sorted([100 * sign * (1 - found.low), 100 * sign * (1 - found.high)])
        yield Check(label, worse, interval, worse <= predicate.percent, pair.hashes)


def _trusted(rows: pd.DataFrame, metric: str) -> Sample:
    """Gather the trials of one cell for a comparison in which a lower bound means nothing."""
    sample = _sample(rows, metric)
    if sample.lower_bound:
        return Sample(hashes=sample.hashes, missing="terminals were saturated")
    return sample


def _monotone(predicate: Monotone, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, group in _groups(rows, predicate.series):
        walk = sorted(group[predicate.along].unique(), reverse=predicate.order == "falling")
        if len(walk) < 2:  # noqa: PLR2004 - a single point has no direction
            continue
        samples = [_trusted(group[group[predicate.along] == at], predicate.metric) for at in walk]
        hashes = tuple(itertools.chain.from_iterable(s.hashes for s in samples))
        gone = [f"{_shown(at)}: {s.missing}" for at, s in zip(walk, samples, strict=True) if s.missing]
        if gone:
            yield Check(_label(cell), None, None, None, hashes, "; ".join(gone))
            continue
        means = np.array([np.mean(s.values) for s in samples])
        steps = means[1:] / means[:-1]
        wanted = steps if predicate.direction == "rises" else 1 / steps
        passed = bool((wanted >= 1 - predicate.tolerance).all() and wanted.prod() > 1)
        found = stats.ratio(samples[-1].values, samples[0].values)
        yield Check(_label(cell), found.value, found.interval, passed, hashes)


def _endpoints(predicate: Endpoints, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, group in _groups(rows, predicate.series):
        ends = [
            _trusted(group[group[predicate.along] == at], predicate.metric) for at in (predicate.end, predicate.start)
        ]
        hashes = (*ends[0].hashes, *ends[1].hashes)
        missing = " / ".join(s.missing for s in ends if s.missing)
        if missing:
            yield Check(_label(cell), None, None, None, hashes, missing)
            continue
        found = stats.ratio(ends[0].values, ends[1].values)
        yield Check(_label(cell), found.value, found.interval, predicate.hold(found.value), hashes)


def _ratio_order(predicate: RatioOrder, rows: pd.DataFrame) -> Iterator[Check]:
    greater = list(
        _pairs(rows[_matches(rows, predicate.greater_at)], predicate.of, predicate.to, predicate.by, predicate.metric)
    )
    than = list(
        _pairs(rows[_matches(rows, predicate.than_at)], predicate.of, predicate.to, predicate.by, predicate.metric)
    )
    for a, b in itertools.product(greater, than):
        if any(a.cell[c] != b.cell[c] for c in predicate.match):
            continue
        label = f"{_label(a.cell)} against {_label(b.cell)}"
        hashes = (*a.hashes, *b.hashes)
        held_back = any(s.lower_bound for s in (a.top, a.bottom, b.top, b.bottom))
        missing = " / ".join(m for m in (a.missing, b.missing) if m)
        if missing or held_back:
            yield Check(label, None, None, None, hashes, missing or "terminals were saturated")
            continue
        value = stats.ratio(a.top.values, a.bottom.values).value / stats.ratio(b.top.values, b.bottom.values).value
        yield Check(label, value, None, value > 1, hashes)


def _linear(predicate: Linear, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, group in _groups(rows, predicate.series):
        samples = {at: _trusted(part, predicate.metric) for at, part in group.groupby(predicate.along)}
        hashes = tuple(itertools.chain.from_iterable(s.hashes for s in samples.values()))
        missing = "; ".join(s.missing for s in samples.values() if s.missing)
        if missing or len(samples) < 3:  # noqa: PLR2004 - two points always lie on a line
            yield Check(_label(cell), None, None, None, hashes, missing or "fewer than three points")
            continue
        x = np.array(list(samples), dtype=float)
        y = np.array([np.mean(s.values) for s in samples.values()])
        r2 = float(np.corrcoef(x, y)[0, 1] ** 2)
        yield Check(_label(cell), r2, None, r2 >= predicate.r2_at_least, hashes)


def _value(predicate: Value, rows: pd.DataFrame) -> Iterator[Check]:
    for cell, group in _groups(rows, predicate.by):
        sample = _trusted(group, predicate.metric)
        if sample.missing:
            yield Check(_label(cell), None, None, None, tuple(sample.hashes), sample.missing)
            continue
        found = stats.mean(sample.values)
        yield Check(_label(cell), found.value, found.interval, predicate.hold(found.value), tuple(sample.hashes))


_EVALUATORS: dict[type, Any] = {
    Ratio: _ratio,
    WithinPercent: _within_percent,
    Monotone: _monotone,
    Endpoints: _endpoints,
    RatioOrder: _ratio_order,
    Linear: _linear,
    Value: _value,
}
