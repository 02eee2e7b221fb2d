"""What several figures share: the legend with its marks, numbers on axes, and files that do not change by chance."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import CARETUPBASE, MarkerStyle
from matplotlib.patches import Patch

from figures.data import Point
from figures.style import HATCHES, SYSTEMS, Look

FORMATS = ("pdf", "svg", "png")
LOWER_BOUND = MarkerStyle(CARETUPBASE)  # stands on the point and points to where the true value lies


def thousands(value: float, _position: object = None) -> str:
    """Write a number on an axis in thousands or millions."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def legend(figure: Figure, table: pd.DataFrame, points: list[Point], *, bars: bool = False) -> None:
    """Explain the systems that are in the table, as lines or bars, and the marks that were drawn."""
    present = [system for system in SYSTEMS if (table["system"] == system).any()]
    handles: list[Artist] = [(_bar if bars else _line)(system) for system in present]
    explain(figure, handles, points, bars=bars)


def explain(
    figure: Figure, handles: list[Artist], points: list[Point], *, bars: bool = False, columns: int | None = None
) -> None:
    """Put a legend above the panels: the series, and the marks that were drawn; in so many columns, or in one line."""
    marks: tuple[tuple[str, str | MarkerStyle, bool], ...] = (
        ("flagged trial", "s" if bars else "o", any(p.flagged for p in points)),
        ("lower bound", LOWER_BOUND, any(p.lower_bound for p in points)),
        ("no valid trial", "x", any(p.estimate is None for p in points)),
    )
    every = handles + [
        Line2D([], [], color="#555555", linestyle="none", marker=marker, markerfacecolor="white", label=label)
        for label, marker, drawn in marks
        if drawn
    ]
    columns = columns or (4 if bars else len(every))
    figure.legend(handles=every, loc="outside upper center", ncols=columns, frameon=False)


def _line(system: str) -> Artist:
    return of_look(SYSTEMS[system])


def of_look(look: Look) -> Artist:
    """Return a line of a legend."""
    return Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, label=look.label)


def _bar(system: str) -> Artist:
    look = SYSTEMS[system]
    return Patch(facecolor=look.colour, edgecolor="white", hatch=HATCHES[system], label=look.label)


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write PDF, SVG and PNG without dates, so that the same data gives the same files."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix in FORMATS:
        path = directory / f"{name}.{suffix}"
        no_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[suffix]
        figure.savefig(path, metadata=no_date)
        paths.append(path)
    return paths
