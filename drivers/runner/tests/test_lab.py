"""Two lanes on four hosts over real SSH: hosts are namespaces of this machine, the controller is the machine itself.

Provisioned twice, checked, swept, with a node that is lost in the middle, and refused where nodes differ. The tests
build on each other in order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import daemons
import pandas as pd
import pytest
from netlab import SSHD, NetLab

from runner import agent, collect
from runner.files import read_json

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

ROOT = Path(__file__).resolve().parents[3]
LANES = {"a": ("db1", "client1"), "b": ("db2", "client2")}
LOST_LIMIT_S = agent.SILENCE_LIMIT_S + 30.0
"""A node that was cut off is free when its agent has heard nothing for so long, and has ended what it started."""
SELECTION = ("--scale", "tiny", "--where", "data_memory_ratio=2")


class Lab:
    """The hosts, an inventory of them, and the commands on it."""

    def __init__(self, place: Path) -> None:
        assert Path(SSHD).is_file(), f"{SSHD} is missing: `make test` installs it, or apt-get install openssh-server"
        self.place = place
        self.net = NetLab(place, ["db1", "db2", "client1", "client2"])
        self.inventory = place / "inventory"
        self.results = place / "results"
        (self.inventory / "group_vars").mkdir(parents=True)
        self.write_inventory()
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}/drivers/runner:{ROOT}/notebooks",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(place / "cp"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible" / "ansible.cfg"),
        }

    def write_inventory(self, **of_db2: str) -> None:
        groups: dict[str, dict[str, dict[str, dict[str, str]]]] = {"dbms": {"hosts": {}}, "clients": {"hosts": {}}}
        for lane, members in LANES.items():
            for group, name in zip(groups, members, strict=True):
                host = self.net.hosts[name]
                more = of_db2 if name == "db2" else {}
                groups[group]["hosts"][name] = {"ansible_host": host.address, "lane": lane, **more}
        variables = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.net.key),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile='{self.net.known_hosts}'",
            "node_root": f"{self.place}/{{{{ inventory_hostname }}}}/var",
            "node_tools": f"{self.place}/{{{{ inventory_hostname }}}}/tools",
            "node_become": False,
            "node_user": "root",
            "node_address": "{{ ansible_host }}",
            "server_cpus": "0",
            "client_cpus": "1",
            "mysql_port": 23061,
            "memcached_port": 23062,
            "anticached_port": 23063,
            "client_addresses": [f"{self.net.network}.1", *(self.net.hosts[c].address for _, c in LANES.values())],
            "anticached_binary": "{{ node_tools }}/anticached",
            "spindle_binary": "{{ node_tools }}/spindle",
        }
        (self.inventory / "hosts.yml").write_text(json.dumps(groups))
        (self.inventory / "group_vars" / "all.yml").write_text(json.dumps(variables))

    def ansible(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(Path(sys.executable).parent / "ansible-playbook", "--inventory", self.inventory),
                *("-e", f"control_root={self.place}/control/{{{{ lane }}}}", *arguments),
            ],
            cwd=ROOT / "ansible",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def start(self, verb: str, *arguments: str) -> subprocess.Popen[str]:
        where = ["--results", str(self.results), "--inventory", str(self.inventory)]
        where.append(f"--node-var=control_root={self.place}/control/{{{{ lane }}}}")
        command = [sys.executable, "-m", "runner", verb, *where, "--no-figures", *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def call(self, verb: str, *arguments: str, on_line: Callable[[str], None] = lambda _: None) -> tuple[int, str]:
        """Run a command to its end; `on_line` sees what it prints as it comes."""
        lines = []
        with self.start(verb, *arguments) as process:
            limit = threading.Timer(200, process.kill)
            limit.start()
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                on_line(line)
            limit.cancel()
        return process.returncode, "".join(lines)

    def table(self) -> pd.DataFrame:
        return collect.read(self.run)

    @property
    def run(self) -> Path:
        return (self.results / "latest").resolve()

    def environments(self) -> list[dict[str, object]]:
        return [read_json(p) for p in sorted(self.run.glob("trials/*/environment.json"))]

    def close(self) -> None:
        """End the hosts, and remove the control groups of servers that died with theirs."""
        self.net.close()
        for state in self.place.glob("*/var/*/*.daemon.json"):
            group = daemons.group_of_state(state)
            for _ in range(100):
                try:
                    daemons.release(group)
                    break
                except daemons.DaemonError:  # its processes take a moment to be gone
                    time.sleep(0.1)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("lab")
    made = Lab(place)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(place, ignore_errors=True)


def recap(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Return the changes that a successful play reports, by host."""
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: int(changed) for name, changed in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", done.stdout, re.M)}


def test_provisioning_changes_every_node_once(lab: Lab) -> None:
    names = {name for members in LANES.values() for name in members}
    fresh = recap(lab.ansible("site.yml", "--check", "--limit", "db1,client1"))
    assert set(fresh) == {"db1", "client1"}, "also a fresh node can be checked"
    assert not (lab.place / "db1" / "var").exists()
    first = recap(lab.ansible("site.yml"))
    assert set(first) == names
    assert first["db1"] > 0
    assert first["db2"] > 0
    assert recap(lab.ansible("site.yml")) == dict.fromkeys(names, 0)
    assert recap(lab.ansible("site.yml", "--check")) == dict.fromkeys(names, 0)


def test_both_lanes_work_on_one_sweep(lab: Lab) -> None:
    seen: dict[str, list[str]] = {}

    def look(line: str) -> None:
        if re.search(r"[ab]: anticache-\S+ read-heavy s=1 2x$", line.rstrip()):
            for name, host in lab.net.hosts.items():
                seen.setdefault(name, []).extend(host.listening())

    systems = "mysql-memcached,anticache-alru"
    code, printed = lab.call("run", *SELECTION, "--systems", systems, on_line=look)
    assert code == 0, printed
    table = lab.table()
    assert (table["status"] == "ok").all(), table[["system", "status", "reason"]].to_string()
    assert len(table) == 2
    assert set(table["lane"]) == set(LANES), "both did work"
    for lane, members in LANES.items():
        hosts = table[table["lane"] == lane][["db_node", "client_node"]].drop_duplicates()
        assert hosts.to_numpy().tolist() == [list(members)]
    assert (table["memory_peak_bytes"] > 1_000_000).all(), "read on the DB node"
    assert (table["memory_limit_bytes"] > table["memory_peak_bytes"]).all(), "enforced there"
    assert table["server_cpus"].eq("0").all()
    for record in lab.environments():
        assert record["client_machine"]["hostname"] == record["hosts"]["clients"]  # type: ignore[index]
        assert record["machine"]["hostname"] == record["hosts"]["dbms"]  # type: ignore[index]
    meta = read_json(lab.run / "run.json")
    assert {lane: list(kept["hosts"].values()) for lane, kept in meta["lanes"].items()} == {
        lane: list(members) for lane, members in LANES.items()
    }
    for name, host in lab.net.hosts.items():
        ports = ("22", "23061", "23062", "23063") if name.startswith("db") else ("22",)
        assert set(seen[name]) <= {f"{host.address}:{port}" for port in ports}, "the node's address only"
        assert host.listening() == [f"{host.address}:22"], "everything was stopped"
    assert any(address.endswith(":23063") for address in seen["db1"] + seen["db2"])


def test_no_password_is_kept(lab: Lab) -> None:
    secrets = {p.read_bytes().strip() for p in lab.place.glob("control/*/secrets/*/*")}
    assert len(secrets) == len(LANES) * 3, "generated for each lane"
    kept = [p for p in lab.results.rglob("*") if p.is_file() and any(s in p.read_bytes() for s in secrets)]
    assert kept == []
    for name in ("client1", "client2"):
        assert list((lab.place / name / "tools" / "work").iterdir()) == []


def test_a_lost_node_fails_its_trial_and_the_other_lane_goes_on(lab: Lab) -> None:
    def unplug(line: str) -> None:
        if "] b: anticache" in line and "#" not in line and "deploying" not in line:
            lab.net.hosts["db2"].unplug()

    selection = (*SELECTION, "--systems", "anticache-alru", "--trials", "3", "--fresh")
    code, printed = lab.call("run", *selection, on_line=unplug)
    assert code == 3, printed
    assert "lane b ended: node db2 was lost" in printed
    table = lab.table().set_index("trial_hash")
    failed = table[table["status"] == "failed"]
    assert len(failed) == 1, table[["status", "reason", "lane"]].to_string()
    assert failed["reason"].str.contains("node db2 was lost").all()
    assert failed["lane"].tolist() == ["b"]
    rest = table[table["status"] != "failed"]
    assert len(rest) == 2
    assert set(rest["lane"]) <= {"a", "b"}
    assert any("node db2 was lost" in w for w in read_json(lab.run / "run.json")["warnings"])


def test_a_node_that_cannot_be_reached_is_named_before_the_start(lab: Lab) -> None:
    lab.net.hosts["db2"].plug()
    lab.write_inventory(ansible_port="9")
    code, printed = lab.call("run", *SELECTION, "--fresh")
    assert code == 2, printed
    assert "db2: node db2 was lost: its connection ended: ssh: connect to host" in printed
    lab.write_inventory()


def test_unlike_nodes_are_refused_by_name(lab: Lab) -> None:
    (lab.place / "db2" / "tools" / "mysql-5.6.24" / "bin" / "mysqld").open("ab").write(b"\0")
    code, printed = lab.call("run", *SELECTION, "--fresh")
    # What served the sweep on the node that was lost holds the node until it has waited long enough for the runner.
    deadline_s = time.monotonic() + LOST_LIMIT_S
    while "db2" in printed and "is in use by process" in printed and time.monotonic() < deadline_s:
        time.sleep(1.0)
        code, printed = lab.call("run", *SELECTION, "--fresh")
    assert code == 2, printed
    assert re.search(r"SHA-256 of mysqld is \w{64} on db1 and \w{64} on db2", printed), printed
    lab.write_inventory(server_cpus="0-1")
    code, printed = lab.call("run", *SELECTION, "--fresh")
    assert code == 2, printed
    assert "servers 0, terminals 1 on a; servers 0-1, terminals 1 on b" in printed
