"""What weakens a trial: outliers and spread within a cell, stolen CPU time, a level that changed; and in the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import collect, remarks
from runner.agent import Agent
from runner.disk import NODE_DISK
from runner.files import read_json, write_json
from runner.hosts import Host
from runner.lane import machines_cpu
from runner.machine import CpuSets
from runner.plan import Plan, Trial, make_plan
from runner.steady import Change, Level
from runner.store import Run
from runner.workload import Workload


@pytest.mark.parametrize(
    ("values", "apart"),
    [
        ([100.0], []),
        ([100.0, 300.0], []),
        ([100.0, 103.0, 140.0], [2]),
        ([100.0, 103.0, 70.0], [2]),
        ([100.0, 103.0, 120.0], []),
        ([100.0, 130.0, 170.0], []),
        ([100.0, 102.0, 98.0, 200.0], [3]),
        ([100.0, 102.0, 98.0, 0.0], [3]),
        ([0.0, 0.0, 5.0], []),
        ([100.0, 101.0, 99.0, 100.5, 130.0], [4]),
        ([100.0, 100.1, 99.9, 100.05, 101.0], []),
        ([100.0, 100.0, 100.0, 100.0, 120.0], [4]),
        ([70.0, 85.0, 100.0, 115.0, 130.0], []),
    ],
)
def test_which_trial_stands_apart(values: list[float], apart: list[int]) -> None:
    found = remarks.among(values)
    assert [place for place, is_apart in enumerate(found) if is_apart] == apart


def test_equal_trials_are_seldom_told_apart() -> None:
    generator = np.random.default_rng(12)
    for count, at_most in ((3, 0.01), (5, 0.03), (10, 0.03)):
        flagged = [any(remarks.among(list(generator.normal(1000, 50, count)))) for _ in range(500)]
        assert np.mean(flagged) <= at_most, count


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9), st.integers(-8, 8))
def test_the_unit_does_not_matter(values: list[float], exponent: int) -> None:
    """Times are judged as throughputs are, and at most a minority stands apart."""
    found = remarks.among(values)
    assert sum(found) * 2 < max(2, len(values))
    assert remarks.among([2.0**exponent * value for value in values]) == found


def test_the_spread_of_a_cell() -> None:
    assert remarks.variation([90.0, 100.0, 110.0]) == pytest.approx(0.1)
    assert remarks.variation([100.0]) is None
    assert remarks.variation([0.0, 0.0]) is None


def test_stolen_time_is_a_share_of_what_was_wanted() -> None:
    def node(**seconds: float) -> dict[str, float]:
        return {"user_s": 0.0, "system_s": 0.0, "interrupts_s": 0.0, "idle_s": 0.0, "stolen_s": 0.0} | {
            f"{kind}_s": value for kind, value in seconds.items()
        }

    idle = node(user=8, system=1, interrupts=0.5, stolen=0.5, idle=90)
    assert remarks.stolen_share({"machine_cpu": {"dbms": idle}}) == pytest.approx(0.05), "idle CPUs want nothing"
    assert remarks.stolen_share({"machine_cpu": {"dbms": node(user=9), "clients": idle}}) == pytest.approx(0.05)
    assert remarks.stolen_share({"machine_cpu": {"dbms": node(idle=9)}}) is None
    assert remarks.stolen_share({}) is None
    assert remarks.of_machine(0.03, 0.2) == {}
    assert remarks.of_machine(None, None) == {}
    assert remarks.of_machine(0.0512, 1.254) == {
        "cpu_stolen": "5.1% of the CPU time that was wanted went to other virtual machines",
        "machine_busy": "other programs used 1.25 cores meanwhile",
    }


def test_other_load_is_what_nobody_of_ours_used() -> None:
    node = {"user_s": 14.0, "system_s": 6.0, "interrupts_s": 3.0, "idle_s": 17.0, "stolen_s": 0.0, "own_s": 8.0}
    servers = {"cpu_s": {"mysqld": 5.0, "memcached": 2.0}, "call_s": 20.0}
    environment: dict[str, Any] = {"machine_cpu": {"dbms": node}, "server_cpu": servers}
    assert remarks.other_cores(environment) == pytest.approx(5 / 20)
    disk = {"observed": {"daemon_cpu_s": 4.0}}
    assert remarks.other_cores({**environment, "disk": disk}) == pytest.approx(1 / 20)
    apart = {"dbms": node, "clients": {**node, "own_s": 4.0}}
    assert remarks.other_cores({**environment, "machine_cpu": apart}) == pytest.approx(16 / 20), "the busier of two"
    ours = {"dbms": {**node, "own_s": 30.0}}
    assert remarks.other_cores({**environment, "machine_cpu": ours}) == 0.0, "ticks are coarse"
    assert remarks.other_cores({"server_cpu": servers}) is None
    assert remarks.other_cores({"machine_cpu": {"dbms": node}}) is None


def test_the_kernel_is_asked_for_its_cpu_times(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host("here")
    before = {"dbms": host.cpu_times()}
    assert set(before["dbms"]) == {"user_s", "system_s", "interrupts_s", "idle_s", "stolen_s", "own_s"}
    used = sum(range(3_000_000))
    assert used > 0
    found = machines_cpu({"dbms": host}, before)["dbms"]
    assert found["user_s"] > 0
    assert all(seconds >= 0 for seconds in found.values())
    lines = "cpu  1000 200 300 4000 500 60 40 70 900 0\ncpu0 1 1 1 1 1 1 1 1 1 1"
    monkeypatch.setattr("runner.agent._text_of", lambda path: lines if path == "/proc/stat" else "")
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    found = Agent().cpu_times()
    assert found.pop("own_s") >= 0
    assert found == {"user_s": 12.0, "system_s": 3.0, "interrupts_s": 1.0, "idle_s": 45.0, "stolen_s": 0.7}
    monkeypatch.setattr("runner.agent._text_of", lambda path: "")
    assert Agent().cpu_times() == {}


def test_what_is_said_of_a_level() -> None:
    assert remarks.of_level(Level(None), 5.0) == {}
    assert remarks.of_level(Level(True, Change(3.0, 0.01)), 30.0) == {}
    assert remarks.of_level(Level(False, Change(12.5, -0.231)), 30.0) == {
        "not_settled": "the throughput changed by -23% after 12.5 of 30 s"
    }
    assert "most seconds" in remarks.of_level(Level(False), 30.0)["not_settled"]


# -- in the table -----------------------------------------------------------------------------------------------------

Record = Callable[..., None]


@pytest.fixture
def plan(smoke: Workload) -> Plan:
    where = {"skew": ["1.5"], "mix": ["read-only"], "data_memory_ratio": ["8"]}
    systems = ["mysql", "anticache-alru"]
    return make_plan([smoke], CpuSets("0", "1"), NODE_DISK, systems=systems, where=where, trials=3)


@pytest.fixture
def run(plan: Plan, new_run: Callable[[Plan], Run]) -> Run:
    return new_run(plan)


def of_system(plan: Plan, system: str) -> list[Trial]:
    return sorted((t for t in plan.trials if t.cell.system == system), key=lambda t: t.index)


def row_of(table: pd.DataFrame, trial: Trial) -> Any:
    return table[table["trial_hash"] == trial.hash].iloc[0]


def write_timeline(run: Run, trial: Trial, per_second: list[int]) -> None:
    place = run.trial_path(trial.hash)
    lines = [f"{second},{count}" for second, count in enumerate(per_second, start=-1)]
    (place / "timeline.csv").write_text("\n".join(["second,committed", *lines, ""]))
    result = read_json(place / "result.json")
    write_json(place / "result.json", {**result, "measured_s": float(len(per_second) - 1)})


def test_an_outlier_and_a_noisy_cell(plan: Plan, run: Run, record_trial: Record) -> None:
    mysql, engine = of_system(plan, "mysql"), of_system(plan, "anticache-alru")
    for trial, value in zip(mysql, (100.0, 102.0, 160.0), strict=True):
        record_trial(run, trial, value)
    for trial, value in zip(engine, (1000.0, 1010.0, 990.0), strict=True):
        record_trial(run, trial, value)
    table = collect.collect(run)
    assert [row_of(table, t)["flags"] for t in mysql] == ["noisy_cell", "noisy_cell", "outlier;noisy_cell"]
    far = row_of(table, mysql[2])
    assert far["status"] == "ok", "it stays in the mean"
    assert far["cell_ratio"] == pytest.approx(160 / 102)
    assert far["cell_variation"] == pytest.approx(float(np.std([100, 102, 160], ddof=1) / (362 / 3)))
    assert far["reason"] == "1.57 times the median of its cell's 3 trials; its cell's 3 trials vary by 28%"
    assert [row_of(table, t)["flags"] for t in engine] == ["", "", ""]
    assert row_of(table, engine[0])["cell_variation"] == pytest.approx(0.01)


def test_trials_that_do_not_count_are_not_compared(plan: Plan, run: Run, record_trial: Record) -> None:
    mysql = of_system(plan, "mysql")
    record_trial(run, mysql[0], 100.0)
    record_trial(run, mysql[1], 900.0, status="invalid", flags=["verify_failed"], reason="wrong data")
    record_trial(run, mysql[2], None, status="failed", reason="mysqld died")
    table = collect.collect(run)
    assert [row_of(table, t)["flags"] for t in mysql] == ["", "verify_failed", ""]
    assert table["cell_ratio"].isna().all(), "a single trial is no cell to be compared in"
    assert table["cell_variation"].isna().all()


def test_saturated_trials_are_compared_as_they_are_used(plan: Plan, run: Run, record_trial: Record) -> None:
    mysql = of_system(plan, "mysql")
    for trial, value in zip(mysql, (100.0, 101.0, 103.0), strict=True):
        record_trial(run, trial, value, status="invalid", flags=["client_saturated"], reason="97 %")
    table = collect.collect(run)
    assert row_of(table, mysql[2])["cell_ratio"] == pytest.approx(103 / 101)


def test_a_level_that_changed_is_in_the_table_with_its_second(plan: Plan, run: Run, record_trial: Record) -> None:
    """Also of older records, which said by another test whether a trial had settled."""
    mysql = of_system(plan, "mysql")
    noise = np.random.default_rng(13).integers(-20, 20, 41)
    levels = [1000] * 41, [1000] * 21 + [800] * 20, [1000] * 41
    for trial, level, flags in zip(mysql, levels, (["not_settled"], [], ["events_lost"]), strict=True):
        record_trial(run, trial, 1000.0, flags=flags, settled=not flags)
        write_timeline(run, trial, [int(count) for count in np.array(level) + noise])
    table = collect.collect(run)
    steady, changed, remarked = (row_of(table, trial) for trial in mysql)
    assert (steady["settled"], steady["flags"]) == (True, "")
    assert (changed["settled"], changed["flags"]) == (False, "not_settled")
    assert changed["level_change_s"] == 20
    assert changed["level_change_share"] == pytest.approx(-0.22, abs=0.03)
    assert changed["reason"].startswith("the throughput changed by -2")
    assert changed["reason"].endswith("% after 20 of 40 s")
    assert (remarked["settled"], remarked["flags"]) == (True, "events_lost")
    assert pd.isna(remarked["level_change_s"])


def test_stolen_time_is_in_the_table(plan: Plan, run: Run, record_trial: Record, tmp_path: Path) -> None:
    mysql = of_system(plan, "mysql")
    record_trial(run, mysql[0], 100.0)
    times = {"user_s": 8.0, "system_s": 0.5, "interrupts_s": 0.5, "idle_s": 11.0, "stolen_s": 1.0, "own_s": 5.0}
    write_json(run.trial_path(mysql[0].hash) / "environment.json", {"machine_cpu": {"dbms": times}})
    table = collect.collect(run)
    found = row_of(table, mysql[0])
    assert found["cpu_stolen_share"] == pytest.approx(0.1)
    assert (found["status"], found["flags"]) == ("ok", "cpu_stolen")
    assert found["reason"].startswith("10.0% of the CPU time")
    collect.write(table, tmp_path)
    pd.testing.assert_frame_equal(collect.read_csv(tmp_path / "trials.csv"), table)
