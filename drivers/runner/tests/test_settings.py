"""Settings of the engine, sizes of tuples and disks as axes: Figures 8, 9a, 9b and the ablations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from runner import claims, collect, disk, engine, extent
from runner.axes import Cell
from runner.claims import NOT_REPRODUCED, REPRODUCED
from runner.disk import NODE_DISK, Disk
from runner.errors import InputError
from runner.machine import CpuSets
from runner.notebooks import applicable
from runner.plan import Plan, all_cells, make_deployment, make_plan, parse_where
from runner.store import Run
from runner.workload import experiments_in, load

ROOT = Path(__file__).resolve().parents[3]
CPUS = CpuSets("0", "1")
HDD = Disk("hdd-7200", rotational=True)
COMPARED = ["fig08", "fig09a", "fig09b", *(n for n in experiments_in(ROOT / "workloads") if n.startswith("beyond-"))]


def _plan(*names: str, scale: str = "laptop", at: Disk = HDD, trials: int | None = None) -> Plan:
    return make_plan([load(ROOT / "workloads", name, scale) for name in names], CPUS, at, trials=trials)


@pytest.mark.parametrize("scale", ["tiny", "smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", COMPARED)
def test_every_experiment_can_be_planned_at_every_scale(name: str, scale: str) -> None:
    plan = _plan(name, scale=scale)
    assert len({t.hash for t in plan.trials}) == len(plan.trials)


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
@pytest.mark.parametrize("name", COMPARED)
def test_every_setting_that_is_compared_reaches_server_or_driver(name: str, scale: str) -> None:
    """A label without a difference behind it would compare a setting with itself."""
    plan = _plan(name, scale=scale, trials=1)
    carried: dict[str, list[str]] = {}
    for t in plan.trials:
        spec = {key: value for key, value in t.spec.items() if key != "seed"}
        what = repr((plan.deployments[t.deployment].values, plan.deployments[t.deployment].dataset, spec))
        carried.setdefault(what, []).append(t.cell.label())
    assert [labels for labels in carried.values() if len(labels) > 1] == []
    for t in plan.trials:
        engine_of_it = {**plan.deployments[t.deployment].values["engine"], **t.spec.get("engine_settings", {})}
        defaults = engine.Engine(merge="tuple", hole_threshold=0.5).model_dump()
        assert {k: engine_of_it.get(k, defaults[k]) for k in t.cell.engine_settings()} == t.cell.engine_settings()


def test_a_start_for_each_setting_and_the_same_operations() -> None:
    plan = _plan("fig08", trials=2)
    settings = {d.values["engine"]["merge"]: d.id for d in plan.deployments.values()}
    assert set(settings) == {"tuple", "block"}
    for t in plan.trials:
        assert plan.deployments[t.deployment].values["engine"]["merge"] == t.cell.merge
        assert "engine_settings" not in t.spec
    seeds = {
        (t.cell.skew, t.index): {o.seed for o in plan.trials if (o.cell.skew, o.index) == (t.cell.skew, t.index)}
        for t in plan.trials
    }
    assert all(len(found) == 1 for found in seeds.values()), "both strategies meet the same operations"
    firsts = [next(t.cell.merge for t in plan.trials if t.index == index) for index in (0, 1)]
    assert firsts == ["tuple", "block"], "what comes first changes from trial to trial"


def test_at_smoke_one_server_has_all_settings_one_after_the_other() -> None:
    names = ("fig08", "fig09a", "beyond-alpha", "beyond-holes", "beyond-eviction", "beyond-fetch")
    plan = _plan(*names, scale="smoke")
    assert len(plan.deployments) == 2, "the usual block, and the one four times as large"
    assert len(list(plan.batches(plan.trials))) == 2, "also of several experiments"
    for t in plan.trials:
        changed = t.spec["engine_settings"]
        assert set(changed) == set(engine.LIVE), "a setting that is not named would be that of the trial before"
        assert {k: changed[k] for k in t.cell.settings()} == t.cell.settings()
        assert changed["merge"] == (t.cell.merge or "tuple")
    seeds = [t.seed for t in plan.trials]
    assert len(set(seeds)) == len(seeds), "the same operations again would find their tuples in memory"
    of_lru = engine.live_settings(engine.Engine(merge="tuple", hole_threshold=0.5), "anticache-lru")
    assert "lru_sample_rate" not in of_lru


def test_a_default_is_the_usual_deployment() -> None:
    plan = _plan("beyond-alpha", "beyond-fetch", "fig08", trials=1)
    by_rate = {t.cell.lru_sample_rate: t.deployment for t in plan.trials if t.experiment == "beyond-alpha"}
    tuple_merge = next(t.deployment for t in plan.trials if t.cell.merge == "tuple")
    whole = next(t.deployment for t in plan.trials if t.cell.fetch == "block" and t.cell.data_memory_ratio == 2.0)
    assert by_rate[0.01] == tuple_merge == whole
    assert len(set(by_rate.values())) == 7
    assert all(len({t.experiment for t in on_it}) == 1 for _, on_it in plan.batches(plan.trials)), (
        "the usual setting has no server that has run for longer than the others'"
    )


def test_blocks_are_multiples_of_the_scales() -> None:
    sizes = {
        scale: {d.values["engine"]["eviction_block_bytes"] for d in _plan("fig09a", scale=scale).deployments.values()}
        for scale in ("laptop", "smoke")
    }
    assert sizes == {"laptop": {n << 20 for n in (1, 2, 4, 8)} | {64 << 10, 256 << 10}, "smoke": {64 << 10, 256 << 10}}


def test_tuple_sizes_have_equal_bytes() -> None:
    plan = _plan("fig09b", trials=1)
    budgets = {d.values["memory_budget_bytes"] for d in plan.deployments.values()}
    assert len(budgets) == 1
    shapes = {t.cell.tuple_bytes: t.spec["ycsb"] for t in plan.trials}
    for tuple_bytes, shape in shapes.items():
        assert tuple_bytes == 8 + shape["fields"] * shape["field_bytes"]
    assert shapes[128]["records"] == pytest.approx(8 * shapes[1024]["records"], rel=1e-5)
    workload = load(ROOT / "workloads", "fig09b", "laptop")
    names = {c.tuple_bytes: workload.schema_of(c).name for c in all_cells(workload)}
    assert names == {size: f"ycsb-{size}.sql" for size in (128, 256, 512, 1024)}
    assert len({d.dataset for d in plan.deployments.values()}) == 4


def test_more_records_are_another_data_set_with_as_much_more_memory() -> None:
    plan = _plan("beyond-scale", trials=1)
    found = {t.cell.records_factor: (t.spec["ycsb"]["records"], plan.deployments[t.deployment]) for t in plan.trials}
    assert {factor: records for factor, (records, _) in found.items()} == {n: n * 1_000_000 for n in (1, 2, 4, 8)}
    one = found[1][1].values["memory_budget_bytes"]
    for factor, (_, deployment) in found.items():
        assert deployment.values["memory_budget_bytes"] == pytest.approx(factor * one, rel=0.01)
        assert deployment.values["engine"]["eviction_block_bytes"] == 1 << 20, "the paper's at every size"
    assert len({deployment.dataset for _, deployment in found.values()}) == 4
    usual = make_deployment(
        load(ROOT / "workloads", "fig06", "laptop"), Cell("anticache-alru", "read-only", 1.5, 8.0), CPUS, HDD
    )
    assert usual.id in plan.deployments, "as many as the scale has: Figure 6's own start"


def test_a_faster_transfer_is_another_disk_below_the_same_data_sets() -> None:
    plan = _plan("beyond-transfer", trials=1)
    cells = {(t.cell.system, t.cell.disk_profile, t.cell.records_factor) for t in plan.trials}
    assert cells == set(itertools.product(("mysql", "anticache-alru"), ("hdd-7200", "hdd-297mb"), (1, 4)))
    assert {t.spec["ycsb"]["records"] for t in plan.trials} == {1_000_000, 4_000_000}
    datasets = {(d.values["system"], d.dataset) for d in plan.deployments.values()}
    assert len(plan.deployments) == 8 and len(datasets) == 4, "each disk restores what was loaded once"


def test_terminals_are_multiples_of_the_sections() -> None:
    plan = _plan("beyond-terminals", trials=1)
    for t in plan.trials:
        assert t.spec["terminals"] == plan.deployments[t.deployment].values["terminals"]
        assert t.spec["terminals"] == 64 * (t.cell.terminals_factor or 0)
    assert {t.spec["terminals"] for t in plan.trials} == {16, 64, 256}
    usual = make_deployment(
        load(ROOT / "workloads", "fig06", "laptop"), Cell("mysql", "write-heavy", 1.5, 8.0), CPUS, HDD
    )
    assert usual.id in plan.deployments, "as many as elsewhere: Figure 6's own start"


def test_another_order_of_keys_is_prewarmed_anew() -> None:
    plan = _plan("beyond-keys", trials=1)
    by_order = {(t.cell.system, t.cell.key_order): t.deployment for t in plan.trials}
    assert len(set(by_order.values())) == 6
    assert all(t.spec["ycsb"]["key_order"] == t.cell.key_order for t in plan.trials)
    usual = make_deployment(
        load(ROOT / "workloads", "fig06", "laptop"), Cell("mysql", "read-only", 1.0, 2.0), CPUS, HDD
    )
    assert by_order["mysql", "clustered"] == usual.id


def test_disks_of_cells() -> None:
    plan = _plan("beyond-disk", trials=1)
    for t in plan.trials:
        values = plan.deployments[t.deployment].values["disk"]
        assert (values["profile"], values["rotational"]) == (t.cell.disk_profile, t.cell.disk_profile == "hdd-7200")
    assert {t.experiment for t in _plan("fig08", "beyond-disk", at=NODE_DISK).trials} == {"fig08"}
    with pytest.raises(InputError, match="an emulated DISK: none leaves out"):
        _plan("beyond-disk", at=NODE_DISK)


def test_cells_can_be_chosen_by_settings() -> None:
    loaded = [load(ROOT / "workloads", "beyond-eviction", "laptop")]
    where = parse_where(["eviction_check_interval_us=5000000", "eviction_blocks=4"])
    plan = make_plan(loaded, CPUS, HDD, where=where, trials=1)
    assert [t.cell.label() for t in plan.trials] == ["anticache-alru read-heavy s=1 2x check 5000000 us evict 4"]


BAD = [
    ("fig08.yml", "merge: [tuple,", "merge: [tupel,", ["grid.merge[0]", "'tupel'", "did you mean 'tuple'"]),
    ("fig08.yml", "system: [anticache-alru]", "system: [mysql]", ["grid.merge", "mysql has no such setting"]),
    ("fig09a.yml", "[0.0625,", "[0.01,", ["block_factor 0.01 makes blocks of 10485.8 bytes", "multiples of 4096"]),
    ("fig09a.yml", "4, 8]", "4, 64]", ["67108864 is not allowed here", "at least 32 blocks"]),
    (
        "fig09b.yml",
        "tuple_bytes: [128,",
        "tuple_bytes: [127,",
        ["grid.tuple_bytes[0]", "127 is not in ycsb.tuples", "128"],
    ),
    (
        "fig09b.yml",
        "fields: 4, field_bytes: 30",
        "fields: 3, field_bytes: 30",
        ["ycsb.tuples[128].fields", "declares 4 CHAR"],
    ),
    (
        "fig09b.yml",
        "    256: {schema: schemas/ycsb-256",
        "    256: {schema: schemas/ycsb-9",
        ["ycsb-9", "no such file"],
    ),
    ("beyond-alpha.yml", "[1, 0.3,", "[0, 0.3,", ["lru_sample_rate[0]", "0 is not allowed", "above 0 and up to 1"]),
    ("beyond-alpha.yml", "[anticache-alru]", "[anticache-lru]", ["grid.lru_sample_rate", "anticache-lru has no such"]),
    ("beyond-fetch.yml", "merge: tuple", "merge: block", ["grid.fetch[1]", "'sectors' needs merge: tuple"]),
    ("beyond-disk.yml", "nvme]", "nvm]", ["grid.disk_profile[2]", "no emulated disk 'nvm'", "did you mean 'nvme'"]),
    ("beyond-eviction.yml", "[1, 4, 16]", "[1, 4, 99]", ["eviction_blocks[2]", "99 is not allowed", "0 to 31"]),
    (
        "beyond-keys.yml",
        "scattered]",
        "spread]",
        ["grid.key_order[1]", "'spread' is not known", "clustered, scattered"],
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), BAD, ids=[f"{c[0]}-{c[2]}" for c in BAD])
def test_bad_settings_are_named(workloads: Path, name: str, old: str, new: str, expected: list[str]) -> None:
    path = workloads / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load(workloads, path.stem, "laptop")
    message = str(caught.value)
    assert re.search(r"\.yml:\d+: ", message), message
    assert [part for part in expected if part not in message] == [], message


Figure = Callable[[Cell], float]


@pytest.fixture
def table_of(
    new_run: Callable[[Plan], Run], record_trial: Callable[..., None]
) -> Callable[[str, Figure], pd.DataFrame]:
    """Makes the collected table of an experiment whose throughput a function of the cell gives."""

    def make(name: str, figure: Figure) -> pd.DataFrame:
        plan = _plan(name)
        run = new_run(plan)
        for t in plan.trials:
            record_trial(run, t, figure(t.cell) * (1 + t.index / 1000))
        return collect.collect(run)

    return make


def _verdict(claim: str, table: pd.DataFrame) -> tuple[str, list[str], str]:
    name = table["experiment"].iloc[0]
    whole = {name: extent.table_of(all_cells(load(ROOT / "workloads", name, "laptop")))}
    entries = claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table, whole)
    entry = next(e for e in entries if e["id"] == claim)
    return entry["verdict"], entry["qualifiers"], entry["note"]


def test_the_claim_about_merging_both_ways(table_of: Callable[[str, Figure], pd.DataFrame]) -> None:
    table = table_of("fig08", lambda c: 1000 * (c.skew or 1) * (1.2 if c.merge == "tuple" else 1))
    assert _verdict("C17", table)[:2] == (REPRODUCED, [])
    slower_once = table.copy()
    at = (table["merge"] == "tuple") & (table["skew"] == 0.75)
    slower_once["throughput_txn_s"] = table["throughput_txn_s"].mask(at, 100.0)
    assert _verdict("C17", slower_once)[0] == NOT_REPRODUCED
    verdict, qualifiers, note = _verdict("C17", table[table["skew"] != 0.75])
    assert (verdict, qualifiers) == (REPRODUCED, ["part of its cells"])
    assert "skew 0.75" in note


def test_the_claim_about_block_sizes_both_ways(table_of: Callable[[str, Figure], pd.DataFrame]) -> None:
    def like_the_paper(c: Cell) -> float:
        assert c.skew is not None
        assert c.block_factor is not None
        return 1000 * c.skew / (1 + c.skew * c.block_factor)

    assert _verdict("C18", table_of("fig09a", like_the_paper))[:2] == (REPRODUCED, [])
    most_at_low_skew = table_of("fig09a", lambda c: 1000 / (1 + (c.block_factor or 1) / (c.skew or 1)))
    assert _verdict("C18", most_at_low_skew)[0] == NOT_REPRODUCED
    assert _verdict("C18", table_of("fig09a", lambda c: 1000 * (c.block_factor or 1)))[0] == NOT_REPRODUCED


def test_the_claim_about_tuple_sizes_both_ways(table_of: Callable[[str, Figure], pd.DataFrame]) -> None:
    table = table_of("fig09b", lambda c: 1000.0 + (c.tuple_bytes or 0))
    assert _verdict("C19", table)[:2] == (REPRODUCED, [])
    one_mix = table.copy()
    at = (table["mix"] == "read-only") & (table["tuple_bytes"] == 1024)
    one_mix["throughput_txn_s"] = table["throughput_txn_s"].mask(at, 500.0)
    assert _verdict("C19", one_mix)[0] == NOT_REPRODUCED, "both readings of the figure have to hold"


def _counters(**more: int) -> dict[str, Any]:
    before = {"committed": 100, "restarted": 10, "fetched_blocks": 20, "fetched_bytes": 1000, "evicted_blocks": 4}
    return {
        "counters_before": {"anticached": before},
        "counters_after": {"anticached": {name: value + more.get(name, 0) for name, value in before.items()}},
    }


def test_hit_quality_is_of_the_measured_interval(
    new_run: Callable[[Plan], Run], record_trial: Callable[..., None]
) -> None:
    plan = _plan("beyond-alpha", scale="smoke")
    run = new_run(plan)
    grown = _counters(committed=2000, restarted=500, fetched_blocks=100, fetched_bytes=8192, evicted_blocks=6)
    record_trial(run, plan.trials[0], 1000.0, **grown)
    record_trial(run, plan.trials[1], 1000.0, **_counters())
    record_trial(run, plan.trials[2], None, status="failed", reason="died", **grown)
    table = collect.collect(run)
    assert list(table.loc[0, list(collect.HIT_QUALITY)]) == [0.25, 50.0, 4.096, 3.0]
    assert table.loc[1:, list(collect.HIT_QUALITY)].isna().all(axis=None), "without a transaction, or failed: none"
    changed = dict(zip(table["lru_sample_rate"], table["settings_changed"], strict=True))
    assert changed == {1.0: "lru_sample_rate = 1", 0.01: "", 0.001: "lru_sample_rate = 0.001"}


def test_the_table_has_the_settings_that_a_trial_ran_with(new_run: Callable[[Plan], Run]) -> None:
    table = collect.collect(new_run(_plan("fig08", "fig09a", "fig09b", scale="smoke")))
    eight = table[table["experiment"] == "fig08"]
    assert sorted(eight["merge"].unique()) == ["block", "tuple"]
    assert set(eight["settings_changed"]) == {"", "merge = block"}
    nine = table[table["experiment"] == "fig09a"]
    assert (nine["eviction_block_bytes"] == nine["block_factor"] * 65536).all()
    assert set(table["fetch"]) == {"block"}
    assert set(table[table["experiment"] == "fig09b"]["tuple_bytes"]) == {128, 1024}


def test_an_engine_with_other_settings_makes_the_trial_invalid() -> None:
    asked = {"merge": "tuple", "evict_from": "inverse-accesses", "hole_threshold": 1}
    reported = {"merge": "tuple", "evict_from": "coldest", "hole_threshold": 1.0, "log": "sync"}
    ok = {"status": "ok", "reason": "", "flags": [], "server_settings": {"anticached": reported}}
    found = engine.judge(ok, asked)
    assert (found["status"], found["flags"]) == ("invalid", ["settings_differ"])
    assert found["reason"].endswith("evict_from is coldest, not inverse-accesses")
    assert engine.judge(ok, {**asked, "evict_from": "coldest"}) == ok
    of_mysql = {"status": "ok", "server_settings": {"mysqld": {}}}
    assert engine.judge(of_mysql, asked) == of_mysql
    failed = {**ok, "status": "failed"}
    assert engine.judge(failed, asked) == failed


@pytest.mark.parametrize(
    ("experiment", "name", "values"),
    [
        ("beyond-tables", "evict_from", ("coldest", "inverse-accesses")),
        ("beyond-readers", "answer_readers", ("at-once", "durable")),
    ],
)
def test_what_only_the_server_can_tell_is_as_it_says(
    experiment: str,
    name: str,
    values: tuple[str, str],
    new_run: Callable[[Plan], Run],
    record_trial: Callable[..., None],
) -> None:
    plan = _plan(experiment, scale="smoke")
    run = new_run(plan)
    for t in plan.trials:
        record_trial(run, t, 1000.0, server_settings={"anticached": {name: values[0]}})
    assert set(collect.collect(run)[name]) == {values[0]}, "not what the cell asked for"
    planned = collect.collect(new_run(plan))
    assert set(planned[name]) == set(values)


def test_an_axis_that_only_one_of_two_benchmarks_has_is_refused(workloads: Path) -> None:
    path = workloads / "fig12.yml"
    text = path.read_text()
    assert "  benchmark: [ycsb, tpcc]" in text
    path.write_text(text.replace("  benchmark: [ycsb, tpcc]", "  benchmark: [ycsb, tpcc]\n  key_order: [clustered]"))
    with pytest.raises(InputError, match="tpcc has no such setting, so its cells would be left out"):
        load(workloads, "fig12", "laptop")


def test_an_older_table_is_read_with_empty_columns(new_run: Callable[[Plan], Run], tmp_path: Path) -> None:
    table = collect.collect(new_run(_plan("fig08", scale="smoke")))
    table.drop(columns=["fetch", "restarted_share"]).to_csv(tmp_path / "trials.csv", index=False)
    read = collect.read_csv(tmp_path / "trials.csv")
    assert set(read["fetch"]) == {""}
    assert read["restarted_share"].isna().all()


def test_a_disk_that_failed_its_self_test_is_a_flag_on_its_trials() -> None:
    tests: list[dict[str, Any]] = [
        {"name": "random read", "measured": 500.0, "model": 1000.0, "unit": "IOPS", "ok": False, "tolerance": 0.1},
        {"name": "sequential", "measured": 99.0, "model": 100.0, "unit": "MB/s", "ok": True, "tolerance": 0.1},
    ]
    ok = {"status": "ok", "reason": "", "flags": []}
    found = disk.judge(ok, {}, tests)
    assert (found["status"], found["flags"]) == ("ok", ["disk_unlike_model"])
    assert "1 of 2 figures of its self-test" in found["reason"]
    assert disk.judge(ok, {}, tests[1:]) == ok
    late = {"late": {"operations": 10, "late": 5, "late_share": 0.5, "threshold_us": 1000, "worst_us": 9000}}
    both = disk.judge(ok, late, tests)
    assert (both["status"], both["flags"]) == ("invalid", ["disk_unlike_model", "disk_late"])
    failed = {"status": "failed", "reason": "died", "flags": []}
    assert disk.judge(failed, late, tests) == failed


def test_one_late_operation_of_a_trial_in_memory_is_no_disturbance() -> None:
    def late(operations: int, late: int) -> dict[str, Any]:
        counted = {"operations": operations, "late": late, "late_share": late / operations}
        return {"late": {**counted, "threshold_us": 1000, "worst_us": 1226}}

    assert not disk.problem(late(11, 1))
    assert "27.3% of the emulated disk's 11 operations" in disk.problem(late(11, 3))
    assert not disk.problem(late(1000, 50))
    assert disk.problem(late(1000, 51))


def test_what_emulating_costs_is_no_figure_of_the_drive() -> None:
    cost = {"name": "CPU of the daemon", "measured": 0.1086, "model": 0.1, "unit": "cores", "ok": False}
    late = {"name": "late operations", "measured": 0.2, "model": 0.02, "unit": "share", "ok": False}
    assert (disk.outside([cost]), disk.costly([cost])) == ("", "CPU of the daemon: 0.1086 cores, not 0.1")
    assert (disk.outside([late]), disk.costly([late])) == ("late operations: 0.2 share, not 0.02", "")
    assert disk.costly([{**cost, "ok": True}]) == ""
    ok = {"status": "ok", "reason": "", "flags": []}
    assert disk.judge(ok, {}, [cost]) == ok


def test_the_ablations_share_a_notebook() -> None:
    names = applicable(["fig08", "beyond-alpha", "beyond-disk"], ROOT / "notebooks")
    assert names == ["fig08", "beyond", "beyond-load", "claims"]
    assert applicable(["beyond-load"], ROOT / "notebooks") == ["beyond-load", "beyond", "claims"]
    assert applicable(["fig01-05"], ROOT / "notebooks") == ["fig01-05", "claims"]


def test_an_experiment_may_have_several_notebooks(tmp_path: Path) -> None:
    for name in ("fig06", "fig06-latency", "fig060", "fig07-more", "beyond", "beyond-keys", "claims"):
        (tmp_path / f"{name}.ipynb").touch()
    assert applicable(["fig06"], tmp_path) == ["fig06", "fig06-latency", "claims"]
    assert applicable(["beyond-alpha"], tmp_path) == ["beyond", "beyond-keys", "claims"]
