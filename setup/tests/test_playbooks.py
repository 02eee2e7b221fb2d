"""The playbooks on this machine, with real servers in a directory and on ports of their own."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import daemons
import pymysql
import pytest
from nodes import free_port

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = ROOT / ".venv" / "bin" / "ansible-playbook"

pytestmark = pytest.mark.servers


@dataclass
class Node:
    """A node root that was provisioned, and the playbooks on it."""

    root: Path
    ports: dict[str, int]

    def play(self, name: str, *arguments: str, **deployment: Any) -> subprocess.CompletedProcess[str]:
        """Runs a playbook with a deployment that differs from the default one in the given keys."""
        variables = {"node_root": str(self.root), "control_root": str(self.root), **self.ports}
        command = [str(PLAYBOOK), f"{name}.yml", "-e", json.dumps(variables), *arguments]
        if deployment:
            command += ["-e", json.dumps({"deployment": {**self.deployment(), **deployment}})]
        return subprocess.run(command, cwd=ROOT / "ansible", capture_output=True, text=True, check=False, timeout=120)

    def deployment(self) -> dict[str, Any]:
        """A small deployment of mysql-memcached (INTERFACES.md: deployment file)."""
        return {
            "id": "test",
            "system": "mysql-memcached",
            "benchmark": "ycsb",
            "schema": str(ROOT / "workloads" / "schemas" / "ycsb.sql"),
            "memory_budget_bytes": 15000000,
            "mysql_buffer_pool_bytes": 7500000,
            "memcached_bytes": 7500000,
            "durability": "sync",
            "disk": {"profile": "none", "region_bytes": 0, "rotational": False},
            "server_cpus": "0",
            "client_cpus": "1",
            "terminals": 8,
            "partitions": 1,
            "mysql_redo_log_bytes": 8388608,
            "mysql_query_cache_bytes": 65536,
            "engine": {"anticaching": "alru", "eviction_block_bytes": 65536, "merge": "tuple", "hole_threshold": 0.5},
            "dataset": {"path": str(self.root / "datasets" / "kept"), "action": "none"},
        }


def changes(result: subprocess.CompletedProcess[str]) -> int:
    """How many tasks of a successful play reported a change."""
    assert result.returncode == 0, result.stdout + result.stderr
    return sum(int(number) for number in re.findall(r"changed=(\d+)", result.stdout))


def said(result: subprocess.CompletedProcess[str]) -> str:
    """What a failed play printed, with line breaks and indentation folded."""
    assert result.returncode != 0, result.stdout
    return " ".join((result.stdout + result.stderr).split())


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Node:
    names = ("mysql_port", "memcached_port", "anticached_port")
    node = Node(tmp_path_factory.mktemp("node"), {name: free_port() for name in names})
    assert changes(node.play("site")) > 0
    return node


@pytest.fixture
def node(provisioned: Node) -> Iterator[Node]:
    yield provisioned
    for state in provisioned.root.glob("*/*.daemon.json"):
        daemons.stop(state, timeout_s=30)


def test_provisioning_twice_changes_nothing(node: Node) -> None:
    assert changes(node.play("site")) == 0


def test_a_deployment_is_idempotent_kept_restored_and_stopped(node: Node) -> None:
    assert changes(node.play("deploy", id="first")) > 0
    endpoint_path = node.root / "mysql-memcached" / "endpoint.json"
    first = json.loads(endpoint_path.read_text())
    assert first["mysql_address"] == f"127.0.0.1:{node.ports['mysql_port']}"
    assert first["memcached_address"] == f"127.0.0.1:{node.ports['memcached_port']}"
    assert all(os.sched_getaffinity(pid) == {0} for pid in first["pids"].values())
    assert all(Path(log).is_file() for log in first["logs"])

    assert changes(node.play("deploy", id="first")) == 0
    assert json.loads(endpoint_path.read_text()) == first

    assert changes(node.play("keep", id="first")) > 0
    assert not endpoint_path.exists()
    marker = node.root / "mysql" / "data" / "anticache_eval" / "marker"
    marker.touch()
    restore = {"path": str(node.root / "datasets" / "kept"), "action": "restore"}
    assert changes(node.play("deploy", id="second", mysql_redo_log_bytes=16777216, dataset=restore)) > 0
    assert not marker.exists(), "the data directory must be the kept one"
    second = json.loads(endpoint_path.read_text())
    assert not set(second["pids"].values()) & set(first["pids"].values())

    assert changes(node.play("stop")) > 0
    assert changes(node.play("stop")) == 0
    assert not any(daemons.listening_inodes(port) for port in node.ports.values())


def log_in(node: Node, user: str, password: str, **place: Any) -> pymysql.connections.Connection:
    """A connection to MySQL; over TCP unless `place` says otherwise."""
    place = place or {"host": "127.0.0.1", "port": node.ports["mysql_port"]}
    return pymysql.connect(user=user, password=password, connect_timeout=10, **place)


def test_mysql_knows_two_accounts_with_generated_passwords(node: Node) -> None:
    secrets = node.root / "secrets" / "local"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {path.name for path in secrets.iterdir()} == {"mysql_root", "mysql_terminals", "anticache"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets.iterdir()} == {0o600}
    password = (secrets / "mysql_terminals").read_text().strip()
    root_password = (secrets / "mysql_root").read_text().strip()
    assert len({password, root_password, (secrets / "anticache").read_text().strip(), ""}) == 4

    assert changes(node.play("deploy", id="accounts", system="mysql")) > 0
    socket_path = {"unix_socket": str(node.root / "mysql" / "data" / "mysqld.sock")}
    with log_in(node, "root", root_password, **socket_path) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT user, host FROM mysql.user")
        assert set(cursor.fetchall()) == {("root", "localhost"), ("terminals", "127.0.0.1")}
    with log_in(node, "terminals", password) as connection, connection.cursor() as cursor:
        for beyond in (
            "SELECT password FROM mysql.user",
            f"SELECT 1 INTO OUTFILE '{node.root}/outfile'",
            "CREATE TABLE anticachexeval.own (id INT)",
        ):
            with pytest.raises(pymysql.MySQLError, match="denied"):
                cursor.execute(beyond)
        cursor.execute("CREATE TABLE anticache_eval.own (id INT)")
    for user, wrong, place in (
        ("terminals", "", {}),
        ("terminals", root_password, {}),
        ("root", "", {}),
        ("root", root_password, {}),
        ("root", "", socket_path),
        ("", "", {}),
    ):
        with pytest.raises(pymysql.MySQLError, match="Access denied"):
            log_in(node, user, wrong, **place)
    endpoint = node.root / "mysql" / "endpoint.json"  # on a lab's controlling machine, not on the DB node
    files = [path for path in (node.root / "mysql").rglob("*") if path.is_file()]
    held = [path for path in files if password.encode() in path.read_bytes()]
    assert held == [endpoint], "the DB node holds the password's hash alone"
    assert stat.S_IMODE(endpoint.stat().st_mode) == 0o600
    assert stat.S_IMODE((node.root / "mysql" / "accounts.sql").stat().st_mode) == 0o600

    # A data set that was kept under one password is restored under another.
    assert changes(node.play("keep", id="accounts", system="mysql")) > 0
    (secrets / "mysql_terminals").write_text("another-password-for-this-test\n")
    restore = {"path": str(node.root / "datasets" / "kept"), "action": "restore"}
    result = node.play("deploy", id="accounts", system="mysql", dataset=restore)
    assert changes(result) > 0
    assert "another-password" not in result.stdout + result.stderr
    log_in(node, "terminals", "another-password-for-this-test").close()
    with pytest.raises(pymysql.MySQLError, match="Access denied"):
        log_in(node, "terminals", password)


def test_mysql_that_dies_at_its_start_is_reported_with_its_log(node: Node) -> None:
    assert changes(node.play("reset", system="mysql")) >= 0
    system_tablespace = node.root / "mysql" / "data" / "ibdata1"
    system_tablespace.parent.mkdir()
    system_tablespace.write_bytes(b"not a tablespace")
    message = said(node.play("deploy", system="mysql"))
    assert "mysqld ended with status 1 after" in message
    assert f"Log: {node.root}/mysql/mysqld.log; its end:" in message
    assert "[ERROR]" in message.partition("its end:")[2]
    assert changes(node.play("reset", system="mysql")) > 0


def test_a_port_in_use_is_reported_with_its_holder(node: Node) -> None:
    port = node.ports["mysql_port"]
    with socket.create_server(("127.0.0.1", port)):
        message = said(node.play("deploy", system="mysql"))
    assert f"port {port} is in use by process {os.getpid()}" in message


def test_impossible_sizes_are_refused_by_value(node: Node) -> None:
    message = said(node.play("deploy", system="mysql", mysql_buffer_pool_bytes=5242879))
    assert "mysql_buffer_pool_bytes is 5242879 (at least 5242880" in message
    message = said(node.play("deploy", memcached_bytes=1048575))
    assert "memcached_bytes is 1048575" in message


def test_an_unknown_system_is_refused_before_anything_starts(node: Node) -> None:
    message = said(node.play("deploy", system="oracle"))
    assert 'unknown system "oracle": one of mysql, mysql-memcached, anticache-lru' in message
    assert "no deployment given" in said(node.play("deploy"))


def test_the_engine_is_configured_as_the_contract_says(node: Node) -> None:
    message = said(node.play("deploy", "-e", "anticached_binary=/nonexistent/anticached", system="anticache-alru"))
    assert "anticached: cannot run /nonexistent/anticached: No such file" in message
    assert json.loads((node.root / "anticache" / "anticached.json").read_text()) == {
        "schema": str(ROOT / "workloads" / "schemas" / "ycsb.sql"),
        "data_dir": str(node.root / "anticache" / "data"),
        "listen": f"127.0.0.1:{node.ports['anticached_port']}",
        "secret_file": str(node.root / "anticache" / "secret"),
        "max_connections": 1024,
        "partitions": 1,
        "cpus": [0],
        "idle_poll_us": 50,
        "memory_budget_bytes": 15000000,
        "anticaching": "alru",
        "lru_sample_rate": 0.01,
        "probation_share": 0,
        "eviction_block_bytes": 65536,
        "eviction_check_interval_us": 0,
        "eviction_threshold": 1.0,
        "eviction_blocks": 0,
        "merge": "tuple",
        "evict_from": "coldest",
        "fetch": "block",
        "compaction": "lazy",
        "hole_threshold": 0.5,
        "log": "sync",
        "answer_readers": "at-once",
        "log_segment_bytes": 67108864,
        "log_group_interval_us": 0,
        "log_gathering_share": 0.25,
        "log_group_bytes": 524288,
        "snapshot_interval_s": 300,
        "snapshot_log_bytes": 1073741824,
        "huge_pages": True,
        "seed": 1,
    }


def test_the_engine_is_deployed_afresh(node: Node) -> None:
    if not (ROOT / "target" / "release" / "anticached").exists():
        pytest.fail("target/release/anticached is not built: make build")
    sizes = {"memory_budget_bytes": 33554432}
    assert changes(node.play("deploy", system="anticache-alru", **sizes)) > 0
    first = json.loads((node.root / "anticache" / "endpoint.json").read_text())
    assert first["system"] == "anticache-alru"
    assert first["adapter"] == "anticache"
    assert changes(node.play("deploy", system="anticache-alru", **sizes)) == 0

    assert changes(node.play("deploy", id="other", system="anticache-alru", **sizes)) > 0
    second = json.loads((node.root / "anticache" / "endpoint.json").read_text())
    assert second["pids"] != first["pids"]
    assert changes(node.play("stop")) > 0


def test_memory_is_limited_by_budget_and_allowance_unless_the_inventory_says_otherwise(node: Node) -> None:
    sizes = {"memory_budget_bytes": 33554432}
    assert changes(node.play("deploy", system="anticache-off", **sizes)) > 0
    path = node.root / "anticache" / "endpoint.json"
    endpoint = json.loads(path.read_text())
    group = endpoint["control_group"]
    allowance_bytes = 134217728 + 2 * node.deployment()["mysql_redo_log_bytes"] + 33554432 // 8
    assert (group["enforced"], group["allowance_bytes"]) == (True, allowance_bytes)
    assert group["limit_bytes"] == 33554432 + allowance_bytes
    assert int(Path(group["path"]["limit"]).read_text()) == group["limit_bytes"]
    members = (Path(group["directory"]) / "cgroup.procs").read_text().split()
    assert members == [str(endpoint["pids"]["anticached"])]
    if group["cpuset"] and group["version"] == 1:
        cpuset = Path(group["directory"].replace("/memory/", "/cpuset/"))
        assert (cpuset / "cpuset.cpus").read_text() == "0\n"

    assert changes(node.play("deploy", "-e", "memory_enforced=false", system="anticache-off", **sizes)) > 0
    assert not Path(group["directory"]).exists(), "the group ends with its deployment"
    group = json.loads(path.read_text())["control_group"]
    assert (group["enforced"], group["path"]) == (False, {})
    assert group["why_not"] == "memory_enforced is false in the inventory"
    assert changes(node.play("stop")) > 0


def test_a_system_without_data_on_disk_keeps_no_data_set(node: Node) -> None:
    assert "anticache-lru keeps no data set" in said(node.play("keep", system="anticache-lru"))
