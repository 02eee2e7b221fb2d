"""Latency beside Figure 6, which shows throughput alone: the 99th percentile by skew, a panel for each mix."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from figures.data import Point, point
from figures.fig06 import MIXES
from figures.lines import line, skew_axis
from figures.parts import annotate, legend, thousands
from figures.style import SYSTEMS
from figures.style import apply as apply_style

METRIC = "latency_us_p99"


def draw(table: pd.DataFrame, data_memory_ratio: float = 8.0) -> Figure:
    """Draw a line for each system; a cell without a usable trial is a cross, one of flagged trials is hollow."""
    apply_style()
    rows = table[table["data_memory_ratio"] == data_memory_ratio]
    mixes = [mix for mix in MIXES if (rows["mix"] == mix).any()]
    figure, grid = plt.subplots(1, len(mixes), figsize=(9.5, 3.6), sharey=True, layout="constrained", squeeze=False)
    drawn: list[Point] = []
    for axes, mix in zip(grid[0], mixes, strict=True):
        axes.set_title(f"{mix}, {data_memory_ratio:g}x", loc="left", fontweight="bold")
        axes.set_xlabel("skew (Zipf exponent s)")
        for system, look in SYSTEMS.items():
            points = by_skew(rows[(rows["system"] == system) & (rows["mix"] == mix)])
            line(axes, points, look)
            drawn += points
        skew_axis(axes)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(thousands)
    grid[0, 0].set_ylabel("p99 of the latency (µs)")
    legend(figure, rows, drawn)
    annotate(figure, table)
    return figure


def by_skew(rows: pd.DataFrame) -> list[Point]:
    """Return a point for each skew: the mean over the trials that the claims use as well, with its interval."""
    skews = sorted((float(skew) for skew in rows["skew"].unique()), reverse=True)
    return [point(rows[rows["skew"] == skew], skew, METRIC) for skew in skews]
