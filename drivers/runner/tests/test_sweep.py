"""The sweep with the real loadgen on its null system, and a server process that can be made to misbehave.

Ansible and the databases are left out here (see test_end_to_end.py): `Node` below starts a real process in their
place, so that deaths, interruptions and full disks are the real thing.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import control_groups
import pytest
from rich.console import Console

from runner import collect, driver, identity, machine, store
from runner.cluster import Lane
from runner.deploy import DeployError
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.files import read_json
from runner.hosts import Host
from runner.identity import Code
from runner.interrupt import Interrupt
from runner.lane import LaneWorker
from runner.plan import Deployment, Plan, make_plan
from runner.progress import SweepProgress
from runner.recording import Recorder, Summary, Tools
from runner.store import Run
from runner.sweep import Sweep
from runner.workload import Workload

ROOT = Path(__file__).resolve().parents[3]
LOADGEN = ROOT / "target" / "release" / "loadgen"
CPUS = machine.halves(sorted(os.sched_getaffinity(0)))


class Node:
    """Stands in for the playbooks: `deploy` starts one process, `stop` ends it."""

    def __init__(self, node_root: Path) -> None:
        self.node_root = node_root
        self.plays: list[str] = []
        self.lifetimes_s: list[str] = []  # of the servers of the coming deployments; then for good
        self.refuse: list[str] = []  # messages of coming deployments that fail
        self.server: subprocess.Popen[bytes] | None = None
        self.group: control_groups.Group | None = None  # of the servers, which then grow at the end of their life

    def play(self, name: str, _values: dict[str, Any], log: Path, cancellable: bool = True) -> None:
        self.plays.append(name)
        log.write_text(name)
        assert cancellable or name == "stop"
        self.stop()
        if name != "deploy":
            return
        if self.refuse and (message := self.refuse.pop(0)):
            raise DeployError(message)
        lifetime = self.lifetimes_s.pop(0) if self.lifetimes_s else "600"
        command = ["sleep", lifetime]
        if self.group is not None:
            grow = f"import time; time.sleep({lifetime}); held = bytearray(200 << 20); time.sleep(600)"
            command = control_groups.command_in(self.group, [sys.executable, "-c", grow], "sleepd")
        self.server = subprocess.Popen(command)

    def endpoint(self, _deployment: Deployment) -> dict[str, Any]:
        assert self.server is not None
        log = self.node_root / "server.log"
        log.write_text("line 1\nassertion failed: the server's last words\n")
        group = {"control_group": self.group.endpoint()} if self.group is not None else {}
        return {"adapter": "null", "pids": {"sleepd": self.server.pid}, "logs": [str(log)], **group}

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def plan(smoke: Workload) -> Plan:
    """Two deployments of the null system with two trials of 0.6 s each."""
    values = smoke.values.model_copy(update={"warmup_s": 0.1, "measure_s": 0.5, "records": 5000})
    grid = smoke.grid.model_copy(
        update={"system": ["null"], "mix": ["read-heavy"], "skew": [1.5, 0.5], "data_memory_ratio": [1.0, 2.0]}
    )
    assert smoke.experiment.ycsb is not None
    section = smoke.experiment.ycsb.model_copy(update={"terminals": 4})
    experiment = smoke.experiment.model_copy(update={"only": [], "ycsb": section})
    return make_plan([dataclasses.replace(smoke, values=values, grid=grid, experiment=experiment)], CPUS, NODE_DISK)


@pytest.fixture
def sweep(
    plan: Plan, node: Node, new_run: Callable[[Plan], Run], new_lane: Callable[..., Lane], tmp_path: Path
) -> Callable[..., tuple[Summary, Run, str]]:
    """Runs the plan (or what is left of it) and returns the summary, the run, and what was printed."""
    assert LOADGEN.is_file(), "target/release/loadgen is missing: run `make build` first"
    run = new_run(plan)

    def execute(program: Path = LOADGEN, interrupt: Interrupt | None = None) -> tuple[Summary, Run, str]:
        tools = Tools(ROOT, program, CPUS, NODE_DISK, Code("c", False, "s"))
        console = Console(record=True, width=300)
        todo = store.to_run(plan.trials, run.recorded())
        interrupt = interrupt or Interrupt()
        with SweepProgress(len(todo), 10.0, console) as progress:
            recorder = Recorder(plan, run, tools, progress)
            worker = LaneWorker(new_lane("1", tmp_path), node, recorder, interrupt)  # type: ignore[arg-type]
            summary = Sweep(plan, [worker], recorder, interrupt).execute(todo)
        return summary, run, console.export_text()

    return execute


Execute = Callable[..., tuple[Summary, Run, str]]


def test_every_trial_is_measured_and_recorded(sweep: Execute, plan: Plan, node: Node) -> None:
    summary, run, printed = sweep()
    assert (summary.ok, summary.failed, summary.interrupted) == (4, 0, False)
    assert node.plays == ["stop", "deploy", "deploy", "stop"], "a healthy predecessor is stopped by deploy.yml"
    table = collect.collect(run)
    assert (table["status"] == "ok").all()
    assert (table["throughput_txn_s"] > 0).all()
    assert "[4/4]" in printed
    assert "txn/s" in printed
    directory = run.trial_path(plan.trials[0].hash)
    expected = {"spec.json", "result.json", "timeline.csv", "latency.hdr", "environment.json"}
    assert expected <= {p.name for p in directory.iterdir()}
    environment = read_json(directory / "environment.json")
    assert environment["memory"]["processes"]["sleepd"]["peak_bytes"] > 0
    assert environment["cpu_sets"]["server"] == CPUS.server
    assert environment["binaries"] == {
        "loadgen": identity.sha256(LOADGEN),
        "anticached": identity.binaries({"it": ROOT / driver.ANTICACHED})["it"],
    }
    spec = read_json(directory / "spec.json")
    assert spec | plan.trials[0].record() == spec | {"deployment": plan.trials[0].deployment}
    assert environment["machine"]["node_root_device"]["file_system"] != "unknown"
    assert (table["memory_peak_bytes"] > 0).all()


def test_a_second_call_has_nothing_to_do(sweep: Execute, node: Node) -> None:
    sweep()
    plays = len(node.plays)
    summary, _, _ = sweep()
    assert (summary.ok, summary.failed) == (0, 0)
    assert "deploy" not in node.plays[plays:]


def test_a_server_that_dies_fails_its_trial_and_is_deployed_again(sweep: Execute, plan: Plan, node: Node) -> None:
    node.lifetimes_s = ["0.25"]
    summary, run, printed = sweep()
    assert (summary.ok, summary.failed) == (3, 1)
    first = run.trial_path(plan.trials[0].hash)
    result = read_json(first / "result.json")
    assert result["status"] == "failed"
    assert "server died during the trial: sleepd (pid" in result["reason"]
    assert "the server's last words" in (first / "server-0-server.log").read_text()
    assert node.plays.count("deploy") == 3
    assert "server died" in printed
    again, _, _ = sweep()
    assert (again.ok, again.failed) == (1, 0), "only the failed one is run again"


@pytest.fixture
def limited(node: Node) -> Iterator[Node]:
    """The node with a control group of 64 MiB for its servers."""
    wanted = control_groups.Wanted(f"sweep {node.node_root}", 16 << 20, 48 << 20)
    try:
        node.group = control_groups.ensure(wanted)
    except control_groups.ControlGroupError as error:
        pytest.skip(str(error))
    yield node
    node.stop()
    assert control_groups.remove(node.group)


def test_a_server_that_exceeds_its_memory_fails_its_trial_with_that_reason(
    sweep: Execute, plan: Plan, limited: Node
) -> None:
    limited.lifetimes_s = ["0.25"]
    summary, run, _ = sweep()
    assert (summary.ok, summary.failed) == (3, 1)
    directory = run.trial_path(plan.trials[0].hash)
    assert read_json(directory / "result.json")["reason"] == (
        "sleepd exceeded its memory: limit 67108864 bytes = budget 16777216 + allowance 50331648; oom_kill 1"
    )
    recorded = read_json(directory / "environment.json")["control_group"]
    assert recorded["used"]["oom_kills"] == 1
    assert recorded["enforced"]
    table = collect.collect(run).set_index("status")
    assert (table["memory_limit_bytes"] == 64 << 20).all()
    assert table.loc[["failed"], "memory_peak_bytes"].isna().all()
    measured = table.loc[["ok"]]
    assert (measured["memory_anonymous_bytes"] > 1 << 20).all()
    assert measured["memory_peak_bytes"].between(1 << 20, 64 << 20).all()
    assert run.meta["warnings"] == ["the CPU set is the servers' affinity alone: the deployment names no CPUs"]


def test_memory_that_is_not_enforced_is_said_and_kept_with_the_run(sweep: Execute) -> None:
    _, run, printed = sweep()
    assert "warning: memory is not enforced, only configured" in printed
    assert "memory is not enforced" in run.meta["warnings"][0]
    assert collect.collect(run)["memory_limit_bytes"].isna().all()


def test_a_deployment_that_fails_fails_its_trials_only(sweep: Execute, node: Node) -> None:
    node.refuse = ["deploy.yml failed: task 'Start MySQL': port 33061 is in use; log: ansible.log"]
    summary, run, _ = sweep()
    assert (summary.ok, summary.failed) == (2, 2)
    table = collect.collect(run)
    failed = table[table["status"] == "failed"]
    assert set(failed["data_memory_ratio"]) == {1.0}
    assert failed["reason"].str.contains("port 33061 is in use").all()
    assert failed["throughput_txn_s"].isna().all()


def test_an_interruption_ends_the_trial_stops_the_servers_and_keeps_the_rest(
    sweep: Execute, plan: Plan, node: Node
) -> None:
    interrupt = Interrupt()
    asked: list[bool] = []
    interrupt.on_ask = lambda: asked.append(True)
    trials = 0
    measured = driver.call

    def call(*args: Any, **kwargs: Any) -> driver.Outcome:
        nonlocal trials
        trials += args[1] == "run"
        if trials == 2:  # Ctrl-C while the second trial runs
            threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
        return measured(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, interrupt.listening():
        patch.setattr(driver, "call", call)
        summary, run, _ = sweep(interrupt=interrupt)
    assert asked == [True]
    assert summary.interrupted
    assert (summary.ok, summary.failed) == (1, 1)
    recorded = run.recorded()
    assert recorded[plan.trials[0].hash].status == "ok"
    assert recorded[plan.trials[1].hash] == store.Recorded("failed", "interrupted")
    assert len(recorded) == 2, "what was not begun stays planned"
    assert node.plays[-1] == "stop"
    assert node.server is None
    again, _, _ = sweep()
    assert (again.ok, again.failed) == (3, 0), f"the same call goes on where it stopped: {again}"


def test_a_full_disk_fails_the_trials_and_the_sweep_goes_on(
    sweep: Execute, plan: Plan, new_run: Callable[[Plan], Run], tmp_path: Path
) -> None:
    """With a real full file system: needs the right to mount one."""
    run_path = new_run(plan).path.parents[1]
    place = run_path / "runs" / sorted(p.name for p in (run_path / "runs").iterdir())[0] / "trials"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        with (place / ".filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 4096)
        summary, _, printed = sweep()
        assert summary.failed == 4
        assert all("disk full" in reason for reason in summary.reasons), summary.reasons
        assert "its failure cannot be recorded" in printed
        (place / ".filler").unlink()
        summary, run, _ = sweep()
        assert summary.ok >= 1, "with space again the trials run"
        assert all(
            r.status != "ok" or run.trial_path(h).joinpath("environment.json").is_file()
            for h, r in run.recorded().items()
        )
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_missing_loadgen_names_the_command_that_builds_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`make build`"):
        driver.binary(tmp_path)


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_hung_loadgen_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "GRACE_S", 0.3)
    deaf = _script(tmp_path / "deaf", "trap '' TERM; echo started; while :; do sleep 0.1; done")
    client = driver.Client(Host("here"), tmp_path / "tools", deaf)
    outcome = driver.call(client, "run", {}, tmp_path, cancelled=lambda: False, limit_s=0.5)
    assert outcome.stopped == "loadgen did not end within 0 s and was ended"
    assert outcome.last_line == "started"
    assert outcome.exit_code == -signal.SIGKILL


def test_a_loadgen_that_refuses_fails_the_trials_with_its_words(sweep: Execute, tmp_path: Path) -> None:
    refusing = _script(tmp_path / "refusing", "echo 'spec.json: terminals = 0: out of range' >&2; exit 2")
    summary, run, _ = sweep(program=refusing)
    assert summary.failed == 4
    reasons = {r.reason for r in run.recorded().values()}
    assert all("loadgen load failed: spec.json: terminals = 0: out of range" in r for r in reasons)


def test_a_system_that_cannot_be_quiesced_is_not_measured(sweep: Execute, tmp_path: Path) -> None:
    restless = _script(tmp_path / "failing", '[ "$1" != quiesce ] && exit 0; echo "7 pages are left" >&2; exit 1')
    summary, run, _ = sweep(program=restless)
    assert summary.failed == 4
    reasons = [recorded.reason for recorded in run.recorded().values()]
    assert all("loadgen quiesce failed: 7 pages are left" in r for r in reasons), reasons


def test_a_trial_without_a_result_says_what_loadgen_said(sweep: Execute, tmp_path: Path) -> None:
    quiesces = 'for out; do :; done; [ "$1" = quiesce ] && echo \'{"summary": ""}\' > "$out/quiesce.json"; '
    panics = '[ "$1" != run ] && exit 0; echo "thread panicked" >&2; exit 101'
    crashing = _script(tmp_path / "crashing", quiesces + panics)
    summary, run, _ = sweep(program=crashing)
    assert summary.failed == 4
    assert {r.reason for r in run.recorded().values()} == {"loadgen left no result (exit code 101): thread panicked"}
