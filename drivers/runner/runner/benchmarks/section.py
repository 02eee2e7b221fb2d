"""What all benchmarks have in common: a section of the workload that answers the plan's questions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from runner.axes import Cell, Grid
from runner.yamlfile import Document, Location, Strict

if TYPE_CHECKING:
    from runner.workload import ScaleValues


@dataclass(frozen=True)
class Data:
    """What is loaded for the trials at one data/memory ratio."""

    identity: dict[str, Any]
    """What tells it from other data, besides schema, seed and formats."""
    rows: int
    stored_bytes: int
    """In the most space-hungry primary store, all of it in memory."""
    loading_bytes: int
    """Memory to load it with into a store that is kept."""
    described: str
    """How much it is, in words."""
    recorded: dict[str, Any] = field(default_factory=dict)
    """What the deployment records of it: how the memory budget came about."""


class Section(Strict):
    """What an experiment says about one benchmark."""

    name: ClassVar[str]
    size_key: ClassVar[str]
    """The scale's value that says how much is loaded."""
    alone: ClassVar[bool] = False
    """Whether a trial leaves data behind that no other trial may start from."""
    inside: ClassVar[bool] = False
    """Whether a program measures parts of the engine itself: no server, nothing is loaded, no terminals."""
    untimed_operations: ClassVar[tuple[str, ...]] = ()
    """Kinds of disk operations (read, write, flush) that no figure contains, so that late ones spoil none."""
    mysql_load_rows_per_s: ClassVar[int]
    engine_load_rows_per_s: ClassVar[int]

    schema_file: str = Field(alias="schema", description="a path of SQL DDL relative to workloads/")
    terminals: int = Field(ge=1, le=4096, description="an integer from 1 to 4096 (clients)")

    def terminals_at(self, values: ScaleValues) -> int:
        """Return the number of terminals at a scale."""
        del values
        return self.terminals

    @property
    def uses_disk(self) -> bool:
        """Whether what is measured depends on the disk under test."""
        return True

    @property
    def default_key_order(self) -> str:
        """Return the order of keys where no cell names another; empty for a benchmark that has none."""
        return ""

    def at(self, cell: Cell) -> Section:
        """Return the section with a cell's own values in their places."""
        del cell
        return self

    @abstractmethod
    def data(self, values: ScaleValues, ratio: float) -> Data:
        """Say what is loaded at a data/memory ratio."""

    @abstractmethod
    def budget_bytes(self, values: ScaleValues, ratio: float, system: str) -> float:
        """Return the memory budget of a system at a data/memory ratio, before it is rounded."""

    @abstractmethod
    def spec(self, values: ScaleValues, cell: Cell, seed: int) -> dict[str, Any]:
        """Return the benchmark's own part of loadgen's spec; `seed` is the experiment's."""

    @abstractmethod
    def write_share(self, cell: Cell) -> float:
        """Return the share of transactions that write."""

    @abstractmethod
    def check(self, document: Document, schema: Path, grid: Grid) -> None:
        """Refuse what does not fit together in the workload. Raises InputError."""

    def check_size(self, values: ScaleValues, ratio: float) -> tuple[Location, str] | None:
        """Return what is wrong with a scale's size at a ratio, with the key that is to blame below the scale's."""
        del values, ratio
        return None
