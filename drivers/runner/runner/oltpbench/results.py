"""Their results as a result of ours: what their summaries, results by window and raw results say, in our units.

What a program does not tell stays empty. Their throughput counts every request, also those that were rolled back;
goodput counts committed ones, and is our throughput where they tell it.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from runner.errors import RunError
from runner.oltpbench import formats
from runner.oltpbench.mapping import OUR_TYPES

NOT_COMMITTED = "not committed"
"""Their requests that did not commit: their summaries do not tell why."""
GOODPUT_UNKNOWN = "goodput_unknown"
"""Flag of a trial whose throughput counts also what was rolled back: a remark."""
COMPLETE = "ok"


@dataclass(frozen=True)
class Files:
    """What a call left; only the summary has to be there."""

    summary: Path
    windows: Path | None = None
    raw: Path | None = None

    def present(self) -> list[Path]:
        """Return those that there are."""
        return [path for path in (self.summary, self.windows, self.raw) if path is not None]


@dataclass(frozen=True)
class Measured:
    """One trial of theirs, as far as they tell it."""

    throughput_txn_s: float
    committed: int
    not_committed: int
    measured_s: float
    latency_us: dict[str, float] = field(default_factory=dict)
    """By the names of ours: mean, p50, p95, p99, p999, max."""
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: bool = False
    flags: tuple[str, ...] = ()
    version: str = ""
    """Of the DBMS."""
    seconds: tuple[int, ...] = ()
    """Requests of each second, where nothing was rolled back and windows were of a second."""

    def result(self, program: str) -> dict[str, Any]:
        """Return it as ``result.json`` has it."""
        status, reason = COMPLETE, ""
        flags = list(self.flags)
        if self.failed:
            status, reason = "failed", f"{program} ended in an error, its summary says"
        elif self.committed == 0:
            status, reason = "invalid", "no transaction committed in the measured interval"
            flags.append("nothing_committed")
        return {
            "format": 1,
            "status": status,
            "reason": reason,
            "flags": flags,
            "throughput_txn_s": self.throughput_txn_s,
            "committed": self.committed,
            "aborted": {NOT_COMMITTED: self.not_committed} if self.not_committed else {},
            "measured_s": self.measured_s,
            "latency_us": self.latency_us,
            "latency_us_by_type": self.by_type,
            "versions": {"dbms": self.version} if self.version else {},
        }


# -- BenchBase ------------------------------------------------------------------------------------------------


def of_benchbase(files: Files, benchmark: str, *, warmed_up: bool = False) -> Measured:
    """Read BenchBase's results; raises RunError with file and key for what is missing or malformed.

    Its goodput counts what committed during the warm-up as well, and divides by the measured time alone
    (cmu-db/benchbase#606): after a warm-up, or where it exceeds the throughput, it is not known.
    """
    summary = _json(files.summary)
    latency = _Object(files.summary, summary).object(formats.LATENCY_DISTRIBUTION)
    top = _Object(files.summary, summary)
    requests = top.optional(formats.MEASURED_REQUESTS)
    elapsed_ns = top.optional(formats.ELAPSED_NS)
    throughput = top.number(formats.THROUGHPUT)
    goodput = top.optional(formats.GOODPUT)
    if warmed_up or (goodput is not None and goodput > throughput):
        goodput = None
    # The earliest versions tell rates alone; their raw results count the requests.
    raw = _raw(files.raw) if files.raw is not None else None
    if requests is None:
        requests = float(len(raw)) if raw is not None else 0.0
    measured_s = elapsed_ns / 1e9 if elapsed_ns is not None else (requests / throughput if throughput else 0.0)
    committed = round(goodput * measured_s) if goodput is not None else round(requests)
    not_committed = max(0, round(requests) - committed)
    found = {
        "mean": latency.number("Average Latency (microseconds)"),
        "p50": latency.number("Median Latency (microseconds)"),
        "p95": latency.number("95th Percentile Latency (microseconds)"),
        "p99": latency.number("99th Percentile Latency (microseconds)"),
        "max": latency.number("Maximum Latency (microseconds)"),
    }
    return Measured(
        throughput_txn_s=goodput if goodput is not None else throughput,
        committed=committed,
        not_committed=not_committed,
        measured_s=measured_s,
        latency_us=_with_raw(found, raw),
        by_type=_by_type(raw, benchmark),
        failed=summary.get(formats.FINAL_STATE) == formats.STATE_ERROR,
        flags=() if goodput is not None else (GOODPUT_UNKNOWN,),
        version=str(summary.get(formats.DBMS_VERSION) or ""),
        seconds=() if not_committed or files.windows is None else _seconds(files.windows, formats.RESULTS_HEAD),
    )


# -- OLTP-Bench -----------------------------------------------------------------------------------------------


def of_oltpbench(files: Files, benchmark: str, *, warmed_up: bool = False) -> Measured:
    """Read OLTP-Bench's results; raises RunError as `of_benchbase`.

    Later versions wrote a summary like BenchBase's. In the older one ``throughput_req_per_sec`` is not used: some
    versions divide requests by the interval there, others do not; the raw results are counted instead.
    """
    summary = _json(files.summary)
    if formats.LATENCY_DISTRIBUTION in summary:
        return of_benchbase(files, benchmark, warmed_up=warmed_up)
    top = _Object(files.summary, summary)
    measured_s = top.number("time_sec")
    if files.raw is None:
        raise RunError(f"{files.summary.with_suffix('.raw')} is missing: its requests are counted there")
    raw = _raw(files.raw)
    found = {
        name: 1e6 * top.number(f"{short}_lat_sec")
        for name, short in (("mean", "avg"), ("p50", "median"), ("p95", "95th"), ("p99", "99th"), ("max", "max"))
    }
    return Measured(
        throughput_txn_s=len(raw) / measured_s if measured_s > 0 else 0.0,
        committed=len(raw),
        not_committed=0,
        measured_s=measured_s,
        latency_us=_with_raw(found, raw),
        by_type={},  # numbers without names: which is which stands in the configuration alone
        flags=(GOODPUT_UNKNOWN,),
        version=str(summary.get("dbms_version") or ""),
        seconds=() if files.windows is None else _seconds(files.windows, formats.OLD_RESULTS_HEAD),
    )


# -- H-Store --------------------------------------------------------------------------------------------------

_ANT = re.compile(r"^\s*\[\w+\]\s?", re.MULTILINE)
_REPORT = re.compile(r"<json>(.*?)</json>", re.DOTALL)


def of_hstore(output: Path) -> Measured:
    """Read the JSON report in what H-Store's benchmark printed (``client.output_json``); raises RunError."""
    try:
        text = _ANT.sub("", output.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise RunError(f"{output}: cannot be read: {error.strerror}") from None
    reports = _REPORT.findall(text)
    if not reports:
        raise RunError(f"{output}: no report between <json> and </json>: the benchmark did not come to its end")
    try:
        report = json.loads(reports[-1])
    except ValueError as error:
        raise RunError(f"{output}: the report between <json> and </json> is no JSON: {error}") from None
    if not isinstance(report, dict):
        raise RunError(f"{output}: the report between <json> and </json> is no object")
    # Names of fields in capitals; versions differ in the order of their parts.
    top = _Object(output, {str(key).upper(): value for key, value in report.items()})
    count = top.any_of("TXNTOTALCOUNT", "TOTALTXNCOUNT", "TXNCOUNT")
    rate = top.any_of("TXNTOTALPERSECOND", "TOTALTXNPERSECOND", "TXNPERSECOND")
    duration_ms = top.number("DURATION")
    latency = {
        name: 1e3 * value
        for name, key in (("mean", "TOTALAVGLATENCY"), ("max", "TOTALMAXLATENCY"))
        if (value := top.optional(key)) is not None
    }
    return Measured(rate, round(count), 0, duration_ms / 1e3, latency, flags=(GOODPUT_UNKNOWN,))


# -- parts ----------------------------------------------------------------------------------------------------


class _Object:
    """A JSON object of a file, whose values are asked for by name."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path, self._values = path, values

    def object(self, key: str) -> _Object:
        found = self._values.get(key)
        if not isinstance(found, dict):
            raise RunError(f"{self._path}: {key!r} is {'missing' if found is None else 'no object'}")
        return _Object(self._path, found)

    def number(self, key: str) -> float:
        """Return a finite number of at least 0."""
        found = self._values.get(key)
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found) and found >= 0:
            return float(found)
        raise RunError(f"{self._path}: {key!r} is {'missing' if found is None else f'{found!r}, no amount'}")

    def optional(self, key: str) -> float | None:
        """Return the same, None where it is missing."""
        return None if self._values.get(key) is None else self.number(key)

    def any_of(self, *keys: str) -> float:
        """Return the number under the first of several names that there is."""
        present = [key for key in keys if key in self._values]
        return self.number(present[0] if present else keys[0])


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise RunError(f"{path}: no JSON object")
    return found


def _seconds(path: Path, head: tuple[str, ...]) -> tuple[int, ...]:
    """Return the requests of each window of a second; raises RunError for another file, or other windows."""
    rows = list(_rows(path, head))
    if any(int(float(row[0])) != second for second, row in enumerate(rows)):
        raise RunError(f"{path}: its windows are not of one second")
    return tuple(round(float(row[1])) for row in rows)


def _rows(path: Path, head: tuple[str, ...]) -> Iterator[list[str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            names = tuple(name.strip() for name in next(lines, []))
            wanted = tuple(name.strip() for name in head)
            if names[: len(wanted)] != wanted and names != wanted[:-1]:  # the oldest have no last column
                raise RunError(f"{path}: its first line is not that of results: {', '.join(names)!r}")
            for number, row in enumerate(lines, start=2):
                if len(row) < len(wanted) - 1 or not all(_is_number(value) for value in row):
                    raise RunError(f"{path}:{number}: not a line of results: {','.join(row)!r}")
                yield row
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _raw(path: Path) -> pd.DataFrame:
    """Read raw results of either generation into the columns ``kind``, ``name`` and ``latency_us``."""
    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    names = tuple(str(name) for name in table.columns)
    new = names == formats.RAW_HEAD
    if not new and names != tuple(name.strip() for name in formats.OLD_RAW_HEAD):
        raise RunError(f"{path}: its first line is not that of raw results: {', '.join(names)!r}")
    latency = pd.to_numeric(table[names[3] if new else names[2]], errors="coerce")
    if latency.isna().any() or (latency < 0).any():
        wrong = int(latency.isna().to_numpy().argmax()) + 2
        raise RunError(f"{path}:{wrong}: not a line of raw results")
    kinds = table[names[1]].astype(str) if new else pd.Series("", index=table.index)
    return pd.DataFrame({"name": kinds, "latency_us": latency})


def _percentiles(latencies_us: np.ndarray) -> dict[str, float]:
    ordered = np.sort(latencies_us)
    count = len(ordered)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    found = {name: float(ordered[min(int(share * count), count - 1)]) for name, share in shares.items()}
    return {**found, "mean": float(ordered.mean()), "max": float(ordered[-1])}


def _with_raw(found: dict[str, float], raw: pd.DataFrame | None) -> dict[str, float]:
    """Add what only raw results tell."""
    if raw is None or raw.empty:
        return found
    return {**found, "p999": _percentiles(raw["latency_us"].to_numpy())["p999"]}


def _by_type(raw: pd.DataFrame | None, benchmark: str) -> dict[str, dict[str, float]]:
    if raw is None:
        return {}
    ours = {theirs: name for name, theirs in OUR_TYPES[benchmark].items()}
    return {
        ours[str(name)]: _percentiles(rows["latency_us"].to_numpy())
        for name, rows in raw.groupby("name")
        if str(name) in ours
    }
