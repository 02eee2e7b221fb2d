"""An installation of BenchBase, OLTP-Bench or H-Store that is there already: driven as a child of this process.

Nothing is downloaded or built. Each call is a session of its own, so that ending it ends what it started, and nothing
else. What H-Store starts on its hosts over SSH is H-Store's to end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from runner.errors import InputError, RunError
from runner.files import tail
from runner.oltpbench import mapping, results
from runner.oltpbench.configuration import Configuration
from runner.oltpbench.results import Files, Measured
from runner.progress import duration

LOAD_LIMIT_S = 3600.0
SLACK_S = 300.0
"""What a call may take besides the phases: a virtual machine's start, connecting, writing results."""
LOOK_S = 0.1
TELL_S = 10.0
GRACE_S = 10.0
WINDOW_S = 1
HSTORE_RATE = 100_000
"""Requests a second that a blocking client of H-Store may make: more than it can, so that answers alone limit it."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One call of a program of theirs."""

    name: str
    command: list[str]
    limit_s: float


class Installation(ABC):
    """A program that runs a configuration and leaves results."""

    kind: ClassVar[str]
    title: ClassVar[str]
    program: ClassVar[str]
    """What has to be on the PATH."""

    def __init__(self, root: Path) -> None:
        """Take the directory that its programs are called in."""
        self.root = root.resolve()

    @staticmethod
    @abstractmethod
    def is_at(root: Path) -> bool:
        """Tell whether a directory holds one."""

    @abstractmethod
    def steps(self, configuration: Configuration, work: Path, load: bool) -> list[Step]:
        """Return what has to be called; results go to `work`, or where `collect` finds them."""

    @abstractmethod
    def collect(self, configuration: Configuration, work: Path) -> tuple[Measured, list[Path]]:
        """Read the results that the calls left; also return their files. Raises RunError."""

    def check(self, configuration: Configuration, load: bool) -> None:
        """Raise InputError for what would fail at once."""
        del configuration, load
        if shutil.which(self.program) is None:
            raise InputError(f"{self.program} is not on the PATH: {self.title} in {self.root} is run by it")


class BenchBase(Installation):
    """``benchbase.jar`` with its ``config/`` beside it."""

    kind, title, program = "benchbase", "BenchBase", "java"

    @staticmethod
    def is_at(root: Path) -> bool:
        """See `Installation`."""
        return (root / "benchbase.jar").is_file()

    def steps(self, configuration: Configuration, work: Path, load: bool) -> list[Step]:
        """See `Installation`."""
        command = ["java", "-jar", "benchbase.jar", "-b", configuration.benchmark]
        command += ["-c", str(configuration.path.resolve())]
        loading = [Step("load", [*command, "--create=true", "--load=true", "--execute=false"], LOAD_LIMIT_S)]
        run = [*command, "--create=false", "--load=false", "--execute=true", "-s", str(WINDOW_S)]
        run += ["-d", str(work / "results")]
        return [*(loading if load else []), Step("execute", run, _limit_s(configuration))]

    def collect(self, configuration: Configuration, work: Path) -> tuple[Measured, list[Path]]:
        """See `Installation`."""
        summary = _only(work / "results", "*.summary.json", self.title)
        base = summary.name.removesuffix(".summary.json")
        files = _files(summary, *(work / "results" / f"{base}.{name}.csv" for name in ("results", "raw")))
        found = results.of_benchbase(files, configuration.benchmark, warmed_up=configuration.warms_up)
        return found, files.present()


class OltpBench(Installation):
    """The older generation: the script ``oltpbenchmark``, which calls Java with the class path."""

    kind, title, program = "oltpbench", "OLTP-Bench", "bash"
    output = "anticache-eval"

    @staticmethod
    def is_at(root: Path) -> bool:
        """See `Installation`."""
        return (root / "oltpbenchmark").is_file()

    def steps(self, configuration: Configuration, work: Path, load: bool) -> list[Step]:
        """See `Installation`.

        Two calls of few arguments: an older script hands over no more than nine. The same one knows no directory for
        results but the one that it runs in, later ones use ``results`` there; the name tells ours from others.
        """
        command = ["bash", "oltpbenchmark", "-b", configuration.benchmark, "-c", str(configuration.path.resolve())]
        loading = [Step("load", [*command, "--create=true", "--load=true"], LOAD_LIMIT_S)]
        run = [*command, "--execute=true", "-s", str(WINDOW_S), "-o", self._name(work)]
        return [*(loading if load else []), Step("execute", run, _limit_s(configuration))]

    def collect(self, configuration: Configuration, work: Path) -> tuple[Measured, list[Path]]:
        """See `Installation`."""
        name = self._name(work)
        for directory in (self.root / "results", self.root):
            summary = directory / f"{name}.summary"
            if summary.is_file():
                raw = next((p for p in (directory / f"{name}{end}" for end in (".raw", ".csv")) if p.is_file()), None)
                files = _files(summary, directory / f"{name}.res", raw)
                found = results.of_oltpbench(files, configuration.benchmark, warmed_up=configuration.warms_up)
                return found, files.present()
        raise RunError(f"{self.title} left no {name}.summary in {self.root} or its results/")

    def _name(self, work: Path) -> str:
        return f"{self.output}-{work.name}"


class HStore(Installation):
    """H-Store's own benchmark framework, called through Ant; it is the DBMS as well as the clients."""

    kind, title, program = "h-store", "H-Store", "ant"
    output = "benchmark.log"

    @staticmethod
    def is_at(root: Path) -> bool:
        """See `Installation`."""
        build = root / "build.xml"
        return build.is_file() and "hstore-benchmark" in build.read_text(encoding="utf-8", errors="replace")

    def check(self, configuration: Configuration, load: bool) -> None:
        """See `Installation`; also that the project is prepared, and that its clients can do what is configured."""
        super().check(configuration, load)
        if not load:
            raise InputError("--no-load: H-Store loads at each start; allowed: --load")
        jar = self.root / f"{configuration.benchmark}.jar"
        if not jar.is_file():
            raise InputError(
                f"{jar} is missing: prepare it with `ant hstore-prepare -Dproject={configuration.benchmark}"
                ' -Dhosts="localhost:0:0"` there'
            )
        # Its clients get the same parameters as ours, so what ours refuse of a file is refused for them.
        mapping.settings_of(configuration, mapping.Choice((), (1.0,)))

    def steps(self, configuration: Configuration, work: Path, load: bool) -> list[Step]:
        """See `Installation`; it loads at each start, as a main-memory system does."""
        del load
        wanted = mapping.settings_of(configuration, mapping.Choice((), (1.0,))).settings
        parameters: dict[str, object] = {
            "client.duration": round(1000 * wanted.measure_s),
            "client.warmup": round(1000 * wanted.warmup_s),
            "client.threads_per_host": wanted.terminals,
            "client.blocking": "true",
            "client.blocking_concurrent": 1,
            "client.txnrate": HSTORE_RATE,
            "client.output_json": "true",
        }
        if configuration.benchmark == "ycsb":
            reads = round(100 * wanted.read_share)
            parameters |= {
                "client.weights": f"ReadRecord:{reads},UpdateRecord:{100 - reads},*:0",
                "benchmark.fixed_size": "true",
                "benchmark.num_records": wanted.records,
                "benchmark.skew_factor": f"{wanted.skew:g}",
            }
        else:
            parameters |= {
                "benchmark.warehouses": wanted.warehouses,
                "benchmark.warehouse_per_partition": "false",
            }
        command = ["ant", "hstore-benchmark", f"-Dproject={configuration.benchmark}"]
        command += [f"-D{name}={value}" for name, value in parameters.items()]
        return [Step("benchmark", command, LOAD_LIMIT_S + _limit_s(configuration))]

    def collect(self, configuration: Configuration, work: Path) -> tuple[Measured, list[Path]]:
        """See `Installation`: the report is part of what it printed."""
        del configuration
        log = work / self.output
        return results.of_hstore(log), [log]


KINDS: tuple[type[Installation], ...] = (BenchBase, OltpBench, HStore)


def find(path: Path) -> Installation:
    """Return the installation at a path, or whose jar it is; raises InputError saying what was looked for."""
    root = path.parent if path.name == "benchbase.jar" else path
    if not root.is_dir():
        raise InputError(f"{path}: no such directory; allowed: the directory of an installation")
    for kind in KINDS:
        if kind.is_at(root):
            return kind(root)
    raise InputError(
        f"{path}: no installation there: neither benchbase.jar (BenchBase) nor oltpbenchmark (OLTP-Bench), nor a"
        " build.xml with hstore-benchmark (H-Store)"
    )


def drive(
    installation: Installation,
    configuration: Configuration,
    work: Path,
    *,
    load: bool,
    cancelled: Callable[[], bool],
    tell: Tell,
    limit_s: float | None = None,
) -> tuple[Measured, list[Path]]:
    """Run a configuration and read what came out; `limit_s` stands for the limit of each call.

    Raises RunError with the reason when a call fails, takes too long, is cancelled, or leaves no results that can be
    read. Messages of each call are in ``<call>.log`` in `work`.
    """
    for step in installation.steps(configuration, work, load):
        own = step if limit_s is None else replace(step, limit_s=limit_s)
        _run(installation, own, work / f"{step.name}.log", cancelled, tell)
    return installation.collect(configuration, work)


def _run(installation: Installation, step: Step, log: Path, cancelled: Callable[[], bool], tell: Tell) -> None:
    what = f"{installation.title} {step.name}"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                step.command,
                cwd=installation.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"{what}: {step.command[0]} cannot be started: {error.strerror}") from None
    try:
        _watch(process, what, cancelled, tell, step.limit_s)
    finally:
        _end(process)
    if process.returncode != 0:
        said = [line.strip() for line in tail(log, 20).splitlines() if line.strip()]
        raise RunError(f"{what} failed (exit code {process.returncode}): {said[-1] if said else 'it said nothing'}")


def _watch(
    process: subprocess.Popen[bytes], what: str, cancelled: Callable[[], bool], tell: Tell, limit_s: float
) -> None:
    """Wait for the end; raises RunError when that takes too long or is not wanted any more."""
    began = told = time.monotonic()
    tell(f"{what}, at most {duration(limit_s)}")
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return
        now = time.monotonic()
        if cancelled():
            raise RunError("interrupted")
        if now > began + limit_s:
            raise RunError(f"{what} did not end within {limit_s:.0f} s and was ended")
        if now > told + TELL_S:
            told = now
            tell(f"{what}, {duration(now - began)} of at most {duration(limit_s)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a call: the processes of its session, which nobody else has started."""
    if process.poll() is not None:
        return
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return


def _limit_s(configuration: Configuration) -> float:
    return 1.5 * configuration.seconds() + SLACK_S


def _only(directory: Path, pattern: str, title: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise RunError(f"{title} left {len(found) or 'no'} {pattern} in {directory}")
    return found[0]


def _files(summary: Path, windows: Path, raw: Path | None) -> Files:
    return Files(summary, windows if windows.is_file() else None, raw if raw is not None and raw.is_file() else None)
