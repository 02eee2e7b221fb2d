"""Starting and stopping real processes through module_utils/daemons.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import daemons
import pytest
from daemons import Daemon, DaemonError
from nodes import free_port

# A server of five lines: listens, says so, and ends at SIGTERM unless it is told to be stubborn.
SERVER = """
import signal, socket, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready on", sys.argv[1], flush=True)
while True: time.sleep(60)
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def daemon(tmp_path: Path, port: int) -> Iterator[Daemon]:
    server = Daemon(
        name="server",
        directory=tmp_path / "server",
        argv=[sys.executable, "-c", SERVER, str(port)],
        listen=f"127.0.0.1:{port}",
        ready_line="ready on",
        start_timeout_s=20,
    )
    yield server
    with contextlib.suppress(DaemonError):
        daemons.stop(server.state_path, timeout_s=5)


def test_start_is_idempotent_and_stop_leaves_nothing(daemon: Daemon) -> None:
    changed, pid = daemons.start(daemon)
    assert changed
    assert daemons.start(daemon) == (False, pid)
    assert daemon.pid_path.read_text() == f"{pid}\n"
    assert os.getsid(pid) == pid, "the server must not share our session, or Ctrl-C would reach it"

    assert daemons.stop(daemon.state_path, timeout_s=5)
    assert daemons.start_ticks(pid) is None
    assert [path.name for path in daemon.directory.iterdir()] == ["server.log"]
    assert not daemons.stop(daemon.state_path, timeout_s=5)


def test_another_configuration_has_another_fingerprint(daemon: Daemon, tmp_path: Path) -> None:
    config = tmp_path / "server.conf"
    config.write_text("a = 1")
    configured = replace(daemon, config_files=[config])
    before = configured.fingerprint()
    config.write_text("a = 2")
    fingerprints = {
        daemon.fingerprint(),
        before,
        configured.fingerprint(),
        replace(daemon, cpus=[0]).fingerprint(),
        replace(daemon, token="x").fingerprint(),
        replace(daemon, argv=[*daemon.argv, "x"]).fingerprint(),
    }
    assert len(fingerprints) == 6

    daemons.start(daemon)
    with pytest.raises(DaemonError, match="another configuration"):
        daemons.start(replace(daemon, token="x"))


def test_a_failed_start_names_the_log_and_prints_its_end(daemon: Daemon) -> None:
    failing = replace(daemon, argv=[sys.executable, "-c", "print('no such table space'); raise SystemExit(3)"])
    with pytest.raises(DaemonError) as caught:
        daemons.start(failing)
    message = str(caught.value)
    assert "server ended with status 3" in message
    assert str(failing.log_path) in message
    assert message.endswith("  no such table space")
    assert not failing.state_path.exists()


def test_the_reason_is_shown_even_when_much_follows_it(daemon: Daemon) -> None:
    script = "print('ERROR: bad page'); [print('Note', n) for n in range(99)]; raise SystemExit(1)"
    with pytest.raises(DaemonError) as caught:
        daemons.start(replace(daemon, argv=[sys.executable, "-c", script]))
    shown = str(caught.value).partition("its end:\n")[2].splitlines()
    assert shown == ["  ERROR: bad page", "  ...", *(f"  Note {n}" for n in range(79, 99))]


def test_a_server_that_is_never_ready_is_ended(daemon: Daemon) -> None:
    late = replace(daemon, ready_line="a line that never comes", start_timeout_s=0.5)
    with pytest.raises(DaemonError, match=r"not ready on .* after 1 s and was ended"):
        daemons.start(late)
    assert not daemons.listening_inodes(daemons.split_address(daemon.listen)[1])


def test_a_port_in_use_is_reported_with_its_holder(daemon: Daemon, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(DaemonError) as caught:
        daemons.start(daemon)
    assert f"port {port} is in use by process {os.getpid()} (" in str(caught.value)


def test_a_port_held_by_an_outgoing_connection_is_reported(daemon: Daemon, port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as connection:
        connection.bind(("127.0.0.1", port))
        connection.connect(other.getsockname())
        with pytest.raises(DaemonError, match=f"nobody listens on port {port}, but an outgoing connection"):
            daemons.start(daemon)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ('socket.create_server(("127.0.0.2", int(sys.argv[1])))', "tcp 127.0.0.2:{port}"),
        ('socket.create_server(("::1", int(sys.argv[1])), family=socket.AF_INET6)', "tcp ::1:{port}"),
        ('d = socket.socket(type=socket.SOCK_DGRAM); d.bind(("127.0.0.1", int(sys.argv[1])))', "udp 127.0.0.1:{port}"),
    ],
)
def test_a_server_that_listens_elsewhere_too_is_ended(daemon: Daemon, port: int, extra: str, named: str) -> None:
    code = SERVER.replace("print(", f"kept = {extra}\nprint(" if extra.startswith("socket") else f"{extra}\nprint(")
    with pytest.raises(DaemonError) as caught:
        daemons.start(replace(daemon, argv=[sys.executable, "-c", code, str(port)]))
    message = str(caught.value)
    assert f"server listens on {named.format(port=port)} too and was ended" in message
    assert f"may listen on 127.0.0.1:{port} only" in message
    assert not daemons.listening_inodes(port)
    assert not daemon.state_path.exists()


def test_a_server_on_every_address_is_ended(daemon: Daemon, port: int) -> None:
    code = SERVER.replace("127.0.0.1", "")
    with pytest.raises(DaemonError, match=rf"listens on tcp 0\.0\.0\.0:{port} too and was ended"):
        daemons.start(replace(daemon, argv=[sys.executable, "-c", code, str(port)]))
    assert not daemons.listening_inodes(port)


def test_a_missing_binary_is_named(daemon: Daemon) -> None:
    with pytest.raises(DaemonError, match="cannot run /nonexistent/server: No such file"):
        daemons.start(replace(daemon, argv=["/nonexistent/server"]))


def test_cpus(daemon: Daemon) -> None:
    usable = sorted(os.sched_getaffinity(0))
    _, pid = daemons.start(replace(daemon, cpus=usable[:1]))
    assert os.sched_getaffinity(pid) == set(usable[:1])
    daemons.stop(daemon.state_path, timeout_s=5)
    with pytest.raises(DaemonError, match=r"cannot use CPUs \[1000\].*this node offers"):
        daemons.start(replace(daemon, cpus=[1000]))
    assert not daemons.listening_inodes(daemons.split_address(daemon.listen)[1])


def test_a_server_that_ignores_the_stop_is_killed_and_reported(daemon: Daemon) -> None:
    stubborn = replace(daemon, argv=[*daemon.argv, "stubborn"])
    _, pid = daemons.start(stubborn)
    with pytest.raises(DaemonError, match="did not end within 0 s of SIGTERM and was killed"):
        daemons.stop(stubborn.state_path, timeout_s=0.2)
    os.waitpid(pid, 0)
    assert daemons.start_ticks(pid) is None


def test_a_process_id_that_was_used_again_is_not_signalled(daemon: Daemon) -> None:
    daemons.start(daemon)
    state = json.loads(daemon.state_path.read_text())
    daemons.stop(daemon.state_path, timeout_s=5)
    for wrong in ({"start_ticks": 1}, {"boot_id": "another"}):
        live = {**state, "pid": os.getpid(), "start_ticks": daemons.start_ticks(os.getpid())}
        daemon.state_path.write_text(json.dumps({**live, **wrong}))
        assert not daemons.stop(daemon.state_path, timeout_s=1)  # and this test goes on


def test_a_killed_server_counts_as_not_running(daemon: Daemon) -> None:
    _, pid = daemons.start(daemon)
    os.kill(pid, signal.SIGKILL)  # stays a zombie: nobody waits for it
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert daemons.running_state(daemon.state_path) is None
    changed, second = daemons.start(daemon)
    assert changed
    assert second != pid
