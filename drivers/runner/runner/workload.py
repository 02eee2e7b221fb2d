"""What is run, as data: the models of ``workloads/<experiment>.yml`` and ``workloads/scales.yml``.

Everything is checked before anything starts: single values by the models, relations between values (a scale that
narrows a grid to values the grid does not have, a buffer pool below MySQL's minimum) by the functions below.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from runner.axes import AXES, BENCHMARKS, NAMES, RATIOS, Cell, Grid, Ratio, written
from runner.benchmarks.micro import Micro
from runner.benchmarks.section import Section
from runner.benchmarks.tpcc import Tpcc, TpccSize
from runner.benchmarks.ycsb import Ycsb
from runner.disk import NONE, PROFILES
from runner.engine import Engine
from runner.errors import InputError
from runner.files import ROOT
from runner.systems import EVICTING, SYSTEMS, WITHOUT_EVICTION, System, family
from runner.yamlfile import Document, Location, Strict, check, nearest, read, shown

MYSQL_MINIMUM_POOL_BYTES = 5 * 1024 * 1024  # innodb_buffer_pool_size cannot be smaller in MySQL 5.6
MEMCACHED_MINIMUM_BYTES = 2 * 1024 * 1024  # one slab page of 1 MiB for items, one for the rest
BLOCKS_PER_BUDGET_MINIMUM = 32  # with fewer blocks in memory one eviction empties a visible part of it


class Only(Strict):
    """`system` takes part only in cells with these data/memory ratios."""

    system: System = Field(description=f"one of {', '.join(SYSTEMS)}")
    data_memory_ratio: list[Ratio] = Field(min_length=1, description=RATIOS)


class Experiment(Strict):
    """One figure of the paper: its grid and everything that all scales share."""

    format: Literal[1] = Field(description="1 (the version of this file's format)")
    title: str = Field(min_length=1, description="a text")
    paper: str = Field(min_length=1, description="the figure and section of the paper")
    benchmark: Literal["ycsb", "tpcc", "micro"] | None = Field(
        default=None, description="ycsb, tpcc or micro, where it is no axis of the grid"
    )
    seed: int = Field(ge=0, lt=2**32, description="an integer from 0 to 2^32-1")
    grid: Grid
    only: list[Only] = Field(default=[], description="a list of {system, data_memory_ratio}")
    ycsb: Ycsb | None = None
    tpcc: Tpcc | None = None
    micro: Micro | None = None
    durability: Literal["sync", "datasync", "off"] = Field(
        description="sync (acknowledged when on disk), datasync (the same, with MySQL's fsync made fdatasync) or off"
    )
    memcached_share: float = Field(
        gt=0, lt=1, description="a number between 0 and 1 (Memcached's part of the memory budget)"
    )
    mysql_transaction: Literal["explicit", "autocommit"] = Field(description="explicit or autocommit")
    engine: Engine
    describe: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="an integer from 1 to 1000 (tuples, entries and blocks of a table to record after a trial)",
    )
    record_transactions: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="an integer from 1 to 100000000 (most transactions of a trial to record one by one)",
    )

    def benchmarks(self) -> list[str]:
        """Return the benchmarks that it runs."""
        return self.grid.values("benchmark") or [b for b in (self.benchmark,) if b]

    def section(self, benchmark: str) -> Section:
        """Return what it says about a benchmark."""
        found = getattr(self, benchmark)
        if not isinstance(found, Section):
            raise InputError(f"the experiment says nothing about {benchmark}")
        return found


class ScaleValues(Strict):
    """How big and how long: the values that a scale decides."""

    records: int = Field(ge=1000, description="an integer of at least 1000 (of YCSB)")
    micro_tuples: int = Field(ge=1, description="an integer above 0 (of a microbenchmark's table)")
    tpcc: TpccSize
    warmup_s: float = Field(ge=0, le=86400, description="seconds from 0 to 86400")
    measure_s: float = Field(ge=0.1, le=86400, description="seconds from 0.1 to 86400")
    trials: int = Field(ge=1, le=1000, description="an integer from 1 to 1000")
    partitions: int = Field(ge=1, le=256, description="an integer from 1 to 256 (paper: 6)")
    loading_threads: int = Field(ge=1, le=256, description="an integer from 1 to 256")
    eviction_block_bytes: int = Field(
        ge=4096, le=1 << 30, multiple_of=4096, description="a multiple of 4096 from 4096 to 2^30 (paper: 1 MiB)"
    )
    mysql_redo_log_bytes: int = Field(
        ge=4 << 20, multiple_of=1 << 20, description="whole MiB, at least 4 MiB (4194304); paper: 512 MiB"
    )
    mysql_query_cache_bytes: int = Field(ge=0, multiple_of=1024, description="0 or a multiple of 1024 (paper: 10 MiB)")
    disk_region_bytes: int = Field(
        ge=1 << 30, multiple_of=1 << 20, description="whole MiB, at least 1 GiB (the outermost tracks of the disk)"
    )
    live_settings: bool = Field(
        default=False,
        description="true or false (whether settings that the engine can change while it runs are changed in a running"
        " server, with what the trial before left in its memory, instead of a start for each)",
    )


class ScaleOverride(Strict):
    """Values of one scale that differ for one experiment."""

    records: int | None = Field(default=None, ge=1000, description="an integer of at least 1000")
    micro_tuples: int | None = Field(default=None, ge=1, description="an integer above 0")
    tpcc: TpccSize | None = None
    warmup_s: float | None = Field(default=None, ge=0, le=86400, description="seconds from 0 to 86400")
    measure_s: float | None = Field(default=None, ge=0.1, le=86400, description="seconds from 0.1 to 86400")
    trials: int | None = Field(default=None, ge=1, le=1000, description="an integer from 1 to 1000")
    partitions: int | None = Field(default=None, ge=1, le=256, description="an integer from 1 to 256")
    eviction_block_bytes: int | None = Field(
        None, ge=4096, le=1 << 30, multiple_of=4096, description="a multiple of 4096 from 4096 to 2^30"
    )
    grid: Grid | None = None


class Scale(ScaleValues):
    """One scale with its exceptions."""

    purpose: str = Field(min_length=1, description="a text")
    experiments: dict[str, ScaleOverride] = Field(default={}, description="values that differ, by experiment")


class Scales(Strict):
    """``workloads/scales.yml``."""

    format: Literal[1] = Field(description="1 (the version of this file's format)")
    scales: dict[str, Scale] = Field(min_length=1, description="scales by name")


@dataclass(frozen=True)
class Workload:
    """An experiment at a scale: checked, with the scale's grid and values already applied."""

    id: str
    scale: str
    experiment: Experiment
    values: ScaleValues
    grid: Grid
    schemas: dict[str, Path]
    """The DDL of each benchmark that it runs."""

    def benchmark_of(self, cell: Cell) -> str:
        """Return the benchmark that a cell runs."""
        return cell.benchmark or self.experiment.benchmarks()[0]

    def section(self, benchmark: str) -> Section:
        """Return what the experiment says about a benchmark."""
        return self.experiment.section(benchmark)

    def section_of(self, cell: Cell) -> Section:
        """Return what the experiment says about a cell's benchmark, with the cell's own values in their places."""
        return self.section(self.benchmark_of(cell)).at(cell)

    def engine_of(self, cell: Cell) -> Engine:
        """Return the engine's settings in a cell."""
        return self.experiment.engine.model_copy(update=cell.engine_settings())

    def schema_of(self, cell: Cell) -> Path:
        """Return the DDL of a cell's tables."""
        return self.schemas[self.benchmark_of(cell)].parent / Path(self.section_of(cell).schema_file).name

    def schema_digest(self, cell: Cell) -> str:
        """Hash the DDL of a cell's tables."""
        return hashlib.sha256(self.schema_of(cell).read_bytes()).hexdigest()


def load(workloads: Path, experiment: str, scale: str) -> Workload:
    """Read and check an experiment at a scale; raises InputError naming file, line, value and what is allowed."""
    document = read(workloads / f"{experiment}.yml")
    _adopt_sections(document, workloads)
    model = check(document, Experiment)
    schemas = _check_experiment(document, model, workloads)
    scales_document = read(workloads / "scales.yml")
    scales = check(scales_document, Scales)
    if scale not in scales.scales:
        names = list(scales.scales)
        raise InputError(
            f"{shown(scales_document.path)}: unknown scale {scale!r}{nearest(scale, names)};"
            f" allowed: {', '.join(names)}"
        )
    for name, each in scales.scales.items():
        for other in each.experiments:
            if not (workloads / f"{other}.yml").is_file():
                known = experiments_in(workloads)
                raise scales_document.error(
                    ("scales", name, "experiments", other),
                    f"there is no experiment {other!r}{nearest(other, known)}; present: {', '.join(known)}",
                )
    workload = _apply(scales_document, scales.scales[scale], scale, experiment, experiment=model, schemas=schemas)
    for benchmark in workload.grid.values("benchmark") or model.benchmarks():
        _check_sizes(scales_document, workload, benchmark)
    return workload


def experiments_in(workloads: Path) -> list[str]:
    """Name the experiments that have a file."""
    return sorted(p.stem for pattern in ("fig*.yml", "beyond-*.yml") for p in workloads.glob(pattern))


def _adopt_sections(document: Document, workloads: Path) -> None:
    """Put in place the sections that are given as the name of another experiment: two figures, the same benchmark."""
    for benchmark in BENCHMARKS:
        named = document.value((benchmark,))
        if not isinstance(named, str):
            continue
        known = experiments_in(workloads)
        if named not in known:
            raise document.error(
                (benchmark,), f"there is no experiment {named!r}{nearest(named, known)}; present: {', '.join(known)}"
            )
        other = read(workloads / f"{named}.yml")
        if not isinstance(other.value((benchmark,)), dict):
            raise document.error((benchmark,), f"{named}.yml has no section {benchmark} of its own")
        document.adopt((benchmark,), other)


def _check_experiment(document: Document, model: Experiment, workloads: Path) -> dict[str, Path]:
    _check_grid(document, model)
    for index, only in enumerate(model.only):
        _refuse_strangers(document, ("only", index, "data_memory_ratio"), only.data_memory_ratio, model.grid)
        if only.system not in model.grid.values("system"):
            raise document.error(
                ("only", index, "system"), f"{only.system!r} is not in grid.system: {model.grid.values('system')}"
            )
    _check_without_eviction(document, model)
    _check_settings(document, model)
    _check_load(document, model)
    schemas = {}
    for benchmark in model.benchmarks():
        section = model.section(benchmark)
        schema = workloads / section.schema_file
        if not schema.is_file():
            raise document.error((benchmark, "schema"), f"{section.schema_file!r}: no such file in {shown(workloads)}")
        section.check(document, schema, model.grid)
        schemas[benchmark] = schema
    return schemas


def _check_grid(document: Document, model: Experiment) -> None:
    """Refuse a grid without the axes that its benchmarks need, or with others, and benchmarks without a section."""
    grid = model.grid
    for axis in NAMES:
        _refuse_twice(document, ("grid", axis), grid.values(axis))
    if (grid.benchmark is None) == (model.benchmark is None):
        raise document.error(
            ("benchmark",), "one benchmark stands here, several in grid.benchmark; allowed: one of the two"
        )
    needed = {a.name for a in AXES if a.name != "benchmark" and (not a.only_of or a.only_of in model.benchmarks())}
    for known in AXES:
        named = known.name in grid.named()
        if known.name in needed and not named and not known.optional:
            raise document.error(("grid", known.name), "this key is missing: cells need a value on this axis")
        if named and not any(known.applies_to(benchmark) for benchmark in model.benchmarks()):
            raise document.error(
                ("grid", known.name), f"an axis of {known.only_of}, which this experiment does not run; remove it"
            )
        strangers = [benchmark for benchmark in model.benchmarks() if not known.applies_to(benchmark)]
        if named and known.optional and strangers:
            raise document.error(
                ("grid", known.name), f"{strangers[0]} has no such setting, so its cells would be left out; remove it"
            )
    for benchmark in BENCHMARKS:
        runs, says = benchmark in model.benchmarks(), getattr(model, benchmark) is not None
        if runs and not says:
            raise document.error((benchmark,), "this key is missing: the experiment runs this benchmark")
        if says and not runs:
            raise document.error((benchmark,), "the experiment does not run this benchmark; remove it")


def _check_settings(document: Document, model: Experiment) -> None:
    """Refuse axes of the engine's settings where a system has no such setting, and values that do not go together."""
    grid, systems = model.grid, model.grid.values("system")
    for axis in (a for a in AXES if a.of_engine and a.name in grid.named()):
        strangers = [s for s in systems if s not in EVICTING or (axis.name, s) == ("lru_sample_rate", "anticache-lru")]
        if strangers:
            raise document.error(
                ("grid", axis.name),
                f"{strangers[0]} has no such setting; allowed with systems that have it, e.g. [anticache-alru]",
            )
    if "sectors" in grid.values("fetch") and "block" in (grid.values("merge") or [model.engine.merge]):
        where: tuple[str | int, ...] = ("grid", "fetch", grid.values("fetch").index("sectors"))
        raise document.error(where, "'sectors' needs merge: tuple, because block-merge brings back all of a block")
    profiles = sorted(p.stem for p in (ROOT / PROFILES).glob("*.toml") if p.stem != NONE)
    for index, name in enumerate(grid.values("disk_profile")):
        if name not in profiles:
            raise document.error(
                ("grid", "disk_profile", index),
                f"there is no emulated disk {name!r}{nearest(name, profiles)}; allowed: {', '.join(profiles)}",
            )


def _check_load(document: Document, model: Experiment) -> None:
    """Refuse arrivals without a rate, a rate without arrivals, and pauses of terminals in an open loop."""
    named = [axis.name for axis in AXES if axis.of_load and axis.name in model.grid.named()]
    if named == ["arrival"]:
        raise document.error(("grid", "arrival"), "transactions arrive at a rate: name it in grid.offered_txn_s")
    if named == ["offered_txn_s"]:
        raise document.error(
            ("grid", "offered_txn_s"),
            "terminals are a closed loop, which keeps no rate: say in grid.arrival how transactions arrive, or remove"
            " it; allowed there: fixed, poisson",
        )
    if named and model.tpcc is not None and model.tpcc.wait_factor > 0:
        raise document.error(
            ("tpcc", "wait_factor"),
            f"{model.tpcc.wait_factor:g}: terminals do not pause in an open loop; allowed with grid.arrival: 0",
        )


def _check_without_eviction(document: Document, model: Experiment) -> None:
    """Refuse the engine without anti-caching where the data exceed memory: it cannot evict, its loading would fail."""
    system = WITHOUT_EVICTION
    systems = model.grid.values("system")
    if system not in systems:
        return
    problem = f"{system} cannot evict, so its data have to fit in memory; allowed for it: data_memory_ratio up to 1"
    limited = False
    for index, only in enumerate(model.only):
        if only.system != system:
            continue
        limited = True
        for position, ratio in enumerate(only.data_memory_ratio):
            if ratio > 1:
                raise document.error(("only", index, "data_memory_ratio", position), f"{ratio:g}: {problem}")
    largest = max(model.grid.values("data_memory_ratio"))
    if not limited and largest > 1:
        raise document.error(
            ("grid", "system", systems.index(system)),
            f"{system!r} at data_memory_ratio {largest:g}: {problem}, by an entry under `only`",
        )


def _refuse_twice(document: Document, location: tuple[str | int, ...], values: list[Any]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise document.error((*location, index), f"{value!r} stands twice: each value may stand only once")


def _refuse_strangers(document: Document, location: tuple[str | int, ...], values: list[Any], grid: Grid) -> None:
    axis = str(location[-1])
    allowed = grid.values(axis)
    if not allowed:
        raise document.error(
            location,
            f"no axis of the experiment's grid{nearest(axis, grid.named())}; it has: {', '.join(grid.named())}",
        )
    _refuse_twice(document, location, values)
    for index, value in enumerate(values):
        if value not in allowed:
            raise document.error((*location, index), f"{value!r} is not in the experiment's grid; allowed: {allowed}")


def _apply(
    document: Document,
    scale: Scale,
    name: str,
    experiment_id: str,
    *,
    experiment: Experiment,
    schemas: dict[str, Path],
) -> Workload:
    values = scale.model_dump(exclude={"purpose", "experiments"})
    axes = {axis: experiment.grid.values(axis) for axis in experiment.grid.named()}
    override = scale.experiments.get(experiment_id)
    if override is not None:
        values |= override.model_dump(exclude={"grid"}, exclude_none=True)
        for axis in override.grid.named() if override.grid else []:
            chosen = override.grid.values(axis) if override.grid else []
            _refuse_strangers(
                document, ("scales", name, "experiments", experiment_id, "grid", axis), chosen, experiment.grid
            )
            axes[axis] = chosen
    return Workload(experiment_id, name, experiment, ScaleValues(**values), Grid(**axes), schemas)


def _place(document: Document, workload: Workload, key: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return where a scale's value stands: with the experiment where it has one of its own."""
    own = ("scales", workload.scale, "experiments", workload.id, *key)
    return own if document.value(own) is not None else ("scales", workload.scale, *key)


def _check_sizes(document: Document, workload: Workload, benchmark: str) -> None:
    """Refuse what `size_problem` finds, naming the scale's key."""
    if wrong := size_problem(workload, benchmark):
        key, problem = wrong
        raise document.error(_place(document, workload, key), problem)


def size_problem(workload: Workload, benchmark: str) -> tuple[Location, str] | None:
    """Return what is wrong with a scale's sizes, with the key that is to blame.

    Sizes that a benchmark cannot have, and budgets that a server would silently round up.
    """
    values, section = workload.values, workload.section(benchmark)
    ratios = workload.grid.values("data_memory_ratio")
    for ratio in ratios:
        if wrong := section.check_size(values, ratio):
            return wrong
    ratio = min(ratios, key=lambda r: section.budget_bytes(values, r, ""))
    budget_bytes = int(section.budget_bytes(values, ratio, ""))
    lead = (
        f"{section.data(values, ratio).described} at data_memory_ratio {written(ratio)}"
        f" leave a budget of {budget_bytes} bytes"
    )
    if problem := _mysql_problem(lead, workload, budget_bytes=budget_bytes, size=section.size_key):
        return (section.size_key,), problem
    most = budget_bytes // BLOCKS_PER_BUDGET_MINIMUM // values.partitions
    systems = workload.grid.values("system")
    for factor in workload.grid.values("block_factor"):
        block_bytes = values.eviction_block_bytes * factor
        if block_bytes % 4096:
            return (
                ("eviction_block_bytes",),
                f"block_factor {written(factor)} makes blocks of {block_bytes:g} bytes; allowed: multiples of 4096",
            )
    block_bytes = round(values.eviction_block_bytes * max(workload.grid.values("block_factor") or [1]))
    if any(family(s) == "anticache" for s in systems) and block_bytes > most:
        return (
            ("eviction_block_bytes",),
            f"{block_bytes} is not allowed here: {lead}, and a partition's part of it must hold at"
            f" least {BLOCKS_PER_BUDGET_MINIMUM} blocks; allowed: up to {most // 4096 * 4096}",
        )
    return None


def _mysql_problem(lead: str, workload: Workload, *, budget_bytes: int, size: str) -> str:
    """Say that a budget is below the least that MySQL's buffer pool and Memcached accept; empty where it is not."""
    systems = workload.grid.values("system")
    cache_bytes = int(budget_bytes * workload.experiment.memcached_share)
    pool_bytes = budget_bytes - cache_bytes if "mysql-memcached" in systems else budget_bytes
    if any(family(s) == "mysql" for s in systems) and pool_bytes < MYSQL_MINIMUM_POOL_BYTES:
        return (
            f"{lead}, {pool_bytes} of it for MySQL's buffer pool, which cannot be below"
            f" {MYSQL_MINIMUM_POOL_BYTES}: raise {size} or drop that ratio from the scale's grid"
        )
    if "mysql-memcached" in systems and cache_bytes < MEMCACHED_MINIMUM_BYTES:
        return f"{lead}, {cache_bytes} of it for Memcached, which needs {MEMCACHED_MINIMUM_BYTES}: raise {size}"
    return ""
