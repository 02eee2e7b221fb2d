"""Their files of results, names and units as theirs: summaries, results by window, samples, raw results.

BenchBase: ``<benchmark>_<time>.summary.json``, ``.results.csv``, ``.results.<Transaction>.csv``, ``.samples.csv``,
``.raw.csv``. OLTP-Bench: ``<name>.summary``, ``.res``, ``.raw``. Raw results give the start in *seconds* since 1970
with six decimals, whatever their head says, and so do ours.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from typing import Any

import numpy as np

PERCENTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Of a distribution: minimum, the percentiles that they print, maximum."""
NAMES = (
    *("Minimum", "25th Percentile", "Median", "75th Percentile"),
    *("90th Percentile", "95th Percentile", "99th Percentile", "Maximum"),
)
SUMMARY_ORDER = ("Minimum", "25th Percentile", "Median", "Average", *NAMES[3:])

RESULTS_HEAD = (
    "Time (seconds)",
    "Throughput (requests/second)",
    *(f"{name} Latency (millisecond)" for name in ("Average", *NAMES)),
    "tp (req/s) scaled",
)
SAMPLES_HEAD = (
    "Time (seconds)",
    "Requests",
    "Throughput (requests/second)",
    *(f"{name} Latency (microseconds)" for name in SUMMARY_ORDER),
)
RAW_HEAD = (
    "Transaction Type Index",
    "Transaction Name",
    "Start Time (microseconds)",
    "Latency (microseconds)",
    "Worker Id (start number)",
    "Phase Id (index in config file)",
)
OLD_SHORT = ("avg", "min", "25th", "median", "75th", "90th", "95th", "99th", "max")
OLD_RESULTS_HEAD = (
    "time(sec)",
    " throughput(req/sec)",
    *(f" {name}_lat(ms)" for name in OLD_SHORT),
    " tp (req/s) scaled",
)
OLD_RAW_HEAD = (
    "transaction type (index in config file)",
    " start time (microseconds)",
    "latency (microseconds)",
    "worker id(start number)",
    " phase id(index in config file)",
)

START_MS = "Start timestamp (milliseconds)"
CURRENT_MS = "Current Timestamp (milliseconds)"
ELAPSED_NS = "Elapsed Time (nanoseconds)"
DBMS_TYPE, DBMS_VERSION, BENCHMARK_TYPE = "DBMS Type", "DBMS Version", "Benchmark Type"
FINAL_STATE, MEASURED_REQUESTS = "Final State", "Measured Requests"
LATENCY_DISTRIBUTION = "Latency Distribution"
THROUGHPUT, GOODPUT = "Throughput (requests/second)", "Goodput (requests/second)"
STATE_ENDED, STATE_ERROR = "EXIT", "ERROR"
"""Final states: all terminals have ended; a terminal failed."""


@dataclass(frozen=True)
class Distribution:
    """Latencies in microseconds; without any, their -1 for every figure."""

    count: int
    average: float
    deviation: float
    percentiles: tuple[float, ...]

    @staticmethod
    def of(latencies_us: np.ndarray) -> Distribution:
        """Summarise latencies: the value at index share times count, rounded down, of the sorted ones, as they do."""
        count = len(latencies_us)
        if count == 0:
            return Distribution(0, -1.0, -1.0, (-1.0,) * len(PERCENTILES))
        ordered = np.sort(latencies_us)
        places = [min(int(share * count), count - 1) for share in PERCENTILES]
        deviation = float(ordered.std(ddof=1)) if count > 1 else 0.0
        return Distribution(count, float(ordered.mean()), deviation, tuple(float(ordered[p]) for p in places))

    def named(self) -> dict[str, float]:
        """Return the figures by their names, in the order of a summary."""
        found = dict(zip(NAMES, self.percentiles, strict=True)) | {"Average": self.average}
        return {name: found[name] for name in SUMMARY_ORDER}


@dataclass(frozen=True)
class Raw:
    """Single transactions in the order of their start."""

    start_us: np.ndarray
    """From the beginning of the measured interval."""
    latency_us: np.ndarray
    kind: np.ndarray
    """Their number of the type."""
    terminal: np.ndarray

    def of_kind(self, number: int) -> Raw:
        """Return those of one type."""
        chosen = self.kind == number
        return Raw(self.start_us[chosen], self.latency_us[chosen], self.kind[chosen], self.terminal[chosen])

    def windows(self, window_s: int, seconds: int) -> list[Distribution]:
        """Return the latencies of each window of so many seconds, by when transactions began."""
        places = np.maximum(self.start_us, 0) // (window_s * 1_000_000)
        edges = np.searchsorted(places, np.arange(-(-seconds // window_s) + 1))
        return [Distribution.of(self.latency_us[a:b]) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Totals:
    """What both kinds of summary tell of a trial."""

    began_ms: int
    ended_ms: int
    elapsed_s: float
    dbms: str
    dbms_version: str
    benchmark: str
    failed: bool
    requests: int
    """Committed and aborted."""
    committed: int
    isolation: str
    scale_factor: str
    terminals: int
    latency_us: Distribution


def summary(totals: Totals) -> dict[str, Any]:
    """Return BenchBase's ``summary.json``."""
    per_second = 1 / totals.elapsed_s if totals.elapsed_s > 0 else 0.0
    return {
        START_MS: totals.began_ms,
        CURRENT_MS: totals.ended_ms,
        ELAPSED_NS: round(totals.elapsed_s * 1e9),
        DBMS_TYPE: totals.dbms,
        DBMS_VERSION: totals.dbms_version,
        BENCHMARK_TYPE: totals.benchmark,
        FINAL_STATE: STATE_ERROR if totals.failed else STATE_ENDED,
        MEASURED_REQUESTS: totals.requests,
        "isolation": totals.isolation,
        "scalefactor": totals.scale_factor,
        "terminals": str(totals.terminals),
        LATENCY_DISTRIBUTION: {
            f"{name} Latency (microseconds)": int(value) for name, value in totals.latency_us.named().items()
        },
        THROUGHPUT: totals.requests * per_second,
        GOODPUT: totals.committed * per_second,
    }


def old_summary(totals: Totals, system: tuple[str, str]) -> dict[str, Any]:
    """Return OLTP-Bench's ``.summary``; `system` is the operating system's name and the architecture."""
    found = totals.latency_us.named()
    names = {"avg": "Average", "min": "Minimum", "median": "Median", "max": "Maximum"}
    latencies = {f"{short}_lat_sec": found[names.get(short, f"{short} Percentile")] / 1e6 for short in OLD_SHORT}
    return {
        "timestamp_utc_sec": totals.ended_ms // 1000,
        "dbms": totals.dbms.lower(),
        "dbms_version": totals.dbms_version,
        "os_name": system[0],
        "architecture": system[1],
        "database": "anticache_eval",
        "isolation_level": totals.isolation,
        "benchmark": totals.benchmark,
        "scalefactor": totals.scale_factor,
        "terminals": str(totals.terminals),
        "time_sec": totals.elapsed_s,
        "throughput_req_per_sec": totals.requests / totals.elapsed_s if totals.elapsed_s > 0 else 0.0,
        **latencies,
        "stdev_lat_sec": totals.latency_us.deviation / 1e6,
    }


def results(windows: Iterable[Distribution], window_s: int, head: tuple[str, ...] = RESULTS_HEAD) -> str:
    """Return ``results.csv``, or with the old head ``.res``: latencies in milliseconds."""

    def row(index: int, found: Distribution) -> list[str]:
        figures = [found.count / window_s, *(us / 1e3 for us in (found.average, *found.percentiles))]
        return [str(index * window_s), *(f"{figure:.3f}" for figure in (*figures, 1e3 / found.average))]

    return _csv(head, (row(index, found) for index, found in enumerate(windows)))


def samples(windows: Iterable[Distribution]) -> str:
    """Return ``samples.csv``: a line for each second, latencies in whole microseconds."""
    return _csv(
        SAMPLES_HEAD,
        (
            [str(second), str(found.count), f"{found.count:.3f}", *(str(int(us)) for us in found.named().values())]
            for second, found in enumerate(windows)
        ),
    )


def raw(found: Raw, names: dict[int, str], began_us: int, *, old: bool = False) -> Iterator[str]:
    """Return the lines of ``raw.csv``, or of the old ``.raw``: one for each transaction."""
    yield ",".join(OLD_RAW_HEAD if old else RAW_HEAD) + "\n"
    columns = (found.kind, found.start_us, found.latency_us, found.terminal)
    for kind, start_us, latency_us, terminal in zip(*(column.tolist() for column in columns), strict=True):
        second, microsecond = divmod(began_us + start_us, 1_000_000)
        rest = f"{second}.{microsecond:06d},{latency_us},{terminal}"
        # The older generation counts phases from 0.
        yield f"{kind},{rest},0\n" if old else f"{kind},{names[kind]},{rest},1\n"


def _csv(head: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
