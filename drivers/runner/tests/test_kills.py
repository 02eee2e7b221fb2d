"""A sweep that is ended in every way at moments nobody chose: what was recorded stays, and the next call goes on."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sweep_to_kill import KEY, a_plan

from runner import heartbeat, store
from runner.agent import start_ticks
from runner.cli import main
from runner.files import read_json
from runner.interrupt import Interrupt
from runner.store import Run

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "setup" / "tests" / "sweep_to_kill.py"
DEADLINE_S = 60.0
WAYS_TO_END = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
SIGNALS = [way for way in WAYS_TO_END if signal.getsignal(way) != signal.SIG_IGN]  # under nohup nobody hears SIGHUP
TRIALS = {trial.hash for trial in a_plan().trials}


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


class Sweep:
    """The program in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.calls: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(ROOT / "drivers" / "runner"), str(ROOT / "notebooks")])
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.place)],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=self.place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.calls.append(program)
        return program

    @property
    def run(self) -> Run | None:
        return store.find(self.place / "results", KEY) if (self.place / "results").exists() else None

    def begun_by(self, program: subprocess.Popen[str]) -> bool:
        """Whether this call has said that it is at work."""
        return self.run is not None and heartbeat.read(self.run.path).get("pid") == program.pid

    def records(self) -> dict[str, str]:
        """Every recorded trial with the digest of its result and its environment; each must be whole."""
        found = {}
        for directory in (self.run.path / "trials").glob("[!.]*") if self.run is not None else ():
            assert read_json(directory / "environment.json")["sitting"]
            if read_json(directory / "result.json")["status"] != "failed":
                content = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
                found[directory.name] = hashlib.sha256(content).hexdigest()
        return found

    def server(self) -> int | None:
        file = self.place / "var" / "server.pid"
        return int(file.read_text()) if file.exists() else None

    def loadgens(self) -> list[psutil.Process]:
        """Programs that measure in this directory."""
        return [p for p in psutil.process_iter(["cmdline"]) if str(self.place / "tools") in str(p.info["cmdline"])]

    def end(self) -> None:
        for program in self.calls:
            if program.poll() is None:
                program.kill()
                program.wait()
        for process in psutil.process_iter(["cmdline"]):
            if str(self.place / "var") in str(process.info["cmdline"]):
                process.kill()


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    made = Sweep(tmp_path)
    yield made
    made.end()


@pytest.mark.slow
def test_nothing_recorded_is_lost_whatever_ends_the_sweep(sweep: Sweep) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    moments = random.Random(seed)  # noqa: S311
    said = f"seed {seed}"
    before: dict[str, str] = {}
    for number in SIGNALS:
        program = sweep.start()
        wait_until(lambda started=program: sweep.begun_by(started) or started.poll() is not None)  # type: ignore[misc]
        time.sleep(moments.uniform(0.0, 0.8))
        at_work = program.poll() is None
        program.send_signal(number)
        printed, _ = program.communicate(timeout=DEADLINE_S)
        after = sweep.records()
        assert before.items() <= after.items(), said
        before = after
        wait_until(lambda: not sweep.loadgens())
        ended = (0, -number) if number == signal.SIGKILL else (130, 0, -number)
        assert program.returncode in ended, f"{said}: {printed}"
        if number != signal.SIGKILL:
            assert sweep.server() is None, f"{said}: a server stays"
        elif at_work:
            assert sweep.run is not None
            assert not heartbeat.lives(heartbeat.read(sweep.run.path)), said
    assert set(before) < TRIALS, f"{said}: nothing is left to go on with"
    left = sweep.server()
    printed, _ = (program := sweep.start()).communicate(timeout=DEADLINE_S)
    assert program.returncode == 0, f"{said}: {printed}"
    after = sweep.records()
    assert before.items() <= after.items(), said
    assert set(after) == TRIALS, said
    assert left is None or start_ticks(left) is None, f"{said}: the killed one's server stays"
    assert not list((sweep.place / "tools" / "work").glob("work-*")), f"{said}: passwords stay"
    assert sweep.run is not None
    assert [p.name for p in (sweep.run.path / "trials").glob(".*")] == []
    assert heartbeat.read(sweep.run.path)["end"] == "finished"


def test_the_end_of_the_terminal_ends_a_sweep_but_not_under_nohup() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for disposition, asked in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, disposition)
            with Interrupt().listening() as interrupt:
                os.kill(os.getpid(), signal.SIGHUP)
            assert interrupt() is asked
            assert signal.getsignal(signal.SIGHUP) is disposition
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_two_runners_do_not_take_the_same_trials(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    first = sweep.start()
    wait_until(lambda: sweep.begun_by(first) or first.poll() is not None)
    second = sweep.start()
    assert main(["status", "--results", str(sweep.place / "results")]) == 0
    shown = capsys.readouterr().out
    assert f"process {first.pid} on " in shown
    assert "running for " in shown
    assert f"of {len(TRIALS)} trials of this call are done, about " in shown
    assert "go on:" not in shown, "it does go on"
    refused, _ = second.communicate(timeout=DEADLINE_S)
    if second.returncode != 0:  # else the first one had ended before the second came to its lock
        assert second.returncode == 2, refused
        assert f"in use by process {first.pid} on " in refused
        assert "kill -INT" in refused
    printed, _ = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 0, printed
    assert set(sweep.records()) == TRIALS
    assert sweep.run is not None
    assert all(sweep.run.attempts(trial_hash) == 1 for trial_hash in sweep.records()), "each trial was measured once"
    main(["status", "--results", str(sweep.place / "results")])
    assert "the last sweep ended " in capsys.readouterr().out
