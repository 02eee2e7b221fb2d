"""Which of the cells that a claim speaks of a run leaves out: a smaller scale judges part of them only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from runner.axes import NAMES, Cell
from runner.checks import matches, shown
from runner.predicates import Endpoints, RatioOrder, Selector, Simple

Cells = Mapping[str, pd.DataFrame]
"""The whole grid of each experiment, one row per cell with a column per axis."""


def table_of(cells: Iterable[Cell]) -> pd.DataFrame:
    """Return cells as a table with the axes that they have."""
    rows = [cell.coordinates() for cell in cells]
    return pd.DataFrame(rows, columns=[name for name in NAMES if any(name in row for row in rows)])


def _coordinates(rows: pd.DataFrame, axes: list[str]) -> list[tuple[Any, ...]]:
    """Return the coordinates of each row; None where an axis does not apply to it."""
    kept = rows[axes].astype(object)
    return list(kept.where(kept.notna() & (kept != ""), None).itertuples(index=False, name=None))


def left_out(predicate: Simple, table: pd.DataFrame, cells: Cells) -> str:
    """Say which cells that the claim names, of the whole grid, the run does not plan; empty when there are none."""
    if predicate.experiment not in cells:
        return ""
    named = _named(predicate, cells[predicate.experiment])
    axes = list(named.columns)
    planned = set(_coordinates(table[axes][table["experiment"] == predicate.experiment], axes))
    gone = named[[cell not in planned for cell in _coordinates(named, axes)]]
    if gone.empty:
        return ""
    return f"{len(gone)} of {len(named)} cells ({_described(named, gone)})"


def _named(predicate: Simple, cells: pd.DataFrame) -> pd.DataFrame:
    """Choose the cells that the predicate's selectors take."""
    named = cells[_takes(cells, [predicate.where])]
    sides = [getattr(predicate, side) for side in ("of", "to") if hasattr(predicate, side)]
    if sides:
        named = named[_takes(named, sides)]
    if isinstance(predicate, RatioOrder):
        named = named[_takes(named, [predicate.greater_at, predicate.than_at])]
    if isinstance(predicate, Endpoints):
        named = named[_takes(named, [{predicate.along: [predicate.end, predicate.start]}])]
    return named


def _takes(cells: pd.DataFrame, selectors: list[Selector]) -> pd.Series[bool]:
    """Tell for each cell whether one of the selectors takes it; columns that are no axes say nothing about cells."""
    mask = pd.Series(False, index=cells.index)
    for selector in selectors:
        mask |= matches(cells, {column: wanted for column, wanted in selector.items() if column in cells})
    return mask


def _described(named: pd.DataFrame, gone: pd.DataFrame) -> str:
    """Name the values that are left out altogether, and the cells that are left out besides."""
    parts, rest = [], gone
    for axis in named.columns:
        present = set(named.drop(gone.index)[axis])
        values = [value for value in dict.fromkeys(gone[axis]) if value not in present]
        if values and len(values) < named[axis].nunique():
            parts.append(f"{axis} {', '.join(map(shown, values))}")
            rest = rest[~rest[axis].isin(values)]
    axes = list(rest.columns)
    listed = [Cell(**dict(zip(axes, cell, strict=True))).label() for cell in _coordinates(rest.head(3), axes)]
    if len(rest) > len(listed):
        listed.append(f"{len(rest) - len(listed)} more")
    return "; ".join([*parts, *listed])
