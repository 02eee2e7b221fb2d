"""The set-up scripts, where trying them is cheap: idempotence, bad arguments, cleaning."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import daemons
import pytest
from daemons import Daemon
from nodes import free_port

from runner.agent import Agent

ROOT = Path(__file__).resolve().parents[2]
SLEEPER = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"

STABLE_TARGETS = (
    *("help", "doctor", "setup", "smoke", "test", "lint", "plan", "all"),
    *("figures", "claims", "report", "publish", "status", "retry", "stop", "bench", "counts", "clean"),
)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.servers
def test_a_second_set_up_is_quick_and_says_nothing() -> None:
    assert run("setup/bootstrap.sh").returncode == 0
    stamps = [ROOT / ".venv" / ".installed-from", ROOT / ".tools" / "cargo-directory"]
    before = [stamp.stat().st_mtime_ns for stamp in stamps]
    began_s = time.monotonic()
    second = run("setup/bootstrap.sh")
    took_s = time.monotonic() - began_s
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert [stamp.stat().st_mtime_ns for stamp in stamps] == before
    assert took_s < 5  # some 0.2 s on an idle machine


def test_an_unknown_argument_is_refused() -> None:
    result = run("setup/bootstrap.sh", "--fast")
    assert result.returncode == 1
    assert 'unknown argument "--fast"' in result.stderr


def test_an_unknown_inventory_names_those_that_exist() -> None:
    result = run("setup/provision.sh", "moon")
    assert result.returncode == 1
    assert 'no inventory "moon"' in result.stderr
    assert "lab.example local" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
def test_missing_packages_without_root_say_what_to_run() -> None:
    """A copy of the script and a package that does not exist, as a user who may not become root."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(
            ROOT / "setup", Path(directory) / "setup", ignore=shutil.ignore_patterns("tests", "__pycache__")
        )
        shutil.copy(ROOT / "Cargo.toml", directory)
        (Path(directory) / "setup" / "debian-packages.txt").write_text("no-such-package-anywhere\n")
        subprocess.run(["chown", "-R", "nobody", directory], check=True)
        result = run("setpriv", "--reuid=nobody", "--clear-groups", f"{directory}/setup/bootstrap.sh")
    assert result.returncode == 1
    assert "run as root: apt-get install no-such-package-anywhere" in result.stderr


def test_an_unknown_condition_of_a_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "setup").mkdir()
    shutil.copy(ROOT / "setup" / "bootstrap.sh", tmp_path / "setup")
    shutil.copy(ROOT / "Cargo.toml", tmp_path)
    (tmp_path / "setup" / "debian-packages.txt").write_text("gcc when-raining\n")
    (tmp_path / "setup" / "debian-packages-python.txt").write_text("python3\n")
    result = run(str(tmp_path / "setup" / "bootstrap.sh"))
    assert result.returncode == 1
    assert 'unknown condition "when-raining" of package gcc' in result.stderr


def test_the_python_side_alone_asks_for_neither_compiler_nor_rust(tmp_path: Path) -> None:
    (tmp_path / "setup").mkdir()
    shutil.copy(ROOT / "setup" / "bootstrap.sh", tmp_path / "setup")
    (tmp_path / "setup" / "debian-packages.txt").write_text("gcc when-raining\n")
    (tmp_path / "setup" / "debian-packages-python.txt").write_text("python3\n")
    (tmp_path / ".venv").symlink_to(tmp_path / "elsewhere")  # refused, and the last step: it came so far
    result = run(str(tmp_path / "setup" / "bootstrap.sh"), "--python")
    assert ".venv is a link" in result.stderr
    assert "when-raining" not in result.stderr
    assert not (tmp_path / ".tools" / "cargo-directory").exists()


@pytest.mark.parametrize("what", ["peers", "counts"])
def test_only_who_needs_more_packages_asks_for_them(tmp_path: Path, what: str) -> None:
    (tmp_path / "setup").mkdir()
    shutil.copy(ROOT / "setup" / "bootstrap.sh", tmp_path / "setup")
    shutil.copy(ROOT / "Cargo.toml", tmp_path)
    (tmp_path / "setup" / f"{what}-packages.txt").write_text("gcc when-raining\n")
    (tmp_path / "setup" / "debian-packages.txt").write_text("gcc when-snowing\n")
    (tmp_path / "setup" / "debian-packages-python.txt").write_text("")
    script = str(tmp_path / "setup" / "bootstrap.sh")
    with_them, without = run(script, f"--{what}").stderr, run(script).stderr
    assert "when-raining" in with_them and "when-snowing" not in with_them
    assert "when-snowing" in without and "when-raining" not in without


def test_clean_stops_servers_and_keeps_what_was_published(tmp_path: Path) -> None:
    var, results = tmp_path / "var", tmp_path / "results"
    published, runs = results / "published", results / "runs" / "1"
    for directory in (published, runs):
        directory.mkdir(parents=True)
    (results / "latest").symlink_to(runs)
    port = free_port()
    daemon = Daemon("sleeper", var / "sleeper", [sys.executable, "-c", SLEEPER, str(port)], f"127.0.0.1:{port}")
    _, pid = daemons.start(daemon)

    result = run(sys.executable, "setup/clean.py", "--root", str(tmp_path), "--results", str(results))
    assert result.returncode == 0, result.stderr
    assert "stopped sleeper" in result.stdout
    assert f"removing {var} (" in result.stdout
    assert daemons.start_ticks(pid) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]
    assert [path.name for path in results.iterdir()] == ["published"]

    again = run(sys.executable, "setup/clean.py", "--root", str(tmp_path), "--results", str(results))
    assert (again.returncode, again.stdout) == (0, "")


def test_servers_alone_are_stopped_but_not_under_a_runner(tmp_path: Path) -> None:
    var, runs = tmp_path / "var", tmp_path / "results" / "runs" / "1"
    runs.mkdir(parents=True)
    port = free_port()
    daemon = Daemon("sleeper", var / "sleeper", [sys.executable, "-c", SLEEPER, str(port)], f"127.0.0.1:{port}")
    _, pid = daemons.start(daemon)
    clean = ("setup/clean.py", "--root", str(tmp_path), "--results", str(tmp_path / "results"))
    keeper = Agent()
    assert keeper.hold(str(var / "runner.lock"), '{"pid": 4711}') is None
    for options in ((), ("--servers",)):
        refused = run(sys.executable, *clean, *options)
        assert refused.returncode == 1
        assert "process 4711 is measuring here: end it first" in refused.stderr
    assert daemons.start_ticks(pid) is not None
    keeper.close()
    stopped = run(sys.executable, *clean, "--servers")
    assert (stopped.returncode, stopped.stdout) == (0, "clean: stopped sleeper\n"), stopped.stderr
    assert daemons.start_ticks(pid) is None
    assert runs.is_dir()
    assert (var / "sleeper").is_dir()


def test_every_target_has_a_line_of_help_and_a_figure_without_a_workload_says_so(tmp_path: Path) -> None:
    shown = run("make", "help").stdout
    for target in [*STABLE_TARGETS, *(f"fig{number:02}" for number in range(6, 13))]:
        assert f"make {target} " in shown
    assert "no workload yet" not in shown
    (tmp_path / "workloads").mkdir()
    for name in ("fig01-05", "fig06", "fig09a"):
        (tmp_path / "workloads" / f"{name}.yml").touch()
    there = ("make", "--directory", str(tmp_path), "--file", str(ROOT / "Makefile"))
    result = run(*there, "fig10")
    assert result.returncode != 0
    assert "no workloads/fig10.yml yet; there is: fig01-05 fig06 fig09a" in result.stderr
    without = [line for line in run(*there, "help").stdout.splitlines() if "no workload yet" in line]
    assert [line.split()[1] for line in without][:3] == ["fig07", "fig08", "fig09b"]
