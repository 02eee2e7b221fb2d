"""Open loops: arrivals at a rate as axes, loadgen's spec, and what the table has of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from runner import collect, sample
from runner.disk import Disk
from runner.errors import InputError
from runner.machine import CpuSets
from runner.plan import Plan, make_plan, parse_where
from runner.report import settings
from runner.store import Run
from runner.workload import load

ROOT = Path(__file__).resolve().parents[3]
HDD = Disk("hdd-7200", rotational=True)
THREE = {"mysql", "mysql-memcached", "anticache-alru"}
RATES = "offered_txn_s: [125, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000]"


def _plan(scale: str = "laptop", where: list[str] | None = None, trials: int | None = None) -> Plan:
    loaded = [load(ROOT / "workloads", "beyond-load", scale)]
    return make_plan(loaded, CpuSets("0", "1"), HDD, where=parse_where(where or []), trials=trials)


def test_smoke_is_cheap_and_every_scale_has_the_three_architectures() -> None:
    assert len(_plan("smoke").trials) == 6
    for scale in ("tiny", "smoke", "laptop", "paper"):
        assert {t.cell.system for t in _plan(scale).trials} == THREE
    assert {t.cell.arrival for t in _plan("paper").trials} == {"poisson", "fixed"}


def test_every_system_meets_the_same_arrivals_and_operations() -> None:
    plan = _plan("paper", trials=2)
    seeds: dict[tuple[Any, ...], set[int]] = {}
    for t in plan.trials:
        assert (t.spec["arrival"], t.spec["offered_txn_s"]) == (t.cell.arrival, t.cell.offered_txn_s)
        seeds.setdefault((t.cell.arrival, t.cell.offered_txn_s, t.index), set()).add(t.spec["seed"])
    assert all(len(found) == 1 for found in seeds.values())
    assert len({next(iter(found)) for found in seeds.values()}) == len(seeds), (
        "one server has all loads one after the other: the same operations again would find their tuples in memory"
    )


def test_one_server_has_all_loads_in_one_order_for_every_system() -> None:
    plan = _plan(trials=1)
    orders = [[(t.cell.arrival, t.cell.offered_txn_s) for t in on_it] for _, on_it in plan.batches(plan.trials)]
    assert len(orders) == len(THREE)
    assert all(order == orders[0] for order in orders)
    rates = [rate or 0 for _, rate in orders[0]]
    assert rates != sorted(rates), "drift must not look like load"


def test_a_closed_loop_has_nothing_of_it() -> None:
    closed = make_plan([load(ROOT / "workloads", "fig06", "smoke")], CpuSets("0", "1"), HDD)
    assert all(not {"arrival", "offered_txn_s"} & set(t.spec) for t in closed.trials)


def test_a_load_can_be_chosen_and_is_named() -> None:
    plan = _plan("laptop", where=["offered_txn_s=4000", "arrival=poisson"], trials=1)
    assert {t.cell.label() for t in plan.trials} == {
        f"{system} read-heavy s=1 2x poisson arrivals 4000 txn/s" for system in THREE
    }


BAD = [
    (RATES, "offered_txn_s: [0, 125]", ["grid.offered_txn_s[0]", "0 is not allowed", "numbers from 0.001"]),
    (RATES, "offered_txn_s: [125, -5]", ["grid.offered_txn_s[1]", "-5 is not allowed", "numbers from 0.001"]),
    (RATES, "offered_txn_s: [.nan]", ["grid.offered_txn_s[0]", "nan", "finite number", "numbers from 0.001"]),
    (RATES, "offered_txn_s: [.inf]", ["grid.offered_txn_s[0]", "inf", "finite number"]),
    (f"  {RATES}\n", "", ["grid.arrival", "at a rate", "grid.offered_txn_s"]),
    ("  arrival: [poisson, fixed]\n", "", ["grid.offered_txn_s", "a closed loop", "fixed, poisson"]),
    ("arrival: [poisson, fixed]", "arrival: [poison]", ["grid.arrival[0]", "'poison'", "did you mean 'poisson'"]),
    ("arrival: [poisson, fixed]", "arrival: [closed]", ["grid.arrival[0]", "'closed'", "fixed, poisson"]),
    (RATES, "offered_txn_s: [125, 125]", ["offered_txn_s[1]", "125.0 stands twice"]),
]


@pytest.mark.parametrize(("old", "new", "expected"), BAD, ids=[f"{c[1]}" or f"without {c[0]}" for c in BAD])
def test_bad_loads_are_named(workloads: Path, old: str, new: str, expected: list[str]) -> None:
    path = workloads / "beyond-load.yml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load(workloads, "beyond-load", "paper")
    message = str(caught.value)
    assert re.search(r"beyond-load\.yml:\d+: ", message), message
    assert "\n" not in message
    assert [part for part in expected if part not in message] == [], message


def test_terminals_that_pause_have_no_open_loop(workloads: Path) -> None:
    """TPC-C's pauses say when terminals submit; so do arrivals."""
    path = workloads / "fig07.yml"
    grid = "  arrival: [fixed]\n  offered_txn_s: [100]\n"
    path.write_text(path.read_text().replace("grid:\n", f"grid:\n{grid}", 1))
    assert {c for c in load(workloads, "fig07", "laptop").grid.named() if c in grid} == {"arrival", "offered_txn_s"}
    path.write_text(re.sub(r"wait_factor: [\d.]+", "wait_factor: 0.5", path.read_text()))
    with pytest.raises(InputError, match=r"fig07\.yml:\d+: tpcc\.wait_factor: 0\.5: terminals do not pause"):
        load(workloads, "fig07", "laptop")


def test_a_microbenchmark_has_no_arrivals(workloads: Path) -> None:
    path = workloads / "fig10.yml"
    path.write_text(path.read_text().replace("grid:\n", "grid:\n  arrival: [fixed]\n  offered_txn_s: [100]\n", 1))
    with pytest.raises(InputError, match=r"grid\.arrival: an axis of ycsb, which this experiment does not run"):
        load(workloads, "fig10", "laptop")


QUANTILES = {"p50": 400, "p95": 900, "p99": 1500, "p999": 2500, "mean": 500.5, "max": 3000}
OPEN_LOOP = {
    "arrival": "poisson",
    "offered_txn_s": 500.0,
    "arrived": 510,
    "achieved_txn_s": 505.0,
    "response_us": QUANTILES,
    "client_late_us": {name: value / 10 for name, value in QUANTILES.items()},
    "latest_start_us": 700,
    "backlog_at_start": 1,
    "not_started": 2,
}


@pytest.fixture
def table(new_run: Callable[[Plan], Run], record_trial: Callable[..., None]) -> pd.DataFrame:
    plan = _plan("smoke")
    run = new_run(plan)
    latency_us = {name: value / 2 for name, value in QUANTILES.items()}
    more: dict[str, Any] = {"open_loop": OPEN_LOOP, "latency_us": latency_us}
    record_trial(run, plan.trials[0], 505.0, **more)
    record_trial(run, plan.trials[1], 505.0, flags=["overloaded"], reason="overloaded: …", **more)
    record_trial(run, plan.trials[2], 505.0, status="invalid", flags=["client_saturated", "overloaded"], **more)
    record_trial(run, plan.trials[3], None, status="failed", reason="mysqld died", **more)
    return collect.collect(run)


def test_the_table_has_response_beside_service_time(table: pd.DataFrame) -> None:
    first = table.iloc[0]
    assert (first["arrival"], first["offered_txn_s"]) == ("poisson", 500.0)
    for name, value in QUANTILES.items():
        assert (first[f"response_us_{name}"], first[f"latency_us_{name}"]) == (value, value / 2)
    assert (first["client_late_us_p50"], first["client_late_us_p99"]) == (40.0, 150.0)
    assert [first[name] for name in collect.OPEN_LOOP] == [510, 505.0, 700, 1, 2]
    for row in (3, 4):  # failed, planned
        assert table.loc[row, ["response_us_p99", *collect.OPEN_LOOP]].isna().all()
    assert set(table["arrival"]) == {"poisson"}, "planned trials have their cell as well"


def test_an_overloaded_trial_is_valid_and_a_saturated_client_is_not(table: pd.DataFrame) -> None:
    overloaded = sample.sample(table.iloc[[1]], "response_us_p99")
    assert (overloaded.values, overloaded.missing) == ([1500.0], "")
    saturated = sample.sample(table.iloc[[2]], "response_us_p99")
    assert (saturated.values, saturated.missing) == ([], "terminals were saturated")
    assert sample.sample(table.iloc[[2]]).lower_bound, "its throughput is one, overloaded or not"


def test_a_closed_loop_leaves_the_columns_empty(
    new_run: Callable[[Plan], Run], record_trial: Callable[..., None]
) -> None:
    plan = make_plan([load(ROOT / "workloads", "fig08", "smoke")], CpuSets("0", "1"), HDD)
    run = new_run(plan)
    record_trial(run, plan.trials[0], 1000.0)
    row = collect.collect(run).iloc[0]
    assert row["arrival"] == ""
    assert row[["offered_txn_s", "response_us_p50", *collect.OPEN_LOOP]].isna().all()


def test_the_report_says_how_transactions_arrive(new_run: Callable[[Plan], Run]) -> None:
    (ycsb,) = settings.side_by_side(new_run(_plan("smoke")))
    same = {setting.name: setting for setting in ycsb.same}
    assert same["arrival"].common == "poisson"
    assert same["offered_txn_s"].common == "500 txn/s, 4000 txn/s"
    assert same["arrival"].why
