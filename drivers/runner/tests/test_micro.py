"""Microbenchmarks as experiments: their plans, what is refused, their rows, their claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from runner import claims, collect, disk, extent
from runner.axes import Cell
from runner.claims import NOT_REPRODUCED, REPRODUCED
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.machine import CpuSets
from runner.plan import Plan, Trial, all_cells, make_plan
from runner.store import Run
from runner.workload import Workload, load

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("fig10", "fig11a", "fig11b")
CPUS = CpuSets("0", "1")


def _plan(scale: str, names: tuple[str, ...] = NAMES) -> Plan:
    return make_plan([load(ROOT / "workloads", name, scale) for name in names], CPUS, NODE_DISK)


def test_one_start_serves_all_of_them_in_each_round() -> None:
    for scale in ("smoke", "laptop", "paper"):
        plan = _plan(scale)
        rounds = max(t.index for t in plan.trials) + 1
        batches = list(plan.batches(plan.trials))
        assert len(batches) == rounds
        assert {d.values["benchmark"] for d, _ in batches} == {"micro"}
    assert len(_plan("smoke").trials) == 18
    assert len(_plan("laptop").trials) == 3 * (5 * 3 + 7 * 2 + 9 * 2)


def test_what_is_compared_meets_the_same_operations_in_another_order_each_time() -> None:
    trials = _plan("laptop", ("fig10",)).trials
    for index in range(3):
        seeds = {(t.cell.skew, t.seed) for t in trials if t.index == index}
        assert len(seeds) == 5, "one seed for each skew, whatever the chain"
    assert len({t.seed for t in trials}) == 15
    assert len({t.seed for t in _plan("smoke", ("fig10",)).trials}) == 2, "also where trials share a start"
    orders = {
        tuple(t.cell.chain for t in trials if (t.index, t.cell.skew) == (index, skew))
        for index in range(3)
        for skew in (1.5, 1.25, 1.0, 0.75, 0.5)
    }
    assert len(orders) > 2, "no chain is always the first"


def test_the_specification_says_what_is_measured_and_nothing_of_terminals() -> None:
    def spec_of(name: str, **where: Any) -> dict[str, Any]:
        cells = (t for t in _plan("paper", (name,)).trials if all(getattr(t.cell, k) == v for k, v in where.items()))
        return next(cells).spec

    spec = spec_of("fig10", chain="single", skew=1.5)
    assert spec["benchmark"] == "micro"
    assert "engine_settings" not in spec
    assert spec["micro"] == {
        **{"measure": "lru_chain", "tuples": 100_000, "updates": 100_000, "skew": 1.5, "chain": "single"},
        "limit_s": 100,
    }
    assert spec_of("fig11a", merged="tuple", block_bytes=1 << 24)["micro"] == {
        **{"measure": "eviction_steps", "tuples": 100_000, "block_bytes": 1 << 24, "merged": "tuple", "limit_s": 100}
    }
    assert spec_of("fig11b", indexes=0, index_kind="hash")["micro"] == {
        **{"measure": "index_update", "tuples": 100_000, "updates": 1000, "indexes": 0, "index_kind": "hash"},
        "limit_s": 100,
    }
    assert "engine_settings" not in _plan("smoke", ("fig10",)).trials[0].spec, "settings of a server that is not there"


def test_only_what_uses_the_disk_is_measured_on_its_model() -> None:
    uses = {name: load(ROOT / "workloads", name, "smoke").section("micro").uses_disk for name in NAMES}
    assert uses == {"fig10": False, "fig11a": True, "fig11b": False}
    assert load(ROOT / "workloads", "fig06", "smoke").section("ycsb").uses_disk


def test_late_flushes_spoil_no_figure_that_has_none_and_others_do() -> None:
    late = {"operations": 20, "late": 4, "late_share": 0.2, "threshold_us": 1000, "worst_us": 2000}
    stats = {"late": {**late, "late_by_kind": {"read": 0, "write": 0, "flush": 4}}}
    untimed = load(ROOT / "workloads", "fig11a", "smoke").section("micro").untimed_operations
    assert disk.problem(stats)
    assert not disk.problem(disk.without(stats, untimed))
    assert disk.without(stats, ()) == stats
    assert disk.without({}, untimed) == {}
    stats = {"late": {**late, "late_by_kind": {"read": 3, "write": 0, "flush": 1}}}
    assert "15.0%" in disk.problem(disk.without(stats, untimed))


@pytest.mark.parametrize(
    ("name", "before", "after", "parts"),
    [
        ("fig10", "double, single]", "double, triple]", ["'triple'", "none, double, single"]),
        ("fig10", "  chain: [none, double, single]\n", "", ["grid.chain", "lru_chain varies it"]),
        ("fig10", "  chain:", "  indexes: [1]\n  chain:", ["lru_chain has no such axis", "skew and chain"]),
        ("fig10", "  updates: 100000\n", "", ["lru_chain needs it the tuples that a repetition updates"]),
        ("fig10", "limit_s: 100", "limit_s: 0", ["limit_s", "from 0.1 to 600"]),
        ("fig10", "data_memory_ratio: [1]", "data_memory_ratio: [2]", ["allowed: [1]"]),
        ("fig10", "[anticache-lru]", "[mysql]", ["mysql evicts nothing", "[anticache-lru]"]),
        ("fig10", "[anticache-lru]", "[anticache-off]", ["anticache-off evicts nothing"]),
        ("fig10", "measure: lru_chain", "measure: everything", ["'everything'", "lru_chain, eviction_steps"]),
        ("fig11a", "  limit_s", "  updates: 5\n  limit_s", ["eviction_steps needs it absent"]),
        ("fig11a", "16777216]", "5000]", ["5000", "multiples of 4096"]),
        ("fig11b", "7, 8]", "7, 9]", ["9", "from 0 to 8"]),
        ("fig11b", "updates: 1000", "updates: 100001", ["micro_tuples", "100000 tuples are fewer"]),
        ("fig06", "  skew: [1.5", "  chain: [none]\n  skew: [1.5", ["chain", "an axis of micro"]),
    ],
)
def test_impossible_workloads_are_refused(
    workloads: Path, name: str, before: str, after: str, parts: list[str]
) -> None:
    path = workloads / f"{name}.yml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(InputError) as refused:
        load(workloads, name, "laptop")
    for part in parts:
        assert part in str(refused.value)


def test_more_tuples_than_fit_are_refused(workloads: Path) -> None:
    path = workloads / "scales.yml"
    path.write_text(path.read_text().replace("micro_tuples: 100000", "micro_tuples: 10000000", 1))
    with pytest.raises(InputError, match=r"10000000 tuples do not fit in 268435456 bytes; up to 223696 do"):
        load(workloads, "fig10", "laptop")


Figures = Callable[[Cell], dict[str, float]]
MakeTable = Callable[[Figures], pd.DataFrame]


@pytest.fixture
def table_of(new_run: Callable[[Plan], Run], record_trial: Callable[..., None]) -> MakeTable:
    """Makes the table of all three experiments at scale laptop; the figures of a trial are a function of its cell."""

    def make(figures: Figures) -> pd.DataFrame:
        plan = _plan("laptop")
        run = new_run(plan)
        for trial in plan.trials:
            more = {name: value * (1 + trial.index / 1000) for name, value in figures(trial.cell).items()}
            record_trial(run, trial, None, repetitions=5, **more)
        return collect.collect(run)

    return make


def _like_the_paper(cell: Cell) -> dict[str, float]:
    if cell.chain is not None and cell.skew is not None:
        return {"elapsed_ms": {"none": 10.0, "double": 10.3, "single": 206 * math.sqrt(cell.skew / 1.5)}[cell.chain]}
    if cell.block_bytes is not None:
        mib = cell.block_bytes / (1 << 20)
        steps = {"construct_ms": 15 * mib, "write_ms": 4 * mib, "fetch_ms": 5 * mib + 1}
        steps["merge_ms"] = 12 * mib if cell.merged == "block" else 0.1
        return {**steps, "elapsed_ms": sum(steps.values())}
    return {"elapsed_ms": 0.1 + (cell.indexes or 0) * (0.2 if cell.index_kind == "hash" else 0.5)}


def _constant(cell: Cell) -> dict[str, float]:
    """What refutes all four claims."""
    if cell.chain is not None:
        return {"elapsed_ms": {"none": 10.0, "double": 11.0, "single": 110.0}[cell.chain]}
    uneven = 10.0 if (cell.block_bytes or cell.indexes or 0) in (1 << 20, 3) else 1.0
    return dict.fromkeys(("construct_ms", "write_ms", "fetch_ms", "merge_ms", "elapsed_ms"), uneven)


def _verdicts(table: pd.DataFrame) -> dict[str, Any]:
    whole = {name: extent.table_of(all_cells(load(ROOT / "workloads", name, "laptop"))) for name in NAMES}
    entries = claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table, whole)
    return {e["id"]: e for e in entries if e["id"] in ("C20", "C21", "C22", "C23")}


def test_the_claims_both_ways(table_of: MakeTable) -> None:
    entries = _verdicts(table_of(_like_the_paper))
    assert {name: (e["verdict"], e["qualifiers"]) for name, e in entries.items()} == {
        name: (REPRODUCED, []) for name in ("C20", "C21", "C22", "C23")
    }, entries
    assert entries["C20"]["measured"] == pytest.approx(3.0)


def test_the_claims_are_not_reproduced_by_other_figures(table_of: MakeTable) -> None:
    entries = _verdicts(table_of(_constant))
    assert {name: e["verdict"] for name, e in entries.items()} == dict.fromkeys(
        ("C20", "C21", "C22", "C23"), NOT_REPRODUCED
    ), entries


def test_high_skew_is_the_same_in_both_claims_about_the_chain(table_of: MakeTable) -> None:
    def slow_at_one(cell: Cell) -> dict[str, float]:
        times = _like_the_paper(cell)
        return {"elapsed_ms": 500.0} if (cell.chain, cell.skew) == ("single", 1.25) else times

    entries = _verdicts(table_of(slow_at_one))
    assert entries["C21"]["verdict"] == NOT_REPRODUCED, "49 times at s = 1.25 is not about 20"


def test_a_row_has_the_times_and_no_settings_of_a_server(table_of: MakeTable) -> None:
    table = table_of(_like_the_paper)
    assert (table["status"] == "ok").all()
    assert table["throughput_txn_s"].isna().all()
    assert table["elapsed_ms"].notna().all()
    assert (table["durability"] == "").all()
    assert (table["merge"] == "").all()
    assert table["eviction_block_bytes"].isna().all()
    of_blocks = table[table["experiment"] == "fig11a"]
    assert set(of_blocks["merged"]) == {"block", "tuple"}
    assert of_blocks["write_ms"].notna().all()
    assert set(table["measure"]) == {"lru_chain", "eviction_steps", "index_update"}


def test_a_failed_trial_has_no_time(new_run: Callable[[Plan], Run], record_trial: Callable[..., None]) -> None:
    plan = _plan("smoke", ("fig10",))
    run = new_run(plan)
    first: Trial = plan.trials[0]
    record_trial(run, first, None, status="failed", reason="not done within micro.limit_s = 100 s", elapsed_ms=None)
    row = collect.collect(run).iloc[0]
    assert row["status"] == "failed"
    assert pd.isna(row["elapsed_ms"])


def test_a_workload_names_its_schema(smoke: Workload) -> None:
    workload = load(ROOT / "workloads", "fig11b", "smoke")
    assert workload.schemas["micro"] == smoke.schemas["ycsb"]
