"""Lanes: pairing, CPU sets, sameness, the queue, and sweeps on two lanes with the real loadgen on its null system."""

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

import pytest
from rich.console import Console

from runner import collect, machine, sameness, store
from runner.cluster import Cluster, Lane
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.estimate import estimate
from runner.files import read_json
from runner.hosts import BOOTSTRAP, Host, LostNodeError, Piped
from runner.identity import Code
from runner.interrupt import Interrupt
from runner.inventory import Node, pair
from runner.lane import Batch, LaneWorker
from runner.plan import Deployment, Plan, make_plan
from runner.progress import SweepProgress
from runner.recording import Recorder, Summary, Tools
from runner.sameness import Facts
from runner.store import Run
from runner.sweep import Queue, Sweep
from runner.workload import Workload

ROOT = Path(__file__).resolve().parents[3]
LOADGEN = ROOT / "target" / "release" / "loadgen"
CPUS = machine.halves(sorted(os.sched_getaffinity(0)))


# -- inventories --------------------------------------------------------------------------------------------------


def test_hosts_are_paired_by_lane(new_node: Callable[..., Node], tmp_path: Path) -> None:
    def node(name: str, group: str, lane: str) -> Node:
        return new_node(name, tmp_path, lane=lane, groups=(group,))

    four = [node("d2", "dbms", "b"), node("c2", "clients", "b"), node("d1", "dbms", "a"), node("c1", "clients", "a")]
    lanes = pair({n.name: n for n in four}, "lab")
    assert [(lane.name, lane.db.name, lane.client.name) for lane in lanes] == [("a", "d1", "c1"), ("b", "d2", "c2")]
    both = new_node("localhost", tmp_path, lane="")
    assert [(lane.name, lane.db, lane.client) for lane in pair({"localhost": both}, "local")] == [("1", both, both)]
    for nodes, message in (
        (four[:3], "lane a must have one host in group `clients`; it has none"),
        ([*four, node("d3", "dbms", "a")], "lane a must have one host in group `dbms`; it has d1, d3"),
        ([*four, node("d3", "dbms", "")], "host d3 has no variable `lane`"),
        (four[:1], "no host in its group `clients`: the terminals would run nowhere"),
        ([four[0], four[3]], "lane a must have one host in group `dbms`"),
    ):
        with pytest.raises(InputError, match=message):
            pair({n.name: n for n in nodes}, "lab")


def facts(boot: str = "1", cpus: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "hostname": "node",
        "boot_id": boot,
        "kernel": "6.1",
        "operating_system": "Debian 12",
        "cpu_model": "CPU",
        "cpu_cores": cpus,
        "cpus": list(range(cpus)),
        "memory_bytes": 8_000_000_000,
        "transparent_huge_pages": "madvise",
        "node_root_device": {"device": "/dev/sda", "file_system": "ext4", "free_bytes": 1},
        **more,
    }


def test_cpu_sets_are_halves_of_one_machine_and_all_of_two() -> None:
    assert machine.cpu_sets(facts(), facts()) == machine.CpuSets("0-1", "2-3")
    assert machine.cpu_sets(facts("1"), facts("2", cpus=8)) == machine.CpuSets("0-3", "0-7")
    assert machine.cpu_sets(facts("1"), facts("2"), "0,2-3", "1") == machine.CpuSets("0,2-3", "1")
    assert machine.cpu_sets(facts(), facts(), "0-2", "2-3").shared, "CPU 2 is in both"
    assert not machine.cpu_sets(facts("1"), facts("2"), "0", "0").shared
    with pytest.raises(InputError, match="server_cpus: '0-4' names CPU 4, but node offers 0-3"):
        machine.cpu_sets(facts(), facts(), "0-4")
    with pytest.raises(InputError, match="client_cpus: '1-' is no list of CPUs"):
        machine.cpu_sets(facts(), facts(), "", "1-")


# -- sameness -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Facts("d2", facts(cpu_model="Other CPU")), "cpu_model is CPU on d1 and Other CPU on d2"),
        (Facts("d2", facts(cpus=2)), "cpu_cores is 4 on d1 and 2 on d2"),
        (Facts("d2", facts(kernel="6.2")), "kernel is 6.1 on d1 and 6.2 on d2"),
        (
            Facts("d2", facts(memory_bytes=7_900_000_000)),
            "memory_bytes is 8000000000 on d1 and 7900000000 on d2 (allow",
        ),
        (
            Facts("d2", facts(transparent_huge_pages="always")),
            "transparent_huge_pages is madvise on d1 and always on d2",
        ),
        (Facts("d2", facts(), {"SHA-256 of mysqld": "2"}), "SHA-256 of mysqld is 1 on d1 and 2 on d2"),
        (Facts("d2", facts(), {}), "SHA-256 of mysqld is 1 on d1 and not there on d2"),
    ],
)
def test_unlike_nodes_are_refused_with_host_property_and_values(other: Facts, message: str) -> None:
    first = Facts("d1", facts(), {"SHA-256 of mysqld": "1"})
    with pytest.raises(InputError) as caught:
        sameness.refuse_differences("DB nodes", [first, other])
    assert message in str(caught.value)


def test_alike_nodes_may_be_off_by_a_little() -> None:
    first = Facts("d1", facts(), {"SHA-256 of mysqld": "1"})
    near = facts(memory_bytes=7_950_000_000, boot_id="2", hostname="d2", load_average=[9.0, 0.0, 0.0])
    second = Facts("d2", near, {"SHA-256 of mysqld": "1"})
    sameness.refuse_differences("DB nodes", [first, second])


def test_unlike_disks_are_refused_with_both_figures() -> None:
    one = {"random read": 100.0, "append": 119.0}
    sameness.refuse_unlike_disks({"d1": one})
    sameness.refuse_unlike_disks({"d1": one, "d2": {"random read": 91.0, "append": 118.0}})
    with pytest.raises(InputError, match=r"random read is 100 on d1 and 89 on d2.*|allowed: 10% apart"):
        sameness.refuse_unlike_disks({"d1": one, "d2": {"random read": 89.0, "append": 119.0}})


def test_lanes_on_one_machine_are_refused(new_lane: Callable[..., Lane], tmp_path: Path) -> None:
    lanes = tuple(new_lane(name, tmp_path) for name in "ab")
    with pytest.raises(InputError, match="db-b of lane b and db-a of lane a are one machine"):
        Cluster(lanes).check_sameness()
    Cluster(lanes[:1]).check_sameness()


def test_a_node_has_one_runner(new_lane: Callable[..., Lane], tmp_path: Path) -> None:
    """Wherever two runners write to: on one node they would disturb each other."""
    one, other = (new_lane("a", tmp_path / "node", Host("db"), Host("client")) for _ in range(2))
    Cluster((one,)).hold(store.holder("runs fig06"))
    with pytest.raises(InputError) as caught:
        Cluster((other,)).hold(store.holder("runs fig07"))
    assert f"node db ({tmp_path}/node/var) is in use by process {os.getpid()} on " in str(caught.value)
    assert " runs fig06. Two at once would disturb each other" in str(caught.value)
    one.db.close()
    with pytest.raises(InputError, match=r"node client \(.*/tools\) is in use by"):
        Cluster((other,)).hold(store.holder("runs fig07"))
    Cluster((new_lane("b", tmp_path / "another"),)).hold(store.holder("runs on another node"))
    one.client.close()
    Cluster((new_lane("c", tmp_path / "node"),)).hold(store.holder("runs later"))


def test_lanes_need_the_same_cpu_sets(new_lane: Callable[..., Lane], tmp_path: Path) -> None:
    one = new_lane("a", tmp_path)
    other = dataclasses.replace(one, nodes=dataclasses.replace(one.nodes, name="b"), db_facts=facts("7", cpus=16))
    with pytest.raises(InputError, match=r"servers 0-15, terminals .* on b"):
        _ = Cluster((one, other)).cpus


# -- the queue ----------------------------------------------------------------------------------------------------


def batch(plan: Plan, number: int) -> Batch:
    deployment, trials = list(plan.batches(plan.trials))[number]
    return Batch(deployment, trials)


def test_a_lane_waits_for_what_may_come_back(smoke: Workload) -> None:
    plan = make_plan([smoke], CPUS, NODE_DISK, systems=["mysql"])
    stopped: list[bool] = []
    queue = Queue([batch(plan, 0), batch(plan, 1)], lambda: bool(stopped))
    first, second = queue.take(), queue.take()
    assert first is not None
    assert second is not None
    got: list[Batch | None] = []
    waiting = threading.Thread(target=lambda: got.append(queue.take()))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "the other lane may still lose a node"
    del first.pending[0]
    queue.give_back(first)
    waiting.join(30)
    assert got == [first]
    queue.done()
    queue.done()
    assert queue.take() is None, "nothing is left, and nothing can come back"


def test_nothing_is_given_out_after_an_interruption(smoke: Workload) -> None:
    plan = make_plan([smoke], CPUS, NODE_DISK, systems=["mysql"])
    queue = Queue([batch(plan, 0)], lambda: True)
    assert queue.take() is None
    assert len(queue.rest()) == len(batch(plan, 0).pending)


def test_lanes_share_the_time_but_each_loads_for_itself(smoke: Workload) -> None:
    plan = make_plan([smoke], CPUS, NODE_DISK)
    whole = estimate(plan, plan.trials, {d.dataset for d in plan.deployments.values()})
    halved = estimate(plan, plan.trials, {d.dataset for d in plan.deployments.values()}, lanes=2)
    assert halved.seconds == pytest.approx(whole.seconds / 2)
    assert (halved.trials, halved.deployments) == (whole.trials, whole.deployments)
    with_load = estimate(plan, plan.trials, set(), lanes=2)
    loading_s = estimate(plan, plan.trials, set()).seconds - whole.seconds
    assert with_load.seconds == pytest.approx(halved.seconds + loading_s)


# -- sweeps -------------------------------------------------------------------------------------------------------


class Plays:
    """Stands in for the playbooks of one lane: `deploy` starts one process, `stop` ends it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names: list[str] = []
        self.raises: list[Exception] = []  # by the coming deployments
        self.server: subprocess.Popen[bytes] | None = None

    def play(self, name: str, _values: dict[str, Any], _log: Path, cancellable: bool = True) -> None:
        assert cancellable or name == "stop"
        self.names.append(name)
        self.stop()
        if name == "deploy":
            if self.raises:
                raise self.raises.pop(0)
            self.server = subprocess.Popen(["sleep", "600"])

    def endpoint(self, _deployment: Deployment) -> dict[str, Any]:
        assert self.server is not None
        return {"adapter": "null", "pids": {"sleepd": self.server.pid}, "logs": []}

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None


class TwoLanes:
    """Two lanes whose nodes are agents in processes of their own."""

    def __init__(self, plan: Plan, run: Run, new_lane: Callable[..., Lane], place: Path) -> None:
        self.plan, self.run = plan, run
        self.interrupt = Interrupt()
        self.hosts = {name: self._far(name) for name in ("db-a", "client-a", "db-b", "client-b")}
        self.lanes = [new_lane(n, place / n, self.hosts[f"db-{n}"], self.hosts[f"client-{n}"]) for n in "ab"]
        self.plays = [Plays(place), Plays(place)]

    @staticmethod
    def _far(name: str) -> Host:
        return Host(name, Piped(name, [sys.executable, "-c", BOOTSTRAP]))

    def execute(self, on_line: Callable[[str], None] = lambda _: None) -> tuple[Summary, str]:
        console = Console(record=True, width=300)
        todo = store.to_run(self.plan.trials, self.run.recorded())
        interrupt = self.interrupt
        tools = Tools(ROOT, LOADGEN, CPUS, NODE_DISK, Code("c", False, "s"))

        class Told(SweepProgress):
            def say(self, text: str) -> None:
                super().say(text)
                on_line(text)

        with Told(len(todo), 10.0, console, lanes=2) as progress:
            recorder = Recorder(self.plan, self.run, tools, progress)
            pairs = zip(self.lanes, self.plays, strict=True)
            workers = [LaneWorker(lane, plays, recorder, interrupt) for lane, plays in pairs]  # type: ignore[arg-type]
            summary = Sweep(self.plan, workers, recorder, interrupt).execute(todo)
        return summary, console.export_text()

    def kill(self, name: str) -> None:
        """Let a node go without a word."""
        agent = int(self.hosts[name].run(["sh", "-c", "echo $PPID"])["stdout"])
        os.kill(agent, signal.SIGKILL)


@pytest.fixture
def two(
    smoke: Workload, new_run: Callable[[Plan], Run], new_lane: Callable[..., Lane], tmp_path: Path
) -> Iterator[TwoLanes]:
    """Four deployments of the null system with two trials of 0.4 s each."""
    values = smoke.values.model_copy(update={"warmup_s": 0.1, "measure_s": 0.3, "records": 40_000})
    axes = {"system": ["null"], "mix": ["read-heavy"], "skew": [1.5, 0.5], "data_memory_ratio": [1.0, 2.0, 4.0, 8.0]}
    assert smoke.experiment.ycsb is not None
    section = smoke.experiment.ycsb.model_copy(update={"terminals": 4})
    experiment = smoke.experiment.model_copy(update={"only": [], "ycsb": section})
    grid = smoke.grid.model_copy(update=axes)
    plan = make_plan([dataclasses.replace(smoke, values=values, grid=grid, experiment=experiment)], CPUS, NODE_DISK)
    made = TwoLanes(plan, new_run(plan), new_lane, tmp_path)
    yield made
    for plays in made.plays:
        plays.stop()
    for host in made.hosts.values():
        host.close()


TOO_SHORT = "invalid: no transaction committed in the measured interval"


def measured(summary: Summary) -> int:
    """Trials that ran to their end; one may have been too short for a transaction on a busy machine, no more."""
    return summary.ok + sum(reason.endswith(TOO_SHORT) for reason in summary.reasons)


def test_two_lanes_share_a_sweep(two: TwoLanes) -> None:
    summary, printed = two.execute()
    assert (measured(summary), summary.failed) == (8, 0), summary.reasons
    table = collect.collect(two.run)
    assert set(table["lane"]) == {"a", "b"}
    assert table.groupby("deployment")["lane"].nunique().eq(1).all(), "a batch runs on one lane"
    assert set(zip(table["lane"], table["db_node"], table["client_node"], strict=True)) == {
        ("a", "db-a", "client-a"),
        ("b", "db-b", "client-b"),
    }
    assert (table["memory_peak_bytes"] > 0).all()
    assert "[8/8] " in printed
    assert all(plays.names[0] == plays.names[-1] == "stop" for plays in two.plays)
    assert sum(plays.names.count("deploy") for plays in two.plays) == 4
    assert len(list((two.run.path / "deployments").iterdir())) == 4


@pytest.mark.parametrize("role", ["db", "client"])
def test_a_lost_node_fails_one_trial_and_the_other_lane_takes_the_rest(two: TwoLanes, role: str) -> None:
    lost: list[str] = []

    def lose(line: str) -> None:
        if not lost and "b: null read-heavy" in line and "#" not in line:
            lost.append(line)
            two.kill(f"{role}-b")

    summary, printed = two.execute(lose)
    assert lost
    assert (measured(summary), summary.failed) == (7, 1), summary.reasons
    table = collect.collect(two.run)
    failed = table[table["status"] == "failed"].iloc[0]
    assert failed["reason"] == f"node {role}-b was lost: its connection ended"
    assert (failed["lane"], failed["db_node"]) == ("b", "db-b")
    assert f"lane b ended: node {role}-b was lost" in printed
    warnings = read_json(two.run.path / "run.json")["warnings"]
    assert warnings[-1] == f"lane b ended: node {role}-b was lost: its connection ended"
    assert two.plays[1].names[-1] == ("deploy" if role == "db" else "stop"), "stopped where it can be reached"


def test_a_node_that_ansible_cannot_reach_ends_its_lane_too(two: TwoLanes) -> None:
    two.plays[1].raises = [LostNodeError("db-b", "Ansible cannot reach it for deploy.yml: timed out")]
    summary, printed = two.execute()
    assert (measured(summary), summary.failed) == (8, 0), "nothing of it had begun"
    assert "lane b ended: node db-b was lost: Ansible cannot reach it" in printed
    assert set(collect.collect(two.run)["lane"]) == {"a"}


def test_without_any_lane_the_rest_fails_with_the_reasons(two: TwoLanes) -> None:
    for plays, name in zip(two.plays, ("db-a", "db-b"), strict=True):
        plays.raises = [LostNodeError(name, "gone")]
    summary, _ = two.execute()
    assert (summary.ok, summary.failed) == (0, 8)
    reasons = set(collect.collect(two.run)["reason"])
    assert len(reasons) == 1
    reason = reasons.pop()
    assert reason.startswith("no lane is left: ")
    assert "node db-a was lost: gone" in reason
    assert "node db-b was lost: gone" in reason


def test_an_interruption_ends_every_lane_in_order(two: TwoLanes) -> None:
    begun: list[str] = []

    def interrupt(line: str) -> None:
        if "null read-heavy" in line and "#" not in line:
            begun.append(line)
            if {text.split("] ")[1][0] for text in begun} == {"a", "b"}:
                os.kill(os.getpid(), signal.SIGINT)  # both lanes have a trial in flight

    with two.interrupt.listening():
        summary, _ = two.execute(interrupt)
    assert summary.interrupted
    assert {r.reason for r in two.run.recorded().values() if r.status == "failed"} == {"interrupted"}
    assert len(two.run.recorded()) < 8, "what was not begun stays planned"
    assert [plays.names[-1] for plays in two.plays] == ["stop", "stop"]
    assert all(plays.server is None for plays in two.plays)
    two.interrupt = Interrupt()
    two.execute()
    assert (collect.collect(two.run)["status"] == "ok").all(), "the same call goes on where it stopped"


def test_a_defect_ends_every_lane_and_stops_the_servers(two: TwoLanes) -> None:
    two.plays[1].raises = [ValueError("a defect")]
    with pytest.raises(ValueError, match="a defect"):
        two.execute()
    assert [plays.names[-1] for plays in two.plays] == ["stop", "stop"]
    assert all(plays.server is None for plays in two.plays)
