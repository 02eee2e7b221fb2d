"""What the figures of the microbenchmarks share: lines with intervals and marks, the note below, means and ratios."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.data import Point
from figures.style import Look
from runner import collect, stats
from runner.sample import sample

NOTE_COLUMNS = 110  # what fits below a figure in one line


def line(axes: Axes, points: list[Point], look: Look) -> list[Point]:
    """Draw one series: hollow where a trial is flagged, a cross on the axis where there is no valid one."""
    measured = [(p, p.estimate) for p in points if p.estimate is not None]
    axes.plot([p.at for p, _ in measured], [e.value for _, e in measured], color=look.colour, linestyle=look.line)
    for p, estimate in measured:
        axes.errorbar(
            [p.at],
            [estimate.value],
            yerr=interval(estimate),
            color=look.colour,
            marker=look.marker,
            markerfacecolor="white" if p.flagged else look.colour,
            capsize=2.5,
            linestyle="none",
            zorder=3,
        )
    cross(axes, [p.at for p in points if p.estimate is None], look.colour)
    return points


def cross(axes: Axes, places: list[float], colour: str) -> None:
    """Mark cells without a valid trial on the x axis."""
    if places:
        below = axes.get_xaxis_transform()
        axes.plot(places, [0.03] * len(places), "x", color=colour, transform=below, clip_on=False, zorder=4)


def interval(estimate: stats.Estimate) -> np.ndarray | None:
    """Return the two arms of an error bar; None for a single trial."""
    if estimate.low is None or estimate.high is None:
        return None
    return np.array([[estimate.value - estimate.low], [estimate.high - estimate.value]])


def finish(figure: Figure, table: pd.DataFrame, looks: Mapping[str, Look], points: list[Point], size: str) -> None:
    """Add the legend, with the marks that were drawn, and the note."""
    handles: list[Artist] = [
        Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, label=look.label)
        for look in looks.values()
    ]
    figure.legend(handles=[*handles, *marks(points)], loc="outside upper center", ncols=5, frameon=False)
    note(figure, table, size)


def marks(points: list[Point]) -> list[Artist]:
    """Explain the marks that some of the points carry."""
    drawn = (
        ("flagged trial", "o", any(p.flagged for p in points)),
        ("no valid trial", "x", any(p.estimate is None for p in points)),
    )
    return [
        Line2D([], [], color="#555555", linestyle="none", marker=marker, markerfacecolor="white", label=label)
        for label, marker, there in drawn
        if there
    ]


def note(figure: Figure, table: pd.DataFrame, size: str) -> None:
    """Write below a figure what it stands on."""
    text = textwrap.fill(headline(table, size), NOTE_COLUMNS)
    figure.supxlabel(text, x=0.995, ha="right", fontsize=7, color="#666666")


def headline(table: pd.DataFrame, size: str = "") -> str:
    """Say in one line what was run: run, scale, disk, size, trials and repetitions in each, code."""
    scales, disks = (", ".join(table[name].unique()) for name in ("scale", "disk_profile"))
    repetitions = table["repetitions"].dropna()
    counted = f"{repetitions.min()} to {repetitions.max()}" if len(repetitions) else "no"
    return (
        f"run {table['run'].iloc[0]}, scale {scales}, disk {disks}: {size + ', ' if size else ''}"
        f"{table['trial'].max() + 1} trial(s) per cell, each the median of {counted} repetitions,"
        f" code {collect.code_of(table)}"
    )


def mean(cell: pd.DataFrame, metric: str) -> float | None:
    """Return the mean over the trials of a cell; None where none can be used."""
    found = sample(cell, metric)
    return float(np.mean(found.values)) if found.values else None


def shown(value: float | None) -> str:
    """Write a figure with three digits."""
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - from there on all digits are whole


def quotient(top: float | None, bottom: float | None) -> str:
    """Write a ratio of two means."""
    return "not measured" if top is None or not bottom else shown(top / bottom)
