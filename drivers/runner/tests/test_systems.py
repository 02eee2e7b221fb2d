"""Every part knows the same systems, each by what it needs to know of it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from runner.axes import Cell
from runner.disk import NODE_DISK
from runner.machine import CpuSets
from runner.plan import make_deployment
from runner.systems import ADAPTERS, EVICTING, KINDS, SYSTEMS, WITHOUT_EVICTION, Kind, adapter_of, family
from runner.workload import Workload

ROOT = Path(__file__).resolve().parents[3]
OWN_ADAPTER = re.compile(r'static ADAPTER: Adapter =\s*Adapter \{\s*name: "([^"]+)",\s*systems: &\[([^\]]*)\]')
CPUS = CpuSets("0", "1")


def test_the_runner_knows_each_of_its_systems() -> None:
    assert list(KINDS) == list(SYSTEMS)
    assert {WITHOUT_EVICTION, *EVICTING} == {system for system in SYSTEMS if family(system) == "anticache"}
    assert family("h-store") == "", "of another installation: neither MySQL nor the engine"


def test_ansible_has_roles_for_them() -> None:
    variables = YAML(typ="safe").load(ROOT / "ansible" / "group_vars" / "all.yml")
    assert list(variables["system_roles"]) == list(SYSTEMS)
    provisioned = YAML(typ="safe").load(ROOT / "ansible" / "site.yml")[0]["roles"]
    for role in {role for roles in variables["system_roles"].values() for role in roles}:
        assert {"role": role} in provisioned
        defaults = YAML(typ="safe").load(ROOT / "ansible" / "roles" / role / "defaults" / "main.yml")
        assert {f"{role}_daemon", f"{role}_endpoint"} <= set(defaults)


def test_loadgen_has_adapters_for_them() -> None:
    found: dict[str, set[str]] = {}
    for path in (ROOT / "drivers" / "loadgen" / "src" / "systems").rglob("*.rs"):
        for name, systems in OWN_ADAPTER.findall(path.read_text(encoding="utf-8")):
            found[name] = set(re.findall(r'"([^"]+)"', systems))
    assert set(ADAPTERS) < set(found)
    for system in SYSTEMS:
        assert system in found[adapter_of(system)]


def test_what_others_are_set_to_does_not_shape_the_trials_of_a_new_store(
    smoke: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deployed(**values: object) -> str:
        changed = dataclasses.replace(smoke, values=smoke.values.model_copy(update=values))
        return make_deployment(changed, Cell("mysql", "read-only", 1.0, 1.0), CPUS, NODE_DISK).id

    as_mysql = deployed()
    assert deployed(mysql_redo_log_bytes=8 << 20) != as_mysql
    monkeypatch.setitem(KINDS, "mysql", Kind("another", "another"))
    as_another = deployed()
    assert as_another != as_mysql, "its data set is another one"
    assert deployed(mysql_redo_log_bytes=8 << 20, eviction_block_bytes=131072) == as_another
    assert deployed(partitions=2) != as_another
