"""Figure 11b: milliseconds to update the indexes of 1,000 tuples by the number of indexes, a line for each kind."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from figures import micro, ratios
from figures.data import point
from figures.parts import of_look
from figures.style import Look
from figures.style import apply as apply_style

KINDS = {
    "hash": Look("hash indexes", "#0072B2", "o", "-"),
    "ordered": Look("ordered indexes (B+-trees)", "#D55E00", "D", "--"),
}
METRIC = "elapsed_ms"


def draw(table: pd.DataFrame) -> Figure:
    """Draw both lines from zero on."""
    apply_style()
    figure, axes = plt.subplots(figsize=(6.0, 3.8), layout="constrained")
    points = micro.lines(axes, table, "index_kind", KINDS, "indexes")
    axes.set_xticks(sorted({int(p.at) for p in points}))
    axes.set_xlabel("number of indexes")
    axes.set_ylabel(f"time for {int(table['updates'].max()):,} tuples (ms)")
    axes.set_ylim(bottom=0)
    micro.finish(figure, table, map(of_look, KINDS.values()), points, f"{int(table['tuples'].max()):,} tuples")
    return figure


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Return the times by number of indexes, and what one index of one tuple adds to those without any."""
    rows = []
    without = {kind: _mean(table, kind, 0) for kind in KINDS}
    updates = int(table["updates"].max())
    for count in sorted(int(count) for count in table["indexes"].unique()):
        row: dict[str, object] = {"indexes": count}
        for kind in KINDS:
            time, base = _mean(table, kind, count), without[kind]
            row[f"{kind} (ms)"] = ratios.figure(point(_rows(table, kind, count), 0.0, METRIC))
            more_ms = None if time is None or base is None or not count else time - base
            row[f"{kind}: each index of a tuple adds (ns)"] = (
                "" if more_ms is None else micro.shown(more_ms * 1e6 / updates / count)
            )
        rows.append(row)
    return pd.DataFrame(rows)


def _mean(table: pd.DataFrame, kind: str, count: int) -> float | None:
    return micro.mean(_rows(table, kind, count), METRIC)


def _rows(table: pd.DataFrame, kind: str, count: int) -> pd.DataFrame:
    return table[(table["index_kind"] == kind) & (table["indexes"] == count)]
