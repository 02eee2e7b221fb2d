"""One line of a panel, with what marks its points, and the axes that several figures share."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes

from figures.data import Point
from figures.parts import LOWER_BOUND
from figures.style import Look
from runner import stats

SKEWS = (1.5, 1.25, 1.0, 0.75, 0.5)


def skew_axis(axes: Axes) -> None:
    """Let the skew fall to the right, as in the paper."""
    axes.set_xlim(SKEWS[0] + 0.07, SKEWS[-1] - 0.07)
    axes.set_xticks(SKEWS, ["1.5", "1.25", "1.0", "0.75", "0.5"])


def not_measured(axes: Axes) -> None:
    """Say that there is nothing in a panel."""
    axes.text(
        0.5, 0.5, "not measured\nat this scale", transform=axes.transAxes, ha="center", va="center", color="#666666"
    )


def line(axes: Axes, points: list[Point], look: Look) -> None:
    """Draw one series: hollow markers where a trial is flagged, with a caret above where the value is a lower bound.

    A cross on the axis stands for a cell without a usable trial; the line has a gap there.
    """
    measured = [(p, p.estimate) for p in points if p.estimate is not None]
    # A line over a cell without a value would show one.
    heights = [p.estimate.value if p.estimate is not None else math.nan for p in points]
    axes.plot([p.at for p in points], heights, color=look.colour, linestyle=look.line, zorder=2)
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
    bounded = [(p.at, e.value) for p, e in measured if p.lower_bound]
    at, above = [skew for skew, _ in bounded], [value for _, value in bounded]
    axes.plot(at, above, color=look.colour, linestyle="none", marker=LOWER_BOUND, zorder=4)
    cross(axes, [p.at for p in points if p.estimate is None], look.colour)


def zeros(axes: Axes, points: list[Point], look: Look) -> None:
    """Put zeros below a logarithmic axis, which has no place for them."""
    below = axes.get_xaxis_transform()
    for p in points:
        if p.estimate is not None and p.estimate.value == 0:
            fill = "white" if p.flagged else look.colour
            (mark,) = axes.plot([p.at], [0.0], look.marker, color=look.colour, transform=below, clip_on=False)
            mark.set_markerfacecolor(fill)
            axes.annotate("0", (p.at, 0.0), (0, 6), xycoords=below, textcoords="offset points", ha="center", fontsize=8)


def cross(axes: Axes, places: list[float], colour: str) -> None:
    """Mark cells without a usable trial on the x axis."""
    if places:
        below = axes.get_xaxis_transform()  # y as a share of the panel: visible whatever the scale
        axes.plot(places, [0.03] * len(places), "x", color=colour, transform=below, clip_on=False, zorder=4)


def interval(estimate: stats.Estimate) -> np.ndarray | None:
    """Return the two arms of an error bar; None for a single trial."""
    if estimate.low is None or estimate.high is None:
        return None
    return np.array([[estimate.value - estimate.low], [estimate.high - estimate.value]])
