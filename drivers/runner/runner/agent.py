"""What the runner does on a host: files, processes, descriptions. One class, called in process or over SSH.

Over SSH the source of this module is sent to the node's own Python (3.9 or newer) and executed there: it imports the
standard library only, and nothing has to be installed. A request is one line of JSON ``[method, arguments]``, an
answer one line ``["ok", result]`` or ``["error", text, errno, filename]``; an empty line only says that the runner is
there. When the connection ends, or the runner is silent for `SILENCE_LIMIT_S` (its SSH server learns of a network that
was cut when it sends the next time, if ever), the programs that were started through it are ended, its locks are free,
and its work directories, which hold passwords, are removed.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
END_GRACE_S = 5.0
SILENCE_LIMIT_S = 30
READ_BYTES = 1 << 20


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def boot_id() -> str:
    """Return the name of this boot of this machine; empty where the kernel does not tell."""
    return _text_of(BOOT_ID)


def start_ticks(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot (proc(5)); None for a zombie or no process."""
    after_name = _text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return None if not after_name or after_name[0] in "ZX" else int(after_name[19])


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU seconds of a live process with its threads and in the kernel (proc(5)); None as `start_ticks`."""
    after_name = _text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not after_name or after_name[0] in "ZX":
        return None
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _allocated_bytes(directory: str, device: int) -> int:
    """Return what is allocated below a directory on one device; files that go meanwhile, or are hidden, count not."""
    total_bytes = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_dev != device:
                    continue
                total_bytes += 512 * status.st_blocks
                if entry.is_dir(follow_symlinks=False):
                    total_bytes += _allocated_bytes(entry.path, device)
    return total_bytes


def _has_become(pid: int, wrapper: str) -> bool:
    """Return whether a process that was started as a wrapper has become the program that this starts."""
    return _text_of(f"/proc/{pid}/cmdline").split("\0")[0] not in ("", wrapper)  # empty: it is being put in place


def _existing(path: str) -> Path:
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return place.resolve()


class Agent:
    """The methods that a host answers; arguments and results are JSON values."""

    def __init__(self) -> None:
        """Start with no program and no work directory."""
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._work: set[str] = set()
        self._held: dict[str, int] = {}
        self._hashes: dict[tuple[str, int, int], str] = {}

    # -- the machine ------------------------------------------------------------------------------------------

    def describe(self, node_root: str) -> dict[str, Any]:
        """Return what moves figures: kernel, CPUs, memory, huge pages, load, the file system below `node_root`."""
        return {
            "hostname": platform.node(),
            "boot_id": boot_id(),
            "kernel": platform.release(),
            "operating_system": self._os_name(),
            "cpu_model": self._cpu_model(),
            "cpu_cores": len(os.sched_getaffinity(0)),
            "cpus": sorted(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "node_root_device": self.file_system(node_root),
            "transparent_huge_pages": _text_of(HUGE_PAGES) or "unknown",
            "load_average": self.load_average(),
        }

    def load_average(self) -> list[float]:
        """Return the load averages of the last 1, 5 and 15 minutes."""
        return list(os.getloadavg())

    def cpu_times(self) -> dict[str, float]:
        """Return the seconds since boot that all CPUs together spent in each way (proc(5)); nothing where not told.

        Stolen is what they wanted and the hypervisor gave to others; user time holds that of guests and of nice ones.
        `own_s` are those of this process and of the programs that it started and that have ended.
        """
        ticks = [int(number) for number in _text_of("/proc/stat").partition("\n")[0].split()[1:9]]
        if len(ticks) < 8:  # noqa: PLR2004 - the kinds below
            return {}
        own = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        user, nice, system, idle, waiting, hard, soft, stolen = (each / os.sysconf("SC_CLK_TCK") for each in ticks)
        return {
            "user_s": user + nice,
            "system_s": system,
            "interrupts_s": hard + soft,
            "idle_s": idle + waiting,
            "stolen_s": stolen,
            "own_s": sum(used.ru_utime + used.ru_stime for used in own),
        }

    def file_system(self, path: str) -> dict[str, Any]:
        """Return device, type and free bytes of the file system below `path` or its nearest existing ancestor."""
        place = _existing(path)
        device = kind = "unknown"
        longest = -1
        for line in _text_of("/proc/self/mounts").splitlines():
            source, mounted, found = line.split()[:3]
            mounted = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), mounted)
            # Of equal length the later line: what was mounted last over the same place is what is seen.
            if len(mounted) >= longest and Path(mounted) in (place, *place.parents):
                longest, device, kind = len(mounted), source, found
        return {"device": device, "file_system": kind, "free_bytes": shutil.disk_usage(place).free}

    def allocated_bytes(self, paths: list[str]) -> int:
        """Return what the trees below some paths take on their own file systems; what is mounted below is left out."""
        total_bytes = 0
        for path in paths:
            with contextlib.suppress(OSError):
                total_bytes += _allocated_bytes(path, Path(path).stat().st_dev)
        return total_bytes

    @staticmethod
    def _os_name() -> str:
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text_of("/etc/os-release"), re.M)
        return found.group(1) if found else "unknown"

    @staticmethod
    def _cpu_model() -> str:
        """Return the model's name with family and model number: virtual machines give many models one name."""
        text = _text_of("/proc/cpuinfo")
        name, *numbers = (
            re.search(rf"^{key}\s*:\s*(.+)$", text, re.M) for key in ("model name", "cpu family", "model")
        )
        if name is None:
            return platform.processor() or "unknown"
        family, model = (number.group(1) if number else "unknown" for number in numbers)
        return f"{name.group(1)} (family {family}, model {model})"

    # -- servers ----------------------------------------------------------------------------------------------

    def started(self, pids: dict[str, int]) -> dict[str, int | None]:
        """Return when each process started, so that another one with the same id can be told apart later."""
        return {name: start_ticks(pid) for name, pid in pids.items()}

    def dead(self, pids: dict[str, int], started: dict[str, int | None]) -> list[str]:
        """Name the processes that do not run any more; neither a zombie nor another one with the same id counts."""
        return [n for n, pid in pids.items() if started.get(n) is None or start_ticks(pid) != started[n]]

    def reset_memory_peaks(self, pids: dict[str, int]) -> list[str]:
        """Set the kernel's peak of each process back to its present size; return the names where that failed."""
        failed = []
        for name, pid in pids.items():
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # 5 = reset VmHWM, see proc(5)
            except OSError:
                failed.append(name)
        return failed

    def memory_of(self, pids: dict[str, int]) -> dict[str, dict[str, int]]:
        """Return present and peak resident bytes per process; a process that is gone is left out."""
        found: dict[str, dict[str, int]] = {}
        for name, pid in pids.items():
            status = _text_of(f"/proc/{pid}/status")
            sizes = {key: int(kib) * 1024 for key, kib in re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB$", status, re.M)}
            if sizes:
                found[name] = {"peak_bytes": sizes.get("VmHWM", 0), "resident_bytes": sizes.get("VmRSS", 0)}
        return found

    def cpu_of(self, pids: dict[str, int]) -> dict[str, float]:
        """Return the CPU seconds that each process has used since its start; one that is gone is left out."""
        return {name: used_s for name, pid in pids.items() if (used_s := cpu_seconds(pid)) is not None}

    # -- files ------------------------------------------------------------------------------------------------

    def hold(self, path: str, text: str) -> str | None:
        """Hold the lock file `path` for as long as the connection lasts, with `text` about the holder in it.

        Returns None, or what the holder wrote when somebody else has it. The kernel lets go of it with the process,
        however that ends.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
                return file.read()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
        self._held[path] = descriptor
        return None

    def let_go(self, path: str) -> None:
        """Let go of a lock file; one that is not held is fine."""
        if path in self._held:
            os.close(self._held.pop(path))

    def make_work(self, parent: str) -> str:
        """Make a directory below `parent` that only this user can read; it goes when the connection ends.

        Those of processes that were killed go now: there are passwords in them.
        """
        Path(parent).mkdir(parents=True, exist_ok=True)
        boot = boot_id()[:8]  # other machines may share the directory
        for left in Path(parent).glob(f"work-{boot}-*-*"):
            pid = left.name.split("-")[2]
            if pid.isdecimal() and start_ticks(int(pid)) is None:
                shutil.rmtree(left, ignore_errors=True)
        made = tempfile.mkdtemp(prefix=f"work-{boot}-{os.getpid()}-", dir=parent)
        self._work.add(made)
        return made

    def remove_work(self, path: str) -> None:
        """Remove a directory that `make_work` made; raises OSError for any other."""
        if path not in self._work:
            raise OSError(f"{path} was not made by make_work")
        shutil.rmtree(path, ignore_errors=True)
        self._work.discard(path)

    def write(self, path: str, content: str, mode: int, append: bool) -> None:
        """Write base64 `content`, at the end or instead of what is there; `mode` holds from the first byte on."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
        with os.fdopen(os.open(path, flags, mode), "wb") as file:
            file.write(base64.b64decode(content))

    def read(self, path: str, offset: int) -> str:
        """Return up to 1 MiB from `offset` in base64; empty at the end."""
        with Path(path).open("rb") as file:
            file.seek(offset)
            return base64.b64encode(file.read(READ_BYTES)).decode("ascii")

    def rename(self, path: str, to: str) -> None:
        """Rename in one step."""
        Path(path).replace(to)

    def make_directory(self, path: str) -> None:
        """Make a directory and what is missing above it."""
        Path(path).mkdir(parents=True, exist_ok=True)

    def entries(self, path: str) -> dict[str, bool]:
        """Return what is in a directory: name -> whether it is a directory; nothing when there is none."""
        place = Path(path)
        return {entry.name: entry.is_dir() for entry in sorted(place.iterdir())} if place.is_dir() else {}

    def tail(self, path: str, lines: int, limit_bytes: int) -> str:
        """Return the last lines of a log, reading at most `limit_bytes`; empty when it cannot be read."""
        try:
            with Path(path).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def sha256(self, paths: dict[str, str]) -> dict[str, str]:
        """Return the SHA-256 of each file, computed once per version of it; empty where it cannot be read."""
        found = {}
        for name, path in paths.items():
            try:
                status = Path(path).stat()
                version = (path, status.st_mtime_ns, status.st_size)
                if version not in self._hashes:
                    self._hashes[version] = self._hash(path)
                found[name] = self._hashes[version]
            except OSError:
                found[name] = ""
        return found

    @staticmethod
    def _hash(path: str) -> str:
        digest = hashlib.sha256()
        with Path(path).open("rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
        return digest.hexdigest()

    # -- programs ---------------------------------------------------------------------------------------------

    def run(self, argv: list[str], timeout_s: float) -> dict[str, Any]:
        """Run a command to its end: `exit_code`, `stdout`, `stderr`; raises OSError when it cannot, or takes longer."""
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                start_new_session=True,  # Ctrl-C reaches the runner alone
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{argv[0]} did not end within {timeout_s:.0f} s") from None
        return {"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

    def spawn(self, argv: list[str], log: str) -> int:
        """Start a program in a session of its own, its messages at the end of `log`; return its process id.

        It is asked to end when this process dies, where the system has `setpriv`: nothing should go on measuring then.
        """
        if shutil.which(argv[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        bound = [setpriv, "--pdeathsig", "TERM", *argv] if (setpriv := shutil.which("setpriv")) else argv
        with Path(log).open("ab") as messages:
            program = subprocess.Popen(
                bound,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,  # Ctrl-C reaches the runner alone, which then ends things in order
                env={**os.environ, "NO_COLOR": "1"},
            )
        self._programs[program.pid] = program
        # Before it is the program it has not asked to be ended, and nobody would end it.
        while setpriv and program.poll() is None and not _has_become(program.pid, setpriv):
            time.sleep(0.001)
        return program.pid

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return the exit code of a started program (negative: the signal), or None when it runs on after the wait.

        Sleeps until the kernel tells of its end: waking up often would take time from the terminals.
        """
        program = self._programs[pid]
        if program.poll() is None:
            ended = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(ended, select.POLLIN)
                poll.poll(1000 * timeout_s)
            finally:
                os.close(ended)
        code = program.poll()
        if code is not None:
            del self._programs[pid]
        return code

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a started program and all that it started; one that has just ended is fine."""
        if pid in self._programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def close(self) -> None:
        """End what was started and remove the work directories."""
        for pid in self._programs:
            self.signal(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + END_GRACE_S
        for pid, program in self._programs.items():
            try:
                program.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.signal(pid, signal.SIGKILL)
        for path in self._work:
            shutil.rmtree(path, ignore_errors=True)
        for path in list(self._held):
            self.let_go(path)


def answer(agent: Agent, line: bytes) -> list[Any]:
    """Carry out one request; what goes wrong is the answer."""
    try:
        method, arguments = json.loads(line)
        return ["ok", getattr(agent, method)(*arguments)]
    except Exception as error:  # whatever it is, the runner must hear of it
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ["error", text or repr(error), getattr(error, "errno", None), getattr(error, "filename", None)]


def _end_of_silence(_number: int, _frame: object) -> None:
    raise TimeoutError("the runner is silent")


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the connection ends or nothing comes, nor is taken, for `SILENCE_LIMIT_S`."""
    agent = Agent()
    signal.signal(signal.SIGALRM, _end_of_silence)
    signal.alarm(SILENCE_LIMIT_S)
    try:
        while line := requests.readline():
            signal.alarm(0)  # a request takes the time that it takes
            answered = json.dumps(answer(agent, line)).encode() + b"\n" if line.strip() else b""
            signal.alarm(SILENCE_LIMIT_S)
            answers.write(answered)
            answers.flush()
    except OSError:
        pass  # nobody listens any more
    finally:
        signal.alarm(0)
        agent.close()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
