"""Control groups: the memory limit and the CPU set that the kernel enforces on a deployed system.

All servers of a deployment are in one group, because they share one memory budget. What it is made of depends on the
node:

version 1            directories below the tops of the hierarchies `memory` and `cpuset`; needs root. Under systemd each
                     server is started in a scope with Delegate=yes, or systemd would move it to a group of its own.
version 2            a directory below the top of the hierarchy, as far as this process sees it; needs root.
version 2, systemd   the tree is systemd's, so systemd makes it: a slice that carries the limits, and a scope in it for
                     each server. Root asks the system's manager, another user asks his own (`systemd-run --user`),
                     which must outlive his sessions (`loginctl enable-linger`).

A server joins before its program is executed, so nothing that it allocates is outside. The group counts the page
cache of the files that its servers touch; the kernel reclaims that before it refuses memory to anybody.

Only the standard library is used: these functions run on the node, under whatever Python it has (>= 3.9).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

NAME_PREFIX = "anticache_eval_"  # no dash: systemd reads "a-b.slice" as a slice b inside a slice a
PAGE_BYTES = 4096
REMOVE_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.02
COMMAND_TIMEOUT_S = 30.0
NOT_WANTED = "memory_enforced is false in the inventory"
AS_ROOT = "run as root, with a writable /sys/fs/cgroup"
WITHOUT = "or set memory_enforced: false in the inventory: the run is then marked as not enforced"

# Writes its own process id into the files before "--", then becomes the server, in the same process.
JOIN_SCRIPT = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'

# What the runner reads, by version. Absent: the kernel does not offer it.
V1, V2 = 1, 2
FILES: dict[int, dict[str, str]] = {
    V1: {
        "peak": "memory.max_usage_in_bytes",
        "current": "memory.usage_in_bytes",
        "limit": "memory.limit_in_bytes",
        "limit_hits": "memory.failcnt",
        "limit_hits_with_swap": "memory.memsw.failcnt",
        "events": "memory.oom_control",
        "stat": "memory.stat",
    },
    V2: {
        "peak": "memory.peak",
        "current": "memory.current",
        "limit": "memory.max",
        "events": "memory.events",
        "stat": "memory.stat",
    },
}


class ControlGroupError(Exception):
    """A control group cannot be had, or does not hold; the message says what, with which value, and what to do."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        """Joins both to one message; with a remedy, the other way out is named too."""
        self.problem, self.remedy = problem, f"{remedy}, {WITHOUT}" if remedy else ""
        super().__init__(f"{problem}: {self.remedy}" if remedy else problem)


def run_command(command: list[str]) -> str:
    """Standard output of a command; raises ControlGroupError with what it said when it fails."""
    environment = {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}", **os.environ}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ControlGroupError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
        raise ControlGroupError(f"{' '.join(command)} failed: {said}")
    return done.stdout.strip()


@dataclass(frozen=True)
class Node:
    """Where to look: the real machine, or in tests a tree of files and a recorder of commands."""

    root: Path = Path("/")
    run: Callable[[list[str]], str] = run_command
    user: int = field(default_factory=os.geteuid)

    def path(self, absolute: str) -> Path:
        """A path of the machine below `root`."""
        return self.root / absolute.lstrip("/")

    @property
    def systemd(self) -> bool:
        """Whether systemd runs as process 1; the test that sd_booted(3) makes."""
        return self.path("/run/systemd/system").is_dir()


@dataclass(frozen=True)
class Wanted:
    """What a deployment asks for."""

    name: str  # what tells this deployment from others on the node, e.g. node root and deployment id
    budget_bytes: int
    allowance_bytes: int  # for code, connections and the allocator, beside the budget; the same for every system
    cpus: list[int] = field(default_factory=list)  # empty: any
    enforced: bool = True

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Wanted:
        """From a module's arguments, where numbers may be text; raises TypeError for an unknown key."""
        numbers = {name: int(options[name]) for name in ("budget_bytes", "allowance_bytes")}
        cpus = [int(cpu) for cpu in options.get("cpus", [])]
        enforced = str(options.get("enforced", True)).lower() not in ("false", "no", "0")
        return cls(**{**options, **numbers, "cpus": cpus, "enforced": enforced})

    @property
    def limit_bytes(self) -> int:
        """Budget plus allowance, in whole pages, as the kernel keeps it."""
        return (self.budget_bytes + self.allowance_bytes) // PAGE_BYTES * PAGE_BYTES

    @property
    def unit(self) -> str:
        """Name of the group, the same for every server of the deployment."""
        return NAME_PREFIX + hashlib.sha256(self.name.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Kind:
    """How the node keeps control groups."""

    version: int
    memory: Path  # the directory below which a group is made
    cpuset: Path | None  # None: the controller is absent
    manager: str  # whom to ask: "" nobody, "system" or "user" for systemd
    why_no_cpuset: str = ""


@dataclass(frozen=True)
class Group:
    """A control group that exists. `asdict` of it stands in a daemon's state file."""

    version: int
    unit: str
    manager: str
    directories: list[str]  # that this module made and removes; with systemd on version 2, the slice's
    limit_bytes: int
    budget_bytes: int
    allowance_bytes: int
    cpuset: bool  # whether the CPU set is the group's too, or the processes' affinity alone
    why_no_cpuset: str = ""
    enforced: bool = True
    why_not: str = ""

    def endpoint(self) -> dict[str, Any]:
        """What the runner needs to read peak and failures, for endpoint.json."""
        described = asdict(self)
        described["directory"] = self.directories[0] if self.directories else ""
        del described["directories"]
        described["path"] = {}
        if self.enforced:
            names = FILES[self.version].items()
            found = {key: Path(self.directories[0]) / name for key, name in names}
            described["path"] = {key: str(path) for key, path in found.items() if path.exists()}
        return described


def not_enforced(wanted: Wanted, why_not: str = NOT_WANTED) -> Group:
    """The record of a deployment without a group."""
    return Group(
        version=0,
        unit="",
        manager="",
        directories=[],
        limit_bytes=wanted.limit_bytes,
        budget_bytes=wanted.budget_bytes,
        allowance_bytes=wanted.allowance_bytes,
        cpuset=False,
        enforced=False,
        why_not=why_not,
    )


def read(path: Path) -> str:
    """Content of a file of the kernel, stripped; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def write(path: Path, text: str) -> None:
    """Writes a file of the kernel; raises ControlGroupError with file, value and reason."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ControlGroupError(f'cannot write "{text}" to {path}: {error.strerror}', AS_ROOT) from error


# -- which kind the node has -------------------------------------------------------------------------------------


def mounts(node: Node) -> tuple[dict[str, Path], Path | None]:
    """Mount points of the version 1 hierarchies by controller, and of version 2's (mountinfo, proc(5))."""
    old: dict[str, Path] = {}
    unified = None
    for line in read(node.path("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = node.path(before.split()[4])
        if kind == "cgroup":
            old.update(dict.fromkeys(options.split(","), place))
        elif kind == "cgroup2":
            unified = place
    return old, unified


def detect(node: Node) -> Kind:
    """How this node keeps control groups; raises ControlGroupError where memory cannot be limited."""
    old, unified = mounts(node)
    if "memory" in old:
        if node.user != 0:
            raise ControlGroupError(f"control groups of version 1 need root, this is user {node.user}", AS_ROOT)
        why = "" if "cpuset" in old else "no cpuset hierarchy is mounted"
        return Kind(V1, old["memory"], old.get("cpuset"), "system" if node.systemd else "", why)
    if unified is None:
        raise ControlGroupError("no control group hierarchy is mounted", "mount -t cgroup2 none /sys/fs/cgroup")
    offered = read(unified / "cgroup.controllers").split()
    if "memory" not in offered:
        raise ControlGroupError(
            f"{unified}/cgroup.controllers offers no memory controller, only: {' '.join(offered) or 'nothing'}",
            "enable it (the kernel's command line may hold cgroup_disable=memory)",
        )
    cpuset = unified if "cpuset" in offered else None
    why = "" if cpuset else f"{unified}/cgroup.controllers offers no cpuset controller"
    if node.systemd:
        manager = "system" if node.user == 0 else "user"
        if manager == "user":
            require_linger(node)
        return Kind(V2, unified, cpuset, manager, why)
    if node.user != 0 and not os.access(unified, os.W_OK):
        raise ControlGroupError(f"user {node.user} may not make groups in {unified}", AS_ROOT)
    return Kind(V2, unified, cpuset, "", why)


def require_linger(node: Node) -> None:
    """Raises ControlGroupError when a user's own manager, and the servers with it, would end with his last session."""
    try:
        user = pwd.getpwuid(node.user).pw_name
    except KeyError:
        user = str(node.user)
    if not node.path(f"/var/lib/systemd/linger/{user}").exists():
        raise ControlGroupError(
            f"the servers would end with the last session of {user}",
            f"run `loginctl enable-linger {user}` once as root, or deploy as root",
        )


# -- making a group ----------------------------------------------------------------------------------------------


def ensure(wanted: Wanted, node: Node | None = None) -> Group:
    """The deployment's group, made or found; raises ControlGroupError when it cannot be had or does not hold."""
    if not wanted.enforced:
        return not_enforced(wanted)
    node = node or Node()
    kind = detect(node)
    try:
        group = make(wanted, kind, node)
        require_limit(group)
    except ControlGroupError:
        abandon(wanted, kind, node)
        raise
    return group


def make(wanted: Wanted, kind: Kind, node: Node) -> Group:
    """The group in the way of the node's kind."""
    if kind.version == V1:
        return make_old(wanted, kind, node)
    if not kind.manager:
        return make_unified(wanted, kind)
    directory, cpuset = make_slice(wanted, kind, node)
    return describe(wanted, kind, [directory], cpuset)


def abandon(wanted: Wanted, kind: Kind, node: Node) -> None:
    """Removes what was made of a group before something failed; one that a server is in stays."""
    places = [parent / wanted.unit for parent in (kind.memory, kind.cpuset) if parent is not None]
    if kind.manager and kind.version == V2:
        places = [kind.memory / f"{wanted.unit}.slice"]
    half_made = replace(
        not_enforced(wanted), version=kind.version, unit=wanted.unit, manager=kind.manager, enforced=True
    )
    with contextlib.suppress(ControlGroupError):
        remove(replace(half_made, directories=[str(place) for place in places]), node)


def describe(wanted: Wanted, kind: Kind, directories: list[Path], cpuset: bool) -> Group:
    """The record of a group that was just made."""
    why_no_cpuset = kind.why_no_cpuset or ("" if wanted.cpus else "the deployment names no CPUs")
    if not cpuset and not why_no_cpuset:
        why_no_cpuset = "the manager does not pass the cpuset controller on"
    return Group(
        version=kind.version,
        unit=wanted.unit,
        manager=kind.manager,
        directories=[str(directory) for directory in directories],
        limit_bytes=wanted.limit_bytes,
        budget_bytes=wanted.budget_bytes,
        allowance_bytes=wanted.allowance_bytes,
        cpuset=cpuset,
        why_no_cpuset=why_no_cpuset,
    )


def make_directory(path: Path) -> None:
    """Makes a group's directory, or an empty one anew: peak and counts of an earlier deployment must not remain."""
    try:
        if path.is_dir() and not read(path / "cgroup.procs"):
            path.rmdir()
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ControlGroupError(f"cannot make the control group {path}: {error.strerror}", AS_ROOT) from error


def swap(node: Node) -> bool:
    """Whether the node has swap space in use."""
    return len(read(node.path("/proc/swaps")).splitlines()) > 1


def make_old(wanted: Wanted, kind: Kind, node: Node) -> Group:
    """Version 1: one directory in each of the two hierarchies."""
    memory = kind.memory / wanted.unit
    make_directory(memory)
    write(memory / "memory.limit_in_bytes", str(wanted.limit_bytes))
    # Memory and swap together: no swap beside the limit. Only where there is swap: this limit is asked first, and
    # a recent kernel (seen on 6.18) counts nothing when it is met.
    if swap(node) and (memory / "memory.memsw.limit_in_bytes").exists():
        write(memory / "memory.memsw.limit_in_bytes", str(wanted.limit_bytes))
    if (memory / "memory.swappiness").exists():
        write(memory / "memory.swappiness", "0")
    directories = [memory]
    if kind.cpuset is not None and wanted.cpus:
        cpuset = kind.cpuset / wanted.unit
        make_directory(cpuset)
        directories.append(cpuset)
        write(cpuset / "cpuset.mems", read(kind.cpuset / "cpuset.mems"))  # a set without memory nodes takes no process
        write(cpuset / "cpuset.cpus", ",".join(map(str, wanted.cpus)))
    return describe(wanted, kind, directories, bool(directories[1:]))


def make_unified(wanted: Wanted, kind: Kind) -> Group:
    """Version 2 without systemd: one directory; its parent must pass the controllers on."""
    with_cpuset = kind.cpuset is not None and bool(wanted.cpus)
    for controller in ["memory", *(["cpuset"] if with_cpuset else [])]:
        pass_on(kind.memory, controller)
    directory = kind.memory / wanted.unit
    make_directory(directory)
    write(directory / "memory.max", str(wanted.limit_bytes))
    if (directory / "memory.swap.max").exists():
        write(directory / "memory.swap.max", "0")
    if with_cpuset:
        write(directory / "cpuset.cpus", ",".join(map(str, wanted.cpus)))
    return describe(wanted, kind, [directory], with_cpuset)


def pass_on(parent: Path, controller: str) -> None:
    """Lets the groups below `parent` use a controller."""
    if controller in read(parent / "cgroup.subtree_control").split():
        return
    try:
        (parent / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
    except OSError as error:
        remedy = AS_ROOT
        if error.errno == errno.EBUSY:  # "no internal processes": the top group of a container, for one
            remedy = f"move the processes of {parent} to a child group first"
        raise ControlGroupError(
            f"{parent} does not pass on the {controller} controller: {error.strerror}", remedy
        ) from error


def systemctl(manager: str) -> list[str]:
    """The command that speaks to the manager."""
    return ["systemctl", *(["--user"] if manager == "user" else [])]


def make_slice(wanted: Wanted, kind: Kind, node: Node) -> tuple[Path, bool]:
    """Version 2 with systemd: a slice with the limits; returns its directory and whether it has the CPU set."""
    unit = f"{wanted.unit}.slice"
    ask = systemctl(kind.manager)
    cpus = [f"AllowedCPUs={' '.join(map(str, wanted.cpus))}"] if wanted.cpus else []
    limits = [f"MemoryMax={wanted.limit_bytes}", "MemorySwapMax=0", *cpus]
    node.run([*ask, "set-property", "--runtime", unit, *limits])
    node.run([*ask, "start", unit])
    path = node.run([*ask, "show", "--property=ControlGroup", "--value", unit])
    if not path.startswith("/"):
        raise ControlGroupError(f'systemd names no control group of {unit}: "{path}"')
    directory = kind.memory / path.lstrip("/")
    # A user's manager often lacks this controller, and ignores the property without a word.
    return directory, bool(wanted.cpus) and cpu_numbers(read(directory / "cpuset.cpus")) == set(wanted.cpus)


def cpu_numbers(text: str) -> set[int]:
    """CPUs of a list in the kernel's notation: "0-2,5"; empty for an empty list."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def require_limit(group: Group) -> None:
    """Asks the kernel for the limit in force; raises ControlGroupError when it is another one, or an outer group's."""
    directory = Path(group.directories[0])
    text = read(directory / FILES[group.version]["limit"])
    if text != str(group.limit_bytes):
        raise ControlGroupError(f"{directory} limits memory to {text or 'nothing'}, wanted {group.limit_bytes}")
    outer = outer_limit(group.version, directory)
    if outer is not None and outer < group.limit_bytes:
        raise ControlGroupError(
            f"a group around {directory} limits memory to {outer} bytes, less than budget {group.budget_bytes} +"
            f" allowance {group.allowance_bytes}: enlarge it, or choose a smaller SCALE"
        )


def outer_limit(version: int, directory: Path) -> int | None:
    """The smallest limit that this group or one around it has; None when there is none to be seen."""
    if version == V1:
        found = re.search(r"^hierarchical_memory_limit (\d+)$", read(directory / "memory.stat"), re.M)
        return int(found.group(1)) if found else None
    limits = [read(parent / "memory.max") for parent in directory.parents]
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


# -- joining and leaving -----------------------------------------------------------------------------------------


def command_in(group: Group, argv: list[str], name: str) -> list[str]:
    """The command that runs `argv` as a member of the group, in the process that it is started in."""
    if not group.enforced:
        return argv
    files = [f"{directory}/cgroup.procs" for directory in group.directories]
    joined = ["/bin/sh", "-c", JOIN_SCRIPT, name, *files, "--", *argv]
    if not group.manager:
        return joined
    # With --scope, systemd-run registers its own process and then becomes the command.
    scope = ["systemd-run", *(["--user"] if group.manager == "user" else []), "--scope", "--quiet", "--collect"]
    scope += [f"--unit={group.unit}-{name}", f"--description=anticache-eval: {name}"]
    if group.version == V1:
        return [*scope, "--property=Delegate=yes", "--", *joined]
    return [*scope, f"--slice={group.unit}.slice", "--", *argv]


def require_member(group: Group, pid: int, name: str, node: Node | None = None) -> None:
    """Raises ControlGroupError when a process is not in the group (proc(5): /proc/PID/cgroup)."""
    if not group.enforced:
        return
    node = node or Node()
    text = read(node.path(f"/proc/{pid}/cgroup"))
    memory = re.search(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(.*)$" if group.version == V1 else r"^0::(.*)$", text, re.M)
    if memory is None or not any(part.startswith(group.unit) for part in memory.group(1).split("/")):
        found = memory.group(1) if memory else "none"
        raise ControlGroupError(f"{name} (process {pid}) is not in its control group {group.unit} but in {found}")


def oom_kills(group: Group) -> int:
    """How many processes of the group the kernel has killed because the limit was reached."""
    if not group.enforced:
        return 0
    text = read(Path(group.directories[0]) / FILES[group.version]["events"])
    found = re.search(r"^oom_kill (\d+)$", text, re.M)
    return int(found.group(1)) if found else 0


def exceeded(group: Group, name: str) -> str:
    """Why the kernel ended a server; empty when it did not."""
    kills = oom_kills(group)
    if kills == 0:
        return ""
    return (
        f"{name} exceeded its memory: limit {group.limit_bytes} bytes = budget {group.budget_bytes} + allowance"
        f" {group.allowance_bytes}; oom_kill {kills}"
    )


def members(directory: Path) -> list[int]:
    """Live processes in a group's directory and in those below it; one that is ending is not counted."""
    files = [directory / "cgroup.procs", *directory.glob("*/cgroup.procs")]
    found = {int(pid) for path in files for pid in read(path).split()}
    return sorted(pid for pid in found if not ending(pid))


def ending(pid: int) -> bool:
    """Whether a process has ended, or its threads are about to (state Z or X in /proc/PID/stat)."""
    state = read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return not state or state[0] in "ZX"


def remove(group: Group, node: Node | None = None) -> bool:
    """Removes a group that no process is in; returns False when one is. A group that is gone is fine."""
    node = node or Node()
    if not group.enforced or not group.directories:
        return True
    if group.manager:
        if any(members(Path(directory)) for directory in group.directories):
            return False
        ask, unit = systemctl(group.manager), f"{group.unit}.slice"
        node.run([*ask, "stop", f"{group.unit}-*.scope"])  # they end with their servers, but not at once
        if group.version == V2:
            node.run([*ask, "stop", unit])
            node.run([*ask, "revert", unit])  # forgets the limits too
            return True
    gone = [remove_directory(Path(directory)) for directory in reversed(group.directories)]  # each, whatever the others
    return all(gone)


def remove_directory(directory: Path) -> bool:
    """Removes one directory; a process that has just ended may hold it for a moment."""
    deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
    while True:
        try:
            directory.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise ControlGroupError(f"cannot remove the control group {directory}: {error.strerror}") from error
            if members(directory) or time.monotonic() > deadline_s:
                return False
        time.sleep(POLL_INTERVAL_S)


def probe(node: Node | None = None) -> Kind:
    """Makes a group, looks at it and removes it; raises ControlGroupError where a deployment would fail."""
    node = node or Node()
    cpus = sorted(os.sched_getaffinity(0))[:1]
    group = ensure(Wanted(f"probe {os.getpid()}", budget_bytes=0, allowance_bytes=64 << 20, cpus=cpus), node)
    remove(group, node)
    return Kind(group.version, Path(group.directories[0]).parent, None, group.manager, group.why_no_cpuset)
