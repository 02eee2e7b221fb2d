"""Hosts: the agent answers the same in process and through pipes, and a lost node is noticed, named and cleaned up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner import agent, driver, hosts
from runner.hosts import BOOTSTRAP, Connection, Host, LostNodeError, Piped


@contextlib.contextmanager
def far(name: str = "far") -> Iterator[Host]:
    """A host behind pipes, as ssh would give them."""
    host = Host(name, Piped(name, [sys.executable, "-I", "-c", BOOTSTRAP]))
    try:
        yield host
    finally:
        host.close()


@pytest.fixture(params=["here", "far"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "here":
        yield Host("here")
        return
    with far() as made:
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_files_go_there_and_back(host: Host, tmp_path: Path) -> None:
    content = os.urandom(3 * hosts.CHUNK_BYTES // 2)
    place = tmp_path / "file"
    host.write(place, content, mode=0o600)
    assert place.stat().st_mode & 0o777 == 0o600
    assert host.read(place) == content
    host.write(place, b"")
    assert host.read(place) == b""
    (tmp_path / "directory").mkdir()
    assert host.entries(tmp_path) == {"directory": True, "file": False}
    assert host.directories(tmp_path) == {"directory"}
    assert host.entries(tmp_path / "none") == {}
    with pytest.raises(FileNotFoundError) as caught:
        host.read(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")
    place.write_text("1\n2\n3\n")
    assert host.tail(place, 2) == "2\n3"
    assert host.sha256({"it": place, "none": tmp_path / "none"})["none"] == ""


def test_a_program_is_put_there_once_per_content(tmp_path: Path) -> None:
    program = tmp_path / "loadgen"
    program.write_text("#!/bin/sh\necho 1\n")
    program.chmod(0o755)
    assert Host("here").place(program, tmp_path / "tools") == program
    with far() as host:
        first = host.place(program, tmp_path / "tools")
        assert host.run([str(first)])["stdout"] == "1\n"
        written = first.stat().st_mtime_ns
        assert host.place(program, tmp_path / "tools") == first
        assert first.stat().st_mtime_ns == written
        program.write_text("#!/bin/sh\necho 2\n")
        second = host.place(program, tmp_path / "tools")
        assert host.run([str(second)])["stdout"] == "2\n"
        first.write_text("spoilt")
        program.write_text("#!/bin/sh\necho 1\n")
        assert host.run([str(host.place(program, tmp_path / "tools"))])["stdout"] == "1\n", "what is there is verified"


def test_cpu_time_is_that_of_the_process(host: Host) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            pids = {"busy": busy.pid, "idle": 1, "gone": 2**22 + 1}
            before = host.cpu_of(pids)
            assert set(before) == {"busy", "idle"}
            wait_until(lambda: host.cpu_of(pids)["busy"] >= before["busy"] + 0.1)
        finally:
            busy.kill()
    assert set(host.cpu_of(pids)) == {"idle"}


def test_cpu_time_is_that_of_the_machine_and_of_what_was_started_there(host: Host) -> None:
    before = host.cpu_times()
    host.run([sys.executable, "-c", "sum(range(10_000_000))"])
    used = {kind: seconds - before[kind] for kind, seconds in host.cpu_times().items()}
    assert used["own_s"] >= 0.05
    assert used["user_s"] + used["system_s"] >= used["own_s"] - 0.05, "of ticks of 10 ms"
    assert all(seconds >= 0 for seconds in used.values())


def test_programs_are_started_waited_for_and_ended(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert host.wait(host.spawn(["sh", "-c", "echo said; exit 7"], log), 30.0) == 7
    assert log.read_text() == "said\n"
    sleeping = host.spawn(["sleep", "600"], log)
    assert host.wait(sleeping, 0.01) is None
    assert host.end(sleeping, 30.0) == -signal.SIGTERM
    deaf = host.spawn(["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"], log)
    wait_until(lambda: "deaf" in log.read_text())
    assert host.end(deaf, 0.2) == -signal.SIGKILL
    with pytest.raises(FileNotFoundError):
        host.spawn([str(tmp_path / "none")], log)
    with pytest.raises(OSError, match="did not end within"):
        host.run(["sleep", "600"], timeout_s=0.1)


def test_programs_end_with_the_runner_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from runner.hosts import Host\n"
        "print(Host('here').spawn(['sleep', '600'], Path(sys.argv[1])), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(agent.__file__).parents[1]) as runner:
        try:
            assert runner.stdout is not None
            pid = int(runner.stdout.readline())
            assert runs(pid)
        finally:
            runner.kill()
    wait_until(lambda: not runs(pid))


def test_a_lock_is_held_until_it_is_let_go(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "made" / "runner.lock"
    assert host.hold(path, "the first") is None
    other = Host("other")
    assert other.hold(path, "the second") == "the first"
    host.let_go(path)
    assert other.hold(path, "2nd") is None
    assert path.read_text() == "2nd"
    assert host.hold(path, "again") == "2nd"
    other.close()
    assert host.hold(path, "again") is None


def test_the_bytes_of_a_tree_are_those_on_its_own_file_system(host: Host, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(bytes(100_000))
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (tmp_path / "link").symlink_to("/usr")
    size_bytes = host.allocated_bytes([tmp_path, tmp_path / "none"])
    assert 100_000 <= size_bytes < 1_000_000, "neither holes nor what a link leads to"
    assert host.allocated_bytes([tmp_path / "inner", tmp_path / "inner"]) >= 200_000


def test_what_a_killed_runner_left_is_removed_with_its_passwords(tmp_path: Path) -> None:
    boot = agent.boot_id()[:8]
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = tmp_path / f"work-{boot}-{gone.pid}-abc"
    kept = [tmp_path / f"work-{boot}-{os.getpid()}-abc", tmp_path / f"work-00000000-{gone.pid}-abc"]
    for place in (left, *kept):
        place.mkdir()
    made = Host("here").make_work(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([made, *kept]), "of a running process, or of another machine: not ours"


def test_a_description_says_the_same_from_near_and_far(tmp_path: Path) -> None:
    here = Host("here").describe(tmp_path)
    with far() as host:
        there = host.describe(tmp_path)
    for name in ("boot_id", "kernel", "cpus", "memory_bytes", "operating_system", "cpu_model"):
        assert here[name] == there[name]
    mounted = subprocess.run(["df", "--output=source", tmp_path], capture_output=True, text=True, check=True)
    assert here["node_root_device"]["device"] == mounted.stdout.split()[1]


def test_the_end_of_a_connection_ends_programs_and_removes_passwords(tmp_path: Path) -> None:
    with far() as host:
        work = host.make_work(tmp_path / "work")
        assert work.stat().st_mode & 0o777 == 0o700
        host.write(work / "secret", b"password", 0o600)
        pid = host.spawn(["sleep", "600"], tmp_path / "log")
        assert runs(pid)
    wait_until(lambda: not runs(pid) and not work.exists())
    with pytest.raises(OSError, match="was not made by make_work"):
        Host("here").remove_work(tmp_path)
    assert tmp_path.exists()


@contextlib.contextmanager
def impatient(beat_s: float) -> Iterator[Host]:
    """A host whose agent waits for three seconds only, and a runner that says so often that it is there."""
    limit = b"SILENCE_LIMIT_S = %d" % agent.SILENCE_LIMIT_S
    assert limit in Path(agent.__file__).read_bytes()
    bootstrap = BOOTSTRAP.replace(",'agent'", f".replace({limit!r}, b'SILENCE_LIMIT_S = 3'),'agent'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosts, "ALIVE_INTERVAL_S", beat_s)
        host = Host("far", Piped("far", [sys.executable, "-I", "-c", bootstrap]))
        try:
            yield host
        finally:
            host.close()


def test_a_node_that_was_cut_off_frees_what_the_runner_held(tmp_path: Path) -> None:
    with impatient(beat_s=600.0) as host:
        work = host.make_work(tmp_path / "work")
        assert host.hold(tmp_path / "runner.lock", "the first") is None
        pid = host.spawn(["sleep", "600"], tmp_path / "log")
        host.run(["sleep", "4"])
        assert runs(pid), "a request takes the time that it takes"
        wait_until(lambda: not runs(pid) and not work.exists())
        wait_until(lambda: Host("other").hold(tmp_path / "runner.lock", "the second") is None)
        assert "far" in hosts.alive(host)


def test_a_node_waits_while_the_runner_is_there(tmp_path: Path) -> None:
    with impatient(beat_s=0.1) as host:
        pid = host.spawn(["sleep", "600"], tmp_path / "log")
        time.sleep(5.0)
        assert runs(pid)
        assert hosts.alive(host) == ""


def test_a_lost_node_is_named_once_and_for_good(tmp_path: Path) -> None:
    with far("db7") as host:
        agent = host.run(["sh", "-c", "echo $PPID"])["stdout"]
        os.kill(int(agent), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(LostNodeError, match=r"^node db7 was lost: its connection ended$"):
                host.load_average()
        assert "db7" in hosts.alive(host)


def test_a_node_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with far("db7") as host:
        monkeypatch.setattr(hosts, "ANSWER_LIMIT_S", -30.0 + 0.2)
        with pytest.raises(LostNodeError, match="it did not answer within"):
            host.run(["sleep", "20"], timeout_s=30.0)


def test_what_ssh_says_is_told() -> None:
    with pytest.raises(LostNodeError) as caught:
        hosts.connect("db1", Connection(address="db1.invalid", program="false"))
    assert str(caught.value) == "node db1 was lost: its connection ended"
    with pytest.raises(LostNodeError, match=r"its connection ended: .*for more information"):
        hosts.connect("db1", Connection(address="x", program=sys.executable))  # which does not know ssh's options


def test_the_command_is_what_ansible_would_say() -> None:
    connection = Connection(
        address="192.0.2.1",
        port="2222",
        user="evaluator",
        key="/keys/lab",
        arguments="-o ProxyCommand='ssh -W %h:%p gate' -F /etc/lab",
        python="/opt/python3",
        check_host_key=False,
    )
    command = connection.command()
    assert command[0] == "ssh"
    for part in ("-oPort=2222", "-oUser=evaluator", "-oIdentityFile=/keys/lab", "-oStrictHostKeyChecking=no"):
        assert part in command
    assert "ProxyCommand=ssh -W %h:%p gate" in command
    assert command[-3:-1] == ["--", "192.0.2.1"]
    assert command[-1].startswith("exec /opt/python3 -c ")
    assert "-oStrictHostKeyChecking=no" not in Connection(address="x").command()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_loadgen_on_a_node_leaves_no_password_behind(host: Host, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = script(
        tmp_path / "loadgen",
        f'stat -c %a "$5" >{told}; cat "$3" "$5" >>{told}; echo hello; echo {{}} >"$7/result.json"',
    )
    directory = tmp_path / "trial"
    directory.mkdir()
    spec = {"endpoint": {"mysql_address": "a", "mysql_password": "hush", "engine_secret": "hush"}, "seed": 1}
    client = driver.Client(host, tmp_path / "tools", program)
    outcome = driver.call(client, "run", spec, directory, cancelled=lambda: False, limit_s=60, out=True)
    assert outcome == driver.Outcome(0, "", "hello")
    assert told.read_text().startswith("600\n")
    assert "hush" in told.read_text(), "loadgen itself is told"
    assert {p.name for p in directory.iterdir()} == {"loadgen-run.json", "loadgen-run.log", "result.json"}
    assert not any("hush" in p.read_text() for p in directory.iterdir())
    assert list((tmp_path / "tools" / "work").iterdir()) == []


def test_a_lost_db_node_ends_loadgen_on_the_client(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SERVER_CHECK_S", 0.0)
    pid_file = tmp_path / "pid"
    program = script(tmp_path / "loadgen", f"echo $$ >{pid_file}; exec sleep 600")
    client = driver.Client(host, tmp_path / "tools", program)
    with far("db1") as db:
        servers = db.processes({"sleepd": os.getpid()})
        agent = int(db.run(["sh", "-c", "echo $PPID"])["stdout"])

        def cancelled() -> bool:
            if pid_file.exists() and runs(agent):
                os.kill(agent, signal.SIGKILL)
            return False

        with pytest.raises(LostNodeError, match="node db1 was lost"):
            driver.call(client, "run", {}, tmp_path, cancelled=cancelled, limit_s=60, servers=servers)
    assert not runs(int(pid_file.read_text()))
