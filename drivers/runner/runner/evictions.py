"""How steady a trial was, and what evictions did to it (paper §5.6), from what loadgen wrote second by second."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.files import read_json

EVICTION = "eviction"
"""Kind of the events that count: each is one eviction, of one or several blocks."""
TENTHS_PER_S = 10


@dataclass(frozen=True)
class Course:
    """The measured interval of a trial."""

    seconds: np.ndarray
    """Committed transactions of each whole second."""
    tenths: np.ndarray
    """Committed transactions of each whole tenth of a second; empty where loadgen wrote none."""
    evictions_s: np.ndarray | None
    """When evictions ended, in seconds from the start of the interval; None where the system records none."""
    complete: bool = True
    """Whether no event was lost before it could be read."""

    def metrics(self, measured_s: float) -> dict[str, float | None]:
        """Return the columns of the table; None where a figure cannot be told."""
        found: dict[str, float | None] = {
            "throughput_variation": _variation(self.seconds),
            "evictions_per_s": None,
            "throughput_share_at_evictions": None,
        }
        if self.evictions_s is not None and self.complete and measured_s > 0:
            found["evictions_per_s"] = len(self.evictions_s) / measured_s
            found["throughput_share_at_evictions"] = _share_at(self.evictions_s, self.tenths)
        return found


def read(directory: Path, measured_s: float) -> Course:
    """Read a trial's files; one that is missing or cut off counts as far as it goes."""
    events = directory / "events.csv"
    evictions_s = None
    if events.is_file():
        ends = [float(row["second"]) for row in _rows(events) if row.get("kind") == EVICTION]
        evictions_s = np.array([s for s in ends if 0 <= s < measured_s])
    return Course(
        _counts(directory / "timeline.csv", "second", measured_s),
        _counts(directory / "tenths.csv", "tenth", measured_s * TENTHS_PER_S),
        evictions_s,
        _complete(directory / "result.json"),
    )


def _complete(path: Path) -> bool:
    """Tell whether loadgen read all events: figures of a part of them would look like those of a calmer system."""
    try:
        events = read_json(path).get("events", {})
    except (OSError, ValueError):
        return True
    return not events.get("lost") and not events.get("problem")


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [row for row in csv.DictReader(file) if all(row.values())]  # a line that is cut off lacks some
    except (OSError, ValueError):
        return []


def _counts(path: Path, unit: str, length: float) -> np.ndarray:
    """Return the commits of every whole interval of the measured ones."""
    last = math.floor(length + 1e-9) - 1
    return np.array([float(row["committed"]) for row in _rows(path) if 0 <= int(row[unit]) <= last])


def _variation(counts: np.ndarray) -> float | None:
    """Return the coefficient of variation; None with fewer than two intervals, or without a commit."""
    if len(counts) < 2 or not counts.any():  # noqa: PLR2004 - one interval does not vary
        return None
    return float(counts.std(ddof=1) / counts.mean())


def _share_at(evictions_s: np.ndarray, tenths: np.ndarray) -> float | None:
    """Divide the throughput that an eviction meets by that which a transaction meets; None without an eviction.

    Both are means over tenths of a second of their throughput, one weighted with their evictions, the other with their
    transactions. Evictions follow from transactions: were they without effect, they would be spread like these, and the
    share would be 1. Below 1 the tenths with evictions, or with more of them, are slower. To compare tenths with an
    eviction with those without would need both kinds, and would favour the former: the busier a tenth, the more
    likely that a block fills up in it.
    """
    places = (evictions_s * TENTHS_PER_S).astype(int)
    counts = np.bincount(places[places < len(tenths)], minlength=len(tenths))
    if not counts.any() or not tenths.any():
        return None
    return float(np.average(tenths, weights=counts) / np.average(tenths, weights=tenths))
