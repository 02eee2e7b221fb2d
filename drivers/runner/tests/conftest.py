"""What several tests need: the real workloads in a scratch directory, and runs with hand-written records."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from runner import collect, files, store
from runner.cluster import Lane
from runner.disk import NODE_DISK
from runner.files import write_json
from runner.hosts import Connection, Host
from runner.identity import Code
from runner.inventory import LaneNodes, Node
from runner.machine import CpuSets
from runner.oltpbench import mapping
from runner.plan import Plan, Trial, make_plan
from runner.store import Key, Run
from runner.workload import Workload, load

ROOT = Path(__file__).resolve().parents[3]
CPUS = CpuSets("0", "1")


def a_node(name: str, root: Path, *, lane: str = "1", groups: tuple[str, ...] = ("dbms", "clients")) -> Node:
    """A host as an inventory names it."""
    return Node(
        name=name,
        groups=groups,
        lane=lane,
        connection=Connection(kind="local"),
        node_root=root / "var",
        node_tools=root / "tools",
        control_root=root / "var",
        server_cpus="",
        client_cpus="",
        become=False,
        disk_directory=root / "var" / "disk",
        binaries={},
    )


def a_lane(name: str, root: Path, db: Host | None = None, client: Host | None = None) -> Lane:
    """A lane whose nodes are this machine, or what a test gives."""
    db = db or Host(f"db-{name}")
    client = client or db
    node = a_node(db.name, root, lane=name)
    facts = db.describe(root)
    return Lane(LaneNodes(name, node, dataclasses.replace(node, name=client.name)), db, client, facts, facts)


@pytest.fixture
def new_lane() -> Callable[..., Lane]:
    return a_lane


@pytest.fixture
def new_node() -> Callable[..., Node]:
    return a_node


@pytest.fixture
def workloads(tmp_path: Path) -> Path:
    """A copy of the real workloads that a test may spoil."""
    return Path(shutil.copytree(ROOT / "workloads", tmp_path / "workloads"))


_load_once = functools.cache(load)


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped configurations of OLTP-Bench take their base from files that are read only once."""
    monkeypatch.setattr(mapping, "load", _load_once)


@pytest.fixture
def smoke() -> Workload:
    return load(ROOT / "workloads", "fig06", "smoke")


@pytest.fixture
def laptop() -> Workload:
    return load(ROOT / "workloads", "fig06", "laptop")


def a_key(scale: str = "smoke", shaping_code: str = "code-1") -> Key:
    return Key(scale, "local", "none", shaping_code, "inventory-1", "variables-1", "a machine")


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[[Plan], Run]:
    """Makes an empty run for a plan below the test's own results directory."""

    def make(plan: Plan, shaping: str = "code-1") -> Run:
        code = Code("0123456789abcdef", False, shaping)
        run = store.create(tmp_path / "results", a_key(plan.scale, shaping), code, {"cpu_cores": 2})
        run.add_plan(plan)
        return run

    return make


def record(
    run: Run, trial: Trial, throughput_txn_s: float | None, status: str = "ok", *, code: Code | None = None, **more: Any
) -> None:
    """Record a trial as the sweep does, with hand-written figures; without `code` it ran that of the run's start."""
    directory = run.begin(trial.hash)
    result: dict[str, Any] = {"format": 1, "status": status, "reason": "", "flags": [], **more}
    if throughput_txn_s is not None:
        result |= {"throughput_txn_s": throughput_txn_s, "committed": int(throughput_txn_s), "measured_s": 1.0}
    write_json(directory / "result.json", result, durable=False)
    if code is not None:
        write_json(directory / "environment.json", {"code": dataclasses.asdict(code)}, durable=False)
    run.commit(trial.hash)


@pytest.fixture
def record_trial() -> Callable[..., None]:
    return record


@pytest.fixture
def table(
    laptop: Workload, new_run: Callable[[Plan], Run], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Trial], float | None]], pd.DataFrame]:
    """Makes the collected table of a laptop run whose throughputs a function of the trial gives; None = failed."""
    monkeypatch.setattr(files, "sync", lambda _path: None)  # hundreds of records that no power cut needs to survive

    def make(throughput: Callable[[Trial], float | None], trials: int = 1) -> pd.DataFrame:
        plan = make_plan([laptop], CPUS, NODE_DISK, trials=trials)
        run = new_run(plan)
        for trial in plan.trials:
            value = throughput(trial)
            if value is None:
                record(run, trial, None, status="failed", reason="deploy failed")
            else:
                record(run, trial, value)
        return collect.collect(run)

    return make
