"""Figure 7: TPC-C throughput, a group of bars for each data/memory ratio, a bar for each system."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from figures.data import Point, by_ratio
from figures.parts import LOWER_BOUND, annotate, legend, thousands
from figures.style import SYSTEMS
from figures.style import apply as apply_style
from figures.tables import whole_memory

GROUP_WIDTH = 0.84  # of the distance between two groups


def draw(table: pd.DataFrame) -> Figure:
    """Draw the ratios that the table has; systems that a ratio leaves out leave their place empty."""
    apply_style()
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    ratios = sorted(float(ratio) for ratio in table["data_memory_ratio"].unique())
    present = [system for system in SYSTEMS if (table["system"] == system).any()]
    width = GROUP_WIDTH / len(present)
    points: list[Point] = []
    for index, system in enumerate(present):
        offset = (index - (len(present) - 1) / 2) * width
        for point in by_ratio(table, system):
            _bar(axes, point, system, x=ratios.index(point.at) + offset, width=width)
            points.append(point)
    axes.set_xticks(range(len(ratios)), [f"{ratio:g}x\n{whole_memory(table, ratio)}" for ratio in ratios])
    axes.set_xlabel("rows loaded / memory for rows; below it: / the whole memory budget, keys of evicted rows included")
    axes.set_ylabel("throughput (txn/s, all five transactions)")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    legend(figure, table, points, bars=True)
    annotate(figure, table)
    return figure


def _bar(axes: Axes, point: Point, system: str, *, x: float, width: float) -> None:
    """Draw one cell: hollow where a trial is flagged, a caret for a lower bound, a cross where there is none."""
    look = SYSTEMS[system]
    if point.estimate is None:
        axes.plot([x], [0.02], "x", color=look.colour, transform=axes.get_xaxis_transform(), clip_on=False, zorder=4)
        return
    estimate = point.estimate
    bar = None
    if estimate.low is not None and estimate.high is not None:
        bar = np.array([[estimate.value - estimate.low], [estimate.high - estimate.value]])
    axes.bar(
        [x],
        [estimate.value],
        width * 0.92,
        yerr=bar,
        color="white" if point.flagged else look.colour,
        edgecolor=look.colour if point.flagged else "white",
        hatch=look.hatch,
        linewidth=1.0,
        capsize=2.5,
        error_kw={"ecolor": "#555555", "elinewidth": 1.0},
        zorder=3,
    )
    if point.lower_bound:
        axes.plot([x], [estimate.value], color=look.colour, linestyle="none", marker=LOWER_BOUND, zorder=4)
