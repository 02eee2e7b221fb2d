"""Our trials in their files, beside our own: ``trials/<hash>/benchbase/`` or ``trials/<hash>/oltpbench/``.

A summary can be made of every measured trial. What needs single transactions (results by window, samples, raw results)
is there where the trial recorded them: `record_transactions` of its workload.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from hdrh.histogram import HdrHistogram

from runner.errors import InputError, RunError
from runner.files import read_json, write_text
from runner.oltpbench import formats, kept
from runner.oltpbench.formats import Distribution, Raw, Totals
from runner.oltpbench.mapping import OUR_TYPES, SERIALIZABLE, YCSB_TYPES, Settings
from runner.store import Run, is_foreign

Generation = Literal["benchbase", "oltpbench"]
GENERATIONS: tuple[Generation, ...] = ("benchbase", "oltpbench")
TRANSACTIONS = "transactions.csv"
NUMBERS = {"ycsb": YCSB_TYPES, "tpcc": tuple(OUR_TYPES["tpcc"].values())}
"""Their transaction types in the order of their sample configurations, which numbers them from 1."""


@dataclass(frozen=True)
class Exported:
    """What was written of one trial; `lacking` says why some of it was not."""

    directory: Path
    files: tuple[str, ...]
    lacking: str


@dataclass(frozen=True)
class _Trial:
    """What is written of a trial."""

    totals: Totals
    single: Raw | None
    names: dict[int, str]
    """Their names of types by number."""
    began_us: int
    window_s: int

    @property
    def seconds(self) -> int:
        return max(1, math.ceil(self.totals.elapsed_s))


def export(run: Run, generation: Generation, window_s: int) -> list[Exported]:
    """Write the files of every measured trial of YCSB and TPC-C; raises InputError when there is none."""
    recorded = run.recorded()
    done = [
        _export(run, trial, generation, window_s)
        for trial in run.trials
        if trial["spec"]["benchmark"] in NUMBERS
        and not is_foreign(run.plan, trial)
        and trial["hash"] in recorded
        and recorded[trial["hash"]].status in ("ok", "invalid")
    ]
    if not done:
        raise InputError(f"{run.path} has no measured trial of {' or '.join(NUMBERS)}: nothing to export")
    return done


def _export(run: Run, trial: dict[str, Any], generation: Generation, window_s: int) -> Exported:
    directory = run.trial_path(trial["hash"])
    result = read_json(directory / "result.json")
    numbers = _numbers(run, trial)
    single, lacking = _single(directory, result, trial, numbers)
    totals = _totals(run, trial, result, _latencies(directory, single))
    target = directory / generation
    target.mkdir(exist_ok=True)
    names = {number: OUR_TYPES[totals.benchmark][ours] for ours, number in numbers.items()}
    whole = _Trial(totals, single, names, result.get("transactions", {}).get("interval_began_us", 0), window_s)
    write = _benchbase if generation == "benchbase" else _oltpbench
    return Exported(target, tuple(write(target, whole)), lacking)


def _numbers(run: Run, trial: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of our types of transactions: those of the configuration that was run, or the usual ones."""
    benchmark = trial["spec"]["benchmark"]
    usual = {name: number for number, name in enumerate(NUMBERS[benchmark], start=1)}
    record = kept.records(run).get(trial["experiment"])
    theirs = {**usual, **(Settings.of(record).types if record else {})}
    return {ours: theirs[name] for ours, name in OUR_TYPES[benchmark].items()}


def _single(
    directory: Path, result: dict[str, Any], trial: dict[str, Any], numbers: dict[str, int]
) -> tuple[Raw | None, str]:
    """Read the single transactions; None, with the reason, where there are none or not all."""
    if not (directory / TRANSACTIONS).is_file():
        return None, "no single transactions recorded: record_transactions"
    if lost := result.get("transactions", {}).get("lost"):
        asked = trial["spec"].get("record_transactions")
        return None, f"{lost} transactions beyond record_transactions {asked} were not recorded"
    try:
        table = pd.read_csv(directory / TRANSACTIONS, dtype={"type": "category", "outcome": "category"})
        kinds = table["type"].map(numbers).astype("int64").to_numpy()
        columns = (table[name].to_numpy() for name in ("start_us", "latency_us", "terminal"))
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{directory / TRANSACTIONS}: cannot be read: {error}") from None
    start_us, latency_us, terminal = columns
    return Raw(start_us, latency_us, kinds, terminal), ""


def _latencies(directory: Path, single: Raw | None) -> Distribution:
    """Return the distribution of latencies: of single transactions, else of what loadgen's histograms hold.

    The latter are of committed transactions; single ones are all that theirs would have counted.
    """
    if single is not None:
        return Distribution.of(single.latency_us)
    whole = HdrHistogram(1, 3_600_000_000, 3)
    for line in (directory / "latency.hdr").read_text(encoding="utf-8").splitlines():
        if line.startswith("Tag="):
            whole.decode_and_add(line.rsplit(",", 1)[1])
    count = whole.get_total_count()
    if count == 0:
        return Distribution.of(np.array([]))
    # Minimum and maximum are those of the histogram, which keeps three digits.
    inner = (whole.get_value_at_percentile(100 * share) for share in formats.PERCENTILES[1:-1])
    percentiles = (whole.get_min_value(), *inner, whole.get_max_value())
    return Distribution(count, whole.get_mean_value(), whole.get_stddev(), tuple(float(p) for p in percentiles))


def _totals(run: Run, trial: dict[str, Any], result: dict[str, Any], latency_us: Distribution) -> Totals:
    spec, benchmark = trial["spec"], trial["spec"]["benchmark"]
    record = kept.records(run).get(trial["experiment"])
    section = spec[benchmark]
    usual = f"{section['records'] / 1000:g}" if benchmark == "ycsb" else str(section["warehouses"])
    ended_ms = _milliseconds(run.environment(trial["hash"]).get("ended_at"))
    began_us = result.get("transactions", {}).get("interval_began_us")
    began_ms = began_us // 1000 if began_us else ended_ms - round(1000 * result["measured_s"])
    versions = result.get("versions", {})
    return Totals(
        began_ms=began_ms,
        ended_ms=ended_ms,
        elapsed_s=float(result["measured_s"]),
        dbms=spec["system"].upper(),
        dbms_version="; ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        benchmark=benchmark,
        failed=False,
        requests=result["committed"] + sum(result.get("aborted", {}).values()),
        committed=result["committed"],
        isolation=SERIALIZABLE,
        scale_factor=Settings.of(record).scale_factor if record else usual,
        terminals=spec["terminals"],
        latency_us=latency_us,
    )


def _milliseconds(time: str | None) -> int:
    return round(1000 * datetime.fromisoformat(time).timestamp()) if time else 0


def _benchbase(target: Path, trial: _Trial) -> list[str]:
    at = datetime.fromtimestamp(trial.totals.began_ms / 1000, UTC).strftime("%Y-%m-%d_%H-%M-%S")
    base = f"{trial.totals.benchmark}_{at}"
    write_text(target / f"{base}.summary.json", json.dumps(formats.summary(trial.totals), indent=1) + "\n")
    single, window_s, seconds = trial.single, trial.window_s, trial.seconds
    if single is None:
        return [f"{base}.summary.json"]
    texts = {"results.csv": formats.results(single.windows(window_s, seconds), window_s)}
    texts["samples.csv"] = formats.samples(single.windows(1, seconds))
    for number, name in trial.names.items():
        windows = single.of_kind(number).windows(window_s, seconds)
        texts[f"results.{name}.csv"] = formats.results(windows, window_s)
    for name, text in texts.items():
        write_text(target / f"{base}.{name}", text)
    _write_lines(target / f"{base}.raw.csv", formats.raw(single, trial.names, trial.began_us))
    return [f"{base}.{name}" for name in ("summary.json", *texts, "raw.csv")]


def _oltpbench(target: Path, trial: _Trial) -> list[str]:
    base = trial.totals.benchmark
    system = (platform.system(), platform.machine())
    write_text(target / f"{base}.summary", json.dumps(formats.old_summary(trial.totals, system), indent=1) + "\n")
    single = trial.single
    if single is None:
        return [f"{base}.summary"]
    windows = single.windows(trial.window_s, trial.seconds)
    write_text(target / f"{base}.res", formats.results(windows, trial.window_s, formats.OLD_RESULTS_HEAD))
    _write_lines(target / f"{base}.raw", formats.raw(single, trial.names, trial.began_us, old=True))
    return [f"{base}.{end}" for end in ("summary", "res", "raw")]


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a long file line by line, under another name until it is whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    temporary.replace(path)
