"""The ablations: what the paper leaves open. A figure each, from the trials of one experiment."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from figures import data, parts, ratios, sweeps
from figures.style import SYSTEMS
from figures.sweeps import Panel

HIT_QUALITY = [
    Panel("throughput"),
    Panel("transactions that met evicted tuples", metric="restarted_share"),
    Panel("fetches", metric="fetched_blocks_per_1000_txn"),
]
CELL = ["mix", "skew", "data_memory_ratio", "system"]
BESIDE = {
    "beyond-log": "fig06",
    "beyond-datasync": "fig06",
    "beyond-datasync-tpcc": "fig07",
    "beyond-warehouses-datasync": "beyond-warehouses",
}
"""Experiments that repeat cells of another one with a setting that is no axis: both are shown."""


def show(directory: Path, name: str) -> pd.DataFrame | None:
    """Show the figure of an experiment, saved as `name` in the run's directory of figures, and return its numbers.

    Of an experiment that the run does not have only that is said.
    """
    draw, tabulate = ABLATIONS[name]
    table = picture(directory, name, draw)
    return None if table is None else tabulate(table)


def troubles(run: Path, name: str) -> pd.DataFrame | None:
    """Return what was wrong with the trials of an experiment; None where the run has none of it."""
    table = trials(name, run)
    return None if table.empty else sweeps.troubles(table)


def picture(directory: Path, name: str, draw: Callable[[pd.DataFrame], Figure]) -> pd.DataFrame | None:
    """Show and save what `draw` makes of an experiment's trials, and return them; None where the run has none."""
    table = trials(name, directory.parent)
    if table.empty:
        display({"text/plain": f"This run has no {name}."}, raw=True)  # type: ignore[no-untyped-call]
        return None
    figure = draw(table)
    parts.save(figure, directory, name)
    display(figure)  # type: ignore[no-untyped-call]
    plt.close(figure)  # a cell's figures are otherwise shown at its end, below the numbers
    return table


def trials(name: str, run: Path) -> pd.DataFrame:
    """Return the trials of an experiment, with those that it is held against; an empty table where the run has none."""
    table = _of(name, run)
    beside = _of(BESIDE[name], run) if name in BESIDE else pd.DataFrame()
    if table.empty or beside.empty:
        return table
    # TPC-C has neither mix nor skew, and nothing that is missing equals another.
    cells, others = (pd.MultiIndex.from_frame(rows[CELL].astype(object).fillna("")) for rows in (table, beside))
    same = others.isin(cells)
    return pd.concat([beside[same], table], ignore_index=True)


def _of(name: str, run: Path) -> pd.DataFrame:
    try:
        return data.trials(name, run)
    except data.NoRunError:
        return pd.DataFrame()


def alpha(table: pd.DataFrame) -> Figure:
    """Draw throughput and hit quality over the sampling rate, a line for each skew."""
    return sweeps.draw(table, HIT_QUALITY, series="skew", x="lru_sample_rate", columns=3)


def holes(table: pd.DataFrame) -> Figure:
    """Draw throughput and hit quality over the hole threshold, a line for each skew."""
    return sweeps.draw(table, HIT_QUALITY, series="skew", x="hole_threshold", columns=3)


def eviction(table: pd.DataFrame) -> Figure:
    """Draw throughput and evictions over the check interval, a line for each number of blocks."""
    panels = [Panel("throughput, read-heavy, s = 1"), Panel("evictions", metric="evicted_blocks_per_1000_txn")]
    return sweeps.draw(table, panels, series="eviction_blocks", x="eviction_check_interval_us")


def tables(table: pd.DataFrame) -> Figure:
    """Draw throughput and hit quality of TPC-C over the data/memory ratio, a line for each choice of tables."""
    return sweeps.draw(table, HIT_QUALITY, series="evict_from", x="data_memory_ratio", columns=3)


def keys(table: pd.DataFrame) -> Figure:
    """Draw throughput by skew, a panel for each system, a line for each order of keys."""
    present = [system for system in SYSTEMS if (table["system"] == system).any()]
    panels = [Panel(SYSTEMS[system].label, where=(("system", system),)) for system in present]
    return sweeps.draw(table, panels, series="key_order", columns=len(present))


def fetch(table: pd.DataFrame) -> Figure:
    """Draw throughput and bytes read by skew, for whole blocks and for sectors; a row for each data/memory ratio."""
    panels = []
    for ratio in sorted(float(ratio) for ratio in table["data_memory_ratio"].unique()):
        where = (("data_memory_ratio", ratio),)
        panels += [
            Panel(f"throughput, {ratio:g}x", where=where),
            Panel(f"read from disk, {ratio:g}x", metric="fetched_bytes_per_txn", where=where, log=True),
        ]
    return sweeps.draw(table, panels, series="fetch")


def disk(table: pd.DataFrame) -> Figure:
    """Draw throughput by skew, a panel for each mix, a line for each disk."""
    panels = [Panel(str(mix), where=(("mix", mix),), log=True) for mix in sweeps.in_order("mix", table["mix"])]
    return sweeps.draw(table, panels, series="disk_profile", columns=len(panels))


def gain(table: pd.DataFrame) -> Figure:
    """Draw throughput by disk, a row of panels for each mix, a panel for each order of keys, a line for each system."""
    orders = sorted(table["key_order"].dropna().unique())
    panels = [
        Panel(f"{mix}, {order} keys", where=(("mix", mix), ("key_order", order)), log=True)
        for mix in sweeps.in_order("mix", table["mix"])
        for order in orders
    ]
    return sweeps.draw(table, panels, series="system", x="disk_profile", columns=max(len(orders), 1))


def scale(table: pd.DataFrame) -> Figure:
    """Draw throughput by the number of records, a panel for each skew, a line for each system."""
    skews = sorted(table["skew"].unique(), reverse=True)
    panels = [Panel(f"s = {skew:g}", where=(("skew", skew),), log=True) for skew in skews]
    return sweeps.draw(table, panels, series="system", x="records", columns=len(panels))


def transfer(table: pd.DataFrame) -> Figure:
    """Draw throughput by the number of records, a row of panels for each disk, a panel for each skew."""
    skews = sorted(table["skew"].unique(), reverse=True)
    panels = [
        Panel(f"{profile}, s = {skew:g}", where=(("disk_profile", profile), ("skew", skew)), log=True)
        for profile in sweeps.in_order("disk_profile", table["disk_profile"])
        for skew in skews
    ]
    return sweeps.draw(table, panels, series="system", x="records", columns=len(skews))


def writes(table: pd.DataFrame) -> Figure:
    """Draw throughput by disk, a row of panels for each mix, a panel for each skew, a line for each system."""
    skews = sorted(table["skew"].unique(), reverse=True)
    panels = [
        Panel(f"{mix}, s = {skew:g}", where=(("mix", mix), ("skew", skew)), log=True)
        for mix in sweeps.in_order("mix", table["mix"])
        for skew in skews
    ]
    return sweeps.draw(table, panels, series="system", x="disk_profile", columns=len(skews))


def gains(table: pd.DataFrame, by: tuple[str, ...]) -> pd.DataFrame:
    """Return what MySQL measured in each cell, and anti-caching's ratio to it: on the same disk, and on the slowest.

    The latter is the gain of a system that alone has the faster disk: as when the page cache serves its blocks. Cells
    differ by disk and by the columns `by`.
    """
    profiles, *others = (sweeps.in_order(column, table[column]) for column in ("disk_profile", *by))
    rows = []
    for profile, *where in itertools.product(profiles, *others):
        cells = table[(table[list(by)] == where).all(axis="columns")]
        mysql, alru = (_point(cells, system, profile) for system in ("mysql", "anticache-alru"))
        of_slowest = _point(cells, "mysql", profiles[0])
        rows.append(
            {
                "disk": profile,
                **{name: sweeps.written(name, value) for name, value in zip(by, where, strict=True)},
                SYSTEMS["mysql"].label: ratios.figure(mysql),
                SYSTEMS["anticache-alru"].label: ratios.figure(alru),
                "aLRU / MySQL": ratios.divided(alru, mysql),
                f"aLRU / MySQL on {profiles[0]}": ratios.divided(alru, of_slowest),
            }
        )
    return pd.DataFrame(rows)


def log(table: pd.DataFrame) -> Figure:
    """Draw throughput by skew, a row of panels for each mix, a panel for each system, a line for each durability."""
    present = [system for system in SYSTEMS if (table["system"] == system).any()]
    panels = [
        Panel(f"{SYSTEMS[system].label}, {mix}", where=(("system", system), ("mix", mix)))
        for mix in sweeps.in_order("mix", table["mix"])
        for system in present
    ]
    return sweeps.draw(table, panels, series="durability", columns=len(present))


def logs(table: pd.DataFrame) -> pd.DataFrame:
    """Return what MySQL measured in each cell and the other systems' ratios to it, with and without waiting."""
    parts_of = [
        sweeps.against(table[table["durability"] == value], "mysql", series="system").assign(
            log=sweeps.label("durability", value, table)
        )
        for value in sorted(table["durability"].unique())
    ]
    whole = pd.concat(parts_of, ignore_index=True)
    first = [name for name in ("log", "mix", "skew") if name in whole]
    return whole[[*first, *(name for name in whole if name not in first)]].fillna(ratios.NOT_MEASURED)


def datasync(table: pd.DataFrame) -> Figure:
    """Draw MySQL's throughput by skew, a row for each mix and ratio, with and without Memcached, with both calls."""
    present = [system for system in SYSTEMS if system.startswith("mysql") and (table["system"] == system).any()]
    panels = [
        Panel(f"{SYSTEMS[system].label}, {panel.title}", where=(*panel.where, ("system", system)))
        for panel in _by_mix_and_ratio(table)
        for system in present
    ]
    return sweeps.draw(table, panels, series="durability", columns=len(present))


def tpcc_by_call(table: pd.DataFrame) -> Figure:
    """Draw throughput of TPC-C by data/memory ratio, a panel for each system, a line for each call."""
    present = [system for system in SYSTEMS if (table["system"] == system).any()]
    panels = [Panel(SYSTEMS[system].label, where=(("system", system),)) for system in present]
    return sweeps.draw(table, panels, series="durability", x="data_memory_ratio", columns=len(present))


def warehouses(table: pd.DataFrame) -> Figure:
    """Draw throughput of TPC-C by data/memory ratio, a line for each system."""
    return sweeps.draw(table, [Panel("throughput")], series="system", x="data_memory_ratio", columns=1)


def readers(table: pd.DataFrame) -> Figure:
    """Draw throughput by skew, a row of panels for each mix, a panel for each ratio, a line for each way to answer."""
    columns = table["data_memory_ratio"].nunique()
    return sweeps.draw(table, _by_mix_and_ratio(table), series="answer_readers", columns=columns)


def terminals(table: pd.DataFrame) -> Figure:
    """Draw throughput by terminals, a row of panels for each mix, a panel for each ratio, a line for each system."""
    return sweeps.draw(table, _by_mix_and_ratio(table), series="system", x="terminals")


def _by_mix_and_ratio(table: pd.DataFrame) -> list[Panel]:
    ratios_of = sorted(float(ratio) for ratio in table["data_memory_ratio"].unique())
    return [
        Panel(f"{mix}, {ratio:g}x", where=(("mix", mix), ("data_memory_ratio", ratio)))
        for mix in sweeps.in_order("mix", table["mix"])
        for ratio in ratios_of
    ]


def _point(table: pd.DataFrame, system: str, profile: str) -> data.Point:
    return data.point(table[(table["system"] == system) & (table["disk_profile"] == profile)], 0.0)


ABLATIONS: dict[str, tuple[Callable[[pd.DataFrame], Figure], Callable[[pd.DataFrame], pd.DataFrame]]] = {
    "beyond-alpha": (alpha, partial(sweeps.numbers, series="skew", x="lru_sample_rate")),
    "beyond-holes": (holes, partial(sweeps.numbers, series="skew", x="hole_threshold")),
    "beyond-eviction": (eviction, partial(sweeps.numbers, series="eviction_blocks", x="eviction_check_interval_us")),
    "beyond-tables": (tables, partial(sweeps.numbers, series="evict_from", x="data_memory_ratio")),
    "beyond-keys": (keys, partial(sweeps.against, base="clustered", series="key_order")),
    "beyond-fetch": (fetch, partial(sweeps.against, base="block", series="fetch")),
    "beyond-disk": (disk, partial(sweeps.against, base="hdd-7200", series="disk_profile")),
    "beyond-gain": (gain, partial(gains, by=("mix", "key_order"))),
    "beyond-scale": (scale, partial(sweeps.against, base="mysql", series="system")),
    "beyond-transfer": (transfer, partial(sweeps.against, base="mysql", series="system")),
    "beyond-log": (log, logs),
    "beyond-writes": (writes, partial(gains, by=("mix", "skew"))),
    "beyond-datasync": (datasync, logs),
    "beyond-datasync-tpcc": (tpcc_by_call, logs),
    "beyond-warehouses": (warehouses, partial(sweeps.against, base="mysql", series="system")),
    "beyond-warehouses-datasync": (tpcc_by_call, logs),
    "beyond-readers": (readers, partial(sweeps.against, base="durable", series="answer_readers")),
    "beyond-terminals": (terminals, partial(sweeps.against, base="mysql", series="system")),
}
"""What draws each experiment, and what makes its table of numbers."""
