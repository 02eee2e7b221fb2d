"""Says what is missing or wrong on this machine, and how to mend it: `make doctor`.

Runs before anything is installed, so it uses the standard library only. One line per check: ok, warn or FAIL. Exit
status 1 when a check is FAIL: set-up or the smoke run would fail; a warning means slower, less exact, or a later part.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIB = 1024**3
NEEDED_DISK_BYTES = 8 * GIB  # environment, build, servers and the data sets of the smoke scale
WANTED_MEMORY_BYTES = 8 * GIB
NEEDED_MEMORY_BYTES = 4 * GIB
NEEDED_CPUS = 2
NEEDED_OPEN_FILES = 512
BUSY_SHARE = 0.5  # of the CPUs: as in drivers/runner/runner/machine.py, which warns before a sweep
PORTS = {"MySQL": 23061, "Memcached": 23062, "anticached": 23063}
DEBIAN_RELEASE = "12"
SYS_IO_URING_SETUP = 425  # the same number on x86-64 and arm64
IO_URING_PARAMS_BYTES = 120
DIRECT_IO_BYTES = 4096

sys.path.insert(0, str(ROOT / "ansible" / "module_utils"))
import control_groups  # noqa: E402  (the repository's own, beside the roles that start the servers)
import daemons  # noqa: E402


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    level: str  # "ok", "warn" or "FAIL"
    subject: str
    message: str
    remedy: str = ""

    def line(self) -> str:
        """The finding as printed."""
        return f"{self.level:4}  {self.subject:16} {self.message}" + (f" -> {self.remedy}" if self.remedy else "")


def run(*command: str) -> str | None:
    """Standard output of a command, or None when it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def read(path: str) -> str | None:
    """A file's text without the line's end, or None."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def version_of(text: str | None) -> tuple[int, ...]:
    """The first dotted number of a text: "cargo 1.88.0 (…)" -> (1, 88, 0); empty when there is none."""
    match = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def check_release(os_release: str | None) -> Finding:
    """The Debian release, from the text of /etc/os-release."""
    fields = dict(line.split("=", 1) for line in (os_release or "").splitlines() if "=" in line)
    name = fields.get("PRETTY_NAME", "unknown system").strip('"')
    if fields.get("ID", "").strip('"') != "debian":
        return Finding("FAIL", "system", name, "set-up installs Debian packages: use Debian 12")
    if fields.get("VERSION_ID", "").strip('"') != DEBIAN_RELEASE:
        return Finding("warn", "system", name, f"only Debian {DEBIAN_RELEASE} is tested")
    return Finding("ok", "system", name)


def check_python() -> Finding:
    """Python 3.11 with the venv module."""
    probe = "import sys, venv, ensurepip; print(sys.version.split()[0]); sys.exit(sys.version_info[:2] != (3, 11))"
    for command in ("/usr/bin/python3.11", "python3.11", "python3"):
        version = run(command, "-c", probe)
        if version:
            return Finding("ok", "python", f"{version.strip()} with venv ({command})")
    return Finding(
        "warn", "python", "no Python 3.11 with the venv module", "`make setup` installs python3-venv as root"
    )


def check_cargo(manifest: str) -> Finding:
    """A cargo that is new enough for the workspace, whose Cargo.toml is given as text."""
    wanted = version_of((re.search(r'^rust-version *= *"(.*)"', manifest, re.M) or [""])[0])
    found = max((version_of(run(path, "--version")) for path in ("cargo", "/usr/bin/cargo")), default=())
    shown = ".".join(map(str, found)) or "none"
    if found < wanted:
        needed = ".".join(map(str, wanted))
        return Finding("warn", "cargo", f"{shown}, wanted {needed}", "`make setup` installs cargo-web as root")
    return Finding("ok", "cargo", shown)


def check_npm() -> Finding:
    """The client that fetches the MySQL package."""
    version = run("npm", "--version")
    if version is None:
        return Finding("warn", "npm", "not there", "`make setup` installs it as root")
    return Finding("ok", "npm", version.strip().splitlines()[-1])


def check_packages(listing: str, is_installed: Callable[[str], bool]) -> Finding:
    """The unconditional packages of the lists (their text is given), and the right to install missing ones."""
    names = [line.split() for line in listing.splitlines() if line.strip() and not line.startswith("#")]
    missing = [words[0] for words in names if len(words) == 1 and not is_installed(words[0])]
    if not missing:
        return Finding("ok", "packages", "all there")
    remedy = f"apt-get install {' '.join(missing)}"
    if os.geteuid() == 0 or shutil.which("sudo"):
        return Finding("warn", "packages", f"missing: {' '.join(missing)}", "`make setup` installs them")
    return Finding(
        "FAIL", "packages", f"missing, and this user cannot install them: {' '.join(missing)}", f"as root: {remedy}"
    )


def is_installed(package: str) -> bool:
    """Whether dpkg has a package installed."""
    return run("dpkg-query", "--show", "--showformat=${db:Status-Status}", package) == "installed"


def check_disk(free_bytes: int) -> Finding:
    """Free space where the repository is."""
    message = f"{free_bytes / GIB:.1f} GiB free, {NEEDED_DISK_BYTES / GIB:.0f} GiB wanted for the smoke scale"
    if free_bytes < NEEDED_DISK_BYTES // 2:
        return Finding("FAIL", "disk space", message, "make room, or `make clean`")
    if free_bytes < NEEDED_DISK_BYTES:
        return Finding("warn", "disk space", message, "enough for what is built already; more for a fresh clone")
    return Finding("ok", "disk space", message)


def check_memory(available_bytes: int) -> Finding:
    """Memory that can be had without swapping."""
    message = f"{available_bytes / GIB:.1f} GiB available"
    if available_bytes < NEEDED_MEMORY_BYTES:
        return Finding(
            "FAIL", "memory", f"{message}, {NEEDED_MEMORY_BYTES / GIB:.0f} GiB needed", "stop other programs"
        )
    if available_bytes < WANTED_MEMORY_BYTES:
        return Finding("warn", "memory", f"{message}, {WANTED_MEMORY_BYTES / GIB:.0f} GiB wanted", "SCALE=smoke only")
    return Finding("ok", "memory", message)


def available_memory_bytes() -> int:
    """MemAvailable of the kernel, capped by the control group's limit where there is one."""
    text = read("/proc/meminfo") or ""
    match = re.search(r"^MemAvailable: +(\d+) kB", text, re.M)
    available = int(match.group(1)) * 1024 if match else 0
    limit = read("/sys/fs/cgroup/memory.max") or "max"
    return min(available, int(limit)) if limit.isdigit() else available


def check_cpus(count: int) -> Finding:
    """Servers and terminals each need a CPU of their own."""
    if count < NEEDED_CPUS:
        return Finding("FAIL", "cpus", f"{count}", "two are needed: one for the servers, one for the terminals")
    return Finding("ok", "cpus", f"{count} usable")


def check_port(system: str, port: int) -> Finding:
    """Nobody else listens on a server's port."""
    if not daemons.listening_inodes(port):
        return Finding("ok", f"port {port}", f"free for {system}")
    holders = ", ".join(map(daemons.describe_process, daemons.holders_of_port(port))) or "a process of another user"
    return Finding("warn", f"port {port}", f"in use by {holders}", f"stop it, or `make clean` if it is ours ({system})")


def check_stale_servers(node_root: Path) -> Finding:
    """Servers of an earlier run that were never stopped."""
    states = [daemons.running_state(path) for path in daemons.files_of_servers(node_root, "*.daemon.json")]
    running = [f"{state['name']} ({state['pid']})" for state in states if state]
    if running:
        return Finding(
            "warn", "servers", f"running from before: {', '.join(running)}", "a run that goes on, or `make clean`"
        )
    return Finding("ok", "servers", "none of ours is running")


def check_io_uring() -> Finding:
    """The engine reads and writes blocks through io_uring: asks the kernel for a ring of one entry."""
    library = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(IO_URING_PARAMS_BYTES)
    descriptor = library.syscall(SYS_IO_URING_SETUP, 1, parameters)
    if descriptor >= 0:
        os.close(descriptor)
        return Finding("ok", "io_uring", "available")
    reason = os.strerror(ctypes.get_errno())
    remedy = "sysctl kernel.io_uring_disabled=0; in a container, allow the io_uring system calls in its seccomp profile"
    setting = read("/proc/sys/kernel/io_uring_disabled") or "not there"
    return Finding("FAIL", "io_uring", f"{reason} (kernel.io_uring_disabled is {setting})", remedy)


def check_direct_io(directory: Path) -> Finding:
    """The file system takes O_DIRECT, which keeps data files out of the page cache: writes one aligned block."""
    place = directory if directory.is_dir() else directory.parent
    path = place / f".doctor-direct-io-{os.getpid()}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            with mmap.mmap(-1, DIRECT_IO_BYTES) as block:  # anonymous memory is aligned to a page
                os.write(descriptor, block)
        finally:
            os.close(descriptor)
    except OSError as error:
        remedy = "put the repository on a disk's file system (ext4, xfs), not on tmpfs"
        return Finding("FAIL", "direct I/O", f"{place}: {error.strerror}", remedy)
    finally:
        path.unlink(missing_ok=True)
    return Finding("ok", "direct I/O", f"works in {place}")


def check_mysql(home: Path) -> Finding:
    """The MySQL server is unpacked and finds its libraries."""
    binary = home / "bin" / "mysqld"
    if not binary.exists():
        return Finding("warn", "mysql 5.6", "not installed yet", "`make setup`")
    missing = re.findall(r"(\S+) => not found", run("ldd", str(binary)) or "")
    if missing:
        return Finding("FAIL", "mysql 5.6", f"misses {', '.join(missing)}", "`make provision` installs libaio1")
    version = run(str(binary), "--no-defaults", "--version")
    if version is None:
        return Finding("FAIL", "mysql 5.6", f"{binary} does not run", f"rm -r {home} && make provision")
    return Finding("ok", "mysql 5.6", ".".join(map(str, version_of(version))))


def check_environment(root: Path) -> Finding:
    """The locked Python environment is complete and of this lock."""
    stamp = read(str(root / ".venv" / ".installed-from")) or ""
    digest = run("sha256sum", str(root / "requirements.lock")) or ""
    if not stamp or stamp.split()[0] != digest.split()[0]:
        return Finding("warn", "environment", "the locked Python environment is not there or old", "`make setup`")
    return Finding("ok", "environment", "the locked Python environment is there")


def check_limits(open_files: int, locked_bytes: int) -> Iterable[Finding]:
    """Soft limits of this shell: open files and locked memory (io_uring's registered buffers)."""
    if open_files != resource.RLIM_INFINITY and open_files < NEEDED_OPEN_FILES:
        yield Finding("FAIL", "open files", f"limit {open_files}, {NEEDED_OPEN_FILES} needed", "ulimit -n 4096")
    else:
        yield Finding("ok", "open files", f"limit {'none' if open_files == resource.RLIM_INFINITY else open_files}")
    if locked_bytes != resource.RLIM_INFINITY and locked_bytes < 8 * 1024 * 1024:
        yield Finding(
            "warn", "locked memory", f"limit {locked_bytes} bytes", "ulimit -l unlimited, for registered buffers"
        )
    else:
        yield Finding(
            "ok", "locked memory", f"limit {'none' if locked_bytes == resource.RLIM_INFINITY else locked_bytes}"
        )


def check_governor(governors: set[str]) -> Finding:
    """The CPU frequency governor: anything but performance makes figures vary."""
    others = sorted(governors - {"performance"})
    if others:
        remedy = "as root: cpupower frequency-set -g performance"
        return Finding("warn", "cpu governor", f"{', '.join(others)}: throughput will vary", remedy)
    return Finding("ok", "cpu governor", "performance" if governors else "not visible (a virtual machine)")


def check_load(load_average: float, count: int) -> Finding:
    """Other programs take the CPUs that servers and terminals need; recorded with every trial."""
    message = f"average {load_average:.1f} on {count} cpus"
    if load_average > BUSY_SHARE * count:
        return Finding("warn", "load", f"{message}: figures will suffer", "stop other programs before a run")
    return Finding("ok", "load", message)


def check_huge_pages(setting: str | None) -> Finding:
    """Transparent huge pages change the engine's and MySQL's speed; recorded with every trial."""
    chosen = re.search(r"\[(\w+)\]", setting or "")
    return Finding("ok", "huge pages", f"transparent: {chosen.group(1) if chosen else 'not there'}")


def check_control_groups(node: control_groups.Node) -> Finding:
    """Whether a deployment's memory can be limited; it is not tried, so a container may still refuse."""
    subject = "control groups"
    try:
        kind = control_groups.detect(node)
    except control_groups.ControlGroupError as error:
        return Finding("FAIL", subject, f"memory cannot be limited: {error.problem}", error.remedy)
    by = f"systemd's {kind.manager} manager" if kind.manager else "directories"
    described = f"version {kind.version}, by {by}: memory can be limited"
    if kind.cpuset is None:
        return Finding("warn", subject, described, f"{kind.why_no_cpuset}: CPU sets are the servers' affinity alone")
    return Finding("ok", subject, f"{described}, and CPUs")


def check_emulated_disk() -> Finding:
    """What the emulated disk needs; DISK=none does not."""
    remedy = "load them (modprobe fuse loop), or measure on the machine's own disk: make smoke DISK=none"
    missing = [path for path in ("/dev/fuse", "/dev/loop-control") if not Path(path).exists()]
    if missing:
        return Finding("warn", "emulated disk", f"no {', '.join(missing)}", remedy)
    if os.geteuid() != 0 and not shutil.which("sudo"):
        return Finding("warn", "emulated disk", "neither root nor sudo", "run as root, or: make smoke DISK=none")
    return Finding("ok", "emulated disk", "/dev/fuse and loop devices are there")


def findings(root: Path) -> Iterable[Finding]:
    """Every check of this machine, for the checkout at `root`."""
    yield check_release(read("/etc/os-release"))
    lists = sorted((root / "setup").glob("debian-packages*.txt"))
    yield check_packages("".join(path.read_text(encoding="utf-8") for path in lists), is_installed)
    yield check_python()
    yield check_cargo((root / "Cargo.toml").read_text(encoding="utf-8"))
    yield check_npm()
    yield check_environment(root)
    yield check_mysql(root / ".tools" / "mysql-5.6.24")
    yield check_cpus(len(os.sched_getaffinity(0)))
    yield check_memory(available_memory_bytes())
    yield check_disk(shutil.disk_usage(root).free)
    yield check_direct_io(root / "var")
    yield check_io_uring()
    yield from check_limits(
        resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    )
    yield check_stale_servers(root / "var")
    for system, port in PORTS.items():
        yield check_port(system, port)
    governor_files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    yield check_governor({read(str(path)) or "unknown" for path in governor_files})
    yield check_load(os.getloadavg()[0], len(os.sched_getaffinity(0)))
    yield check_huge_pages(read("/sys/kernel/mm/transparent_hugepage/enabled"))
    yield check_control_groups(control_groups.Node())
    yield check_emulated_disk()


def main() -> int:
    """Prints the findings; 1 when one of them is FAIL."""
    levels = []
    for finding in findings(ROOT):
        print(finding.line(), flush=True)
        levels.append(finding.level)
    failures, warnings = levels.count("FAIL"), levels.count("warn")
    print(f"{len(levels)} checks: {failures} failures, {warnings} warnings")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
