"""Figure 10: milliseconds for 100,000 updates by skew, a line for each kind of LRU chain; its table."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from figures import micro, ratios
from figures.data import point
from figures.parts import of_look
from figures.style import Look
from figures.style import apply as apply_style

CHAINS = {
    "none": Look("no chain", "#000000", "s", "-"),
    "double": Look("doubly linked", "#009E73", "o", "-"),
    "single": Look("singly linked", "#D55E00", "D", "--"),
}
METRIC = "elapsed_ms"


def draw(table: pd.DataFrame) -> Figure:
    """Draw the three lines, skew falling to the right as in the paper; logarithmic, or two of them were one."""
    apply_style()
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    points = micro.lines(axes, table, "chain", CHAINS, "skew")
    skews = sorted({p.at for p in points}, reverse=True)
    axes.set_xticks(skews, [f"{skew:g}" for skew in skews])
    axes.set_xlim(max(skews) + 0.07, min(skews) - 0.07)
    if any(p.estimate for p in points):
        axes.set_yscale("log")
    axes.set_xlabel("skew (Zipf exponent s)")
    axes.set_ylabel(f"time for {_whole(table, 'updates'):,} updates (ms)")
    micro.finish(figure, table, map(of_look, CHAINS.values()), points, f"{_whole(table, 'tuples'):,} tuples")
    return figure


def _whole(table: pd.DataFrame, column: str) -> int:
    return int(table[column].max())


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Return the times at each skew, their ratios beside the paper's, and how far a singly-linked chain walks."""
    rows = []
    for skew in sorted(table["skew"].unique(), reverse=True):
        at = table[table["skew"] == skew]
        cells = {chain: at[at["chain"] == chain] for chain in CHAINS}
        times = {chain: point(cell, 0.0, METRIC) for chain, cell in cells.items()}
        rows.append(
            {
                "skew": skew,
                **{f"{CHAINS[chain].label} (ms)": ratios.figure(time) for chain, time in times.items()},
                "doubly / none": ratios.divided(times["double"], times["none"]),
                "paper: doubly / none": "within 5 %" if skew > 1 else "",
                "singly / doubly": ratios.divided(times["single"], times["double"]),
                "paper: singly / doubly": {1.5: "20", 1.25: "20"}.get(float(skew), "less as skew falls"),
                "links followed per update": micro.shown(micro.mean(cells["single"], "walked_per_update")),
            }
        )
    return pd.DataFrame(rows)
