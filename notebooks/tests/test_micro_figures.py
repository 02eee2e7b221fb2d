"""Figures 10, 11a and 11b on a recorded run of the real program (scale smoke), and on what may go wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import fig10, fig11a, fig11b, parts
from runner import collect, notebooks
from runner.files import read_json

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "micro"
FIGURES: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "fig10": fig10.draw,
    "fig11a": fig11a.draw,
    "fig11b": fig11b.draw,
}


@pytest.fixture(scope="module")
def recorded() -> pd.DataFrame:
    return collect.read_csv(RECORDED / "trials.csv")


def _of(recorded: pd.DataFrame, name: str) -> pd.DataFrame:
    return recorded[recorded["experiment"] == name].reset_index(drop=True)


@pytest.fixture
def run(recorded: pd.DataFrame, as_latest: Callable[[pd.DataFrame], Path]) -> Path:
    return as_latest(recorded)


def _points(figure: Figure) -> list[float]:
    """What the lines that join points show."""
    lines = (line for axes in figure.axes for line in axes.lines if line.get_marker() == "None")
    return sorted(round(float(y), 9) for line in lines for y in np.asarray(line.get_ydata()))


def _crosses(figure: Figure) -> int:
    return sum(np.size(line.get_xdata()) for axes in figure.axes for line in axes.lines if line.get_marker() == "x")


def _heights(figure: Figure) -> list[float]:
    bars = (c for axes in figure.axes for c in axes.containers)
    return sorted(round(p.get_height(), 9) for c in bars for p in c if isinstance(p, Rectangle))


@pytest.mark.parametrize(("name", "cells"), [("fig10", 6), ("fig11b", 6)])
def test_a_point_for_every_cell(recorded: pd.DataFrame, name: str, cells: int) -> None:
    table = _of(recorded, name)
    assert len(table) == cells
    assert (table["status"] == "ok").all()
    figure = FIGURES[name](table)
    assert _points(figure) == sorted(round(float(v), 9) for v in table["elapsed_ms"])
    assert _crosses(figure) == 0


def test_skew_falls_to_the_right_and_time_is_logarithmic(recorded: pd.DataFrame) -> None:
    axes = fig10.draw(_of(recorded, "fig10")).axes[0]
    left, right = axes.get_xlim()
    assert left > right
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "time for 100,000 updates (ms)"


def test_each_bar_is_the_four_steps(recorded: pd.DataFrame) -> None:
    table = _of(recorded, "fig11a")
    assert set(table["merged"]) == {"block", "tuple"}
    valid = table[table["status"] == "ok"]
    figure = fig11a.draw(table)
    expected = [round(float(v), 9) for step in fig11a.STEPS for v in valid[step]]
    assert _heights(figure) == sorted(expected)
    assert _crosses(figure) == len(table) - len(valid)
    sums = valid[list(fig11a.STEPS)].sum(axis="columns")
    tops = [p.get_y() + p.get_height() for a in figure.axes for c in a.containers for p in c]
    assert max(tops) == pytest.approx(sums.max())
    assert "left bar: block-merge" in " ".join(axes.get_title(loc="right") for axes in figure.axes)


def test_the_papers_sizes_have_a_panel_of_their_own(recorded: pd.DataFrame) -> None:
    table = _of(recorded, "fig11a")
    assert len(fig11a.draw(table).axes) == 1
    larger = [
        table.assign(block_bytes=size, trial_hash=table["trial_hash"] + str(size)) for size in fig11a.PAPER for _ in "."
    ]
    labels = [[t.get_text() for t in axes.get_xticklabels()] for axes in fig11a.draw(pd.concat([table, *larger])).axes]
    assert labels == [["64 KB", "256 KB"], ["1 MB", "2 MB", "4 MB", "8 MB", "16 MB"]]


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_cell_without_a_valid_trial_is_a_cross(recorded: pd.DataFrame, name: str) -> None:
    table = _of(recorded, name)
    table.loc[0, ["status", "flags", "reason"]] = ["invalid", "debug_build", "a debug build"]
    before = int((_of(recorded, name)["status"] != "ok").sum())
    figure = FIGURES[name](table)
    assert _crosses(figure) == before + (1 if _of(recorded, name).loc[0, "status"] == "ok" else 0)
    assert "no valid trial" in [t.get_text() for t in figure.legends[0].get_texts()]


def test_the_tables_stand_beside_the_papers_statements(recorded: pd.DataFrame) -> None:
    ten = fig10.beside(_of(recorded, "fig10"))
    assert list(ten["skew"]) == [1.5, 0.5]
    assert list(ten["paper: singly / doubly"]) == ["20", "less as skew falls"]
    assert all(float(v.replace(",", "")) > 1000 for v in ten["links followed per update"]), "of 4000 tuples"
    blocks = fig11a.beside(_of(recorded, "fig11a"))
    assert list(blocks["block"].unique()) == ["64 KB", "256 KB", "1 MB"]
    assert set(blocks[blocks["block"] == "1 MB"]["paper"]) == {"above 1"}
    indexes = fig11b.beside(_of(recorded, "fig11b"))
    assert list(indexes["indexes"]) == [0, 4, 8]
    assert indexes.loc[0, "hash: each index of a tuple adds (ns)"] == ""
    assert float(str(indexes.loc[2, "ordered: each index of a tuple adds (ns)"])) > 0


def test_without_a_measurement_the_tables_say_so(recorded: pd.DataFrame) -> None:
    gone = _of(recorded, "fig10").assign(status="invalid", flags="debug_build")
    assert (fig10.beside(gone)["doubly / none"] == "not measured").all()


def test_files_are_the_same_for_the_same_data(recorded: pd.DataFrame, tmp_path: Path) -> None:
    for place in ("a", "b"):
        for name, draw in FIGURES.items():
            parts.save(draw(_of(recorded, name)), tmp_path / place, name)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert len(names) == len(FIGURES) * len(parts.FORMATS)
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.parametrize("name", list(FIGURES))
def test_it_executes_and_is_thin(name: str, run: Path, tmp_path: Path) -> None:
    notebook = Path(shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", tmp_path))
    cells = read_json(notebook)["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]
    assert len(lines) < 25, "logic belongs into notebooks/figures/"
    executed = read_json(notebooks.execute(notebook, run))
    code = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
    assert not [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
    assert any("image/png" in o.get("data", {}) for cell in code for o in cell["outputs"])
    for suffix in parts.FORMATS:
        assert (run / "figures" / f"{name}.{suffix}").stat().st_size > 5_000
