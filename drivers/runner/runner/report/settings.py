"""The settings of all systems side by side: what is the same, what differs, and why that is fair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from runner.axes import AXES, NAMES, written
from runner.store import Run, is_foreign
from runner.systems import SYSTEMS, WITHOUT_EVICTION, family

NOT_SETTINGS = frozenset({"format", "seed", "system", "benchmark", "mix", "skew", "data_memory_ratio"})
INSIDE = "micro"
OF_INSIDE = frozenset({"memory_budget_bytes", "server_cpus", "disk", "measure_s", INSIDE})
"""What a microbenchmark has of a deployment's and a specification's settings: it has no server, log or terminals."""
MANY = 6  # more values than this are written as a range
MEBIBYTE = 1 << 20

WHY = {
    "memory_budget_bytes": "for data, indexes, keys of evicted rows and caches together; TPC-C: the engine without"
    " anti-caching has more, because it cannot evict what a trial adds",
    "memory_limit_bytes": "the kernel's limit of the control group: the budget and the same allowance for all",
    "mysql_buffer_pool_bytes": "MySQL gets the whole budget as buffer pool; beside Memcached what is left of it",
    "memcached_bytes": "Memcached's part of the one budget; the paper does not state the division",
    "mysql_redo_log_bytes": "size of one of two files, in the paper's relation to the data; only MySQL has them",
    "mysql_query_cache_bytes": "in the paper's relation to the data",
    "mysql_transaction": "autocommit: a transaction of one statement is one round trip, as it is for the engine",
    "engine.anticaching": "which transactions update the LRU chain (lru: all, alru: 1 in 100, off: none)",
    "engine.eviction_block_bytes": "the engine's unit of eviction; MySQL's page has 16 KiB",
    "engine.merge": "what is taken from a fetched block; without eviction there is none",
    "engine.hole_threshold": "share of holes from which a block is merged whole; without eviction there is none",
    "engine.lru_sample_rate": "share of transactions that update the LRU chain of anticache-alru (alpha)",
    "engine.fetch": "what is read of a block: all of it, or the sectors that hold a wanted tuple",
    "engine.evict_from": "which table gives the next block",
    "engine.answer_readers": "of rows whose last write is not on disk: at once, as MySQL answers them",
    "engine.eviction_check_interval_us": "0: after every batch of transactions",
    "engine.eviction_blocks": "blocks that one eviction writes; 0: derived from the budget",
    "durability": "sync: a write is answered when it is on the disk, in every system; datasync: so too, with MySQL's"
    " fsync made fdatasync",
    "terminals": "one outstanding transaction each, on every system",
    "arrival": "how transactions arrive in an open loop, at the same times for every system; else the loop is closed",
    "offered_txn_s": "transactions that arrive per second, on average",
    "server_cpus": "all servers of a system together",
    "client_cpus": "the terminals', apart from the servers'",
    "partitions": "of the engine, one thread each; MySQL's and Memcached's threads share the same CPUs",
    "loading_threads": "of loading only",
    "disk.profile": "the disk under test, the same for all files that a trial writes",
    "disk.region_bytes": "the outermost part of the drive that is in use",
    "disk.rotational": "what the servers are told about the disk",
    "warmup_s": "before every measured interval",
    "measure_s": "the measured interval",
    "versions": "as the servers and the driver report them",
}
"""What a setting means and, where systems differ, why that is fair."""


@dataclass(frozen=True)
class Setting:
    """One row: the value of each system that has the setting, in words."""

    name: str
    values: dict[str, str]
    why: str

    @property
    def common(self) -> str:
        """Return the value that all have."""
        return next(iter(self.values.values()))


@dataclass(frozen=True)
class SideBySide:
    """The settings of one benchmark."""

    benchmark: str
    systems: list[str]
    same: list[Setting]
    different: list[Setting]


@dataclass(frozen=True)
class _Value:
    """A setting's value in one trial; `place` is the trial's cell without the system."""

    system: str
    place: tuple[tuple[str, Any], ...]
    value: Any


def side_by_side(run: Run) -> list[SideBySide]:
    """Compare the settings of a run's systems, benchmark by benchmark, as they were planned and recorded."""
    found: dict[str, dict[str, list[_Value]]] = {}
    for trial in run.trials:
        system = trial["cell"]["system"]
        shared = {name: value for name, value in trial["cell"].items() if name != "system"}
        place = tuple({"experiment": trial["experiment"], **shared}.items())
        rows = found.setdefault(trial["spec"]["benchmark"], {})
        for name, value in _settings(run, trial):
            rows.setdefault(name, []).append(_Value(system, place, value))
    return [_compared(benchmark, rows) for benchmark, rows in found.items()]


def _compared(benchmark: str, rows: dict[str, list[_Value]]) -> SideBySide:
    present = {value.system for values in rows.values() for value in values}
    systems = [s for s in SYSTEMS if s in present] + sorted(present - set(SYSTEMS))
    same: list[Setting] = []
    different: list[Setting] = []
    for name, values in rows.items():
        words = {s: _in_words(name, [v for v in values if v.system == s]) for s in systems if _any(values, s)}
        setting = Setting(name, words, WHY.get(name, ""))
        (same if set(words) == set(systems) and _agree(values) else different).append(setting)
    return SideBySide(benchmark, systems, same, different)


def _any(values: list[_Value], system: str) -> bool:
    return any(v.system == system for v in values)


def _agree(values: list[_Value]) -> bool:
    """Tell whether all systems have the same value in each cell: only cells that they share can be compared."""
    by_place: dict[tuple[tuple[str, Any], ...], set[str]] = {}
    for v in values:
        by_place.setdefault(v.place, set()).add(repr(v.value))
    return all(len(different) == 1 for different in by_place.values())


def _settings(run: Run, trial: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """List a trial's settings: its deployment's, its driver's, and what was recorded of limit and versions."""
    system = trial["cell"]["system"]
    if is_foreign(run.plan, trial):
        yield from _foreign_settings(run, trial)
        return
    values = {**run.plan["deployments"][trial["deployment"]]["values"]}
    spec = {name: value for name, value in trial["spec"].items() if name not in values}
    # What a running engine was given before the trial stands in the place of what it was started with.
    values["engine"] = {**values["engine"], **spec.pop("engine_settings", {})}
    inside = trial["spec"]["benchmark"] == INSIDE
    for name, value in _flat({**values, **spec}):
        if name.rpartition(".")[2] in NOT_SETTINGS or not _has(system, name):
            continue
        if not inside or name.partition(".")[0] in OF_INSIDE:
            yield name, value
    environment = run.environment(trial["hash"])
    group = environment.get("control_group", {})
    if group:
        limit = group.get("limit_bytes")
        yield "memory_limit_bytes", limit if limit is not None else f"not enforced: {group.get('why_not') or 'unknown'}"
    if environment.get("versions"):
        yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(environment["versions"].items()))


def _foreign_settings(run: Run, trial: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """List what is known of another installation's trial: the configuration that it was given, and by whom it ran."""
    spec = {name: trial["spec"][name] for name in ("terminals", "warmup_s", "measure_s")}
    yield from _flat({**spec, **run.plan["deployments"][trial["deployment"]]["values"]["foreign"]})
    group = run.environment(trial["hash"]).get("control_group", {})
    if group:
        yield "memory_limit_bytes", f"not enforced: {group['why_not']}"


def _has(system: str, name: str) -> bool:
    """Tell whether a system has a setting: the plan gives every deployment the same names."""
    if name.startswith("memcached_"):
        return system == "mysql-memcached"
    if name.startswith("mysql_"):
        return family(system) == "mysql"
    if name in ("engine.anticaching", "partitions"):
        return family(system) == "anticache"
    return not name.startswith("engine.") or (family(system) == "anticache" and system != WITHOUT_EVICTION)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _in_words(name: str, values: list[_Value]) -> str:
    """Write a system's values of a setting, with the axis that they depend on where there is one."""
    words = {v.value: value_in_words(name, v.value) for v in values}
    if len(words) == 1:
        return next(iter(words.values()))
    axis = _axis_of(values)
    if axis and axis != name:
        by_coordinate = {dict(v.place).get(axis): words[v.value] for v in values}
        shown = {a.name: a.shown for a in AXES}.get(axis, "{}")
        parts = [f"{shown.format(written(at))}: {word}" for at, word in by_coordinate.items()]
        if len(parts) <= MANY:
            return ", ".join(parts)
    numbers = [value for value in words if isinstance(value, int | float)]
    if len(words) > MANY and len(numbers) == len(words):
        return f"{len(words)} values from {words[min(numbers)]} to {words[max(numbers)]}"
    return ", ".join(dict.fromkeys(words.values()))


def _axis_of(values: list[_Value]) -> str:
    """Return the axis, or the experiment, that decides the value; empty where no single one does."""
    for axis in ("data_memory_ratio", "experiment", *NAMES):
        pairs = {(dict(v.place).get(axis), repr(v.value)) for v in values}
        coordinates = {coordinate for coordinate, _ in pairs}
        if None not in coordinates and len(coordinates) == len(pairs):
            return axis
    return ""


def value_in_words(name: str, value: Any) -> str:
    """Write a value with its unit, which its name ends with."""
    if isinstance(value, list | tuple):
        return ", ".join(value_in_words("", item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number_in_words(name, value)
    return "—" if value is None or value == "" else str(value)


def _number_in_words(name: str, value: float) -> str:
    if name.endswith("_bytes") or "_bytes_per_" in name:
        return size_in_words(value)
    if name.endswith("seed"):  # a name rather than a number
        return str(value)
    if name.endswith("_txn_s"):
        return f"{value:g} txn/s"
    if name.endswith("_s"):
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def size_in_words(size_bytes: float) -> str:
    """Write a size in the largest binary unit that leaves at least 1, with no more digits than tell it apart."""
    for unit, size in (("GiB", 1 << 30), ("MiB", MEBIBYTE), ("KiB", 1 << 10)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.4g} {unit}"
    return f"{size_bytes:,.0f} B"


@dataclass(frozen=True)
class Checked:
    """A condition of a fair comparison, held against the records."""

    what: str
    holds: bool
    found: str


def checked(run: Run) -> Iterable[Checked]:
    """Hold the conditions of a fair comparison against what was planned and recorded."""
    seeds: dict[str, set[int]] = {}
    for trial in run.trials:
        shared = {name: value for name, value in trial["cell"].items() if name != "system"}
        place = repr((trial["experiment"], sorted(shared.items()), trial["trial"]))
        seeds.setdefault(place, set()).add(trial["seed"])
    unequal = sum(len(found) > 1 for found in seeds.values())
    yield Checked(
        "the same operations: one seed for all systems of a cell",
        not unequal,
        f"{len(seeds)} cells and trials" + (f", {unequal} with several seeds" if unequal else ""),
    )
    environments = [e for e in (run.environment(trial["hash"]) for trial in run.trials) if e]
    if not environments:
        yield Checked("settings of measured trials", False, "no trial has been recorded")
        return
    for what, values in (
        ("one state of the code", {e.get("code", {}).get("shaping") for e in environments}),
        ("one build of the driver", {e["binaries"].get("loadgen") for e in environments if "binaries" in e}),
        ("one build of the engine", {e["binaries"].get("anticached") for e in environments if "binaries" in e}),
    ):
        yield Checked(what, len(values) <= 1, f"{len(values)} in {len(environments)} recorded trials")
    groups = [e["control_group"] for e in environments if e.get("control_group")]
    loose = sum(not group.get("enforced") for group in groups)
    yield Checked("memory limited by the kernel", not loose and bool(groups), f"{len(groups) - loose} of {len(groups)}")
    shared_cpus = sum(bool(e.get("cpu_sets", {}).get("shared")) for e in environments)
    yield Checked("servers and terminals on CPUs of their own", not shared_cpus, f"{shared_cpus} trials shared CPUs")
