"""What evictions did to a trial, from files as loadgen writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import evictions


def _write(directory: Path, evicted_at: list[float], tenths: list[int]) -> None:
    seconds = [sum(tenths[at : at + 10]) for at in range(0, len(tenths), 10)]
    lines = [f"{second},{count}" for second, count in enumerate(seconds)]
    (directory / "timeline.csv").write_text("\n".join(["second,committed", "-1,999", *lines, ""]))
    lines = [f"{tenth},{count}" for tenth, count in enumerate(tenths)]
    (directory / "tenths.csv").write_text("\n".join(["tenth,committed", *lines, ""]))
    events = [f"{second},eviction,1" for second in evicted_at] + ["0.5,fetch,0"]
    (directory / "events.csv").write_text("\n".join(["second,kind,blocks", *events, ""]))


def test_throughput_in_tenths_with_an_eviction_against_the_others(tmp_path: Path) -> None:
    tenths = [100] * 20
    tenths[3], tenths[15] = 40, 60
    _write(tmp_path, [-0.5, 0.31, 0.39, 1.59, 2.5], tenths)
    found = evictions.read(tmp_path, 2.0).metrics(2.0)
    assert found["throughput_share_at_evictions"] == pytest.approx(0.5)
    assert found["evictions_per_s"] == pytest.approx(1.5), "two in one tenth are two, and the warm-up's is none"
    assert found["throughput_variation"] == pytest.approx(20 / 2**0.5 / 950)


def test_half_a_second_at_the_end_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, [0.1], [100] * 20 + [50] * 5)
    assert evictions.read(tmp_path, 2.5).metrics(2.5)["throughput_variation"] == 0


@pytest.mark.parametrize("evicted_at", [[], [second / 10 for second in range(20)]])
def test_without_both_kinds_of_tenths_there_is_no_share(tmp_path: Path, evicted_at: list[float]) -> None:
    _write(tmp_path, evicted_at, [100] * 20)
    found = evictions.read(tmp_path, 2.0).metrics(2.0)
    assert found["throughput_share_at_evictions"] is None
    assert found["evictions_per_s"] == len(evicted_at) / 2


def test_a_system_that_records_no_evictions_has_none(tmp_path: Path) -> None:
    _write(tmp_path, [0.1], [100] * 20)
    (tmp_path / "events.csv").unlink()
    found = evictions.read(tmp_path, 2.0).metrics(2.0)
    assert (found["evictions_per_s"], found["throughput_share_at_evictions"]) == (None, None)
    assert evictions.read(tmp_path / "none", 2.0).metrics(2.0)["throughput_variation"] is None
