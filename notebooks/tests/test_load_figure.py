"""Response time by offered load, on a recorded smoke run of the real systems, and on what may go wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from figures import load, parts
from figures.style import SYSTEMS
from runner import collect, notebooks, store
from runner.files import read_json, write_json
from runner.report import chapters

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "load"
THREE = ("mysql", "mysql-memcached", "anticache-alru")


@pytest.fixture(scope="session")
def recorded() -> pd.DataFrame:
    """As it was recorded."""
    return collect.read_csv(RECORDED / "trials.csv")


@pytest.fixture
def table(recorded: pd.DataFrame) -> pd.DataFrame:
    """The same, each trial valid: what is wrong with a trial, a test says itself."""
    return recorded.assign(status="ok", flags="", reason="")


def _with(table: pd.DataFrame, system: str, offered_txn_s: float, **values: Any) -> pd.DataFrame:
    chosen = (table["system"] == system) & (table["offered_txn_s"] == offered_txn_s)
    assert chosen.any()
    changed = table.copy()
    for name, value in values.items():
        changed[name] = changed[name].mask(chosen, value)
    return changed


def _points(axes: Axes) -> list[tuple[float, float]]:
    """Where the markers of a panel stand."""
    lines = (container[0] for container in axes.containers)
    return sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines)


def _marked(axes: Axes, marker: Any) -> list[float]:
    wanted = MarkerStyle(marker).get_marker()
    lines = [line for line in axes.lines if MarkerStyle(line.get_marker()).get_marker() == wanted]
    return sorted(float(x) for line in lines for x in np.asarray(line.get_xdata()))


def _legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_recorded_run_is_of_the_three_architectures(recorded: pd.DataFrame) -> None:
    assert set(recorded["system"]) == set(THREE)
    measured = recorded[recorded["status"] == "ok"]
    assert len(measured) == len(recorded) == 6
    # What arrived waits at least as long as the work takes, and the same arrived at all of them.
    assert (measured["response_us_p99"] >= measured["latency_us_p99"]).all()
    assert (measured.groupby("offered_txn_s")["arrived"].nunique() == 1).all()


def test_a_point_for_every_cell_and_the_service_time_beside_it(table: pd.DataFrame) -> None:
    figure = load.draw(table)
    for axes, quantile in zip(figure.axes, ("p50", "p99"), strict=False):
        expected = zip(table["offered_txn_s"], table[f"response_us_{quantile}"], strict=True)
        assert _points(axes) == sorted((float(x), float(y)) for x, y in expected)
        dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
        service = sorted(float(y) for line in dotted for y in np.asarray(line.get_ydata()))
        assert service == sorted(float(y) for y in table[f"latency_us_{quantile}"])
    expected = zip(table["offered_txn_s"], table["achieved_txn_s"], strict=True)
    assert _points(figure.axes[2]) == sorted((float(x), float(y)) for x, y in expected)
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert [t.get_text() for t in axes.get_xticklabels()] == ["500", "4k"]
        assert axes.get_xlabel() and axes.get_ylabel()
    assert _legend(figure) == [*(SYSTEMS[system].label for system in THREE), "service time"]
    assert "more arrived than was over" in " ".join(str(figure.get_supxlabel()).split())


def test_an_overload_is_marked_and_is_no_other_flag(table: pd.DataFrame) -> None:
    figure = load.draw(_with(table, "mysql", 4000.0, flags="overloaded"))
    assert [_marked(axes, parts.LOWER_BOUND) for axes in figure.axes] == [[4000.0], [4000.0], []]
    assert _legend(figure)[-2:] == ["service time", "overloaded"]
    assert "Of 6 trials 1 valid with a flag: overloaded (MySQL)." in figure.legends[0].get_title().get_text()
    fills = {to_hex(c[0].get_markerfacecolor()) for axes in figure.axes for c in axes.containers}
    assert "#ffffff" not in fills
    both = load.draw(_with(table, "mysql", 4000.0, flags="overloaded;client_late"))
    fills = {to_hex(c[0].get_markerfacecolor()) for axes in both.axes for c in axes.containers}
    assert "#ffffff" in fills, "hollow"
    assert "flagged trial" in _legend(both)


def test_what_a_saturated_client_measured_is_not_the_systems(table: pd.DataFrame) -> None:
    saturated = _with(table, "mysql", 4000.0, status="invalid", flags="client_saturated;overloaded")
    figure = load.draw(saturated)
    assert [_marked(axes, "x") for axes in figure.axes] == [[4000.0]] * 3
    assert all(len(_points(axes)) == 5 for axes in figure.axes)
    row = load.numbers(saturated).query("system == 'MySQL' and `offered txn/s` == '4,000'").iloc[0]
    assert (row["response p99"], row["flags"]) == ("terminals were saturated", "client_saturated, overloaded")


def test_each_kind_of_arrivals_has_its_panels(table: pd.DataFrame) -> None:
    fixed = table.assign(arrival="fixed", trial_hash=table["trial_hash"] + "fixed")
    figure = load.draw(pd.concat([fixed, table]))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title[:3] for title in titles] == ["(a)", "(b)", "(c)", "(d)", "(e)", "(f)"]
    assert all("Poisson" in title for title in titles[:3])
    assert all("equal distances" in title for title in titles[3:])
    assert len(load.draw(fixed).axes) == 3
    assert list(load.numbers(pd.concat([fixed, table]))["arrivals"]) == ["poisson"] * 6 + ["fixed"] * 6


def test_trials_have_an_interval(table: pd.DataFrame) -> None:
    again = table.assign(trial=1, trial_hash=table["trial_hash"] + "again")
    again["response_us_p50"] = again["response_us_p50"] * 1.5
    found = load.points(pd.concat([table, again]).query("system == 'mysql'"), "response_us_p50")
    assert [p.at for p in found] == [500.0, 4000.0]
    for each in found:
        assert each.estimate is not None
        assert each.estimate.interval is not None


def test_the_numbers_are_those_of_the_table(table: pd.DataFrame) -> None:
    numbers = load.numbers(_with(table, "mysql", 500.0, response_us_p99=12_345.0, not_started=7))
    assert list(numbers["system"]) == [SYSTEMS[system].label for system in THREE for _ in range(2)]
    first = numbers.iloc[0]
    assert (first["offered txn/s"], first["response p99"], first["not started"]) == ("500", "12.3 ms", "7")
    assert first["client late p99"] == load.duration(
        table[(table["system"] == "mysql") & (table["offered_txn_s"] == 500)]["client_late_us_p99"].iloc[0]
    )


def test_durations_have_the_unit_that_fits() -> None:
    assert [load.duration(us) for us in (0, 85, 999, 1000, 25_400, 3_000_000)] == [
        "0 µs",
        "85 µs",
        "999 µs",
        "1 ms",
        "25.4 ms",
        "3 s",
    ]


def test_nothing_measured_is_said(table: pd.DataFrame) -> None:
    failed = table.assign(status="failed", flags="", reason="mysqld died")
    for name in collect.MEASURED:
        failed[name] = pd.NA
    figure = load.draw(failed)
    assert all(any("not measured" in text.get_text() for text in axes.texts) for axes in figure.axes)
    assert set(load.numbers(failed)["response p99"]) == {"failed: mysqld died"}


@pytest.mark.parametrize("there", [True, False])
def test_the_notebook_executes_and_says_what_is_not_there(
    recorded: pd.DataFrame, as_latest: Callable[[pd.DataFrame], Path], tmp_path: Path, there: bool
) -> None:
    run = as_latest(recorded if there else recorded.assign(experiment="beyond-alpha"))
    write_json(run / "run.json", {"format": store.RUN_FORMAT})
    write_json(run / "plan.json", {})
    copy = Path(shutil.copy(ROOT / "notebooks" / "beyond-load.ipynb", tmp_path))
    outputs = str([cell.get("outputs") for cell in read_json(notebooks.execute(copy, run))["cells"]])
    assert ("This run has no beyond-load." in outputs) != there
    assert ("response p99" in outputs) == there
    (chapter,) = chapters.of_run(run)
    assert chapter.title == "Beyond the paper: response time by load"
    assert ("<img" in chapter.body) == there
    assert {path.stem for path in run.glob("figures/*.png")} == ({"beyond-load"} if there else set())
