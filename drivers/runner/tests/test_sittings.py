"""One run in several sittings: from a committed copy on, the same in the end as one that was never interrupted."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from runner import claims, collect, context, outputs, publish, resume, store, union
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.files import read_json, write_json
from runner.identity import Code
from runner.machine import CpuSets
from runner.plan import Plan, Trial, make_plan
from runner.store import Key, Run
from runner.workload import Workload

CODE = Code("a" * 40, False, "code-1")
KEY = Key("smoke", "local", "none", "code-1", "inventory-1", "variables-1", "A CPU, 2 cores, 8 GiB, kernel 6.1")


@pytest.fixture
def plan(smoke: Workload) -> Plan:
    systems, where = ["mysql", "anticache-lru"], {"data_memory_ratio": ["1"], "mix": ["read-only"]}
    return make_plan([smoke], CpuSets("0", "1"), NODE_DISK, systems=systems, where=where)


def begin(results: Path, key: Key = KEY, code: Code = CODE) -> Run:
    """A run in a sitting, in a checkout of its own."""
    run = store.create(results, key, code, {"cpu_cores": 2})
    run.begin_sitting({"code": dataclasses.asdict(code), "machine": key.machine, "command": "run again"})
    run.add_lanes({"1": {"hosts": {"dbms": "localhost", "clients": "localhost"}, "disk_self_test": [{"ratio": 1.0}]}})
    return run


def measure(run: Run, trial: Trial, minute: int, status: str = "ok", **more: Any) -> None:
    """Record a trial with figures of its own, at a minute of the day."""
    directory = run.begin(trial.hash)
    figure = 1000.0 + int(trial.hash[:4], 16) + minute / 100
    result = {"format": 1, "status": status, "reason": "", "flags": [], **more}
    if status != "failed":
        result |= {"throughput_txn_s": figure, "committed": int(figure), "measured_s": 1.0}
        result["server_settings"] = {"mysqld": {"datadir": f"{run.path}/var/mysql/", "pool": "1"}}
    write_json(directory / "result.json", result)
    at = f"2026-01-01T00:{minute:02}"
    environment = {"started_at": f"{at}:00+00:00", "ended_at": f"{at}:40+00:00", "code": dataclasses.asdict(CODE)}
    write_json(directory / "environment.json", {**environment, "sitting": run.sitting, "endpoint": {"a": "b"}})
    (directory / "timeline.csv").write_text("second,committed\n0,1\n")
    (directory / "latency.hdr").write_text("Tag=read\n")
    run.commit(trial.hash)


def go_on(copy: Path, results: Path) -> Run:
    """Begin another sitting with what the copy holds, as `run --from` does in an empty checkout."""
    run = begin(results)
    union.adopt(run, Run(copy))
    return run


def table_of(run: Run) -> pd.DataFrame:
    """What of the table does not say when and where it was recorded."""
    return collect.collect(run).drop(columns=["run", "sitting"])


def test_sittings_come_to_the_same_as_a_run_that_was_never_interrupted(plan: Plan, tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole")
    whole.add_plan(plan)
    first = begin(tmp_path / "first")
    first.add_plan(plan)
    third = len(plan.trials) // 3
    for run in (whole, first):
        for _ in range(2):  # failed twice for the same reason
            measure(run, plan.trials[0], 0, status="failed", reason=f"log: {run.path}/trials/x/log")
        for minute, trial in enumerate(plan.trials[:third]):
            measure(run, trial, minute)
        run.add_tables("content-1", "mysql", {"usertable": {"rows": 1, "checksum": "c"}})
    copy = tmp_path / "committed" / "unfinished" / "smoke"
    publish.publish(first, copy, merge=True)
    shutil.rmtree(tmp_path / "first")

    second = go_on(copy, tmp_path / "second")
    second.add_plan(plan)
    todo = store.to_run(plan.trials, second.recorded())
    assert todo == list(plan.trials[third:]), "what was committed is not run again"
    for run, trials in ((whole, todo), (second, todo[:third])):
        for minute, trial in enumerate(trials, start=third):
            measure(run, trial, minute)
    publish.publish(second, copy, merge=True)
    shutil.rmtree(tmp_path / "second")

    last = go_on(copy, tmp_path / "third")
    for minute, trial in enumerate(store.to_run(plan.trials, last.recorded()), start=2 * third):
        measure(last, trial, minute)
    pd.testing.assert_frame_equal(table_of(last), table_of(whole))
    assert table_of(last)["attempts"].tolist()[0] == 3
    one, other = (publish.publish(run, tmp_path / "published" / name) for name, run in (("a", last), ("b", whole)))
    pd.testing.assert_frame_equal(table_of(one), table_of(other))
    wanted = claims.load(context.WORKLOADS / "claims.yml")
    judged = [claims.judge_all(wanted, collect.collect(run), outputs.whole_grids(run)) for run in (one, other)]
    assert judged[0] == judged[1]
    assert collect.collect(last)["sitting"].nunique() == 3, "each trial names its sitting"
    assert len(one.sittings) == 3
    assert all(s["lanes"]["1"]["disk_self_test"] for s in one.sittings), "each with the disk as it was then"
    assert one.tables("content-1") == whole.tables("content-1")


def test_a_failed_trial_gives_way_and_the_later_of_two_measurements_stands(plan: Plan, tmp_path: Path) -> None:
    here, there = begin(tmp_path / "here"), begin(tmp_path / "there")
    for run in (here, there):
        run.add_plan(plan)
    failed, later, earlier, failed_there = plan.trials[:4]
    measure(here, failed, 5, status="failed", reason="disk full")
    measure(there, failed, 1)
    measure(here, later, 1)
    measure(there, later, 5)
    measure(here, earlier, 5)
    measure(there, earlier, 1)
    measure(here, failed_there, 1)
    measure(there, failed_there, 5, status="failed", reason="disk full")
    assert union.adopt(here, publish.publish(there, tmp_path / "copy")) == 2
    table = collect.collect(here).set_index("trial_hash")
    cells = [trial.hash for trial in (failed, later, earlier, failed_there)]
    minutes = {trial_hash: str(table.loc[trial_hash, "started_at"])[14:16] for trial_hash in cells}
    assert list(minutes.values()) == ["01", "05", "05", "01"]
    assert (table.loc[list(minutes), "status"] == "ok").all()
    assert table.loc[list(minutes), "attempts"].tolist() == [2, 2, 2, 2], "what gave way is an attempt"
    assert union.adopt(here, Run(tmp_path / "copy")) == 0
    assert collect.collect(here).set_index("trial_hash")["attempts"].max() == 2, "once"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine": "B CPU, 2 cores, 8 GiB, kernel 6.1"}, "machine: A CPU, 2 cores, 8 GiB, kernel 6.1, now B CPU"),
        ({"machine": "A CPU, 2 cores, 4 GiB, kernel 6.1"}, "8 GiB, kernel 6.1, now A CPU, 2 cores, 4 GiB"),
        ({"disk": "hdd-7200"}, "disk profile: none, now hdd-7200"),
        ({"inventory_content": "x"}, "content of the inventory"),
        ({"scale": "laptop"}, "scale: smoke, now laptop"),
    ],
)
def test_what_other_conditions_measured_is_refused(
    change: dict[str, str], message: str, plan: Plan, tmp_path: Path
) -> None:
    run = begin(tmp_path / "results")
    run.add_plan(plan)
    copy = publish.publish(run, tmp_path / "copy")
    resume.refuse_other_conditions(copy, dataclasses.replace(KEY, shaping_code="other code"))
    mixed: list[resume.Mixed] = ["", "kernel"] if "machine" in change else ["", "kernel", "machine"]
    for allowed in mixed:
        with pytest.raises(InputError) as caught:
            resume.refuse_other_conditions(copy, dataclasses.replace(KEY, **change), allowed)
        assert message.replace(", kernel 6.1", "" if allowed else ", kernel 6.1") in str(caught.value)
        assert "--mixed-kernel" not in str(caught.value)
        assert ("--mixed-machine" in str(caught.value)) == ("machine" in change)
    if "machine" in change:
        resume.refuse_other_conditions(copy, dataclasses.replace(KEY, **change), "machine")


def test_another_kernel_on_the_same_hardware_is_mixed_only_when_asked(plan: Plan, tmp_path: Path) -> None:
    run = begin(tmp_path / "one")
    run.add_plan(plan)
    measure(run, plan.trials[0], 1)
    copy = publish.publish(run, tmp_path / "copy")
    newer = dataclasses.replace(KEY, machine="A CPU, 2 cores, 8 GiB, kernel 6.2")
    with pytest.raises(InputError, match="--mixed-kernel"):
        resume.refuse_other_conditions(copy, newer)
    resume.refuse_other_conditions(copy, newer, "kernel")
    resume.refuse_other_conditions(copy, newer, "machine")
    other = begin(tmp_path / "two", newer)
    assert resume.machines_of(other) == ""
    union.adopt(other, copy)
    assert resume.machines_of(other) == (
        "mixed kernels: sittings of this run were measured on A CPU, 2 cores, 8 GiB, kernel 6.1; and on A CPU, 2 cores,"
        " 8 GiB, kernel 6.2"
    )


def test_an_inventory_given_by_its_path_is_known_again(plan: Plan, tmp_path: Path) -> None:
    run = begin(tmp_path / "results", dataclasses.replace(KEY, inventory="/home/me/lab"))
    run.add_plan(plan)
    copy = publish.publish(run, tmp_path / "copy")
    assert copy.key.inventory == "lab"
    resume.refuse_other_conditions(copy, dataclasses.replace(KEY, inventory="/home/you/lab"))


def test_code_is_compared_trial_by_trial(plan: Plan, tmp_path: Path) -> None:
    run = begin(tmp_path / "one")
    run.add_plan(plan)
    run.keep_code(CODE, {"ansible/deploy.yml": "1"})
    measure(run, plan.trials[0], 1)
    copy = publish.publish(run, tmp_path / "copy")
    newer, files = Code("b" * 40, False, "code-2"), {"ansible/deploy.yml": "2"}
    with pytest.raises(
        InputError, match=r"1 by commit aaaaaaaaaaaa, which differs in ansible/deploy.yml\. .*--mixed-c"
    ):
        resume.refuse_other_code(copy, newer, files, plan.trials[1:])
    other = begin(tmp_path / "two", dataclasses.replace(KEY, shaping_code="code-2"), newer)
    union.adopt(other, copy)
    assert other.code_of(plan.trials[0].hash) == CODE, "taken over with each trial"
    assert other.files_of("code-1") == {"ansible/deploy.yml": "1"}


def test_different_rows_of_one_data_set_are_refused(plan: Plan, tmp_path: Path) -> None:
    one, other = begin(tmp_path / "one"), begin(tmp_path / "other")
    for run, checksum in ((one, "1"), (other, "2")):
        run.add_plan(plan)
        run.add_tables("content-1", "mysql", {"orders": {"rows": 3, "checksum": checksum}})
    with pytest.raises(InputError, match=r"loaded different rows of one data set \(content-1, mysql\)"):
        union.adopt(one, publish.publish(other, tmp_path / "copy"))


def test_two_places_fill_one_copy(plan: Plan, tmp_path: Path) -> None:
    """Two machines of one kind begin with the same copy, do different parts, and publish one after the other."""
    copy = tmp_path / "unfinished" / "smoke"
    base = begin(tmp_path / "base")
    base.add_plan(plan)
    measure(base, plan.trials[0], 1)
    publish.publish(base, copy, merge=True)
    halves = [go_on(copy, tmp_path / name) for name in ("left", "right")]
    for run, trials in zip(halves, (plan.trials[1:3], plan.trials[3:]), strict=True):
        for minute, trial in enumerate(trials):
            measure(run, trial, minute)
    for run in halves:
        publish.publish(run, copy, merge=True)
    assert set(Run(copy).states().values()) == {"ok"}
    assert len(Run(copy).sittings) == 3
    before = {p: p.read_bytes() for p in sorted(copy.rglob("*")) if p.is_file()}
    publish.publish(halves[1], copy, merge=True)
    assert {p: p.read_bytes() for p in sorted(copy.rglob("*")) if p.is_file()} == before, "once more changes nothing"


def test_a_copy_of_something_else_is_not_merged_with(plan: Plan, tmp_path: Path) -> None:
    copy = tmp_path / "unfinished" / "smoke"
    run = begin(tmp_path / "one")
    run.add_plan(plan)
    run.keep_code(CODE, {"ansible/deploy.yml": "1"})
    publish.publish(run, copy, merge=True)
    other = begin(tmp_path / "two", dataclasses.replace(KEY, machine="B", shaping_code="code-2"))
    other.keep_code(Code("b" * 40, False, "code-2"), {"ansible/deploy.yml": "2"})
    with pytest.raises(InputError, match=r"machine: A CPU, .*, here B; code, which differs in ansible/deploy.yml"):
        publish.publish(other, copy, merge=True)
    assert len(Run(copy).trials) == len(plan.trials), "it stays as it was"


def test_a_publication_that_was_cut_off_is_put_back(plan: Plan, tmp_path: Path) -> None:
    copy = tmp_path / "unfinished" / "smoke"
    run = begin(tmp_path / "one")
    run.add_plan(plan)
    measure(run, plan.trials[0], 1)
    publish.publish(run, copy, merge=True)
    copy.rename(copy.with_name(".smoke.former"))
    again = begin(tmp_path / "two")
    again.add_plan(plan)
    assert plan.trials[0].hash in publish.publish(again, copy, merge=True).recorded()
    assert [p.name for p in copy.parent.iterdir()] == ["smoke"]


def test_an_unfinished_copy_is_not_shown_by_default(plan: Plan, tmp_path: Path) -> None:
    run = begin(tmp_path / "one")
    run.add_plan(plan)
    publish.publish(run, tmp_path / "results" / "unfinished" / "smoke", merge=True)
    assert store.newest_published(tmp_path / "results" / "published") is None
    assert read_json(tmp_path / "results" / "unfinished" / "smoke" / "run.json")["published"] == run.name
