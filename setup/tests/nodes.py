"""Ports and playbooks for the servers of the tests."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PLAY_LIMIT_S = 300


def free_port() -> int:
    """A free port below the range of outgoing connections, where no connection can take it before the server does."""
    for candidate in random.sample(range(25000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", candidate)):
            return candidate
    raise OSError("no free port among 100 tried from 25000 to 32000")


def play(checkout: Path, name: str, variables: Mapping[str, object]) -> None:
    """Run a playbook of a checkout on the local inventory, and have it succeed."""
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", f"{name}.yml", "-e", json.dumps(variables)],
        cwd=checkout / "ansible",
        capture_output=True,
        text=True,
        timeout=PLAY_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
