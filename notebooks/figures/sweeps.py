"""Figures 8, 9a, 9b and the ablations: what one setting does, over the skew or over another setting."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from figures import ratios, tables, trouble
from figures.data import Point, point
from figures.lines import line, not_measured, skew_axis, zeros
from figures.parts import annotate, explain, of_look, thousands
from figures.style import MIXES, SYSTEMS, Look, sequence
from figures.style import apply as apply_style

METRICS = {
    "throughput_txn_s": "throughput (txn/s)",
    "restarted_share": "restarts per transaction",
    "fetched_blocks_per_1000_txn": "blocks fetched per 1000 txn",
    "fetched_bytes_per_txn": "bytes read per txn",
    "evicted_blocks_per_1000_txn": "blocks evicted per 1000 txn",
}
AXES = {
    "skew": "skew (Zipf exponent s)",
    "data_memory_ratio": "data / memory",
    "lru_sample_rate": "sampling rate (alpha)",
    "hole_threshold": "hole threshold",
    "eviction_check_interval_us": "eviction check interval",
    "disk_profile": "disk",
    "records": "records",
    "terminals": "terminals",
}
DISKS = ("hdd-7200", "hdd-297mb", "hdd-15k", "sata-ssd", "nvme")
"""The emulated disks, the slowest first."""
TOLD_APART_BY = [
    "disk_profile",
    "records_factor",
    "terminals_factor",
    "key_order",
    "merge",
    "block_factor",
    "tuple_bytes",
]
"""What trials of one mix and skew may differ by, where they are listed."""
PANEL_INCHES = (4.0, 3.4)


@dataclass(frozen=True)
class Panel:
    """One panel: trials that a condition chooses, a metric, and whether its axis is logarithmic."""

    title: str
    metric: str = "throughput_txn_s"
    where: tuple[tuple[str, Any], ...] = ()
    log: bool = False


def draw(
    table: pd.DataFrame, panels: list[Panel], *, series: str, x: str = "skew", columns: int = 2, note: str = ""
) -> Figure:
    """Draw a line for each value of `series` over `x`, in the paper's order: skew falling to the right."""
    apply_style()
    rows = -(-len(panels) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.5)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    looks = looks_of(table, series)
    places = in_order(x, table[x])
    drawn: list[Point] = []
    for axes, panel, letter in zip(grid.flat, panels, "abcdefgh", strict=False):
        axes.set_title(f"({letter}) {panel.title}" if len(panels) > 1 else panel.title, loc="left", fontweight="bold")
        chosen = table
        for column, wanted in panel.where:
            chosen = chosen[chosen[column] == wanted]
        points = []
        for value, look in looks.items():
            rows_of = chosen[chosen[series] == value]
            found = _points(rows_of, x, places, panel.metric)
            line(axes, found, look)
            if panel.log:
                zeros(axes, found, look)
            points += found
        _axes(axes, x, places, panel, points)
        drawn += points
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    explain(figure, [of_look(look) for look in looks.values()], drawn, columns=4)
    annotate(figure, table, "\n".join(filter(None, [note, shared_servers(table)])))
    return figure


def looks_of(table: pd.DataFrame, series: str) -> dict[Any, Look]:
    """Return how each value of a column is drawn; a system as everywhere."""
    values = in_order(series, table[series])
    if series == "system":
        return {value: SYSTEMS[value] for value in values}
    return dict(zip(values, sequence([label(series, v, table) for v in values]), strict=True))


def in_order(column: str, values: pd.Series) -> list[Any]:
    """Return the different values of a setting in the order in which they are shown.

    Disks go from the slowest on; mixes and systems are in the paper's order.
    """
    known = {"disk_profile": DISKS, "mix": MIXES, "system": tuple(SYSTEMS)}.get(column, ())
    place = {value: index for index, value in enumerate(known)}
    present = [value for value in values.unique() if not pd.isna(value)]
    return sorted(present, key=lambda value: (place.get(value, len(place)), value))


def _points(rows: pd.DataFrame, x: str, places: list[Any], metric: str) -> list[Point]:
    """Return the points of a line; skews stand at their value, other settings side by side in their order."""
    present = sorted(rows[x].dropna().unique(), reverse=True) if x == "skew" else in_order(x, rows[x])
    return [point(rows[rows[x] == v], float(v) if x == "skew" else float(places.index(v)), metric) for v in present]


def _axes(axes: Axes, x: str, places: list[Any], panel: Panel, points: list[Point]) -> None:
    axes.set_ylabel(METRICS[panel.metric])
    axes.set_xlabel(AXES[x])
    if x == "skew":
        skew_axis(axes)
    else:
        axes.set_xticks(range(len(places)), [written(x, v) for v in places])
        axes.set_xlim(-0.4, len(places) - 0.6)
    if not points:
        not_measured(axes)
    elif panel.log and any(p.estimate is not None and p.estimate.value > 0 for p in points):
        axes.set_yscale("log")
        axes.margins(y=0.15)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))  # a panel may have less than a decade
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, axes.dataLim.y1 * 1.08 if axes.dataLim.y1 > 0 else None)
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))


def written(column: str, value: Any) -> str:
    """Write a value of a setting for people."""
    if column == "eviction_check_interval_us":
        return f"{value / 1e3:,g} ms" if value else "every batch"
    if column == "records":
        return f"{value / 1e6:g} M"
    return f"{value:g}" if isinstance(value, int | float) or hasattr(value, "dtype") else str(value)


def size_of(size_bytes: float) -> str:
    """Write the size of a block."""
    return f"{size_bytes / (1 << 20):g} MiB" if size_bytes >= 1 << 20 else f"{size_bytes / (1 << 10):g} KiB"


def label(column: str, value: Any, table: pd.DataFrame) -> str:
    """Name a series."""
    if column == "block_factor":
        return size_of(float(table[table["block_factor"] == value]["eviction_block_bytes"].iloc[0]))
    words = {
        "merge": "{}-merge",
        "tuple_bytes": "{} B",
        "skew": "s = {}",
        "evict_from": {"coldest": "coldest first", "inverse-accesses": "inverse to accesses (paper)"}.get(
            str(value), "{}"
        ),
        "fetch": {"block": "whole block", "sectors": "sectors"}.get(str(value), "{}"),
        "durability": {
            "sync": "answered when synced",
            "datasync": "fsync made fdatasync",
            "off": "not waited for",
        }.get(str(value), "{}"),
        "answer_readers": {"at-once": "readers at once", "durable": "readers when durable"}.get(str(value), "{}"),
        "eviction_blocks": "{} block(s) per eviction",
    }
    return words.get(column, "{}").format(written(column, value))


def stands_for(table: pd.DataFrame) -> str:
    """Say which block stands for the paper's 1 MiB, and what of the budget it is, where it is another."""
    block_bytes = (table["eviction_block_bytes"] / table["block_factor"].fillna(1)).dropna()
    if block_bytes.empty or (block_bytes == 1 << 20).all():
        return ""
    budget_bytes = float(table["memory_budget_bytes"].max())
    one = float(block_bytes.iloc[0])
    return (
        f"Blocks of {size_of(one)} stand for the paper's 1 MiB at this scale: {one / budget_bytes:.2%} of the memory."
    )


def shared_servers(table: pd.DataFrame) -> str:
    """Say that trials with several settings share a running server, where they do; also those with its own settings."""
    if not any(found.values.live_settings for found in trouble.workloads(table)):
        return ""
    return (
        "Settings are changed in a running server at this scale: a trial may find in memory what another setting left"
        " there (scales.yml: live_settings)."
    )


def numbers(table: pd.DataFrame, *, series: str, x: str = "skew", metric: str = "throughput_txn_s") -> pd.DataFrame:
    """Return the means with their 95 % intervals: a row for each value of `x`, a column for each series.

    Mixes, systems and ratios have rows of their own: one of several systems is named, never averaged with another.
    """
    others = [name for name in ("system", "data_memory_ratio") if name not in (x, series)]
    apart = [*(name for name in others if table[name].nunique() > 1), "mix"]
    cells: dict[tuple[Any, ...], dict[str, str]] = {}
    for (*where, at, value), rows in table.groupby([*apart, x, series], sort=False):
        cells.setdefault((*where, at), {})[label(series, value, table)] = _cell(point(rows, 0.0, metric), metric)
    order = [label(series, v, table) for v in in_order(series, table[series])]
    lines = [
        {**{name: written(name, value) for name, value in zip(apart, where, strict=True)}, x: written(x, at), **found}
        for (*where, at), found in sorted(
            cells.items(), key=lambda c: (*c[0][:-1], -c[0][-1] if x == "skew" else c[0][-1])
        )
    ]
    return pd.DataFrame(lines, columns=[*apart, x, *order]).fillna("not measured")


def against(table: pd.DataFrame, base: Any, *, series: str, metric: str = "throughput_txn_s") -> pd.DataFrame:
    """Return what one value of a setting measured, and the ratio of every other value to it, with 95 % intervals."""
    return ratios.against(table, base, across=series, metric=metric, name=lambda value: label(series, value, table))


def _cell(found: Point, metric: str) -> str:
    if found.estimate is None:
        return found.trouble
    shown = "{:,.0f}" if metric == "throughput_txn_s" else "{:,.3g}"
    text = shown.format(found.estimate.value)
    if found.estimate.low is not None and found.estimate.high is not None:
        text += f" [{shown.format(found.estimate.low)}, {shown.format(found.estimate.high)}]"
    return ("≥ " if found.lower_bound else "") + text + (" (flagged)" if found.flagged else "")


def statements(run: Path, *ids: str) -> pd.DataFrame:
    """Return the verdicts on the paper's sentences that a figure is about."""
    frame = tables.claims(run)
    wanted = ["id", "claim", "expected", "verdict", "qualifiers", "measured", "95 % interval", "note"]
    return frame[frame["id"].isin(ids)][wanted].reset_index(drop=True)


def troubles(table: pd.DataFrame) -> pd.DataFrame:
    """Return the trials that are flagged or not valid, with the reason."""
    chosen = table[(table["status"] != "ok") | (table["flags"] != "")]
    compared = [name for name in TOLD_APART_BY if name in chosen]
    return chosen[["experiment", "mix", "skew", *compared, "trial", "status", "flags", "reason"]].reset_index(drop=True)
