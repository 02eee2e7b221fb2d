"""What every command needs to know: where the checkout is, which inventory, which disk."""

from __future__ import annotations

from pathlib import Path

from runner import files, machine
from runner.errors import InputError
from runner.hosts import Host
from runner.workload import experiments_in
from runner.yamlfile import nearest

ROOT = files.ROOT
WORKLOADS = ROOT / "workloads"
NOTEBOOKS = ROOT / "notebooks"
PUBLISHED = ROOT / "results" / "published"


def experiments(text: str) -> list[str]:
    """Split a list of experiments; raises InputError when one has no workload file."""
    present = experiments_in(WORKLOADS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(f"no experiment given; present: {', '.join(present)}")
    for name in names:
        if name not in present:
            raise InputError(
                f"there is no experiment {name!r} (workloads/{name}.yml){nearest(name, present)};"
                f" present: {', '.join(present)}"
            )
    return names


def systems(text: str) -> list[str] | None:
    """Split a list of systems; empty means all of the experiment."""
    return names(text) or None


def names(text: str) -> list[str]:
    """Split a list of names with commas or blanks between them."""
    found = [name.strip() for name in text.replace(" ", ",").split(",") if name.strip()]
    return list(dict.fromkeys(found))


def node_variables(pairs: list[str]) -> dict[str, str | int]:
    """Read ``name=value`` overrides of inventory variables; numbers become numbers."""
    variables: dict[str, str | int] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--node-var {pair!r}: expected NAME=VALUE, e.g. mysql_port=43061")
        variables[name] = int(value) if value.isdigit() else value
    return variables


def check_space(path: Path, needed_bytes: int, host: Host | None = None) -> None:
    """Raise InputError when the file system of `path`, here or on `host`, has less than `needed_bytes` free."""
    place = host.file_system(path) if host is not None else machine.file_system(path)
    where = f"{path} on {host.name}" if host is not None and not host.is_here else str(path)
    if place["free_bytes"] < needed_bytes:
        raise InputError(
            f"{where} is on {place['device']} with {gigabytes(place['free_bytes'])} free; this needs about"
            f" {gigabytes(needed_bytes)}: free some space, or choose a smaller SCALE"
        )


def gigabytes(size_bytes: int) -> str:
    """Write a size for people."""
    return f"{size_bytes / 1e9:.1f} GB"
