"""Ports for servers of the tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A free port below the range of outgoing connections, where no connection can take it before the server does."""
    for candidate in random.sample(range(25000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", candidate)):
            return candidate
    raise OSError("no free port among 100 tried from 25000 to 32000")
