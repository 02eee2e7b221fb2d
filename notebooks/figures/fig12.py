"""Figure 12: throughput over the measured interval, a vertical line for every eviction, a panel for each benchmark."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from figures.parts import annotate, thousands
from figures.style import SYSTEMS
from figures.style import apply as apply_style
from figures.tables import whole_memory
from runner import evictions

PANELS = (("ycsb", "YCSB, read-heavy, s = 1"), ("tpcc", "TPC-C"))
SYSTEM = "anticache-alru"
EVICTION_COLOUR = "#D55E00"
TENTHS_COLOUR = "#9fd8c5"


def draw(table: pd.DataFrame, run: Path) -> Figure:
    """Draw the first valid trial of each benchmark; the others are in the table of the notebook."""
    apply_style()
    figure, grid = plt.subplots(len(PANELS), 1, figsize=(9.0, 5.6), layout="constrained", squeeze=False)
    for axes, letter, (benchmark, title) in zip(grid[:, 0], "ab", PANELS, strict=True):
        rows = table[(table["benchmark"] == benchmark) & (table["system"] == SYSTEM)].sort_values("trial")
        ratio = f", {rows['data_memory_ratio'].iloc[0]:g}x" if not rows.empty else ""
        if benchmark == "tpcc" and ratio:
            ratio += f" ({whole_memory(rows, rows['data_memory_ratio'].iloc[0])} of the whole memory budget)"
        axes.set_title(f"({letter}) {title}{ratio}", loc="left", fontweight="bold")
        _panel(axes, rows, run)
        axes.set_ylabel("throughput (txn/s)")
        axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    grid[-1, 0].set_xlabel("time (s from the start of the measured interval)")
    handles = [
        Line2D([], [], color=SYSTEMS[SYSTEM].colour, label="committed per second"),
        Line2D([], [], color=TENTHS_COLOUR, label="in each tenth of a second"),
        Line2D([], [], color=EVICTION_COLOUR, linewidth=0.8, label="eviction"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    annotate(figure, table)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, run: Path) -> None:
    """Draw one trial; where there is no valid one, say why."""
    valid = rows[rows["status"] == "ok"]
    if valid.empty:
        why = f"{rows['status'].iloc[0]}: {rows['reason'].iloc[0]}" if not rows.empty else "not measured at this scale"
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color="#666666", wrap=True)
        return
    trial = valid.iloc[0]
    length_s = float(trial["measured_s"])
    course = evictions.read(run / "trials" / str(trial["trial_hash"]), length_s)
    ends = course.evictions_s if course.evictions_s is not None else np.array([])
    rate = evictions.TENTHS_PER_S
    axes.vlines(
        ends, 0, 1, transform=axes.get_xaxis_transform(), color=EVICTION_COLOUR, linewidth=0.5, alpha=0.5, zorder=1
    )
    axes.plot((np.arange(len(course.tenths)) + 0.5) / rate, course.tenths * rate, color=TENTHS_COLOUR, lw=0.8, zorder=2)
    axes.plot(np.arange(len(course.seconds)) + 0.5, course.seconds, color=SYSTEMS[SYSTEM].colour, zorder=3)
    axes.set_xlim(0, length_s)
    axes.set_ylim(bottom=0)
    count = f"{len(ends):,} evictions" + ("" if course.complete else " recorded, others lost")
    count += f"; flagged: {trial['flags'].replace(';', ', ')}" if trial["flags"] else ""
    axes.text(0.995, 1.01, count, transform=axes.transAxes, ha="right", va="bottom", fontsize=8)
