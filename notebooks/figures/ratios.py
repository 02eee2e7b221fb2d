"""Ratios with their intervals, as every figure's tables write them: each system, or setting, against a chosen one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from figures.data import Point, point
from runner import stats
from runner.axes import AXES, written
from runner.compare.shown import BOUNDS
from runner.sample import THROUGHPUT
from runner.systems import SYSTEMS

NOT_MEASURED = "not measured"


def number(value: float) -> str:
    """Write a figure with three digits, large ones in full."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - from there on all digits are whole


def figure(found: Point) -> str:
    """Write a mean with its interval; ≥ where terminals were saturated, and whether a trial is flagged."""
    if found.estimate is None:
        return NOT_MEASURED
    return ("≥ " if found.lower_bound else "") + _with_interval(found.estimate) + _flagged(found)


def divided(top: Point, bottom: Point) -> str:
    """Write the ratio of two means with its interval.

    Of trials with saturated terminals it is a bound: ≥ when those of the numerator were held back, ≤ when those of the
    denominator were. Ratios with a flagged trial are marked, and those of means that different hardware measured.
    """
    if not top.values or not bottom.values or bottom.estimate is None or bottom.estimate.value == 0:
        return NOT_MEASURED
    bounds = {(False, False): "", (True, False): "lower", (False, True): "upper", (True, True): "none"}
    lead = BOUNDS[bounds[top.lower_bound, bottom.lower_bound]]
    apart = " (different machines)" if top.machines != bottom.machines else ""
    return lead + _with_interval(stats.ratio(top.values, bottom.values)) + _flagged(top, bottom) + apart


def against(
    table: pd.DataFrame,
    base: Any,
    *,
    across: str = "system",
    metric: str = THROUGHPUT,
    only: Sequence[Any] = (),
    name: Callable[[Any], str] = written,
) -> pd.DataFrame:
    """Return what `base` measured in each cell, and the ratio of every other value of a column to it, with intervals.

    `across` is the column that is compared: the system, or a setting. Rows are the cells, told apart by the other axes
    that vary; `only` leaves the others of `across` out, `name` names its values. What was not measured says so.
    """
    present = [value for value in dict.fromkeys(table[across]) if not pd.isna(value)]
    others = [value for value in sorted(present, key=_order) if value != base and (not only or value in only)]
    # What merely goes with a value of `across`, as a system's own settings do, tells no cell from another.
    within = table.groupby(across)
    axes = (axis.name for axis in AXES if axis.name != across and axis.name in table)
    apart = [axis for axis in axes if within[axis].nunique(dropna=False).max() > 1]
    columns = {value: f"{name(value)} / {name(base)}" for value in others}
    rows = []
    for where, cell in _cells(table, apart):
        points = {value: point(cell[cell[across] == value], 0.0, metric) for value in [base, *others]}
        row = {axis: written(value) for axis, value in zip(apart, where, strict=True)}
        row[name(base)] = figure(points[base])
        rows.append(row | {columns[value]: divided(points[value], points[base]) for value in others})
    return pd.DataFrame(rows, columns=[*apart, name(base), *columns.values()])


def _cells(table: pd.DataFrame, apart: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Divide a table into its cells, in the order of their axes, with the skew falling."""
    if not apart:
        return [((), table)]
    cells = [(where, cell) for where, cell in table.groupby(apart, sort=False, dropna=False)]

    def order(where: tuple[Any, ...]) -> list[tuple[float, str]]:
        falling = (-1 if name == "skew" else 1 for name in apart)
        numbers = (float(v) if isinstance(v, int | float) and not pd.isna(v) else 0.0 for v in where)
        return [(sign * value, str(v)) for sign, value, v in zip(falling, numbers, where, strict=True)]

    return sorted(cells, key=lambda cell: order(cell[0]))


def _order(value: Any) -> tuple[int, float, str]:
    place = SYSTEMS.index(value) if value in SYSTEMS else len(SYSTEMS)
    return place, float(value) if isinstance(value, int | float) else 0.0, str(value)


def _with_interval(found: stats.Estimate) -> str:
    interval = found.interval
    return number(found.value) + (f" [{number(interval[0])}, {number(interval[1])}]" if interval else "")


def _flagged(*points: Point) -> str:
    return " (flagged)" if any(each.flagged for each in points) else ""
