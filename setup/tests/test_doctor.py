"""Every check of the doctor, with what it is given; and the whole report on this machine."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import control_groups
import pytest

import doctor
from runner import machine

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^(ok  |warn|FAIL)  \S.*$")


def test_the_report_on_this_machine_has_one_line_per_check() -> None:
    result = subprocess.run([sys.executable, "setup/doctor.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    *lines, summary = result.stdout.splitlines()
    assert not result.stderr
    assert all(LINE.match(line) for line in lines)
    failures = sum(line.startswith("FAIL") for line in lines)
    assert summary.startswith(f"{len(lines)} checks: {failures} failures")
    assert result.returncode == (1 if failures else 0)


def test_it_needs_only_the_standard_library() -> None:
    command = [sys.executable, "-I", "-S", "-c", "import runpy; runpy.run_path('setup/doctor.py')"]
    subprocess.run(command, cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("os_release", "level"),
    [
        ('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"', "ok"),
        ('ID=debian\nVERSION_ID="13"', "warn"),
        ("ID=fedora\nVERSION_ID=40", "FAIL"),
        (None, "FAIL"),
    ],
)
def test_release(os_release: str | None, level: str) -> None:
    assert doctor.check_release(os_release).level == level


@pytest.mark.parametrize(
    ("text", "version"), [("cargo 1.88.0 (abc 2025-01-01)", (1, 88, 0)), ("nothing", ()), (None, ())]
)
def test_version_of(text: str | None, version: tuple[int, ...]) -> None:
    assert doctor.version_of(text) == version


def test_a_cargo_that_is_too_old_says_which_is_wanted() -> None:
    finding = doctor.check_cargo('rust-version = "99.1"')
    assert finding.level == "warn"
    assert "wanted 99.1" in finding.message
    assert "cargo-web" in finding.remedy


def test_missing_packages_are_named_and_conditional_ones_left_out() -> None:
    listing = "# comment\ngcc\nmake\n\nnpm unless-command npm\ncargo-web rust\n"
    assert doctor.check_packages(listing, lambda _: True).level == "ok"
    finding = doctor.check_packages(listing, lambda package: package == "make")
    assert finding.level in ("warn", "FAIL")
    assert finding.message.endswith(": gcc")


def test_the_real_package_list_is_understood() -> None:
    listing = "".join(path.read_text() for path in sorted((ROOT / "setup").glob("debian-packages*.txt")))
    finding = doctor.check_packages(listing, lambda _: False)
    assert {"python3-venv", "gcc", "libpango-1.0-0"} <= set(finding.message.split())
    assert "cargo-web" not in finding.message.split()


@pytest.mark.parametrize(("free_gib", "level"), [(1, "FAIL"), (5, "warn"), (9, "ok")])
def test_disk(free_gib: int, level: str) -> None:
    assert doctor.check_disk(free_gib * doctor.GIB).level == level


@pytest.mark.parametrize(("available_gib", "level"), [(1, "FAIL"), (5, "warn"), (9, "ok")])
def test_memory(available_gib: int, level: str) -> None:
    assert doctor.check_memory(available_gib * doctor.GIB).level == level


@pytest.mark.parametrize(("count", "level"), [(1, "FAIL"), (2, "ok")])
def test_cpus(count: int, level: str) -> None:
    assert doctor.check_cpus(count).level == level


def test_a_port_in_use_is_reported_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        finding = doctor.check_port("MySQL", port)
        assert finding.level == "warn"
        assert f"process {os.getpid()}" in finding.message
    assert doctor.check_port("MySQL", port).level == "ok"


def test_direct_io_works_on_a_disk_and_fails_where_nothing_can_be_written(tmp_path: Path) -> None:
    assert doctor.check_direct_io(ROOT / "var").level == "ok"
    assert not list(ROOT.glob(".doctor-*")) + list((ROOT / "var").glob(".doctor-*"))
    finding = doctor.check_direct_io(Path("/proc"))
    assert finding.level == "FAIL"
    assert "/proc" in finding.message


def test_a_mysql_that_is_missing_or_broken(tmp_path: Path) -> None:
    assert doctor.check_mysql(tmp_path).remedy == "`make setup`"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mysqld").write_text("#!/bin/false\n")
    (tmp_path / "bin" / "mysqld").chmod(0o755)
    finding = doctor.check_mysql(tmp_path)
    assert finding.level == "FAIL"
    assert "make provision" in finding.remedy


def test_an_environment_of_another_lock_is_old(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("a==1\n")
    assert doctor.check_environment(tmp_path).level == "warn"
    (tmp_path / ".venv").mkdir()
    digest = subprocess.run(
        ["sha256sum"], stdin=(tmp_path / "requirements.lock").open(), capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / ".venv" / ".installed-from").write_text(f"{digest.strip()} {tmp_path}\n")
    assert doctor.check_environment(tmp_path).level == "ok"
    (tmp_path / "requirements.lock").write_text("a==2\n")
    assert doctor.check_environment(tmp_path).level == "warn"


@pytest.mark.parametrize(
    ("open_files", "locked_bytes", "levels"),
    [
        (1024, 64 << 20, ["ok", "ok"]),
        (256, 65536, ["FAIL", "warn"]),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, ["ok", "ok"]),
    ],
)
def test_limits(open_files: int, locked_bytes: int, levels: list[str]) -> None:
    assert [finding.level for finding in doctor.check_limits(open_files, locked_bytes)] == levels


@pytest.mark.parametrize(("governors", "level"), [(set(), "ok"), ({"performance"}, "ok"), ({"powersave"}, "warn")])
def test_governor(governors: set[str], level: str) -> None:
    assert doctor.check_governor(governors).level == level


@pytest.mark.parametrize(("load_average", "level"), [(0.9, "ok"), (1.0, "ok"), (1.1, "warn")])
def test_load(load_average: float, level: str) -> None:
    assert doctor.check_load(load_average, 2).level == level


def test_the_busy_share_is_that_of_the_runner() -> None:
    assert doctor.BUSY_SHARE == machine.BUSY_SHARE


def test_huge_pages_show_the_chosen_setting() -> None:
    assert doctor.check_huge_pages("always [madvise] never").message == "transparent: madvise"


def test_no_servers_of_ours_in_an_empty_directory(tmp_path: Path) -> None:
    assert doctor.check_stale_servers(tmp_path).level == "ok"


@pytest.mark.parametrize(
    ("controllers", "level", "words"),
    [
        ("cpuset memory", "ok", "version 2, by directories: memory can be limited, and CPUs"),
        ("memory", "warn", "affinity alone"),
        ("pids", "FAIL", "or set memory_enforced: false in the inventory"),
    ],
)
def test_control_groups(tmp_path: Path, controllers: str, level: str, words: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text(controllers)
    finding = doctor.check_control_groups(control_groups.Node(tmp_path, user=0))
    assert finding.level == level
    assert words in finding.line()
