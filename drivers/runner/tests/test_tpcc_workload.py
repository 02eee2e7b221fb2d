"""TPC-C as data: what is loaded at a ratio, which memory it gets, what is refused, how it is planned."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from runner.axes import Cell
from runner.benchmarks.tpcc import DISTRICTS, Tpcc
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.estimate import estimate
from runner.machine import CpuSets
from runner.plan import all_cells, make_deployment, make_plan
from runner.systems import SYSTEMS
from runner.workload import Workload, load

ROOT = Path(__file__).resolve().parents[3]
CPUS = CpuSets("0", "1")
MIB = 1 << 20
SCALES = ("tiny", "smoke", "laptop", "paper")


@pytest.fixture
def workloads(workloads: Path) -> Path:
    """A copy to be spoiled, with a second ratio at scale smoke."""
    path = workloads / "scales.yml"
    head, smoke, rest = path.read_text().partition("  smoke:\n")
    assert "data_memory_ratio: [1]\n" in rest
    path.write_text(head + smoke + rest.replace("data_memory_ratio: [1]\n", "data_memory_ratio: [1, 4]\n", 1))
    return workloads


@pytest.fixture
def laptop7() -> Workload:
    return load(ROOT / "workloads", "fig07", "laptop")


def _section(workload: Workload) -> Tpcc:
    section = workload.section("tpcc")
    assert isinstance(section, Tpcc)
    return section


@pytest.mark.parametrize("scale", SCALES)
def test_every_warehouse_has_terminals(scale: str) -> None:
    for name in ("fig07", "fig12"):
        workload = load(ROOT / "workloads", name, scale)
        trials = [t for t in make_plan([workload], CPUS, NODE_DISK).trials if t.spec["benchmark"] == "tpcc"]
        warehouses = workload.values.tpcc.warehouses
        for trial in trials:
            assert warehouses <= trial.spec["terminals"] <= DISTRICTS * warehouses
            made = make_deployment(workload, trial.cell, CPUS, NODE_DISK)
            assert made.values["terminals"] == trial.spec["terminals"], "memory and connections follow"
    ycsb = [t for t in make_plan([workload], CPUS, NODE_DISK).trials if t.spec["benchmark"] == "ycsb"]
    assert {t.spec["terminals"] for t in ycsb} == {64}, "of YCSB at every scale"


def test_figures_share_their_benchmarks_sections(workloads: Path) -> None:
    twelve = load(workloads, "fig12", "tiny").experiment
    assert twelve.tpcc == load(workloads, "fig07", "tiny").experiment.tpcc
    assert twelve.ycsb == load(workloads, "fig06", "tiny").experiment.ycsb
    seven = workloads / "fig07.yml"
    text = seven.read_text()
    seven.write_text(text.replace("order: 1000", "order: 0"))
    with pytest.raises(InputError, match=r"fig07\.yml:\d+: tpcc\.stored_bytes\.order: 0 is not allowed"):
        load(workloads, "fig12", "tiny")
    seven.write_text(text)
    path = workloads / "fig12.yml"
    for named, problem in (("fig77", "there is no experiment 'fig77' .did you mean 'fig07'"), ("fig06", "no section")):
        path.write_text(path.read_text().replace("tpcc: fig07", f"tpcc: {named}"))
        with pytest.raises(InputError, match=rf"fig12\.yml:\d+: tpcc: .*{problem}"):
            load(workloads, "fig12", "tiny")
        path.write_text(path.read_text().replace(f"tpcc: {named}", "tpcc: fig07"))


@pytest.mark.parametrize("scale", SCALES)
def test_a_ratio_is_reached_by_orders(scale: str) -> None:
    workload = load(ROOT / "workloads", "fig07", scale)
    section, values = _section(workload), workload.values
    whole = section.data(values, 1.0)
    assert section.orders_per_district(values, 1.0) == values.tpcc.orders_per_district
    assert whole.stored_bytes == section.budget_bytes(values, 1.0, "mysql"), "at 1x everything fits, and nothing more"
    districts = values.tpcc.warehouses * DISTRICTS
    for ratio in (2.0, 4.0, 8.0):
        data = section.data(values, ratio)
        off = abs(data.stored_bytes - ratio * whole.stored_bytes)
        assert off <= districts * section.stored_bytes.order / 2, "nearer than half an order of each district"
        assert {k: v for k, v in data.identity.items() if v != whole.identity[k]}.keys() == {"orders_per_district"}
        beyond = (data.identity["orders_per_district"] - values.tpcc.orders_per_district) * districts
        keys_bytes = beyond * section.stored_bytes.evicted_order
        assert section.budget_bytes(values, ratio, "mysql") == whole.stored_bytes + keys_bytes


def test_all_systems_have_the_same_memory_and_only_off_has_room_to_grow(laptop7: Workload) -> None:
    at = {
        (system, ratio): make_deployment(laptop7, Cell(system, None, None, ratio), CPUS, NODE_DISK).values
        for system in SYSTEMS
        for ratio in (1.0, 8.0)
    }
    for ratio in (1.0, 8.0):
        budgets = {at[s, ratio]["memory_budget_bytes"] for s in SYSTEMS if s != "anticache-off"}
        assert len(budgets) == 1
        assert budgets.pop() % (2 * MIB) == 0
    room = laptop7.values.tpcc.growth_bytes
    mysql, off = (at[s, 1.0]["memory_budget_bytes"] for s in ("mysql", "anticache-off"))
    assert off - mysql == room > 0
    both = at["mysql-memcached", 8.0]
    assert both["memcached_bytes"] + both["mysql_buffer_pool_bytes"] == both["memory_budget_bytes"]
    recorded = at["mysql", 8.0]["data"]
    assert recorded["stored_bytes"] / recorded["row_memory_bytes"] == pytest.approx(8, rel=1e-3)


def test_a_trial_has_a_deployment_of_its_own_and_the_rows_of_its_ratio(laptop7: Workload) -> None:
    plan = make_plan([laptop7], CPUS, NODE_DISK)
    assert len(plan.trials) == 3 * (4 * 4 + 1)
    batches = list(plan.batches(plan.trials))
    assert [len(on_it) for _, on_it in batches] == [1] * len(plan.trials)
    orders = {t.cell.data_memory_ratio: t.spec["tpcc"]["orders_per_district"] for t in plan.trials}
    assert sorted(orders.values()) == [orders[r] for r in (1.0, 2.0, 4.0, 8.0)]
    for trial in plan.trials:
        assert trial.spec["tpcc"]["population_seed"] == laptop7.experiment.seed, "the same rows in every trial"
        assert trial.spec["tpcc"]["orders_per_district"] == orders[trial.cell.data_memory_ratio]
        assert "ycsb" not in trial.spec
        assert trial.record()["cell"].keys() == {"system", "data_memory_ratio"}


def test_trials_of_one_deployment_one_after_another_are_still_batches_of_one(laptop7: Workload) -> None:
    plan = make_plan([laptop7], CPUS, NODE_DISK, systems=["mysql"], where={"data_memory_ratio": ["1"]})
    assert len({t.deployment for t in plan.trials}) == 1
    assert [len(on_it) for _, on_it in plan.batches(plan.trials)] == [1, 1, 1]


def test_other_data_is_another_data_set(laptop7: Workload) -> None:
    def dataset(workload: Workload, system: str = "mysql", ratio: float = 2.0) -> tuple[str, str]:
        made = make_deployment(workload, Cell(system, None, None, ratio), CPUS, NODE_DISK)
        return made.dataset, made.content

    mysql, content = dataset(laptop7)
    assert dataset(laptop7, "mysql-memcached") == (mysql, content)
    other_family = dataset(laptop7, "anticache-lru")
    assert other_family[0] != mysql
    assert other_family[1] == content, "the same rows"
    assert dataset(laptop7, ratio=4.0)[1] != content
    size = laptop7.values.tpcc
    for change in ({"warehouses": 11}, {"items": 9999}, {"customers_per_district": 299}, {"orders_per_district": 1201}):
        values = laptop7.values.model_copy(update={"tpcc": size.model_copy(update=change)})
        assert dataset(dataclasses.replace(laptop7, values=values))[1] != content, change
    seeded = laptop7.experiment.model_copy(update={"seed": 1})
    assert dataset(dataclasses.replace(laptop7, experiment=seeded))[1] != content


def test_other_ddl_is_another_data_set(workloads: Path, laptop7: Workload) -> None:
    (workloads / "schemas" / "tpcc.sql").write_text("-- other\n" + laptop7.schemas["tpcc"].read_text())
    other = load(workloads, "fig07", "laptop")
    cell = Cell("mysql", None, None, 1.0)
    assert (
        make_deployment(other, cell, CPUS, NODE_DISK).content != make_deployment(laptop7, cell, CPUS, NODE_DISK).content
    )


def test_figure_12_runs_both_benchmarks_each_on_its_axes() -> None:
    workload = load(ROOT / "workloads", "fig12", "smoke")
    cells = all_cells(workload)
    assert cells == [
        Cell("anticache-alru", "read-heavy", 1.0, 2.0, "ycsb"),
        Cell("anticache-alru", None, None, 2.0, "tpcc"),
    ]
    assert [c.label() for c in cells] == ["anticache-alru ycsb read-heavy s=1 2x", "anticache-alru tpcc 2x"]
    plan = make_plan([workload], CPUS, NODE_DISK)
    assert [d.benchmark for d in plan.deployments.values()] == ["ycsb", "tpcc"]
    assert [t.spec["benchmark"] for t in plan.trials] == ["ycsb", "tpcc"]


def test_figures_that_share_a_deployment_keep_their_own_cells() -> None:
    both = [load(ROOT / "workloads", name, "tiny") for name in ("fig07", "fig12")]
    plan = make_plan(both, CPUS, NODE_DISK, systems=["anticache-alru"], where={"data_memory_ratio": ["2"]})
    seven, _, twelve = plan.trials
    assert seven.deployment == twelve.deployment
    assert (seven.experiment, twelve.experiment) == ("fig07", "fig12")
    assert seven.hash != twelve.hash
    assert estimate(plan, plan.trials, set()).trials == 3


@pytest.mark.parametrize("scale", SCALES)
def test_the_estimate_counts_every_kept_data_set(scale: str) -> None:
    workload = load(ROOT / "workloads", "fig07", scale)
    plan = make_plan([workload], CPUS, NODE_DISK, systems=["mysql", "anticache-alru"])
    cost = estimate(plan, plan.trials, set())
    stored = sum(
        workload.section("tpcc").data(workload.values, r).stored_bytes
        for r in workload.grid.values("data_memory_ratio")
    )
    assert cost.disk_bytes > 1.25 * stored
    assert estimate(plan, plan.trials, {d.dataset for d in plan.deployments.values()}).seconds < cost.seconds


CASES = [
    ("scales.yml", "warehouses: 8\n", "warehouses: 0\n", ["smoke.tpcc.warehouses", "0 is not allowed", "1 to 32767"]),
    ("scales.yml", "warehouses: 8\n", "warehouses: 40000\n", ["smoke.tpcc.warehouses", "40000", "1 to 32767"]),
    ("scales.yml", "warehouses: 8\n", "warehouses: 100\n", ["warehouses: 64 terminals for 100 warehouses", "leave 36"]),
    (
        "scales.yml",
        "      warehouses: 8\n",
        "      terminals: 7\n      warehouses: 8\n",
        ["tpcc.terminals: 7 terminals for 8 warehouses", "leave 1 of them", "as 8 to 80"],
    ),
    ("scales.yml", "orders_per_district: 200\n", "orders_per_district: 20000000\n", ["20000000", "30 to 10000000"]),
    ("scales.yml", "orders_per_district: 200\n", "orders_per_district: 30\n", ["static tables take 4070000", "needed"]),
    (
        "scales.yml",
        "orders_per_district: 200\n",
        "orders_per_district: 9000000\n",
        ["data_memory_ratio 4 would load 36", "more than the 10000000"],
    ),
    ("scales.yml", "      warehouses: 8\n", "      warehouse: 8\n", ["did you mean 'warehouses'", "allowed here"]),
    ("scales.yml", "data_memory_ratio: [1, 4]", "skew: [1.0]", ["fig07.grid.skew", "no axis", "data_memory_ratio"]),
    ("fig07.yml", "access: home-warehouse", "access: home-warehose", ["did you mean 'home-warehouse'", "remote"]),
    ("fig07.yml", "wait_factor: 0.0", "wait_factor: -1.0", ["tpcc.wait_factor", "-1.0", "0 to 1"]),
    ("fig07.yml", "evicted_order: 400", "evicted_order: 4000", ["tpcc.stored_bytes.evicted_order", "4000 is not less"]),
    ("fig07.yml", "  data_memory_ratio: [1, 2", "  skew: [1.0]\n  data_memory_ratio: [1, 2", ["grid.skew", "of ycsb"]),
    ("fig07.yml", "benchmark: tpcc", "benchmark: tpcd", ["'tpcd'", "did you mean 'tpcc'"]),
    ("fig07.yml", "benchmark: tpcc\n", "benchmark: ycsb\n", ["grid.mix", "missing"]),
    ("fig07.yml", "schema: schemas/tpcc.sql", "schema: schemas/tpc.sql", ["tpcc.schema", "no such file"]),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), CASES, ids=[f"{c[0]}-{c[2]}".strip() for c in CASES])
def test_bad_values(workloads: Path, name: str, old: str, new: str, expected: list[str]) -> None:
    path = workloads / name
    text = path.read_text()
    # Other scales may have the same values.
    at = text.index("\n  smoke:\n") if name == "scales.yml" else 0
    assert old in text[at:], old
    path.write_text(text[:at] + text[at:].replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load(workloads, "fig07", "smoke")
    message = str(caught.value)
    assert re.search(rf"{re.escape(name)}:\d+: ", message), message
    for part in expected:
        assert part in message, message


def test_a_ratio_below_the_static_tables_names_what_is_needed(workloads: Path) -> None:
    path = workloads / "fig07.yml"
    path.write_text(path.read_text().replace("data_memory_ratio: [1, 2, 4, 8]", "data_memory_ratio: [0.1, 1, 2, 4, 8]"))
    scales = workloads / "scales.yml"
    scales.write_text(scales.read_text().replace("data_memory_ratio: [1, 4]", "data_memory_ratio: [0.1, 1]"))
    with pytest.raises(InputError) as caught:
        load(workloads, "fig07", "smoke")
    assert re.search(
        r"ratio 0\.1 leave 2007000 bytes of memory for rows; the static tables take 4070000, and \d+ are needed",
        str(caught.value),
    )
