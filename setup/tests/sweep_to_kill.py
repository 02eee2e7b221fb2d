"""A sweep of the null system in a process of its own, to be killed at any moment: ``sweep_to_kill.py DIRECTORY``.

Everything is the real thing but the playbooks: `Plays` starts one process as the server and keeps its id in a file, as
the roles do, so that the next call can stop what a killed one left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from runner import driver, execution, store
from runner.agent import start_ticks
from runner.cluster import Cluster, Lane
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.hosts import Connection, Host
from runner.identity import Code
from runner.interrupt import Interrupt
from runner.inventory import Inventory, LaneNodes, Node
from runner.machine import CpuSets
from runner.plan import Deployment, Plan, make_plan
from runner.store import Key
from runner.workload import load

ROOT = Path(__file__).resolve().parents[2]
CODE = Code("a" * 40, False, "code")
KEY = Key("smoke", "local", "none", "code", "inventory", "variables", "a machine")
CPU = str(min(os.sched_getaffinity(0)))
CPUS = CpuSets(CPU, CPU)


class Plays:
    """`deploy` starts a process as the server, `stop` ends the one whose id is in the file."""

    def __init__(self, place: Path) -> None:
        self.file = place / "server.pid"

    def play(self, name: str, _values: dict[str, Any], log: Path, cancellable: bool = True) -> None:
        assert cancellable or name == "stop"
        log.write_text(name)
        if self.file.exists():
            pid = int(self.file.read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # of an earlier call
                os.waitpid(pid, 0)
            while start_ticks(pid) is not None:
                time.sleep(0.01)
            self.file.unlink()
        if name == "deploy":
            data = self.file.with_name("server.data")
            data.touch()
            command = ["tail", "--follow", str(data)]
            server = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            self.file.write_text(str(server.pid))

    def endpoint(self, _deployment: Deployment) -> dict[str, Any]:
        return {"adapter": "null", "pids": {"server": int(self.file.read_text())}, "logs": []}


@dataclasses.dataclass(frozen=True)
class Here(execution.Work):
    """Work whose plays are those of this file."""

    def ansible(self, lane: Lane, _interrupt: Interrupt) -> Any:
        return Plays(lane.nodes.db.node_root)


def a_plan() -> Plan:
    """Eight deployments with three trials of 0.2 s each: more than is done between all the kills of a test."""
    smoke = load(ROOT / "workloads", "fig06", "smoke")
    values = smoke.values.model_copy(update={"warmup_s": 0.05, "measure_s": 0.15, "records": 1000, "trials": 8})
    axes = {"system": ["null"], "mix": ["read-heavy"], "skew": [1.5, 1.0, 0.5], "data_memory_ratio": [1.0]}
    assert smoke.experiment.ycsb is not None
    section = smoke.experiment.ycsb.model_copy(update={"terminals": 4})
    experiment = smoke.experiment.model_copy(update={"only": [], "ycsb": section})
    workload = dataclasses.replace(smoke, values=values, grid=smoke.grid.model_copy(update=axes), experiment=experiment)
    return make_plan([workload], CPUS, NODE_DISK)


def a_lane(place: Path) -> Lane:
    """This machine, with directories of its own."""
    node = Node(
        name="localhost",
        groups=("dbms", "clients"),
        lane="1",
        connection=Connection(kind="local"),
        node_root=place / "var",
        node_tools=place / "tools",
        control_root=place / "var",
        server_cpus=CPU,
        client_cpus=CPU,
        become=False,
        disk_directory=place / "var" / "disk",
        binaries={},
    )
    host = Host("localhost")
    facts = host.describe(place)
    return Lane(LaneNodes("1", node, node), host, host, facts, facts)


def main(place: Path) -> int:
    """Fill the run below `place`; 130 when interrupted, 2 when somebody else does."""
    lane, plan = a_lane(place), a_plan()
    lane.nodes.db.node_root.mkdir(parents=True, exist_ok=True)
    nodes = Cluster((lane,))
    try:
        nodes.hold(store.holder("is to be killed"))
        run = store.find(place / "results", KEY) or store.create(place / "results", KEY, CODE, {"cpu_cores": 2})
        with run.held():
            run.add_plan(plan)
            todo = store.to_run(plan.trials, run.recorded())
            work = Here(plan, todo, Inventory(ROOT, "local", {}), nodes, KEY, CODE, place / "results", "again")
            return 130 if execution.sweep(work, run).interrupted else 0
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        lane.db.close()


if __name__ == "__main__":
    assert driver.binary(ROOT)
    sys.exit(main(Path(sys.argv[1])))
