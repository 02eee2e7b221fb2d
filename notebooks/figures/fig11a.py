"""Figure 11a: a block out and back, its steps stacked; left bars: block-merge, right ones: tuple-merge."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from figures import micro, ratios
from figures.data import Point, point
from figures.lines import cross, interval
from figures.style import apply as apply_style

MIB = 1 << 20
PAPER = tuple(size * MIB for size in (1, 2, 4, 8, 16))
"""The block sizes of the paper."""
STEPS = {
    "construct_ms": ("construct", "#000000", ""),
    "write_ms": ("write", "#0072B2", "//"),
    "fetch_ms": ("fetch", "#E69F00", ".."),
    "merge_ms": ("merge", "#9fd8c5", "xx"),
}
"""From the bottom up: label, colour and hatch."""
MERGED = ("block", "tuple")
WIDTH = 0.38
FEW = 2  # sizes of the paper's that need no panel of their own


def draw(table: pd.DataFrame) -> Figure:
    """Draw the paper's block sizes, and smaller ones in a panel of their own, where they can be seen."""
    apply_style()
    sizes = sorted(int(size) for size in table["block_bytes"].unique())
    small, paper = [s for s in sizes if s < MIB], [s for s in sizes if s >= MIB]
    panels = [part for part in (small, paper) if part] if len(paper) > FEW else [sizes]
    ratios = [len(part) + 0.6 for part in panels]
    figure, grid = plt.subplots(
        1, len(panels), figsize=(7.6, 4.2), layout="constrained", squeeze=False, width_ratios=ratios
    )
    points = [p for axes, part in zip(grid[0], panels, strict=True) for p in _panel(axes, table, part)]
    grid[0, 0].set_ylabel("time for one block (ms)")
    grid[0, -1].set_title("left bar: block-merge, right bar: tuple-merge", loc="right")
    handles: list[Artist] = [
        Patch(facecolor=colour, edgecolor="white", hatch=hatch, label=label) for label, colour, hatch in STEPS.values()
    ]
    micro.finish(figure, table, handles, points, "1 KB tuples")
    return figure


def _panel(axes: Axes, table: pd.DataFrame, sizes: list[int]) -> list[Point]:
    points = []
    for place, size in enumerate(sizes):
        for side, merged in enumerate(MERGED):
            cell = table[(table["block_bytes"] == size) & (table["merged"] == merged)]
            if not cell.empty:
                points.append(_bar(axes, cell, place + (side - 0.5) * (WIDTH + 0.04)))
    axes.set_xticks(range(len(sizes)), [size_shown(size) for size in sizes])
    axes.set_xlabel("block size")
    axes.set_ylim(bottom=0)
    return points


def _bar(axes: Axes, cell: pd.DataFrame, place: float) -> Point:
    """Stack the means of the steps; the interval is that of their sum."""
    whole = point(cell, place, "elapsed_ms")
    if whole.estimate is None:
        cross(axes, [place], "#555555")
        return whole
    bottom = 0.0
    for metric, (_, colour, hatch) in STEPS.items():
        height = micro.mean(cell, metric) or 0.0
        axes.bar(
            [place],
            [height],
            WIDTH,
            bottom=bottom,
            color="white" if whole.flagged else colour,
            edgecolor=colour if whole.flagged else "white",
            hatch=hatch,
            linewidth=0.6,
            zorder=3,
        )
        bottom += height
    arms = interval(whole.estimate)
    if arms is not None:
        axes.errorbar([place], [bottom], yerr=arms, color="#555555", capsize=2.5, linestyle="none", zorder=4)
    return whole


def size_shown(size_bytes: int) -> str:
    """Write a block size."""
    return f"{size_bytes / MIB:g} MB" if size_bytes >= MIB else f"{size_bytes >> 10} KB"


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of each cell, their sum, and the time in memory against that on the disk, as the paper does."""
    rows = []
    for (at, merged), cell in table.groupby(["block_bytes", "merged"]):
        size = int(str(at))
        times = {metric: micro.mean(cell, metric) for metric in (*STEPS, "elapsed_ms", "sync_ms")}
        in_memory, on_disk = (_sum(times, *names) for names in (("construct_ms", "merge_ms"), ("write_ms", "fetch_ms")))
        rows.append(
            {
                "block": size_shown(size),
                "merge": f"{merged}-merge",
                "tuples": micro.shown(micro.mean(cell, "tuples_per_block")),
                **{f"{label} (ms)": micro.shown(times[metric]) for metric, (label, _, _) in STEPS.items()},
                "sum (ms)": ratios.figure(point(cell, 0.0, "elapsed_ms")),
                "sum per MB (ms)": micro.quotient(times["elapsed_ms"], size / MIB),
                "(construct + merge) / (write + fetch)": micro.quotient(in_memory, on_disk),
                "paper": "above 1" if size in PAPER else "",
                "sync, not in the sum (ms)": micro.shown(times["sync_ms"]),
            }
        )
    return pd.DataFrame(rows)


def _sum(times: dict[str, float | None], *names: str) -> float | None:
    found = [time for name in names if (time := times[name]) is not None]
    return sum(found) if len(found) == len(names) else None
