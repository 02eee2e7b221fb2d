"""Starting and stopping servers by pid file, with or without systemd on the node.

A *daemon* is one server process in its own session, with a directory that holds its log, its pid file and a state file
that tells what was started. Stopping looks at the state file only, and compares the process's start time, so that a
process id that was used again is never signalled.

Only the standard library is used: these functions run on the node, under whatever Python it has (>= 3.9).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import control_groups
else:
    try:  # as a part of an Ansible module
        from ansible.module_utils import control_groups
    except ImportError:  # from setup/, which puts this directory on the path
        import control_groups

POLL_INTERVAL_S = 0.02
LOG_TAIL_LINES = 20
LOG_READ_BYTES = 64 * 1024
ERROR_WORDS = re.compile(r"\b(error|fatal|panicked|failed|abort(ed|ing)?)\b", re.IGNORECASE)
LISTEN_STATE = "0A"  # st column of /proc/net/tcp
UNCONNECTED_STATE = "07"  # of /proc/net/udp: receives from anybody
FIELDS_AFTER_NAME_STATE = 0
FIELDS_AFTER_NAME_START_TICKS = 19  # field 22 of /proc/PID/stat; the first after the name is field 3


class DaemonError(Exception):
    """A daemon could not be started or stopped; the message says what, with which value, and where to look."""


@dataclass(frozen=True)
class Daemon:
    """What to run and how to know that it is ready."""

    name: str
    directory: Path  # log, pid and state files
    argv: list[str]
    listen: str  # "address:port" that answers once the server is ready
    config_files: list[Path] = field(default_factory=list)  # a change of their content means a restart
    cpus: list[int] = field(default_factory=list)  # CPUs that it may use; empty: any
    token: str = ""  # anything else whose change means a restart
    control_group: dict[str, Any] = field(default_factory=dict)  # class Wanted of control_groups; empty: none
    ready_line: str = ""  # text that the log must hold before the server counts as ready; empty: the port is enough
    start_timeout_s: float = 60.0

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Daemon:
        """From a module's arguments, where paths are text and numbers may be; raises TypeError for an unknown key."""
        converted = {
            **options,
            "directory": Path(options["directory"]),
            "config_files": [Path(path) for path in options.get("config_files", [])],
            "cpus": [int(cpu) for cpu in options.get("cpus", [])],
            "start_timeout_s": float(options.get("start_timeout_s", cls.start_timeout_s)),
        }
        return cls(**converted)

    @property
    def log_path(self) -> Path:
        """Standard output and standard error of the running server."""
        return self.directory / f"{self.name}.log"

    @property
    def pid_path(self) -> Path:
        """The process id, as text."""
        return self.directory / f"{self.name}.pid"

    @property
    def state_path(self) -> Path:
        """What was started: JSON, read again by `running_state`."""
        return self.directory / f"{self.name}.daemon.json"

    def fingerprint(self) -> str:
        """Hash of everything that shapes the running server: command, binary, configuration files, CPU set, token."""
        digest = hashlib.sha256()
        binary = Path(self.argv[0])
        status = binary.stat() if binary.exists() else None
        built = [status.st_size, status.st_mtime_ns] if status else None
        identity = [self.argv, self.cpus, self.token, self.control_group, built]
        digest.update(json.dumps(identity).encode())
        for path in self.config_files:
            digest.update(path.read_bytes() if path.exists() else b"absent")
        return digest.hexdigest()


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None when there is none (a zombie counts as none)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    if after_name[FIELDS_AFTER_NAME_STATE] in "ZX":
        return None
    return int(after_name[FIELDS_AFTER_NAME_START_TICKS])


def boot_id() -> str:
    """Identity of this boot: start times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def files_of_servers(root: Path, pattern: str) -> list[Path]:
    """Files of a name right below the directories of a node's root, sorted.

    A directory that cannot be read, as a mount point whose disk is gone, holds none.
    """
    found: list[Path] = []
    for place in sorted(root.iterdir()) if root.is_dir() else []:
        with contextlib.suppress(OSError):
            found += sorted(place.glob(pattern))
    return found


def running_state(state_path: Path) -> dict[str, object] | None:
    """The state file's content if the process that it describes is alive, else None."""
    try:
        state = json.loads(state_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if state.get("boot_id") != boot_id() or start_ticks(state["pid"]) != state.get("start_ticks"):
        return None
    return dict(state)


def log_tail(path: Path) -> str:
    """The last lines of a log, after those of its earlier lines that speak of an error; indented.

    MySQL, for one, writes dozens of lines about its plugins after the line that says why it gave up.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_READ_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return f"(the log cannot be read: {error.strerror})"
    errors = [line for line in lines[:-LOG_TAIL_LINES] if ERROR_WORDS.search(line)]
    shown = [*errors[-LOG_TAIL_LINES:], *(["..."] if errors else []), *lines[-LOG_TAIL_LINES:]]
    return "\n".join(f"  {line}" for line in shown) or "(the log is empty)"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; raises DaemonError when the port is missing or no number."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise DaemonError(f'address "{address}" is not of the form host:port')
    return host.strip("[]"), int(port)


def listening_inodes(port: int) -> set[str]:
    """Socket inodes that listen on a TCP port, on any address of this network namespace."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[3] == LISTEN_STATE and int(columns[1].rpartition(":")[2], 16) == port:
                    inodes.add(columns[9])
    return inodes


def holders_of_port(port: int) -> list[int]:
    """Processes that listen on a TCP port, as far as this user may see them."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    if not wanted:
        return []
    holders = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if any(str(entry.readlink()) in wanted for entry in (process / "fd").iterdir()):
                    holders.append(int(process.name))
    return sorted(holders)


def local_address(text: str) -> tuple[str, int]:
    """Address and port of a local_address column of /proc/net: words of four bytes in the machine's order, in hex."""
    words, _, port = text.partition(":")
    swapped = sys.byteorder == "little"
    packed = b"".join(bytes.fromhex(words[at : at + 8])[:: -1 if swapped else 1] for at in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), int(port, 16)


def listening_sockets(pid: int) -> list[tuple[str, str, int]]:
    """Protocol, address and port of every socket on which a process can be reached over the network."""
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(str(entry.readlink()))
    found = set()
    tables = {"tcp": LISTEN_STATE, "tcp6": LISTEN_STATE, "udp": UNCONNECTED_STATE, "udp6": UNCONNECTED_STATE}
    for table, state in tables.items():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[3] == state and f"socket:[{columns[9]}]" in held:
                    found.add((table.rstrip("6"), *local_address(columns[1])))
    return sorted(found)


def listens_elsewhere(daemon: Daemon, pid: int) -> list[str]:
    """Every place but `daemon.listen` where the process can be reached, as protocol, address and port."""
    host, port = split_address(daemon.listen)
    allowed = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    return [
        f"{protocol} {address}:{number}"
        for protocol, address, number in listening_sockets(pid)
        if protocol != "tcp" or number != port or address not in allowed
    ]


def describe_process(pid: int) -> str:
    """Process id and command line, for error messages."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        command = ""
    return f"process {pid} ({command[:120] or 'command unknown'})"


def require_free_port(daemon: Daemon) -> None:
    """Raises DaemonError naming port and holder when the daemon could not listen on its port."""
    host, port = split_address(daemon.listen)
    if listening_inodes(port):
        holders = [describe_process(pid) for pid in holders_of_port(port)] or ["a process of another user"]
        raise DaemonError(
            f"{daemon.name} cannot listen on {daemon.listen}: port {port} is in use by {', '.join(holders)}; "
            f"stop it, or choose another port in the inventory's group_vars"
        )
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
            raise DaemonError(
                f"{daemon.name} cannot listen on {daemon.listen}: {error.strerror}; nobody listens on port {port}, "
                f"but an outgoing connection may hold it: choose a port outside {'-'.join(outgoing)} in the "
                f"inventory's group_vars"
            ) from error


def answers(address: str) -> bool:
    """Whether a TCP connection to the address succeeds."""
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def is_ready(daemon: Daemon, pid: int) -> bool:
    """Whether the process itself listens on its address, answers, and has logged its ready line."""
    if not answers(daemon.listen) or pid not in holders_of_port(split_address(daemon.listen)[1]):
        return False
    if not daemon.ready_line:
        return True
    return daemon.ready_line in daemon.log_path.read_text(encoding="utf-8", errors="replace")


def spawn(daemon: Daemon, group: control_groups.Group | None = None) -> subprocess.Popen[bytes]:
    """Starts the process in its session, group and CPU set, with a fresh log (the previous one is kept aside)."""
    argv = daemon.argv
    if group is not None:
        if not shutil.which(argv[0]):  # else the failure would be that of the shell that joins the group
            found = "is not executable" if Path(argv[0]).exists() else os.strerror(errno.ENOENT)
            raise DaemonError(f"{daemon.name}: cannot run {argv[0]}: {found}")
        argv = control_groups.command_in(group, argv, daemon.name)
    if daemon.log_path.exists():
        daemon.log_path.replace(daemon.log_path.with_suffix(".previous.log"))
    with daemon.log_path.open("wb") as log, pinned(daemon):
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=daemon.directory,
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            raise DaemonError(f"{daemon.name}: cannot run {argv[0]}: {error.strerror}") from error


@contextlib.contextmanager
def pinned(daemon: Daemon) -> Iterator[None]:
    """Moves this process to the daemon's CPUs meanwhile: the child inherits them before it can start a thread.

    Raises DaemonError when the node does not have them.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, daemon.cpus or before)
    except OSError as error:
        offered = ",".join(map(str, sorted(before)))
        raise DaemonError(
            f"{daemon.name}: cannot use CPUs {daemon.cpus} ({error.strerror}); this node offers {offered}"
        ) from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start(daemon: Daemon) -> tuple[bool, int]:
    """Makes the daemon run: (whether something was started, process id).

    A running daemon with the same fingerprint is left alone; one with another fingerprint must have been stopped
    before. Raises DaemonError with the log's end when it does not become ready.
    """
    state = running_state(daemon.state_path)
    if state is not None:
        if state["fingerprint"] == daemon.fingerprint():
            return False, int(str(state["pid"]))
        raise DaemonError(f"{daemon.name} runs as process {state['pid']} with another configuration: stop it first")
    require_free_port(daemon)
    daemon.directory.mkdir(parents=True, exist_ok=True)
    group = control_group_of(daemon)
    try:
        process = spawn(daemon, group)
    except DaemonError:
        release(group)
        raise
    write_state(daemon, process.pid, group)
    wait_until_ready(daemon, process, group)
    return True, process.pid


def control_group_of(daemon: Daemon) -> control_groups.Group | None:
    """The group that the daemon is to join, made if need be; None when it has none."""
    if not daemon.control_group:
        return None
    try:
        return control_groups.ensure(control_groups.Wanted.from_options(daemon.control_group))
    except control_groups.ControlGroupError as error:
        raise DaemonError(f"{daemon.name}: {error}") from error


def release(group: control_groups.Group | None) -> None:
    """Removes a daemon's group unless another server is still in it."""
    if group is not None:
        try:
            control_groups.remove(group)
        except control_groups.ControlGroupError as error:
            raise DaemonError(str(error)) from error


def group_of_state(state_path: Path) -> control_groups.Group | None:
    """The group that a state file names, whether its daemon runs or not."""
    try:
        state = json.loads(state_path.read_text(encoding="utf-8"))
        return control_groups.Group(**state["control_group"]) if state.get("control_group") else None
    except (OSError, ValueError, TypeError):
        return None


def write_state(daemon: Daemon, pid: int, group: control_groups.Group | None = None) -> None:
    """Records what was started, before it is ready: a start that is interrupted can still be stopped."""
    state = {
        "name": daemon.name,
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "boot_id": boot_id(),
        "fingerprint": daemon.fingerprint(),
        "listen": daemon.listen,
        "log": str(daemon.log_path),
        "argv": daemon.argv,
        "control_group": asdict(group) if group is not None else None,
    }
    temporary = daemon.state_path.with_suffix(".tmp")
    temporary.write_text(json.dumps(state, indent=1), encoding="utf-8")
    temporary.replace(daemon.state_path)
    daemon.pid_path.write_text(f"{pid}\n", encoding="ascii")


def wait_until_ready(
    daemon: Daemon, process: subprocess.Popen[bytes], group: control_groups.Group | None = None
) -> None:
    """Returns when the daemon is ready; raises DaemonError, leaving nothing running, when it ends or takes too long."""
    began_s = time.monotonic()
    while not is_ready(daemon, process.pid):
        waited_s = time.monotonic() - began_s
        if process.poll() is not None:
            fail_start(daemon, process, group, f"ended with {describe_exit(process.returncode)} after {waited_s:.1f} s")
        if waited_s > daemon.start_timeout_s:
            fail_start(daemon, process, group, f"was not ready on {daemon.listen} after {waited_s:.0f} s and was ended")
        time.sleep(POLL_INTERVAL_S)
    elsewhere = listens_elsewhere(daemon, process.pid)
    if elsewhere:
        problem = (
            f"listens on {', '.join(elsewhere)} too and was ended: it may listen on {daemon.listen} only;"
            " look at its configuration"
        )
        fail_start(daemon, process, group, problem)
    if group is not None:
        try:
            control_groups.require_member(group, process.pid, daemon.name)
        except control_groups.ControlGroupError as error:
            fail_start(daemon, process, group, f"was ended: {error}")


def fail_start(
    daemon: Daemon, process: subprocess.Popen[bytes], group: control_groups.Group | None, problem: str
) -> NoReturn:
    """Leaves nothing running and raises DaemonError; memory that was exceeded comes first, for it is the reason."""
    process.kill()
    process.wait()
    reason = control_groups.exceeded(group, daemon.name) if group is not None else ""
    release(group)
    forget(daemon.state_path)
    said = f"{reason}; {daemon.name} {problem}" if reason else f"{daemon.name} {problem}"
    raise DaemonError(f"{said}. Log: {daemon.log_path}; its end:\n{log_tail(daemon.log_path)}")


def describe_exit(returncode: int) -> str:
    """ "status 1" or "signal SIGKILL"."""
    return f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"status {returncode}"


def forget(state_path: Path) -> None:
    """Removes the state and pid files of a daemon that does not run any more."""
    state_path.unlink(missing_ok=True)
    state_path.with_name(state_path.name.replace(".daemon.json", ".pid")).unlink(missing_ok=True)


def stop(state_path: Path, timeout_s: float) -> bool:
    """Ends the daemon of a state file with SIGTERM and waits; returns whether one was running.

    Raises DaemonError when it had to be killed: its data directory is then not cleanly closed.
    """
    state, group = running_state(state_path), group_of_state(state_path)
    if state is None:
        forget(state_path)
        release(group)
        return False
    pid = int(str(state["pid"]))
    signal_process(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    while running_state(state_path) is not None:
        if time.monotonic() > deadline_s:
            signal_process(pid, signal.SIGKILL)
            tail = log_tail(Path(str(state["log"])))
            forget(state_path)
            release(group)
            raise DaemonError(
                f"{state['name']} (process {pid}) did not end within {timeout_s:.0f} s of SIGTERM and was killed; "
                f"its data may need recovery. Log: {state['log']}; its end:\n{tail}"
            )
        time.sleep(POLL_INTERVAL_S)
    forget(state_path)
    release(group)
    return True


def signal_process(pid: int, number: signal.Signals) -> None:
    """Sends a signal; a process that has just ended is fine."""
    try:
        os.kill(pid, number)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise DaemonError(f"process {pid} cannot be signalled: {error.strerror}") from error
