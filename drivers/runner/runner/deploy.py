"""Bringing a system up and down through the playbooks of ``ansible/`` (INTERFACES.md: deployment file)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible_runner

from runner.errors import InputError, RunError
from runner.files import read_json, write_json
from runner.plan import Deployment
from runner.workload import family

PLAY_LIMIT_S = 900  # a restore of the paper's 26 GB takes minutes; a play that takes longer hangs


class DeployError(RunError):
    """A play failed; the message names the task, what it said, and the log."""


@dataclass(frozen=True)
class Node:
    """Where the playbooks work: inventory, and variables that override the inventory's (ports, directories)."""

    root: Path
    inventory: str
    variables: dict[str, Any]

    def inventory_path(self) -> Path:
        """Return the inventory directory or file; raises InputError when there is none."""
        for candidate in (self.root / "ansible" / "inventories" / self.inventory, Path(self.inventory).absolute()):
            if candidate.exists():
                return candidate
        present = sorted(p.name for p in (self.root / "ansible" / "inventories").glob("[!.]*"))
        raise InputError(
            f"there is no inventory {self.inventory!r}; present: {', '.join(present) or 'none'}, or a path"
        )

    def refuse_remote(self) -> None:
        """Raise InputError when the systems would run on another machine: what is recorded is read on this one."""
        hosts = self._hosts()
        remote = [name for name, variables in hosts.items() if variables.get("ansible_connection") != "local"]
        if remote:
            raise InputError(
                f"inventory {self.inventory!r} puts the systems on {', '.join(remote)}: so far a run needs a `dbms`"
                " host with `ansible_connection: local`, because data sets, CPU sets, memory and the servers' processes"
                " are read on the machine that runs the terminals"
            )

    def _hosts(self) -> dict[str, dict[str, Any]]:
        """Ask Ansible for the hosts of group ``dbms`` with their variables; raises InputError when there are none."""
        path = self.inventory_path()
        program = Path(sys.executable).parent / "ansible-inventory"
        environment = {**os.environ, "ANSIBLE_CONFIG": str(self.root / "ansible" / "ansible.cfg")}
        asked = subprocess.run(
            [program, "--inventory", path, "--list", "--limit", "dbms"],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        try:
            hosts: dict[str, dict[str, Any]] = json.loads(asked.stdout)["_meta"]["hostvars"]
        except (ValueError, KeyError):
            said = " ".join(asked.stderr.split()) or f"exit code {asked.returncode}"
            raise InputError(f"inventory {path} cannot be read: {said}") from None
        if not hosts:
            raise InputError(f"inventory {path} has no host in its group `dbms`: the systems would run nowhere")
        return {name: {**variables, **self.variables} for name, variables in hosts.items()}

    @property
    def control_root(self) -> Path:
        """Return where the plays leave ``<system>/endpoint.json`` on this machine."""
        return Path(self.variables.get("control_root", self.root / "var"))

    @property
    def node_root(self) -> Path:
        """Return where the servers keep their data (a path on the node)."""
        return Path(self.variables.get("node_root", self.root / "var"))


class Ansible:
    """Runs plays, one at a time; each leaves its whole output in a log."""

    def __init__(self, node: Node, cancelled: Callable[[], bool]) -> None:
        """Prepare plays on `node`; `cancelled` is asked several times a second while a play runs."""
        self.node = node
        self._cancelled = cancelled

    def play(self, name: str, deployment_file: dict[str, Any], log: Path, cancellable: bool = True) -> None:
        """Run ``ansible/<name>.yml`` with a deployment file; raises DeployError when a task fails."""
        playbook = self.node.root / "ansible" / f"{name}.yml"
        if not playbook.is_file():
            raise DeployError(f"{playbook} is missing: is this checkout complete?")
        failures: list[str] = []

        def on_event(event: dict[str, Any]) -> bool:
            failures.extend(_failure(event))
            return False  # keep no file per event: there are thousands in a sweep

        # A short name: Ansible's control sockets below it must fit into 108 characters.
        private = Path(tempfile.mkdtemp(prefix="anticache-eval-"))
        try:
            result = ansible_runner.run(
                private_data_dir=str(private),
                project_dir=str(self.node.root / "ansible"),
                playbook=str(playbook),
                inventory=str(self.node.inventory_path()),
                extravars={**self.node.variables, **deployment_file},
                envvars=self._environment(),
                event_handler=on_event,
                # Never None: Ansible Runner would then put its own signal handlers in place of ours.
                cancel_callback=self._cancelled if cancellable else _never,
                settings={"pexpect_timeout": 1},
                timeout=PLAY_LIMIT_S,
                quiet=True,
            )
            with log.open("a", encoding="utf-8") as file, Path(result.stdout.name).open(encoding="utf-8") as output:
                shutil.copyfileobj(output, file)
        finally:
            shutil.rmtree(private, ignore_errors=True)
        if result.status == "canceled":
            raise DeployError(f"{name}.yml was interrupted")
        if result.status == "timeout":
            raise DeployError(f"{name}.yml did not end within {PLAY_LIMIT_S} s; log: {log}")
        if result.status != "successful":
            raise DeployError(f"{name}.yml failed: {' | '.join(failures) or 'no task reported why'}; log: {log}")

    def _environment(self) -> dict[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
            "ANSIBLE_CONFIG": str(self.node.root / "ansible" / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
        }

    def endpoint(self, deployment: Deployment) -> dict[str, Any]:
        """Read what ``deploy.yml`` left about the running system."""
        adapter = "anticache" if family(deployment.system) == "anticache" else deployment.system
        path = self.node.control_root / adapter / "endpoint.json"
        try:
            return dict(read_json(path))
        except (OSError, ValueError) as error:
            raise DeployError(f"deploy.yml left no readable {path}: {error}") from None


def _never() -> bool:
    return False


def _failure(event: dict[str, Any]) -> list[str]:
    """Return what a failed task said, in one line; nothing for other events and for tolerated failures."""
    data = event.get("event_data", {})
    if event.get("event") not in ("runner_on_failed", "runner_on_unreachable", "error") or data.get("ignore_errors"):
        return []
    if event.get("event") == "error":
        return [" ".join(str(event.get("stdout", "")).split())]
    result = data.get("res", {})
    said = str(result.get("msg") or result.get("stderr") or result.get("exception") or result)
    if result.get("msg") == "non-zero return code":
        said = f"exit {result.get('rc')}: {result.get('stderr') or result.get('stdout')}"
    return [f"task {data.get('task', '?')!r}: {' '.join(said.split())}"]


def deployment_file(deployment: Deployment, schema: Path, datasets: Path, action: str) -> dict[str, Any]:
    """Build the variables of the plays for one deployment; `action` is ``none`` or ``restore``."""
    return {
        "deployment": {
            "id": deployment.id,
            "schema": str(schema.resolve()),
            **deployment.values,
            "dataset": {"path": str(datasets / deployment.dataset), "action": action},
        }
    }


def save(deployment: dict[str, Any], directory: Path) -> None:
    """Keep the deployment file beside the logs, so that a play can be repeated by hand."""
    write_json(directory / "deployment.json", deployment)
