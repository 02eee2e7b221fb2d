"""The ablations: what the paper leaves open. A figure each, from the trials of one experiment."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from figures import data, sweeps
from figures.style import SYSTEMS
from figures.sweeps import Panel

HIT_QUALITY = [
    Panel("throughput"),
    Panel("transactions that met evicted tuples", metric="restarted_share"),
    Panel("fetches", metric="fetched_blocks_per_1000_txn"),
]


def trials(name: str, run: Path) -> pd.DataFrame:
    """Return the trials of ``beyond-<name>``; an empty table where the run has none."""
    try:
        return data.trials(f"beyond-{name}", run)
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
