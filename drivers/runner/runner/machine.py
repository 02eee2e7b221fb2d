"""What the trial ran on: CPU sets, hardware, code identity, memory peaks."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# A change below one of these can change a measured number; a change elsewhere (documents, notebooks, tests of the
# runner) cannot, so it does not end a run that could be continued.
SHAPING_PATHS = ("ansible", "anticache-engine", "drivers/loadgen", "Cargo.toml", "Cargo.lock", "workloads/schemas")


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


@dataclass(frozen=True)
class Code:
    """Which code measured: commit, dirty flag, and a digest of only what can shape a number."""

    commit: str
    dirty: bool
    shaping: str


def code_identity(root: Path) -> Code:
    """Ask git about the checkout at `root`; a tree without git counts as dirty, its commit as ``unknown``."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout

    try:
        commit = git("rev-parse", "HEAD").strip()
        dirty = bool(git("status", "--porcelain", "--untracked-files=normal").strip())
        parts = [
            git("ls-tree", "HEAD", *SHAPING_PATHS),
            git("diff", "HEAD", "--", *SHAPING_PATHS),
        ]
        for name in sorted(git("ls-files", "--others", "--exclude-standard", "--", *SHAPING_PATHS).splitlines()):
            content = (root / name).read_bytes() if (root / name).is_file() else b""
            parts.append(f"{name} {hashlib.sha256(content).hexdigest()}")
    except (OSError, subprocess.CalledProcessError):
        return Code("unknown", True, "unknown")
    return Code(commit, dirty, hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16])


def describe(node_root: Path) -> dict[str, Any]:
    """Return kernel, CPU, memory and the file system that holds the servers' data."""
    return {
        "kernel": platform.release(),
        "operating_system": _os_name(),
        "cpu_model": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "node_root_device": file_system(node_root),
    }


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    except OSError:
        found = None
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


def alive(pids: dict[str, int]) -> dict[str, bool]:
    """Tell for each process whether it still runs (a zombie does not)."""
    states = {}
    for name, pid in pids.items():
        try:
            states[name] = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            states[name] = False
    return states
