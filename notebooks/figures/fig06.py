"""Figure 6 in the paper's arrangement: a row per mix, a column per data/memory ratio, skew falling to the right."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Literal

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from figures.data import Point, series
from figures.lines import line, not_measured, skew_axis
from figures.parts import annotate, legend, thousands
from figures.style import MIXES, SYSTEMS
from figures.style import apply as apply_style

RATIOS = (1.0, 2.0, 4.0, 8.0)


def draw(table: pd.DataFrame, scale: Literal["linear", "log"] = "linear") -> Figure:
    """Draw the twelve panels (a) to (l); the panels of a row share the y axis, as in the paper."""
    apply_style()
    figure, grid = plt.subplots(
        len(MIXES), len(RATIOS), figsize=(11.5, 7.6), sharex=True, sharey="row", layout="constrained", squeeze=False
    )
    letters = iter("abcdefghijkl")
    points: list[Point] = []
    for (row, mix), (column, ratio) in product(enumerate(MIXES), enumerate(RATIOS)):
        axes: Axes = grid[row, column]
        axes.set_title(f"({next(letters)}) {mix}, {ratio:g}x", loc="left", fontweight="bold")
        points += _panel(axes, table, mix, ratio)
    for axes in grid[:, 0]:
        axes.set_ylabel("throughput (txn/s)")
    for axes in grid[-1, :]:
        axes.set_xlabel("skew (Zipf exponent s)")
    _scale_rows(grid, scale)
    legend(figure, table, points)
    annotate(figure, table)
    return figure


def _panel(axes: Axes, table: pd.DataFrame, mix: str, ratio: float) -> list[Point]:
    """Draw one panel; return its points."""
    drawn: list[Point] = []
    for system, look in SYSTEMS.items():
        points = series(table, system, mix, ratio)
        line(axes, points, look)
        drawn += points
    skew_axis(axes)
    if not drawn:
        not_measured(axes)
    return drawn


def _scale_rows(grid: Iterable[Iterable[Axes]], scale: Literal["linear", "log"]) -> None:
    for row in grid:
        for axes in row:
            if scale == "linear":
                axes.set_ylim(bottom=0)
            elif any(other.containers for other in row):  # an empty panel has no logarithm
                axes.set_yscale("log")
                axes.yaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_formatter(FuncFormatter(thousands))
