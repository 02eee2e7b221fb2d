"""The ablations: what the paper leaves open. A figure each, from the trials of one experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from figures import data, parts, sweeps
from figures.style import SYSTEMS
from figures.sweeps import Panel

HIT_QUALITY = [
    Panel("throughput"),
    Panel("transactions that met evicted tuples", metric="restarted_share"),
    Panel("fetches", metric="fetched_blocks_per_1000_txn"),
]


def show(directory: Path, name: str) -> pd.DataFrame | None:
    """Show the figure of an experiment, saved as `name` in the run's directory of figures, and return its numbers.

    Of an experiment that the run does not have only that is said.
    """
    draw, varied = ABLATIONS[name]
    table = picture(directory, name, draw)
    return None if table is None else sweeps.numbers(table, **varied)


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
    """Return the trials of an experiment; an empty table where the run has none."""
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
    """Draw throughput and bytes read by skew, for whole blocks and for sectors."""
    panels = [Panel("throughput"), Panel("read from disk", metric="fetched_bytes_per_txn", log=True)]
    return sweeps.draw(table, panels, series="fetch")


def disk(table: pd.DataFrame) -> Figure:
    """Draw throughput by skew, a panel for each mix, a line for each disk."""
    panels = [Panel(str(mix), where=(("mix", mix),), log=True) for mix in sorted(table["mix"].unique(), reverse=True)]
    return sweeps.draw(table, panels, series="disk_profile", columns=len(panels))


ABLATIONS: dict[str, tuple[Callable[[pd.DataFrame], Figure], dict[str, Any]]] = {
    "beyond-alpha": (alpha, {"series": "skew", "x": "lru_sample_rate"}),
    "beyond-holes": (holes, {"series": "skew", "x": "hole_threshold"}),
    "beyond-eviction": (eviction, {"series": "eviction_blocks", "x": "eviction_check_interval_us"}),
    "beyond-tables": (tables, {"series": "evict_from", "x": "data_memory_ratio"}),
    "beyond-keys": (keys, {"series": "key_order"}),
    "beyond-fetch": (fetch, {"series": "fetch"}),
    "beyond-disk": (disk, {"series": "disk_profile"}),
}
"""What draws each experiment, and what its table of numbers has as columns and rows."""
