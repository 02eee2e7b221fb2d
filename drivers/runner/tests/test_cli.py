"""The command line: bad input ends with 2 and one clear text before anything starts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.cli import main

ROOT = Path(__file__).resolve().parents[3]


class Done(NamedTuple):
    """What a command left: exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Runner = Callable[..., Done]


@pytest.fixture
def runner(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Runs a command in this process, as ``python -m runner`` would."""
    monkeypatch.chdir(ROOT)

    def call(*arguments: str) -> Done:
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--disk", "hdd-7200"],
            "DISK=hdd-7200: the emulated disk comes with drivers/spindle, not present yet; use DISK=none",
        ),
        (["--experiment", "fig66"], "there is no experiment 'fig66' (workloads/fig66.yml) (did you mean 'fig06'?)"),
        (["--scale", "smokes"], "unknown scale 'smokes' (did you mean 'smoke'?); allowed: tiny, smoke, laptop, paper"),
        (["--systems", "mysql,memcached"], "system 'memcached' is not in the grid"),
        (["--inventory", "nowhere"], "there is no inventory 'nowhere'; present: "),
        (["--where", "skew=2"], "skew '2' is not in the grid"),
        (["--node-var", "mysql_port"], "--node-var 'mysql_port': expected NAME=VALUE"),
        (["--trials", "0"], "Invalid value for '--trials'"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_bad_input_is_refused_before_anything_starts(
    command: str, arguments: list[str], message: str, tmp_path: Path, runner: Runner
) -> None:
    done = runner(command, "--results", str(tmp_path / "results"), *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["status", "retry", "collect", "claims", "figures", "report"])
def test_commands_on_a_run_say_when_there_is_none(command: str, tmp_path: Path, runner: Runner) -> None:
    done = runner(command, "--results", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no run 'latest' in {tmp_path}; none exist yet: start one with `make smoke`" in done.stderr


def test_plan_tells_what_would_be_run(tmp_path: Path, runner: Runner) -> None:
    done = runner("plan", "--scale", "laptop", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for part in ("cells        255", "trials       765", "deployments  51", "anticache-off     15", "time  ", "disk  "):
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_noticed_before_the_start(tmp_path: Path, runner: Runner) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        done = runner("run", "--results", str(tmp_path / "results"), "--node-var", f"node_root={tmp_path}/var")
        assert done.returncode == 2, done.stderr
        assert "0.0 GB free; this needs about" in done.stderr
        assert "choose a smaller SCALE" in done.stderr
        assert not (tmp_path / "results").exists()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
