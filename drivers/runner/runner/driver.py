"""Calling loadgen: one process per load, prewarm or trial, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import machine
from runner.errors import InputError
from runner.files import tail, write_json

LOADGEN = Path("target/release/loadgen")
ANTICACHED = Path("target/release/anticached")
POLL_S = 0.05
GRACE_S = 15.0  # what loadgen gets to write its result after SIGTERM
DEATH_GRACE_S = 5.0  # what it gets to notice by itself that a server died
SECRET_WORDS = ("password", "secret")  # in the names of an endpoint's keys
TRIAL_SLACK_S = 120.0  # connecting terminals, a minute for outstanding transactions, counters, writing results


@dataclass(frozen=True)
class Outcome:
    """How a loadgen process ended; `stopped` says why the runner ended it, empty when it ended by itself."""

    exit_code: int
    stopped: str
    last_line: str


def binary(root: Path) -> Path:
    """Return the loadgen binary; raises InputError with the command that builds it."""
    path = root / LOADGEN
    if not path.is_file():
        raise InputError(f"{path} is missing: build it with `make build`")
    return path


def call(
    program: Path,
    verb: str,
    spec: dict[str, Any],
    directory: Path,
    *,
    cancelled: Callable[[], bool],
    limit_s: float,
    servers: machine.Processes | None = None,
    out: bool = False,
) -> Outcome:
    """Run ``loadgen <verb>``, its messages in ``<directory>/loadgen-<verb>.log``.

    The specification is kept in ``<directory>/loadgen-<verb>.json`` without secrets; the endpoint with them goes
    through a pipe and stays nowhere. It is ended when it takes longer than `limit_s`, when `cancelled` says so, or when
    one of `servers` died.
    """
    spec_file = directory / f"loadgen-{verb}.json"
    endpoint: dict[str, Any] = spec.get("endpoint", {})
    write_json(spec_file, {**spec, "endpoint": without_secrets(endpoint)})
    log_path = directory / f"loadgen-{verb}.log"
    command = [str(program), verb, "--spec", str(spec_file), "--endpoint", "/dev/stdin"]
    if out:
        command += ["--out", str(directory)]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the runner alone, which then ends things in order
            env={**os.environ, "NO_COLOR": "1"},
        )
        _hand_over(process, endpoint)
        stopped = _watch(process, cancelled, time.monotonic() + limit_s, limit_s, servers or {})
    lines = [line for line in tail(log_path, 20).splitlines() if line.strip()]
    return Outcome(process.returncode, stopped, lines[-1].strip() if lines else "")


def without_secrets(endpoint: dict[str, Any]) -> dict[str, Any]:
    """Return an endpoint as it may be recorded: without passwords and secrets."""
    return {key: value for key, value in endpoint.items() if not any(word in key for word in SECRET_WORDS)}


def _hand_over(process: subprocess.Popen[bytes], endpoint: dict[str, Any]) -> None:
    """Write the endpoint into the process's pipe; one that has ended already says why itself."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(endpoint).encode())


def _watch(
    process: subprocess.Popen[bytes],
    cancelled: Callable[[], bool],
    end: float,
    limit_s: float,
    servers: machine.Processes,
) -> str:
    """Wait for the end of `process`, or bring it about; return the reason in the latter case."""
    died_at: float | None = None
    checked = 0.0
    while process.poll() is None:
        now = time.monotonic()
        if cancelled():
            _end(process)
            return "interrupted"
        if now > end:
            _end(process)
            return f"loadgen did not end within {limit_s:.0f} s and was ended"
        if died_at is None and now - checked > 10 * POLL_S:
            checked = now
            if machine.dead(servers):
                died_at = now
        if died_at is not None and now - died_at > DEATH_GRACE_S:
            _end(process)
            return "a server died"
        time.sleep(POLL_S)
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, and make it end when it does not listen."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
