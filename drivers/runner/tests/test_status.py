"""What ``make status`` says of a sweep that runs, was killed, ended, or runs elsewhere; that asking costs little."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner import heartbeat, status, store
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.files import read_json, write_json
from runner.heartbeat import Heartbeat
from runner.machine import CpuSets
from runner.plan import Plan, make_plan
from runner.progress import SweepProgress
from runner.store import Run
from runner.workload import Workload, load

Record = Callable[..., None]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run(smoke: Workload, new_run: Callable[[Plan], Run], record_trial: Record) -> Run:
    """Two experiments; of the first one trial each is valid, flagged, invalid and failed."""
    both = [smoke, load(ROOT / "workloads", "fig07", "smoke")]
    plan = make_plan(both, CpuSets("0", "1"), NODE_DISK, systems=["mysql"], where={"data_memory_ratio": ["1"]})
    made = new_run(plan)
    told = {"code": {}, "machine": "a machine", "command": "python -m runner run --experiment fig06,fig07"}
    made.begin_sitting(told)
    own = [trial for trial in plan.trials if trial.experiment == "fig06"]
    record_trial(made, own[0], 100.0)
    record_trial(made, own[1], 100.0, flags=["not_settled"])
    record_trial(made, own[2], 100.0, status="invalid", reason="97 %")
    record_trial(made, own[3], None, status="failed", reason="mysqld died")
    return made


@pytest.fixture
def shown(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    def call() -> str:
        assert status.main(["status", "--results", str(run.path.parents[1]), "--run", run.name]) == 0
        # On a busy machine seconds pass between what is told and the question.
        return re.sub(r"(for|ended|of) \d+ s( of about| ago|\n)", r"\1 0 s\2", capsys.readouterr().out)

    return call


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A program that is killed at the end, however that comes about."""
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT / "drivers" / "runner")
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def told(run: Run, **changed: Any) -> None:
    """Let the run's progress be another one."""
    path = run.path / heartbeat.FILE
    write_json(path, {**read_json(path), **changed})


def test_what_is_recorded_failed_and_flagged(shown: Callable[[], str]) -> None:
    text = shown()
    row = next(line for line in text.splitlines() if "mysql " in line)
    assert [cell.strip() for cell in row.split("│")[2:7]] == ["1", "1", "1", "1", "3"]
    assert "fig06: 3 of 6 trials" in text
    assert "fig07: 0 of 1 trials" in text
    for line in ("1 x 97 %", "1 x mysqld died", "1 x flagged not_settled", "make retry", "retry --invalid"):
        assert line in text
    assert "go on: python -m runner run --experiment fig06,fig07" in text


def test_a_running_sweep_tells_lane_phase_trial_and_time(run: Run, shown: Callable[[], str]) -> None:
    with (
        Heartbeat(run.path, run.sitting, 10, 3600.0) as beat,
        SweepProgress(10, 3600.0, Console(quiet=True), lanes=2, heartbeat=beat) as progress,
    ):
        progress.doing("mysql read-only s=1 1x", lane="a", trial="0123abcd", expected_s=40.0)
        progress.doing("loading mysql", lane="b")
        progress.trial_done("mysql read-only s=1 1x #1", "100 txn/s", lane="a")
        text = shown()
        assert f"process {read_json(run.path / heartbeat.FILE)['pid']} on " in text
        assert "lane a: mysql read-only s=1 1x (trial 0123abcd), for 0 s of about 40 s" in text
        assert "lane b: loading mysql, for 0 s\n" in text
        assert "1 of 10 trials of this call are done, about " in text
        assert "go on:" not in text
        assert f"is measuring in {run.path}" in status.warning(run)
        earlier = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
        told(run, left_at=earlier, seconds_left=3600.0)
        assert "about 30 min left" in shown(), "what has passed since is taken off"
    assert "the last sweep ended 0 s ago: finished" in shown()
    assert status.warning(run) == ""


def test_a_killed_sweep_is_told_from_a_running_one(run: Run, shown: Callable[[], str]) -> None:
    with Heartbeat(run.path, run.sitting, 10, 3600.0) as beat:
        beat.doing("mysql read-only s=1 1x", "1", "0123abcd", 40.0)
        with running("sleep", "600") as other:
            told(run, pid=other.pid)  # an id that another process has now
            assert "interrupted: process" in shown()
        told(run, pid=other.pid)
        text = shown()
        assert f"interrupted: process {other.pid} on" in text
        assert "is gone and did not end its sweep" in text
        assert "lane 1: mysql read-only s=1 1x (trial 0123abcd)" in text
        assert "go on: python -m runner run" in text
        told(run, boot_id="another boot")
        assert "interrupted: process" in shown(), "the machine went down"
        told(run, host="elsewhere")
        text = shown()
        assert "on elsewhere, which cannot be seen from here, was last heard of " in text


def test_an_end_is_told_with_its_reason(run: Run, shown: Callable[[], str]) -> None:
    with Heartbeat(run.path, "", 10, 1.0) as beat:
        beat.interrupted()
    assert "the last sweep ended 0 s ago: interrupted" in shown()
    with pytest.raises(ValueError, match="a defect"), Heartbeat(run.path, "", 10, 1.0):
        raise ValueError("a defect")
    assert "the last sweep ended 0 s ago: failed: a defect" in shown()


def test_no_progress_is_no_trouble(run: Run, shown: Callable[[], str], tmp_path: Path) -> None:
    (run.path / heartbeat.FILE).write_text("{")
    assert "ago" not in shown()
    beat = Heartbeat(tmp_path / "gone", "", 1, 1.0)
    beat.doing("nobody can read it", "1")  # a full disk ends no sweep


def test_the_command_that_goes_on_is_not_the_one_that_only_repeats(run: Run) -> None:
    run.begin_sitting({"command": "make retry"})
    assert status.go_on(run) == "python -m runner run --experiment fig06,fig07"
    assert status.go_on(run, Path("results/unfinished/x")).endswith("fig06,fig07 --from results/unfinished/x")


def test_asking_imports_neither_tables_nor_figures() -> None:
    heavy = ("pandas", "pandera", "matplotlib", "ansible_runner", "nbclient", "jinja2")
    code = f"import sys, runner.status; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "drivers/runner"
    )
    assert done.stdout == "[]\n"


def test_a_lock_names_its_holder_and_goes_with_it(run: Run) -> None:
    program = (
        "import sys, time; from pathlib import Path; from runner.store import Run\n"
        "with Run(Path(sys.argv[1])).held(): print('held', flush=True); time.sleep(600)"
    )
    with running(sys.executable, "-c", program, str(run.path)) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError) as caught, run.held():
            pass
        assert f"{run.path} is being filled by process {other.pid} on " in str(caught.value)
        assert f"`kill -INT {other.pid}`" in str(caught.value)
    with run.held(), pytest.raises(InputError, match="is being filled by"), Run(run.path).held():
        pass
    with run.held():
        assert (run.path / store.LOCK).is_file()


def test_a_holder_that_has_not_written_yet_is_told_as_such() -> None:
    assert "another runner, which has just begun" in store.held_by("")


def test_the_time_left_follows_what_trials_cost() -> None:
    progress = SweepProgress(2, 100.0, Console(quiet=True), costs={"long": 90.0, "short": 10.0})
    progress.trial_done("the long one", "done", trial="long")
    time.sleep(0.01)
    assert progress.seconds_left() < 10.0, "nine tenths of the work are done, faster than expected"
    progress.trial_done("the short one", "done", trial="short")
    assert progress.seconds_left() == 0.0
