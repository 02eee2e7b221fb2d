"""Figure 6 on the published table: the paper's arrangement, marks for what is missing; what executes notebooks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle

from figures import data, fig06, parts, tables
from figures.style import SYSTEMS
from runner import collect, notebooks, store, systems
from runner.errors import RunError
from runner.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
EMPTY = {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture(scope="session")
def recorded() -> pd.DataFrame:
    """The trials of Figure 6 of the smallest scale, each made valid: what is wrong with a trial, a test says itself."""
    table = collect.read(ROOT / "results" / "published" / "smoke")
    table = table[table["experiment"] == "fig06"].reset_index(drop=True)
    assert table["throughput_txn_s"].notna().all()
    table["status"], table["flags"], table["reason"], table["dirty"] = "ok", "", "", True
    return table


@pytest.fixture(scope="session")
def drawn(recorded: pd.DataFrame) -> Figure:
    """Figure 6 of it; for tests that only look."""
    return fig06.draw(recorded)


@pytest.fixture
def run(recorded: pd.DataFrame, as_latest: Callable[[pd.DataFrame], Path]) -> Path:
    """A run that holds the recorded table and its verdicts, and is the one to be shown."""
    directory = as_latest(recorded)
    write_json(directory / "run.json", {"format": store.RUN_FORMAT})
    write_json(directory / "plan.json", {})
    return directory


@pytest.fixture
def notebook_copies(tmp_path: Path) -> Path:
    """The notebooks in a scratch directory: executing them must not touch the committed ones."""
    place = tmp_path / "notebooks"
    place.mkdir()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(path, place)
    return place


def test_every_system_has_its_own_look() -> None:
    assert set(SYSTEMS) == set(systems.SYSTEMS)
    for attribute in ("label", "colour", "marker"):
        assert len({getattr(look, attribute) for look in SYSTEMS.values()}) == len(SYSTEMS)


def test_colours_differ_in_grey_or_by_line() -> None:
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    looks = list(SYSTEMS.values())
    for index, one in enumerate(looks):
        for other in looks[index + 1 :]:
            assert abs(grey(one.colour) - grey(other.colour)) > 20 or one.line != other.line, (one, other)


def test_the_arrangement_is_the_papers(drawn: Figure) -> None:
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    expected = [f"{mix}, {ratio}x" for mix in ("read-only", "read-heavy", "write-heavy") for ratio in (1, 2, 4, 8)]
    assert titles == [f"({letter}) {text}" for letter, text in zip("abcdefghijkl", expected, strict=True)]
    for axes in drawn.axes:
        left, right = axes.get_xlim()
        assert left > right, "skew falls to the right"
        assert axes.get_ylim()[0] == 0
    for row in range(3):
        assert len({axes.get_ylim() for axes in drawn.axes[4 * row : 4 * row + 4]}) == 1, "a row shares its axis"


def test_panels_that_the_scale_leaves_out_say_so(recorded: pd.DataFrame, drawn: Figure) -> None:
    silent = {
        axes.get_title(loc="left")[1] for axes in drawn.axes if any("not measured" in t.get_text() for t in axes.texts)
    }
    ratios = recorded["data_memory_ratio"].unique()
    letters = ("aei", "bfj", "cgk", "dhl")
    left_out = {
        letter for ratio, column in zip((1, 2, 4, 8), letters, strict=True) if ratio not in ratios for letter in column
    }
    assert silent == left_out != set(), "smoke leaves out columns"


def test_the_baseline_stands_in_the_first_column_only(drawn: Figure) -> None:
    colour = SYSTEMS["anticache-off"].colour.lower()
    for axes in drawn.axes:
        has_line = any(to_hex(line.get_color()) == colour and np.size(line.get_xdata()) > 0 for line in axes.lines)
        assert has_line == (axes.get_title(loc="left")[1] in "aei")


def test_points_are_the_trials(recorded: pd.DataFrame) -> None:
    chosen = recorded[
        (recorded["system"] == "mysql") & (recorded["mix"] == "read-only") & (recorded["data_memory_ratio"] == 8)
    ]
    points = data.series(recorded, "mysql", "read-only", 8.0)
    assert [p.at for p in points] == sorted(chosen["skew"], reverse=True)
    for p in points:
        assert p.estimate is not None
        assert p.estimate.value == dict(zip(chosen["skew"], chosen["throughput_txn_s"], strict=True))[p.at]
        assert p.estimate.interval is None, "a single trial has no interval"


def _altered(table: pd.DataFrame, system: str, **values: Any) -> pd.DataFrame:
    changed = table.copy()
    mask = (changed["system"] == system) & (changed["skew"] == 1.0)
    for name, value in values.items():
        changed[name] = changed[name].mask(mask, value)
    return changed


def test_a_failed_trial_is_a_cross_and_no_zero(recorded: pd.DataFrame) -> None:
    table = _altered(recorded, "mysql", status="failed", reason="mysqld died", throughput_txn_s=pd.NA)
    middle = next(p for p in data.series(table, "mysql", "read-only", 1.0) if p.at == 1.0)
    assert middle.estimate is None
    assert middle.trouble == "failed: mysqld died"
    axes = fig06.draw(table).axes[0]
    crosses = [line for line in axes.lines if line.get_marker() == "x" and np.size(line.get_xdata())]
    assert [np.asarray(line.get_xdata()).tolist() for line in crosses] == [[1.0]]


def test_flagged_trials_are_hollow(recorded: pd.DataFrame) -> None:
    clean = recorded.copy()
    clean["status"], clean["flags"] = "ok", ""
    assert not _hollow(fig06.draw(clean))
    assert _hollow(fig06.draw(_altered(clean, "mysql", flags="not_settled")))
    assert _hollow(fig06.draw(_altered(clean, "mysql", status="invalid", flags="client_saturated")))


def _hollow(figure: Figure) -> bool:
    return any(
        to_hex(line.get_markerfacecolor()) == "#ffffff"
        for axes in figure.axes
        for c in axes.containers
        for line in c[:1]
    )


def test_several_trials_give_an_interval(recorded: pd.DataFrame) -> None:
    second = recorded.copy()
    second["trial"] = 1
    second["throughput_txn_s"] = second["throughput_txn_s"] * 1.1
    estimate = data.series(pd.concat([recorded, second]), "mysql", "read-only", 1.0)[0].estimate
    assert estimate is not None
    assert estimate.trials == 2
    assert estimate.low is not None
    assert estimate.low < estimate.value


def test_ratios_at_8x(recorded: pd.DataFrame) -> None:
    frame = tables.ratios(recorded)
    assert list(frame["mix"].unique()) == ["read-heavy", "read-only", "write-heavy"]
    at = recorded[recorded["data_memory_ratio"] == 8].set_index(["mix", "skew", "system"])["throughput_txn_s"]
    row = frame[(frame["mix"] == "read-only") & (frame["skew"] == 1.5)].iloc[0]
    expected = at["read-only", 1.5, "anticache-alru"] / at["read-only", 1.5, "mysql"]
    assert row["aLRU / mysql"].startswith(f"{expected:.3g}")


def _at(table: pd.DataFrame, system: str, value: float, **more: Any) -> pd.DataFrame:
    """The table with the trial of one cell of the ratios set by hand."""
    changed = table.copy()
    cell = (changed["system"] == system) & (changed["mix"] == "read-only") & (changed["skew"] == 1.5)
    cell &= changed["data_memory_ratio"] == 8
    for name, each in {"throughput_txn_s": value, "status": "ok", "flags": "", **more}.items():
        changed[name] = changed[name].mask(cell, each)
    changed["trial_hash"] += f" with {value}"
    return changed[cell]


def _shown(table: pd.DataFrame) -> str:
    frame = tables.ratios(table)
    return str(frame[(frame["mix"] == "read-only") & (frame["skew"] == 1.5)].iloc[0]["aLRU / mysql"])


def test_failed_trials_have_no_part_in_the_ratios(recorded: pd.DataFrame) -> None:
    clean = pd.concat([_at(recorded, "mysql", 100), _at(recorded, "anticache-alru", 1000)])
    assert _shown(clean) == "10"
    broken = _at(recorded, "anticache-alru", 0.0, status="failed", reason="mysqld died")
    wrong = _at(recorded, "anticache-alru", 9000, status="invalid", flags="verify_failed")
    assert _shown(pd.concat([clean, broken, wrong])) == "10"
    assert _shown(pd.concat([broken, _at(recorded, "mysql", 100)])) == "not measured"
    point = data.series(pd.concat([clean, broken, wrong]), "anticache-alru", "read-only", 8.0)[0]
    assert point.values == (1000.0,), "the figure shows what the table divides"


def test_saturated_trials_count_and_make_a_bound(recorded: pd.DataFrame) -> None:
    saturated = {"status": "invalid", "flags": "client_saturated"}
    mysql, valid = _at(recorded, "mysql", 100), _at(recorded, "anticache-alru", 1000)
    fast = _at(recorded, "anticache-alru", 2000, **saturated)
    assert _shown(pd.concat([mysql, fast])) == "≥ 20 (flagged)"
    table = pd.concat([mysql, valid, fast])
    point = data.series(table, "anticache-alru", "read-only", 8.0)[0]
    assert (point.values, point.lower_bound, point.flagged) == ((1000.0, 2000.0), True, True)
    assert _shown(pd.concat([_at(recorded, "mysql", 100, **saturated), valid])) == "≤ 10 (flagged)"
    figure = fig06.draw(table)
    carets = [line for axes in figure.axes for line in axes.lines if _is_caret(line) and np.size(line.get_xdata())]
    assert [np.asarray(line.get_ydata()).tolist() for line in carets] == [[1500.0]]
    assert "lower bound" in [text.get_text() for text in figure.legends[0].get_texts()]


def _is_caret(line: Line2D) -> bool:
    return MarkerStyle(line.get_marker()).get_marker() == parts.LOWER_BOUND.get_marker()


def test_the_footer_says_which_code(recorded: pd.DataFrame) -> None:
    commit = recorded["commit"].iloc[0][:12]
    assert tables.headline(recorded).endswith(f"code {commit} with uncommitted changes")
    mixed = recorded.copy()
    mixed.loc[0, "commit"] = "c0ffeec0ffeec0ffee"
    assert "code mixed: c0ffeec0ffee with uncommitted changes, " in tables.headline(mixed)


def test_how_many_trials_a_cell_has_is_said(recorded: pd.DataFrame) -> None:
    measured = recorded[recorded["status"] == "ok"]
    once = measured[measured["trial"] == 0]
    twice = pd.concat([once, once.assign(trial=1)])
    for table, said in (
        (once, "1 trial per cell"),
        (twice, "2 trials per cell"),
        (twice.iloc[:-1], "1 to 2 trials per cell"),
        (once.assign(status="planned"), "no trial"),
    ):
        assert f", {said}, code" in tables.headline(table)


def test_the_verdicts_have_their_qualifiers_beside_them(run: Path) -> None:
    frame = tables.claims(run)
    names = list(frame.columns)
    assert names.index("qualifiers") == names.index("verdict") + 1
    assert "one trial" in str(frame.set_index("id").loc["C11", "qualifiers"])
    assert "qualifiers" in tables.alternatives(run).columns


def test_the_papers_ratios_name_claims_that_exist() -> None:
    frame = tables.paper_ratios()
    assert set(frame["claim"]) <= {f"C{n:02d}" for n in range(1, 14)}
    assert frame.set_index(["claim", "where"]).loc[("C02", "§4.3"), "paper"] == "18"


def test_without_a_run_it_is_the_published_one_or_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTICACHE_EVAL_RUN", raising=False)
    monkeypatch.setenv("RESULTS", str(tmp_path))
    assert data.run_directory().parent == ROOT / "results" / "published", "what everybody has"
    (tmp_path / "latest").mkdir()
    with pytest.raises(data.NoRunError, match="is no run directory"):
        data.run_directory()
    monkeypatch.setenv("ANTICACHE_EVAL_RUN", str(tmp_path))
    with pytest.raises(data.NoRunError, match="run `make smoke`, or `make figures` for"):
        data.run_directory()


def test_in_place_saves_the_outputs(run: Path, notebook_copies: Path) -> None:
    notebooks.execute(notebook_copies / "claims.ipynb", run, in_place=True)
    assert any(cell.get("outputs") for cell in read_json(notebook_copies / "claims.ipynb")["cells"])


def test_side_by_side_each_is_executed_and_a_failure_is_the_callers(run: Path, notebook_copies: Path) -> None:
    sources = {"one": "print(1)", "two": "print(2)", "broken": "raise KeyError('no such column')"}
    for name, source in sources.items():
        document = read_json(notebook_copies / "claims.ipynb")
        document["cells"] = [{**cell, "source": source} for cell in document["cells"] if cell["cell_type"] == "code"][
            :1
        ]
        write_json(notebook_copies / f"{name}.ipynb", document)
    made = notebooks.execute_all([notebook_copies / f"{name}.ipynb" for name in ("one", "two")], run)
    printed = [read_json(path)["cells"][0]["outputs"][0]["text"] for path in made]
    assert ["".join(text) for text in printed] == ["1\n", "2\n"], "in the order of the call"
    with pytest.raises(RunError, match=r"broken\.ipynb failed: KeyError: 'no such column'"):
        notebooks.execute_all([notebook_copies / f"{name}.ipynb" for name in ("broken", "one")], run)


def test_a_notebook_finds_nothing_of_the_one_before_it_in_the_kernel(run: Path, tmp_path: Path) -> None:
    sources = ("left = 1; import json; print(left)", "print(*(name in globals() for name in ('left', 'json', '_1')))")
    names = [tmp_path / f"{number}.ipynb" for number in range(2 * len(os.sched_getaffinity(0)))]
    half = len(names) // 2  # there are as many kernels: each executes one of the first half, then one of the second
    for number, name in enumerate(names):
        cell: dict[str, Any] = {
            "cell_type": "code",
            "execution_count": None,
            "id": "only",
            "metadata": {},
            "outputs": [],
        }
        write_json(name, {**EMPTY, "cells": [{**cell, "source": sources[number // half]}]})
    cells = [read_json(path)["cells"][0] for path in notebooks.execute_all(names, run)]
    assert ["".join(cell["outputs"][0]["text"]) for cell in cells] == ["1\n"] * half + ["False False False\n"] * half
    assert {cell["execution_count"] for cell in cells} == {1}


def test_a_failing_cell_is_named(run: Path, notebook_copies: Path) -> None:
    broken = read_json(notebook_copies / "claims.ipynb")
    code = next(cell for cell in broken["cells"] if cell["cell_type"] == "code")
    code["source"] = "raise KeyError('no such column')"
    write_json(notebook_copies / "broken.ipynb", broken)
    with pytest.raises(RunError, match=r"broken\.ipynb failed: KeyError: 'no such column'"):
        notebooks.execute(notebook_copies / "broken.ipynb", run)
