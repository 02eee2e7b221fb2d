"""Calling loadgen: one process per load, prewarm or trial on the client node, watched from outside."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import InputError, RunError
from runner.files import tail, write_json
from runner.hosts import Host, LostNodeError, Processes

LOADGEN = Path("target/release/loadgen")
ANTICACHED = Path("target/release/anticached")
MICRO = Path("target/release/anticache-micro")
WAIT_S = 0.2  # between looks at an interruption
SERVER_CHECK_S = 0.5
GRACE_S = 15.0  # what loadgen gets to write its result after SIGTERM
DEATH_GRACE_S = 5.0  # what it gets to notice by itself that a server died
TRIAL_SLACK_S = 120.0  # connecting terminals, a minute for outstanding transactions, counters, writing results
SECRET = ("password", "secret")


@dataclass(frozen=True)
class Outcome:
    """How a loadgen process ended; `stopped` says why the runner ended it, empty when it ended by itself."""

    exit_code: int
    stopped: str
    last_line: str
    program: str = "loadgen"


@dataclass(frozen=True)
class Client:
    """Where loadgen, or a program that is called like it, runs: a host, its places, the program as it lies there."""

    host: Host
    tools: Path
    program: Path
    name: str = "loadgen"
    """In the names of its files, and in messages."""


def binary(root: Path) -> Path:
    """Return the loadgen binary; raises InputError with the command that builds it."""
    path = root / LOADGEN
    if not path.is_file():
        raise InputError(f"{path} is missing: build it with `make build`")
    return path


def without_secrets(endpoint: dict[str, Any]) -> dict[str, Any]:
    """Return what may be recorded of an endpoint: nothing whose name speaks of a password or a secret."""
    return {name: value for name, value in endpoint.items() if not any(word in name for word in SECRET)}


def call(
    client: Client,
    verb: str,
    spec: dict[str, Any],
    directory: Path,
    *,
    cancelled: Callable[[], bool],
    limit_s: float,
    servers: Processes | None = None,
    out: bool = False,
) -> Outcome:
    """Run ``loadgen <verb>`` on the client node and bring what it wrote into `directory`.

    Its messages go to ``loadgen-<verb>.log`` there, its spec, less passwords, to ``loadgen-<verb>.json`` (or the
    client's name instead). It is ended
    when it takes longer than `limit_s`, when `cancelled` says so, or when one of `servers` died. Raises LostNodeError
    when one of the two nodes does not answer any more.
    """
    endpoint: dict[str, Any] = spec.get("endpoint", {})
    shown = {**spec, "endpoint": without_secrets(endpoint)}
    write_json(directory / f"{client.name}-{verb}.json", shown)
    host = client.host
    work = host.make_work(client.tools / "work")
    log_name = f"{client.name}-{verb}.log"
    try:
        spec_path, endpoint_path = work / "spec.json", work / "endpoint-with-passwords.json"
        host.write(spec_path, json.dumps(shown).encode())
        host.write(endpoint_path, json.dumps(endpoint).encode(), mode=0o600)
        command = [str(client.program), verb, "--spec", str(spec_path), "--endpoint", str(endpoint_path)]
        command += ["--out", str(work)] if out else []
        try:
            pid = host.spawn(command, work / log_name)
        except OSError as error:
            raise RunError(f"{client.name} cannot be started on {host.name}: {error}") from None
        try:
            exit_code, stopped = _watch(client, pid, cancelled, limit_s, servers)
        finally:
            _fetch(host, work, directory, leave={spec_path.name, endpoint_path.name})
    finally:
        with contextlib.suppress(LostNodeError):
            host.remove_work(work)
    lines = [line for line in tail(directory / log_name, 20).splitlines() if line.strip()]
    return Outcome(exit_code, stopped, lines[-1].strip() if lines else "", client.name)


def _fetch(host: Host, work: Path, directory: Path, leave: set[str]) -> None:
    """Copy the files of a work directory, adding to those that are there."""
    for name, is_directory in host.entries(work).items():
        if not is_directory and name not in leave:
            with (directory / name).open("ab") as file:
                file.write(host.read(work / name))


def _watch(
    client: Client, pid: int, cancelled: Callable[[], bool], limit_s: float, servers: Processes | None
) -> tuple[int, str]:
    """Wait for the end of the program, or bring it about; return its exit code, and the reason in the latter case."""
    host = client.host
    began = checked = time.monotonic()
    died_at: float | None = None
    while True:
        code = host.wait(pid, WAIT_S)
        if code is not None:
            return code, ""
        now = time.monotonic()
        if cancelled():
            return host.end(pid, GRACE_S), "interrupted"
        if now > began + limit_s:
            return host.end(pid, GRACE_S), f"{client.name} did not end within {limit_s:.0f} s and was ended"
        if servers is not None and died_at is None and now - checked > SERVER_CHECK_S:
            checked = now
            died_at = now if _dead(servers, host, pid) else None
        if died_at is not None and now - died_at > DEATH_GRACE_S:
            return host.end(pid, GRACE_S), "a server died"


def _dead(servers: Processes, host: Host, pid: int) -> list[str]:
    """Name the dead servers; when their node is lost, end loadgen, which would wait for them, and say so."""
    try:
        return servers.dead()
    except LostNodeError:
        host.end(pid, GRACE_S)
        raise
