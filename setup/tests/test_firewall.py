"""The firewall's table, in three network namespaces: a DB node, its client, and a stranger on the same network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nft_table
import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = ROOT / ".venv" / "bin" / "ansible-playbook"
NFT = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
ADDRESSES = {"db": "10.77.0.1", "client": "10.77.0.2", "stranger": "10.77.0.3"}
PORTS = {"mysql_port": 23061, "memcached_port": 23062, "anticached_port": 23063}
OTHER_PORT = 23064

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or NFT is None or shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") is None,
    reason="needs root, nft and ip: apt-get install nftables iproute2",
)

# Listens on the DB node's address, TCP and UDP; every connection is answered, every datagram echoed.
SERVER = """
import socket, sys, threading
def serve(listener):
    while True:
        listener.accept()[0].sendall(b"here")
listeners = [socket.create_server(("10.77.0.1", int(port))) for port in sys.argv[1:]]
for listener in listeners: threading.Thread(target=serve, args=(listener,)).start()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("10.77.0.1", int(sys.argv[2])))
print("ready", flush=True)
while True:
    data, sender = datagrams.recvfrom(100)
    datagrams.sendto(data, sender)
"""

# Prints which of the ports answer within the time given.
LOOK = """
import socket, sys
timeout_s, *ports = sys.argv[1:]
for port in ports:
    try:
        with socket.create_connection(("10.77.0.1", int(port)), timeout=float(timeout_s)) as connection:
            if connection.recv(4) == b"here": print(port)
    except OSError: pass
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.settimeout(float(timeout_s))
try:
    datagrams.sendto(b"x", ("10.77.0.1", int(ports[1])))
    if datagrams.recv(1): print("udp")
except OSError: pass
"""
PATIENCE_S = 10.0  # for those who are let in
GLIMPSE_S = 0.5  # for those who are not; what was dropped is counted as well
ALL = {*(str(port) for port in PORTS.values()), str(OTHER_PORT), "udp"}


def run(*command: str, place: Path = ROOT) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=place)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


@dataclass
class Network:
    """Namespaces by role, on one bridge."""

    names: dict[str, str]

    def command(self, role: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[role], *command]

    def reached_from(self, role: str, timeout_s: float) -> set[str]:
        ports = [str(port) for port in (*PORTS.values(), OTHER_PORT)]
        return set(run(*self.command(role, sys.executable, "-c", LOOK, str(timeout_s), *ports)).stdout.split())

    def tables(self) -> str:
        assert NFT is not None
        return run(*self.command("db", NFT, "list", "ruleset")).stdout


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    tag = uuid.uuid4().hex[:6]
    names = {role: f"ace{tag}-{role}" for role in (*ADDRESSES, "switch")}
    try:
        for name in names.values():
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        switch = names["switch"]
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for role, address in ADDRESSES.items():
            near = ("ip", "-n", names[role], "link")
            run(*near, "add", "eth0", "type", "veth", "peer", "name", role, "netns", switch)
            run("ip", "-n", names[role], "address", "add", f"{address}/24", "dev", "eth0")
            run(*near, "set", "eth0", "up")
            run("ip", "-n", switch, "link", "set", role, "master", "bridge", "up")
        yield Network(names)
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=60)


@pytest.fixture
def servers(network: Network) -> Iterator[None]:
    ports = [str(port) for port in (*PORTS.values(), OTHER_PORT)]
    command = network.command("db", sys.executable, "-c", SERVER, *ports)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


def play(network: Network, tmp_path: Path, tasks: str, *arguments: str, **variables: object) -> tuple[int, str]:
    """Runs the role's tasks on the DB node; returns the exit code and what was printed, folded."""
    # "localhost" is the DB node: the whole of Ansible runs in its namespace.
    (tmp_path / "group_vars").unlink(missing_ok=True)
    (tmp_path / "group_vars").symlink_to(ROOT / "ansible" / "group_vars")
    playbook = tmp_path / f"{tasks}.yml"
    playbook.write_text(
        f"- hosts: dbms\n  tasks:\n    - ansible.builtin.include_role: {{name: firewall, tasks_from: {tasks}}}\n"
    )
    given = {
        "repo_root": str(ROOT),
        "node_root": str(tmp_path),
        "control_root": str(tmp_path),
        "node_become": False,
        "node_address": ADDRESSES["db"],
        "client_addresses": [ADDRESSES["client"]],
        **PORTS,
        **variables,
    }
    done = subprocess.run(
        network.command("db", str(PLAYBOOK), str(playbook), "-e", json.dumps(given), *arguments),
        cwd=ROOT / "ansible",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(ROOT / "ansible" / "roles")},
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def module(network: Network, **arguments: object) -> dict[str, object]:
    """Calls the module itself on the DB node, as Ansible does."""
    given = {"name": "anticache_eval", "ports": list(PORTS.values()), "clients": [ADDRESSES["client"]], **arguments}
    command = network.command("db", sys.executable, str(ROOT / "ansible" / "library" / "nft_table.py"))
    text = json.dumps({"ANSIBLE_MODULE_ARGS": given})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@needs_namespaces
@pytest.mark.usefixtures("servers")
def test_the_client_gets_through_and_the_stranger_does_not(network: Network, tmp_path: Path) -> None:
    assert NFT is not None
    for role in ADDRESSES:
        assert network.reached_from(role, PATIENCE_S) == ALL, f"before the rules, {role} reaches everything"
    others = "table ip somebody { chain input { type filter hook input priority -100; policy accept; }; }"
    run(*network.command("db", NFT, others))

    assert module(network, _ansible_check_mode=True)["changed"] is True
    assert "anticache_eval" not in network.tables(), "check mode changes nothing"
    code, said = play(network, tmp_path, "main")
    assert (code, "changed=2" in said) == (0, True), said
    assert network.reached_from("client", PATIENCE_S) == ALL
    assert network.reached_from("db", PATIENCE_S) == ALL
    assert "counter packets 0 bytes 0 drop" in network.tables(), "so far nobody was turned away"
    assert network.reached_from("stranger", GLIMPSE_S) == {str(OTHER_PORT)}
    assert "counter packets 0 " not in network.tables()
    assert "drop" in network.tables()

    code, said = play(network, tmp_path, "main")
    assert (code, "changed=0" in said) == (0, True), said
    # A rule that somebody adds does not stay.
    run(*network.command("db", NFT, "insert", "rule", "inet", "anticache_eval", "input", "accept"))
    assert network.reached_from("stranger", PATIENCE_S) == ALL
    assert module(network)["changed"] is True
    assert network.reached_from("stranger", GLIMPSE_S) == {str(OTHER_PORT)}

    var = tmp_path / "checkout" / "var"
    var.mkdir(parents=True)
    (var / "firewall-table").write_text((tmp_path / "firewall-table").read_text())
    clean = (str(ROOT / "setup" / "clean.py"), "--root", str(var.parent), "--results", str(tmp_path / "results"))
    done = run(*network.command("db", sys.executable, *clean))
    assert "removed the nftables table anticache_eval" in done.stdout
    assert "anticache_eval" not in network.tables()
    assert module(network)["changed"] is True

    code, said = play(network, tmp_path, "remove")
    assert (code, "changed=2" in said) == (0, True), said
    assert network.reached_from("stranger", PATIENCE_S) == ALL
    assert "anticache_eval" not in network.tables()
    assert "somebody" in network.tables(), "nobody else's table is touched"
    assert module(network, state="absent")["changed"] is False


@needs_namespaces
def test_without_nft_or_clients_nothing_is_opened(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = module(network, clients=[])
    assert answer.get("failed") is True
    assert "set client_addresses in the inventory" in str(answer["msg"])
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(nft_table.NftError, match=r"nft is not there.*package nftables.*loopback node_address"):
        nft_table.Nft("anticache_eval")


@needs_namespaces
@pytest.mark.servers
def test_an_engine_on_a_network_serves_its_client_alone(network: Network, tmp_path: Path) -> None:
    """The real playbooks and the real engine: the stranger knows the secret and still gets nowhere."""
    (tmp_path / "anticache").mkdir()
    deployment = {
        "id": "firewall",
        "system": "anticache-alru",
        "benchmark": "ycsb",
        "schema": str(ROOT / "workloads" / "schemas" / "ycsb.sql"),
        "memory_budget_bytes": 33554432,
        "durability": "sync",
        "disk": {"profile": "none", "region_bytes": 0, "rotational": False},
        "server_cpus": "",
        "mysql_redo_log_bytes": 8388608,
        "terminals": 2,
        "partitions": 1,
        "engine": {"anticaching": "alru", "eviction_block_bytes": 65536, "merge": "tuple", "hole_threshold": 0.5},
        "dataset": {"path": str(tmp_path / "none"), "action": "none"},
    }
    variables = {
        "node_root": str(tmp_path),
        "control_root": str(tmp_path),
        "node_become": False,
        "node_address": ADDRESSES["db"],
        "client_addresses": [ADDRESSES["client"]],
        "memory_enforced": False,  # `ip netns exec` hides the control groups behind a /sys of its own
        "deployment": deployment,
        **PORTS,
    }

    def real(playbook: str) -> None:
        command = network.command("db", str(PLAYBOOK), str(ROOT / "ansible" / playbook), "-e", json.dumps(variables))
        run(*command, place=ROOT / "ansible")

    real("deploy.yml")
    try:
        endpoint = json.loads((tmp_path / "anticache" / "endpoint.json").read_text())
        assert endpoint["anticache_address"] == f"{ADDRESSES['db']}:{PORTS['anticached_port']}"
        code, said = ask(network, "client", tmp_path, endpoint)
        assert code == 0, said
        assert '"refused_connections"' in said
        code, said = ask(network, "client", tmp_path, {k: v for k, v in endpoint.items() if k != "anticache_secret"})
        assert code != 0
        assert "it wants a secret, and none is given here" in said
        code, said = ask(network, "stranger", tmp_path, endpoint)
        assert code != 0
        assert "cannot connect" in said
        assert endpoint["anticache_secret"] not in said
        assert "counter packets 0 " not in network.tables()
    finally:
        real("stop.yml")
    assert "anticache_eval" not in network.tables()


def ask(network: Network, role: str, tmp_path: Path, endpoint: dict[str, object]) -> tuple[int, str]:
    """Calls `loadgen counters` in a namespace; returns its exit code and what it printed."""
    spec = {
        "format": 1,
        "system": "anticache-alru",
        "benchmark": "ycsb",
        "ycsb": {
            "records": 100,
            "fields": 10,
            "field_bytes": 100,
            "mix": "read-only",
            "read_share": 1.0,
            "skew": 1.0,
            "key_order": "clustered",
            "update_fields": 1,
            "verify_share": 0.0,
        },
        "terminals": 1,
        "warmup_s": 0.1,
        "measure_s": 0.1,
        "seed": 1,
    }
    (tmp_path / "spec.json").write_text(json.dumps({**spec, "endpoint": {}}))
    loadgen = str(ROOT / "target" / "release" / "loadgen")
    arguments = ["counters", "--spec", str(tmp_path / "spec.json"), "--endpoint", "/dev/stdin"]
    done = subprocess.run(
        network.command(role, loadgen, *arguments),
        input=json.dumps(endpoint),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_refused_values_are_named() -> None:
    for ports, clients, named in (
        ([0], ["192.0.2.1"], r"ports \[0\]"),
        ([], ["192.0.2.1"], r"ports \[\]"),
        ([1], ["client.example"], '"client.example"'),
        ([1], ["192.0.2.1/24"], "192.0.2.1/24"),
        ([1], [], "no client address"),
    ):
        with pytest.raises(nft_table.NftError, match=named):
            nft_table.ruleset("anticache_eval", ports, clients)
    with pytest.raises(nft_table.NftError, match="no name of a table"):
        nft_table.ruleset("a; flush ruleset", [1], ["192.0.2.1"])
    both = nft_table.ruleset("anticache_eval", [2, 1], ["192.0.2.0/28", "2001:db8::7"])
    assert "ip saddr { 192.0.2.0/28 } accept" in both
    assert "ip6 saddr { 2001:db8::7/128 } accept" in both
