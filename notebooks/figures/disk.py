"""What decides a cell beyond memory: how often any cache must miss there, and what each system asked of the disk."""

from __future__ import annotations

import numpy as np
import pandas as pd

from figures.ratios import NOT_MEASURED, number
from figures.style import SYSTEMS
from runner.axes import written
from runner.sample import is_usable
from runner.systems import WITHOUT_EVICTION


def ideal_misses(records: int, data_memory_ratio: float, skew: float) -> float:
    """Return the share of accesses that miss when memory always holds the hottest ``records / data_memory_ratio`` rows.

    The accesses are independent draws from the Zipf distribution with exponent `skew`: no replacement strategy
    that does not know the future does better. What a system keeps beside the rows lets it keep fewer of them.
    """
    weights = np.arange(1, records + 1, dtype=np.float64) ** -skew
    kept = int(records / data_memory_ratio)
    return float(weights[kept:].sum() / weights.sum())


def asked(table: pd.DataFrame, mix: str = "read-only") -> pd.DataFrame:
    """Return a row for each cell of a mix beyond memory: the ideal cache's misses, and each system's disk operations.

    Both for 1000 transactions; behind them, how many operations the disk carried out in a second. They count what the
    emulated disk saw from the warm-up on; without writes all of them are reads. Throughput is the quotient of the two.
    """
    usable = [is_usable(status, flags) for status, flags in zip(table["status"], table["flags"], strict=True)]
    found = table[pd.Series(usable, index=table.index, dtype=bool) & table["disk_operations"].notna()]
    counted = found[(found["mix"] == mix) & (found["data_memory_ratio"] > 1)]
    present = [s for s in SYSTEMS if s != WITHOUT_EVICTION and (counted["system"] == s).any()]
    columns = [f"{SYSTEMS[system].label}: {what}" for system in present for what in ("per 1000 txn", "per s")]
    rows = []
    for _, cell in counted.groupby(["data_memory_ratio", "skew"]):
        ratio, skew = (float(cell[axis].iloc[0]) for axis in ("data_memory_ratio", "skew"))
        row: dict[str, object] = {"data/memory": f"{ratio:g}x", "skew": written(skew)}
        row["ideal misses"] = number(1000 * ideal_misses(int(cell["records"].iloc[0]), ratio, skew))
        for system in present:
            row |= _of_system(cell[cell["system"] == system], SYSTEMS[system].label)
        rows.append((ratio, -skew, row))
    in_order = [row for _, _, row in sorted(rows, key=lambda each: each[:2])]
    return pd.DataFrame(in_order, columns=["data/memory", "skew", "ideal misses", *columns])


def _of_system(trials: pd.DataFrame, label: str) -> dict[str, str]:
    """Return the means over a cell's trials; what no disk counted says so."""
    if trials.empty:
        return {f"{label}: {what}": NOT_MEASURED for what in ("per 1000 txn", "per s")}
    per_s = trials["disk_operations"].astype(float) / (trials["warmup_s"] + trials["measured_s"])
    per_1000 = 1000 * per_s / trials["throughput_txn_s"]
    return {f"{label}: per 1000 txn": number(float(per_1000.mean())), f"{label}: per s": number(float(per_s.mean()))}
