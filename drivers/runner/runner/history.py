"""What earlier trials took: seconds by phase, bytes on the node, as far as they tell something about coming ones.

Earlier trials are those of one machine (`Key.machine`), scale and disk, in own runs and in published copies, whatever
code measured them: this is for planning, nothing is compared. Trials of the same cell say most; then those of the same
experiment, system and data/memory ratio; then those of the benchmark there; then those of benchmark and system.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from runner.errors import InputError
from runner.store import Run, is_foreign

LOW, HIGH = 0.1, 0.9
"""Shares of the earlier trials that were shorter than the ends of a range."""
DEPLOYING = ("stop", "deploy", "load", "prewarm")
"""Phases that the first trial of a start records, beside ``keep``: loading MySQL's data set where none is kept."""
FOLDERS = ("runs", "published", "unfinished")
"""Of the results: where runs lie."""


@dataclass(frozen=True)
class Range:
    """Seconds: a usual value, and between what most of the earlier ones were."""

    low: float = 0.0
    usual: float = 0.0
    high: float = 0.0

    def __add__(self, other: Range) -> Range:
        """Add the ends too: what is slower than usual on a day is so for all trials of that day."""
        return Range(self.low + other.low, self.usual + other.usual, self.high + other.high)

    def times(self, factor: float) -> Range:
        """Multiply."""
        return Range(self.low * factor, self.usual * factor, self.high * factor)


def exactly(value: float) -> Range:
    """Return a value without a spread: a constant, or a time that is set."""
    return Range(value, value, value)


def range_of(values: list[float]) -> Range:
    """Return median and tenths of what was seen (interpolated; of two values nearly both of them)."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return Range(at(LOW), at(0.5), at(HIGH))


Sorts = tuple[Hashable, ...]
"""Descriptions of a trial, the narrowest first: what was seen under the first one that was seen at all counts."""


@dataclass
class History:
    """What was seen; empty where nothing was."""

    seconds: dict[Hashable, list[float]] = field(default_factory=lambda: defaultdict(list))
    most_bytes: dict[Hashable, int] = field(default_factory=dict)
    result_bytes: list[int] = field(default_factory=list)
    """What single trials take in a run directory."""
    trials: int = 0
    runs: int = 0

    def look_up(self, phase: str, sorts: Sorts) -> Range | None:
        """Return how long a phase took for the narrowest sort that was seen, None where none was."""
        for sort in sorts:
            if seen := self.seconds.get((phase, sort)):
                return range_of(seen)
        return None

    def bytes_of(self, what: str, sorts: Sorts) -> int | None:
        """Return the most that was seen of the narrowest sort."""
        return next((self.most_bytes[what, sort] for sort in sorts if (what, sort) in self.most_bytes), None)

    def add(self, trial: Mapping[str, Any], deployment: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Add a recorded trial, as plan.json and environment.json have it."""
        took_s, duration_s = environment.get("took_s", {}), _duration_s(environment)
        if duration_s is None:
            return
        self.trials += 1
        sorts = sorts_of(trial["experiment"], trial["cell"], deployment)
        set_s = trial["spec"]["warmup_s"] + trial["spec"]["measure_s"]
        if any(name in took_s for name in DEPLOYING):
            took_s = {**took_s, "deployment": sum(took_s.get(name, 0.0) for name in DEPLOYING)}
        # Beside what is set: writing what was put off, connecting, draining, checks, recording.
        beside_s = took_s.get("quiesce", 0.0) + max(0.0, duration_s - set_s)
        for phase, seconds in (*took_s.items(), ("beside", beside_s)):
            for sort in sorts_of_data(deployment) if phase == "keep" else sorts:
                self.seconds[phase, sort].append(float(seconds))
        for what, size_bytes in environment.get("node_bytes", {}).items():
            for sort in sorts_of_data(deployment) if what == "dataset" else sorts:
                self.most_bytes[what, sort] = max(self.most_bytes.get((what, sort), 0), int(size_bytes))


def sorts_of_data(deployment: Mapping[str, Any]) -> Sorts:
    """Describe a deployment's data set in two ways, the narrower first."""
    return (
        ("data set", deployment["dataset"]),
        ("data set", deployment["benchmark"], float(deployment["data_memory_ratio"] or 0)),
    )


def sorts_of(experiment: str, cell: Mapping[str, Any], deployment: Mapping[str, Any]) -> Sorts:
    """Describe a trial by its cell, and in three wider ways that do not depend on the cell within a deployment."""
    benchmark, system = deployment["benchmark"], deployment["system"]
    ratio = float(deployment["data_memory_ratio"] or 0)
    return (
        (experiment, *sorted((name, str(value)) for name, value in cell.items())),
        (experiment, benchmark, system, ratio),
        (benchmark, system, ratio),
        (benchmark, system),
    )


def _duration_s(environment: Mapping[str, Any]) -> float | None:
    try:
        began, ended = (datetime.fromisoformat(environment[name]) for name in ("started_at", "ended_at"))
    except (KeyError, ValueError):
        return None
    return (ended - began).total_seconds()


def of_results(places: Iterable[Path], *, machine: str, scale: str, disk: str) -> History:
    """Read the measured trials of every run below some directories of results that ran under these conditions."""
    history = History()
    seen: set[tuple[str, str]] = set()  # a published copy and its run hold the same trials
    for run in _runs(places):
        if (run.key.machine, run.key.scale, run.key.disk) != (machine, scale, disk):
            continue
        before, recorded = history.trials, run.recorded()
        for trial in run.trials:
            # One that failed says nothing: it may have ended at any time.
            if trial["hash"] in recorded and recorded[trial["hash"]].status != "failed":
                _add(history, run, trial, seen)
        history.runs += history.trials > before
    return history


def _runs(places: Iterable[Path]) -> Iterator[Run]:
    parents = dict.fromkeys((place / folder).resolve() for place in places for folder in FOLDERS)
    for parent in parents:
        for path in sorted(parent.glob("[!.]*")):
            try:
                yield Run(path)
            except InputError:
                continue


def _add(history: History, run: Run, trial: dict[str, Any], seen: set[tuple[str, str]]) -> None:
    environment = run.environment(trial["hash"])
    name = (trial["hash"], str(environment.get("ended_at", "")))
    if name in seen or not environment or is_foreign(run.plan, trial):
        return
    seen.add(name)
    history.add(trial, run.plan["deployments"][trial["deployment"]], environment)
    if not run.published:
        place = run.trial_path(trial["hash"])
        history.result_bytes.append(sum(512 * path.stat().st_blocks for path in place.iterdir()))
