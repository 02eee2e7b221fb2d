"""From a workload to cells, trials and deployments; a trial is named by the hash of all that shapes its result.

Order of the work (fairness: drift of the machine must not favour a system): for trial index -> for the axes that need
a deployment of their own (benchmark, data/memory ratio) -> for system, rotated by the trial index -> the cells of that
deployment in one seeded order that is the same for every system.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

from runner.axes import AXES, NAMES, Cell, written
from runner.disk import Disk, choose
from runner.engine import LIVE, live_settings
from runner.errors import InputError
from runner.files import ROOT
from runner.machine import CpuSets
from runner.systems import EVICTING, family
from runner.workload import Workload
from runner.yamlfile import nearest

TRIAL_FORMAT = 1  # raise it when the runner changes how a trial is carried out: recorded trials then count no more
DATASET_FORMAT = 3  # raise it when the loaders change what they store: kept data sets are then loaded anew
HASH_DIGITS = 16
OF_MYSQL = ("mysql_", "memcached_")
"""How the names of settings begin that only MySQL, alone or behind Memcached, has."""
MIB = 1 << 20


@dataclass(frozen=True)
class Trial:
    """One execution of a cell: `spec` is what loadgen gets, less endpoint and paths."""

    hash: str
    experiment: str
    scale: str
    cell: Cell
    index: int
    seed: int
    deployment: str
    spec: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the trial as plan.json and its own spec.json keep it."""
        return {
            "hash": self.hash,
            "experiment": self.experiment,
            "scale": self.scale,
            "cell": self.cell.coordinates(),
            "trial": self.index,
            "seed": self.seed,
            "deployment": self.deployment,
            "spec": self.spec,
        }


@dataclass(frozen=True)
class Deployment:
    """One start of one system with one configuration; `values` are the keys of the deployment file, less paths."""

    id: str
    benchmark: str
    system: str
    data_memory_ratio: float
    dataset: str
    content: str
    """Hash of what is loaded, the same for every system."""
    values: dict[str, Any]

    def label(self) -> str:
        """Name it in one short phrase."""
        return f"{self.benchmark} {self.system} at {self.data_memory_ratio:g}x"


@dataclass(frozen=True)
class Plan:
    """All trials in the order of execution, with the deployments that they run on."""

    scale: str
    workloads: tuple[Workload, ...]
    trials: tuple[Trial, ...]
    deployments: dict[str, Deployment]

    def batches(self, trials: Iterable[Trial]) -> Iterator[tuple[Deployment, list[Trial]]]:
        """Group `trials`, kept in order, by the deployment that serves them one after another.

        A benchmark whose trials leave their data changed has a deployment for each of them.
        """

        for served, group in groupby(trials, key=self.served):
            yield self.deployments[served[0]], list(group)

    def served(self, trial: Trial) -> tuple[str, str | int, str]:
        """Name the start that serves a trial: the same for those that one start can serve, if they are neighbours.

        Where settings are compared, each with a start of its own, the usual one must not serve other experiments as
        well: it alone would have run for longer.
        """
        deployment, workload = self.deployments[trial.deployment], self.workload(trial.experiment)
        section = workload.section(deployment.benchmark)
        apart = trial.cell.compared() and not workload.values.live_settings and not section.inside
        return trial.deployment, trial.hash if section.alone else trial.index, trial.experiment if apart else ""

    def workload(self, experiment: str) -> Workload:
        """Return the workload of one of the plan's experiments."""
        return next(w for w in self.workloads if w.id == experiment)


def digest(value: Any) -> str:
    """Hash a JSON value in its canonical form (sorted keys, no blanks), shortened to 64 bits of hex."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]


def make_plan(
    workloads: Iterable[Workload],
    cpus: CpuSets,
    disk: Disk,
    *,
    systems: list[str] | None = None,
    where: dict[str, list[str]] | None = None,
    trials: int | None = None,
) -> Plan:
    """Plan every trial of `workloads`, optionally of some systems, of some cells, with another number of trials.

    Raises InputError when a selection names something that the grids do not have.
    """
    chosen = tuple(workloads)
    selection = dict(where or {})
    if systems is not None:
        selection["system"] = systems
    _check_selection(chosen, selection)
    deployments: dict[str, Deployment] = {}
    planned: list[Trial] = []
    for workload in chosen:
        count = trials if trials is not None else workload.values.trials
        cells = [c for c in all_cells(workload) if _selected(c, selection) and _has_disk(c, disk)]
        for index in range(count):
            for deployment, on_it in _ordered(workload, cells, index, cpus, disk):
                deployments[deployment.id] = deployment
                planned += [_trial(workload, deployment, cell, index=index, cpus=cpus) for cell in on_it]
    if not planned:
        raise InputError(
            "the selection leaves no cell to run: widen SYSTEMS or --where"
            + ("" if disk.emulated else f", or name an emulated DISK: {disk.profile} leaves out cells that name one")
        )
    plan = Plan(chosen[0].scale, chosen, tuple(planned), deployments)
    return replace(plan, trials=_side_by_side(planned, plan))


def _has_disk(cell: Cell, disk: Disk) -> bool:
    """Whether a cell can run: cells that name a disk are left out where disks are not emulated."""
    return cell.disk_profile is None or disk.emulated


def all_cells(workload: Workload) -> list[Cell]:
    """Return the cells of the grid, less those that `only` takes away; each with the axes of its benchmark."""
    only: dict[str, list[float]] = {o.system: o.data_memory_ratio for o in workload.experiment.only}
    grid = workload.grid
    cells = []
    for benchmark in grid.values("benchmark") or workload.experiment.benchmarks():
        axes = {axis.name: grid.values(axis.name) for axis in AXES if axis.applies_to(benchmark)}
        axes["benchmark"] = [benchmark] if grid.benchmark else []
        named = {name: values for name, values in axes.items() if values}
        for coordinates in product(*named.values()):
            cell = Cell(**dict(zip(named, coordinates, strict=True)))
            if cell.data_memory_ratio in only.get(cell.system, [cell.data_memory_ratio]):
                cells.append(cell)
    return cells


def seed_of(workload: Workload, cell: Cell, index: int) -> int:
    """Return the seed of a trial's operations (48 bits): the same for every system, another for every trial.

    It is also the same for all settings that are compared, where each has a server of its own.
    """
    shaping: dict[str, Any] = {"seed": workload.experiment.seed, "cell": cell.operations(), "trial": index}
    if compared := cell.compared():
        # Another experiment's trial on the same server must not find in memory what the same operations left there,
        shaping["experiment"] = workload.id
        if workload.values.live_settings and not workload.section_of(cell).inside:
            shaping["compared"] = compared  # and where one server has all settings, nor must that of another setting.
    text = digest(shaping)
    return int(text[:12], 16)


def _ordered(
    workload: Workload, cells: list[Cell], index: int, cpus: CpuSets, disk: Disk
) -> Iterator[tuple[Deployment, list[Cell]]]:
    deploying = [
        axis
        for axis in AXES
        if axis.name != "system"
        and workload.grid.values(axis.name)
        and (axis.deploys or (axis.live and not workload.values.live_settings))
    ]
    names = [axis.name for axis in deploying]
    values = [
        _turned(workload.grid.values(a.name), index) if a.optional else workload.grid.values(a.name) for a in deploying
    ]
    for place in product(*values):
        for system in _turned(workload.grid.values("system"), index):
            where = {"system": system, **dict(zip(names, place, strict=True))}
            on_it = [c for c in cells if all(getattr(c, name) == value for name, value in where.items())]
            on_it.sort(
                key=lambda c: (
                    seed_of(workload, c, index),
                    digest([c.settings(), index]),
                    digest([c.coordinates(), index]),
                )
            )
            if on_it:
                yield make_deployment(workload, on_it[0], cpus, disk), on_it


def _turned(values: list[Any], index: int) -> list[Any]:
    """Begin with another value in each trial: what comes first must not always be the same."""
    turn = index % len(values)
    return values[turn:] + values[:turn]


def _side_by_side(trials: list[Trial], plan: Plan) -> tuple[Trial, ...]:
    """Put trials that one start can serve where the first of them stands, also those of other experiments."""
    served = {t.hash: plan.served(t) for t in trials}
    first = {(t.index, served[t.hash]): place for place, t in reversed(list(enumerate(trials)))}
    return tuple(sorted(trials, key=lambda t: first[t.index, served[t.hash]]))


def whole(exact_bytes: float, step_bytes: int) -> int:
    """Round to the nearest whole step, at least one: MySQL 5.6 and Memcached cut what they are given to whole MiB."""
    return max(1, round(exact_bytes / step_bytes)) * step_bytes


def make_deployment(workload: Workload, cell: Cell, cpus: CpuSets, disk: Disk, *, to_load: bool = False) -> Deployment:
    """Work out the configuration of a cell's system (INTERFACES.md: deployment file).

    With `to_load` it has the memory that its data set is loaded with, to be kept.
    """
    experiment, scale, system = workload.experiment, workload.values, cell.system
    benchmark = workload.benchmark_of(cell)
    section, usual_order = workload.section_of(cell), workload.section(benchmark).default_key_order
    if cell.disk_profile is not None:
        disk = choose(cell.disk_profile, ROOT)
    # What a running engine is given before each trial is no part of its start.
    unset: dict[str, Any] = dict.fromkeys(LIVE) if scale.live_settings else {}
    settings = workload.engine_of(replace(cell, **unset))
    data = section.data(scale, cell.data_memory_ratio)
    exact = data.loading_bytes if to_load else section.budget_bytes(scale, cell.data_memory_ratio, system)
    budget_bytes = whole(exact, 2 * MIB)
    cache_bytes = whole(budget_bytes * experiment.memcached_share, MIB) if system == "mysql-memcached" else 0
    values: dict[str, Any] = {
        "system": system,
        "benchmark": benchmark,
        "memory_budget_bytes": budget_bytes,
        "mysql_buffer_pool_bytes": budget_bytes - cache_bytes if family(system) == "mysql" else 0,
        "memcached_bytes": cache_bytes,
        "durability": experiment.durability,
        "disk": disk.values(scale.disk_region_bytes),
        "server_cpus": cpus.server,
        "client_cpus": cpus.client,
        "terminals": section.terminals_at(scale),
        "partitions": scale.partitions,
        "mysql_redo_log_bytes": scale.mysql_redo_log_bytes,
        "mysql_query_cache_bytes": scale.mysql_query_cache_bytes,
        "engine": {
            "anticaching": system.removeprefix("anticache-") if family(system) == "anticache" else "off",
            "eviction_block_bytes": round(scale.eviction_block_bytes * (cell.block_factor or 1)),
            **settings.deployed(),
        },
        # What is prewarmed is then in memory: another order needs another start.
        **({"key_order": cell.key_order} if cell.key_order not in (None, usual_order) else {}),
        **({"data": data.recorded} if data.recorded else {}),
    }
    content = {
        "format": DATASET_FORMAT,
        "benchmark": benchmark,
        "schema": workload.schema_digest(cell),
        **data.identity,
        "seed": experiment.seed,
    }
    dataset = digest({**content, "family": family(system)})
    identity = digest({"values": _shaping(values), "dataset": dataset})
    return Deployment(identity, benchmark, system, cell.data_memory_ratio, dataset, digest(content), values)


def _shaping(values: dict[str, Any]) -> dict[str, Any]:
    """Drop the settings that the system does not have, so that changing them leaves its trials valid."""
    others = {"mysql": ("engine",), "anticache": OF_MYSQL}.get(family(values["system"]), ("engine", *OF_MYSQL))
    kept = {name: value for name, value in values.items() if not name.startswith(others)}
    if values["system"] == "anticache-off":
        kept["engine"] = {"anticaching": "off"}
    return kept


def loadgen_spec(workload: Workload, cell: Cell, seed: int, cpus: CpuSets) -> dict[str, Any]:
    """Build loadgen's spec for a cell (INTERFACES.md: loadgen), less `endpoint` and `schema`."""
    experiment, values = workload.experiment, workload.values
    benchmark = workload.benchmark_of(cell)
    section = workload.section_of(cell)
    # All of them, each time: the trial before may have had others.
    changed = values.live_settings and cell.system in EVICTING and not section.inside
    return {
        "format": 1,
        "system": cell.system,
        "benchmark": benchmark,
        benchmark: section.spec(values, cell, experiment.seed),
        "terminals": section.terminals_at(values),
        "warmup_s": values.warmup_s,
        "measure_s": values.measure_s,
        "seed": seed,
        "client_cpus": cpus.client,
        "mysql_transaction": experiment.mysql_transaction,
        "loading_threads": values.loading_threads,
        **cell.load(),
        **({"engine_settings": live_settings(workload.engine_of(cell), cell.system)} if changed else {}),
        **({"record_transactions": experiment.record_transactions} if experiment.record_transactions else {}),
    }


def _trial(workload: Workload, deployment: Deployment, cell: Cell, *, index: int, cpus: CpuSets) -> Trial:
    seed = seed_of(workload, cell, index)
    spec = loadgen_spec(workload, cell, seed, cpus)
    shaped = {k: v for k, v in spec.items() if k not in ("loading_threads", "engine_settings")}
    if workload.values.live_settings and cell.settings():
        shaped["engine_settings"] = cell.settings()
    identity = digest(
        {
            "format": TRIAL_FORMAT,
            "experiment": workload.id,
            "spec": shaped,
            "deployment": deployment.id,
            "trial": index,
            "seed": seed,
        }
    )
    return Trial(identity, workload.id, workload.scale, cell, index, seed, deployment.id, spec)


def parse_where(conditions: list[str]) -> dict[str, list[str]]:
    """Read ``axis=value,value`` conditions; raises InputError on anything else."""
    where: dict[str, list[str]] = {}
    axes = [name for name in NAMES if name != "system"]  # which has an option of its own
    for condition in conditions:
        axis, equals, values = condition.partition("=")
        if not equals or not values:
            raise InputError(f"--where {condition!r}: expected AXIS=VALUE[,VALUE…], e.g. skew=1.5,1.25")
        if axis not in axes:
            raise InputError(f"--where {condition!r}: unknown axis{nearest(axis, axes)}; allowed: {', '.join(axes)}")
        where.setdefault(axis, []).extend(v.strip() for v in values.split(","))
    return where


def _selected(cell: Cell, selection: dict[str, list[str]]) -> bool:
    return all(written(getattr(cell, axis)) in map(_normal, values) for axis, values in selection.items())


def _normal(value: str) -> str:
    try:
        return written(int(value) if value.lstrip("-").isdigit() else float(value))
    except ValueError:
        return value


def _check_selection(workloads: tuple[Workload, ...], selection: dict[str, list[str]]) -> None:
    for axis, values in selection.items():
        present = list(dict.fromkeys(written(v) for w in workloads for v in w.grid.values(axis)))
        for value in values:
            if _normal(value) not in present:
                raise InputError(
                    f"{axis} {value!r} is not in the grid{nearest(value, present)}; allowed: {', '.join(present)}"
                )
