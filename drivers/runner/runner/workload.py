"""What is run, as data: the models of ``workloads/<experiment>.yml`` and ``workloads/scales.yml``.

Everything is checked before anything starts: single values by the models, relations between values (a scale that
narrows a grid to values the grid does not have, a buffer pool below MySQL's minimum) by the functions below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from runner.errors import InputError
from runner.yamlfile import Document, check, nearest, read, shown

System = Literal["mysql", "mysql-memcached", "anticache-lru", "anticache-alru", "anticache-off"]
SYSTEMS: tuple[str, ...] = get_args(System)
Family = Literal["mysql", "anticache"]

MYSQL_MINIMUM_POOL_BYTES = 5 * 1024 * 1024  # innodb_buffer_pool_size cannot be smaller in MySQL 5.6
MEMCACHED_MINIMUM_BYTES = 2 * 1024 * 1024  # one slab page of 1 MiB for items, one for the rest
BLOCKS_PER_BUDGET_MINIMUM = 32  # with fewer blocks in memory one eviction empties a visible part of it

Skew = Annotated[float, Field(ge=0.5, le=1.5)]
Ratio = Annotated[float, Field(gt=0, le=1024)]
Share = Annotated[float, Field(ge=0, le=1)]
SKEWS = "numbers from 0.5 to 1.5 (the Zipf exponent s of paper §4.1), e.g. [1.5, 1.0, 0.5]"
RATIOS = "numbers above 0 and up to 1024 (loaded data bytes / memory budget), e.g. [1, 2, 4, 8]"
MIXES = "names of `mixes`, at least one"
GRID_SYSTEMS = f"names of systems, at least one of {', '.join(SYSTEMS)}"


class Strict(BaseModel):
    """A model that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Grid(Strict):
    """The axes of an experiment; its cells are the product of them, less what `only` takes away."""

    mix: list[str] = Field(min_length=1, description=MIXES)
    skew: list[Skew] = Field(min_length=1, description=SKEWS)
    data_memory_ratio: list[Ratio] = Field(min_length=1, description=RATIOS)
    system: list[System] = Field(min_length=1, description=GRID_SYSTEMS)


class GridSubset(Strict):
    """A narrower grid for one scale; an axis that is left out stays whole."""

    mix: list[str] | None = Field(default=None, min_length=1, description=MIXES)
    skew: list[Skew] | None = Field(default=None, min_length=1, description=SKEWS)
    data_memory_ratio: list[Ratio] | None = Field(default=None, min_length=1, description=RATIOS)
    system: list[System] | None = Field(default=None, min_length=1, description=GRID_SYSTEMS)


class Only(Strict):
    """`system` takes part only in cells with these data/memory ratios."""

    system: System = Field(description=f"one of {', '.join(SYSTEMS)}")
    data_memory_ratio: list[Ratio] = Field(min_length=1, description=RATIOS)


class Ycsb(Strict):
    """The YCSB table and how it is accessed (paper §4.1)."""

    fields: int = Field(ge=1, le=1000, description="an integer from 1 to 1000 (columns besides the key)")
    field_bytes: int = Field(ge=16, le=255, description="an integer from 16 to 255 (a CHAR column's bytes)")
    key_order: Literal["clustered", "scattered"] = Field(description="clustered or scattered")
    update_fields: int = Field(ge=1, le=1, description="1 (an update writes one column, as in the paper)")
    verify_share: Share = Field(description="a number from 0 to 1 (share of reads that are verified)")


class Engine(Strict):
    """Settings of the anti-caching engine that do not depend on the scale (paper §3.4, §5.1)."""

    merge: Literal["tuple", "block"] = Field(description="tuple or block")
    hole_threshold: Share = Field(description="a number from 0 to 1 (share of holes that triggers compaction)")


class Experiment(Strict):
    """One figure of the paper: its grid and everything that all scales share."""

    format: Literal[1] = Field(description="1 (the version of this file's format)")
    title: str = Field(min_length=1, description="a text")
    paper: str = Field(min_length=1, description="the figure and section of the paper")
    benchmark: Literal["ycsb"] = Field(description="ycsb")
    schema_file: str = Field(alias="schema", description="a path of SQL DDL relative to workloads/")
    seed: int = Field(ge=0, lt=2**32, description="an integer from 0 to 2^32-1")
    mixes: dict[str, Share] = Field(
        min_length=1, description="names with the share of reads, a number from 0 to 1 (1 = read-only)"
    )
    grid: Grid
    only: list[Only] = Field(default=[], description="a list of {system, data_memory_ratio}")
    ycsb: Ycsb
    stored_bytes_per_record: int = Field(
        ge=1, description="an integer above 0 (what one record needs in a primary store, overheads included)"
    )
    terminals: int = Field(ge=1, le=4096, description="an integer from 1 to 4096 (closed-loop clients)")
    durability: Literal["sync", "off"] = Field(description="sync (acknowledged when on disk) or off")
    memcached_share: float = Field(
        gt=0, lt=1, description="a number between 0 and 1 (Memcached's part of the memory budget)"
    )
    mysql_transaction: Literal["explicit", "autocommit"] = Field(description="explicit or autocommit")
    engine: Engine


class ScaleValues(Strict):
    """How big and how long: the values that a scale decides."""

    records: int = Field(ge=1000, description="an integer of at least 1000")
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
    grid: GridSubset = GridSubset()


class ScaleOverride(Strict):
    """Values of one scale that differ for one experiment."""

    records: int | None = Field(default=None, ge=1000, description="an integer of at least 1000")
    warmup_s: float | None = Field(default=None, ge=0, le=86400, description="seconds from 0 to 86400")
    measure_s: float | None = Field(default=None, ge=0.1, le=86400, description="seconds from 0.1 to 86400")
    trials: int | None = Field(default=None, ge=1, le=1000, description="an integer from 1 to 1000")
    partitions: int | None = Field(default=None, ge=1, le=256, description="an integer from 1 to 256")
    eviction_block_bytes: int | None = Field(
        None, ge=4096, le=1 << 30, multiple_of=4096, description="a multiple of 4096 from 4096 to 2^30"
    )
    grid: GridSubset | None = None


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
    schema: Path


def family(system: str) -> Family:
    """Return which primary store a system loads: `mysql` and `mysql-memcached` share one."""
    return "mysql" if system.startswith("mysql") else "anticache"


def load(workloads: Path, experiment: str, scale: str) -> Workload:
    """Read and check an experiment at a scale; raises InputError naming file, line, value and what is allowed."""
    document = read(workloads / f"{experiment}.yml")
    model = check(document, Experiment)
    schema = _check_experiment(document, model, workloads)
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
                known = sorted(p.stem for p in workloads.glob("fig*.yml"))
                raise scales_document.error(
                    ("scales", name, "experiments", other),
                    f"there is no experiment {other!r}{nearest(other, known)}; present: {', '.join(known)}",
                )
    workload = _apply(scales_document, scales.scales[scale], scale, experiment, experiment=model, schema=schema)
    _check_budgets(scales_document, workload)
    return workload


def _check_experiment(document: Document, model: Experiment, workloads: Path) -> Path:
    for axis, values in (
        ("mix", model.grid.mix),
        ("skew", model.grid.skew),
        ("data_memory_ratio", model.grid.data_memory_ratio),
        ("system", model.grid.system),
    ):
        _refuse_twice(document, ("grid", axis), list(values))
    for index, name in enumerate(model.grid.mix):
        if name not in model.mixes:
            names = ", ".join(model.mixes)
            raise document.error(
                ("grid", "mix", index), f"unknown mix {name!r}{nearest(name, model.mixes)}; allowed: {names}"
            )
    for index, only in enumerate(model.only):
        _refuse_strangers(document, ("only", index, "data_memory_ratio"), only.data_memory_ratio, model.grid)
        if only.system not in model.grid.system:
            raise document.error(
                ("only", index, "system"), f"{only.system!r} is not in grid.system: {list(model.grid.system)}"
            )
    payload = model.ycsb.fields * model.ycsb.field_bytes
    if model.stored_bytes_per_record < payload:
        raise document.error(
            ("stored_bytes_per_record",),
            f"{model.stored_bytes_per_record} is less than the {payload} bytes of a record's fields alone",
        )
    _check_without_eviction(document, model)
    schema = workloads / model.schema_file
    if not schema.is_file():
        raise document.error(("schema",), f"{model.schema_file!r}: no such file in {shown(workloads)}")
    _check_columns(document, model.ycsb, schema)
    return schema


def _check_without_eviction(document: Document, model: Experiment) -> None:
    """Refuse the engine without anti-caching where the data exceed memory: it cannot evict, its loading would fail."""
    system = "anticache-off"
    if system not in model.grid.system:
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
    largest = max(model.grid.data_memory_ratio)
    if not limited and largest > 1:
        raise document.error(
            ("grid", "system", model.grid.system.index(system)),
            f"{system!r} at data_memory_ratio {largest:g}: {problem}, by an entry under `only`",
        )


def _check_columns(document: Document, ycsb: Ycsb, schema: Path) -> None:
    """Refuse `fields` and `field_bytes` that are not the schema's: the loaders fill the columns that it declares."""
    statements = re.sub(r"--.*", "", schema.read_text(encoding="utf-8"))
    columns = [int(size) for size in re.findall(r"\bCHAR\s*\(\s*(\d+)\s*\)", statements, re.IGNORECASE)]
    if ycsb.fields != len(columns):
        raise document.error(
            ("ycsb", "fields"),
            f"{ycsb.fields} is not allowed: {shown(schema)} declares {len(columns)} CHAR columns;"
            f" allowed: {len(columns)}",
        )
    sizes = sorted(set(columns))
    if sizes != [ycsb.field_bytes]:
        listed = ", ".join(map(str, sizes))
        raise document.error(
            ("ycsb", "field_bytes"),
            f"{ycsb.field_bytes} is not allowed: the CHAR columns in {shown(schema)} have {listed} bytes; allowed: "
            + (listed if len(sizes) == 1 else "one size for all columns there"),
        )


def _refuse_twice(document: Document, location: tuple[str | int, ...], values: list[Any]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise document.error((*location, index), f"{value!r} stands twice: each value may stand only once")


def _refuse_strangers(document: Document, location: tuple[str | int, ...], values: list[Any], grid: Grid) -> None:
    allowed = list(getattr(grid, str(location[-1])))
    _refuse_twice(document, location, values)
    for index, value in enumerate(values):
        if value not in allowed:
            raise document.error((*location, index), f"{value!r} is not in the experiment's grid; allowed: {allowed}")


def _apply(
    document: Document, scale: Scale, name: str, experiment_id: str, *, experiment: Experiment, schema: Path
) -> Workload:
    values = scale.model_dump(exclude={"purpose", "experiments", "grid"})
    axes = experiment.grid.model_dump()
    override = scale.experiments.get(experiment_id)
    narrowed: list[tuple[tuple[str | int, ...], GridSubset | None]] = [(("scales", name, "grid"), scale.grid)]
    if override is not None:
        values |= override.model_dump(exclude={"grid"}, exclude_none=True)
        narrowed.append((("scales", name, "experiments", experiment_id, "grid"), override.grid))
    for location, subset in narrowed:
        for axis, chosen in (subset.model_dump(exclude_none=True) if subset else {}).items():
            _refuse_strangers(document, (*location, axis), chosen, experiment.grid)
            axes[axis] = chosen
    return Workload(experiment_id, name, experiment, ScaleValues(**values), Grid(**axes), schema)


def _check_budgets(document: Document, workload: Workload) -> None:
    """Refuse budgets that a server would silently round up: the comparison would no longer be fair."""
    values = workload.values
    loaded_bytes = values.records * workload.experiment.stored_bytes_per_record
    ratio = max(workload.grid.data_memory_ratio)
    budget_bytes = int(loaded_bytes / ratio)
    location = ("scales", workload.scale, "records")
    lead = f"{values.records} records at data_memory_ratio {ratio:g} leave a budget of {budget_bytes} bytes"
    cache_bytes = int(budget_bytes * workload.experiment.memcached_share)
    systems = workload.grid.system
    pool_bytes = budget_bytes - cache_bytes if "mysql-memcached" in systems else budget_bytes
    if any(family(s) == "mysql" for s in systems) and pool_bytes < MYSQL_MINIMUM_POOL_BYTES:
        raise document.error(
            location,
            f"{lead}, {pool_bytes} of it for MySQL's buffer pool, which cannot be below"
            f" {MYSQL_MINIMUM_POOL_BYTES}: raise records or drop that ratio from the scale's grid",
        )
    if "mysql-memcached" in systems and cache_bytes < MEMCACHED_MINIMUM_BYTES:
        raise document.error(
            location, f"{lead}, {cache_bytes} of it for Memcached, which needs {MEMCACHED_MINIMUM_BYTES}: raise records"
        )
    most = budget_bytes // BLOCKS_PER_BUDGET_MINIMUM // values.partitions
    if any(family(s) == "anticache" for s in systems) and values.eviction_block_bytes > most:
        raise document.error(
            ("scales", workload.scale, "eviction_block_bytes"),
            f"{values.eviction_block_bytes} is not allowed here: {lead}, and a partition's part of it must hold at"
            f" least {BLOCKS_PER_BUDGET_MINIMUM} blocks; allowed: up to {most // 4096 * 4096}",
        )
