"""Under which conditions a run measured, what it lacks, and how to run it again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from runner import context
from runner.errors import InputError
from runner.oltpbench import kept
from runner.report.settings import value_in_words
from runner.store import Run, is_foreign
from runner.yamlfile import read

NO_EXPERIMENTS = frozenset({"scales", "claims"})  # what else lies in workloads/
DEVIATIONS = "DEVIATIONS.md"


@dataclass(frozen=True)
class Machine:
    """A host of a lane, with what was recorded of it."""

    title: str
    facts: dict[str, str]


def machines(run: Run) -> list[Machine]:
    """Describe the hosts of every lane; a host that has both roles of its lane once."""
    found = []
    for lane, record in (run.meta.get("lanes") or {}).items():
        hosts, described = record["hosts"], record["machines"]
        one_host = hosts["clients"] == hosts["dbms"]
        roles = {"dbms": "servers and terminals"} if one_host else {"dbms": "servers", "clients": "terminals"}
        for role, title in roles.items():
            sets = record.get("cpu_sets", {})
            facts = {**_facts(described[role]), "CPUs of the servers": sets.get("server", "")}
            facts["CPUs of the terminals"] = sets.get("client", "")
            found.append(Machine(f"Lane {lane}: {hosts[role]}, {title}", {k: v for k, v in facts.items() if v}))
    return found or [Machine("The machine", _facts(run.meta["machine"]))]


def _facts(machine: Mapping[str, Any]) -> dict[str, str]:
    """Write what is known of a machine, nested values one by one."""
    facts: dict[str, str] = {}
    for name, value in machine.items():
        if isinstance(value, dict):
            facts |= {f"{name}: {inner}": value_in_words(inner, v) for inner, v in value.items()}
        else:
            facts[name] = value_in_words(name, value)
    return facts


def self_tests(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the self-tests of every lane's disks before the sweep, also of those that only some cells name.

    None for a disk that is not emulated.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for lane, record in (run.meta.get("lanes") or {}).items():
        by_profile = record.get("disk_self_tests") or {run.key.disk: record.get("disk_self_test")}
        found |= {f"{lane}, {profile}": tests for profile, tests in by_profile.items() if tests}
    return found


@dataclass(frozen=True)
class Sitting:
    """A call that measured: when, with which code, on what, and how many of the table's trials."""

    began_at: str
    ended: str
    code: str
    machine: str
    disk: str
    trials: int


def sittings(run: Run, table: pd.DataFrame) -> list[Sitting]:
    """Describe the calls that measured, in the order of time; none of a run that is older than sittings are."""
    counts = Counter(table["sitting"])
    found = []
    for sitting in run.sittings:
        code = sitting.get("code", {})
        commit = str(code.get("commit", ""))[:12] + (" with uncommitted changes" if code.get("dirty") else "")
        ended = f"{sitting['ended_at']} ({sitting['end']})" if sitting["ended_at"] else "(killed, or still going on)"
        disks = "; ".join(
            f"{lane}: {_worst(record['disk_self_test'])}"
            for lane, record in sitting["lanes"].items()
            if record.get("disk_self_test")
        )
        machine, trials = str(sitting.get("machine", "")), counts[sitting["began_at"]]
        found.append(Sitting(sitting["began_at"], ended, commit, machine, disks, trials))
    return found


def _worst(tests: list[dict[str, Any]]) -> str:
    """Name the test of a disk that is furthest from its model, of those that have a tolerance."""
    judged = [test for test in tests if test["tolerance"] and test["ratio"] is not None]
    if not judged:
        return "nothing to compare"
    worst = max(judged, key=lambda test: abs(test["ratio"] - 1))
    return f"at most {abs(worst['ratio'] - 1):.1%} off ({worst['name']})"


def drive(run: Run) -> dict[str, str]:
    """Return the profile of the run's emulated disk as the first trial on it recorded it."""
    for environment in _environments(run):
        disk = environment.get("disk", {})
        values = disk.get("observed", {}).get("profile_values")
        if values and disk.get("profile", run.key.disk) == run.key.disk:
            return _facts(values)
    return {}


def versions(run: Run) -> dict[str, str]:
    """Return what the servers and the driver say they are, and the builds that ran, over all recorded trials."""
    found: dict[str, dict[str, None]] = {}
    for environment in _environments(run):
        for name, version in environment.get("versions", {}).items():
            found.setdefault(name, {})[str(version)] = None
        for name, digest in environment.get("binaries", {}).items():
            found.setdefault(f"{name}, SHA-256", {})[str(digest)] = None
    return {name: ", ".join(values) for name, values in sorted(found.items())}


def reported_settings(run: Run) -> dict[str, dict[str, str]]:
    """Return what each system's servers reported about themselves in their first recorded trial."""
    found: dict[str, dict[str, str]] = {}
    for trial in run.trials:
        system = trial["cell"]["system"]
        if system in found:
            continue
        reported = run.environment(trial["hash"]).get("server_settings") or {}
        if reported:
            found[system] = {f"{server}: {k}": str(v) for server, each in reported.items() for k, v in each.items()}
    return found


def _environments(run: Run) -> Iterator[dict[str, Any]]:
    return (e for e in (run.environment(trial["hash"]) for trial in run.trials) if e)


def deviations() -> str:
    """Return the account of what differs from the paper, as Markdown less its title; raises InputError without it."""
    path = context.ROOT / DEVIATIONS
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): the report takes deviations from there") from None
    title, _, account = text.partition("\n")
    if not title.startswith("# ") or "\n|" not in account:
        raise InputError(f"{path}: not a title with a table below it: the report takes the deviations from there")
    return account


def troubled(run: Run, table: pd.DataFrame) -> list[dict[str, str]]:
    """List failed, invalid and flagged trials with their reasons; those that were not run are only counted."""
    cells = {trial["hash"]: trial["cell"] for trial in run.trials}
    chosen = table[(table["status"] != "planned") & ((table["status"] != "ok") | (table["flags"] != ""))]
    return [
        {
            "experiment": str(row.experiment),
            "cell": ", ".join(f"{name} {value_in_words(name, v)}" for name, v in cells[str(row.trial_hash)].items()),
            "trial": str(row.trial),
            "status": str(row.status),
            "flags": str(row.flags).replace(";", ", "),
            "reason": str(row.reason),
            "hash": str(row.trial_hash),
        }
        for row in chosen.itertuples()
    ]


def not_run(table: pd.DataFrame) -> list[dict[str, str]]:
    """Count the planned trials that have no record, by experiment and system."""
    chosen = table[table["status"] == "planned"]
    counts = Counter(zip(chosen["experiment"], chosen["system"], strict=True))
    return [{"experiment": e, "system": s, "trials": str(count)} for (e, s), count in counts.items()]


@dataclass(frozen=True)
class Extent:
    """How much of an experiment a run holds; `planned` is 0 where it was not run at all."""

    experiment: str
    title: str
    paper: str
    planned: int
    cells: int | None
    left_out: str
    """Values of axes that the run leaves out altogether."""


def extents(run: Run, table: pd.DataFrame, grids: Mapping[str, pd.DataFrame]) -> list[Extent]:
    """Compare every experiment of ``workloads/`` with the run; `grids` are the whole grids of those that it has."""
    found = []
    for path in sorted(context.WORKLOADS.glob("*.yml")):
        if path.stem in NO_EXPERIMENTS:
            continue
        document = dict(read(path).data)
        title, paper = str(document.get("title", "")), str(document.get("paper", ""))
        rows, grid = table[table["experiment"] == path.stem], grids.get(path.stem)
        if grid is None or rows.empty:
            found.append(Extent(path.stem, title, paper, 0, None, ""))
            continue
        axes = list(grid.columns)
        planned = len(rows[[axis for axis in axes if axis in rows]].drop_duplicates())
        found.append(Extent(path.stem, title, paper, planned, len(grid), _left_out(rows, grid)))
    return found


def _left_out(rows: pd.DataFrame, grid: pd.DataFrame) -> str:
    parts = []
    for axis in grid.columns:
        have = set(rows[axis].dropna()) if axis in rows else set()
        gone = [v for v in dict.fromkeys(grid[axis].dropna()) if v not in have]
        if gone and axis in rows:
            parts.append(f"{axis} {', '.join(value_in_words(axis, v) for v in gone)}")
    return "; ".join(parts)


def rerun(run: Run, grids: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the commands that run the same experiments again; systems and trials only where the run chose them."""
    key, commit = run.key, run.meta["code"]["commit"]
    own = [trial for trial in run.trials if not is_foreign(run.plan, trial)]
    systems = dict.fromkeys(trial["cell"]["system"] for trial in own)
    every = {system for grid in grids.values() for system in grid["system"]}
    commands = [f"git checkout {commit}"] if re.fullmatch("[0-9a-f]{40}", str(commit)) else []
    commands += ["make build"]
    where = f" --scale {key.scale} --inventory {key.inventory} --disk {key.disk}"
    configured = kept.records(run)
    experiments = [name for name in run.meta["experiments"] if name not in configured]
    trials = f" --trials {count}" if (count := _chosen_trials(run)) else ""
    if experiments:
        chosen = f" --systems {','.join(systems)}" if systems and set(systems) != every else ""
        commands += [f".venv/bin/python -m runner run --experiment {','.join(experiments)}{where}{chosen}{trials}"]
    for record in configured.values():
        commands += [
            f".venv/bin/python -m runner oltpbench run {record['file']} --benchmark {record['benchmark']}{where}"
            f" --systems {','.join(record['systems'])}"
            f" --data-memory-ratio {','.join(f'{ratio:g}' for ratio in record['data_memory_ratio'])}{trials}"
        ]
    return [*commands, "make report"]


def _chosen_trials(run: Run) -> int | None:
    """Return how many trials of a cell the run was asked for, where that is not what its scale says."""
    planned: dict[str, int] = {}
    for trial in run.trials:
        if not is_foreign(run.plan, trial):
            planned[trial["experiment"]] = max(planned.get(trial["experiment"], 0), trial["trial"] + 1)
    for experiment, count in planned.items():
        try:
            usual = kept.experiment_of(run, experiment).values.trials
        except InputError:  # an experiment or a scale that this checkout does not have (any more)
            continue
        if count != usual:
            return count
    return None
