"""Response time by offered load, of an open loop: the transactions arrive, and what they wait counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from figures import beyond
from figures.data import Point, point
from figures.lines import line, not_measured
from figures.parts import LOWER_BOUND, annotate, explain, of_look, thousands
from figures.style import SYSTEMS
from figures.style import apply as apply_style
from runner.remarks import OVERLOADED

ARRIVALS = {"poisson": "Poisson arrivals", "fixed": "arrivals at equal distances"}
QUANTILES = {"p50": "median", "p99": "99th percentile"}
ACHIEVED = "achieved_txn_s"
PANEL_INCHES = (3.9, 3.3)
MARK_POINTS = 11  # larger than the marker that it stands on
FOOTNOTE = (
    "Response time (with markers): from the arrival to the commit. Service time (dotted): from the submission by a free"
    " terminal, as a closed loop measures it. Overloaded: more arrived than was over, so the response times grow with"
    " the length of the trial."
)
COLUMNS = {
    ACHIEVED: "achieved txn/s",
    "response_us_p50": "response p50",
    "response_us_p99": "response p99",
    "response_us_p999": "response p999",
    "latency_us_p50": "service p50",
    "latency_us_p99": "service p99",
    "client_late_us_p99": "client late p99",
    "not_started": "not started",
}


def show(directory: Path, name: str) -> pd.DataFrame | None:
    """Show the figure of `name`, saved in the run's directory of figures, and return its numbers; see `beyond.show`."""
    table = beyond.picture(directory, name, draw)
    return None if table is None else numbers(table)


def draw(table: pd.DataFrame) -> Figure:
    """Draw response times and the achieved rate by the offered one: a row of panels for each kind of arrivals."""
    apply_style()
    arrivals = [name for name in ARRIVALS if (table["arrival"] == name).any()]
    size = (PANEL_INCHES[0] * (len(QUANTILES) + 1), PANEL_INCHES[1] * len(arrivals) + 0.8)
    figure, grid = plt.subplots(len(arrivals), len(QUANTILES) + 1, figsize=size, layout="constrained", squeeze=False)
    letters = iter("abcdefgh")
    drawn: list[Point] = []
    for panels, arrival in zip(grid, arrivals, strict=True):
        rows = table[table["arrival"] == arrival]
        for axes, (quantile, words) in zip(panels, QUANTILES.items(), strict=False):
            axes.set_title(f"({next(letters)}) {words}, {ARRIVALS[arrival]}", loc="left", fontweight="bold")
            drawn += _times(axes, rows, quantile)
        panels[-1].set_title(f"({next(letters)}) achieved, {ARRIVALS[arrival]}", loc="left", fontweight="bold")
        drawn += _achieved(panels[-1], rows)
    systems = [of_look(SYSTEMS[system]) for system in _systems(table)]
    marks = _marks(any(p.lower_bound for p in drawn))
    explain(figure, systems + marks, [replace(p, lower_bound=False) for p in drawn], columns=4)
    annotate(figure, table, FOOTNOTE)
    return figure


def _systems(table: pd.DataFrame) -> list[str]:
    return [system for system in SYSTEMS if (table["system"] == system).any()]


def _marks(overloaded: bool) -> list[Artist]:
    grey = "#555555"
    marks: list[Artist] = [Line2D([], [], color=grey, linestyle=":", label="service time")]
    if overloaded:
        caret: dict[str, Any] = {"linestyle": "none", "marker": LOWER_BOUND, "markersize": MARK_POINTS}
        marks.append(Line2D([], [], color=grey, label="overloaded", **caret))
    return marks


def points(rows: pd.DataFrame, metric: str) -> list[Point]:
    """Return a system's points by rising load; overload makes one a lower bound, and is no flag."""
    found = []
    for offered in sorted(rows["offered_txn_s"].dropna().unique()):
        cell = rows[rows["offered_txn_s"] == offered]
        overloaded = cell["flags"].map(lambda flags: OVERLOADED in flags.split(";")) & (cell["status"] == "ok")
        other = cell["flags"].map(lambda flags: ";".join(flag for flag in flags.split(";") if flag != OVERLOADED))
        each = point(cell.assign(flags=other), float(offered), metric)
        found.append(replace(each, lower_bound=bool(overloaded.any()) and each.estimate is not None))
    return found


def _times(axes: Axes, rows: pd.DataFrame, quantile: str) -> list[Point]:
    drawn: list[Point] = []
    for system in _systems(rows):
        of_system, look = rows[rows["system"] == system], SYSTEMS[system]
        response = points(of_system, f"response_us_{quantile}")
        line(axes, [replace(p, lower_bound=False) for p in response], look)
        beyond_it = [(p.at, p.estimate.value) for p in response if p.lower_bound and p.estimate]
        _plot(axes, beyond_it, color=look.colour, linestyle="none", marker=LOWER_BOUND, markersize=MARK_POINTS)
        service = [(p.at, p.estimate.value) for p in points(of_system, f"latency_us_{quantile}") if p.estimate]
        _plot(axes, service, color=look.colour, linestyle=":", linewidth=1.1)
        drawn += response
    _axes(axes, rows, drawn)
    axes.set_ylabel("time")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    return drawn


def _plot(axes: Axes, places: list[tuple[float, float]], **look: Any) -> None:
    axes.plot([x for x, _ in places], [y for _, y in places], **look)


def _achieved(axes: Axes, rows: pd.DataFrame) -> list[Point]:
    drawn: list[Point] = []
    offered = sorted(rows["offered_txn_s"].dropna().unique())
    axes.plot(offered, offered, color="#999999", linewidth=0.8, zorder=1)
    for system in _systems(rows):
        found = points(rows[rows["system"] == system], ACHIEVED)
        # What an overloaded system achieves is no bound of anything.
        line(axes, [replace(p, lower_bound=False) for p in found], SYSTEMS[system])
        drawn += found
    _axes(axes, rows, drawn)
    axes.set_ylabel("achieved (txn/s)")
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    return drawn


def _axes(axes: Axes, rows: pd.DataFrame, drawn: list[Point]) -> None:
    offered = sorted(rows["offered_txn_s"].dropna().unique())
    axes.set_xlabel("offered load (txn/s)")
    axes.set_xscale("log")
    axes.set_xticks(offered, [thousands(rate) for rate in offered])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(offered[0] / 1.4, offered[-1] * 1.4)
    if not any(p.estimate is not None and p.estimate.value > 0 for p in drawn):
        not_measured(axes)
        return
    axes.set_yscale("log")
    axes.margins(y=0.12)
    axes.yaxis.set_minor_formatter(NullFormatter())


def duration(time_us: float) -> str:
    """Write a time with the unit that leaves at least 1."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if time_us >= size:
            return f"{time_us / size:.3g} {unit}"
    return f"{time_us:.3g} µs"


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the means over the trials of each cell: response beside service time, and what of it is the client's."""
    lines = []
    for arrival in ARRIVALS:
        for system in _systems(table):
            rows = table[(table["arrival"] == arrival) & (table["system"] == system)]
            by_metric = {name: points(rows, name) for name in COLUMNS}
            for place, offered in enumerate(sorted(rows["offered_txn_s"].dropna().unique())):
                cells = {label: _cell(by_metric[name][place], name) for name, label in COLUMNS.items()}
                of_cell = rows[rows["offered_txn_s"] == offered]
                flags = dict.fromkeys(flag for text in of_cell["flags"] for flag in text.split(";") if flag)
                where = {"arrivals": arrival, "system": SYSTEMS[system].label, "offered txn/s": f"{offered:,g}"}
                lines.append({**where, **cells, "flags": ", ".join(flags)})
    return pd.DataFrame(lines, columns=["arrivals", "system", "offered txn/s", *COLUMNS.values(), "flags"])


def _cell(found: Point, metric: str) -> str:
    if found.estimate is None:
        return found.trouble
    return duration(found.estimate.value) if "_us_" in metric else f"{found.estimate.value:,.0f}"
