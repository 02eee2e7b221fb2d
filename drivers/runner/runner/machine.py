"""What trials run on: CPU sets, and the descriptions of hosts and of this machine."""

from __future__ import annotations

import functools
import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.agent import Agent
from runner.errors import InputError

BUSY_SHARE = 0.5  # a load average above this share of the cores disturbs what is measured


@dataclass(frozen=True)
class CpuSets:
    """Which CPUs the servers and which the terminals may use, in the kernel's list notation (``0-5``)."""

    server: str
    client: str
    shared: bool = False


def halves(available: list[int]) -> CpuSets:
    """Give the first half of one machine's CPUs to the server, the second half to the terminals.

    On one CPU both share it: `shared` is then true, and the figures say little.
    """
    cpus = sorted(available)
    half = len(cpus) // 2
    if half == 0:
        return CpuSets(cpu_list(cpus), cpu_list(cpus), shared=True)
    return CpuSets(cpu_list(cpus[:half]), cpu_list(cpus[half:]))


def cpu_sets(db: dict[str, Any], client: dict[str, Any], server_cpus: str = "", client_cpus: str = "") -> CpuSets:
    """Divide the CPUs of a lane's nodes: halves on one machine, all of each on two.

    `server_cpus` and `client_cpus`, where given, are the inventory's; raises InputError when a node lacks them.
    """
    together = same_machine(db, client)
    found = halves(db["cpus"]) if together else CpuSets(cpu_list(db["cpus"]), cpu_list(client["cpus"]))
    for name, wanted, node in (("server_cpus", server_cpus, db), ("client_cpus", client_cpus, client)):
        if absent := sorted(set(cpu_numbers(wanted, name)) - set(node["cpus"])):
            raise InputError(
                f"{name}: {wanted!r} names CPU {absent[0]}, but {node['hostname']} offers {cpu_list(node['cpus'])}"
            )
    server, terminals = server_cpus or found.server, client_cpus or found.client
    common = set(cpu_numbers(server, "server_cpus")) & set(cpu_numbers(terminals, "client_cpus"))
    return CpuSets(server, terminals, shared=together and bool(common))


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two descriptions are of one running kernel, under whatever names."""
    return bool(one["boot_id"] == other["boot_id"])


def cpu_list(cpus: list[int]) -> str:
    """Write CPU numbers as the kernel does: ``0-3,8``."""
    parts: list[str] = []
    start = previous = None
    for cpu in [*cpus, None]:
        if previous is not None and cpu != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = None
        if start is None:
            start = cpu
        previous = cpu
    return ",".join(parts)


def cpu_numbers(listed: str, name: str) -> list[int]:
    """Read CPU numbers in the kernel's notation; raises InputError with the variable's `name` for anything else."""
    numbers: list[int] = []
    for part in filter(None, listed.split(",")):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise InputError(f"{name}: {listed!r} is no list of CPUs; allowed: numbers and ranges, e.g. 0,2-3")
        numbers += range(int(first), int(last) + 1)
    return numbers


def count_cpus(listed: str) -> int:
    """Count the CPUs of a list in the kernel's notation: ``0-3,8`` are five."""
    return len(cpu_numbers(listed, "CPU list"))


def identity(description: dict[str, Any]) -> str:
    """Name what shapes every figure measured on a machine: CPU model, cores, memory and kernel release.

    The same for every virtual machine of one kind: nothing in it is of a single machine. Memory is what was built in,
    in whole GiB: of that the kernel reserves a little more here, a little less there.
    """
    memory_gib = math.ceil(description["memory_bytes"] / (1 << 30))
    return (
        f"{description['cpu_model']}, {description['cpu_cores']} cores, {memory_gib} GiB,"
        f" kernel {description['kernel']}"
    )


def without_kernel(identity: str) -> str:
    """Take the kernel out of a lane's identity: what is left is the hardware."""
    return re.sub(r", kernel [^;]*", "", identity)


def load_warning(name: str, description: dict[str, Any]) -> str:
    """Say that other programs keep a machine busy; empty when they do not."""
    load, cores = description["load_average"][0], description["cpu_cores"]
    if load <= BUSY_SHARE * cores:
        return ""
    return (
        f"the load average of {name} is {load:.1f} on {cores} cores: something else runs, and the figures will suffer"
        " from it"
    )


@functools.cache
def rustc(root: Path) -> str:
    """Ask the toolchain that set-up chose for its version; ``unknown`` before there is one."""
    try:
        directory = (root / ".tools" / "cargo-directory").read_text(encoding="utf-8").strip()
        done = subprocess.run([f"{directory}/rustc", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def file_system(path: Path) -> dict[str, Any]:
    """Return device, type and free bytes of this machine's file system below `path` or its nearest ancestor."""
    return Agent().file_system(str(path))
