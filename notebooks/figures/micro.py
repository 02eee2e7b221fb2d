"""What the figures of the microbenchmarks share: legend and notes, means and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import parts, tables
from figures.data import Point, point
from figures.lines import line
from figures.ratios import NOT_MEASURED, number
from figures.style import Look
from runner import collect
from runner.sample import sample


def finish(figure: Figure, table: pd.DataFrame, handles: Iterable[Artist], points: list[Point], size: str) -> None:
    """Add the legend, with the marks that were drawn, and the notes."""
    parts.explain(figure, list(handles), points)
    parts.annotate(figure, table, headline=headline(table, size))


def lines(axes: Axes, table: pd.DataFrame, column: str, looks: Mapping[str, Look], x: str) -> list[Point]:
    """Draw the milliseconds over `x`, a line for each value of `column` in `looks`; return all points."""
    drawn: list[Point] = []
    for value, look in looks.items():
        rows = table[table[column] == value]
        places = sorted(rows[x].unique(), reverse=x == "skew")  # from left to right
        points = [point(rows[rows[x] == place], float(place), "elapsed_ms") for place in places]
        line(axes, points, look)
        drawn += points
    return drawn


def headline(table: pd.DataFrame, size: str = "") -> str:
    """Say in one line what was run: run, scale, disk, size, trials and repetitions in each, code.

    Only what writes blocks uses the disk.
    """
    scales, disks = (", ".join(table[name].unique()) for name in ("scale", "disk_profile"))
    where = f"disk {disks}" if table["block_bytes"].notna().any() else "in memory"
    repetitions = table["repetitions"].dropna()
    counted = f"{repetitions.min()} to {repetitions.max()}" if len(repetitions) else "no"
    return (
        f"run {table['run'].iloc[0]}, scale {scales}, {where}: {size + ', ' if size else ''}"
        f"{tables.trials_per_cell(table)}, each the median of {counted} repetitions,"
        f" code {collect.code_of(table)}"
    )


def mean(cell: pd.DataFrame, metric: str) -> float | None:
    """Return the mean over the trials of a cell; None where none can be used."""
    found = sample(cell, metric)
    return float(np.mean(found.values)) if found.values else None


def shown(value: float | None) -> str:
    """Write a figure with three digits."""
    return NOT_MEASURED if value is None else number(value)


def quotient(top: float | None, bottom: float | None) -> str:
    """Write a ratio of two figures that are no means over trials; `ratios.divided` is for those."""
    return NOT_MEASURED if top is None or not bottom else number(top / bottom)
