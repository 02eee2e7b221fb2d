"""Nodes that do the same work must be the same: compared before a sweep, and refused by name where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.errors import InputError

MEMORY_TOLERANCE = 0.01  # firmware and kernel reserve a little more here, a little less there
DISK_TOLERANCE = 0.10  # of every figure of the disk's self-test
EQUAL = ("cpu_model", "cpu_cores", "kernel", "operating_system", "transparent_huge_pages")


@dataclass(frozen=True)
class Facts:
    """What one node is: its description, its servers' programs, and its disk as it was measured."""

    name: str
    description: dict[str, Any]
    programs: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the servers' programs, and what they say when asked for their version."""

    def properties(self) -> Iterable[tuple[str, Any, float]]:
        """Yield every property with its value and how far it may be off, as a share."""
        for name in EQUAL:
            yield name, self.description[name], 0.0
        yield "memory_bytes", self.description["memory_bytes"], MEMORY_TOLERANCE
        yield "node_root file system", self.description["node_root_device"]["file_system"], 0.0
        for name, value in self.programs.items():
            yield name, value or "not there", 0.0


def refuse_differences(role: str, nodes: list[Facts]) -> None:
    """Raise InputError when nodes of one role differ, with host, property and both values of every difference."""
    first, *others = nodes
    wanted = {name: (value, tolerance) for name, value, tolerance in first.properties()}
    found = []
    for other in others:
        present = {name: value for name, value, _ in other.properties()}
        for name in dict.fromkeys([*wanted, *present]):
            value, tolerance = wanted.get(name, ("not there", 0.0))
            if not _equal(value, present.get(name, "not there"), tolerance):
                allowed = f" (allowed: {tolerance:.0%} apart)" if tolerance else ""
                found.append(
                    f"{name} is {value} on {first.name} and {present.get(name, 'not there')} on {other.name}{allowed}"
                )
    if found:
        raise InputError(
            f"the {role} are not the same, so their trials would not be comparable: {'; '.join(found)}. Make them"
            " equal, or leave a lane out of the inventory"
        )


def refuse_unlike_disks(figures: Mapping[str, Mapping[str, float]]) -> None:
    """Raise InputError when the disks' self-tests (host -> test -> figure) differ between hosts."""
    (first, wanted), *others = figures.items()
    found = [
        f"{test} is {value:.4g} on {first} and {present.get(test, 0.0):.4g} on {other}"
        for other, present in others
        for test, value in wanted.items()
        if not _equal(value, present.get(test, 0.0), DISK_TOLERANCE)
    ]
    if found:
        raise InputError(
            f"the disks of the DB nodes are not the same (allowed: {DISK_TOLERANCE:.0%} apart): {'; '.join(found)}."
            " Stop what else runs there, or leave a lane out of the inventory"
        )


def _equal(one: Any, other: Any, tolerance: float) -> bool:
    if tolerance and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= tolerance * max(abs(one), abs(other))
    return bool(one == other)
