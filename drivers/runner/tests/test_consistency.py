"""The check after a TPC-C trial, and the comparison of what was loaded: with a stand-in for loadgen that says so."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner import collect, consistency, store
from runner.axes import Grid
from runner.cluster import Lane
from runner.disk import NODE_DISK
from runner.driver import Outcome
from runner.errors import RunError
from runner.files import read_json, write_json
from runner.identity import Code
from runner.interrupt import Interrupt
from runner.lane import LaneWorker
from runner.machine import CpuSets
from runner.plan import Deployment, Plan, make_plan
from runner.progress import SweepProgress
from runner.recording import Recorder, Summary, Tools
from runner.remarks import REMARKS
from runner.store import Run
from runner.sweep import Sweep
from runner.workload import load

ROOT = Path(__file__).resolve().parents[3]
CPUS = CpuSets("0", "1")

LOADGEN = """
import json, pathlib, signal, sys
said = json.loads((pathlib.Path(__file__).parent / "says.json").read_text())
verb, spec = sys.argv[1], json.loads(pathlib.Path(sys.argv[sys.argv.index("--spec") + 1]).read_text())
with (pathlib.Path(__file__).parent / "calls").open("a") as calls:
    calls.write(f"{verb} {spec['system']} {spec['tpcc']['orders_per_district']} {spec['schema'][-3:]}\\n")
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1]) if "--out" in sys.argv else None
if verb == "check":
    family = "mysql" if spec["system"].startswith("mysql") else "anticache"
    after = (pathlib.Path(__file__).parent / "calls").read_text().splitlines()[-2].startswith("run ")
    answer = said["after a trial" if after else f"loaded {family}"]
    if "check" in answer:
        (out / "check.json").write_text(json.dumps(answer["check"]))
    print(answer.get("words", "checked"), file=sys.stderr)
    if answer.get("endless"):
        signal.pause()
    sys.exit(answer["exit"])
if verb == "quiesce":
    (out / "quiesce.json").write_text(json.dumps({"summary": "nothing was put off"}))
if verb == "run":
    (out / "result.json").write_text(json.dumps(said["result"]))
    (out / "timeline.csv").write_text("second,committed\\n-1,5\\n0,100\\n1,120\\n2,110\\n")
"""


def _found(orders: int = 12_800, violations: tuple[str, ...] = (), checksum: str = "aa") -> dict[str, Any]:
    tables = {"orders": {"rows": orders, "checksum": checksum}, "item": {"rows": 500, "checksum": "bb"}}
    by_condition = {"3.3.2.1": len(violations)} if violations else {}
    return {
        "format": 1,
        "benchmark": "tpcc",
        "consistent": not violations,
        "violations": list(violations),
        "violations_by_condition": by_condition,
        "tables": tables,
        "seconds": 0.1,
    }


RESULT = {
    "format": 1,
    "status": "ok",
    "reason": "",
    "flags": [],
    "throughput_txn_s": 110.0,
    "committed": 330,
    "measured_s": 3.0,
    "new_orders_per_minute": 2970.0,
    "new_order_share": 0.45,
    "latency_us_by_type": {"new_order": {"p50": 1000, "p95": 2000, "p99": 3000}},
}
GOOD: dict[str, Any] = {
    "result": RESULT,
    "loaded mysql": {"exit": 0, "check": _found()},
    "loaded anticache": {"exit": 0, "check": _found()},
    "after a trial": {"exit": 0, "check": _found(orders=14_000)},
}


class Plays:
    """Stands in for the playbooks: `deploy` starts a process, `keep` makes the data set's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: list[str] = []
        self.server: subprocess.Popen[bytes] | None = None

    def play(self, name: str, values: dict[str, Any], _log: Path, _cancellable: bool = True) -> None:
        self.names.append(name)
        if name == "keep":
            Path(values["deployment"]["dataset"]["path"]).mkdir(parents=True)
        if name in ("deploy", "keep", "stop"):
            self.stop()
        if name == "deploy":
            assert values["deployment"]["schema"].endswith("tpcc.sql")
            self.server = subprocess.Popen(["sleep", "600"])

    def endpoint(self, _deployment: Deployment) -> dict[str, Any]:
        assert self.server is not None
        return {"adapter": "null", "pids": {"sleepd": self.server.pid}, "logs": []}

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None


class Bench:
    """A sweep of TPC-C on MySQL and the engine at one ratio."""

    def __init__(self, plan: Plan, new_run: Callable[[Plan], Run], new_lane: Callable[..., Lane], root: Path) -> None:
        self.plan, self.new_run, self.new_lane, self.root = plan, new_run, new_lane, root
        self.plays = Plays(root)
        self.run = new_run(plan)
        self.says(GOOD)
        (root / "loadgen.py").write_text(LOADGEN)
        self.program = root / "loadgen"
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} {root / "loadgen.py"} "$@"\n')
        self.program.chmod(0o755)

    def says(self, said: dict[str, Any]) -> None:
        write_json(self.root / "says.json", said)

    def calls(self, verb: str) -> list[str]:
        lines = (self.root / "calls").read_text().splitlines()
        return [line.split()[1] for line in lines if line.startswith(f"{verb} ")]

    def execute(self, interrupt: Interrupt | None = None) -> Summary:
        tools = Tools(ROOT, self.program, CPUS, NODE_DISK, Code("c", False, "s"))
        todo = store.to_run(self.plan.trials, self.run.recorded())
        interrupt = interrupt or Interrupt()
        with SweepProgress(len(todo), 1.0, Console(record=True, width=300)) as progress:
            recorder = Recorder(self.plan, self.run, tools, progress)
            worker = LaneWorker(self.new_lane("1", self.root), self.plays, recorder, interrupt)  # type: ignore[arg-type]
            return Sweep(self.plan, [worker], recorder, interrupt).execute(todo)


@pytest.fixture
def bench(new_run: Callable[[Plan], Run], new_lane: Callable[..., Lane], tmp_path: Path) -> Iterator[Bench]:
    workload = load(ROOT / "workloads", "fig07", "smoke")
    grid = Grid(data_memory_ratio=[1.0], system=["mysql", "mysql-memcached", "anticache-alru"])
    made = Bench(make_plan([dataclasses.replace(workload, grid=grid)], CPUS, NODE_DISK), new_run, new_lane, tmp_path)
    yield made
    made.plays.stop()


def test_every_trial_is_checked_on_a_database_of_its_own(bench: Bench) -> None:
    summary = bench.execute()
    assert (summary.ok, summary.invalid, summary.failed) == (3, 0, 0), summary.reasons
    assert bench.calls("run") == ["mysql", "mysql-memcached", "anticache-alru"]
    assert bench.calls("load") == ["mysql", "anticache-alru"], "both of MySQL's restore what was kept"
    assert bench.calls("check") == ["mysql", "mysql", "mysql-memcached", "anticache-alru", "anticache-alru"]
    assert {line.split()[-1] for line in (bench.root / "calls").read_text().splitlines()} == {"sql"}
    table = collect.collect(bench.run).set_index("system")
    assert set(table["consistency"]) == {"ok"}
    assert set(table["orders_at_end"]) == {14_000}
    row = table.loc["mysql"]
    data = bench.plan.deployments[bench.plan.trials[0].deployment].values["data"]
    end_bytes = data["static_bytes"] + 14_000 * data["stored_bytes_per_order"]
    assert row["data_memory_ratio_end"] == pytest.approx(end_bytes / data["row_memory_bytes"])
    assert (row["warehouses"], row["orders_per_district"], row["new_orders_per_minute"]) == (8, 200, 2970.0)
    assert (row["new_order_p50_us"], row["new_order_p99_us"]) == (1000, 3000)
    kept = read_json(bench.run.trial_path(bench.plan.trials[0].hash) / "check.json")
    assert kept["tables"]["orders"]["rows"] == 14_000
    loaded = read_json(bench.run.path / "datasets.json")
    assert [sorted(stores) for stores in loaded.values()] == [["anticache", "mysql"]]


def test_a_deployment_that_two_figures_share(
    new_run: Callable[[Plan], Run], new_lane: Callable[..., Lane], tmp_path: Path
) -> None:
    both = [load(ROOT / "workloads", name, "tiny") for name in ("fig07", "fig12")]
    where = {"data_memory_ratio": ["2"]}
    plan = make_plan(both, CPUS, NODE_DISK, systems=["anticache-alru"], where=where)
    plan = dataclasses.replace(plan, trials=tuple(t for t in plan.trials if t.spec["benchmark"] == "tpcc"))
    assert len({t.deployment for t in plan.trials}) == 1
    bench = Bench(plan, new_run, new_lane, tmp_path)
    try:
        summary = bench.execute()
    finally:
        bench.plays.stop()
    assert (summary.ok, summary.failed) == (2, 0), summary.reasons
    assert bench.calls("load") == ["anticache-alru"] * 2


def flags(row: Any) -> list[str]:
    """Those that make a trial invalid: how busy the machine was that runs the tests is not the matter here."""
    return [flag for flag in row["flags"].split(";") if flag not in REMARKS]


def test_an_inconsistent_database_makes_its_trial_invalid(bench: Bench) -> None:
    found = _found(violations=("warehouse 3: w_ytd is 1, its districts have 2", "warehouse 4: w_ytd"))
    bench.says({**GOOD, "after a trial": {"exit": 3, "check": found}})
    summary = bench.execute()
    assert (summary.ok, summary.invalid) == (0, 3)
    row = collect.collect(bench.run).iloc[0]
    assert (row["status"], flags(row), row["consistency"]) == ("invalid", ["inconsistent"], "2 violations")
    assert (
        row["reason"].partition(";")[0]
        == "2 violations of TPC-C's consistency: warehouse 3: w_ytd is 1, its districts have 2"
    )
    assert row["throughput_txn_s"] == 110.0, "measured, but not to be trusted"


def test_a_check_that_fails_makes_its_trial_invalid(bench: Bench) -> None:
    bench.says({**GOOD, "after a trial": {"exit": 1, "words": "Error: connection refused"}})
    assert bench.execute().invalid == 3
    row = collect.collect(bench.run).iloc[0]
    assert (flags(row), row["consistency"]) == (["not_checked"], "not checked")
    assert row["reason"].partition(";")[0] == "not checked: Error: connection refused"


def test_a_trial_that_failed_is_not_checked(bench: Bench) -> None:
    bench.says({**GOOD, "result": {**RESULT, "status": "failed", "reason": "a terminal waited for 90 s"}})
    assert bench.execute().failed == 3
    assert bench.calls("check") == ["mysql", "anticache-alru"], "only what was loaded"


def test_systems_that_loaded_other_rows_are_not_compared(bench: Bench) -> None:
    bench.says({**GOOD, "loaded anticache": {"exit": 0, "check": _found(checksum="cc")}})
    summary = bench.execute()
    assert (summary.ok, summary.failed) == (2, 1)
    row = collect.collect(bench.run).set_index("system").loc["anticache-alru"]
    assert (
        "table orders has 12800 rows with checksum cc in anticache and 12800 rows with checksum aa in mysql"
        in row["reason"]
    )
    # Nor when they are deployed once more: with another engine of the family, or by a retry.
    assert bench.execute().failed == 1
    assert "checksum cc in anticache" in collect.collect(bench.run).set_index("system").loc["anticache-alru"]["reason"]
    bench.says(GOOD)
    assert bench.execute().ok == 1


def test_a_store_that_loads_other_rows_than_before_is_refused(bench: Bench) -> None:
    bench.execute()
    content = bench.plan.deployments[bench.plan.trials[0].deployment].content
    before = bench.run.tables(content)["mysql"]
    other = {**before, "item": {"rows": 499, "checksum": "bb"}}
    known = bench.run.add_tables(content, "mysql", other)
    with pytest.raises(RunError, match=r"table item has 500 rows .* in mysql and 499 rows .* in mysql, loaded again"):
        consistency.refuse_differences(known, "tpcc at 1x")
    assert bench.run.tables(content)["mysql"] == before


def test_an_inconsistent_load_fails_its_trials_and_is_not_kept(bench: Bench) -> None:
    wrong = {"exit": 3, "check": _found(violations=("district 1: no orders",))}
    bench.says({**GOOD, "loaded mysql": wrong})
    summary = bench.execute()
    assert (summary.ok, summary.failed) == (1, 2)
    reason = collect.collect(bench.run).iloc[0]["reason"]
    assert reason.startswith("what was loaded is not consistent: district 1: no orders; log: ")
    assert "keep" not in bench.plays.names


def test_a_kept_data_set_brings_its_tables_along(bench: Bench) -> None:
    bench.execute()
    checks = len(bench.calls("check"))
    bench.run = bench.new_run(bench.plan)
    os.utime(bench.run.path)
    assert bench.execute().ok == 3
    assert bench.calls("load").count("mysql") == 1, "kept"
    assert len(bench.calls("check")) == checks + 4, "three after trials, one of the engine's load"
    tables = next(iter(read_json(bench.run.path / "datasets.json").values()))
    assert tables["mysql"] == tables["anticache"]
    # A data set without that file (of an older version) is loaded anew.
    dataset = next(bench.root.glob("var/datasets/*.tables.json"))
    dataset.unlink()
    dataset.with_name(dataset.name.removesuffix(".tables.json")).rmdir()
    bench.run = bench.new_run(bench.plan)
    assert bench.execute().ok == 3
    assert bench.calls("load").count("mysql") == 2


def test_a_server_that_dies_during_the_check_is_named(tmp_path: Path) -> None:
    result = consistency.judge({"status": "ok", "flags": []}, Outcome(1, "a server died", ""), ["mysqld"], tmp_path)
    assert (result["status"], result["flags"]) == ("invalid", ["not_checked"])
    assert result["reason"] == "not checked: mysqld died"


def test_an_interrupted_check_leaves_the_trial_to_be_run_again(tmp_path: Path) -> None:
    result = consistency.judge({"status": "ok", "flags": []}, Outcome(130, "interrupted", ""), [], tmp_path)
    assert (result["status"], result["reason"]) == ("failed", "interrupted")


class InterruptedInTheCheckAfter(Interrupt):
    """Asks to stop as soon as a trial's check has begun."""

    def __init__(self, calls: Path) -> None:
        super().__init__()
        self._calls = calls

    def __call__(self) -> bool:
        verbs = [line.split()[0] for line in self._calls.read_text().splitlines()] if self._calls.exists() else []
        self.asked = self.asked or verbs[-2:] == ["run", "check"]
        return self.asked


def test_a_sweep_interrupted_in_a_check_goes_on_with_that_trial(bench: Bench) -> None:
    bench.says({**GOOD, "after a trial": {"exit": 0, "check": _found(), "endless": True}})
    summary = bench.execute(InterruptedInTheCheckAfter(bench.root / "calls"))
    assert summary.interrupted
    table = collect.collect(bench.run)
    assert list(table["status"]) == ["failed", "planned", "planned"]
    assert table["reason"][0] == "interrupted"
    assert table["throughput_txn_s"].isna().all()
    bench.says(GOOD)
    assert bench.execute().ok == 3
    again = collect.collect(bench.run)
    assert list(again["attempts"]) == [2, 1, 1]
    assert set(again["consistency"]) == {"ok"}


def test_a_check_whose_file_is_broken_is_none(tmp_path: Path) -> None:
    (tmp_path / "check.json").write_text("{")
    result = consistency.judge({"status": "ok", "reason": ""}, Outcome(0, "", "checked"), [], tmp_path)
    assert (result["status"], result["reason"]) == ("invalid", "not checked: checked")
    with pytest.raises(RunError, match="what was loaded could not be checked: checked; log: "):
        consistency.loaded_tables(Outcome(0, "", "checked"), tmp_path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"item": {"rows": 2, "checksum": "a"}}, "table item has 2 rows with checksum a in a and 3 rows with"),
        ({}, "table item has nothing in a and 3 rows"),
    ],
)
def test_differences_name_table_and_both_values(other: dict[str, Any], said: str) -> None:
    tables = {"a": other, "b": json.loads('{"item": {"rows": 3, "checksum": "a"}}')}
    with pytest.raises(RunError, match=said):
        consistency.refuse_differences(tables, "tpcc at 2x")
    consistency.refuse_differences({"a": tables["b"], "b": tables["b"]}, "tpcc at 2x")
