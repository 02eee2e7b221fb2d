"""All five systems, for real: Ansible, MySQL, Memcached, the engine, loadgen, table, claims, notebooks, at scale tiny.

The tests build on each other in order and share one node directory, with ports of their own.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from nodes import free_port, play

from runner import collect, status
from runner.cli import main
from runner.files import read_json
from runner.hosts import Host
from runner.systems import SYSTEMS

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[3]
INTO = ("--into", "latest", "--mixed-code")  # these tests form one run, also when somebody edits the sources meanwhile


class Bench:
    """A node of its own below a scratch directory, and the commands on it."""

    def __init__(self, place: Path) -> None:
        self.results = place / "results"
        self.ports = {name: free_port() for name in ("mysql_port", "memcached_port", "anticached_port")}
        self.variables = {"node_root": str(place / "var"), "control_root": str(place / "var"), **self.ports}
        self.environment = {**os.environ, "PYTHONPATH": f"{ROOT}/drivers/runner:{ROOT}/notebooks"}

    def command(self, verb: str, *arguments: str) -> list[str]:
        pairs = [f"--node-var={name}={value}" for name, value in self.variables.items()]
        return [sys.executable, "-m", "runner", verb, "--results", str(self.results), *pairs, *arguments]

    def call(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(verb, *arguments),
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    @property
    def run(self) -> Path:
        return (self.results / "latest").resolve()

    def table(self) -> pd.DataFrame:
        return collect.read(self.run)

    def records(self, name: str) -> list[dict[str, Any]]:
        return [read_json(p) for p in sorted(self.run.glob(f"trials/*/{name}"))]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Bench(tmp_path_factory.mktemp("e2e"))
    play(ROOT, "site", made.variables)
    yield made
    play(ROOT, "stop", made.variables)


def test_a_port_in_use_is_a_failed_trial_that_can_be_retried(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", bench.ports["anticached_port"])):
        done = bench.call("run", "--scale", "tiny", "--systems", "anticache-off", "--no-figures")
    assert done.returncode == 3, done.stderr
    assert "1 failed" in done.stdout
    assert "make retry" in done.stdout
    row = bench.table().iloc[0]
    assert row["status"] == "failed"
    assert str(bench.ports["anticached_port"]) in row["reason"], row["reason"]
    done = bench.call("retry", "--no-figures", "--mixed-code")
    assert done.returncode == 0, done.stdout + done.stderr
    row = bench.table().iloc[0]
    assert (row["status"], row["attempts"]) == ("ok", 2)


def _signalled(bench: Bench, number: int) -> tuple[int, str]:
    """Start a trial of the engine and send the runner a signal while it is measured."""
    selection = ("--systems", "anticache-lru", "--where", "data_memory_ratio=2")
    command = bench.command("run", "--scale", "tiny", *selection, *INTO)
    with subprocess.Popen(
        command, cwd=ROOT, env=bench.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "[0/1] anticache-lru read-heavy" in line:
                time.sleep(0.3)
                process.send_signal(number)
                break
        printed = process.stdout.read()
        return process.wait(60), printed


def test_an_interruption_stops_the_real_servers(bench: Bench) -> None:
    code, printed = _signalled(bench, signal.SIGINT)
    assert code == 130, printed
    assert "interrupted" in printed
    reasons = bench.table().set_index("system")["reason"]
    assert reasons["anticache-lru"] == "interrupted"
    pids = [e["endpoint"]["pids"] for e in bench.records("environment.json")]
    assert pids
    here = Host("here")
    assert all(here.processes(each).dead() == list(each) for each in pids), "a server survived"


def test_a_killed_runner_is_told_and_loses_the_trial_in_flight_alone(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tests after this one go on with the same run, and so with what this one leaves running."""
    before = {p: p.read_bytes() for p in bench.run.glob("trials/[!.]*/*") if p.is_file()}
    assert before
    _signalled(bench, signal.SIGKILL)
    assert {p: p.read_bytes() for p in bench.run.glob("trials/[!.]*/*") if p.is_file()} == before
    assert status.main(["status", "--results", str(bench.results)]) == 0
    shown = capsys.readouterr().out
    assert "is gone and did not end its sweep" in shown
    assert "lane 1: anticache-lru read-heavy" in shown
    assert "0 of 1 trials of this call are done" in shown


def test_every_system_is_measured_on_the_same_run(bench: Bench) -> None:
    before = bench.run
    done = bench.call("run", "--scale", "tiny", "--where", "data_memory_ratio=2", *INTO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.run == before
    table = bench.table()
    assert sorted(table["system"]) == sorted(SYSTEMS)
    took_s = {e["endpoint"]["system"]: e["took_s"] for e in bench.records("environment.json") if e["endpoint"]}
    assert set(took_s["mysql"]) == {"keep", "deploy", "prewarm", "quiesce", "run"}, "who needs it first loads it"
    assert {"deploy", "load", "prewarm", "quiesce", "run"} <= set(took_s["anticache-alru"])
    assert all(1.0 < seconds["run"] < 60.0 for seconds in took_s.values())
    node_bytes = {e["endpoint"]["system"]: e["node_bytes"] for e in bench.records("environment.json") if e["endpoint"]}
    assert node_bytes["mysql"]["dataset"] > 20_000_000
    assert all(each["system"] > 1_000_000 for each in node_bytes.values())
    assert not (table["status"] == "failed").any(), table[["system", "reason"]].to_string()
    assert (table["throughput_txn_s"] > 100).all()
    assert (table["verified"] > 0).all()
    assert (table["verify_failed"] == 0).all()
    assert (table["memory_peak_bytes"] > 1_000_000).all()
    assert (table["settings_hash"] != "").all()
    assert table["latency_us_p50"].le(table["latency_us_p99"]).all()
    at_two = table[table["data_memory_ratio"] == 2]
    assert at_two["seed"].nunique() == 1, "the same operations for every system"


def test_the_servers_ran_with_the_settings_of_the_plan(bench: Bench) -> None:
    table = bench.table().set_index("system")
    by_system = {
        read_json(p.parent / "spec.json")["cell"]["system"]: read_json(p)["server_settings"]
        for p in bench.run.glob("trials/*/result.json")
    }
    mysqld = by_system["mysql"]["mysqld"]
    assert mysqld["tx_isolation"] == "SERIALIZABLE"
    assert mysqld["innodb_flush_method"] == "O_DIRECT"
    assert mysqld["innodb_flush_log_at_trx_commit"] == "1"
    # InnoDB rounds the pool up to a multiple of its 16 KiB pages at most.
    planned_bytes = int(table["mysql_buffer_pool_bytes"].to_dict()["mysql"])
    assert abs(int(mysqld["innodb_buffer_pool_size"]) - planned_bytes) < 1 << 20
    results = {
        read_json(p.parent / "spec.json")["cell"]["system"]: read_json(p)
        for p in bench.run.glob("trials/*/result.json")
    }
    evicting = json.dumps(results["anticache-alru"]["counters_after"])
    assert '"evictions"' in evicting
    counters = next(iter(results["anticache-alru"]["counters_after"].values()))
    assert counters["evictions"] > 0, "at 2x the engine has to evict"


def test_what_a_run_leaves(bench: Bench) -> None:
    figures = {p.name for p in (bench.run / "figures").iterdir()}
    assert {"fig06.pdf", "fig06.svg", "fig06.png"} <= figures
    entries = read_json(bench.run / "claims.json")
    assert [e["id"] for e in entries] == [f"C{n:02d}" for n in range(1, 25)]
    report = (bench.run / "report.html").read_text()
    assert "data:image/png;base64," in report
    assert "http" not in report.split("<body>")[0], "self-contained"
    for name in ("fig06", "claims"):
        notebook = read_json(bench.run / "notebooks" / f"{name}.ipynb")
        assert any(cell.get("outputs") for cell in notebook["cells"])


def test_a_second_call_runs_nothing(bench: Bench) -> None:
    done = bench.call("run", "--scale", "tiny", "--where", "data_memory_ratio=2", "--no-figures", *INTO)
    assert done.returncode == 0, done.stderr
    assert "0 trials to do" in done.stdout
    done = bench.call(
        "run", "--scale", "tiny", "--systems", "mysql", "--where", "data_memory_ratio=2", "--no-figures", *INTO
    )
    assert "0 trials to do" in done.stdout


def test_the_next_sitting_goes_on_from_the_committed_copy(bench: Bench, tmp_path: Path) -> None:
    """In results of its own, as in a new checkout: what was committed is not measured again, the rest is added."""
    committed = tmp_path / "unfinished"
    assert main(["publish", "--results", str(bench.results), "--to", str(committed)]) == 0
    following = copy.copy(bench)
    following.results = tmp_path / "results"
    selection = ("--systems", "mysql,anticache-alru", "--where", "data_memory_ratio=1,2", "--from", str(committed))
    done = following.call("run", "--scale", "tiny", *selection, "--no-figures", "--mixed-code")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials to do" in done.stdout
    table, before = (each.table().set_index("trial_hash") for each in (following, bench))
    assert len(table) == len(before) + 2
    assert (table.loc[before.index, "throughput_txn_s"] == before["throughput_txn_s"]).all()
    assert (table.loc[before.index, "sitting"] == before["sitting"]).all()
    new = table.drop(before.index)
    assert sorted(new["system"]) == ["anticache-alru", "mysql"]
    assert set(new["data_memory_ratio"]) == {1.0}
    assert (new["status"] == "ok").all()
    assert set(new["sitting"]) == {max(table["sitting"])}


def test_an_engine_is_described_after_its_trial(bench: Bench, tmp_path: Path) -> None:
    """Figures 1 to 5 are drawn from this: two partitions, tuples in memory and in blocks, both linked as they say."""
    described = copy.copy(bench)
    described.results = tmp_path / "results"
    done = described.call("run", "--experiment", "fig01-05", "--scale", "tiny", "--no-figures")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = described.records("engine.json")
    assert [partition["partition"] for partition in found["partitions"]] == [0, 1]
    tables = [partition["tables"][0] for partition in found["partitions"]]
    assert sum(table["resident"] + table["evicted"] for table in tables) == 7000
    for table in tables:
        assert len(table["chain"]["tuples"]) == len(table["blocks"]) == found["most"]
        for one, other in pairwise(table["chain"]["tuples"]):
            assert (one["next"], other["previous"]) == (other["tuple"], one["tuple"])
        assert all(block["place"] == "stored" and block["contents"] for block in table["blocks"])


def test_a_system_that_needs_more_than_its_limit_fails_with_that_reason(bench: Bench, tmp_path: Path) -> None:
    """MySQL takes about 40 MB beside its buffer pool; with an allowance of 8 MB the kernel ends it."""
    small = copy.copy(bench)
    small.results = tmp_path / "results"
    small.variables = {**bench.variables, "memory_allowance_bytes": "8000000"}
    done = small.call("run", "--scale", "tiny", "--systems", "mysql", "--where", "data_memory_ratio=2", "--no-figures")
    assert done.returncode == 3, done.stdout + done.stderr
    row = small.table().iloc[0]
    assert row["status"] == "failed"
    assert "mysqld exceeded its memory: limit " in row["reason"], row["reason"]
    assert "+ allowance 8000000; oom_kill 1" in row["reason"], row["reason"]


def test_what_was_enforced_stands_with_every_trial(bench: Bench) -> None:
    groups = {e["endpoint"]["system"]: e["control_group"] for e in bench.records("environment.json") if e["endpoint"]}
    assert set(groups) == set(SYSTEMS)
    assert all(group["enforced"] and group["cpuset"] for group in groups.values()), groups
    by_budget = {(g["budget_bytes"], g["allowance_bytes"], g["limit_bytes"]) for g in groups.values()}
    assert len(by_budget) == len({budget for budget, _, _ in by_budget}), "the same limit for every system"
    table = bench.table()
    measured = table[table["status"].isin(["ok", "invalid"])]
    assert (measured["memory_peak_bytes"] <= measured["memory_limit_bytes"]).all()
    assert (measured["memory_anonymous_bytes"] <= measured["memory_peak_bytes"]).all()
    cpu = {e["endpoint"]["system"]: e["server_cpu"] for e in bench.records("environment.json") if e["endpoint"]}
    assert set(cpu["mysql-memcached"]["cpu_s"]) == {"mysqld", "memcached"}
    # Two CPUs at most are the servers' on the smallest machine; clocks tick a hundred times a second.
    cores = len(os.sched_getaffinity(0))
    assert measured["server_cpu_cores"].between(0.001, cores + 0.1).all()
    nodes = [e["machine_cpu"] for e in bench.records("environment.json") if "machine_cpu" in e]
    assert all(set(of_node) == {"dbms"} for of_node in nodes), "one machine has both roles here"
    assert all(of_node["dbms"]["own_s"] > 0 and of_node["dbms"]["user_s"] > 0 for of_node in nodes)
    assert measured["cpu_stolen_share"].between(0, 1).all()
    assert measured["other_cpu_cores"].between(0, cores).all()


def _written_forms(secret: str) -> list[bytes]:
    """A secret as it is, in hexadecimal digits, and in base64 at each of its three alignments."""
    raw = secret.encode()
    forms = [raw, raw.hex().encode(), raw.hex().upper().encode()]
    # Without the characters that depend on what stands around it.
    forms += [base64.b64encode(b"x" * before + raw)[4 if before else 0 : -4] for before in range(3)]
    return forms


def _holders(place: Path, forms: list[bytes]) -> set[str]:
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(place)) for path in files if any(form in path.read_bytes() for form in forms)}


def test_no_secret_is_left_in_results_or_logs(bench: Bench) -> None:
    root = Path(str(bench.variables["control_root"]))
    secrets = {path.name: path.read_text().strip() for path in (root / "secrets").glob("*/*")}
    assert set(secrets) == {"mysql_root", "mysql_terminals", "anticache"}
    assert all(len(secret) == 32 for secret in secrets.values())
    forms = [form for secret in secrets.values() for form in _written_forms(secret)]
    assert _holders(bench.results, forms) == set()
    # What must hold them: the generated files, and the engine's copy on its node.
    assert _holders(root, forms) == {*(f"secrets/local/{name}" for name in secrets), "anticache/secret"}
    for name in ("loadgen-run.json", "ansible.log", "deployment.json"):
        assert list(bench.run.rglob(name)), f"no {name} was searched"


def test_a_secret_in_any_form_would_be_found(tmp_path: Path) -> None:
    secret = "kJq7nWz2mXb9TfRc4LpD" * 2
    around = [
        secret.encode().hex().encode(),
        *(base64.b64encode(b"." * n + secret.encode() + b"...") for n in range(3)),
    ]
    for number, content in enumerate([f"password={secret}\n".encode(), *around]):
        (tmp_path / str(number)).write_bytes(b"..." + content)
    (tmp_path / "none").write_text("nothing")
    assert _holders(tmp_path, _written_forms(secret)) == {"0", "1", "2", "3", "4"}
