"""A host as the runner sees it: the methods of `agent.Agent`, in process for this machine, over SSH for others.

What Ansible reaches the runner reaches too: the parameters of the connection are the inventory's (`ansible_host`,
`ansible_port`, `ansible_user`, `ansible_ssh_private_key_file`, `ansible_ssh_common_args`, …). Plain ``ssh`` and not
a library, because those arguments are written for its command line.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import select
import shlex
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from runner import agent
from runner.errors import RunError

ALIVE_INTERVAL_S, ALIVE_COUNT = 4, 3  # a node that is silent for 12 s is lost; the node waits longer for the runner
CONNECT_TIMEOUT_S = 10
ANSWER_LIMIT_S = 60.0  # of requests that take no time of their own
CHUNK_BYTES = 1 << 20
BOOTSTRAP = "import sys;i=sys.stdin.buffer;exec(compile(i.read(int(i.readline())),'agent','exec'))"


class LostNodeError(RunError):
    """A host does not answer any more; the message names it."""

    def __init__(self, host: str, why: str) -> None:
        """Name the host and what was seen of its end."""
        super().__init__(f"node {host} was lost: {why}")
        self.host = host


@dataclass(frozen=True)
class Connection:
    """How Ansible reaches a host: the values of the inventory's variables, empty where they are not set."""

    kind: str = "ssh"
    address: str = ""
    port: str = ""
    user: str = ""
    key: str = ""
    arguments: str = ""
    """`ansible_ssh_common_args` and `ansible_ssh_extra_args`, as for a shell."""
    program: str = "ssh"
    python: str = ""
    check_host_key: bool = True

    def command(self) -> list[str]:
        """Return the command that runs the agent on the host."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_TIMEOUT_S),
            "ServerAliveInterval": str(ALIVE_INTERVAL_S),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "ControlMaster": "no",  # a connection of its own: its end is the end of the node
            "ControlPath": "none",
            **({} if self.check_host_key else {"StrictHostKeyChecking": "no"}),
            **({"Port": self.port} if self.port else {}),
            **({"User": self.user} if self.user else {}),
            **({"IdentityFile": self.key} if self.key else {}),
        }
        given = [f"-o{name}={value}" for name, value in options.items()]
        return [self.program, "-T", *given, *shlex.split(self.arguments), "--", self.address, self._remote()]

    def _remote(self) -> str:
        return f"exec {self.python or '/usr/bin/python3'} -c {shlex.quote(BOOTSTRAP)}"


class Local:
    """The agent in this process."""

    def __init__(self) -> None:
        """Make the agent."""
        self._agent = agent.Agent()

    def ask(self, method: str, arguments: list[Any], _limit_s: float) -> Any:
        """Carry out a request; an OSError comes as it is."""
        return getattr(self._agent, method)(*arguments)

    def close(self) -> None:
        """End what was started."""
        self._agent.close()


class Piped:
    """The agent in a process of its own, reached through a command's pipes: ssh's, or a local Python's in tests."""

    def __init__(self, host: str, command: list[str]) -> None:
        """Start the command and send it the agent; whether that worked the first request tells."""
        self._host, self._lost = host, ""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        source = Path(agent.__file__).read_bytes()
        self._send(f"{len(source)}\n".encode() + source)
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        """Tell the agent between requests that the runner is there, until the connection ends."""
        while not self._closed.wait(ALIVE_INTERVAL_S) and not self._lost:
            if self._lock.acquire(blocking=False):
                with contextlib.suppress(LostNodeError):  # the next request tells
                    self._send(b"\n")
                self._lock.release()

    def ask(self, method: str, arguments: list[Any], limit_s: float) -> Any:
        """Carry out a request; raises OSError as it was raised there, LostNodeError when no answer comes."""
        with self._lock:
            if self._lost:
                raise LostNodeError(self._host, self._lost)
            self._send(json.dumps([method, arguments]).encode() + b"\n")
            line = self._line(limit_s)
        kind, *content = json.loads(line)
        if kind == "ok":
            return content[0]
        text, number, name = content
        raise OSError(number, text, name) if number is not None else OSError(text)

    def _send(self, data: bytes) -> None:
        try:
            _pipe(self._process.stdin).write(data)
            _pipe(self._process.stdin).flush()
        except OSError:
            self._lose("its connection ended")

    def _line(self, limit_s: float) -> bytes:
        """Read one answer: it comes in one write, so after its first byte the rest is on its way."""
        answers = _pipe(self._process.stdout)
        if not select.select([answers], [], [], limit_s)[0]:
            self._lose(f"it did not answer within {limit_s:.0f} s")
        line: bytes = answers.readline()
        if not line.endswith(b"\n"):
            self._lose("its connection ended")
        return line

    def _lose(self, why: str) -> None:
        """End the connection and raise LostNodeError, with what ssh said about it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # ssh, and a ProxyCommand that would hold its messages open
        said = _pipe(self._process.stderr).read().decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        self._lost = f"{why}: {lines[-1]}" if lines else why
        self._process.wait()
        raise LostNodeError(self._host, self._lost)

    def close(self) -> None:
        """End the connection; the agent then ends what was started through it."""
        self._closed.set()
        self._heart.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                _pipe(pipe).close()
        try:
            self._process.wait(agent.END_GRACE_S + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the process was started without pipes")
    return pipe


@dataclass
class Host:
    """One machine, by its name in the inventory. Every method raises LostNodeError when the machine does not answer."""

    name: str
    transport: Local | Piped = field(default_factory=Local)

    @property
    def is_here(self) -> bool:
        """Tell whether it is the machine of the runner."""
        return isinstance(self.transport, Local)

    def _ask(self, method: str, *arguments: Any, limit_s: float = ANSWER_LIMIT_S) -> Any:
        return self.transport.ask(method, list(arguments), limit_s)

    def close(self) -> None:
        """End the connection and every program that was started through it."""
        self.transport.close()

    # -- the machine ------------------------------------------------------------------------------------------

    def describe(self, node_root: Path) -> dict[str, Any]:
        """Return kernel, CPUs, memory, huge pages, load, and the file system below `node_root`."""
        return dict(self._ask("describe", str(node_root)))

    def cpu_times(self) -> dict[str, float]:
        """Return the seconds since boot that all CPUs spent in each way; nothing where the kernel does not tell."""
        return dict(self._ask("cpu_times"))

    def load_average(self) -> list[float]:
        """Return the load averages of the last 1, 5 and 15 minutes."""
        return list(self._ask("load_average"))

    def file_system(self, path: Path) -> dict[str, Any]:
        """Return device, type and free bytes of the file system below `path` or its nearest existing ancestor."""
        return dict(self._ask("file_system", str(path)))

    # -- servers ----------------------------------------------------------------------------------------------

    def processes(self, pids: dict[str, int]) -> Processes:
        """Look up servers, to be told apart later from other processes that got the same ids."""
        return Processes(self, pids, self._ask("started", pids))

    def reset_memory_peaks(self, pids: dict[str, int]) -> list[str]:
        """Set the kernel's peak of each process back to its present size; return the names where that failed."""
        return list(self._ask("reset_memory_peaks", pids))

    def memory_of(self, pids: dict[str, int]) -> dict[str, dict[str, int]]:
        """Return present and peak resident bytes per process; a process that is gone is left out."""
        return dict(self._ask("memory_of", pids))

    def cpu_of(self, pids: dict[str, int]) -> dict[str, float]:
        """Return the CPU seconds that each process has used since its start; one that is gone is left out."""
        return dict(self._ask("cpu_of", pids))

    # -- files ------------------------------------------------------------------------------------------------

    def hold(self, path: Path, text: str) -> str | None:
        """Hold a lock file until the connection ends; return what its holder wrote when somebody else has it."""
        held: str | None = self._ask("hold", str(path), text)
        return held

    def let_go(self, path: Path) -> None:
        """Let go of a lock file."""
        self._ask("let_go", str(path))

    def allocated_bytes(self, paths: list[Path]) -> int:
        """Return what the trees below some paths take on their own file systems."""
        return int(self._ask("allocated_bytes", [str(path) for path in paths]))

    def make_work(self, parent: Path) -> Path:
        """Make a directory that only this user can read; it goes at the latest when the connection ends."""
        return Path(self._ask("make_work", str(parent)))

    def remove_work(self, path: Path) -> None:
        """Remove a directory that `make_work` made."""
        self._ask("remove_work", str(path))

    def write(self, path: Path, content: bytes, mode: int = 0o644) -> None:
        """Write a file, which has `mode` from its first byte on."""
        for start in range(0, max(1, len(content)), CHUNK_BYTES):
            chunk = base64.b64encode(content[start : start + CHUNK_BYTES]).decode("ascii")
            self._ask("write", str(path), chunk, mode, start > 0)

    def read(self, path: Path) -> bytes:
        """Read a file."""
        content = bytearray()
        while chunk := base64.b64decode(self._ask("read", str(path), len(content))):
            content += chunk
        return bytes(content)

    def read_text(self, path: str) -> str | None:
        """Read a small file of the kernel's; None when it cannot be read."""
        try:
            return self.read(Path(path)).decode("utf-8", errors="replace")
        except OSError:
            return None

    def write_text(self, path: str, text: str) -> bool:
        """Write a small file of the kernel's; False when that is refused."""
        try:
            self.write(Path(path), text.encode())
        except OSError:
            return False
        return True

    def entries(self, path: Path) -> dict[str, bool]:
        """Return what is in a directory: name -> whether it is a directory; nothing when there is none."""
        return dict(self._ask("entries", str(path)))

    def directories(self, path: Path) -> set[str]:
        """Return the names of the directories in a directory."""
        return {name for name, is_directory in self.entries(path).items() if is_directory}

    def tail(self, path: Path, lines: int, limit_bytes: int = 65536) -> str:
        """Return the last lines of a log; empty when it cannot be read."""
        return str(self._ask("tail", str(path), lines, limit_bytes))

    def sha256(self, paths: dict[str, Path]) -> dict[str, str]:
        """Return the SHA-256 of each file, computed once per version of it; empty where it cannot be read."""
        return dict(self._ask("sha256", {name: str(path) for name, path in paths.items()}))

    def place(self, path: Path, tools: Path) -> Path:
        """Put a file of this machine on the host, once per content, and return where it is; here it stays in place."""
        if self.is_here:
            return path.absolute()
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        place = tools / "by-content" / digest / path.name
        if self.sha256({"it": place})["it"] != digest:
            partial = place.with_name(f".{path.name}.partial")
            self._ask("make_directory", str(place.parent))
            self.write(partial, content, path.stat().st_mode & 0o777)
            self._ask("rename", str(partial), str(place))
        return place

    # -- programs ---------------------------------------------------------------------------------------------

    def run(self, argv: list[str], timeout_s: float = 30.0) -> dict[str, Any]:
        """Run a command to its end: `exit_code`, `stdout`, `stderr`; raises OSError when it cannot be run."""
        return dict(self._ask("run", argv, timeout_s, limit_s=timeout_s + ANSWER_LIMIT_S))

    def spawn(self, argv: list[str], log: Path) -> int:
        """Start a program, its messages at the end of `log`; return its process id."""
        return int(self._ask("spawn", argv, str(log)))

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return the exit code of a started program (negative: the signal), None when it runs on after the wait."""
        code = self._ask("wait", pid, timeout_s, limit_s=timeout_s + ANSWER_LIMIT_S)
        return None if code is None else int(code)

    def end(self, pid: int, grace_s: float) -> int:
        """Ask a started program to end, and make it end when it does not listen; return its exit code."""
        self._ask("signal", pid, signal.SIGTERM)
        code = self.wait(pid, grace_s)
        while code is None:
            self._ask("signal", pid, signal.SIGKILL)
            code = self.wait(pid, 1.0)
        return code


@dataclass(frozen=True)
class Processes:
    """Servers by name, each as the process that it was when it was looked up."""

    host: Host
    pids: dict[str, int]
    started: dict[str, int | None]

    def dead(self) -> list[str]:
        """Name those that do not run any more; neither a zombie nor another process with the same id counts."""
        return list(self.host._ask("dead", self.pids, self.started))


def connect(name: str, connection: Connection) -> Host:
    """Reach a host and wait for its first answer; raises LostNodeError with what ssh said."""
    if connection.kind == "local":
        return Host(name)
    host = Host(name, Piped(name, connection.command()))
    host.load_average()
    return host


def alive(host: Host) -> str:
    """Return why a host is lost, empty while it answers."""
    try:
        host.load_average()
    except LostNodeError as error:
        return str(error)
    return ""
