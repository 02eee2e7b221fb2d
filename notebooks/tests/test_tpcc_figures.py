"""Figures 7 and 12 on a run of the real systems (scale tiny), as it was recorded, and on what may go wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import fig07, fig12, parts, tables
from runner import collect

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "tpcc"


@pytest.fixture(scope="session")
def recorded() -> pd.DataFrame:
    return collect.read_csv(RECORDED / "trials.csv")


@pytest.fixture
def seven(recorded: pd.DataFrame) -> pd.DataFrame:
    return recorded[recorded["experiment"] == "fig07"].reset_index(drop=True)


@pytest.fixture
def twelve(recorded: pd.DataFrame) -> pd.DataFrame:
    return recorded[recorded["experiment"] == "fig12"].reset_index(drop=True)


@pytest.fixture
def run(recorded: pd.DataFrame, tmp_path: Path, as_latest: Callable[[pd.DataFrame], Path]) -> Path:
    shutil.copytree(RECORDED, tmp_path / "results" / "runs" / "recorded")
    return as_latest(recorded)


def _heights(figure: Figure) -> list[float]:
    bars = (c for axes in figure.axes for c in axes.containers)
    return sorted(round(p.get_height(), 3) for c in bars for p in c if isinstance(p, Rectangle))


def _crosses(figure: Figure) -> int:
    return sum(np.size(line.get_xdata()) for line in figure.axes[0].lines if line.get_marker() == "x")


def test_a_bar_for_every_cell(seven: pd.DataFrame) -> None:
    valid = seven[seven["status"] == "ok"]
    assert len(valid) == len(seven) == 9, "five systems at 1x, four at 2x"
    figure = fig07.draw(seven)
    assert _heights(figure) == sorted(round(float(v), 3) for v in valid["throughput_txn_s"])
    axes = figure.axes[0]
    shown = [t.get_text().split("\n") for t in axes.get_xticklabels()]
    assert [first for first, _ in shown] == ["1x", "2x"]
    assert shown[1][1] == "1.4x", "counted against all memory it is less, and the figure says so"
    assert shown[0][1].startswith("1.0x, 0.")
    assert shown[0][1].endswith("x without anti-caching"), "which has more memory"
    assert axes.get_ylim()[0] == 0
    assert _crosses(figure) == 0


def test_an_inconsistent_trial_is_a_cross_and_no_bar(seven: pd.DataFrame) -> None:
    broken = seven.copy()
    mysql = (broken["system"] == "mysql") & (broken["data_memory_ratio"] == 2)
    broken.loc[mysql, ["status", "flags", "reason"]] = ["invalid", "inconsistent", "3 violations"]
    figure = fig07.draw(broken)
    assert len(_heights(figure)) == 8
    assert _crosses(figure) == 1
    assert "no valid trial" in [t.get_text() for t in figure.legends[0].get_texts()]


def test_several_trials_have_an_interval(seven: pd.DataFrame) -> None:
    second = seven.copy()
    second["trial"] = 1
    second["trial_hash"] += "-2"
    second["throughput_txn_s"] = second["throughput_txn_s"] * 1.1
    bars = [c for c in fig07.draw(pd.concat([seven, second])).axes[0].containers if getattr(c, "errorbar", None)]
    assert len(bars) == 9
    assert not [c for c in fig07.draw(seven).axes[0].containers if getattr(c, "errorbar", None)]


def test_the_table_shows_both_ratios(seven: pd.DataFrame) -> None:
    frame = tables.tpcc(seven)
    assert len(frame) == 9
    assert set(frame["consistency"]) == {"ok"}
    at_two = frame[(frame["data/memory"] == 2) & (frame["system"] == "mysql")].iloc[0]
    assert at_two["data / all memory"] == pytest.approx(1.43, abs=0.03)
    assert at_two["data/memory at the end"] > 1.99
    assert (frame["New-Orders per minute"] > 0).all()
    assert frame["share of New-Orders"].between(0.35, 0.55).all()


def test_a_line_for_every_eviction(twelve: pd.DataFrame, run: Path) -> None:
    figure = fig12.draw(twelve, run)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["(a) YCSB, read-heavy, s = 1, 2x", "(b) TPC-C, 2x (1.4x of the whole memory budget)"]
    for axes, benchmark in zip(figure.axes, ("ycsb", "tpcc"), strict=True):
        trial = twelve[twelve["benchmark"] == benchmark].iloc[0]
        expected = round(float(trial["evictions_per_s"]) * float(trial["measured_s"]))
        drawn = [c for c in axes.collections if isinstance(c, LineCollection)]
        assert sum(len(c.get_segments()) for c in drawn) == expected
        assert f"{expected:,} evictions" in [t.get_text() for t in axes.texts]
        tenths = next(line for line in axes.lines if to_colour(line) == fig12.TENTHS_COLOUR)
        assert np.sum(np.asarray(tenths.get_ydata())) / 10 == trial["committed"]


def to_colour(line: Any) -> str:
    return str(line.get_color())


def test_without_a_valid_trial_the_panel_says_why(twelve: pd.DataFrame, run: Path) -> None:
    broken = twelve.copy()
    broken.loc[broken["benchmark"] == "tpcc", ["status", "reason"]] = ["invalid", "2 violations"]
    axes = fig12.draw(broken, run).axes[1]
    assert [t.get_text() for t in axes.texts] == ["invalid: 2 violations"]
    only = fig12.draw(twelve[twelve["benchmark"] == "ycsb"], run).axes[1]
    assert [t.get_text() for t in only.texts] == ["not measured at this scale"]


def test_files_are_the_same_for_the_same_data(seven: pd.DataFrame, twelve: pd.DataFrame, run: Path) -> None:
    for place in ("a", "b"):
        parts.save(fig07.draw(seven), run / place, "fig07")
        parts.save(fig12.draw(twelve, run), run / place, "fig12")
    names = sorted(p.name for p in (run / "a").iterdir())
    assert names == [f"{figure}.{suffix}" for figure in ("fig07", "fig12") for suffix in ("pdf", "png", "svg")]
    for name in names:
        assert (run / "a" / name).read_bytes() == (run / "b" / name).read_bytes(), name
