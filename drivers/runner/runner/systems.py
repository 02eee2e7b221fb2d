"""The systems under test, by the names that workloads, tables and figures use."""

from __future__ import annotations

from typing import Literal, get_args

System = Literal["mysql", "mysql-memcached", "anticache-lru", "anticache-alru", "anticache-off"]
SYSTEMS: tuple[str, ...] = get_args(System)
Family = Literal["mysql", "anticache"]
WITHOUT_EVICTION = "anticache-off"
EVICTING = ("anticache-lru", "anticache-alru")


def family(system: str) -> Family:
    """Return which primary store a system loads: `mysql` and `mysql-memcached` share one."""
    return "mysql" if system.startswith("mysql") else "anticache"
