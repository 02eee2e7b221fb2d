"""What evictions did to a trial, from files as loadgen writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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


def test_throughput_that_evictions_meet_against_that_which_transactions_meet(tmp_path: Path) -> None:
    tenths = [100] * 20
    tenths[3], tenths[15] = 40, 60
    _write(tmp_path, [-0.5, 0.31, 0.39, 1.59, 2.5], tenths)
    found = evictions.read(tmp_path, 2.0).metrics(2.0)
    met_by_transactions = (18 * 100**2 + 40**2 + 60**2) / (18 * 100 + 40 + 60)
    assert found["throughput_share_at_evictions"] == pytest.approx((40 + 40 + 60) / 3 / met_by_transactions)
    assert found["evictions_per_s"] == pytest.approx(1.5), "two in one tenth are two, and the warm-up's is none"
    assert found["throughput_variation"] == pytest.approx(20 / 2**0.5 / 950)


def test_half_a_second_at_the_end_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, [0.1], [100] * 20 + [50] * 5)
    assert evictions.read(tmp_path, 2.5).metrics(2.5)["throughput_variation"] == 0


def test_without_an_eviction_there_is_no_share(tmp_path: Path) -> None:
    _write(tmp_path, [], [100] * 20)
    found = evictions.read(tmp_path, 2.0).metrics(2.0)
    assert found["throughput_share_at_evictions"] is None
    assert found["evictions_per_s"] == 0


def _course(transactions_per_eviction: int, stall_s: float) -> evictions.Course:
    """Ten minutes of varying load, an eviction after every so many transactions, during which nothing commits."""
    capacity = np.random.default_rng(5).integers(300, 900, 6000)
    committed, places, done = [], [], 0.0
    for tenth, most in enumerate(capacity):
        here, evicted = float(most), 0
        while (due := int((done + here) // transactions_per_eviction - done // transactions_per_eviction)) > evicted:
            evicted += 1
            here = float(most) * max(0.0, 1 - stall_s * evictions.TENTHS_PER_S * evicted)
        done += here
        committed.append(here)
        places += [(tenth + 0.5) / evictions.TENTHS_PER_S] * due
    return evictions.Course(np.ones(600), np.array(committed), np.array(places))


@pytest.mark.parametrize("transactions_per_eviction", [250, 1500, 3000])
def test_the_share_tells_a_dip_from_none_whether_evictions_are_rare_or_everywhere(
    transactions_per_eviction: int,
) -> None:
    # Tenths with an eviction against those without would give 1.10 to 1.14 for no effect at 3000 and 1500.
    steady = _course(transactions_per_eviction, 0.0).metrics(600.0)["throughput_share_at_evictions"]
    assert steady == pytest.approx(1, abs=0.005), "more evictions where there are more transactions are no effect"
    slowed = _course(transactions_per_eviction, 0.01).metrics(600.0)["throughput_share_at_evictions"]
    assert slowed is not None
    assert slowed < 0.992


def test_a_part_of_the_evictions_is_no_figure(tmp_path: Path) -> None:
    _write(tmp_path, [0.31, 1.59], [100] * 20)
    (tmp_path / "result.json").write_text('{"events": {"recorded": 3, "lost": 0, "problem": ""}}')
    assert evictions.read(tmp_path, 2.0).metrics(2.0)["evictions_per_s"] == 1
    for lost in ('{"events": {"recorded": 3, "lost": 1, "problem": ""}}', '{"events": {"lost": 0, "problem": "gone"}}'):
        (tmp_path / "result.json").write_text(lost)
        found = evictions.read(tmp_path, 2.0).metrics(2.0)
        assert (found["evictions_per_s"], found["throughput_share_at_evictions"]) == (None, None)
        assert found["throughput_variation"] == 0


def test_a_line_that_is_cut_off_does_not_count(tmp_path: Path) -> None:
    _write(tmp_path, [0.31, 1.59], [100] * 20)
    whole = evictions.read(tmp_path, 2.0).metrics(2.0)
    for name, cut in (("tenths.csv", "20"), ("tenths.csv", ",\n21,"), ("events.csv", "1.7,evi")):
        with (tmp_path / name).open("a") as file:
            file.write(cut)
    assert evictions.read(tmp_path, 2.0).metrics(2.0) == whole
    assert len(evictions.read(tmp_path, 3.0).tenths) == 20


def test_a_system_that_records_no_evictions_has_none(tmp_path: Path) -> None:
    _write(tmp_path, [0.1], [100] * 20)
    (tmp_path / "events.csv").unlink()
    found = evictions.read(tmp_path, 2.0).metrics(2.0)
    assert (found["evictions_per_s"], found["throughput_share_at_evictions"]) == (None, None)
    assert evictions.read(tmp_path / "none", 2.0).metrics(2.0)["throughput_variation"] is None
