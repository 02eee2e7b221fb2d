"""Figures 8, 9a, 9b and the ablations on a recorded smoke run of the real systems, and on what may go wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from figures import beyond, fig08, fig09a, fig09b, style, sweeps
from runner import claims, collect, notebooks, store
from runner.files import read_json, write_json
from runner.report import chapters

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "sweeps"
DRAWN = {"fig08": fig08.draw, "fig09a": fig09a.draw, "fig09b": fig09b.draw}
ABLATIONS = {
    "alpha": beyond.alpha,
    "holes": beyond.holes,
    "eviction": beyond.eviction,
    "keys": beyond.keys,
    "fetch": beyond.fetch,
    "disk": beyond.disk,
}


@pytest.fixture(scope="session")
def recorded() -> pd.DataFrame:
    return collect.read_csv(RECORDED / "trials.csv")


def _of(table: pd.DataFrame, name: str) -> pd.DataFrame:
    return table[table["experiment"] == name].reset_index(drop=True)


def _drawn(figure: Figure, panel: int = 0) -> list[float]:
    """The values of a panel's points."""
    lines = (container[0] for container in figure.axes[panel].containers)
    return sorted(round(float(y), 3) for line in lines for y in np.asarray(line.get_ydata()))


def _below(figure: Figure) -> str:
    return " ".join(str(figure.get_supxlabel()).split())


def _above(figure: Figure) -> str:
    return " ".join(figure.legends[0].get_title().get_text().split())


@pytest.mark.parametrize("name", DRAWN)
def test_a_point_for_every_cell_with_the_skew_falling(recorded: pd.DataFrame, name: str) -> None:
    table = _of(recorded, name)
    figure = DRAWN[name](table)
    panels = {"fig09b": [(0, "read-heavy"), (2, "read-only")]}.get(name, [(0, "read-only")])
    for panel, mix in panels:
        expected = sorted(round(float(v), 3) for v in table[table["mix"] == mix]["throughput_txn_s"])
        assert _drawn(figure, panel) == _drawn(figure, panel + 1) == expected, "linear and logarithmic"
        left, right = figure.axes[panel].get_xlim()
        assert left > right
        low, high = figure.axes[panel].get_ylim()
        assert low == 0
        assert high > max(expected), "no marker is cut off"
    assert "Blocks of 64 KiB stand for the paper's 1 MiB" in _below(figure)
    assert "Settings are changed in a running server at this scale" in _below(figure)
    laptop = DRAWN[name](table.assign(scale="laptop"))
    assert "Settings are changed" not in _below(laptop), "each setting has a server of its own there"


def test_the_series_are_named_as_in_the_paper(recorded: pd.DataFrame) -> None:
    def named(figure: Figure) -> list[str]:
        return [text.get_text() for text in figure.legends[0].get_texts()]

    assert named(fig08.draw(_of(recorded, "fig08"))) == ["block-merge", "tuple-merge"]
    assert named(fig09a.draw(_of(recorded, "fig09a"))) == ["64 KiB", "256 KiB"]
    assert named(fig09b.draw(_of(recorded, "fig09b"))) == ["128 B", "1024 B"]
    large = _of(recorded, "fig09a").assign(
        eviction_block_bytes=lambda t: (t["block_factor"] * (1 << 20)).astype("Int64")
    )
    figure = fig09a.draw(large)
    assert named(figure) == ["1 MiB", "4 MiB"]
    assert "stand for" not in _below(figure), "these are the paper's"


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_can_be_drawn(recorded: pd.DataFrame, name: str) -> None:
    table = _of(recorded, f"beyond-{name}")
    figure = ABLATIONS[name](table)
    valid = table[table["status"] == "ok"]
    assert _drawn(figure) == sorted(round(float(v), 3) for v in valid["throughput_txn_s"])
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)


def test_settings_stand_side_by_side_in_their_order(recorded: pd.DataFrame) -> None:
    axes = beyond.alpha(_of(recorded, "beyond-alpha")).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.001", "0.01", "1"]
    axes = beyond.eviction(_of(recorded, "beyond-eviction")).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["every batch", "5,000 ms"]


def test_what_is_marked_is_said_on_the_figure(recorded: pd.DataFrame) -> None:
    table = _of(recorded, "beyond-disk")
    ssd = table["disk_profile"] == "sata-ssd"
    flagged = table.assign(status="ok", reason="", flags=ssd.map({True: "disk_unlike_model", False: ""}))
    figure = beyond.disk(flagged)
    assert "Of 2 trials 1 valid with a flag: disk_unlike_model" in _above(figure)
    fills = {to_hex(c[0].get_markerfacecolor()) for c in figure.axes[0].containers}
    assert "#ffffff" in fills, "hollow"
    late = flagged.assign(status=ssd.map({True: "invalid", False: "ok"}), flags=ssd.map({True: "disk_late", False: ""}))
    figure = beyond.disk(late)
    assert "Of 2 trials 1 invalid: disk_late" in _above(figure)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x" and np.size(line.get_xdata())]
    assert len(crosses) == 1
    numbers = sweeps.numbers(late, series="disk_profile")
    assert numbers.iloc[0]["sata-ssd"].startswith("invalid: ")
    assert list(sweeps.troubles(late)["disk_profile"]) == ["sata-ssd"]


def test_numbers_have_intervals_where_there_are_trials(recorded: pd.DataFrame) -> None:
    table = _of(recorded, "fig08").assign(status="ok", flags="")
    once = sweeps.numbers(table, series="merge")
    assert list(once.columns) == ["mix", "skew", "block-merge", "tuple-merge"]
    assert list(once["skew"]) == ["1.5", "0.5"]
    again = table.assign(
        trial=1, trial_hash=table["trial_hash"] + "again", throughput_txn_s=table["throughput_txn_s"] * 1.1
    )
    twice = sweeps.numbers(pd.concat([table, again]), series="merge")
    assert "[" not in once.iloc[0]["block-merge"]
    assert "[" in twice.iloc[0]["block-merge"]
    missing = table[~((table["merge"] == "block") & (table["skew"] == 0.5))]
    assert sweeps.numbers(missing, series="merge").iloc[1]["block-merge"] == "not measured"


def test_systems_have_numbers_of_their_own(recorded: pd.DataFrame) -> None:
    alone = _of(recorded, "beyond-keys").assign(status="ok", flags="", throughput_txn_s=1000.0)
    assert "system" not in sweeps.numbers(alone, series="key_order")
    slow = alone.assign(system="mysql", throughput_txn_s=10.0, trial_hash=alone["trial_hash"] + "mysql")
    both = sweeps.numbers(pd.concat([alone, slow]), series="key_order")
    assert [tuple(row) for row in both[["system", "clustered", "scattered"]].itertuples(index=False)] == [
        ("anticache-alru", "1,000", "1,000"),
        ("mysql", "10", "10"),
    ], "a mean over systems would be nobody's"


def test_ratios_have_panels_and_rows_of_their_own(recorded: pd.DataFrame) -> None:
    at_2x = _of(recorded, "beyond-fetch").assign(status="ok", flags="", throughput_txn_s=1000.0)
    at_8x = at_2x.assign(data_memory_ratio=8.0, throughput_txn_s=10.0, trial_hash=at_2x["trial_hash"] + "8x")
    both = pd.concat([at_2x, at_8x], ignore_index=True)
    figure = beyond.fetch(both)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    shown = ("throughput", "read from disk")
    assert [title[4:] for title in titles] == [f"{what}, {ratio}x" for ratio in (2, 8) for what in shown]
    assert (_drawn(figure, 0), _drawn(figure, 2)) == ([1000.0, 1000.0], [10.0, 10.0])
    numbers = sweeps.numbers(both, series="fetch")
    assert list(zip(numbers["data_memory_ratio"], numbers["whole block"], strict=True)) == [("2", "1,000"), ("8", "10")]


def _gain(recorded: pd.DataFrame) -> pd.DataFrame:
    """Trials of two systems on three disks with two orders of keys; their throughput tells them apart."""
    of_claims = _of(recorded, "beyond-keys").assign(status="ok", flags="", skew=1.25, data_memory_ratio=8.0)
    like = of_claims.iloc[0].to_dict()
    measured = {
        ("mysql", "hdd-7200"): 400.0,
        ("mysql", "sata-ssd"): 2000.0,
        ("mysql", "nvme"): 8000.0,
        ("anticache-alru", "hdd-7200"): 100.0,
        ("anticache-alru", "sata-ssd"): 1000.0,
    }
    rows = [
        {**like, "system": system, "disk_profile": disk, "key_order": order, "throughput_txn_s": txn_s / factor}
        for (system, disk), txn_s in measured.items()
        for order, factor in (("clustered", 1), ("scattered", 2 if system == "mysql" else 1))
    ]
    return pd.DataFrame(rows).assign(trial_hash=[str(n) for n in range(len(rows))])


def test_the_gain_over_mysql_is_shown_by_disk_and_order_of_keys(recorded: pd.DataFrame) -> None:
    table = _gain(recorded)
    figure = beyond.gain(table)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["hdd-7200", "sata-ssd", "nvme"], "the slowest first"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["MySQL", "anti-caching, aLRU"]
    colours = {to_hex(container[0].get_color()).upper() for container in axes.containers}
    assert colours == {style.SYSTEMS[name].colour for name in ("mysql", "anticache-alru")}, "as in every figure"
    tabulate = beyond.ABLATIONS["beyond-gain"][1]
    rows = tabulate(table).set_index(["disk", "key_order"])
    assert list(rows["aLRU / MySQL"]) == ["0.25", "0.5", "0.5", "1", "not measured", "not measured"]
    assert rows.loc[("sata-ssd", "clustered"), "aLRU / MySQL on hdd-7200"] == "2.5"
    assert rows.loc[("nvme", "scattered"), "MySQL"] == "4,000"


def test_the_gain_over_mysql_is_shown_for_each_mix_by_itself(recorded: pd.DataFrame) -> None:
    reads = _gain(recorded).assign(mix="read-only")
    writes = reads.assign(mix="read-heavy", throughput_txn_s=800.0, trial_hash=reads["trial_hash"] + "w")
    table = pd.concat([writes, reads])
    titles = [axes.get_title("left")[4:] for axes in beyond.gain(table).axes]
    assert titles == [f"{mix}, {order} keys" for mix in style.MIXES[:2] for order in ("clustered", "scattered")]
    rows = beyond.ABLATIONS["beyond-gain"][1](table).set_index(["disk", "mix", "key_order"])
    assert rows.loc[("hdd-7200", "read-only", "clustered"), "aLRU / MySQL"] == "0.25"
    assert rows.loc[("hdd-7200", "read-heavy", "clustered"), "aLRU / MySQL"] == "1"


def test_the_gain_with_writes_is_shown_by_disk_mix_and_skew(recorded: pd.DataFrame) -> None:
    writes = _gain(recorded).assign(key_order="clustered", mix="write-heavy")
    table = pd.concat([writes.iloc[::2], writes.iloc[::2].assign(skew=1.5, throughput_txn_s=800.0)])
    table = table.assign(trial_hash=[str(n) for n in range(len(table))])
    draw, tabulate = beyond.ABLATIONS["beyond-writes"]
    titles = [axes.get_title("left") for axes in draw(table).axes]
    assert titles == ["(a) write-heavy, s = 1.5", "(b) write-heavy, s = 1.25"]
    rows = tabulate(table).set_index(["disk", "mix", "skew"])
    assert rows.loc[("sata-ssd", "write-heavy", "1.25"), "aLRU / MySQL on hdd-7200"] == "2.5"
    assert rows.loc[("sata-ssd", "write-heavy", "1.5"), "aLRU / MySQL"] == "1"
    assert rows.loc[("nvme", "write-heavy", "1.25"), "aLRU / MySQL"] == "not measured"


def test_the_gain_over_mysql_is_shown_by_the_number_of_records(recorded: pd.DataFrame) -> None:
    like = _of(recorded, "beyond-keys").assign(status="ok", flags="", data_memory_ratio=8.0).iloc[0].to_dict()
    rows = [
        {**like, "system": system, "skew": s, "records_factor": n, "records": n * 1_000_000, "throughput_txn_s": txn_s}
        for system, s, n, txn_s in (
            ("mysql", 1.5, 1, 100.0),
            ("anticache-alru", 1.5, 1, 200.0),
            ("mysql", 1.5, 8, 150.0),
            ("anticache-alru", 1.5, 8, 900.0),
            ("mysql", 1.25, 8, 10.0),
        )
    ]
    table = pd.DataFrame(rows).assign(trial_hash=[str(n) for n in range(len(rows))])
    figure = beyond.scale(table)
    assert [axes.get_title("left") for axes in figure.axes] == ["(a) s = 1.5", "(b) s = 1.25"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["1 M", "8 M"]
    draw, tabulate = beyond.ABLATIONS["beyond-scale"]
    shown = tabulate(table).set_index(["skew", "records_factor"])["anticache-alru / mysql"]
    assert (draw, dict(shown)) == (
        beyond.scale,
        {("1.5", "1"): "2", ("1.5", "8"): "6", ("1.25", "8"): "not measured"},
    )


def test_the_gain_over_mysql_is_shown_by_the_disks_transfer_rate(recorded: pd.DataFrame) -> None:
    measured = [
        ("hdd-7200", 1, "mysql", 10.0),
        ("hdd-7200", 1, "anticache-alru", 30.0),
        ("hdd-297mb", 1, "mysql", 12.0),
        ("hdd-297mb", 1, "anticache-alru", 60.0),
        ("hdd-297mb", 4, "anticache-alru", 120.0),
    ]
    names = ("disk_profile", "records_factor", "system", "throughput_txn_s")
    rows = [dict(zip(names, row, strict=True)) | {"records": row[1] * 1_000_000} for row in measured]
    table = _trials(recorded, rows, skew=1.5, data_memory_ratio=8.0)
    figure = beyond.transfer(table)
    assert [axes.get_title("left") for axes in figure.axes] == ["(a) hdd-7200, s = 1.5", "(b) hdd-297mb, s = 1.5"]
    assert _drawn(figure, 1) == [12.0, 60.0, 120.0]
    _, tabulate = beyond.ABLATIONS["beyond-transfer"]
    shown = tabulate(table).set_index(["disk_profile", "records_factor"])["anticache-alru / mysql"]
    assert dict(shown) == {("hdd-7200", "1"): "3", ("hdd-297mb", "1"): "5", ("hdd-297mb", "4"): "not measured"}


def _trials(recorded: pd.DataFrame, different: list[dict[str, Any]], **same: Any) -> pd.DataFrame:
    """Trials like a recorded one, with what all of them, and what each has of its own."""
    like = _of(recorded, "beyond-keys").iloc[0].to_dict() | {"status": "ok", "flags": ""} | same
    return pd.DataFrame([like | own | {"trial_hash": str(n)} for n, own in enumerate(different)])


def test_a_log_that_nothing_waits_for_stands_beside_figure_6(recorded: pd.DataFrame, tmp_path: Path) -> None:
    measured = [
        ("fig06", "sync", 1.5, "mysql", 100.0),
        ("fig06", "sync", 1.5, "anticache-alru", 400.0),
        ("fig06", "sync", 1.0, "mysql", 7.0),
        ("beyond-log", "off", 1.5, "mysql", 500.0),
        ("beyond-log", "off", 1.5, "anticache-alru", 5000.0),
    ]
    names = ("experiment", "durability", "skew", "system", "throughput_txn_s")
    rows = _trials(recorded, [dict(zip(names, row, strict=True)) for row in measured], mix="write-heavy")
    collect.write(rows, tmp_path)
    table = beyond.trials("beyond-log", tmp_path)
    assert set(table["throughput_txn_s"]) == {100.0, 400.0, 500.0, 5000.0}, "other cells of Figure 6 are not compared"
    assert _drawn(beyond.log(table), 1) == [400.0, 5000.0]
    shown = beyond.logs(table).set_index("log")["anticache-alru / mysql"]
    assert dict(shown) == {"not waited for": "10", "answered when synced": "4"}
    collect.write(rows[3:].reset_index(drop=True), tmp_path)
    alone = beyond.trials("beyond-log", tmp_path)
    assert set(alone["throughput_txn_s"]) == {500.0, 5000.0}, "a run without Figure 6 shows what it has"


def test_a_log_synced_with_fdatasync_stands_beside_both_figures(recorded: pd.DataFrame, tmp_path: Path) -> None:
    ycsb: dict[str, Any] = {"mix": "write-heavy", "skew": 1.5}
    tpcc: dict[str, Any] = {"mix": "", "skew": None, "benchmark": "tpcc"}
    measured: list[tuple[str, str, int, str, float, dict[str, Any]]] = [
        ("fig06", "sync", 1, "mysql", 100.0, ycsb),
        ("fig06", "sync", 2, "mysql", 7.0, ycsb),
        ("beyond-datasync", "datasync", 1, "mysql", 300.0, ycsb),
        ("beyond-datasync", "datasync", 1, "anticache-alru", 900.0, ycsb),
        ("fig07", "sync", 1, "mysql", 50.0, tpcc),
        ("fig07", "sync", 4, "mysql", 7.0, tpcc),
        ("beyond-datasync-tpcc", "datasync", 1, "mysql", 75.0, tpcc),
        ("beyond-datasync-tpcc", "datasync", 1, "anticache-alru", 600.0, tpcc),
    ]
    names = ("experiment", "durability", "data_memory_ratio", "system", "throughput_txn_s")
    collect.write(_trials(recorded, [dict(zip(names, row[:-1], strict=True)) | row[5] for row in measured]), tmp_path)
    table = beyond.trials("beyond-datasync", tmp_path)
    assert set(table["throughput_txn_s"]) == {100.0, 300.0, 900.0}
    assert [axes.get_title("left") for axes in beyond.datasync(table).axes] == ["MySQL, write-heavy, 1x"]
    shown = beyond.logs(table).set_index("log")["anticache-alru / mysql"]
    assert dict(shown) == {"fsync made fdatasync": "3", "answered when synced": "not measured"}
    table = beyond.trials("beyond-datasync-tpcc", tmp_path)
    assert set(table["throughput_txn_s"]) == {50.0, 75.0, 600.0}, "cells without mix and skew are compared too"
    assert _drawn(beyond.tpcc_by_call(table), 0) == [50.0, 75.0]
    assert dict(beyond.logs(table).set_index("log")["anticache-alru / mysql"])["fsync made fdatasync"] == "8"


def test_tpcc_in_many_warehouses_is_drawn_by_system_and_by_call(recorded: pd.DataFrame, tmp_path: Path) -> None:
    measured = [
        ("beyond-warehouses", "sync", 1, "mysql", 100.0),
        ("beyond-warehouses", "sync", 8, "mysql", 90.0),
        ("beyond-warehouses", "sync", 8, "anticache-alru", 450.0),
        ("beyond-warehouses-datasync", "datasync", 8, "mysql", 300.0),
        ("fig07", "sync", 8, "mysql", 7.0),
    ]
    names = ("experiment", "durability", "data_memory_ratio", "system", "throughput_txn_s")
    rows = [dict(zip(names, row, strict=True)) for row in measured]
    collect.write(_trials(recorded, rows, mix="", skew=None, benchmark="tpcc"), tmp_path)
    table = beyond.trials("beyond-warehouses", tmp_path)
    assert _drawn(beyond.warehouses(table), 0) == [90.0, 100.0, 450.0]
    assert "5" in set(beyond.ABLATIONS["beyond-warehouses"][1](table)["anticache-alru / mysql"])
    table = beyond.trials("beyond-warehouses-datasync", tmp_path)
    assert _drawn(beyond.tpcc_by_call(table), 0) == [90.0, 300.0], "only the cells that both have"


def test_more_series_than_looks_are_refused() -> None:
    names = [str(n) for n in range(8)]
    looks = style.sequence(names[:7])
    assert len({(look.marker) for look in looks}) == 7, "told apart in grey by their markers"
    with pytest.raises(ValueError, match="8 series in one panel"):
        style.sequence(names)


@pytest.fixture
def run(recorded: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "results" / "runs" / "recorded"
    directory.mkdir(parents=True)
    collect.write(recorded[~recorded["experiment"].isin(["beyond-holes"])].reset_index(drop=True), directory)
    write_json(directory / "run.json", {"format": store.RUN_FORMAT})
    write_json(directory / "plan.json", {})
    claims.write(claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), recorded, {}), directory)
    monkeypatch.delenv("ANTICACHE_EVAL_RUN", raising=False)
    return directory


def test_the_notebooks_execute_and_leave_out_what_is_not_there(run: Path, tmp_path: Path) -> None:
    names = ["fig08", "fig09a", "fig09b", "beyond"]
    copies = [Path(shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", tmp_path)) for name in names]
    for copy in notebooks.execute_all(copies, run):
        cells = [cell for cell in read_json(copy)["cells"] if cell["cell_type"] == "code"]
        assert sum(len("".join(cell["source"]).splitlines()) for cell in cells) < 35, "logic belongs into figures/"
        text = str([cell["outputs"] for cell in cells])
        claim = {"fig08": "C17", "fig09a": "C18", "fig09b": "C19", "beyond": "This run has no beyond-holes"}[copy.stem]
        assert claim in text
    shown = chapters.of_run(run)
    assert [chapter.name for chapter in shown] == ["fig08", "fig09a", "fig09b", "beyond"], "none beside its chapter"
    assert "This run has no beyond-holes." in shown[-1].body
    assert shown[-1].body.index("<img") < shown[-1].body.index("<table"), "a figure, and its numbers below it"
    drawn = {path.stem for path in (run / "figures").glob("*.png")}
    assert drawn == {"fig08", "fig09a", "fig09b", *(f"beyond-{name}" for name in ABLATIONS if name != "holes")}


def test_zeros_stand_below_a_logarithmic_axis(recorded: pd.DataFrame) -> None:
    table = _of(recorded, "beyond-fetch")
    some = table["fetch"] == table["fetch"].iloc[0]
    axes = beyond.fetch(table.assign(fetched_bytes_per_txn=some.map({True: 0.0, False: 70.0}))).axes[1]
    assert axes.get_yscale() == "log"
    assert len([text for text in axes.texts if text.get_text() == "0"]) == some.sum()
    empty = beyond.fetch(table.assign(fetched_bytes_per_txn=0.0))
    assert empty.axes[1].get_yscale() == "linear", "nothing to put on it"
