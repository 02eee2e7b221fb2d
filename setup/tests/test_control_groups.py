"""Control groups: the real ones of this machine where it has them, and every other kind on a tree of plain files."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import control_groups
import daemons
import pytest
from control_groups import ControlGroupError, Group, Node, Wanted
from nodes import free_port

from runner import control_group

MIB = 1 << 20
V1_MOUNTS = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def real() -> str:
    """Why this machine's own control groups cannot be tested; empty when they can."""
    try:
        control_groups.detect(Node())
    except ControlGroupError as error:
        return str(error)
    return ""


needs_groups = pytest.mark.skipif(bool(real()), reason=real() or "control groups are there")


def wanted(limit_bytes: int = 64 * MIB, cpus: list[int] | None = None) -> Wanted:
    """A deployment of its own name, with nothing but an allowance."""
    return Wanted(f"test {uuid.uuid4()}", 16 * MIB, limit_bytes - 16 * MIB, cpus if cpus is not None else [0])


@pytest.fixture
def group() -> Iterator[Group]:
    asked = wanted()
    made = control_groups.ensure(asked)
    yield made
    assert control_groups.remove(made), "a process of the test is still in its group"
    assert not leftovers(asked)


def leftovers(asked: Wanted) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/{asked.unit}*"))


def inside(group: Group, script: str) -> subprocess.CompletedProcess[str]:
    """Runs Python as a server of the group."""
    command = control_groups.command_in(group, [sys.executable, "-c", script], "server")
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def used(group: Group) -> dict[str, int]:
    return control_group.usage(group.endpoint(), control_group.read_local)


# -- the real thing ----------------------------------------------------------------------------------------------


@needs_groups
def test_a_server_that_exceeds_its_memory_is_killed_and_it_is_said(group: Group) -> None:
    before = used(group)
    done = inside(group, "b = bytearray(200 << 20)")
    assert done.returncode == -9, done
    assert control_groups.exceeded(group, "server").startswith(
        "server exceeded its memory: limit 67108864 bytes = budget 16777216 + allowance 50331648; oom_kill 1"
    )
    said = control_group.exceeded(group.endpoint(), before, used(group), ["mysqld"])
    assert said.startswith("mysqld exceeded its memory: limit 67108864 bytes = budget 16777216")
    assert control_group.exceeded(group.endpoint(), used(group), used(group), []) == "", "only what happened since"


@needs_groups
def test_the_peak_is_recorded_and_can_be_reset(group: Group) -> None:
    assert inside(group, "b = bytearray(40 << 20); b[::4096] = b[::4096]").returncode == 0
    after = used(group)
    assert 40 * MIB < after["peak_bytes"] <= after["limit_bytes"] == 64 * MIB
    assert after["oom_kills"] == 0
    if control_group.reset_peak(group.endpoint(), control_group.write_local) == control_group.SINCE_RESET:
        assert used(group)["peak_bytes"] < 40 * MIB


@needs_groups
def test_page_cache_beyond_the_limit_is_reclaimed_and_no_failure(group: Group, tmp_path: Path) -> None:
    script = f"f = open({str(tmp_path / 'log')!r}, 'wb'); [f.write(bytes(1 << 20)) for _ in range(200)]; f.close()"
    done = inside(group, script)
    (tmp_path / "log").unlink()
    assert done.returncode == 0, done.stderr
    assert used(group)["limit_hits"] > 0, "the file was larger than the limit"
    assert used(group)["oom_kills"] == 0


@needs_groups
def test_the_cpu_set_holds_against_the_server_itself(group: Group) -> None:
    if not group.cpuset:
        pytest.skip(group.why_no_cpuset)
    script = """
import os
try: os.sched_setaffinity(0, range(os.cpu_count()))
except OSError as error: print(error)
print(sorted(os.sched_getaffinity(0)))
"""
    assert inside(group, script).stdout.splitlines()[-1] == "[0]"


@needs_groups
def test_servers_share_a_group_that_goes_with_the_last_one() -> None:
    asked = wanted()
    groups = []
    servers: list[subprocess.Popen[bytes]] = []
    for _ in range(2):
        groups.append(control_groups.ensure(asked))
        command = control_groups.command_in(groups[-1], ["/bin/sleep", "60"], f"server{len(servers)}")
        servers.append(subprocess.Popen(command))
        wait_for_program(servers[-1].pid, "sleep")
    assert groups[0] == groups[1]
    for server in servers:
        control_groups.require_member(groups[0], server.pid, "sleep")
        assert not control_groups.remove(groups[0])
        server.kill()
        server.wait()
    with pytest.raises(ControlGroupError, match="is not in its control group"):
        control_groups.require_member(groups[0], os.getpid(), "pytest")
    assert control_groups.remove(groups[0])
    assert control_groups.remove(groups[0]), "a group that is gone is fine"
    assert not leftovers(asked)


def wait_for_program(pid: int, name: str) -> None:
    """Returns when a process has become the program that it was to execute."""
    for _ in range(3000):
        if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == name:
            return
        os.sched_yield()
        subprocess.run(["sleep", "0.01"], check=True)
    raise AssertionError(f"process {pid} did not become {name}")


@needs_groups
def test_a_limit_above_that_of_an_outer_group_is_refused(group: Group) -> None:
    if group.version != control_groups.V1:
        pytest.skip("the inner group is made by hand below a group of version 1")
    inner = Path(group.directories[0]) / "inner"
    inner.mkdir()
    try:
        (inner / "memory.limit_in_bytes").write_text(str(128 * MIB))
        assert control_groups.outer_limit(control_groups.V1, inner) == 64 * MIB
    finally:
        inner.rmdir()


@needs_groups
def test_what_provisioning_probes_leaves_nothing() -> None:
    kind = control_groups.probe()
    assert kind.version in (1, 2)
    assert not list(kind.memory.glob(f"{control_groups.NAME_PREFIX}*{os.getpid()}*"))


SERVER = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
held = bytearray(int(sys.argv[2]) << 20)
print("ready", flush=True)
while True: time.sleep(60)
"""


def daemon(directory: Path, asked: Wanted, held_mib: int) -> daemons.Daemon:
    port = free_port()
    options = {"name": asked.name, "budget_bytes": asked.budget_bytes, "allowance_bytes": asked.allowance_bytes}
    return daemons.Daemon(
        name="server",
        directory=directory,
        argv=[sys.executable, "-c", SERVER, str(port), str(held_mib)],
        listen=f"127.0.0.1:{port}",
        ready_line="ready",
        cpus=[0],
        control_group={**options, "cpus": [0]},
    )


@needs_groups
def test_a_daemon_lives_in_its_group_and_its_stop_removes_it(tmp_path: Path) -> None:
    asked = wanted()
    server = daemon(tmp_path, asked, 8)
    _, pid = daemons.start(server)
    try:
        state_group = daemons.group_of_state(server.state_path)
        assert state_group is not None
        assert pid in control_groups.members(Path(state_group.directories[0]))
        assert used(state_group)["anonymous_bytes"] > 8 * MIB
        assert os.sched_getaffinity(pid) == {0}
        assert daemons.start(server) == (False, pid)
    finally:
        assert daemons.stop(server.state_path, timeout_s=20)
    assert not leftovers(asked)


@needs_groups
def test_a_daemon_that_exceeds_its_memory_at_its_start_says_so(tmp_path: Path) -> None:
    asked = wanted()
    with pytest.raises(daemons.DaemonError) as caught:
        daemons.start(daemon(tmp_path, asked, 100))
    said = str(caught.value)
    assert said.startswith("server exceeded its memory: limit 67108864 bytes = budget 16777216 + allowance 50331648;")
    assert "ended with signal SIGKILL" in said
    assert not leftovers(asked)


@needs_groups
def test_a_killed_daemon_leaves_a_group_that_the_next_stop_removes(tmp_path: Path) -> None:
    asked = wanted()
    server = daemon(tmp_path, asked, 1)
    _, pid = daemons.start(server)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert leftovers(asked)
    assert not daemons.stop(server.state_path, timeout_s=5)
    assert not leftovers(asked)


@needs_groups
def test_what_cannot_be_made_leaves_nothing() -> None:
    asked = wanted(cpus=[100000])
    with pytest.raises(ControlGroupError, match=r'cannot write "100000" to .*cpuset\.cpus'):
        control_groups.ensure(asked)
    assert not leftovers(asked)


# -- the other kinds, on plain files -----------------------------------------------------------------------------


class Recorder:
    """Stands in for systemctl: keeps the commands, and makes the slice's directory as systemd would."""

    def __init__(self, tree: Path, cpus: str = "") -> None:
        self.tree, self.cpus = tree, cpus
        self.commands: list[str] = []

    def __call__(self, command: list[str]) -> str:
        self.commands.append(" ".join(command))
        limits = dict(part.split("=") for part in command if part.startswith("Memory"))
        if limits:
            unit = next(part for part in command if part.endswith(".slice"))
            self.slice = self.tree / "sys/fs/cgroup" / unit
            self.slice.mkdir()
            (self.slice / "memory.max").write_text(limits["MemoryMax"] + "\n")
            (self.slice / "cpuset.cpus").write_text(self.cpus + "\n")
        return f"/{self.slice.name}" if "show" in command else ""


def tree(place: Path, mountinfo: str, controllers: str = "cpuset memory pids", systemd: bool = False) -> Path:
    """A machine's files below `place`."""
    (place / "proc/self").mkdir(parents=True)
    (place / "proc/self/mountinfo").write_text(mountinfo)
    for name in ("", "memory", "cpuset"):
        (place / "sys/fs/cgroup" / name).mkdir(parents=True, exist_ok=True)
    (place / "sys/fs/cgroup/cgroup.controllers").write_text(controllers + "\n")
    (place / "sys/fs/cgroup/cpuset/cpuset.mems").write_text("0-1\n")
    if systemd:
        (place / "run/systemd/system").mkdir(parents=True)
    return place


def test_version_2_without_systemd(tmp_path: Path) -> None:
    top = tree(tmp_path, V2_MOUNTS) / "sys/fs/cgroup"
    asked = wanted(cpus=[0, 2])
    made = control_groups.ensure(asked, Node(tmp_path, user=0))
    directory = top / asked.unit
    assert made.directories == [str(directory)]
    assert (directory / "memory.max").read_text() == str(64 * MIB)
    assert (directory / "cpuset.cpus").read_text() == "0,2"
    assert (top / "cgroup.subtree_control").read_text() == "+cpuset", "the last of the two that were passed on"
    assert made.cpuset
    command = control_groups.command_in(made, ["/bin/server", "--x"], "server")
    assert command[:2] == ["/bin/sh", "-c"]
    assert command[4:] == [f"{directory}/cgroup.procs", "--", "/bin/server", "--x"]


def test_joining_writes_the_server_s_own_process_id_before_it_runs(tmp_path: Path) -> None:
    made = control_groups.ensure(wanted(), Node(tree(tmp_path, V2_MOUNTS), user=0))
    command = control_groups.command_in(made, [sys.executable, "-c", "import os; print(os.getpid())"], "server")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (Path(made.directories[0]) / "cgroup.procs").read_text() == done.stdout

    (Path(made.directories[0]) / "cgroup.procs").unlink()
    (Path(made.directories[0]) / "cgroup.procs").mkdir()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, ""), "a server must not run outside its group"


def test_version_1_keeps_hands_off_swap_and_takes_the_parent_s_memory_nodes(tmp_path: Path) -> None:
    top = tree(tmp_path, V1_MOUNTS) / "sys/fs/cgroup"
    asked = wanted()
    made = control_groups.ensure(asked, Node(tmp_path, user=0))
    assert made.version == control_groups.V1
    assert (top / "memory" / asked.unit / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert (top / "cpuset" / asked.unit / "cpuset.mems").read_text() == "0-1"
    assert made.endpoint()["path"] == {"limit": f"{top}/memory/{asked.unit}/memory.limit_in_bytes"}


def test_version_1_under_systemd_starts_in_a_delegated_scope(tmp_path: Path) -> None:
    made = control_groups.ensure(wanted(), Node(tree(tmp_path, V1_MOUNTS, systemd=True), user=0))
    command = control_groups.command_in(made, ["/bin/server"], "mysqld")
    assert command[:4] == ["systemd-run", "--scope", "--quiet", "--collect"]
    assert command[4] == f"--unit={made.unit}-mysqld"
    assert command.index("--property=Delegate=yes") < command.index("/bin/sh"), "the scope first, then our group"


@pytest.mark.parametrize(("user", "flag"), [(0, ""), (1000, " --user")])
def test_version_2_under_systemd_asks_for_a_slice(tmp_path: Path, user: int, flag: str) -> None:
    systemctl = Recorder(tree(tmp_path, V2_MOUNTS, systemd=True), cpus="0" if user == 0 else "")
    linger(tmp_path, user)
    asked = wanted()
    node = Node(tmp_path, systemctl, user)
    made = control_groups.ensure(asked, node)
    unit = f"{asked.unit}.slice"
    assert systemctl.commands == [
        f"systemctl{flag} set-property --runtime {unit} MemoryMax={64 * MIB} MemorySwapMax=0 AllowedCPUs=0",
        f"systemctl{flag} start {unit}",
        f"systemctl{flag} show --property=ControlGroup --value {unit}",
    ]
    assert made.cpuset == (user == 0)
    assert bool(made.why_no_cpuset) == (user != 0), "a manager without the controller ignores AllowedCPUs silently"
    command = " ".join(control_groups.command_in(made, ["/bin/server"], "mysqld"))
    assert command == (
        f"systemd-run{flag} --scope --quiet --collect --unit={asked.unit}-mysqld"
        f" --description=anticache-eval: mysqld --slice={unit} -- /bin/server"
    )
    assert control_groups.remove(made, node)
    stopped = [f"stop {asked.unit}-*.scope", f"stop {unit}", f"revert {unit}"]
    assert systemctl.commands[-3:] == [f"systemctl{flag} {what}" for what in stopped]


def linger(place: Path, user: int) -> None:
    """Lets a user's manager outlive his sessions, whatever name he has here."""
    names = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid == user] or [str(user)]
    (place / "var/lib/systemd/linger").mkdir(parents=True)
    (place / "var/lib/systemd/linger" / names[0]).touch()


def test_a_limit_that_systemd_did_not_set_is_refused(tmp_path: Path) -> None:
    systemctl = Recorder(tree(tmp_path, V2_MOUNTS, systemd=True))

    def deaf(command: list[str]) -> str:
        said = systemctl(command)
        (systemctl.slice / "memory.max").write_text("max\n")
        return said

    with pytest.raises(ControlGroupError, match="limits memory to max, wanted 67108864"):
        control_groups.ensure(wanted(), Node(tmp_path, deaf, 0))


def test_an_outer_limit_of_version_2_is_found(tmp_path: Path) -> None:
    top = tree(tmp_path, V2_MOUNTS) / "sys/fs/cgroup"
    (top / "memory.max").write_text(f"{32 * MIB}\n")
    with pytest.raises(ControlGroupError, match="limits memory to 33554432 bytes, less than budget 16777216"):
        control_groups.ensure(wanted(), Node(tmp_path, user=0))


@pytest.mark.parametrize(
    ("mountinfo", "controllers", "user", "message"),
    [
        ("", "", 0, "no control group hierarchy is mounted"),
        (V2_MOUNTS, "cpuset pids", 0, "offers no memory controller, only: cpuset pids"),
        (V1_MOUNTS, "", 1000, "version 1 need root, this is user 1000"),
        (V2_MOUNTS, "memory", 987654, "loginctl enable-linger 987654"),
    ],
)
def test_where_memory_cannot_be_limited_it_is_said_what_to_do(
    tmp_path: Path, mountinfo: str, controllers: str, user: int, message: str
) -> None:
    node = Node(tree(tmp_path, mountinfo, controllers, systemd=True), user=user)
    with pytest.raises(ControlGroupError, match=message) as caught:
        control_groups.ensure(wanted(), node)
    assert "memory_enforced: false" in str(caught.value)


def test_without_a_cpuset_controller_memory_is_limited_all_the_same(tmp_path: Path) -> None:
    made = control_groups.ensure(wanted(), Node(tree(tmp_path, V2_MOUNTS, "memory"), user=0))
    assert made.enforced
    assert not made.cpuset
    assert "no cpuset controller" in made.why_no_cpuset


def test_what_the_inventory_switches_off_is_recorded() -> None:
    options = {"name": "x", "budget_bytes": "16777216", "allowance_bytes": 1, "cpus": ["0"], "enforced": "False"}
    made = control_groups.ensure(Wanted.from_options(options))
    described = made.endpoint()
    assert (described["enforced"], described["path"]) == (False, {})
    assert described["why_not"] == "memory_enforced is false in the inventory"
    assert control_groups.command_in(made, ["/bin/server"], "server") == ["/bin/server"]
    assert control_groups.remove(made)
    with pytest.raises(TypeError):
        Wanted.from_options({**options, "limit": 1})
