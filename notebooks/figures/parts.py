"""What several figures share: the legend with its marks, notes, numbers on axes, files that do not change by chance."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.markers import CARETUPBASE, MarkerStyle
from matplotlib.patches import Patch

from figures import tables, trouble
from figures.data import Point
from figures.style import SYSTEMS, Look

FORMATS = ("pdf", "svg", "png")
FORMATS_VARIABLE = "ANTICACHE_EVAL_FORMATS"
"""Names fewer formats, with commas between; for those who only look at the notebooks."""
LOWER_BOUND = MarkerStyle(CARETUPBASE)  # stands on the point and points to where the true value lies
FOOTER_POINTS, NOTE_POINTS = 7, 8
LETTERS_PER_INCH = {FOOTER_POINTS: 17, NOTE_POINTS: 12}  # of small grey and of bold letters
NOTE_COLOUR = "#8F1D00"


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
    return Patch(facecolor=look.colour, edgecolor="white", hatch=look.hatch, label=look.label)


def annotate(figure: Figure, table: pd.DataFrame, footnote: str = "", headline: str = "") -> None:
    """Write below a figure what was run and, above it, which trials are missing, invalid or flagged (`trouble.note`).

    A `footnote` comes first, a line for each of its own; `headline` replaces that of `tables`.

    To be called after the legend was made: the note is its title, so that the layout keeps a place for both.
    """
    lines = [*footnote.splitlines(), headline or tables.headline(table)]
    below = "\n".join(wrapped(text, figure, FOOTER_POINTS) for text in lines)
    figure.supxlabel(below, x=0.995, ha="right", fontsize=FOOTER_POINTS, color="#666666")
    found = trouble.note(table)
    if not found:
        return
    legends = figure.legends or [figure.legend(handles=[], loc="outside upper center", frameon=False)]
    bold = FontProperties(size=NOTE_POINTS, weight="bold")
    legends[0].set_title(wrapped(found, figure, NOTE_POINTS), prop=bold)
    legends[0].get_title().set(color=NOTE_COLOUR, multialignment="center")


def wrapped(text: str, figure: Figure, points: int) -> str:
    """Break a text into lines that fit into a figure, in letters of so many points."""
    return textwrap.fill(text, int(figure.get_figwidth() * LETTERS_PER_INCH[points]))


def described(figure: Figure) -> str:
    """Put into words what a figure shows, for those who cannot see it: panels, axes, series, notes."""
    panels = [
        axes.get_title(loc=place) for axes in figure.axes for place in ("left", "center") if axes.get_title(place)
    ]
    across = dict.fromkeys(axes.get_xlabel() for axes in figure.axes if axes.get_xlabel())
    upwards = dict.fromkeys(axes.get_ylabel() for axes in figure.axes if axes.get_ylabel())
    legends = [*figure.legends, *(found for axes in figure.axes if (found := axes.get_legend()) is not None)]
    shown = dict.fromkeys(text.get_text() for found in legends for text in found.get_texts())
    notes = dict.fromkeys(found.get_title().get_text() for found in legends)
    said = (
        ("Panels", panels),
        ("Horizontally", across),
        ("Vertically", upwards),
        ("Shown", shown),
        ("Note", notes),
    )
    lists = ((what, "; ".join(" ".join(text.split()) for text in texts)) for what, texts in said)
    return " ".join(f"{what}: {words.rstrip('.')}." for what, words in lists if words)


def formats() -> list[str]:
    """Return the formats in which figures are written."""
    return [f for f in FORMATS if f in os.environ.get(FORMATS_VARIABLE, ",".join(FORMATS)).split(",")]


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write each of `formats`, with its description in words.

    They hold no date, so that the same data gives the same files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # it is laid out now; each file, and the notebook, would do it again
    words = described(figure)
    metadata = {
        "pdf": {"CreationDate": None, "Subject": words},
        "svg": {"Date": None, "Description": words},
        "png": {"Description": words},
    }
    paths = []
    for suffix in formats():
        path = directory / f"{name}.{suffix}"
        figure.savefig(path, metadata=metadata[suffix])
        paths.append(path)
    return paths
