"""Tables of ratios: every system, or setting, against a chosen one, with intervals, bounds and flags."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from figures import ratios
from figures.data import point
from runner import stats


def trials(**more: Any) -> pd.DataFrame:
    """Three systems at two skews, three trials each; aLRU ten times as fast as MySQL, Memcached twice."""
    rows = []
    for skew in (0.5, 1.5):
        for system, factor in (("mysql", 1.0), ("anticache-alru", 10.0), ("mysql-memcached", 2.0)):
            for number, noise in enumerate((95.0, 100.0, 105.0)):
                row = {
                    "trial_hash": f"{system} {skew} {number}",
                    "system": system,
                    "mix": "read-only",
                    "skew": skew,
                    "data_memory_ratio": 8.0,
                    "status": "ok",
                    "flags": "",
                    "reason": "",
                    "throughput_txn_s": factor * noise,
                }
                rows.append(row | more)
    return pd.DataFrame(rows)


def test_every_system_against_a_chosen_one() -> None:
    frame = ratios.against(trials(), "mysql")
    assert list(frame.columns) == ["skew", "mysql", "mysql-memcached / mysql", "anticache-alru / mysql"]
    assert list(frame["skew"]) == ["1.5", "0.5"], "falling, as in the figures; what does not vary is left out"
    found = stats.ratio([950.0, 1000.0, 1050.0], [95.0, 100.0, 105.0])
    assert found.interval is not None
    expected = f"10 [{found.interval[0]:.3g}, {found.interval[1]:.3g}]"
    assert list(frame["anticache-alru / mysql"]) == [expected, expected]
    assert frame.iloc[0]["mysql"].startswith("100 [")


def test_a_systems_own_settings_tell_no_cell_from_another() -> None:
    table = trials()
    engine = table["system"] == "anticache-alru"
    table = table.assign(merge=engine.map({True: "tuple", False: ""}), lru_sample_rate=engine.map({True: 0.01}))
    assert ratios.against(table, "mysql").equals(ratios.against(trials(), "mysql"))


def test_another_base_and_only_some() -> None:
    frame = ratios.against(trials(), "anticache-alru", only=["mysql"])
    assert list(frame.columns) == ["skew", "anticache-alru", "mysql / anticache-alru"]
    assert frame.iloc[0]["mysql / anticache-alru"].startswith("0.1 [")


def test_a_setting_and_another_metric() -> None:
    table = trials(merge="tuple")
    table["merge"] = table["system"].map({"mysql": "block", "mysql-memcached": "lazy", "anticache-alru": "tuple"})
    table["latency_us_p99"] = table["throughput_txn_s"]
    frame = ratios.against(
        table.drop(columns=["system"]).assign(system="anticache-alru"), "block", across="merge", metric="latency_us_p99"
    )
    assert list(frame.columns) == ["skew", "block", "lazy / block", "tuple / block"]
    assert frame.iloc[0]["lazy / block"].startswith("2 [")


def test_bounds_flags_and_what_is_not_there() -> None:
    table = trials()
    at = (table["skew"] == 1.5) & (table["system"] == "anticache-alru")
    table.loc[at, ["status", "flags"]] = ["invalid", "client_saturated"]
    gone = (table["skew"] == 0.5) & (table["system"] == "mysql-memcached")
    table.loc[gone, "status"] = "failed"
    table.loc[gone, "throughput_txn_s"] = float("nan")
    table.loc[(table["skew"] == 0.5) & (table["system"] == "mysql"), "flags"] = "noisy_cell"
    frame = ratios.against(table, "mysql")
    high, low = frame.iloc[0], frame.iloc[1]
    assert high["anticache-alru / mysql"].startswith("≥ 10 [")
    assert high["anticache-alru / mysql"].endswith(" (flagged)")
    assert low["mysql-memcached / mysql"] == "not measured"
    assert low["anticache-alru / mysql"].endswith(" (flagged)")
    assert low["mysql"].endswith(" (flagged)")
    without = ratios.against(table[table["system"] != "mysql"], "mysql")
    assert set(without["mysql"]) == set(without["anticache-alru / mysql"]) == {"not measured"}


def test_a_ratio_of_different_machines_says_so() -> None:
    table = trials(machine="a CPU, kernel 6.1")
    table.loc[table["system"] == "anticache-alru", "machine"] = "a CPU, kernel 6.2"
    other = (table["system"] == "mysql") & (table["skew"] == 0.5)
    table.loc[other, "machine"] = "another CPU, kernel 6.1"
    high, low = (row["anticache-alru / mysql"] for _, row in ratios.against(table, "mysql").iterrows())
    assert "different" not in high
    assert low.endswith("] (different machines)")


def test_one_trial_and_a_mean_of_zero() -> None:
    table = trials()
    once = table[table["trial_hash"].str.endswith("0")]
    assert set(ratios.against(once, "mysql")["anticache-alru / mysql"]) == {"10"}
    idle = point(once.assign(throughput_txn_s=0.0), 0.0)
    assert ratios.divided(point(once, 0.0), idle) == "not measured"


@pytest.mark.parametrize(("value", "text"), [(0.9876, "0.988"), (12.34, "12.3"), (1234.5, "1,234"), (0.0, "0")])
def test_numbers(value: float, text: str) -> None:
    assert ratios.number(value) == text
