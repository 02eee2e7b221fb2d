"""Figures 1 and 2: the three architectures with the memory that each had, and the engine's node with its partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import boxes
from figures.boxes import Box
from figures.engine import Engine, Record, size_text
from figures.tables import headline
from runner.files import read_json

ARCHITECTURES = (
    ("mysql", "(a) disk-oriented"),
    ("mysql-memcached", "(b) disk-oriented with a cache"),
    ("anticache-alru", "(c) anti-caching"),
)
PARTITIONS = 3  # more would not be readable; the others are alike


def architectures(table: pd.DataFrame, run: Path) -> Figure:
    """Draw which process has which memory, and what is on disk (Fig. 1), at the cell that all three have.

    `table` holds all trials of the run. An architecture that the run has not measured is drawn without numbers.
    """
    figure, panels = boxes.sheet(10, 11.2, inches=10.5, panels=3)
    cell = _common_cell(table)
    for axes, (system, title) in zip(panels, ARCHITECTURES, strict=True):
        axes.text(0.3, 11.0, title, fontsize=9, fontweight="bold", va="top")
        rows = cell[cell["system"] == system] if not cell.empty else cell
        trial = rows.iloc[0] if not rows.empty else None
        boxes.box(axes, Box(1.0, 8.9, 8, 1.1), _terminals(trial))
        if system == "anticache-alru":
            _anti_caching(axes, trial, run)
        else:
            _disk_oriented(axes, trial, cached=system != "mysql")
        if trial is None:
            boxes.note(axes, (0.4, 0.75), "this run has no trial of it: no numbers", color=boxes.ACCENT)
        else:
            budget = size_text(trial["memory_budget_bytes"])
            boxes.note(
                axes,
                (0.4, 0.95),
                f"memory {budget}; {_data(trial)}\n({trial['experiment']}, {trial['data_memory_ratio']:g}x)",
            )
    boxes.sign(figure, headline(table if cell.empty else cell))
    return figure


def _common_cell(table: pd.DataFrame) -> pd.DataFrame:
    """Return the measured trials of one cell: YCSB before TPC-C, the most architectures, the highest ratio."""
    measured = table[table["status"].isin(["ok", "invalid"]) & table["system"].isin([s for s, _ in ARCHITECTURES])]
    if measured.empty:
        return measured
    keys = ["benchmark", "data_memory_ratio", "experiment", "mix", "skew"]
    groups = [group for _, group in measured.groupby(keys, sort=True, dropna=False)]
    return max(
        groups,
        key=lambda g: (g["system"].nunique(), g["benchmark"].iloc[0] == "ycsb", g["data_memory_ratio"].iloc[0]),
    )


def _terminals(trial: pd.Series[Any] | None) -> str:
    return "terminals" if trial is None else f"{trial['terminals']} terminals"


def _data(trial: pd.Series[Any]) -> str:
    if trial["benchmark"] == "tpcc":
        return f"{trial['warehouses']} warehouses, {size_text(trial['stored_bytes'])} of rows"
    payload = size_text(trial["records"] * trial["fields"] * trial["field_bytes"])
    return f"{trial['records']:,} records, {payload} of fields"


def _of(trial: pd.Series[Any] | None, column: str) -> str:
    return "" if trial is None or pd.isna(trial[column]) else f"\n{size_text(trial[column])}"


def _disk_oriented(axes: Axes, trial: pd.Series[Any] | None, *, cached: bool) -> None:
    """Draw MySQL, with Memcached in front of it where `cached`."""
    x, width = (5.0, 4.4) if cached else (1.0, 8.0)
    server = boxes.frame(axes, Box(x, 5.2, width, 2.6), "MySQL")
    boxes.box(
        axes,
        Box(x + 0.3, 5.4, width - 0.6, 1.5),
        f"buffer pool{_of(trial, 'mysql_buffer_pool_bytes')}",
        fill=boxes.MEMORY,
    )
    disk = boxes.frame(axes, Box(1.0, 1.3, 8.4, 2.5), "disk: primary storage", fill=boxes.DISK)
    boxes.box(axes, Box(1.4, 1.5, 4.4, 1.4), "all rows, in pages")
    boxes.box(axes, Box(6.1, 1.5, 3.0, 1.4), f"redo log{_of(trial, 'mysql_redo_log_bytes')}")
    middle = server.x + server.width / 2
    if cached:
        boxes.frame(axes, Box(0.4, 5.2, 4.0, 2.6), "Memcached")
        boxes.box(
            axes,
            Box(0.7, 5.4, 3.4, 1.5),
            f"rows again, as\ndocuments{_of(trial, 'memcached_bytes')}",
            fill=boxes.MEMORY,
            size=7.5,
        )
        boxes.arrow(axes, (2.4, 8.9), (2.4, 7.8), arrowstyle="<|-|>")
        axes.text(2.6, 8.35, "first", fontsize=7, va="center")
        axes.text(middle + 0.2, 8.35, "misses, writes", fontsize=7, va="center")
    boxes.arrow(axes, (middle, 8.9), (middle, 7.8), arrowstyle="<|-|>")
    boxes.arrow(axes, (middle, disk.y + disk.height), (middle, 5.2), arrowstyle="<|-|>")
    axes.text(middle + 0.2, 4.5, "pages, as needed", fontsize=7, va="center")


def _anti_caching(axes: Axes, trial: pd.Series[Any] | None, run: Path) -> None:
    """Draw the engine; what its memory held, and how much was on disk, at the end of the trial."""
    now: dict[str, int] = {}
    if trial is not None:
        result = read_json(run / "trials" / str(trial["trial_hash"]) / "result.json")
        now = result.get("counters_after", {}).get("anticached", {})
    size = {name: f" {size_text(now[name])}" if name in now else "" for name in (
        "memory_tuples_bytes", "memory_index_bytes", "memory_evicted_table_bytes", "memory_staging_bytes")}  # fmt: skip
    engine = boxes.frame(axes, Box(0.6, 4.6, 8.8, 3.3), "engine: primary storage")
    parts = (
        (0.0, f"tuples\n{size['memory_tuples_bytes'].strip()}"),
        (1.0, f"indexes\n{size['memory_index_bytes'].strip()}"),
        (2.0, f"Evicted Table\n{size['memory_evicted_table_bytes'].strip()}"),
        (3.0, f"block buffers\n{size['memory_staging_bytes'].strip()}"),
    )
    for position, text in parts:
        column, row = position % 2, position // 2
        place = Box(engine.x + 0.2 + column * 4.3, engine.y + 1.4 - row * 1.25, 4.1, 1.1)
        boxes.box(axes, place, text, fill=boxes.MEMORY, size=7.5)
    disk = boxes.frame(axes, Box(0.6, 1.3, 8.8, 2.3), "disk", fill=boxes.DISK)
    blocks = "" if "blocks_live" not in now else f"\n{now['tuples_evicted']:,} tuples, {now['blocks_live']:,} blocks"
    boxes.box(axes, Box(0.9, 1.5, 4.9, 1.3), f"anti-cache{blocks}", size=7.5)
    boxes.box(axes, Box(6.0, 1.5, 3.1, 1.3), "command log,\nsnapshots", size=7.5)
    boxes.arrow(axes, (5.0, 8.9), (5.0, 7.9), arrowstyle="<|-|>")
    boxes.arrow(axes, (3.0, engine.y), (3.0, disk.y + disk.height))
    axes.text(3.2, 4.1, "cold tuples", fontsize=7, va="center")
    boxes.arrow(axes, (6.4, disk.y + disk.height), (6.4, engine.y))
    axes.text(6.6, 4.1, "wanted ones", fontsize=7, va="center")


def node(engine: Engine) -> Figure:
    """Draw the engine's node (Fig. 2): each partition with its thread, tables, indexes and its part of the disk."""
    figure, (axes,) = boxes.sheet(16, 9.6)
    shown = engine.partitions[:PARTITIONS]
    boxes.box(axes, Box(0.2, 8.7, 15.6, 0.7), "terminals: a request names a stored procedure and its partition")
    node_box = boxes.frame(
        axes, Box(0.2, 0.9, 15.6, 7.1), f"node: {len(engine.partitions)} partitions", fill=boxes.PLAIN
    )
    width = (node_box.width - 0.4) / len(shown)
    for number, partition in enumerate(shown):
        place = Box(node_box.x + 0.2 + number * width + 0.1, node_box.y + 0.2, width - 0.2, 6.3)
        boxes.arrow(
            axes,
            (place.x + place.width / 2, 8.7),
            (place.x + place.width / 2, place.y + place.height),
            arrowstyle="<|-|>",
        )
        _partition(axes, engine, partition, place)
    rest = len(engine.partitions) - len(shown)
    boxes.note(
        axes,
        (0.2, 0.7),
        f"CPUs of the server: {', '.join(map(str, engine.settings['cpus']))}. Memory of a partition:"
        f" {size_text(shown[0]['gauges']['memory_budget_bytes'])}, hard."
        + (f" {rest} more partitions, alike, are left out." if rest else ""),
        columns=150,
    )
    boxes.sign(figure, engine.source)
    return figure


def _partition(axes: Axes, engine: Engine, partition: Record, place: Box) -> None:
    gauges = partition["gauges"]
    boxes.frame(axes, place, f"partition {partition['partition']}: one thread, no latches", size=7.5)
    memory = boxes.frame(axes, Box(place.x + 0.15, place.y + 2.35, place.width - 0.3, 3.4), "memory", fill=boxes.MEMORY)
    tables = partition["tables"]
    most = max(tables, key=lambda t: int(t["resident"]) + int(t["evicted"]))
    indexes = "\n".join(
        f"{i['name']}: {i['kind']}, {i['key_bytes']}-byte keys, {i['entries']:,} entries, {size_text(i['bytes'])}"
        for i in most["indexes"]
    )
    others = f" (and {len(tables) - 1} more tables)" if len(tables) > 1 else ""
    chain = most["chain"]
    lines = (
        f"table {most['name']}{others}: {most['resident']:,} tuples,\n"
        f"LRU chain through {chain['length'] if chain else 0:,}; {size_text(gauges['memory_tuples_bytes'])}",
        indexes,
        f"Evicted Table: {gauges['tuples_evicted']:,} entries, {size_text(gauges['memory_evicted_table_bytes'])}",
        f"block buffers, transactions that wait ({gauges['waiting']:,}): {size_text(gauges['memory_staging_bytes'])}",
    )
    step = (memory.height - 0.45) / len(lines)
    for row, text in enumerate(lines):
        inner = Box(memory.x + 0.12, memory.y + 0.08 + (len(lines) - 1 - row) * step, memory.width - 0.24, step - 0.1)
        boxes.box(axes, inner, text, size=7)
    disk = boxes.frame(axes, Box(memory.x, place.y + 0.15, memory.width, 1.75), "disk", fill=boxes.DISK)
    block = size_text(engine.settings["eviction_block_bytes"])
    half = disk.width / 2
    anti_cache = f"anti-cache\n{gauges['blocks_live']:,} blocks of {block}\n{gauges['block_holes']:,} holes"
    log = f"command log\n{gauges['log_groups']:,} groups, {size_text(gauges['log_bytes'])}\nsnapshots"
    boxes.box(axes, Box(disk.x + 0.1, disk.y + 0.1, half - 0.15, 1.2), anti_cache, size=7)
    boxes.box(axes, Box(disk.x + half + 0.05, disk.y + 0.1, half - 0.15, 1.2), log, size=7)
    x = disk.x + half
    boxes.arrow(axes, (x, memory.y), (x, disk.y + disk.height), arrowstyle="<|-|>")
