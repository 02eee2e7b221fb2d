"""The power goes while real systems write: what they acknowledged is there afterwards; without barriers it is not.

The servers are deployed as for a measurement, on an emulated disk with a volatile write cache. The control without
write barriers shows that the cut does take something away: without it, the other tests could not fail.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import daemons
import pymysql
import pytest
from nodes import free_port

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = ROOT / ".venv" / "bin" / "ansible-playbook"
SPINDLE = ROOT / "target" / "release" / "spindle"
LOADGEN = ROOT / "target" / "release" / "loadgen"
WITNESS = ROOT / "target" / "debug" / "examples" / "witness"

RECORDS = 2000
TERMINALS = 8
FIELD_BYTES = 100
LONGEST_S = 20
CUTS = 5

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@dataclass
class Node:
    """A node root with ports of its own, and what is done on it."""

    root: Path
    ports: dict[str, int]

    def play(self, name: str, *arguments: str, deployment: dict[str, Any] | None = None) -> None:
        variables = {"node_root": str(self.root), "control_root": str(self.root), **self.ports}
        extra = {"deployment": deployment} if deployment else {}
        done = subprocess.run(
            [PLAYBOOK, f"{name}.yml", "-e", json.dumps({**variables, **extra}), *arguments],
            cwd=ROOT / "ansible",
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def disk(self) -> Path:
        return self.root / "disk"

    @property
    def files(self) -> Path:
        return self.root / "files"

    def spindle(self, verb: str, *arguments: str) -> str:
        done = subprocess.run(
            [SPINDLE, verb, self.disk, *arguments], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"spindle {verb}: {done.stderr}"
        return done.stdout

    def deploy(self, system: str) -> None:
        """An emulated 7200 RPM disk with the system on it, loaded."""
        schema = ROOT / "workloads" / "schemas" / "ycsb.sql"
        deployment = {
            "id": "power-cut",
            "system": system,
            "benchmark": "ycsb",
            "schema": str(schema),
            "memory_budget_bytes": 16 << 20,
            "mysql_buffer_pool_bytes": 16 << 20,
            "memcached_bytes": 0,
            "durability": "sync",
            "disk": {"profile": "hdd-7200", "region_bytes": 4 << 30, "rotational": True},
            "server_cpus": "0",
            "client_cpus": "",
            "terminals": TERMINALS,
            "partitions": 1,
            "mysql_redo_log_bytes": 8 << 20,
            "mysql_query_cache_bytes": 0,
            "engine": {
                "anticaching": "lru",
                "eviction_block_bytes": 65536,
                "merge": "tuple",
                "hole_threshold": 0.5,
                "snapshot_interval_s": 1,
            },
            "dataset": {"path": str(self.root / "datasets" / "none"), "action": "none"},
        }
        self.play("deploy", deployment=deployment)
        self.load(system, schema)

    def endpoint_file(self, system: str) -> Path:
        return self.root / ("anticache" if system.startswith("anticache") else system) / "endpoint.json"

    def spec(self, system: str) -> Path:
        ycsb = {"records": RECORDS, "fields": 10, "field_bytes": FIELD_BYTES, "mix": "updates", "read_share": 0.0}
        ycsb |= {"skew": 1.0, "key_order": "clustered", "update_fields": 1, "verify_share": 0.0}
        spec = {
            "format": 1,
            "system": system,
            "endpoint": json.loads(self.endpoint_file(system).read_text(encoding="utf-8")),
            "benchmark": "ycsb",
            "ycsb": ycsb,
            "terminals": TERMINALS,
            "warmup_s": 0.0,
            "measure_s": 1.0,
            "seed": 7,
            "client_cpus": "0",
            "mysql_transaction": "autocommit",
            "loading_threads": 2,
            "schema": str(ROOT / "workloads" / "schemas" / "ycsb.sql"),
        }
        path = self.root / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        return path

    def load(self, system: str, schema: Path) -> None:
        assert schema.is_file()
        done = subprocess.run(
            [LOADGEN, "load", "--spec", self.spec(system)], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr

    def cut_power_under_load(self, system: str, after_s: float) -> dict[int, tuple[int, int]]:
        """Let the witness write for `after_s`, cut the power, and return (acknowledged, sent) of each record."""
        self.spindle("mode", "model")
        seen = self.root / "seen.json"
        with subprocess.Popen(
            [WITNESS, "write", self.spec(system), seen, str(LONGEST_S)], stdout=subprocess.PIPE
        ) as witness:
            assert witness.stdout is not None
            assert b"terminals" in witness.stdout.readline()
            time.sleep(after_s)
            self.spindle("powercut")
            self.kill_servers()
            witness.wait(timeout=2 * LONGEST_S)
            assert witness.returncode == 0
        found = {int(k): (v[0], v[1]) for k, v in json.loads(seen.read_text(encoding="utf-8")).items()}
        assert len(found) == TERMINALS
        assert sum(acknowledged for acknowledged, _ in found.values()) > TERMINALS, "the load was under way"
        return found

    def kill_servers(self) -> None:
        """What a power cut does to processes."""
        for path in self.root.glob("*/*.daemon.json"):
            state = daemons.running_state(path)
            if state is not None:
                os.kill(int(str(state["pid"])), signal.SIGKILL)
            for _ in range(500):
                if daemons.running_state(path) is None:
                    break
                time.sleep(0.02)

    def restore_power(self) -> None:
        self.spindle("poweron")

    def stop(self) -> None:
        self.play("stop")


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Node:
    names = ("mysql_port", "memcached_port", "anticached_port")
    node = Node(tmp_path_factory.mktemp("power"), {name: free_port() for name in names})
    node.play("site")
    return node


@pytest.fixture
def node(provisioned: Node) -> Iterator[Node]:
    yield provisioned
    provisioned.kill_servers()
    provisioned.stop()


def after_the_cut(node: Node, system: str) -> dict[int, int]:
    """Start the server on what the disk holds, let it recover, and read the numbers."""
    name, daemon, numbers = SERVERS[system]
    state = json.loads((node.root / name / f"{daemon}.daemon.json").read_text(encoding="utf-8"))
    log = node.root / name / "recovery.log"
    with log.open("wb") as out:
        server = subprocess.Popen(state["argv"], stdout=out, stderr=out, cwd=node.root / name)
    try:
        for _ in range(600):
            assert server.poll() is None, f"{daemon} did not start: {log.read_text(errors='replace')[-3000:]}"
            try:
                return numbers(node)
            except (OSError, pymysql.err.OperationalError):
                time.sleep(0.1)
        raise AssertionError(f"{daemon} did not recover within a minute")
    finally:
        server.kill()
        server.wait()


def mysql_numbers(node: Node) -> dict[int, int]:
    endpoint = json.loads(node.endpoint_file("mysql").read_text(encoding="utf-8"))
    with (
        pymysql.connect(
            host="127.0.0.1",
            port=node.ports["mysql_port"],
            user=endpoint["mysql_user"],
            password=endpoint["mysql_password"],
            database=endpoint["mysql_database"],
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT ycsb_key, field0 FROM usertable WHERE ycsb_key < %s", (TERMINALS,))
        rows = {int(key): str(field) for key, field in cursor.fetchall()}
        cursor.execute("SELECT COUNT(*) FROM usertable")
        assert cursor.fetchone() == (RECORDS,)
    assert len(rows) == TERMINALS
    return {key: number_of(field) for key, field in rows.items()}


def engine_numbers(node: Node) -> dict[int, int]:
    endpoint = json.loads(node.endpoint_file("anticache-lru").read_text(encoding="utf-8"))
    host, port = endpoint["anticache_address"].rsplit(":", 1)
    socket.create_connection((host, int(port)), timeout=10).close()
    read = node.root / "rows.json"
    done = subprocess.run(
        [WITNESS, "rows", node.spec("anticache-lru"), read], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rows = {int(key): str(field) for key, field in json.loads(read.read_text(encoding="utf-8")).items()}
    assert len(rows) == RECORDS
    return {key: number_of(rows[key]) for key in range(TERMINALS)}


def number_of(field: str) -> int:
    """The witness's number; 0 for the loaded text."""
    return int(field) if field.isdigit() and len(field) == FIELD_BYTES else 0


# Directory, daemon, and how the numbers are read once it serves again.
SERVERS = {"mysql": ("mysql", "mysqld", mysql_numbers), "anticache-lru": ("anticache", "anticached", engine_numbers)}


@pytest.mark.parametrize("system", SERVERS)
def test_nothing_acknowledged_is_lost(node: Node, system: str) -> None:
    after_s = random.Random().uniform(1.0, 4.0)  # noqa: S311 - another moment each time is the point
    node.deploy(system)
    seen = node.cut_power_under_load(system, after_s)
    node.restore_power()
    found = after_the_cut(node, system)
    wrong = {key: (found[key], seen[key]) for key in seen if not seen[key][0] <= found[key] <= seen[key][1]}
    assert not wrong, f"after {after_s:.2f} s, record: (found, (acknowledged, sent)): {wrong}"


@pytest.mark.parametrize("system", SERVERS)
def test_without_barriers_acknowledged_writes_are_lost(node: Node, system: str) -> None:
    # A drive whose platters have nothing else to do empties its cache after 10 ms: where this machine takes the CPU
    # from server or client for that long, nothing is at risk at that moment. Cuts at other moments find something.
    seen = []
    for _ in range(CUTS):
        node.deploy(system)
        subprocess.run(["mount", "-o", "remount,barrier=0", node.files], check=True)
        written = node.cut_power_under_load(system, 2.0)
        try:
            node.restore_power()
            found = after_the_cut(node, system)
        except AssertionError:
            return  # not even the file system, or the server's own files, survived
        if any(found[key] < acknowledged for key, (acknowledged, _) in written.items()):
            return
        seen.append((found, written))
        node.stop()
    raise AssertionError(f"{CUTS} cuts without barriers took nothing away: (found, (acknowledged, sent)) {seen}")
