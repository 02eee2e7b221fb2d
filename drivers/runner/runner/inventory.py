"""What an Ansible inventory says: lanes, and for each of their nodes how it is reached and where things are on it.

A *lane* is one node of group ``dbms`` and one of group ``clients`` with the same variable `lane`; they may be one
machine. Ansible itself fills in the templates (``ansible/nodes.yml``), so that the runner sees what the plays see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import deploy
from runner.errors import InputError
from runner.hosts import Connection

GROUPS = {"dbms": "the systems would run nowhere", "clients": "the terminals would run nowhere"}
ONLY_LANE = "1"  # the name of the lane of an inventory that names none


@dataclass(frozen=True)
class Inventory:
    """An inventory by its name or path, and the variables that override its own (ports, directories)."""

    root: Path
    name: str
    variables: Mapping[str, Any]

    def path(self) -> Path:
        """Return the inventory directory or file; raises InputError when there is none."""
        for candidate in (self.root / "ansible" / "inventories" / self.name, Path(self.name).absolute()):
            if candidate.exists():
                return candidate
        present = sorted(p.name for p in (self.root / "ansible" / "inventories").glob("[!.]*"))
        raise InputError(f"there is no inventory {self.name!r}; present: {', '.join(present) or 'none'}, or a path")

    def lanes(self) -> list[LaneNodes]:
        """Ask Ansible for the nodes and pair them; raises InputError when that does not give lanes."""
        path = self.path()
        found: dict[str, dict[str, Any]] = {}

        def on_event(event: dict[str, Any]) -> None:
            data = event.get("event_data", {})
            if event.get("event") == "runner_on_ok" and "node" in data.get("res", {}):
                found[data["host"]] = data["res"]["node"]

        done = deploy.playbook(self.root, path, "nodes", dict(self.variables), on_event=on_event)
        if done.status != "successful":
            said = " ".join(done.output.split())[-600:]
            raise InputError(f"inventory {path} cannot be read: {' | '.join(done.failures) or said}")
        return pair({name: Node.from_variables(name, values) for name, values in found.items()}, str(path))


@dataclass(frozen=True)
class Node:
    """One host of the inventory: how it is reached, and where things are on it."""

    name: str
    groups: tuple[str, ...]
    lane: str
    connection: Connection
    node_root: Path
    """Where its servers keep their data."""
    node_tools: Path
    """Where programs are put."""
    control_root: Path
    """Where the plays leave ``<adapter>/endpoint.json`` on the controlling machine."""
    server_cpus: str
    client_cpus: str
    become: bool
    """Whether what needs root is done through sudo."""
    disk_directory: Path
    """Where an emulated disk keeps its image."""
    binaries: dict[str, Path]
    """The servers' programs, to be compared between lanes."""

    @classmethod
    def from_variables(cls, name: str, values: dict[str, Any]) -> Node:
        """Read what nodes.yml tells; raises InputError for a connection that the runner cannot have."""
        connection = values["connection"]
        if connection["kind"] not in ("local", "ssh", "smart"):
            raise InputError(f"host {name}: ansible_connection is {connection['kind']!r}; allowed: local, ssh")
        if connection["password"] and connection["kind"] != "local":
            raise InputError(
                f"host {name}: it has a password for SSH (ansible_password), which the runner cannot use: give it a key"
                " (ansible_ssh_private_key_file)"
            )
        told = {name: str(connection[name]) for name in ("address", "port", "user", "key", "arguments", "program")}
        python = str(connection["python"])
        return cls(
            name=name,
            groups=tuple(values["groups"]),
            lane=str(values["lane"]),
            connection=Connection(
                **told,
                kind="local" if connection["kind"] == "local" else "ssh",
                python="" if python.startswith("auto") else python,
                check_host_key=str(connection["check_host_key"]).lower() not in ("false", "no", "0"),
            ),
            node_root=Path(values["node_root"]),
            node_tools=Path(values["node_tools"]),
            control_root=Path(values["control_root"]),
            server_cpus=str(values["server_cpus"]),
            client_cpus=str(values["client_cpus"]),
            become=bool(values["become"]),
            disk_directory=Path(values["disk_directory"]),
            binaries={k: Path(v) for k, v in values["binaries"].items()},
        )


@dataclass(frozen=True)
class LaneNodes:
    """A lane as the inventory names it."""

    name: str
    db: Node
    client: Node


def pair(nodes: Mapping[str, Node], inventory: str) -> list[LaneNodes]:
    """Put nodes into lanes, in the order of their names; raises InputError when a lane is not one of each group."""
    members = {group: [n for n in nodes.values() if group in n.groups] for group in GROUPS}
    for group, consequence in GROUPS.items():
        if not members[group]:
            raise InputError(f"inventory {inventory} has no host in its group `{group}`: {consequence}")
    if all(len(m) == 1 for m in members.values()):
        db, client = members["dbms"][0], members["clients"][0]
        if db.lane == client.lane:
            return [LaneNodes(db.lane or ONLY_LANE, db, client)]
    for node in nodes.values():
        if not node.lane:
            raise InputError(
                f"inventory {inventory}: host {node.name} has no variable `lane`, so its partner is unknown"
            )
    lanes = []
    for name in sorted({n.lane for n in nodes.values()}):
        found = {group: [n for n in members[group] if n.lane == name] for group in GROUPS}
        for group, on_lane in found.items():
            if len(on_lane) != 1:
                listed = ", ".join(n.name for n in on_lane) or "none"
                raise InputError(
                    f"inventory {inventory}: lane {name} must have one host in group `{group}`; it has {listed}"
                )
        lanes.append(LaneNodes(name, found["dbms"][0], found["clients"][0]))
    return lanes
