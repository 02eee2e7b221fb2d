"""Two runs compared: the ratio B / A of every cell with its interval, as a forest plot for each experiment."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import CARETLEFTBASE, CARETRIGHTBASE, MarkerStyle
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, NullLocator

from figures.parts import FOOTER_POINTS, of_look, save, wrapped
from figures.style import SYSTEMS, Look
from figures.style import apply as apply_style
from runner import collect
from runner.axes import AXES, written
from runner.compare.cells import CANNOT_TELL, ELAPSED, Compared, Comparison
from runner.sample import THROUGHPUT

ROWS = 24  # of a panel; more stand beside them
ROW_INCHES, PANEL_INCHES, AROUND_INCHES = 0.34, 5.0, 1.6
SPREAD = 0.7  # of a row's height, over its systems
BAND_COLOUR = "#e8e8e8"
STRANGER = "#777777"  # of a system that no figure of ours has
METRICS = {THROUGHPUT: "throughput", ELAPSED: "time"}
TICKS = (
    (0.9, 0.95, 1.0, 1.05, 1.1),
    (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4),
    (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0),
    (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0),
)
"""From fine to coarse: the first that leaves some on both sides of 1 is taken."""


def save_all(found: Comparison, directory: Path) -> list[Path]:
    """Draw every experiment of a comparison and save it as ``compare-<experiment>``; return the files."""
    paths: list[Path] = []
    for experiment in dict.fromkeys(cell.experiment for cell in found.cells):
        figure = draw(found, experiment)
        paths += save(figure, directory, f"compare-{experiment}")
        plt.close(figure)
    return paths


def draw(found: Comparison, experiment: str) -> Figure:
    """Draw one experiment: a row for each cell, its systems one below the other; filled where a verdict is given."""
    apply_style()
    cells = [cell for cell in found.cells if cell.experiment == experiment]
    systems = list(dict.fromkeys(cell.system for cell in cells))
    rows: dict[str, list[Compared]] = {}
    for cell in cells:
        rows.setdefault(_label(cell), []).append(cell)
    every = list(rows.items())
    panels = [every[first : first + ROWS] for first in range(0, len(every), ROWS)]
    size = (PANEL_INCHES * len(panels), AROUND_INCHES + ROW_INCHES * len(panels[0]))
    figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False, sharex=True)
    low, high = _limits(cells, found.margin)
    for axes, panel in zip(grid[0], panels, strict=True):
        axes.axvspan(1 / (1 + found.margin), 1 + found.margin, color=BAND_COLOUR, linewidth=0, zorder=0)
        axes.axvline(1.0, color="#555555", linewidth=0.8, zorder=1)
        for place, (_, of_row) in enumerate(panel):
            for cell in of_row:
                _mark(axes, cell, place + _offset(systems, cell.system))
        axes.set_yticks(range(len(panel)), [label for label, _ in panel])
        axes.set_ylim(len(panel) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        _scale(axes, low, high)
        metric = cells[0].metric
        faster = "right" if metric == THROUGHPUT else "left"
        axes.set_xlabel(f"{METRICS.get(metric, metric)}, B / A ({faster} of 1: B is faster)")
    _legend(figure, cells, systems, found.margin)
    sides = (
        f"{name}: {of.run.name}, code {collect.code_of(of.table)}" for name, of in (("A", found.a), ("B", found.b))
    )
    below = wrapped(f"{experiment}; {'; '.join(sides)}", figure, FOOTER_POINTS)
    figure.supxlabel(below, x=0.995, ha="right", fontsize=FOOTER_POINTS, color="#666666")
    return figure


def _label(cell: Compared) -> str:
    """Name a cell without its system."""
    named = [axis for axis in AXES if axis.name in cell.cell and axis.name != "system"]
    return " ".join(axis.shown.format(written(cell.cell[axis.name])) for axis in named) or cell.experiment


def _look(system: str) -> Look:
    return SYSTEMS.get(system) or Look(system, STRANGER, "P", "-")


def _offset(systems: list[str], system: str) -> float:
    """Return how far from the middle of its row a system stands."""
    return SPREAD * ((systems.index(system) + 0.5) / len(systems) - 0.5)


def _mark(axes: Axes, cell: Compared, height: float) -> None:
    """Draw one ratio with its interval; a cross at the edge where there is none, a caret to where a bound is open."""
    look = _look(cell.system)
    if cell.ratio is None:
        axes.plot([0.02], [height], "x", color=look.colour, transform=axes.get_yaxis_transform(), clip_on=False)
        return
    value, low, high = cell.ratio.value, cell.ratio.low, cell.ratio.high
    arms = np.array([[value - low], [high - value]]) if low is not None and high is not None else None
    axes.errorbar(
        [value],
        [height],
        xerr=arms,
        color=look.colour,
        marker=look.marker,
        markerfacecolor="white" if cell.verdict == CANNOT_TELL else look.colour,
        linestyle="none",
        capsize=2,
        zorder=3,
    )
    for bound, caret in (("lower", CARETRIGHTBASE), ("upper", CARETLEFTBASE)):
        if cell.bound == bound:
            axes.plot([value], [height], color=look.colour, marker=MarkerStyle(caret), linestyle="none", zorder=4)


def _limits(cells: list[Compared], margin: float) -> tuple[float, float]:
    """Return an interval around 1, as wide on both sides, that holds all ratios and what their intervals are worth.

    Intervals of very few trials reach far beyond what anybody would read; they are cut off at twice the ratios' range.
    """
    ratios = [cell.ratio for cell in cells if cell.ratio is not None and cell.ratio.value > 0]
    reach = max((abs(np.log(ratio.value)) for ratio in ratios), default=0.0)
    arms = (abs(np.log(end)) for ratio in ratios for end in (ratio.low, ratio.high) if end is not None and end > 0)
    widest = max(arms, default=0.0)
    half = max(min(widest, 2 * reach + np.log(2)), reach, 3 * np.log1p(margin)) * 1.1
    return float(np.exp(-half)), float(np.exp(half))


def _scale(axes: Axes, low: float, high: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in TICKS]
    ticks = next((t for t, every in zip(inside, TICKS, strict=True) if high <= 1.2 * every[-1]), inside[-1])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x")


def _legend(figure: Figure, cells: list[Compared], systems: list[str], margin: float) -> None:
    """Explain systems and marks above the panels."""
    handles: list[Artist] = [of_look(_look(system)) for system in sorted(systems, key=_order)]
    marks = (
        ("cannot tell", "o", any(c.ratio is not None and c.verdict == CANNOT_TELL for c in cells)),
        ("no valid trial", "x", any(c.ratio is None for c in cells)),
        ("at least", MarkerStyle(CARETRIGHTBASE), any(c.bound == "lower" for c in cells)),
        ("at most", MarkerStyle(CARETLEFTBASE), any(c.bound == "upper" for c in cells)),
    )
    handles += [
        Line2D([], [], color="#555555", linestyle="none", marker=marker, markerfacecolor="white", label=label)
        for label, marker, drawn in marks
        if drawn
    ]
    handles.append(Patch(color=BAND_COLOUR, label=f"within {100 * margin:g} %"))
    columns = max(2, int(figure.get_figwidth() // 2.2))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)


def _order(system: str) -> int:
    names = list(SYSTEMS)
    return names.index(system) if system in names else len(names)
