"""What the trial ran on: CPU sets, hardware and its settings, the servers' processes and their memory."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
BUSY_SHARE = 0.5  # a load average above this share of the cores disturbs what is measured


@dataclass(frozen=True)
class CpuSets:
    """Which CPUs the servers and which the terminals may use, in the kernel's list notation (``0-5``)."""

    server: str
    client: str
    shared: bool = False


def cpu_sets(cpus: list[int] | None = None) -> CpuSets:
    """Give the first half of the available CPUs to the server, the second half to the terminals.

    On one CPU both share it: `shared` is then true, and the figures say little.
    """
    available = sorted(cpus if cpus is not None else os.sched_getaffinity(0))
    half = len(available) // 2
    if half == 0:
        return CpuSets(cpu_list(available), cpu_list(available), shared=True)
    return CpuSets(cpu_list(available[:half]), cpu_list(available[half:]))


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


def count_cpus(listed: str) -> int:
    """Count the CPUs of a list in the kernel's notation: ``0-3,8`` are five."""
    ends = [part.split("-") for part in listed.split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def identity() -> str:
    """Name what shapes every figure measured on this machine: CPU model, cores and kernel release."""
    return f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores, kernel {platform.release()}"


def describe(node_root: Path, root: Path) -> dict[str, Any]:
    """Return kernel, CPU, memory, load, the file system below `node_root`, and the toolchain of the checkout `root`."""
    return {
        "kernel": platform.release(),
        "operating_system": _os_name(),
        "cpu_model": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "node_root_device": file_system(node_root),
        "transparent_huge_pages": _text_of(HUGE_PAGES) or "unknown",
        "load_average": list(os.getloadavg()),
        "rustc": _rustc(root / ".tools" / "cargo-directory"),
    }


def load_warning() -> str:
    """Say that other programs keep this machine busy; empty when they do not."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= BUSY_SHARE * cores:
        return ""
    return f"the load average is {load:.1f} on {cores} cores: something else runs, and the figures will suffer from it"


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


@functools.cache
def _rustc(chosen: Path) -> str:
    """Ask the toolchain that set-up chose for its version; ``unknown`` before there is one."""
    directory = _text_of(chosen)
    if not directory:
        return "unknown"
    try:
        done = subprocess.run([f"{directory}/rustc", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _text_of(Path("/proc/cpuinfo")), re.M)
    return found.group(1) if found else platform.processor() or "unknown"


def existing(path: Path) -> Path:
    """Return `path` or its nearest ancestor that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def file_system(path: Path) -> dict[str, Any]:
    """Return device, type and free bytes of the file system below `path` (or its nearest existing ancestor)."""
    place = existing(path).resolve()
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda m: len(m.mountpoint), reverse=True)
    mount = next((m for m in mounts if place.is_relative_to(m.mountpoint)), None)
    return {
        "device": mount.device if mount else "unknown",
        "file_system": mount.fstype if mount else "unknown",
        "free_bytes": psutil.disk_usage(str(place)).free,
    }


def reset_memory_peaks(pids: dict[str, int]) -> list[str]:
    """Set the kernel's peak of each process back to its present size; return the names where that failed."""
    failed = []
    for name, pid in pids.items():
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # 5 = reset VmHWM, see proc(5)
        except OSError:
            failed.append(name)
    return failed


def memory_of(pids: dict[str, int]) -> dict[str, dict[str, int]]:
    """Return present and peak resident bytes per process; a process that is gone is left out."""
    found: dict[str, dict[str, int]] = {}
    for name, pid in pids.items():
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        sizes = {key: int(kib) * 1024 for key, kib in re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB$", status, re.M)}
        if sizes:
            found[name] = {"peak_bytes": sizes.get("VmHWM", 0), "resident_bytes": sizes.get("VmRSS", 0)}
    return found


Processes = dict[str, psutil.Process | None]
"""Servers by name, each with the process that it was when it started; None for one that was gone by then."""


def processes(pids: dict[str, int]) -> Processes:
    """Look up the servers' processes, to be told apart later from others that got the same process ids."""
    return {name: _process(pid) for name, pid in pids.items()}


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def dead(servers: Processes) -> list[str]:
    """Name the servers that do not run any more; neither a zombie nor another process with the same id counts."""
    return [name for name, process in servers.items() if process is None or not _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
