"""The systems under test, by the names that workloads, tables and figures use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

System = Literal["mysql", "mysql-memcached", "anticache-lru", "anticache-alru", "anticache-off"]
SYSTEMS: tuple[str, ...] = get_args(System)
WITHOUT_EVICTION = "anticache-off"
EVICTING = ("anticache-lru", "anticache-alru")


@dataclass(frozen=True)
class Kind:
    """What the runner has to know of a system besides its name."""

    family: str
    """The primary store that it loads. Data sets of `mysql` are kept; any other store is loaded at each deployment."""
    adapter: str
    """Which of loadgen's adapters drives it; a deployment leaves its endpoint file under this name."""


KINDS = {
    "mysql": Kind("mysql", "mysql"),
    "mysql-memcached": Kind("mysql", "mysql-memcached"),
    "anticache-lru": Kind("anticache", "anticache"),
    "anticache-alru": Kind("anticache", "anticache"),
    "anticache-off": Kind("anticache", "anticache"),
}
ADAPTERS = tuple(dict.fromkeys(kind.adapter for kind in KINDS.values()))


def family(system: str) -> str:
    """Return which primary store a system loads: `mysql` and `mysql-memcached` share one.

    Empty for a system that only records know: of another installation, or of another version of this harness.
    """
    return KINDS[system].family if system in KINDS else ""


def adapter_of(system: str) -> str:
    """Return which of loadgen's adapters drives a system."""
    return KINDS[system].adapter
