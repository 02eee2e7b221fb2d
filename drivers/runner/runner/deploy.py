"""Bringing a system up and down through the playbooks of ``ansible/`` (INTERFACES.md: deployment file)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible_runner

from runner.errors import RunError
from runner.files import read_json, write_json
from runner.hosts import LostNodeError
from runner.plan import Deployment
from runner.systems import ADAPTERS, adapter_of

PLAY_LIMIT_S = 900  # a restore of the paper's 26 GB takes minutes; a play that takes longer hangs


class DeployError(RunError):
    """A play failed; the message names the task, what it said, and the log."""


@dataclass(frozen=True)
class Played:
    """How a play ended: Ansible Runner's status, what its failed tasks said, and everything that it printed."""

    status: str
    failures: list[str]
    unreachable: dict[str, str]
    """Hosts that Ansible could not reach, with what it said."""
    output: str


def playbook(
    root: Path,
    inventory: Path,
    name: str,
    variables: dict[str, Any],
    *,
    limit: str = "",
    on_event: Callable[[dict[str, Any]], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Played:
    """Run ``ansible/<name>.yml``; `cancelled` is asked several times a second. Several may run at once."""
    path = root / "ansible" / f"{name}.yml"
    if not path.is_file():
        raise DeployError(f"{path} is missing: is this checkout complete?")
    failures: list[str] = []
    unreachable: dict[str, str] = {}

    def handle(event: dict[str, Any]) -> bool:
        failures.extend(_failure(event))
        if event.get("event") == "runner_on_unreachable":
            data = event["event_data"]
            unreachable[data.get("host", "?")] = " ".join(str(data.get("res", {}).get("msg", "")).split())
        if on_event is not None:
            on_event(event)
        return False  # keep no file per event: there are thousands in a sweep

    # A directory of its own for each play, with a short name.
    private = Path(tempfile.mkdtemp(prefix="anticache-eval-"))
    try:
        result = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(root / "ansible"),
            playbook=str(path),
            inventory=str(inventory),
            limit=limit or None,
            extravars=variables,
            envvars=_environment(root),
            event_handler=handle,
            # Never None: Ansible Runner would then put its own signal handlers in place of ours.
            cancel_callback=cancelled or _never,
            settings={"pexpect_timeout": 1},
            timeout=PLAY_LIMIT_S,
            quiet=True,
        )
        output = Path(result.stdout.name).read_text(encoding="utf-8", errors="replace")
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return Played(result.status, failures, unreachable, output)


def _environment(root: Path) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
        "ANSIBLE_CONFIG": str(root / "ansible" / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        # Ansible Runner would switch it off.
        "ANSIBLE_HOST_KEY_CHECKING": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
    }


@dataclass(frozen=True)
class Ansible:
    """Runs plays on the nodes of one lane, one at a time; each leaves its whole output in a log."""

    root: Path
    inventory: Path
    variables: dict[str, Any]
    control_root: Path
    limit: tuple[str, ...]
    """The lane's hosts: a play must not touch those of another lane."""
    cancelled: Callable[[], bool]

    def play(self, name: str, deployment_file: dict[str, Any], log: Path, cancellable: bool = True) -> None:
        """Run ``ansible/<name>.yml`` with a deployment file.

        Raises DeployError when a task fails, LostNodeError when a node cannot be reached.
        """
        for adapter in ADAPTERS:
            (self.control_root / adapter).mkdir(parents=True, exist_ok=True)
        done = playbook(
            self.root,
            self.inventory,
            name,
            {**self.variables, **deployment_file},
            limit=",".join(dict.fromkeys(self.limit)),
            cancelled=self.cancelled if cancellable else None,
        )
        with log.open("a", encoding="utf-8") as file:
            file.write(done.output)
        for host, said in done.unreachable.items():
            raise LostNodeError(host, f"Ansible cannot reach it for {name}.yml: {said}")
        if done.status == "canceled":
            raise DeployError(f"{name}.yml was interrupted")
        if done.status == "timeout":
            raise DeployError(f"{name}.yml did not end within {PLAY_LIMIT_S} s; log: {log}")
        if done.status != "successful":
            raise DeployError(f"{name}.yml failed: {' | '.join(done.failures) or 'no task reported why'}; log: {log}")

    def endpoint(self, deployment: Deployment) -> dict[str, Any]:
        """Read what ``deploy.yml`` left about the running system."""
        path = self.control_root / adapter_of(deployment.system) / "endpoint.json"
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
