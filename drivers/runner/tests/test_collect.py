"""The table: a row for every planned trial, whatever became of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pandera.pandas as pa
import pytest

from runner import collect
from runner.disk import NODE_DISK
from runner.errors import RunError
from runner.files import write_json
from runner.identity import Code
from runner.machine import CpuSets
from runner.plan import Plan, make_plan
from runner.store import Run
from runner.workload import Workload

STABLE = {
    "trial_hash",
    "run",
    "experiment",
    "system",
    "benchmark",
    "mix",
    "skew",
    "data_memory_ratio",
    "scale",
    "trial",
    "status",
    "reason",
    "throughput_txn_s",
    "committed",
    "aborted",
    "retried",
    "measured_s",
    "latency_us_p50",
    "latency_us_p95",
    "latency_us_p99",
    "latency_us_p999",
    "memory_budget_bytes",
    "memory_peak_bytes",
    "disk_profile",
    "terminals",
    "partitions",
    "seed",
    "commit",
    "dirty",
    "shaping_code",
}


@pytest.fixture
def plan_of_run(smoke: Workload) -> Plan:
    systems = ["mysql", "anticache-alru"]
    return make_plan([smoke], CpuSets("0", "1"), NODE_DISK, systems=systems, where={"skew": ["1.5"]})


@pytest.fixture
def run(plan_of_run: Plan, new_run: Callable[[Plan], Run], record_trial: Callable[..., None]) -> Run:
    plan = plan_of_run
    run = new_run(plan)
    record_trial(
        run,
        plan.trials[0],
        1234.5,
        aborted={"deadlock": 2},
        retried={"1213": 3, "1205": 1},
        latency_us={"p50": 10, "p95": 20, "p99": 30, "p999": 40, "mean": 12.5, "max": 99},
        versions={"mysqld": "5.6.24"},
        server_settings={"mysqld": {"innodb_buffer_pool_size": "1"}},
    )
    # loadgen writes what it had counted until then, zeros at worst
    record_trial(run, plan.trials[1], 0.0, status="failed", reason="mysqld died", verified=3, errors={"2013": 64})
    record_trial(run, plan.trials[2], 99.0, status="invalid", reason="saturated", flags=["client_saturated"])
    return run


def test_the_stable_columns_are_there(run: Run) -> None:
    table = collect.collect(run)
    assert set(table.columns) >= STABLE


def test_one_row_for_every_planned_trial(run: Run) -> None:
    table = collect.collect(run)
    assert list(table["trial_hash"]) == [t["hash"] for t in run.trials]
    assert list(table["status"][:4]) == ["ok", "failed", "invalid", "planned"]
    assert table["status"].value_counts()["planned"] == len(table) - 3
    ok, failed = table.iloc[0], table.iloc[1]
    assert (ok["throughput_txn_s"], ok["aborted"], ok["retried"], ok["latency_us_p999"]) == (1234.5, 2, 4, 40.0)
    assert failed["reason"] == "mysqld died"
    for name in collect.MEASURED:
        assert pd.isna(failed[name]), f"a failed trial is no zero: {name}"
    assert table.iloc[2]["flags"] == "client_saturated"


def test_settings_that_a_system_does_not_have_stay_empty(run: Run) -> None:
    table = collect.collect(run)
    mysql = table[table["system"] == "mysql"].iloc[0]
    engine = table[table["system"] == "anticache-alru"].iloc[0]
    assert pd.isna(mysql["eviction_block_bytes"])
    assert mysql["mysql_buffer_pool_bytes"] == mysql["memory_budget_bytes"]
    assert pd.isna(engine["mysql_buffer_pool_bytes"])
    assert (engine["eviction_block_bytes"], engine["merge"]) == (65536, "tuple")


def test_the_files_hold_the_same_table(run: Run, tmp_path: Path) -> None:
    table = collect.collect(run)
    collect.write(table, tmp_path)
    pd.testing.assert_frame_equal(collect.read(tmp_path), table)
    pd.testing.assert_frame_equal(collect.read_csv(tmp_path / "trials.csv"), table)


def test_an_unreadable_record_is_a_failed_row(run: Run) -> None:
    (run.trial_path(run.trials[0]["hash"]) / "result.json").write_text("{")
    row = collect.collect(run).iloc[0]
    assert (row["status"], row["reason"]) == ("failed", "result.json cannot be read")


def test_a_table_with_figures_of_failed_trials_is_refused(run: Run) -> None:
    table = collect.collect(run)
    table.loc[1, "verified"] = 3
    with pytest.raises(pa.errors.SchemaError, match="a failed or planned trial has no measurement"):
        collect.SCHEMA.validate(table)


def test_the_code_of_a_table(run: Run, record_trial: Callable[..., None], plan_of_run: Plan) -> None:
    assert collect.code_of(collect.collect(run)) == "0123456789ab"
    trials = plan_of_run.trials
    record_trial(run, trials[3], None, status="failed", code=Code("feedfeedfeedfeed", False, "code-3"))
    assert collect.code_of(collect.collect(run)) == "0123456789ab", "a failed trial measured nothing"
    record_trial(run, trials[4], 9.0, code=Code("0123456789abcdef", True, "code-1"))
    assert collect.code_of(collect.collect(run)) == "0123456789ab", "what changed shapes no figure"
    record_trial(run, trials[5], 9.0, code=Code("0123456789abcdef", True, "code-2"))
    assert collect.code_of(collect.collect(run)) == "mixed: 0123456789ab, 0123456789ab with uncommitted changes"
    record_trial(run, trials[6], 9.0, code=Code("c0ffeec0ffeec0ffee", False, "code-1"))
    assert collect.code_of(collect.collect(run)).endswith(", c0ffeec0ffee")


@pytest.mark.parametrize(
    ("result", "part"),
    [
        ({"status": "fine"}, "'fine'"),
        ({"status": "ok"}, "an ok trial has a throughput"),
        ({"status": "ok", "throughput_txn_s": -1.0}, "throughput_txn_s"),
    ],
)
def test_a_record_that_breaks_the_schema_is_refused(run: Run, result: dict[str, object], part: str) -> None:
    write_json(run.trial_path(run.trials[0]["hash"]) / "result.json", result)
    with pytest.raises(RunError, match="break the table's schema") as caught:
        collect.collect(run)
    assert part in str(caught.value)
