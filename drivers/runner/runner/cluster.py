"""The nodes of an inventory, connected: lanes with their CPU sets, and whether they are the same."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner import hosts, machine, sameness, store
from runner.errors import InputError
from runner.hosts import Host, LostNodeError
from runner.inventory import Inventory, LaneNodes, Node
from runner.sameness import Facts


@dataclass(frozen=True)
class Lane:
    """A DB node and a client node that run trials together."""

    nodes: LaneNodes
    db: Host
    client: Host
    db_facts: dict[str, Any]
    """`agent.Agent.describe` when the connection was made."""
    client_facts: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the lane's name in the inventory."""
        return self.nodes.name

    @functools.cached_property
    def cpus(self) -> machine.CpuSets:
        """Divide the lane's CPUs; raises InputError for CPUs that a node does not have."""
        nodes = self.nodes
        return machine.cpu_sets(self.db_facts, self.client_facts, nodes.db.server_cpus, nodes.client.client_cpus)

    @property
    def identity(self) -> str:
        """Name what shapes every figure measured on the lane."""
        db, client = machine.identity(self.db_facts), machine.identity(self.client_facts)
        return db if machine.same_machine(self.db_facts, self.client_facts) else f"{db}; terminals: {client}"

    def described(self) -> list[tuple[Host, dict[str, Any]]]:
        """Return each host with its description; one that is both comes once."""
        nodes = [(self.db, self.db_facts), (self.client, self.client_facts)]
        return nodes[:1] if self.db is self.client else nodes

    def record(self) -> dict[str, Any]:
        """Return what run.json keeps of the lane."""
        return {
            "hosts": {"dbms": self.db.name, "clients": self.client.name},
            "machines": {"dbms": self.db_facts, "clients": self.client_facts},
            "cpu_sets": asdict(self.cpus),
        }


@dataclass(frozen=True)
class Cluster:
    """All lanes of an inventory; they are alike, or a sweep is refused."""

    lanes: tuple[Lane, ...]

    @property
    def cpus(self) -> machine.CpuSets:
        """Return the CPU sets, which are the same on every lane; raises InputError when they are not."""
        first = self.lanes[0]
        for lane in self.lanes[1:]:
            if lane.cpus != first.cpus:
                raise InputError(
                    f"the lanes have different CPU sets: servers {first.cpus.server}, terminals {first.cpus.client} on"
                    f" {first.name}; servers {lane.cpus.server}, terminals {lane.cpus.client} on {lane.name}. Set"
                    " server_cpus and client_cpus in the inventory, or leave a lane out"
                )
        return first.cpus

    @property
    def identity(self) -> str:
        """Name what shapes every figure measured on any of the lanes."""
        return self.lanes[0].identity

    def hold(self, text: str) -> None:
        """Let no other runner use the nodes while the connections last; raises InputError that names who does.

        `text` is what another one reads of this (`store.holder`).
        """
        self._refuse_shared_machines()
        nodes = {lane.db.name: (lane.db, lane.nodes.db.node_root) for lane in self.lanes}
        for lane in self.lanes:
            nodes.setdefault(lane.client.name, (lane.client, lane.nodes.client.node_tools))
        held: list[tuple[Host, Path]] = []
        for host, place in nodes.values():
            other = host.hold(place / store.LOCK, text)
            if other is not None:
                for mine, path in held:
                    mine.let_go(path)
                raise InputError(f"node {host.name} ({place}) is in use by {store.held_by(other)}")
            held.append((host, place / store.LOCK))

    def kept_datasets(self) -> set[str]:
        """Return the data sets that every DB node keeps."""
        return set.intersection(*(lane.db.directories(lane.nodes.db.node_root / "datasets") for lane in self.lanes))

    def check_sameness(self) -> None:
        """Raise InputError where two lanes share a machine, or nodes of one role differ."""
        self._refuse_shared_machines()
        if len(self.lanes) > 1:
            sameness.refuse_differences("DB nodes", [self._facts_of_db(lane) for lane in self.lanes])
            clients = [Facts(lane.client.name, lane.client_facts) for lane in self.lanes]
            sameness.refuse_differences("client nodes", clients)

    def _refuse_shared_machines(self) -> None:
        seen: dict[str, tuple[Lane, str]] = {}
        for lane in self.lanes:
            for host, facts in lane.described():
                other, name = seen.setdefault(facts["boot_id"], (lane, host.name))
                if other is not lane:
                    raise InputError(
                        f"{host.name} of lane {lane.name} and {name} of lane {other.name} are one machine (boot"
                        f" {facts['boot_id']}): lanes that run at the same time would disturb each other"
                    )

    @staticmethod
    def _facts_of_db(lane: Lane) -> Facts:
        """Ask a DB node for its servers' programs; the engine's is copied from here at each deployment."""
        programs = {f"SHA-256 of {name}": digest for name, digest in lane.db.sha256(lane.nodes.db.binaries).items()}
        for name, path in lane.nodes.db.binaries.items():
            with contextlib.suppress(OSError):
                said = str(lane.db.run([str(path), "--version"])["stdout"])
                programs[f"version of {name}"] = " ".join(said.replace(str(path), name).split())
        return Facts(lane.db.name, lane.db_facts, programs)


Connect = Callable[[Node], Host]


def _connect(node: Node) -> Host:
    return hosts.connect(node.name, node.connection)


class UnreachableError(InputError):
    """Nodes cannot be reached; the message names them, with what ssh said."""


@contextlib.contextmanager
def connected(inventory: Inventory, lanes: list[LaneNodes], connect: Connect = _connect) -> Iterator[Cluster]:
    """Reach every node of an inventory's lanes; raises UnreachableError."""
    nodes = {node.name: node for lane in lanes for node in (lane.db, lane.client)}
    reached: dict[str, Host] = {}
    described: dict[str, dict[str, Any]] = {}
    failed: list[str] = []

    def reach(node: Node) -> None:
        try:
            reached[node.name] = connect(node)
            described[node.name] = reached[node.name].describe(node.node_root)
        except (LostNodeError, OSError) as error:
            failed.append(f"{node.name}: {error}")

    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(reach, nodes.values()))
        if failed:
            raise UnreachableError(
                f"inventory {inventory.name}: {'; '.join(sorted(failed))}. The runner reaches nodes with the"
                " inventory's SSH variables and a key, without a password: try `ansible -i INVENTORY all -m ping`"
            )
        yield Cluster(
            tuple(
                Lane(
                    lane,
                    reached[lane.db.name],
                    reached[lane.client.name],
                    described[lane.db.name],
                    described[lane.client.name],
                )
                for lane in lanes
            )
        )
    finally:
        for host in reached.values():
            host.close()
