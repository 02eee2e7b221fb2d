"""The module that makes and takes away the disk under test, on a small emulated disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daemons
import pytest

import clean

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "ansible" / "library" / "data_disk.py"
SPINDLE = ROOT / "target" / "release" / "spindle"

pytestmark = pytest.mark.skipif(
    "SPINDLE_TESTS_REQUIRED" not in os.environ and (os.geteuid() != 0 or not Path("/dev/fuse").exists()),
    reason="an emulated disk needs root and /dev/fuse",
)


class NodeRoot:
    """A node root with the disk's place in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.disk, self.files = path, path / "disk", path / "files"

    def module(self, state: str, **more: object) -> dict[str, Any]:
        """Calls the module as Ansible does."""
        given = {"state": state, "directory": str(self.disk), "mount_point": str(self.files), "program": str(SPINDLE)}
        text = json.dumps({"ANSIBLE_MODULE_ARGS": {**given, **more}})
        command = [sys.executable, str(MODULE)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeRoot]:
    made = NodeRoot(tmp_path)
    answer = made.module("fresh", profile="hdd-7200", region_bytes=256 << 20)
    assert answer.get("device", "").startswith("/dev/loop"), answer
    yield made
    made.module("absent")


def test_a_disk_that_somebody_is_in_stays_whole(node: NodeRoot) -> None:
    with (node.files / "open").open("w", encoding="utf-8") as held:
        answer = node.module("absent")
        assert answer["failed"]
        assert f"{node.files} is in use by: " in answer["msg"]
        assert f"({os.getpid()})" in answer["msg"]
        held.write("still written")
        held.flush()
        os.fsync(held.fileno())
    assert node.module("absent")["changed"]
    assert not node.disk.exists()
    assert not node.files.is_mount()
    assert not node.module("absent")["changed"]


def test_servers_are_found_beside_a_disk_that_is_gone(node: NodeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.path / "mysql").mkdir()
    (node.path / "mysql" / "mysqld.daemon.json").write_text("{}", encoding="utf-8")
    (node.path / "mysql" / "mysqld.log").touch()
    subprocess.run([str(SPINDLE), "powercut", str(node.disk)], check=True, capture_output=True)
    with pytest.raises(OSError, match="Input/output error"):
        list(node.files.iterdir())
    recorded = [node.path / "mysql" / "mysqld.daemon.json"]
    assert daemons.files_of_servers(node.path, "*.daemon.json") == recorded
    stopped: list[Path] = []
    monkeypatch.setattr(daemons, "stop", lambda path, _timeout_s: stopped.append(path))
    assert clean.stop_servers(node.path) == []
    assert stopped == recorded
    assert node.module("absent")["changed"]
    assert not node.disk.exists()


def test_a_root_that_is_not_there_holds_no_servers(tmp_path: Path) -> None:
    assert daemons.files_of_servers(tmp_path / "nowhere", "*.daemon.json") == []
