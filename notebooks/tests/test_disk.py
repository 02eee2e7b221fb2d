"""The table of what a cell beyond memory asks of the disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from figures import disk, ratios


def trials(**more: Any) -> pd.DataFrame:
    """Two systems at two skews and 2x, and one cell in memory."""
    rows = [
        {
            "system": system,
            "mix": "read-only",
            "skew": skew,
            "data_memory_ratio": ratio,
            "records": 1000,
            "status": "ok",
            "flags": "",
            "throughput_txn_s": 2000.0,
            "disk_operations": operations,
            "warmup_s": 10.0,
            "measured_s": 30.0,
        }
        for ratio in (1.0, 2.0)
        for skew in (0.5, 1.5)
        for system, operations in (("mysql", 16000), ("anticache-alru", 4000))
    ]
    return pd.DataFrame(rows).assign(**more)


def test_the_ideal_misses_are_those_of_a_simulated_cache() -> None:
    generator = np.random.default_rng(7)
    for skew in (0.5, 1.0, 1.5):
        weights = np.arange(1, 1001) ** -skew
        drawn = generator.choice(1000, size=200_000, p=weights / weights.sum())
        assert disk.ideal_misses(1000, 4, skew) == pytest.approx(float((drawn >= 250).mean()), abs=0.004)
    assert disk.ideal_misses(1000, 1, 1.0) == 0


def test_operations_for_a_transaction_and_in_a_second() -> None:
    frame = disk.asked(trials())
    assert list(frame["skew"]) == ["1.5", "0.5"], "falling, and nothing of what fits into memory"
    assert set(frame["MySQL: per s"]) == {"400"}
    assert set(frame["MySQL: per 1000 txn"]) == {"200"}
    assert set(frame["anti-caching, aLRU: per s"]) == {"100"}
    assert set(frame["anti-caching, aLRU: per 1000 txn"]) == {"50"}
    assert frame["ideal misses"].iloc[1] == ratios.number(1000 * disk.ideal_misses(1000, 2, 0.5))


def test_what_cannot_be_said() -> None:
    table = trials()
    table.loc[(table["system"] == "mysql") & (table["skew"] == 1.5), ["status", "flags"]] = ["invalid", "verify_failed"]
    frame = disk.asked(table)
    assert frame["MySQL: per s"].iloc[0] == "not measured"
    assert frame["MySQL: per s"].iloc[1] == "400"
    assert disk.asked(trials(disk_operations=None)).empty, "the machine's own disk counts nothing"
