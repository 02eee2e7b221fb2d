"""The axes that an experiment's grid may name, and a cell: one value for each of those that apply to it.

A new axis is a field of `Grid`, a field of `Cell` and an entry of `AXES`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from runner.systems import SYSTEMS, System
from runner.yamlfile import Strict

BenchmarkName = Literal["ycsb", "tpcc"]
Skew = Annotated[float, Field(ge=0.5, le=1.5)]
Ratio = Annotated[float, Field(gt=0, le=1024)]
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
        default=None, min_length=1, description="names of benchmarks, at least one of ycsb, tpcc"
    )
    system: list[System] | None = Field(
        default=None, min_length=1, description=f"names of systems, at least one of {', '.join(SYSTEMS)}"
    )

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


AXES = (
    Axis("system", deploys=True),
    Axis("benchmark", deploys=True),
    Axis("mix", only_of="ycsb"),
    Axis("skew", "s={}", only_of="ycsb"),
    Axis("data_memory_ratio", "{}x", deploys=True),
)
NAMES = tuple(axis.name for axis in AXES)


def written(value: Any) -> str:
    """Write a coordinate: numbers without needless digits."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


@dataclass(frozen=True)
class Cell:
    """One point of an experiment's grid; axes that the grid does not name, or that do not apply, are None."""

    system: str
    mix: str | None = None
    skew: float | None = None
    data_memory_ratio: float = 1.0
    benchmark: str | None = None

    def coordinates(self) -> dict[str, Any]:
        """Return the cell's axes with their values."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in every.items() if value is not None}

    def label(self) -> str:
        """Name the cell in one short phrase."""
        found = self.coordinates()
        return " ".join(axis.shown.format(written(found[axis.name])) for axis in AXES if axis.name in found)

    def without_system(self) -> dict[str, Any]:
        """Return the cell's other coordinates: what all systems have in common."""
        return {name: value for name, value in self.coordinates().items() if name != "system"}
