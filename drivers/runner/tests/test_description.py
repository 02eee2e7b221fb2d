"""Asking an engine what it holds: real processes in its place, for what they may answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import description
from runner.errors import RunError
from runner.hosts import Host


def _endpoint(script: str) -> dict[str, list[str]]:
    return {"anticache_describe": ["sh", "-c", script, "anticached"]}


def test_each_partition_is_asked_and_recorded(tmp_path: Path) -> None:
    answer = """printf '{"arguments": "%s"}' "$*\""""
    description.record(Host("here"), _endpoint(answer), 2, 16, tmp_path)
    found = description.read(tmp_path)
    assert found == {
        "format": 1,
        "most": 16,
        "partitions": [{"arguments": f"--partition {p} --limit 16"} for p in (0, 1)],
    }
    assert description.read(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'anticached: connection refused' >&2; exit 2", "partition 0 holds: anticached: connection refused"),
        ("exit 3", "partition 0 holds: exit code 3"),
        ("echo hello", "partition 0 holds: its answer is no JSON"),
    ],
)
def test_an_engine_that_cannot_be_asked_says_why(script: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=told):
        description.record(Host("here"), _endpoint(script), 1, 16, tmp_path)
    assert not list(tmp_path.iterdir()), "no half of a description"


def test_a_record_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text('{"format": 2}')
    with pytest.raises(RunError, match=r"engine\.json has format 2, not 1: run the trial again"):
        description.read(tmp_path)
    (tmp_path / "engine.json").write_text("{")
    with pytest.raises(RunError, match="is no JSON"):
        description.read(tmp_path)
