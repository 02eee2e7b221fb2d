"""Progress: plain lines where there is no terminal, and a time left that ends at nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from runner.progress import SweepProgress, duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (3600, "60 min"), (30600, "8 h 30 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_without_a_terminal() -> None:
    out = io.StringIO()
    with SweepProgress(2, 100.0, Console(file=out, width=200)) as progress:
        progress.doing("deploying mysql")
        assert progress.seconds_left() == pytest.approx(100.0)
        progress.trial_done("mysql read-only s=1 8x #1", "12,345 txn/s")
        assert 0 < progress.seconds_left() < 100
        progress.trial_done("mysql read-only s=1 8x #2", "failed: mysqld died")
        assert progress.seconds_left() == pytest.approx(0.0)
    lines = out.getvalue().splitlines()
    assert lines[0] == "[0/2] deploying mysql"
    assert lines[1].startswith("[1/2] mysql read-only s=1 8x #1: 12,345 txn/s; ")
    assert lines[2] == "[2/2] mysql read-only s=1 8x #2: failed: mysqld died; 0 s left"
    assert "\x1b" not in out.getvalue()


def test_several_lanes_are_told_apart() -> None:
    out = io.StringIO()
    with SweepProgress(2, 100.0, Console(file=out, width=200), lanes=2) as progress:
        progress.doing("deploying mysql", lane="a")
        progress.trial_done("mysql read-only s=1 8x #1", "12,345 txn/s", lane="b")
        progress.trial_done("mysql read-only s=1 1x #1", "failed: no lane is left")
    lines = out.getvalue().splitlines()
    assert lines[0] == "[0/2] a: deploying mysql"
    assert lines[1].startswith("[1/2] b: mysql read-only")
    assert lines[2].startswith("[2/2] mysql read-only")


def test_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    with SweepProgress(1, 10.0, Console(file=out, width=100, force_terminal=True)) as progress:
        progress.doing("mysql read-only")
        progress.trial_done("mysql read-only #1", "1 txn/s")
    assert "0/1" in out.getvalue()
    assert "left" in out.getvalue()
