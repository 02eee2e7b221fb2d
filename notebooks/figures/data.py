"""From the table of trials to what a figure shows: one point per cell, with its interval over trials."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from runner import collect, stats, store
from runner.errors import InputError
from runner.sample import THROUGHPUT, sample

RUN_VARIABLE = "ANTICACHE_EVAL_RUN"
ROOT = Path(__file__).resolve().parents[2]


class NoRunError(Exception):
    """There is no run whose results could be shown."""


def run_directory() -> Path:
    """Return the run to show: ANTICACHE_EVAL_RUN if set, else ``latest`` in RESULTS (``results/`` if unset).

    Where there is no latest run it is the published one; each figure names its run, and says so.
    """
    if named := os.environ.get(RUN_VARIABLE):
        path = Path(named)
    else:
        results = Path(os.environ.get("RESULTS") or ROOT / "results")
        try:
            path = store.to_show(results, "latest", ROOT / "results" / "published").path
        except InputError as error:
            raise NoRunError(str(error)) from None
    if not any((path / name).is_file() for name in ("trials.parquet", "trials.csv")):
        raise NoRunError(f"{path} has no trials.parquet: run `make smoke`, or `make figures` for a run that exists")
    return path.resolve()


def run_name(directory: Path) -> str:
    """Return how the run of a directory is called."""
    return store.Run(directory).name


def trials(experiment: str, directory: Path | None = None) -> pd.DataFrame:
    """Return the trials of one experiment, one row each; raises NoRunError when the run has none."""
    directory = directory or run_directory()
    table = all_trials(directory)
    chosen = table[table["experiment"] == experiment].reset_index(drop=True)
    if chosen.empty:
        raise NoRunError(f"{directory} has no trials of {experiment}")
    return chosen


def all_trials(directory: Path) -> pd.DataFrame:
    """Return the trials of every experiment of a run."""
    file = next(path for name in collect.FILES if (path := directory / name).is_file())
    return _read(directory, file.stat().st_mtime_ns).copy()


@functools.lru_cache(maxsize=2)
def _read(directory: Path, _written_ns: int) -> pd.DataFrame:
    """Read a run's table once, with its texts as plain objects.

    A figure takes the rows of hundreds of cells from it, and taking them from fifty columns of Arrow's texts takes
    milliseconds each time.
    """
    return collect.read(directory).astype(dict.fromkeys(collect.TEXTS, object))


@dataclass(frozen=True)
class Point:
    """One cell: `estimate`, of `values`, is None where no trial can be used; `flagged` where one carries a mark."""

    at: float
    """Where it stands on the x axis: the skew, or the data/memory ratio."""
    values: tuple[float, ...]
    estimate: stats.Estimate | None
    flagged: bool
    lower_bound: bool
    trouble: str
    machines: frozenset[str] = frozenset()
    """The hardware that measured it."""


def point(cell: pd.DataFrame, at: float, metric: str = THROUGHPUT) -> Point:
    """Summarise the trials of a cell: those that the claims use as well."""
    found = sample(cell, metric)
    used = set(found.hashes)
    flags = [flags for trial, flags in zip(cell["trial_hash"], cell["flags"], strict=True) if trial in used]
    return Point(
        at,
        tuple(found.values),
        stats.mean(found.values) if found.values else None,
        flagged=any(flags),
        lower_bound=found.lower_bound,
        trouble=found.missing,
        machines=found.machines,
    )


def by_ratio(table: pd.DataFrame, system: str) -> list[Point]:
    """Return a system's points over the data/memory ratio, rising; empty where none is planned."""
    rows = table[table["system"] == system]
    ratios = sorted(float(ratio) for ratio in rows["data_memory_ratio"].unique())
    return [point(rows[rows["data_memory_ratio"] == ratio], ratio) for ratio in ratios]


def series(table: pd.DataFrame, system: str, mix: str, data_memory_ratio: float) -> list[Point]:
    """Return the points of one line of a panel, from the highest skew to the lowest; empty where none is planned."""
    rows = table[
        (table["system"] == system) & (table["mix"] == mix) & (table["data_memory_ratio"] == data_memory_ratio)
    ]
    skews = sorted((float(s) for s in rows["skew"].unique()), reverse=True)
    return [point(rows[rows["skew"] == skew], skew) for skew in skews]
