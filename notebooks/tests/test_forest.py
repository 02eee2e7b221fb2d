"""The forest plot of two runs: a mark for every cell, what it says, and the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures import forest
from figures.style import SYSTEMS
from runner import collect, context
from runner.compare.cells import CANNOT_TELL, SLOWER, Comparison, Measured, compare
from runner.stats import Estimate
from runner.store import Run


@pytest.fixture(scope="module")
def same() -> Comparison:
    run = Run(context.PUBLISHED / "smoke")
    measured = Measured(run, collect.read(run.path))
    return compare(measured, measured, experiments=["fig06", "fig10"])


@pytest.fixture
def changed(same: Comparison) -> Comparison:
    """MySQL slower by a fifth with an interval, one cell of LRU open, one without a trial, one a bound."""
    cells = list(same.cells)
    for place, cell in enumerate(cells):
        if cell.system == "mysql":
            cells[place] = replace(cell, ratio=Estimate(0.8, 0.7, 0.9, 3), verdict=SLOWER)
    first = next(place for place, cell in enumerate(cells) if cell.system == "anticache-lru")
    cells[first] = replace(cells[first], ratio=Estimate(1.3, 0.6, 2.8, 3), verdict=CANNOT_TELL)
    cells[first + 1] = replace(cells[first + 1], ratio=None, verdict=CANNOT_TELL, note="B: failed: it died")
    cells[first + 2] = replace(cells[first + 2], ratio=Estimate(1.5, 1.4, 1.6, 3), bound="lower")
    return replace(same, cells=cells)


def _marks(figure: Figure, marker: str) -> list[Line2D]:
    return [
        line for axes in figure.axes for line in axes.lines if line.get_marker() == marker and np.size(line.get_xdata())
    ]


def test_a_mark_for_every_cell_of_the_experiment(same: Comparison) -> None:
    figure = forest.draw(same, "fig06")
    drawn = [float(np.asarray(container[0].get_xdata())[0]) for axes in figure.axes for container in axes.containers]
    assert drawn == [1.0] * 81
    labels = [text.get_text() for axes in figure.axes for text in axes.get_yticklabels()]
    assert len(labels) == 18
    assert labels[0] == "read-heavy s=1.5 1x"
    low, high = figure.axes[0].get_xlim()
    assert low < 0.9, "the margin can be seen"
    assert low * high == pytest.approx(1.0), "as wide on both sides"
    assert figure.axes[0].get_xlabel() == "throughput, B / A (right of 1: B is faster)"
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {*(SYSTEMS[name].label for name in SYSTEMS), "within 5 %"}
    assert forest.draw(same, "fig10").axes[0].get_xlabel() == "time, B / A (left of 1: B is faster)"


def test_marks_say_what_is_known(changed: Comparison) -> None:
    figure = forest.draw(changed, "fig06")
    containers = [container for axes in figure.axes for container in axes.containers]
    hollow = [c for c in containers if to_hex(c[0].get_markerfacecolor()) == "#ffffff"]
    assert [float(np.asarray(c[0].get_xdata())[0]) for c in hollow] == [1.3]
    slow = [c for c in containers if to_hex(c[0].get_color()) == to_hex(SYSTEMS["mysql"].colour)]
    arms = {tuple(np.round(segment[:, 0], 3)) for c in slow for segment in c[2][0].get_segments()}
    assert arms == {(0.7, 0.9)}
    assert len(_marks(figure, "x")) == 1
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"cannot tell", "no valid trial", "at least"} <= set(texts)
    assert "at most" not in texts
    low, high = figure.axes[0].get_xlim()
    assert low < 0.7, "what is read is inside"
    assert high > 1.6


def test_systems_of_a_cell_do_not_hide_each_other(same: Comparison) -> None:
    axes = forest.draw(same, "fig06").axes[0]
    heights = [round(float(np.asarray(container[0].get_ydata())[0]), 6) for container in axes.containers]
    assert len(set(heights)) == len(heights)


def test_many_cells_stand_in_several_panels(same: Comparison) -> None:
    cells = [replace(c, cell={**c.cell, "skew": c.cell["skew"] + 10 * n}) for n in range(3) for c in same.cells[:81]]
    figure = forest.draw(replace(same, cells=cells), "fig06")
    assert [len(axes.get_yticks()) for axes in figure.axes] == [24, 24, 6]


def test_a_system_of_others_and_a_very_wide_interval(same: Comparison) -> None:
    cell = next(c for c in same.cells if c.experiment == "fig10")
    stranger = replace(cell, cell={"system": "benchbase-mysql"}, ratio=Estimate(1.1, 1e-6, 1e6, 2), verdict=CANNOT_TELL)
    figure = forest.draw(replace(same, cells=[stranger]), "fig10")
    _, high = figure.axes[0].get_xlim()
    assert 1 < high < 10, "two trials' interval would leave nothing to be seen"
    assert "benchbase-mysql" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_files(changed: Comparison, tmp_path: Path) -> None:
    paths = forest.save_all(changed, tmp_path / "compared")
    names = {path.name for path in paths}
    assert names == {f"compare-{name}.{kind}" for name in ("fig06", "fig10") for kind in ("pdf", "svg", "png")}
    assert all(path.stat().st_size > 5_000 for path in paths)
    text = (tmp_path / "compared" / "compare-fig06.svg").read_text()
    assert "A: 2026-" in text
    assert "(published)" in text
