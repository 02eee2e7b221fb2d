"""Every figure is drawn with what there is, and says what is missing, invalid or flagged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from figures import fig06, fig07, fig12, parts, tables, trouble
from figures.style import SYSTEMS
from runner import collect

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded"
DRAWN: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "fig06": fig06.draw,
    "fig07": fig07.draw,
    "fig12": lambda table: fig12.draw(table, RECORDED / "tpcc"),
}


@pytest.fixture(scope="session")
def recorded() -> dict[str, pd.DataFrame]:
    six, others = (
        collect.read(ROOT / "results" / "published" / "smoke"),
        collect.read_csv(RECORDED / "tpcc" / "trials.csv"),
    )
    six = six[six["experiment"] == "fig06"].assign(status="ok", flags="", reason="")
    return {"fig06": six, **{name: others[others["experiment"] == name] for name in ("fig07", "fig12")}}


@pytest.fixture(params=sorted(DRAWN))
def drawing(request: pytest.FixtureRequest, recorded: dict[str, pd.DataFrame]) -> tuple[str, pd.DataFrame]:
    return request.param, recorded[request.param].reset_index(drop=True).copy()


def _spoil(table: pd.DataFrame, rows: Any, status: str, reason: str = "", flags: str = "") -> None:
    table.loc[rows, ["status", "reason", "flags"]] = [status, reason, flags]
    if status in ("failed", "planned"):
        table.loc[rows, list(collect.MEASURED)] = pd.NA


def _note(figure: Figure) -> str:
    return " ".join(figure.legends[0].get_title().get_text().split())


def test_without_trouble_there_is_no_note(drawing: tuple[str, pd.DataFrame]) -> None:
    name, table = drawing
    assert trouble.note(table) == ""
    assert _note(DRAWN[name](table)) == ""


def test_missing_and_flagged_trials_are_on_the_figure(drawing: tuple[str, pd.DataFrame]) -> None:
    name, table = drawing
    table = pd.concat([table, table], ignore_index=True)  # Figure 12 has two trials only
    _spoil(table, 0, "failed", "mysqld died")
    _spoil(table, 1, "planned", "not run yet")
    _spoil(table, 2, "invalid", "97 %", "client_saturated;not_settled")
    _spoil(table, 3, "ok", flags="not_settled")
    first, second, third, fourth = (SYSTEMS[system].label for system in table["system"].head(4))
    assert _note(DRAWN[name](table)) == (
        f"Of {len(table)} trials 1 not run ({second}), 1 failed ({first}), 1 invalid: client_saturated, not_settled"
        f" ({third}), 1 valid with a flag: not_settled ({fourth})."
    )


def test_a_system_that_is_not_there_is_named(recorded: dict[str, pd.DataFrame]) -> None:
    for name in ("fig06", "fig07"):
        table = recorded[name]
        assert _note(DRAWN[name](table[table["system"] != "mysql-memcached"])) == "Not in this run: MySQL + Memcached."


def test_unlike_machines_are_named_with_what_each_measured(recorded: dict[str, pd.DataFrame]) -> None:
    table = recorded["fig06"].assign(machine="a CPU, 2 cores, 8 GiB, kernel 6.1")
    assert _note(fig06.draw(table.assign(machine=table["mix"].map("a CPU, kernel {}".format)))) == "", "kernels differ"
    one = table["mix"] == "read-only"
    table.loc[~one, "machine"] = "another CPU, 2 cores, 8 GiB, kernel 6.1"
    both = f"{one.sum()} on a CPU, 2 cores, 8 GiB", f"{(~one).sum()} on another CPU, 2 cores, 8 GiB"
    assert trouble.note(table) == (
        f"Measured on different machines: {both[0]} (mix read-only); {both[1]} (mix read-heavy, write-heavy)."
    )
    assert _note(fig06.draw(table)).startswith("Measured on different machines: 27 on a CPU")
    table.loc[table["skew"] == 1.5, "machine"] = "another CPU, 2 cores, 8 GiB, kernel 6.1"
    assert "8 GiB; " in trouble.note(table), "no axis tells them apart"
    _spoil(table, table["mix"] == "read-only", "planned", "not run yet")
    table.loc[table["mix"] == "read-only", "machine"] = ""
    assert "different machines" not in _note(fig06.draw(table)), "what was not measured has no machine"


def test_a_figure_without_any_measurement_is_drawn(drawing: tuple[str, pd.DataFrame]) -> None:
    name, table = drawing
    _spoil(table, table.index, "failed", "the power went")
    _spoil(table, 0, "planned", "not run yet")
    note = _note(fig06.draw(table, scale="log") if name == "fig06" else DRAWN[name](table))
    assert f"Of {len(table)} trials 1 not run (" in note
    assert f", {len(table) - 1} failed (" in note
    assert "nothing measured" in tables.headline(table)


def test_a_line_has_a_gap_where_a_cell_has_no_value(recorded: dict[str, pd.DataFrame]) -> None:
    table = recorded["fig06"].reset_index(drop=True).copy()
    lost = (table["system"] == "mysql") & (table["mix"] == "read-only") & (table["skew"] == 1.0)
    _spoil(table, lost, "failed", "mysqld died")
    line = fig06.draw(table).axes[0].lines[0]
    heights = dict(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))
    assert [skew for skew, height in heights.items() if np.isnan(height)] == [1.0]
    assert len(heights) == table.loc[table["mix"] == "read-only", "skew"].nunique()


def test_an_experiment_that_this_checkout_does_not_have_lacks_nothing(recorded: dict[str, pd.DataFrame]) -> None:
    assert trouble.systems_left_out(recorded["fig07"].assign(experiment="fig99").query("system == 'mysql'")) == []


def test_the_note_fits_and_lies_above_the_panels(recorded: dict[str, pd.DataFrame]) -> None:
    for name in ("fig06", "fig07"):
        table = recorded[name].copy()
        for number, system in enumerate(SYSTEMS):
            flags = "not_settled" if number % 2 else "verify_failed"
            _spoil(table, table["system"] == system, "ok" if number % 2 else "invalid", flags=flags)
        figure = DRAWN[name](table)
        assert len(_note(figure)) > 150
        figure.canvas.draw()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y0 >= max(axes.get_window_extent().y1 for axes in figure.axes)


def test_saved_files_carry_a_description(recorded: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    table = recorded["fig07"].copy()
    _spoil(table, table.index[0], "failed", "mysqld died")
    parts.save(fig07.draw(table), tmp_path, "fig07")
    with Image.open(tmp_path / "fig07.png") as image:
        words = str(image.info["Description"])
    assert "Vertically: throughput (txn/s, all five transactions)." in words
    assert "MySQL + Memcached" in words
    assert "Note: Of 9 trials 1 failed (" in words
    assert "1 failed (" in (tmp_path / "fig07.svg").read_text()


def test_bars_differ_without_colour() -> None:
    assert len({look.hatch for look in SYSTEMS.values()}) == len(SYSTEMS)


def test_the_lines_of_figure_12_differ_in_grey() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = to_rgb(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert lightness(fig12.TENTHS_COLOUR) - lightness(SYSTEMS[fig12.SYSTEM].colour) > 0.25
