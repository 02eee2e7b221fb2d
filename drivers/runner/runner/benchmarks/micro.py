"""Microbenchmarks inside the engine (paper §5.4, §5.5): no server, no data set, no terminals.

A deployment starts `anticache-micro serve` where the engine would run: in its control group, on its CPUs, its block
file on the disk under test. A trial measures one cell of Figure 10, 11a or 11b there (drivers/micro).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from runner.axes import Cell, Grid
from runner.benchmarks.section import Data, Section
from runner.systems import EVICTING
from runner.yamlfile import Document, Location

if TYPE_CHECKING:
    from runner.workload import ScaleValues

Measure = Literal["lru_chain", "eviction_steps", "index_update"]
AXES_OF: dict[str, tuple[str, ...]] = {
    "lru_chain": ("skew", "chain"),
    "eviction_steps": ("block_bytes", "merged"),
    "index_update": ("indexes", "index_kind"),
}
"""What is varied in each, beside the axes that every experiment has."""
MEMORY_BYTES = 256 << 20
"""For the table of a trial: the largest blocks' needs 70 MB, 100,000 tuples with eight indexes 130 MB."""
TUPLE_BYTES = 1200  # a row of 1 KB with its slot, links and index entries
BLOCKS_IN_MEMORY = 4  # of tuples, at least (drivers/micro)


class Micro(Section):
    """What is measured, and how often in one repetition."""

    name: ClassVar[str] = "micro"
    size_key: ClassVar[str] = "micro_tuples"
    inside: ClassVar[bool] = True
    untimed_operations: ClassVar[tuple[str, ...]] = ("flush",)  # between write and fetch
    mysql_load_rows_per_s: ClassVar[int] = 1
    engine_load_rows_per_s: ClassVar[int] = 1

    terminals: int = Field(default=1, ge=1, le=1, description="1 (the thread that measures)")
    measure: Measure = Field(description="lru_chain, eviction_steps or index_update")
    updates: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="an integer from 1 to 10000000 (tuples updated in a repetition; not of eviction_steps)",
    )
    limit_s: float = Field(
        ge=0.1, le=600, description="seconds from 0.1 to 600 (a trial that takes longer has failed, and says so)"
    )

    @property
    def uses_disk(self) -> bool:
        """Only a block's way out of memory and back does."""
        return self.measure == "eviction_steps"

    def data(self, values: ScaleValues, ratio: float) -> Data:
        """Nothing is loaded: each trial fills a table of its own."""
        del values, ratio
        return Data(
            identity={},
            rows=0,
            stored_bytes=0,
            loading_bytes=MEMORY_BYTES,
            described=f"tables inside the engine, up to {MEMORY_BYTES >> 20} MiB",
        )

    def budget_bytes(self, values: ScaleValues, ratio: float, system: str) -> float:
        """Return the same for all: so one deployment serves all microbenchmarks."""
        del values, ratio, system
        return MEMORY_BYTES

    def spec(self, values: ScaleValues, cell: Cell, seed: int) -> dict[str, Any]:
        """Return anticache-micro's ``micro``."""
        del seed
        varied = {name: getattr(cell, name) for name in AXES_OF[self.measure]}
        updates = {"updates": self.updates} if self.updates is not None else {}
        return {"measure": self.measure, "tuples": values.micro_tuples, **updates, **varied, "limit_s": self.limit_s}

    def write_share(self, cell: Cell) -> float:
        """There is no command log."""
        del cell
        return 0.0

    def check(self, document: Document, schema: Path, grid: Grid) -> None:
        """Refuse axes that the measurement does not have, lacking ones, ratios and systems that mean nothing here."""
        del schema
        mine = AXES_OF[self.measure]
        for name in sorted({axis for axes in AXES_OF.values() for axis in axes}):
            named = name in grid.named()
            if named and name not in mine:
                raise document.error(("grid", name), f"{self.measure} has no such axis; it has {' and '.join(mine)}")
            if not named and name in mine:
                raise document.error(("grid", name), f"this key is missing: {self.measure} varies it")
        if (self.updates is None) != (self.measure == "eviction_steps"):
            one = "absent (a block is full of tuples)" if self.updates else "the tuples that a repetition updates"
            raise document.error(("micro", "updates"), f"{self.measure} needs it {one}")
        if grid.values("data_memory_ratio") != [1]:
            raise document.error(("grid", "data_memory_ratio"), "allowed: [1], the tables are in memory")
        strangers = [system for system in grid.values("system") if system not in EVICTING]
        if strangers:
            raise document.error(("grid", "system"), f"{strangers[0]} evicts nothing; allowed: [anticache-lru]")

    def check_size(self, values: ScaleValues, ratio: float) -> tuple[Location, str] | None:
        """Refuse tables that do not fit, and fewer tuples than are updated."""
        del ratio
        if values.micro_tuples * TUPLE_BYTES > MEMORY_BYTES:
            most = MEMORY_BYTES // TUPLE_BYTES
            return (
                "micro_tuples",
            ), f"{values.micro_tuples} tuples do not fit in {MEMORY_BYTES} bytes; up to {most} do"
        if self.measure == "index_update" and values.micro_tuples < (self.updates or 0):
            return ("micro_tuples",), f"{values.micro_tuples} tuples are fewer than micro.updates = {self.updates}"
        return None
