"""The run directory: resume, retry, attempts, and what a crash leaves behind."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import store
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.files import read_json, write_json
from runner.identity import Code
from runner.machine import CpuSets
from runner.plan import Plan, make_plan
from runner.store import Key, Run
from runner.workload import Workload

Record = Callable[..., None]
KEY = Key("smoke", "local", "none", "code", "inventory", "variables", "a machine")


@pytest.fixture
def plan(smoke: Workload) -> Plan:
    return make_plan([smoke], CpuSets("0", "1"), NODE_DISK, systems=["mysql"], where={"data_memory_ratio": ["1"]})


def test_a_recorded_trial_is_not_run_again(plan: Plan, new_run: Callable[[Plan], Run], record_trial: Record) -> None:
    run = new_run(plan)
    assert store.to_run(plan.trials, run.recorded()) == list(plan.trials)
    record_trial(run, plan.trials[0], 100.0)
    record_trial(run, plan.trials[1], 100.0, status="invalid", reason="saturated")
    record_trial(run, plan.trials[2], None, status="failed", reason="interrupted")
    # A new process sees what the first one left.
    again = Run(run.path)
    assert store.to_run(plan.trials, again.recorded()) == list(plan.trials[2:])
    assert store.to_retry(plan.trials, again.recorded()) == [plan.trials[2]], "an invalid trial is a result"
    assert store.to_retry(plan.trials, again.recorded(), invalid=True) == list(plan.trials[1:3])
    states = again.states()
    assert [states[t.hash] for t in plan.trials[:4]] == ["ok", "invalid", "failed", "planned"]


def test_a_crash_loses_only_the_trial_in_flight(
    plan: Plan, new_run: Callable[[Plan], Run], record_trial: Record
) -> None:
    run = new_run(plan)
    record_trial(run, plan.trials[0], 100.0)
    write_json(run.begin(plan.trials[1].hash) / "result.json", {"status": "ok"})  # killed before the commit
    again = Run(run.path)
    assert set(again.recorded()) == {plan.trials[0].hash}
    assert store.to_run(plan.trials, again.recorded()) == list(plan.trials[1:])
    assert list(again.begin(plan.trials[1].hash).iterdir()) == [], "the leftover is not mixed into the next attempt"


def test_a_record_is_synced_before_it_counts(
    plan: Plan, new_run: Callable[[Plan], Run], record_trial: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a name that is there names what is whole: content, then names in it, then the name itself."""
    run, trial = new_run(plan), plan.trials[0]
    record_trial(run, trial, None, status="failed", reason="first")
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        events.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def renamed(path: Path, to: Path) -> Path:
        events.append(("rename", to.name))
        return rename(path, to)

    directory = run.begin(trial.hash)
    for name in ("result.json", "timeline.csv"):
        (directory / name).write_text("{}")
    (directory / "inner").mkdir()
    (directory / "inner" / "theirs.csv").write_text("1")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    run.commit(trial.hash)
    complete = events.index(("rename", f".{trial.hash}.complete"))
    assert {name for _, name in events[:complete]} >= {"result.json", "timeline.csv", "theirs.csv", "inner"}
    assert events[complete - 1] == ("sync", f".{trial.hash}.partial"), "the names in it, after their contents"
    made_room, counts = events.index(("rename", "1")), events.index(("rename", trial.hash))
    assert complete < events.index(("sync", "trials")) < made_room < counts
    assert ("sync", trial.hash) in events[made_room:counts], "the earlier record is safe among the attempts"
    assert events[-1] == ("sync", "trials")


def test_a_commit_that_was_cut_off_is_brought_to_its_end(
    plan: Plan, new_run: Callable[[Plan], Run], record_trial: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid record that is measured again is in the run, before or after, wherever the machine went down."""
    run, trial = new_run(plan), plan.trials[0]
    record_trial(run, trial, 1.0, status="invalid")
    rename = Path.rename

    def cut_off(path: Path, to: Path) -> Path:
        if to.name == trial.hash:
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", cut_off)
    with pytest.raises(KeyboardInterrupt):
        record_trial(run, trial, 2.0)
    monkeypatch.undo()
    again = Run(run.path)
    again.begin(plan.trials[1].hash)
    with again.held():
        assert again.recorded() == {trial.hash: store.Recorded("ok", "")}
        assert again.attempts(trial.hash) == 2
        assert [p.name for p in (again.path / "trials").iterdir()] == [trial.hash], "what was in flight is gone"


def test_warnings_and_lanes_belong_to_their_sitting(plan: Plan, new_run: Callable[[Plan], Run]) -> None:
    run = new_run(plan)
    assert run.sitting == ""
    for number in (1, 2):
        run.begin_sitting({"machine": "a machine"})
        run.add_warnings([f"warning {number}", "both"])
        run.add_lanes({"1": {"hosts": {}, "disk_self_tests": {"hdd-7200": [number]}}})
        run.end_sitting("finished" if number == 1 else "interrupted")
    again = Run(run.path)
    assert [s["warnings"] for s in again.sittings] == [["warning 1", "both"], ["warning 2", "both"]]
    assert [s["lanes"]["1"]["disk_self_tests"]["hdd-7200"] for s in again.sittings] == [[1], [2]]
    assert [s["end"] for s in again.sittings] == ["finished", "interrupted"]
    assert again.meta["warnings"] == ["warning 1", "both", "warning 2"]
    assert again.meta["lanes"]["1"]["disk_self_tests"]["hdd-7200"] == [2]


def test_earlier_attempts_are_kept(plan: Plan, new_run: Callable[[Plan], Run], record_trial: Record) -> None:
    run, trial = new_run(plan), plan.trials[0]
    record_trial(run, trial, None, status="failed", reason="first")
    record_trial(run, trial, None, status="failed", reason="second")
    record_trial(run, trial, 100.0)
    assert run.recorded()[trial.hash].status == "ok"
    assert run.attempts(trial.hash) == 3
    reasons = [read_json(run.path / "attempts" / trial.hash / n / "result.json")["reason"] for n in ("1", "2")]
    assert reasons == ["first", "second"]


def test_find_takes_the_newest_run_of_the_same_kind(tmp_path: Path) -> None:
    key, code = KEY, Code("c0ffee", False, "abc")
    first = store.create(tmp_path, key, code, {})
    second = store.create(tmp_path, key, code, {})
    assert first.path != second.path
    other = store.create(tmp_path, dataclasses.replace(key, shaping_code="changed"), code, {})
    found = store.find(tmp_path, key)
    assert found is not None
    assert found.path == second.path
    assert store.find(tmp_path, dataclasses.replace(key, scale="laptop")) is None
    assert (tmp_path / "latest").resolve() == other.path.resolve()
    assert not (tmp_path / "latest").readlink().is_absolute()


def test_latest_can_be_set_from_a_relative_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = store.create(Path("results"), KEY, Code("c", False, "x"), {})
    opened = store.open_run(Path("results"), "latest")
    store.point_latest(Path("results"), opened.path)
    assert (tmp_path / "results" / "latest").resolve() == run.path.resolve()


def test_a_run_can_be_widened(smoke: Workload, new_run: Callable[[Plan], Run], record_trial: Record) -> None:
    cpus = CpuSets("0", "1")
    part = make_plan([smoke], cpus, NODE_DISK, systems=["mysql"])
    run = new_run(part)
    record_trial(run, part.trials[0], 100.0)
    whole = make_plan([smoke], cpus, NODE_DISK)
    run.add_plan(whole)
    again = Run(run.path)
    assert sorted(t["hash"] for t in again.trials) == sorted(t.hash for t in whole.trials)
    assert len(store.to_run(whole.trials, again.recorded())) == len(whole.trials) - 1


def test_open_run_names_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none exist yet"):
        store.open_run(tmp_path, "latest")
    run = store.create(tmp_path, KEY, Code("c", False, "x"), {})
    with pytest.raises(InputError, match=f"present: {run.name}"):
        store.open_run(tmp_path, "2001-01-01T00-00-00Z")
    (run.path / "run.json").write_text("{")
    with pytest.raises(InputError, match="no run directory"):
        store.open_run(tmp_path, "latest")
