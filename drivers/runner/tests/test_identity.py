"""What tells code, settings and machines apart, and what is refused to be mixed in one run."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runner import agent, identity, machine, precautions, resume, store
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.hosts import Host
from runner.identity import Code
from runner.inventory import Inventory
from runner.machine import CpuSets
from runner.plan import Plan, make_plan
from runner.store import Run
from runner.workload import Workload

ROOT = Path(__file__).resolve().parents[3]
Record = Callable[..., None]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one file of each kind."""
    root = tmp_path / "checkout"
    for name in ("drivers/loadgen/main.rs", "drivers/runner/runner/sweep.py", "drivers/runner/runner/report.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1")
    _git(root, "init", "-q")
    _commit(root)
    return root


def _git(root: Path, *arguments: str) -> None:
    names = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *names, *arguments], cwd=root, check=True, capture_output=True)


def _commit(root: Path) -> None:
    _git(root, "add", "-A")
    _git(root, "commit", "-q", "-m", "state")


def test_only_files_that_shape_a_figure_change_the_code(checkout: Path) -> None:
    before = identity.code_identity(checkout)
    (checkout / "drivers/runner/runner/report.py").write_text("2")
    (checkout / "README.md").write_text("new")
    after = identity.code_identity(checkout)
    assert (after.shaping, after.dirty) == (before.shaping, True)
    (checkout / "drivers/runner/runner/sweep.py").write_text("2")
    changed = identity.code_identity(checkout)
    assert changed.shaping != before.shaping, "the order and the prewarming shape figures too"
    _commit(checkout)
    committed = identity.code_identity(checkout)
    assert committed.shaping == changed.shaping, "committing what ran does not make it another code"
    assert committed.commit != changed.commit
    (checkout / "drivers/loadgen/new.rs").write_text("untracked")
    assert identity.code_identity(checkout).shaping != committed.shaping


def test_the_real_checkout_has_every_part() -> None:
    files = identity.shaping_files(ROOT)
    for name in ("ansible/deploy.yml", "drivers/loadgen/src/main.rs", "Cargo.lock", "drivers/runner/runner/sweep.py"):
        assert name in files
    assert not [name for name in files if name.startswith("ansible/inventories")], "told apart by their own content"
    assert not [name for name in files if name.endswith((".md", "tests.rs")) or "/tests/" in name], "never measured"
    assert not [name for name in files if name.startswith("anticache-engine/bench")], "what was measured"


def test_an_inventory_is_its_content(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    shutil.copytree(ROOT / "ansible/inventories/local", directory)
    before = identity.inventory_digest(directory)
    assert before == identity.inventory_digest(ROOT / "ansible/inventories/local")
    variables = directory / "group_vars/all.yml"
    variables.write_text(variables.read_text() + "mysql_port: 1\n")
    assert identity.inventory_digest(directory) != before
    hosts = directory / "hosts.yml"
    single = identity.inventory_digest(hosts)
    variables.write_text("mysql_port: 2\n")
    assert identity.inventory_digest(hosts) != single, "Ansible reads the variables beside the file"


def test_a_key_differs_in_all_that_shapes_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Code("c", False, "s")

    def key(**variables: str) -> store.Key:
        machine_name = machine.identity(Host("here").describe(ROOT))
        return resume.key_of("smoke", Inventory(ROOT, "local", variables), "none", code, machine_name)

    assert key() == key()
    assert key(mysql_password="secret") != key()
    assert "secret" not in str(key(mysql_password="secret"))
    here = key()
    monkeypatch.setattr("platform.release", lambda: "9.9.9")
    assert key() != here
    assert "9.9.9" in key().machine


def test_a_machine_is_its_kind_not_itself() -> None:
    """Made anew a virtual machine is the same; another CPU, size or kernel is another machine."""
    facts = {"cpu_model": "A CPU", "cpu_cores": 2, "memory_bytes": 25_276_510_208, "kernel": "6.1.0"}
    name = machine.identity(facts)
    assert name == "A CPU, 2 cores, 24 GiB, kernel 6.1.0"
    assert machine.identity({**facts, "memory_bytes": 25_276_530_688, "hostname": "other", "boot_id": "2"}) == name
    others = ({"cpu_model": "B"}, {"cpu_cores": 4}, {"memory_bytes": 50_000_000_000}, {"kernel": "6.2"})
    assert len({machine.identity({**facts, **changed}) for changed in ({}, *others)}) == 5
    hardware = "A CPU, 2 cores, 24 GiB"
    assert machine.without_kernel(f"{name}; terminals: {name}") == f"{hardware}; terminals: {hardware}"


def test_models_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "processor : 0\ncpu family\t: 6\nmodel\t\t: {}\nmodel name\t: Intel(R) Xeon(R) Processor\nstepping : 2\n"
    names = []
    for model in (143, 207):
        monkeypatch.setattr(agent, "_text_of", {"/proc/cpuinfo": told.format(model)}.get)
        names.append(agent.Agent._cpu_model())
    assert names == [f"Intel(R) Xeon(R) Processor (family 6, model {model})" for model in (143, 207)]


def test_binaries_are_hashed_and_a_stale_one_is_told(tmp_path: Path) -> None:
    source, binary = tmp_path / "with blank.rs", tmp_path / "loadgen"
    source.write_text("fn main() {}")
    binary.write_bytes(b"1")
    assert identity.stale_binary(binary) == "", "without cargo's list nothing is known"
    listed = str(source).replace(" ", "\\ ")
    (tmp_path / "loadgen.d").write_text(f"{binary}: {listed} {tmp_path}/gone.rs\n")
    os.utime(source, ns=(1, 1))
    assert identity.stale_binary(binary) == ""
    later = binary.stat().st_mtime_ns + 1
    os.utime(source, ns=(later, later))
    assert identity.stale_binary(binary) == f"{binary} is older than its source {source}: build it with `make build`"
    first = identity.binaries({"loadgen": binary, "anticached": tmp_path / "none"})
    assert first == {"loadgen": identity.sha256(binary), "anticached": "unknown"}
    binary.write_bytes(b"2")
    os.utime(binary, ns=(later, later))
    assert identity.binaries({"loadgen": binary}) != {"loadgen": first["loadgen"]}


@pytest.fixture
def plan(smoke: Workload) -> Plan:
    return make_plan([smoke], CpuSets("0", "1"), NODE_DISK, systems=["mysql"], where={"data_memory_ratio": ["1"]})


def test_other_code_is_refused_with_its_files(plan: Plan, new_run: Callable[[Plan], Run], record_trial: Record) -> None:
    run = new_run(plan)
    old, present = Code("a" * 40, False, "old"), Code("b" * 40, True, "new")
    run.keep_code(old, {"ansible/deploy.yml": "1", "Cargo.lock": "1"})
    record_trial(run, plan.trials[0], 100.0, code=old)
    record_trial(run, plan.trials[1], None, status="failed", code=old)
    files = {"ansible/deploy.yml": "2", "Cargo.lock": "1", "drivers/loadgen/new.rs": "1"}
    with pytest.raises(InputError) as caught:
        resume.refuse_other_code(run, present, files, plan.trials[1:2])
    message = str(caught.value)
    assert "1 by commit aaaaaaaaaaaa, which differs in ansible/deploy.yml, drivers/loadgen/new.rs" in message
    assert "the present commit bbbbbbbbbbbb with changes" in message
    assert "run --experiment fig06 --scale smoke --fresh`" in message
    assert "--mixed-code" in message
    resume.refuse_other_code(run, present, files, [])
    resume.refuse_other_code(run, old, {}, plan.trials[1:2])
    resume.refuse_other_code(run, present, files, plan.trials[:2])  # nothing of the old code is kept


def test_other_conditions_are_refused_by_name(plan: Plan, new_run: Callable[[Plan], Run]) -> None:
    run = new_run(plan)
    resume.refuse_other_conditions(run, dataclasses.replace(run.key, shaping_code="another"))
    wanted = dataclasses.replace(run.key, machine="another machine", node_variables="other")
    with pytest.raises(InputError) as caught:
        resume.refuse_other_conditions(run, wanted)
    assert "machine: a machine, now another machine" in str(caught.value)
    assert "variables given with --node-var: variables-1, now other" in str(caught.value)
    assert "--fresh" in str(caught.value)


def test_a_process_with_a_used_id_is_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Host("here")
    with subprocess.Popen(["sleep", "60"]) as server:
        seen = here.processes({"sleepd": server.pid, "gone": 2**22 + 1})
        assert seen.dead() == ["gone"]
        server.kill()
        while not Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].strip().startswith("Z"):
            pass
        assert seen.dead() == ["sleepd", "gone"], "a zombie does not run"
    # Another process under the id that was looked up: its start is not the one that was seen.
    mine = here.processes({"me": os.getpid()})
    assert mine.dead() == []
    ticks = agent.start_ticks(os.getpid())
    assert ticks is not None
    monkeypatch.setattr(agent, "start_ticks", lambda _pid: ticks + 1)
    assert mine.dead() == ["me"]


def test_partitions_need_a_cpu_each(smoke: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    values = smoke.values.model_copy(update={"partitions": 6})
    six = dataclasses.replace(smoke, values=values)
    found = precautions.of_plan(make_plan([six], CpuSets("0,2", "1"), NODE_DISK), CpuSets("0,2", "1"))
    assert found[0].startswith("6 partitions on the 2 CPUs of the server's set (0,2)")
    assert precautions.of_plan(make_plan([six], CpuSets("0-5", "6"), NODE_DISK), CpuSets("0-5", "6")) == []
    only_mysql = make_plan([six], CpuSets("0", "1"), NODE_DISK, systems=["mysql"])
    assert precautions.of_plan(only_mysql, CpuSets("0", "1")) == [], "MySQL has no partitions"
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr("os.getloadavg", lambda: (0.6 * cores, 0.0, 0.0))
    nodes = {"db1": Host("db1").describe(ROOT)}
    busy = precautions.before_a_sweep(only_mysql, CpuSets("0", "1"), Path("/nowhere"), nodes)
    assert len(busy) == 1
    assert "the load average of db1 is" in busy[0]


def test_the_machine_is_described_with_what_moves_figures(tmp_path: Path) -> None:
    assert machine.rustc(tmp_path) == "unknown"
    toolchain = tmp_path / "with-rust"
    (toolchain / ".tools").mkdir(parents=True)
    (toolchain / "rustc").write_text("#!/bin/sh\necho rustc 1.2.3\n")
    (toolchain / "rustc").chmod(0o755)
    (toolchain / ".tools/cargo-directory").write_text(f"{toolchain}\n")
    assert machine.rustc(toolchain) == "rustc 1.2.3"
    described = Host("here").describe(tmp_path / "not" / "there")
    assert len(described["load_average"]) == 3
    assert described["transparent_huge_pages"]
    assert described["memory_bytes"] == psutil.virtual_memory().total
    assert described["cpu_cores"] == len(described["cpus"]) == len(os.sched_getaffinity(0))
    assert described["node_root_device"]["free_bytes"] > 0


@pytest.mark.parametrize(("listed", "count"), [("0", 1), ("0-3", 4), ("0,2-3,8", 4)])
def test_count_cpus(listed: str, count: int) -> None:
    assert machine.count_cpus(listed) == count
