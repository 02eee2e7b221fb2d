"""Tables for the notebooks: measured ratios beside the paper's, and the verdicts on its claims."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from IPython.display import HTML

from figures.data import ROOT, point
from figures.ratios import divided
from runner import collect
from runner.systems import WITHOUT_EVICTION

INTERVAL = "95 % interval"
ANTI_CACHING = "anticache-alru"  # what "anti-caching" means where the paper does not say LRU or aLRU


def reference() -> pd.DataFrame:
    """Return what the paper's text states about Figure 6 (results/reference/fig06.csv)."""
    return pd.read_csv(ROOT / "results" / "reference" / "fig06.csv", dtype=str, keep_default_na=False)


def ratios(table: pd.DataFrame, data_memory_ratio: float = 8.0) -> pd.DataFrame:
    """Return throughput of anti-caching (aLRU) divided by each other system's, per mix and skew, with intervals.

    Beside the paper's; `ratios.against` has every system and every cell. Each is written as there.
    """
    rows = []
    at = table[table["data_memory_ratio"] == data_memory_ratio]
    for (mix, skew), cell in at.groupby(["mix", "skew"], sort=False):
        row: dict[str, object] = {"mix": mix, "skew": skew}
        for other in ("mysql", "mysql-memcached"):
            top, bottom = (point(cell[cell["system"] == system], 0.0) for system in (ANTI_CACHING, other))
            row[f"aLRU / {other}"] = divided(top, bottom)
        rows.append(row)
    frame = pd.DataFrame(rows, columns=["mix", "skew", "aLRU / mysql", "aLRU / mysql-memcached"])
    return frame.sort_values(["mix", "skew"], ascending=[True, False], ignore_index=True)


def shown(frame: pd.DataFrame) -> HTML:
    """Return a table of long texts as HTML that is the same for the same table, which a Styler's own output is not."""
    styler = frame.style.hide(axis="index").set_table_styles(
        [{"selector": "th, td", "props": "text-align: left; vertical-align: top"}]
    )
    return HTML(styler.set_uuid("table").to_html())  # type: ignore[no-untyped-call]


def paper_ratios() -> pd.DataFrame:
    """Return the ratios of throughput that the paper states, as a table to stand beside the measured ones."""
    frame = reference()
    low, high = frame["ratio_low"], frame["ratio_high"]
    stated = [a if a == b else f"{a} to {b}" if a else f"up to {b}" for a, b in zip(low, high, strict=True)]
    return pd.DataFrame(
        {
            "claim": frame["claim"],
            "where": frame["source"],
            "mix": frame["mix"].replace("", "all"),
            "data/memory": frame["data_memory_ratio"].map("{}x".format),
            "skew": frame["skew"].replace("", "all"),
            "ratio of": frame["numerator"] + " / " + frame["denominator"],
            "paper": stated,
        }
    )


def headline(table: pd.DataFrame) -> str:
    """Say in one line what was run: run, scale, disk, records, seconds, trials, code."""
    scales, disks = (", ".join(table[name].unique()) for name in ("scale", "disk_profile"))
    return (
        f"run {table['run'].iloc[0]}, scale {scales}, disk {disks}: {_size(table)},"
        f" {_length(table)}, {trials_per_cell(table)},"
        f" code {collect.code_of(table)}"
    )


def trials_per_cell(table: pd.DataFrame) -> str:
    """Say how many trials of each cell were measured, valid or not; from one up where cells differ."""
    measured = table[table["status"].isin(["ok", "invalid"])]["trial"].value_counts()
    if measured.empty:
        return "no trial"
    most = int(measured.index.max()) + 1
    if most == 1:
        return "1 trial per cell"
    return f"{most} trials per cell" if measured.nunique() == 1 else f"1 to {most} trials per cell"


def _length(table: pd.DataFrame) -> str:
    longest_s = table["measured_s"].max()
    return "nothing measured" if pd.isna(longest_s) else f"{longest_s:.3g} s measured"


def _size(table: pd.DataFrame) -> str:
    """Say how much data the benchmarks load at 1x; from the least to the most where cells differ, as tuple sizes do."""
    sizes = {what: (table[what].min(), table[what].max()) for what in ("records", "warehouses")}
    return " and ".join(
        (f"{low:,} to " if low != high else "") + f"{high:,} {what}"
        for what, (low, high) in sizes.items()
        if not pd.isna(high)
    )


def whole_memory(table: pd.DataFrame, ratio: float) -> str:
    """Say how many times all memory TPC-C's loaded rows take at a data/memory ratio, for each budget that a system has.

    All have the same, save for the engine without anti-caching, whose own stands behind it.
    """
    rows = table[(table["benchmark"] == "tpcc") & (table["data_memory_ratio"] == ratio)]
    off = rows["system"] == WITHOUT_EVICTION
    parts = []
    for budgets, suffix in ((rows[~off], ""), (rows[off], " without anti-caching")):
        shares = sorted({f"{share:.1f}x" for share in budgets["stored_bytes"] / budgets["memory_budget_bytes"]})
        parts += [f"{' or '.join(shares)}{suffix}"] if shares else []
    return ", ".join(parts)


def tpcc(table: pd.DataFrame) -> pd.DataFrame:
    """Return what only TPC-C has, one row for each trial that was measured."""
    columns = {
        "system": "system",
        "data_memory_ratio": "data/memory",
        "trial": "trial",
        "status": "status",
        "throughput_txn_s": "txn/s",
        "new_orders_per_minute": "New-Orders per minute",
        "new_order_share": "share of New-Orders",
        "new_order_p50_us": "New-Order p50 (µs)",
        "new_order_p95_us": "p95",
        "new_order_p99_us": "p99",
        "consistency": "consistency",
        "orders_at_end": "orders at the end",
        "data_memory_ratio_end": "data/memory at the end",
        "all_memory_ratio": "data / all memory",
    }
    measured = table[table["status"].isin(["ok", "invalid"]) & (table["benchmark"] == "tpcc")].copy()
    measured["all_memory_ratio"] = measured["stored_bytes"] / measured["memory_budget_bytes"]
    shown = measured[list(columns)].rename(columns=columns)
    return shown.sort_values(["data/memory", "system", "trial"], ignore_index=True)


def steadiness(table: pd.DataFrame) -> pd.DataFrame:
    """Return how steady each trial was, and what evictions did to it (claim C24)."""
    columns = ["benchmark", "system", "trial", "status", "throughput_txn_s", "throughput_variation"]
    columns += ["level_change_s", "level_change_share", "evictions_per_s", "throughput_share_at_evictions"]
    return table[columns].sort_values(["benchmark", "system", "trial"], ignore_index=True)


def condition(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many trials of each system ended how: what the figure stands on."""
    counts = pd.crosstab(table["system"], table["status"])
    counts["flagged"] = table[table["flags"] != ""].groupby("system").size().reindex(counts.index, fill_value=0)
    return counts


def claims(directory: Path) -> pd.DataFrame:
    """Return claims.json of a run as a table; the interval and the note in words."""
    entries = json.loads((directory / "claims.json").read_text(encoding="utf-8"))
    return pd.DataFrame(
        {
            "id": [e["id"] for e in entries],
            "claim": [e["claim"] for e in entries],
            "where": [e["where"] for e in entries],
            "expected": [e["expected"] for e in entries],
            "verdict": [e["verdict"] for e in entries],
            "qualifiers": ["; ".join(e["qualifiers"]) for e in entries],
            "measured": ["" if e["measured"] is None else f"{e['measured']:.3g}" for e in entries],
            INTERVAL: ["" if not e["interval"] else "{:.3g} to {:.3g}".format(*e["interval"]) for e in entries],
            "trials": [len(e["evidence"]) for e in entries],
            "note": [e["note"] for e in entries],
        }
    )


def alternatives(directory: Path) -> pd.DataFrame:
    """Return the other readings that the paper gives of a claim, with their verdicts."""
    entries = json.loads((directory / "claims.json").read_text(encoding="utf-8"))
    rows = [{"id": e["id"], **a} for e in entries for a in e["alternatives"]]
    columns = ["id", "where", "claim", "expected", "verdict", "qualifiers", "measured", "interval"]
    frame = pd.DataFrame(rows, columns=columns).rename(columns={"interval": INTERVAL})
    frame["qualifiers"] = ["; ".join(qualifiers) for qualifiers in frame["qualifiers"]]
    frame["measured"] = ["" if pd.isna(v) else f"{v:.3g}" for v in frame["measured"]]
    frame[INTERVAL] = ["" if not found else "{:.3g} to {:.3g}".format(*found) for found in frame[INTERVAL]]
    return frame
