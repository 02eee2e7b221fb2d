"""The axes that an experiment's grid may name, and a cell: one value for each of those that apply to it.

A new axis is a field of `Grid`, a field of `Cell` and an entry of `AXES`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from runner import engine
from runner.systems import SYSTEMS, System
from runner.yamlfile import Strict

BenchmarkName = Literal["ycsb", "tpcc", "micro"]
BENCHMARKS: tuple[str, ...] = get_args(BenchmarkName)
Skew = Annotated[float, Field(ge=0.5, le=1.5)]
Ratio = Annotated[float, Field(gt=0, le=1024)]
BlockFactor = Annotated[float, Field(gt=0, le=64)]
TupleBytes = Annotated[int, Field(ge=16, le=1 << 20)]
RecordsFactor = Annotated[float, Field(gt=0, le=1024)]
TerminalsFactor = Annotated[float, Field(gt=0, le=64)]
KeyOrder = Literal["clustered", "scattered"]
MicroBlock = Annotated[int, Field(ge=4096, le=1 << 24, multiple_of=4096)]
Indexes = Annotated[int, Field(ge=0, le=8)]
Arrival = Literal["fixed", "poisson"]
OfferedRate = Annotated[float, Field(ge=0.001, le=10_000_000, allow_inf_nan=False)]
RATIOS = "numbers above 0 and up to 1024 (data bytes / memory for them), e.g. [1, 2, 4, 8]"


class Grid(Strict):
    """Values of axes; an axis that is left out is not one of the experiment's or, for a scale, stays whole."""

    mix: list[str] | None = Field(default=None, min_length=1, description="names of ycsb.mixes, at least one")
    skew: list[Skew] | None = Field(
        default=None,
        min_length=1,
        description="numbers from 0.5 to 1.5 (the Zipf exponent s of paper §4.1), e.g. [1.5, 1.0, 0.5]",
    )
    data_memory_ratio: list[Ratio] | None = Field(default=None, min_length=1, description=RATIOS)
    benchmark: list[BenchmarkName] | None = Field(
        default=None, min_length=1, description="names of benchmarks, at least one of ycsb, tpcc, micro"
    )
    system: list[System] | None = Field(
        default=None, min_length=1, description=f"names of systems, at least one of {', '.join(SYSTEMS)}"
    )
    merge: list[engine.MergeName] | None = Field(default=None, min_length=1, description="tuple, block")
    block_factor: list[BlockFactor] | None = Field(
        default=None,
        min_length=1,
        description="numbers above 0 and up to 64: times the scale's eviction_block_bytes, e.g. [1, 2, 4]",
    )
    tuple_bytes: list[TupleBytes] | None = Field(
        default=None, min_length=1, description="integers, keys of ycsb.tuples, e.g. [128, 1024]"
    )
    lru_sample_rate: list[engine.Alpha] | None = Field(
        default=None, min_length=1, description="numbers above 0 and up to 1 (alpha of anticache-alru), e.g. [1, 0.01]"
    )
    hole_threshold: list[engine.Threshold] | None = Field(
        default=None, min_length=1, description="numbers above 0 and up to 1 (share of holes), e.g. [0.25, 0.5]"
    )
    eviction_check_interval_us: list[engine.IntervalUs] | None = Field(
        default=None, min_length=1, description="integers from 0 to 60000000 (0 = after every batch)"
    )
    eviction_blocks: list[engine.Blocks] | None = Field(
        default=None, min_length=1, description="integers from 0 to 31 (blocks of an eviction; 0 = derived)"
    )
    fetch: list[engine.FetchName] | None = Field(default=None, min_length=1, description="block, sectors")
    evict_from: list[engine.EvictFrom] | None = Field(
        default=None, min_length=1, description="coldest, inverse-accesses"
    )
    answer_readers: list[engine.AnswerReaders] | None = Field(
        default=None, min_length=1, description="at-once, durable"
    )
    records_factor: list[RecordsFactor] | None = Field(
        default=None, min_length=1, description="numbers above 0 and up to 1024: times the scale's records, e.g. [1, 4]"
    )
    terminals_factor: list[TerminalsFactor] | None = Field(
        default=None, min_length=1, description="numbers above 0 and up to 64: times ycsb.terminals, e.g. [0.25, 1, 4]"
    )
    key_order: list[KeyOrder] | None = Field(default=None, min_length=1, description="clustered, scattered")
    disk_profile: list[str] | None = Field(
        default=None, min_length=1, description="names of emulated disks, e.g. [hdd-7200, nvme]"
    )
    arrival: list[Arrival] | None = Field(
        default=None,
        min_length=1,
        description="fixed, poisson (how transactions arrive in an open loop; without it the loop is closed)",
    )
    offered_txn_s: list[OfferedRate] | None = Field(
        default=None,
        min_length=1,
        description="numbers from 0.001 to 10000000 (transactions that arrive per second), e.g. [1000, 2000, 4000]",
    )
    chain: list[Literal["none", "double", "single"]] | None = Field(
        default=None, min_length=1, description="none, double, single (links of the LRU chain)"
    )
    block_bytes: list[MicroBlock] | None = Field(
        default=None, min_length=1, description="multiples of 4096 from 4096 to 16777216 (16 MiB)"
    )
    merged: list[Literal["block", "tuple"]] | None = Field(
        default=None, min_length=1, description="block, tuple (what is merged after a fetch)"
    )
    indexes: list[Indexes] | None = Field(default=None, min_length=1, description="integers from 0 to 8")
    index_kind: list[Literal["hash", "ordered"]] | None = Field(default=None, min_length=1, description="hash, ordered")

    def values(self, axis: str) -> list[Any]:
        """Return the values of an axis; none when it is left out."""
        return list(getattr(self, axis) or [])

    def named(self) -> list[str]:
        """Return the axes that are not left out."""
        return [axis.name for axis in AXES if getattr(self, axis.name) is not None]


@dataclass(frozen=True)
class Axis:
    """What is known of an axis besides its values."""

    name: str
    shown: str = "{}"
    """How a coordinate is written in a label."""
    deploys: bool = False
    """Whether another value needs another deployment."""
    only_of: str = ""
    """The benchmark that it belongs to; empty: it applies to all."""
    also_of: str = ""
    """A benchmark whose section says whether it needs it."""
    optional: bool = False
    """Whether a grid may leave it out: every cell then has what the experiment, the scale or the call says."""
    of_engine: bool = False
    """Whether only a system that evicts has it."""
    of_load: bool = False
    """Whether it says how the terminals submit: as with another mix, the operations of its values are others."""

    def applies_to(self, benchmark: str) -> bool:
        """Tell whether cells of a benchmark may have it."""
        return self.only_of in ("", benchmark) or self.also_of == benchmark

    @property
    def live(self) -> bool:
        """Whether the engine can change it while it runs."""
        return self.name in engine.LIVE


AXES = (
    Axis("system", deploys=True),
    Axis("benchmark", deploys=True),
    Axis("mix", only_of="ycsb"),
    Axis("skew", "s={}", only_of="ycsb", also_of="micro"),
    Axis("data_memory_ratio", "{}x", deploys=True),
    Axis("tuple_bytes", "{} B", deploys=True, only_of="ycsb", optional=True),
    Axis("records_factor", "records x{}", deploys=True, only_of="ycsb", optional=True),
    Axis("terminals_factor", "terminals x{}", deploys=True, only_of="ycsb", optional=True),
    Axis("key_order", deploys=True, only_of="ycsb", optional=True),
    Axis("disk_profile", deploys=True, optional=True),
    Axis("block_factor", "blocks x{}", deploys=True, optional=True, of_engine=True),
    Axis("merge", "{}-merge", optional=True, of_engine=True),
    Axis("fetch", "fetch {}", optional=True, of_engine=True),
    Axis("evict_from", "evict from {}", deploys=True, optional=True, of_engine=True),
    Axis("answer_readers", "readers {}", deploys=True, optional=True, of_engine=True),
    Axis("lru_sample_rate", "alpha={}", optional=True, of_engine=True),
    Axis("hole_threshold", "holes {}", optional=True, of_engine=True),
    Axis("eviction_check_interval_us", "check {} us", optional=True, of_engine=True),
    Axis("eviction_blocks", "evict {}", optional=True, of_engine=True),
    Axis("arrival", "{} arrivals", only_of="ycsb", also_of="tpcc", optional=True, of_load=True),
    Axis("offered_txn_s", "{} txn/s", only_of="ycsb", also_of="tpcc", optional=True, of_load=True),
    Axis("chain", "chain {}", only_of="micro", optional=True),
    Axis("block_bytes", "{} B", only_of="micro", optional=True),
    Axis("merged", "{}-merge", only_of="micro", optional=True),
    Axis("indexes", "{} indexes", only_of="micro", optional=True),
    Axis("index_kind", only_of="micro", optional=True),
)
NAMES = tuple(axis.name for axis in AXES)


def written(value: Any) -> str:
    """Write a coordinate: numbers without needless digits."""
    if isinstance(value, int):
        return str(value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


@dataclass(frozen=True)
class Cell:
    """One point of an experiment's grid; axes that the grid does not name, or that do not apply, are None."""

    system: str
    mix: str | None = None
    skew: float | None = None
    data_memory_ratio: float = 1.0
    benchmark: str | None = None
    tuple_bytes: int | None = None
    records_factor: float | None = None
    terminals_factor: float | None = None
    key_order: str | None = None
    disk_profile: str | None = None
    block_factor: float | None = None
    merge: str | None = None
    fetch: str | None = None
    evict_from: str | None = None
    answer_readers: str | None = None
    lru_sample_rate: float | None = None
    hole_threshold: float | None = None
    eviction_check_interval_us: int | None = None
    eviction_blocks: int | None = None
    chain: str | None = None
    block_bytes: int | None = None
    merged: str | None = None
    indexes: int | None = None
    index_kind: str | None = None
    arrival: str | None = None
    offered_txn_s: float | None = None

    def coordinates(self) -> dict[str, Any]:
        """Return the cell's axes with their values."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in every.items() if value is not None}

    def label(self) -> str:
        """Name the cell in one short phrase."""
        found = self.coordinates()
        return " ".join(axis.shown.format(written(found[axis.name])) for axis in AXES if axis.name in found)

    def operations(self) -> dict[str, Any]:
        """Return the coordinates that decide which operations the terminals draw."""
        compared = self.compared()
        return {n: value for n, value in self.coordinates().items() if n != "system" and n not in compared}

    def compared(self) -> dict[str, Any]:
        """Return the coordinates on axes of settings, which a grid may have or not."""
        compared = {axis.name for axis in AXES if axis.optional and not axis.of_load}
        return {name: value for name, value in self.coordinates().items() if name in compared}

    def load(self) -> dict[str, Any]:
        """Return how the cell's transactions arrive, as loadgen's spec has it; nothing in a closed loop."""
        return {axis.name: value for axis in AXES if axis.of_load and (value := getattr(self, axis.name)) is not None}

    def settings(self) -> dict[str, Any]:
        """Return the cell's own settings of the engine, those that it can change while it runs."""
        return {name: value for name, value in self.engine_settings().items() if name in engine.LIVE}

    def engine_settings(self) -> dict[str, Any]:
        """Return all of the cell's own settings of the engine, by the names that `engine.Engine` has for them."""
        return {name: value for name, value in self.coordinates().items() if name in engine.Engine.model_fields}
