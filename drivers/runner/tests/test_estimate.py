"""Estimates: from earlier trials where there are any, and what `plan` says of a night."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner import history, preview, publish, store
from runner.disk import NODE_DISK
from runner.estimate import DEPLOYMENT_OVERHEAD_S, TRIAL_OVERHEAD_S, Estimate, estimate
from runner.files import write_json
from runner.history import History, Range, range_of
from runner.machine import CpuSets
from runner.plan import Plan, Trial, make_plan
from runner.store import Run
from runner.workload import Workload, load

ROOT = Path(__file__).resolve().parents[3]
CPUS = CpuSets("0", "1")
SET_S = 40.0  # of laptop: 10 + 30
MACHINE = {"machine": "a machine", "scale": "laptop", "disk": "none"}


@pytest.fixture
def plan(laptop: Workload) -> Plan:
    where = {"mix": ["read-only"], "data_memory_ratio": ["1", "2"]}
    return make_plan([laptop], CPUS, NODE_DISK, systems=["mysql", "anticache-lru"], where=where, trials=2)


def record(run: Run, trial: Trial, beside_s: float, status: str = "ok", **environment: object) -> None:
    """Record a trial that took so long beside its warm-up and measurement."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    directory = run.begin(trial.hash)
    write_json(directory / "result.json", {"status": status, "reason": "", "throughput_txn_s": 1.0})
    times = {"started_at": began.isoformat(), "ended_at": (began + timedelta(seconds=SET_S + beside_s)).isoformat()}
    write_json(directory / "environment.json", {**times, **environment})
    run.commit(trial.hash)


def seen(results: Path, **changed: str) -> History:
    return history.of_results([results], **{**MACHINE, **changed})


def first(plan: Plan, system: str, ratio: float) -> list[Trial]:
    return [t for t in plan.trials if (t.cell.system, t.cell.data_memory_ratio, t.index) == (system, ratio, 0)]


def test_without_earlier_trials_constants_count_and_it_is_said(plan: Plan) -> None:
    cost = estimate(plan, plan.trials, set())
    assert cost.unlike == len(plan.trials)
    assert cost.time.low == cost.time.high == cost.seconds
    assert preview.basis(cost).startswith("from constants: no earlier trial of this machine")
    assert "(" not in preview.span(cost.time)


def test_the_narrowest_sort_that_was_seen_counts(plan: Plan, new_run: Callable[[Plan], Run], tmp_path: Path) -> None:
    run = new_run(plan)
    at_one, at_two = first(plan, "mysql", 1.0), first(plan, "mysql", 2.0)
    record(run, at_one[0], 5.0)
    record(run, at_one[1], 7.0)
    found = seen(tmp_path / "results")
    assert (found.trials, found.runs) == (2, 1)
    cost = estimate(plan, [*at_one, *at_two], set(), history=found)

    def beside(trial: Trial, seconds: float) -> bool:
        return cost.by_trial[trial.hash].usual == pytest.approx(SET_S + seconds)

    assert beside(at_one[1], 7.0), "of its own cell"
    assert beside(at_one[2], 6.0), "the median of its experiment, system and ratio"
    assert beside(at_two[2], 6.0), "of its system, where the ratio was not seen"
    assert cost.unlike == 0
    other = first(plan, "anticache-lru", 1.0)
    cost = estimate(plan, other, set(), history=found)
    assert beside(other[1], TRIAL_OVERHEAD_S)
    assert cost.unlike == len(other)
    assert f"; {len(other)} of these {len(other)} are unlike all of them" in preview.basis(cost)


def test_phases_of_a_start_are_taken_once(plan: Plan, new_run: Callable[[Plan], Run], tmp_path: Path) -> None:
    run, at_one = new_run(plan), first(plan, "mysql", 1.0)
    took_s = {"stop": 1.0, "deploy": 20.0, "prewarm": 4.0, "keep": 100.0, "run": 41.0}
    record(run, at_one[0], 5.0, took_s=took_s, node_bytes={"dataset": 7_000_000, "system": 9_000_000})
    record(run, at_one[1], 5.0, took_s={"run": 41.0}, node_bytes={"dataset": 7_000_000, "system": 11_000_000})
    found = seen(tmp_path / "results")
    cost = estimate(plan, at_one, set(), history=found)
    assert cost.deploying.usual == pytest.approx(25.0)
    assert cost.loading.usual == pytest.approx(100.0)
    assert cost.seconds == pytest.approx(len(at_one) * (SET_S + 5.0) + 125.0)
    kept = {plan.trials[0].deployment: plan.deployments[at_one[0].deployment].dataset}
    assert estimate(plan, at_one, set(kept.values()), history=found).seconds == pytest.approx(cost.seconds - 100.0)
    results_bytes = sum(found.result_bytes) // 2 * len(at_one)
    assert cost.disk_bytes == pytest.approx(7_000_000 + 11_000_000 + results_bytes, abs=1000)
    assert estimate(plan, at_one, set(kept.values()), history=found).disk_bytes < cost.disk_bytes - 6_000_000


def test_two_lanes_load_for_themselves_and_share_the_rest(
    plan: Plan, new_run: Callable[[Plan], Run], tmp_path: Path
) -> None:
    run = new_run(plan)
    record(run, first(plan, "mysql", 1.0)[0], 5.0, took_s={"deploy": 20.0, "keep": 100.0})
    trials = [*first(plan, "mysql", 1.0), *first(plan, "mysql", 2.0)]
    one, two = (estimate(plan, trials, set(), lanes, seen(tmp_path / "results")) for lanes in (1, 2))
    assert two.loading.usual == one.loading.usual
    assert two.seconds == pytest.approx((one.seconds - one.loading.usual) / 2 + one.loading.usual)


def test_the_spread_is_of_what_was_seen() -> None:
    assert range_of([4.0]) == Range(4.0, 4.0, 4.0)
    assert range_of([3.0, 1.0, 2.0]) == Range(pytest.approx(1.2), 2.0, pytest.approx(2.8))  # type: ignore[arg-type]
    assert preview.span(Range(3600.0, 7200.0, 10800.0)) == "about 2 h 00 min (60 min to 3 h 00 min)"


def test_only_the_same_machine_scale_and_disk_count(plan: Plan, new_run: Callable[[Plan], Run], tmp_path: Path) -> None:
    run, trials = new_run(plan), first(plan, "mysql", 1.0)
    record(run, trials[0], 5.0)
    record(run, trials[1], 500.0, status="failed")
    assert seen(tmp_path / "results").trials == 1, "a trial that failed may have ended at any time"
    for changed in ({"machine": "another"}, {"scale": "paper"}, {"disk": "hdd-7200"}):
        assert seen(tmp_path / "results", **changed).trials == 0
    for folder in ("published", "unfinished"):
        publish.publish(run, tmp_path / "results" / folder / "laptop")
    found = seen(tmp_path / "results")
    assert (found.trials, found.runs) == (1, 1), "a copy and its run hold the same trials"
    (tmp_path / "results" / "runs").rename(tmp_path / "elsewhere")
    assert seen(tmp_path / "results").trials == 1


def test_every_experiment_ratio_and_what_is_left_is_printed() -> None:
    both = [load(ROOT / "workloads", name, "laptop") for name in ("fig06", "fig07", "fig09b")]
    plan = make_plan(both, CPUS, NODE_DISK)
    done = {t.hash: store.Recorded("ok", "") for t in plan.trials if t.experiment == "fig06" and t.index == 0}
    cost = estimate(plan, plan.trials, set())
    left = estimate(plan, store.to_run(plan.trials, done), set())
    text = "\n".join(preview.lines(plan, cost, left, done))
    assert "fig06 1x, 2x, 4x, 8x: 1000000 records" in text
    for ratio in ("1x", "2x", "4x", "8x"):
        assert f"fig07 {ratio}: 10 warehouses with " in text
    sizes = [line for line in text.splitlines() if line.startswith("  fig09b ")]
    assert len(sizes) > 1, "other tuple sizes, other numbers of records"
    row = next(line.split() for line in text.splitlines() if line.startswith("    fig06 "))
    assert row[1:4] == ["255", "765", "255"]
    assert f"{len(plan.trials) - 255} trials; 255 of {len(plan.trials)} are recorded" in text
    assert "one trial of every cell: about " in text
    assert cost.seconds > left.seconds > 0
    whole: Estimate = dataclasses.replace(cost)
    assert whole.of(t.hash for t in plan.trials).usual == pytest.approx(cost.seconds)


def test_nothing_left_is_said(plan: Plan) -> None:
    done = {t.hash: store.Recorded("ok", "") for t in plan.trials}
    text = "\n".join(preview.lines(plan, estimate(plan, plan.trials, set()), estimate(plan, [], set()), done))
    assert f"left         nothing; {len(plan.trials)} of {len(plan.trials)} are recorded" in text


def test_the_constants_are_used_as_they_are_told(plan: Plan) -> None:
    trials = first(plan, "anticache-lru", 1.0)
    cost = estimate(plan, trials, set())
    loading_s = 1_000_000 / 300_000
    assert cost.seconds >= len(trials) * (SET_S + TRIAL_OVERHEAD_S) + DEPLOYMENT_OVERHEAD_S
    assert cost.seconds < len(trials) * (SET_S + TRIAL_OVERHEAD_S) + DEPLOYMENT_OVERHEAD_S + 20 * loading_s
