"""Planning: counts, order, the same operations for every system, and hashes that stay what they are."""

from __future__ import annotations

import dataclasses
from itertools import groupby

import pytest

from runner.axes import Cell
from runner.disk import NODE_DISK, Disk
from runner.errors import InputError
from runner.estimate import estimate
from runner.machine import CpuSets, halves
from runner.plan import make_deployment, make_plan, parse_where
from runner.systems import SYSTEMS
from runner.workload import Workload

CPUS = CpuSets("0", "1")
HDD = Disk("hdd-7200", rotational=True)


def test_counts_of_the_papers_grid(laptop: Workload) -> None:
    plan = make_plan([laptop], CPUS, NODE_DISK)
    cells = {t.cell for t in plan.trials}
    # 3 mixes x 5 skews x 4 ratios for four systems, and 3 x 5 for the engine without anti-caching
    assert len(cells) == 4 * 60 + 15
    assert len(plan.trials) == 3 * len(cells)
    assert len(plan.deployments) == 4 * 4 + 1
    assert {c.data_memory_ratio for c in cells if c.system == "anticache-off"} == {1.0}
    assert len({t.hash for t in plan.trials}) == len(plan.trials)


def test_order_spreads_trials_and_rotates_systems(laptop: Workload) -> None:
    plan = make_plan([laptop], CPUS, NODE_DISK)
    assert [t.index for t in plan.trials] == sorted(t.index for t in plan.trials)
    for index in range(3):
        of_trial = [t for t in plan.trials if t.index == index]
        assert [t.cell.data_memory_ratio for t in of_trial] == sorted(t.cell.data_memory_ratio for t in of_trial)
        at_one = [t.cell.system for t in of_trial if t.cell.data_memory_ratio == 1]
        turns = [system for system, _ in groupby(at_one)]
        assert turns == list(SYSTEMS[index:] + SYSTEMS[:index])


def test_cells_of_a_deployment_come_in_the_same_order_for_every_system(laptop: Workload) -> None:
    plan = make_plan([laptop], CPUS, NODE_DISK)
    orders: dict[tuple[float, int], set[tuple[tuple[object, object], ...]]] = {
        (deployment.data_memory_ratio, trials[0].index): set() for deployment, trials in plan.batches(plan.trials)
    }
    for deployment, trials in plan.batches(plan.trials):
        order = tuple((t.cell.mix, t.cell.skew) for t in trials)
        orders[deployment.data_memory_ratio, trials[0].index].add(order)
    assert all(len(found) == 1 for found in orders.values())
    assert len({next(iter(found)) for found in orders.values()}) > 1, "the order has to differ between trials"


def test_all_systems_get_the_same_operations(laptop: Workload) -> None:
    plan = make_plan([laptop], CPUS, NODE_DISK)
    seeds: dict[tuple[object, ...], set[int]] = {}
    for t in plan.trials:
        seeds.setdefault((t.cell.mix, t.cell.skew, t.cell.data_memory_ratio, t.index), set()).add(t.seed)
        assert t.spec["seed"] == t.seed
    assert all(len(found) == 1 for found in seeds.values())
    assert len({next(iter(found)) for found in seeds.values()}) == len(seeds), "another cell or trial, another seed"
    specs = [
        {k: v for k, v in t.spec.items() if k != "system"}
        for t in plan.trials
        if (t.index, t.cell.mix, t.cell.skew, t.cell.data_memory_ratio) == (0, "read-only", 1.5, 1.0)
    ]
    assert len(specs) == len(SYSTEMS)
    assert all(spec == specs[0] for spec in specs)


def test_hashes_are_stable(smoke: Workload) -> None:
    # Golden: a change of these means that every recorded trial counts no more. Raise TRIAL_FORMAT when that is meant.
    plan = make_plan([smoke], CPUS, NODE_DISK)
    by_cell = {t.cell: t.hash for t in plan.trials}
    golden = {
        Cell("mysql", "read-only", 1.5, 1.0): "ac53cab4e959d042",
        Cell("mysql-memcached", "read-heavy", 0.5, 8.0): "60e90c11838ac9b1",
        Cell("anticache-alru", "write-heavy", 0.5, 8.0): "3cbad5d8ebd4368d",
        Cell("anticache-off", "read-only", 0.5, 1.0): "48fb344543b274f6",
    }
    assert {cell: by_cell[cell] for cell in golden} == golden


def _with(workload: Workload, **values: object) -> Workload:
    return dataclasses.replace(workload, values=workload.values.model_copy(update=values))


@pytest.mark.parametrize(
    ("change", "systems_changed"),
    [
        ({"measure_s": 3.0}, set(SYSTEMS)),
        ({"records": 200_000}, set(SYSTEMS)),
        ({"eviction_block_bytes": 131072}, {"anticache-lru", "anticache-alru"}),
        ({"mysql_redo_log_bytes": 8 << 20}, {"mysql", "mysql-memcached"}),
        ({"partitions": 2}, {"anticache-lru", "anticache-alru", "anticache-off", "mysql", "mysql-memcached"}),
        ({"loading_threads": 8}, set()),
    ],
)
def test_what_shapes_a_result_changes_its_hash(
    smoke: Workload, change: dict[str, object], systems_changed: set[str]
) -> None:
    before = {t.cell: t.hash for t in make_plan([smoke], CPUS, NODE_DISK).trials}
    after = {t.cell: t.hash for t in make_plan([_with(smoke, **change)], CPUS, NODE_DISK).trials}
    assert {cell.system for cell in before if before[cell] != after[cell]} == systems_changed


def test_cpus_and_disk_shape_the_hash(smoke: Workload) -> None:
    here = {t.hash for t in make_plan([smoke], CPUS, NODE_DISK).trials}
    assert here.isdisjoint(t.hash for t in make_plan([smoke], CpuSets("0-3", "4-7"), NODE_DISK).trials)
    assert here.isdisjoint(t.hash for t in make_plan([smoke], CPUS, HDD).trials)


def _at(system: str, ratio: float) -> Cell:
    return Cell(system, "read-only", 1.0, ratio)


def test_the_budget_is_split_as_the_contract_says(laptop: Workload) -> None:
    # 156 250 000 bytes, to the nearest 2 MiB: both shares of MySQL + Memcached are whole MiB then.
    budget_bytes = 150 << 20
    mysql = make_deployment(laptop, _at("mysql", 8.0), CPUS, NODE_DISK).values
    assert (mysql["memory_budget_bytes"], mysql["mysql_buffer_pool_bytes"]) == (budget_bytes, budget_bytes)
    both = make_deployment(laptop, _at("mysql-memcached", 8.0), CPUS, NODE_DISK).values
    assert both["mysql_buffer_pool_bytes"] + both["memcached_bytes"] == budget_bytes
    assert both["memcached_bytes"] == budget_bytes // 2
    assert make_deployment(laptop, _at("anticache-lru", 8.0), CPUS, NODE_DISK).values["engine"]["anticaching"] == "lru"


def test_datasets_are_shared_within_a_family_only(laptop: Workload) -> None:
    of = {system: make_deployment(laptop, _at(system, 2.0), CPUS, NODE_DISK).dataset for system in SYSTEMS}
    assert of["mysql"] == of["mysql-memcached"] != of["anticache-lru"] == of["anticache-off"]


def test_selection(smoke: Workload) -> None:
    plan = make_plan([smoke], CPUS, NODE_DISK, systems=["mysql"], where=parse_where(["skew=1.5,0.50", "mix=read-only"]))
    assert {(t.cell.system, t.cell.skew) for t in plan.trials} == {("mysql", 1.5), ("mysql", 0.5)}
    whole = {t.hash for t in make_plan([smoke], CPUS, NODE_DISK).trials}
    assert {t.hash for t in plan.trials} <= whole, "a selection must not change the trials' identity"


@pytest.mark.parametrize(
    ("systems", "where", "message"),
    [
        (["mysqk"], [], "system 'mysqk' is not in the grid (did you mean 'mysql'?)"),
        (None, ["skew=1.25"], "skew '1.25' is not in the grid"),
        (["anticache-off"], ["data_memory_ratio=8"], "leaves no cell"),
        (None, ["skw=1"], "unknown axis (did you mean 'skew'?)"),
        (None, ["skew"], "expected AXIS=VALUE"),
    ],
)
def test_bad_selections(smoke: Workload, systems: list[str] | None, where: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_plan([smoke], CPUS, NODE_DISK, systems=systems, where=parse_where(where))
    assert message in str(caught.value)


def test_the_estimate_counts_time_and_kept_datasets(smoke: Workload) -> None:
    plan = make_plan([smoke], CPUS, NODE_DISK)
    cost = estimate(plan, plan.trials, set())
    assert (cost.trials, cost.deployments) == (54, 9)
    assert cost.seconds > 54 * 2.0
    dataset = next(d.dataset for d in plan.deployments.values() if d.system == "mysql")
    assert estimate(plan, plan.trials, {dataset}).seconds < cost.seconds


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        ([0, 1], CpuSets("0", "1")),
        ([0, 1, 2, 3], CpuSets("0-1", "2-3")),
        ([0, 2, 3, 5, 6], CpuSets("0,2", "3,5-6")),
        ([4], CpuSets("4", "4", shared=True)),
    ],
)
def test_cpu_sets(cpus: list[int], expected: CpuSets) -> None:
    assert halves(cpus) == expected
