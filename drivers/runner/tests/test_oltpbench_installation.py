"""Installations of BenchBase, OLTP-Bench and H-Store driven, their results recorded as another system's.

The programs are absent here: in their place stand scripts that note how they were called and leave the hand-written
samples, or something else where a test is about that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import psutil
import pytest

from runner import collect, context, outputs
from runner.cli import main
from runner.disk import NODE_DISK
from runner.errors import InputError, RunError
from runner.execution import plan_of
from runner.machine import CpuSets
from runner.oltpbench import configuration, installation, mapping
from runner.oltpbench import kept as kept_configurations
from runner.oltpbench.configuration import Configuration
from runner.oltpbench.results import Measured
from runner.plan import Plan, make_plan
from runner.store import Run

CPUS = CpuSets("0", "1")
SAMPLES = Path(__file__).parent / "samples" / "oltpbench"
pytestmark = pytest.mark.usefixtures("read_once")
BASE = "ycsb_2026-03-01_10-00-02"
YCSB, TPCC = SAMPLES / "benchbase-ycsb.xml", SAMPLES / "oltpbench-tpcc.xml"
RESULTS_OF_BENCHBASE = f"""
while [ $# -gt 1 ]; do [ "$1" = -d ] && out="$2"; shift; done
[ -z "$out" ] || {{ mkdir "$out" && cp {SAMPLES}/{BASE}.* "$out"; }}
"""
TWICE = f'[ -z "$out" ] || cp "$out/{BASE}.summary.json" "$out/another.summary.json"'
EMPTIED = f'[ -z "$out" ] || echo "{{}}" > "$out/{BASE}.summary.json"'
RESULTS_OF_OLTPBENCH = f"""
while [ $# -gt 1 ]; do [ "$1" = -o ] && name="$2"; shift; done
[ -z "$name" ] || for end in summary res raw; do cp {SAMPLES}/old.$end "$name.$end"; done
"""


class Fake(NamedTuple):
    """A stand-in for an installation: where it is, and where it notes its calls."""

    root: Path
    calls: Path

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()


def script(path: Path, calls: Path, body: str) -> None:
    path.write_text(f'#!/bin/sh\necho "$(basename "$0") $*" >> "{calls}"\n{body}\n')
    path.chmod(0o755)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Fake]:
    """Makes an installation of a kind whose program does what `body` says."""

    def make(kind: str, body: str) -> Fake:
        root, programs, calls = tmp_path / kind, tmp_path / "bin", tmp_path / "calls"
        root.mkdir()
        programs.mkdir()
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        if kind == "benchbase":
            (root / "benchbase.jar").write_bytes(b"")
            script(programs / "java", calls, body)
        elif kind == "oltpbench":
            script(root / "oltpbenchmark", calls, body)
        else:
            (root / "build.xml").write_text('<project><target name="hstore-benchmark"/></project>')
            (root / "ycsb.jar").write_bytes(b"")
            script(programs / "ant", calls, body)
        return Fake(root, calls)

    return make


def drive(fake: Fake, configured: Configuration, work: Path, **more: object) -> Measured:
    told: list[str] = []
    options = {"load": True, "cancelled": lambda: False, "tell": told.append, **more}
    found = installation.find(fake.root)
    found.check(configured, bool(options["load"]))
    measured, _ = installation.drive(found, configured, work, **options)  # type: ignore[arg-type]
    assert told, "whoever waits is told what for"
    return measured


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def test_benchbase_loads_and_then_runs_a_configuration_as_it_is(fake: Callable[[str, str], Fake], work: Path) -> None:
    benchbase = fake("benchbase", RESULTS_OF_BENCHBASE)
    found = drive(benchbase, configuration.read(YCSB, "ycsb"), work)
    assert (found.throughput_txn_s, found.flags) == (4.0, ("goodput_unknown",)), "it warms up"
    common = f"java -jar benchbase.jar -b ycsb -c {YCSB} "
    assert benchbase.called() == [
        common + "--create=true --load=true --execute=false",
        common + f"--create=false --load=false --execute=true -s 1 -d {work}/results",
    ]


def test_oltpbench_is_called_with_no_more_arguments_than_its_script_hands_over(
    fake: Callable[[str, str], Fake], work: Path
) -> None:
    old = fake("oltpbench", RESULTS_OF_OLTPBENCH)
    measured = drive(old, configuration.read(TPCC, "tpcc"), work, load=False)
    assert (measured.throughput_txn_s, measured.committed) == (2.0, 4)
    (call,) = old.called()
    assert call == f"oltpbenchmark -b tpcc -c {TPCC} --execute=true -s 1 -o anticache-eval-work"
    assert len(call.split()) - 1 == 9


def test_hstore_gets_the_configuration_as_parameters(fake: Callable[[str, str], Fake], work: Path) -> None:
    hstore = fake("h-store", f"cat {SAMPLES}/hstore.log")
    assert drive(hstore, configuration.read(YCSB, "ycsb"), work).throughput_txn_s == 4500.0
    (call,) = hstore.called()
    assert call.split() == [
        *("ant", "hstore-benchmark", "-Dproject=ycsb", "-Dclient.duration=5000", "-Dclient.warmup=2000"),
        *("-Dclient.threads_per_host=16", "-Dclient.blocking=true", "-Dclient.blocking_concurrent=1"),
        *("-Dclient.txnrate=100000", "-Dclient.output_json=true"),
        "-Dclient.weights=ReadRecord:90,UpdateRecord:10,*:0",
        *("-Dbenchmark.fixed_size=true", "-Dbenchmark.num_records=100000", "-Dbenchmark.skew_factor=0.9"),
    ]
    with pytest.raises(InputError, match=r"tpcc\.jar is missing: prepare it with `ant hstore-prepare -Dproject=tpcc"):
        drive(hstore, configuration.read(TPCC, "tpcc"), work)
    with pytest.raises(InputError, match="--no-load: H-Store loads at each start"):
        drive(hstore, configuration.read(YCSB, "ycsb"), work, load=False)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("benchbase", "echo starting; echo 'no such table' >&2; exit 3", r"load failed \(exit code 3\): no such table"),
        ("benchbase", "exit 1", r"BenchBase load failed \(exit code 1\): it said nothing"),
        ("benchbase", "kill -9 $$", r"load failed \(exit code -9\)"),
        ("benchbase", "", "BenchBase left no .*summary.json in "),
        ("benchbase", RESULTS_OF_BENCHBASE + TWICE, "left 2 .*summary.json"),
        ("benchbase", RESULTS_OF_BENCHBASE + EMPTIED, "'Latency Distribution' is missing"),
        ("oltpbench", "", "OLTP-Bench left no anticache-eval-work.summary in "),
        ("h-store", "echo BUILD FAILED", "no report between <json> and </json>"),
    ],
)
def test_what_goes_wrong_is_one_clear_error(
    kind: str, body: str, message: str, fake: Callable[[str, str], Fake], work: Path
) -> None:
    with pytest.raises(RunError, match=message):
        drive(fake(kind, body), configuration.read(YCSB, "ycsb"), work)


def runs(pid: int) -> bool:
    """Whether a process is there and no mere entry that nobody has asked for yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_call_that_takes_too_long_is_ended_with_what_it_started(
    fake: Callable[[str, str], Fake], work: Path, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    slow = fake("benchbase", f'sleep 600 & echo $! > "{child}"; wait')
    with pytest.raises(RunError, match="BenchBase load did not end within 0 s and was ended"):
        drive(slow, configuration.read(YCSB, "ycsb"), work, limit_s=0.3)
    deadline = time.monotonic() + 10
    while runs(int(child.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not runs(int(child.read_text()))


def test_an_interrupted_call_is_ended(fake: Callable[[str, str], Fake], work: Path) -> None:
    with pytest.raises(RunError, match="interrupted"):
        drive(fake("benchbase", "sleep 600"), configuration.read(YCSB, "ycsb"), work, cancelled=lambda: True)


def test_what_is_no_installation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such directory"):
        installation.find(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"neither benchbase.jar \(BenchBase\) nor oltpbenchmark"):
        installation.find(tmp_path)
    (tmp_path / "benchbase.jar").write_bytes(b"")
    found = installation.find(tmp_path / "benchbase.jar")
    assert found.root == tmp_path
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="java is not on the PATH: BenchBase in "):
        found.check(configuration.read(YCSB, "ycsb"), True)


# -- the command, and the table -------------------------------------------------------------------------------


@pytest.fixture
def ours(new_run: Callable[[Plan], Run], record_trial: Callable[..., None]) -> Run:
    """A run of the sample configuration on a system of ours, with one of its trials recorded."""
    settings = mapping.settings_of(configuration.read(YCSB, "ycsb"), mapping.Choice(("mysql",), (1.0, 2.0))).settings
    plan = make_plan([mapping.workload_of(settings, context.WORKLOADS, "smoke")], CPUS, NODE_DISK)
    run = new_run(plan)
    run.add_configurations({settings.id: settings.record()})
    record_trial(run, plan.trials[0], 1234.5)
    return run


def test_results_come_into_the_table_as_another_system(
    ours: Run, fake: Callable[[str, str], Fake], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    benchbase = fake("benchbase", "echo user admin, password hidden-from-records\n" + RESULTS_OF_BENCHBASE)
    results = tmp_path / "results"
    arguments = [str(benchbase.root), str(YCSB), "--benchmark", "ycsb", "--results", str(results)]
    assert main(["oltpbench", "drive", *arguments, "--trials", "2"]) == 0
    assert "BenchBase execute, at most" in capfd.readouterr().err
    assert len(benchbase.called()) == 3, "loaded once"
    run = Run(ours.path)
    table = collect.read(run.path)
    assert list(table["system"]) == ["mysql", "mysql", "benchbase-postgres", "benchbase-postgres"]
    assert list(table["status"]) == ["ok", "planned", "ok", "ok"]
    row = table.iloc[3]
    assert (row["trial"], row["experiment"]) == (1, "oltpbench-benchbase-ycsb")
    assert (row["throughput_txn_s"], row["committed"], row["aborted"], row["latency_us_p999"]) == (4.0, 8, 0, 800)
    assert (row["records"], row["terminals"], row["skew"]) == (100_000, 16, 0.9)
    assert row["mix"] == "ReadRecord 90, UpdateRecord 10"
    assert pd.isna(row["memory_budget_bytes"])
    report = (run.path / "report.html").read_text()
    for part in ("benchbase-postgres", "python -m runner oltpbench run benchbase-ycsb.xml --benchmark ycsb"):
        assert part in report
    kept = [path for path in run.path.rglob("*") if path.is_file()]
    assert not [path for path in kept if "hidden-from-records" in path.read_text(errors="ignore")]
    theirs = run.trial_path(row["trial_hash"]) / "theirs"
    assert {path.name for path in theirs.iterdir()} >= {f"{BASE}.summary.json", f"{BASE}.raw.csv", "execute.log"}
    assert "password (not shown)" in (theirs / "execute.log").read_text()
    again = plan_of(run, CPUS)
    assert {trial.hash for trial in again.trials} == set(table["trial_hash"][:2]), "no plan of ours has theirs"
    with pytest.raises(InputError, match=r"ran another oltpbench-benchbase-ycsb .skew differ"):
        record = run.meta["configurations"]["oltpbench-benchbase-ycsb"]
        kept_configurations.refuse_others(run, {"oltpbench-benchbase-ycsb": {**record, "skew": 0.5}})


def test_a_failed_call_is_a_row_with_its_reason(
    fake: Callable[[str, str], Fake],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "refresh", lambda run: [])
    broken = fake("benchbase", "echo no route to db.example; exit 1")
    arguments = [str(broken.root), str(YCSB), "--benchmark", "ycsb", "--results", str(tmp_path / "results")]
    assert main(["oltpbench", "drive", *arguments, "--name", "elsewhere"]) == 3
    reason = "BenchBase load failed (exit code 1): no route to db.example"
    assert f"failed: {reason}" in capfd.readouterr().err
    row = collect.collect(Run((tmp_path / "results" / "latest").resolve())).iloc[0]
    assert (row["system"], row["status"], row["reason"]) == ("elsewhere", "failed", reason)
    assert main(["retry", "--results", str(tmp_path / "results")]) == 0
    assert "no failed trial" in capfd.readouterr().out, "of ours"


def test_bad_input_ends_before_anything_is_started(
    fake: Callable[[str, str], Fake], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    benchbase = fake("benchbase", "")
    results = tmp_path / "results"
    where = ["--benchmark", "ycsb", "--results", str(results)]
    strange = tmp_path / "strange.xml"
    strange.write_text(YCSB.read_text().replace("unlimited", "-5").replace("<works>", "<odd/><works>"))
    for arguments, messages in (
        (["drive", str(benchbase.root), str(TPCC), *where], ["transactiontypes/transactiontype is missing"]),
        (["drive", str(benchbase.root), str(YCSB), *where, "--into", "yesterday"], ["there is no run 'yesterday'"]),
        (["run", str(strange), *where], ["unknown elements, not used: odd", "works/work/rate '-5'"]),
        (["run", str(YCSB), *where, "--scale", "huge"], ["unknown scale 'huge'"]),
        (["export", "--results", str(results), "--format", "csv"], ["--format 'csv': not known; allowed: benchbase"]),
        (["export", "--results", str(results)], ["there is no run 'latest'"]),
    ):
        assert main(["oltpbench", *arguments]) == 2
        said = capfd.readouterr().err
        assert all(message in said for message in messages), said
    assert not benchbase.calls.exists()
    assert not results.exists()
