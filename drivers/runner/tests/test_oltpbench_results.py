"""Results in the files of BenchBase and OLTP-Bench: ours written, theirs read, one against the other."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from runner.disk import NODE_DISK
from runner.errors import InputError, RunError
from runner.files import read_json, write_json
from runner.machine import CpuSets
from runner.oltpbench import formats, mapping, results
from runner.oltpbench.configuration import read
from runner.oltpbench.export import export
from runner.oltpbench.formats import Distribution
from runner.oltpbench.results import Files
from runner.plan import Plan, make_plan
from runner.store import Run

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = Path(__file__).parent / "samples" / "oltpbench"
pytestmark = pytest.mark.usefixtures("read_once")
BASE = "ycsb_2026-03-01_10-00-02"
SUMMARY, WINDOWS, RAW = (SAMPLES / f"{BASE}.{name}" for name in ("summary.json", "results.csv", "raw.csv"))
OLD = Files(SAMPLES / "old.summary", SAMPLES / "old.res", SAMPLES / "old.raw")
BEGAN_US = 1_772_359_202_000_000
TRANSACTIONS = """start_us,latency_us,type,terminal,outcome
-50,150,read,1,committed
100,100,read,0,committed
300300,300,update,0,committed
900500,500,update,1,aborted
1200000,600,read,0,committed
"""


def lines_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


# -- theirs, read ---------------------------------------------------------------------------------------------


def test_results_of_benchbase_are_read_in_our_units() -> None:
    found = results.of_benchbase(Files(SUMMARY, WINDOWS, RAW), "ycsb")
    assert (found.throughput_txn_s, found.committed, found.not_committed, found.measured_s) == (3.5, 7, 1, 2.0)
    assert found.latency_us == {"mean": 450, "p50": 500, "p95": 800, "p99": 800, "max": 800, "p999": 800}
    assert found.by_type["read"]["p50"] == 400
    assert found.by_type["update"]["max"] == 800
    result = found.result("BenchBase")
    assert (result["status"], result["aborted"], result["flags"]) == ("ok", {"not committed": 1}, [])
    assert result["versions"] == {"dbms": "PostgreSQL 15.5"}
    assert found.seconds == (), "what was rolled back is in their windows, too"
    alone = results.of_benchbase(Files(SUMMARY), "ycsb")
    assert "p999" not in alone.latency_us
    assert alone.by_type == {}


def test_results_of_an_early_benchbase_without_counts_are_read(tmp_path: Path) -> None:
    early = {
        k: v
        for k, v in json.loads(SUMMARY.read_text()).items()
        if k not in ("Start timestamp (milliseconds)", "Elapsed Time (nanoseconds)", "Final State", "Measured Requests")
    }
    path = tmp_path / "early.summary.json"
    path.write_text(json.dumps({**early, "Goodput (requests/second)": 4.0}))
    found = results.of_benchbase(Files(path, WINDOWS, RAW), "ycsb")
    assert (found.throughput_txn_s, found.committed, found.measured_s) == (4.0, 8, 2.0)
    assert found.seconds == (5, 3)


def test_goodput_that_counts_the_warm_up_is_not_believed(tmp_path: Path) -> None:
    known = results.of_benchbase(Files(SUMMARY, WINDOWS), "ycsb")
    unknown = results.of_benchbase(Files(SUMMARY, WINDOWS), "ycsb", warmed_up=True)
    assert (known.throughput_txn_s, known.committed, known.flags) == (3.5, 7, ())
    assert (unknown.throughput_txn_s, unknown.committed, unknown.flags) == (4.0, 8, ("goodput_unknown",))
    path = tmp_path / "x.summary.json"
    path.write_text(json.dumps(json.loads(SUMMARY.read_text()) | {"Goodput (requests/second)": 5.6}))
    assert results.of_benchbase(Files(path, WINDOWS), "ycsb") == unknown


def test_a_benchmark_that_ended_in_an_error_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "x.summary.json"
    path.write_text(SUMMARY.read_text().replace('"EXIT"', '"ERROR"'))
    result = results.of_benchbase(Files(path), "ycsb").result("BenchBase")
    assert (result["status"], result["reason"]) == ("failed", "BenchBase ended in an error, its summary says")
    text = re.sub(r'("Measured Requests": )8', r"\g<1>0", SUMMARY.read_text())
    path.write_text(text.replace("4.0", "0.0").replace("3.5", "0.0"))
    assert results.of_benchbase(Files(path), "ycsb").result("BenchBase")["flags"] == ["nothing_committed"]


def test_results_of_oltpbench_count_what_stands_in_the_raw_ones() -> None:
    found = results.of_oltpbench(OLD, "tpcc")
    assert (found.throughput_txn_s, found.committed, found.measured_s) == (2.0, 4, 2.0)
    assert {k: round(v) for k, v in found.latency_us.items()} == {
        **{"mean": 12500, "p50": 15000, "p95": 20000, "p99": 20000, "max": 20000, "p999": 20000}
    }
    assert (found.flags, found.seconds, found.version) == (("goodput_unknown",), (3, 1), "5.6.24")
    assert results.of_oltpbench(Files(SUMMARY, None, RAW), "ycsb").committed == 7, "a late one writes as BenchBase"
    with pytest.raises(RunError, match=r"old\.raw is missing"):
        results.of_oltpbench(Files(OLD.summary, OLD.windows), "tpcc")


def test_the_report_of_hstore_is_found_in_what_it_prints() -> None:
    found = results.of_hstore(SAMPLES / "hstore.log")
    assert (found.throughput_txn_s, found.committed, found.measured_s) == (4500.0, 90_000, 20.0)
    assert found.latency_us == {"mean": 3500.0, "max": 42_000.0}


def test_the_names_of_an_older_hstore_are_known(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('<json>{"DURATION": 1000, "TOTALTXNCOUNT": 5, "TOTALTXNPERSECOND": 5.0}</json>')
    assert results.of_hstore(log).latency_us == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary", "{", "summary: cannot be read: "),
        ("summary", "[]", "summary: no JSON object"),
        ("summary", "{}", "summary: 'Latency Distribution' is missing"),
        ("summary", '{"Latency Distribution": 1}', "'Latency Distribution' is no object"),
        ("summary", SUMMARY.read_text().replace("450", '"450"'), "'Average Latency .*' is '450', no amount"),
        ("summary", SUMMARY.read_text().replace(": 4.0", ": -1"), r"'Throughput .*' is -1, no amount"),
        ("windows", "a,b\n1,2\n", "windows: its first line is not that of results: 'a, b'"),
        ("windows", WINDOWS.read_text() + "2,x,1,1,1,1,1,1,1,1,1,1\n", "windows:4: not a line of results"),
        ("windows", WINDOWS.read_text().replace("\n1,", "\n5,"), "its windows are not of one second"),
        ("raw", "a,b\n1,2\n", "raw: its first line is not that of raw results: 'a, b'"),
        ("raw", RAW.read_text().replace(",400,", ",fast,"), "raw:5: not a line of raw results"),
        ("raw", "", "raw: cannot be read: "),
    ],
)
def test_malformed_results_are_refused_by_file_and_place(name: str, text: str, message: str, tmp_path: Path) -> None:
    whole = SUMMARY.read_text().replace('"Goodput (requests/second)": 3.5', '"Goodput (requests/second)": 4.0')
    for each, content in (("summary", whole), ("windows", WINDOWS.read_text()), ("raw", RAW.read_text())):
        (tmp_path / each).write_text(text if each == name else content)
    files = Files(tmp_path / "summary", tmp_path / "windows", tmp_path / "raw")
    with pytest.raises(RunError, match=message):
        results.of_benchbase(files, "ycsb")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BUILD FAILED", "no report between <json> and </json>"),
        ("<json>{</json>", "is no JSON"),
        ("<json>[]</json>", "is no object"),
        ('<json>{"DURATION": 1, "TXNTOTALCOUNT": 1}</json>', "'TXNTOTALPERSECOND' is missing"),
    ],
)
def test_a_malformed_report_of_hstore_is_refused(text: str, message: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    with pytest.raises(RunError, match=message):
        results.of_hstore(log)


# -- ours, written --------------------------------------------------------------------------------------------


def test_our_heads_are_those_of_their_files() -> None:
    assert ",".join(formats.RESULTS_HEAD) == WINDOWS.read_text().splitlines()[0]
    assert ",".join(formats.RAW_HEAD) == RAW.read_text().splitlines()[0]
    assert OLD.windows is not None
    assert ",".join(formats.OLD_RESULTS_HEAD) == OLD.windows.read_text().splitlines()[0]
    assert OLD.raw is not None
    assert ",".join(formats.OLD_RAW_HEAD) == OLD.raw.read_text().splitlines()[0]


def test_a_distribution_takes_the_values_that_theirs_takes() -> None:
    latencies = np.array([int(line[3]) for line in lines_of(RAW)[1:]])
    theirs = json.loads(SUMMARY.read_text())["Latency Distribution"]
    ours = {f"{name} Latency (microseconds)": int(us) for name, us in Distribution.of(latencies).named().items()}
    assert ours == theirs
    assert list(ours) == list(theirs)
    first = lines_of(WINDOWS)[1:]
    windows = [Distribution.of(latencies[:5]), Distribution.of(latencies[5:])]
    assert [row.split(",") for row in formats.results(windows, 1).splitlines()[1:]] == first
    empty = formats.results([Distribution.of(np.array([]))], 1).splitlines()[1]
    assert empty == "0,0.000,-0.001,-0.001,-0.001,-0.001,-0.001,-0.001,-0.001,-0.001,-0.001,-1000.000", "as theirs"


@pytest.fixture
def measured(new_run: Callable[[Plan], Run], record_trial: Callable[..., None]) -> Run:
    """A run of the sample configuration with one recorded trial."""
    configuration = read(SAMPLES / "benchbase-ycsb.xml", "ycsb")
    settings = mapping.settings_of(configuration, mapping.Choice(("anticache-alru",), (1.0,))).settings
    workload = mapping.workload_of(settings, ROOT / "workloads", "smoke")
    plan = make_plan([workload], CpuSets("0", "1"), NODE_DISK)
    run = new_run(plan)
    run.add_configurations({settings.id: settings.record()})
    trial = plan.trials[0]
    record_trial(
        run,
        trial,
        2.0,
        aborted={"no such key": 1},
        versions={"anticached": "0.1.0"},
        transactions={"recorded": 5, "lost": 0, "interval_began_us": BEGAN_US},
    )
    directory = run.trial_path(trial.hash)
    result = read_json(directory / "result.json")
    write_json(directory / "result.json", {**result, "committed": 4, "measured_s": 2.0})
    write_json(directory / "environment.json", {"ended_at": "2026-03-01T10:00:05.100+00:00"})
    (directory / "transactions.csv").write_text(TRANSACTIONS)
    write_histogram(directory / "latency.hdr", {"read": [100, 150, 600], "update": [300]})
    return Run(run.path)


def write_histogram(path: Path, latencies_us: dict[str, list[int]]) -> None:
    """Write latencies as loadgen does."""
    lines = ["#[made by hand]"]
    for name, values in latencies_us.items():
        histogram = HdrHistogram(1, 3_600_000_000, 3)
        for value in values:
            histogram.record_value(value)
        lines.append(f"Tag={name},0.000,2.000,1.0,{histogram.encode().decode()}")
    path.write_text("\n".join(lines) + "\n")


def test_a_trial_is_written_in_benchbases_files(measured: Run) -> None:
    (done,) = export(measured, "benchbase", 1)
    assert done.lacking == ""
    assert done.directory.name == "benchbase"
    assert [name.removeprefix(f"{BASE}.") for name in done.files] == [
        *("summary.json", "results.csv", "samples.csv", "results.ReadRecord.csv", "results.UpdateRecord.csv"),
        "raw.csv",
    ]
    theirs = json.loads(SUMMARY.read_text())
    summary = json.loads((done.directory / f"{BASE}.summary.json").read_text())
    assert list(summary) == list(theirs), "the same keys in the same order"
    assert {type(summary[key]) for key in ("isolation", "scalefactor", "terminals")} == {str}
    assert summary["Start timestamp (milliseconds)"] == BEGAN_US // 1000
    assert summary["Current Timestamp (milliseconds)"] == 1_772_359_205_100
    assert (summary["Measured Requests"], summary["Elapsed Time (nanoseconds)"]) == (5, 2_000_000_000)
    assert (summary["Throughput (requests/second)"], summary["Goodput (requests/second)"]) == (2.5, 2.0)
    assert (summary["scalefactor"], summary["DBMS Type"], summary["Final State"]) == ("100", "ANTICACHE-ALRU", "EXIT")
    raw = lines_of(done.directory / f"{BASE}.raw.csv")
    assert raw[0] == lines_of(RAW)[0]
    assert raw[1] == ["1", "ReadRecord", "1772359201.999950", "150", "1", "1"]
    assert raw[4] == ["4", "UpdateRecord", "1772359202.900500", "500", "1", "1"]
    windows = lines_of(done.directory / f"{BASE}.results.csv")
    assert [row[:2] for row in windows[1:]] == [["0", "4.000"], ["1", "1.000"]]
    updates = lines_of(done.directory / f"{BASE}.results.UpdateRecord.csv")
    assert [row[1] for row in updates[1:]] == ["2.000", "0.000"]
    samples = lines_of(done.directory / f"{BASE}.samples.csv")
    assert samples[0][:3] == ["Time (seconds)", "Requests", "Throughput (requests/second)"]
    assert samples[1][:6] == ["0", "4", "4.000", "100", "150", "300"]


def test_what_was_written_is_read_back_as_it_was_measured(measured: Run) -> None:
    (done,) = export(measured, "benchbase", 1)
    files = Files(*(done.directory / f"{BASE}.{name}" for name in ("summary.json", "results.csv", "raw.csv")))
    found = results.of_benchbase(files, "ycsb")
    assert (found.throughput_txn_s, found.committed, found.not_committed) == (2.0, 4, 1)
    assert found.latency_us["max"] == 600
    (old,) = export(measured, "oltpbench", 1)
    assert old.files == ("ycsb.summary", "ycsb.res", "ycsb.raw")
    assert lines_of(old.directory / "ycsb.raw")[1] == ["1", "1772359201.999950", "150", "1", "0"]
    summary = json.loads((old.directory / "ycsb.summary").read_text())
    assert list(summary) == list(json.loads(OLD.summary.read_text()))
    again = results.of_oltpbench(Files(*(old.directory / name for name in old.files)), "ycsb")
    assert (again.throughput_txn_s, again.seconds) == (2.5, (4, 1))


@pytest.mark.parametrize("lost", [0, 3])
def test_without_all_single_transactions_there_is_a_summary_alone(measured: Run, lost: int) -> None:
    directory = measured.trial_path(measured.trials[0]["hash"])
    if lost:
        result = read_json(directory / "result.json")
        write_json(directory / "result.json", {**result, "transactions": {"recorded": 5, "lost": lost}})
    else:
        (directory / "transactions.csv").unlink()
    (done,) = export(measured, "benchbase", 1)
    wanted = "3 transactions beyond record_transactions 5000000" if lost else "no single transactions recorded"
    assert done.lacking.startswith(wanted)
    (name,) = done.files
    latencies = json.loads((done.directory / name).read_text())["Latency Distribution"]
    assert list(latencies.values()) == [100, 100, 150, 287, 300, 600, 600, 600, 600], "committed"


def test_a_run_without_a_measured_trial_has_nothing_to_export(
    measured: Run, record_trial: Callable[..., Any], tmp_path: Path
) -> None:
    result = measured.trial_path(measured.trials[0]["hash"]) / "result.json"
    write_json(result, {**read_json(result), "status": "failed"})
    with pytest.raises(InputError, match="no measured trial of ycsb or tpcc: nothing to export"):
        export(measured, "benchbase", 1)
