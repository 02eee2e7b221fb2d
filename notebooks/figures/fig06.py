"""Figure 6 in the paper's arrangement: a row per mix, a column per data/memory ratio, skew falling to the right."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from figures.data import Point, series
from figures.parts import LOWER_BOUND, annotate, legend, thousands
from figures.style import SYSTEMS, Look
from figures.style import apply as apply_style

MIXES = ("read-only", "read-heavy", "write-heavy")
RATIOS = (1.0, 2.0, 4.0, 8.0)
SKEWS = (1.5, 1.25, 1.0, 0.75, 0.5)


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
        _line(axes, points, look)
        drawn += points
    axes.set_xlim(SKEWS[0] + 0.07, SKEWS[-1] - 0.07)
    axes.set_xticks(SKEWS, ["1.5", "1.25", "1.0", "0.75", "0.5"])
    if not drawn:
        axes.text(
            0.5, 0.5, "not measured\nat this scale", transform=axes.transAxes, ha="center", va="center", color="#666666"
        )
    return drawn


def _line(axes: Axes, points: list[Point], look: Look) -> None:
    """Draw one series: hollow markers where a trial is flagged, with a caret above where the value is a lower bound.

    A cross on the axis stands for a cell without a usable trial; the line has a gap there.
    """
    measured = [(p, p.estimate) for p in points if p.estimate is not None]
    # A line over a cell without a value would show one.
    heights = [p.estimate.value if p.estimate is not None else math.nan for p in points]
    axes.plot([p.at for p in points], heights, color=look.colour, linestyle=look.line, zorder=2)
    for p, estimate in measured:
        bar = None
        if estimate.low is not None and estimate.high is not None:
            bar = np.array([[estimate.value - estimate.low], [estimate.high - estimate.value]])
        axes.errorbar(
            [p.at],
            [estimate.value],
            yerr=bar,
            color=look.colour,
            marker=look.marker,
            markerfacecolor="white" if p.flagged else look.colour,
            capsize=2.5,
            linestyle="none",
            zorder=3,
        )
    bounded = [(p.at, e.value) for p, e in measured if p.lower_bound]
    at, above = [skew for skew, _ in bounded], [value for _, value in bounded]
    axes.plot(at, above, color=look.colour, linestyle="none", marker=LOWER_BOUND, zorder=4)
    failed = [p.at for p in points if p.estimate is None]
    if failed:
        below = axes.get_xaxis_transform()  # y as a share of the panel: visible whatever the scale
        axes.plot(failed, [0.03] * len(failed), "x", color=look.colour, transform=below, clip_on=False, zorder=4)


def _scale_rows(grid: Iterable[Iterable[Axes]], scale: Literal["linear", "log"]) -> None:
    for row in grid:
        for axes in row:
            if scale == "linear":
                axes.set_ylim(bottom=0)
            elif any(other.containers for other in row):  # an empty panel has no logarithm
                axes.set_yscale("log")
                axes.yaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_formatter(FuncFormatter(thousands))
