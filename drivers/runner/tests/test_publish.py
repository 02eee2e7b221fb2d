"""Publishing a run: what goes in, what stays out, and that it is the same run afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from runner import collect, hidden, publish, store
from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.files import read_json, write_json
from runner.machine import CpuSets
from runner.plan import Plan, make_plan
from runner.store import Run
from runner.workload import Workload

Record = Callable[..., None]


@pytest.fixture
def run(smoke: Workload, new_run: Callable[[Plan], Run], record_trial: Record) -> Run:
    """A run on two machines of a lab, with what a machine tells about itself."""
    systems = ["mysql", "anticache-alru"]
    plan = make_plan(
        [smoke], CpuSets("0", "1"), NODE_DISK, systems=systems, where={"data_memory_ratio": ["1"], "skew": ["1.5"]}
    )
    made = new_run(plan)
    made.add_lanes({"a": {"hosts": {"dbms": "db7.lab", "clients": "cl7.lab"}}})
    made.add_warnings(["db7.lab: load 3; /home/someone/checkout/target/release/loadgen is older than its sources"])
    settings = {"mysqld": {"datadir": "/home/someone/var/mysql/", "hostname": "db7", "bind_address": "10.1.2.3"}}
    for number, trial in enumerate(plan.trials):
        record_trial(made, trial, None if number == 1 else 100.1 + number / 3, status="failed" if number == 1 else "ok")
        place = made.trial_path(trial.hash)
        write_json(place / "result.json", read_json(place / "result.json") | {"server_settings": settings})
        environment = {
            "hosts": {"dbms": "db7.lab", "clients": "cl7.lab"},
            "lane": "a",
            "endpoint": {"mysql_address": "10.1.2.3:3306"},
            "machine": {"hostname": "db7", "cpu_model": "a CPU", "node_root_device": {"device": "/dev/sda"}},
        }
        write_json(place / "environment.json", environment)
        (place / "loadgen-run.log").write_text("cl7.lab\n")
        for program in ("loadgen", "anticache-micro"):
            write_json(place / f"{program}-run.json", {"schema": "a copy"})
        (place / "latency.hdr").write_text("Tag=read\n")
        events = (
            "second,partition,kind,tuples,blocks,bytes,took_us\n0.5,0,eviction,7,1,8192,90\n0.6,0,fetch,0,1,8192,9\n"
        )
        (place / "events.csv").write_text(events)
    record_trial(made, plan.trials[1], 99.0)  # the second attempt
    return made


def _bytes(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_it_is_the_same_run(run: Run, tmp_path: Path) -> None:
    copy = publish.publish(run, tmp_path / "published" / "lab")
    assert copy.name == f"{run.name} (published)"
    own, published = collect.collect(run), collect.read(copy.path)
    named = ["run", "db_node", "client_node"]
    pd.testing.assert_frame_equal(own.drop(columns=named), published.drop(columns=named))
    assert published["attempts"].tolist().count(2) == 1
    assert set(published["db_node"]) == {"node 1", ""}
    pd.testing.assert_frame_equal(collect.collect(copy), published)
    histograms = [path.read_text() for path in copy.path.glob("trials/*/latency.hdr")]
    assert histograms == ["Tag=read\n"] * (len(run.trials) - 1), "the second attempt has none"


def test_nothing_of_the_machine_is_in_it(run: Run, tmp_path: Path) -> None:
    copy = publish.publish(run, tmp_path / "published" / "lab")
    files = _bytes(copy.path)
    for private in (b"db7", b"cl7", b"/home", b"someone", b"10.1.2.3", b"hostname", b"endpoint"):
        assert not [name for name, content in files.items() if private in content], private
    assert {Path(name).suffix for name in files} == {".json", ".csv", ".hdr"}
    assert not [name for name in files if Path(name).name in ("spec.json", "trials.parquet") or "-run." in name]
    assert "…/loadgen is older" in copy.meta["warnings"][0]
    assert "node 1: load 3" in copy.meta["warnings"][0]
    (events,) = {content for name, content in files.items() if name.endswith("events.csv")}
    assert [line.split(",")[2] for line in events.decode().splitlines()] == ["kind", "eviction"]


def test_paths_are_not_mistaken(run: Run) -> None:
    stands_for = hidden.Hidden(run)
    for text in (
        "1/16",
        "MB/s, 4 KiB/op",
        "http://www.w3.org/2000/svg",
        "/dev/loop0",
        "/sys/fs/cgroup",
        "127.0.0.1:80",
        "5.6.24",
    ):
        assert stands_for.of(text) == text
    assert stands_for.of("log: /tmp/c/d.log!") == "log: …/d.log!"
    assert stands_for.of(["datadir=/var/lib/mysql/"]) == ["datadir=…/mysql"]


def test_the_same_run_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    first = _bytes(publish.publish(run, tmp_path / "one").path)
    assert first == _bytes(publish.publish(run, tmp_path / "two").path)
    (tmp_path / "one" / "trials" / "left-over.json").write_text("{}")
    assert first == _bytes(publish.publish(run, tmp_path / "one").path), "an earlier publication is replaced"


def test_trials_of_code_that_is_in_no_commit_are_counted(run: Run, tmp_path: Path) -> None:
    table = collect.collect(run)
    measured = table.index[~table["status"].isin(["failed", "planned"])]
    for dirty in ([], [measured[0]], list(measured)):
        changed = table.assign(dirty=[index in dirty for index in table.index])
        collect.write(changed, run.path)
        assert publish.unclean(run) == len(dirty)


def test_what_cannot_be_published_or_replaced(run: Run, tmp_path: Path) -> None:
    copy = publish.publish(run, tmp_path / "one")
    with pytest.raises(InputError, match="is published already"):
        publish.publish(copy, tmp_path / "two")
    (tmp_path / "precious").mkdir()
    with pytest.raises(InputError, match="exists and is no published run"):
        publish.publish(run, tmp_path / "precious")


def test_the_published_run_is_shown_where_there_is_none(run: Run, tmp_path: Path) -> None:
    parent = tmp_path / "published"
    with pytest.raises(InputError, match="none exist yet: start one with `make smoke`"):
        store.to_show(tmp_path / "empty", "latest", parent)
    publish.publish(run, parent / "older")
    newer = publish.publish(run, parent / "newer")
    document = json.loads((newer.path / "run.json").read_text())
    write_json(newer.path / "run.json", document | {"created_at": "2999-01-01T00:00:00+00:00"})
    assert store.to_show(tmp_path / "empty", "latest", parent).path == newer.path
    assert store.to_show(tmp_path / "results", "latest", parent).path == run.path, "one's own comes first"
