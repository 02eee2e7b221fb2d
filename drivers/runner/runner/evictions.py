"""How steady a trial was, and what evictions did to it (paper §5.6), from what loadgen wrote second by second."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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

    def metrics(self, measured_s: float) -> dict[str, float | None]:
        """Return the columns of the table; None where a figure cannot be told."""
        found: dict[str, float | None] = {
            "throughput_variation": _variation(self.seconds),
            "evictions_per_s": None,
            "throughput_share_at_evictions": None,
        }
        if self.evictions_s is not None and measured_s > 0:
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
    )


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
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
    """Divide the mean throughput of the tenths in which an eviction ended by that of the others.

    None where there is no eviction, or one in every tenth.
    """
    hit = np.zeros(len(tenths), dtype=bool)
    places = (evictions_s * TENTHS_PER_S).astype(int)
    hit[places[places < len(tenths)]] = True
    if not hit.any() or hit.all() or not tenths[~hit].any():
        return None
    return float(tenths[hit].mean() / tenths[~hit].mean())
