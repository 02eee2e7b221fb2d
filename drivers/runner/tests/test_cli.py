"""The command line: bad input ends with 2 and one clear text before anything starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from runner import collect, context, identity, machine, precautions, resume, store
from runner.cli import command_line, main
from runner.cluster import Cluster, Lane
from runner.disk import NODE_DISK
from runner.files import read_json, write_json
from runner.hosts import Host
from runner.identity import Code
from runner.inventory import Inventory
from runner.plan import Trial, make_plan
from runner.recording import Summary
from runner.store import Run
from runner.sweep import Sweep
from runner.workload import experiments_in, load

ROOT = Path(__file__).resolve().parents[3]


class Done(NamedTuple):
    """What a command left: exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Runner = Callable[..., Done]


@pytest.fixture
def runner(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Runs a command in this process, as ``python -m runner`` would."""
    monkeypatch.chdir(ROOT)

    def call(*arguments: str) -> Done:
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--disk", "hdd-7201"],
            "DISK=hdd-7201: there is no such disk (did you mean 'hdd-7200'?); allowed: ",
        ),
        (["--experiment", "fig66"], "there is no experiment 'fig66' (workloads/fig66.yml) (did you mean 'fig06'?)"),
        (["--scale", "smokes"], "unknown scale 'smokes' (did you mean 'smoke'?); allowed: tiny, smoke, laptop, paper"),
        (["--systems", "mysql,memcached"], "system 'memcached' is not in the grid"),
        (["--inventory", "nowhere"], "there is no inventory 'nowhere'; present: "),
        (["--where", "skew=2"], "skew '2' is not in the grid"),
        (["--node-var", "mysql_port"], "--node-var 'mysql_port': expected NAME=VALUE"),
        (["--trials", "0"], "Invalid value for '--trials'"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_bad_input_is_refused_before_anything_starts(
    command: str, arguments: list[str], message: str, tmp_path: Path, runner: Runner
) -> None:
    done = runner(command, "--results", str(tmp_path / "results"), *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["status", "retry", "collect", "publish"])
def test_commands_on_a_run_say_when_there_is_none(command: str, tmp_path: Path, runner: Runner) -> None:
    done = runner(command, "--results", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no run 'latest' in {tmp_path}; none exist yet: start one with `make smoke`" in done.stderr


@pytest.mark.parametrize("command", ["claims", "figures", "report"])
def test_what_only_shows_a_run_refuses_one_that_is_named_and_not_there(
    command: str, tmp_path: Path, runner: Runner
) -> None:
    done = runner(command, "--results", str(tmp_path), "--run", "yesterday")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no run 'yesterday' in {tmp_path}" in done.stderr


def test_the_published_run_is_shown_and_named_where_there_is_none(
    tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = store.newest_published(context.PUBLISHED)
    assert newest is not None
    published = tmp_path / "published" / "smoke"
    shutil.copytree(newest.path, published, ignore=shutil.ignore_patterns("figures", "notebooks", "report.*"))
    # One experiment: drawing all of them is what the tests of the published notebooks do.
    plan, run = read_json(published / "plan.json"), read_json(published / "run.json")
    plan["trials"] = [trial for trial in plan["trials"] if trial["experiment"] == "fig10"]
    write_json(published / "plan.json", plan)
    write_json(published / "run.json", {**run, "experiments": ["fig10"]})
    table = collect.read(published)
    collect.write(table[table["experiment"] == "fig10"], published, collect.PUBLISHED_FILES)
    monkeypatch.setattr(context, "PUBLISHED", published.parent)
    results = tmp_path / "results"
    done = runner("report", "--results", str(results))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"no run of your own in {results}: this is the published one, {published}")
    assert "Figure 10" in (published / "report.html").read_text(encoding="utf-8")
    assert (published / "report.pdf").stat().st_size > 10_000


def test_plan_tells_what_would_be_run(tmp_path: Path, runner: Runner) -> None:
    done = runner("plan", "--scale", "laptop", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for part in ("cells        255", "trials       765", "deployments  51", "anticache-off     15", "time  ", "disk  "):
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_plan_takes_every_experiment(tmp_path: Path, runner: Runner) -> None:

    def passed_on(figures: str) -> str:
        made = ["make", "--dry-run", "plan", f"FIG={figures}"]
        printed = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return printed.split('--experiment "')[1].split('"')[0]

    names = passed_on("all")
    assert sorted(names.split(",")) == experiments_in(ROOT / "workloads")
    done = runner("plan", "--experiment", names, "--scale", "laptop", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for name in names.split(","):
        assert f"\n    {name} " in done.stdout
    assert passed_on("fig09") == "fig09a,fig09b"
    assert passed_on("fig06 fig12") == passed_on("fig06,fig12") == "fig06,fig12"
    assert passed_on("fig06,fig66") == "fig06,fig66", "to be refused by name"


def test_make_passes_on_where_an_unfinished_run_lies() -> None:
    for target, variable, option in (("plan", "FROM", "--from"), ("publish", "TO", "--to")):
        made = ["make", "--dry-run", target, f"{variable}=results/unfinished/laptop"]
        printed = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert f'{option} "results/unfinished/laptop"' in printed


def test_make_smoke_is_smoke_whatever_the_scale() -> None:
    done = subprocess.run(["make", "-n", "smoke", "SCALE=laptop"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert '--scale "smoke"' in done.stdout
    assert "laptop" not in done.stdout


def test_plan_warns_of_partitions_without_a_cpu(
    tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lane, "cpus", machine.CpuSets("0", "1"))
    done = runner("plan", "--scale", "paper", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "warning: 6 partitions on the 1 CPUs of the server's set (0)" in done.stderr


def test_nodes_that_cannot_be_reached_can_be_planned_for_but_not_run_on(tmp_path: Path, runner: Runner) -> None:
    lab = tmp_path / "lab"
    shutil.copytree(ROOT / "ansible" / "inventories" / "lab.example", lab)
    arguments = ("--inventory", str(lab), "--results", str(tmp_path / "results"))
    done = runner("plan", *arguments)
    assert done.returncode == 0, done.stderr
    assert "db1: node db1 was lost" in done.stderr
    assert "CPU sets, kept data sets, free space and recorded trials are not known" in done.stderr
    assert "lanes        2" in done.stdout
    done = runner("run", *arguments)
    assert done.returncode == 2
    for node in ("db1", "db2", "client1", "client2"):
        assert f"{node}: node {node} was lost: its connection ended: " in done.stderr
    assert not (tmp_path / "results").exists()


def test_an_inventory_without_lanes_is_refused(tmp_path: Path, runner: Runner) -> None:
    lab = tmp_path / "hosts.yml"
    for text, message in (
        ("dbms: [\n", "has no host in its group `dbms`"),
        ("dbms: {hosts: {a: {ansible_connection: winrm, node_root: /r, node_tools: /t}}}", "allowed: local, ssh"),
        (
            "clients: {hosts: {a: {ansible_password: x, node_root: /r, node_tools: /t}}}",
            "host a: it has a password for SSH",
        ),
    ):
        lab.write_text(text)
        done = runner("run", "--inventory", str(lab), "--results", str(tmp_path / "results"))
        assert done.returncode == 2, done.stdout
        assert message in done.stderr
        assert "x}" not in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.fixture
def failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of this machine with one valid trial of older code, an invalid one and a failed one."""
    here = Host("here").describe(ROOT)
    cpus = machine.halves(here["cpus"])
    made = make_plan([load(ROOT / "workloads", "fig06", "tiny")], cpus, NODE_DISK, systems=["anticache-lru"])
    inventory, old = Inventory(ROOT, "local", {}), Code("a" * 40, False, "old")
    key = resume.key_of("tiny", inventory, "none", old, machine.identity(here))
    run = store.create(tmp_path, key, old, {"cpu_cores": 2})
    run.add_plan(made)
    first, second = made.trials
    for trial, result in ((first, {"status": "ok", "throughput_txn_s": 1.0}), (second, {"status": "failed"})):
        write_json(run.begin(trial.hash) / "result.json", result)
        run.commit(trial.hash)
    executed.clear()

    def execute(_sweep: Sweep, trials: list[Trial]) -> Summary:
        executed.extend(trials)
        return Summary()

    monkeypatch.setattr(Sweep, "execute", execute)
    monkeypatch.setattr(Cluster, "hold", lambda *_: None)  # of the checkout, which somebody may be measuring in
    return run


executed: list[Trial] = []


def test_retry_refuses_to_mix_code_unless_told_to(
    failed_run: Run, tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = runner("retry", "--results", str(tmp_path), "--no-figures")
    assert done.returncode == 2
    assert "holds trials that other code measured" in done.stderr
    assert executed == []
    monkeypatch.setattr(precautions, "before_a_sweep", lambda *_: ["the machine is busy"])
    done = runner("retry", "--results", str(tmp_path), "--no-figures", "--mixed-code")
    assert [t.hash for t in executed] == [failed_run.trials[1]["hash"]]
    assert "warning: the machine is busy" in done.stderr
    assert "the machine is busy" in (failed_run.path / "report.html").read_text()
    kept = [path.stem for path in (failed_run.path / "code").iterdir()]
    assert kept == [identity.code_identity(ROOT).shaping], "to say later what changed since"
    done = runner("run", "--scale", "tiny", "--results", str(tmp_path), "--into", "latest", "--no-figures")
    assert done.returncode == 2
    assert "--mixed-code" in done.stderr
    done = runner("retry", "--results", str(tmp_path), "--node-var", "mysql_port=1", "--mixed-code")
    assert done.returncode == 2
    assert "variables given with --node-var" in done.stderr


def test_retry_leaves_invalid_trials_unless_asked(failed_run: Run, tmp_path: Path, runner: Runner) -> None:
    result = {"status": "invalid", "reason": "97 %", "flags": ["client_saturated"], "throughput_txn_s": 1.0}
    write_json(failed_run.trial_path(failed_run.trials[1]["hash"]) / "result.json", result)
    done = runner("retry", "--results", str(tmp_path), "--no-figures", "--mixed-code")
    assert "no failed trial" in done.stdout
    assert executed == []
    done = runner("status", "--results", str(tmp_path))
    assert "retry --invalid" in done.stdout
    assert "make retry" not in done.stdout
    runner("retry", "--results", str(tmp_path), "--no-figures", "--mixed-code", "--invalid")
    assert len(executed) == 1


def test_a_run_goes_on_from_a_committed_copy(
    failed_run: Run, tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the next sitting, in a checkout of its own: its results hold nothing but what was committed."""
    copy = tmp_path / "committed" / "unfinished" / "tiny"
    done = runner("publish", "--results", str(tmp_path), "--to", str(copy))
    assert done.returncode == 0, done.stderr
    assert f"{copy}: 1 failed, 1 ok; 0 sittings" in done.stdout
    assert f"go on with it:\n  make fig06 SCALE=tiny DISK=none FROM={copy}" in done.stdout
    assert not (copy / "figures").exists()
    results = tmp_path / "next"
    selection = ("--scale", "tiny", "--systems", "anticache-lru", "--results", str(results), "--from", str(copy))
    planned = runner("plan", *selection)
    assert planned.returncode == 0, planned.stderr
    assert f"recorded     2 of 2 in {copy}" in planned.stdout
    assert "left         " in planned.stdout
    done = runner("run", *selection, "--no-figures")
    assert done.returncode == 2
    assert "holds trials that other code measured" in done.stderr
    assert not results.exists(), "refused before anything was made"
    done = runner("run", *selection, "--no-figures", "--mixed-code")
    assert done.returncode == 3, done.stderr
    assert f"2 trials taken over from {copy}" in done.stdout
    assert [t.hash for t in executed] == [failed_run.trials[1]["hash"]], "the failed one again, the valid one not"
    target = store.open_run(results, "latest")
    assert target.code_of(failed_run.trials[0]["hash"]).commit == "a" * 40
    assert target.sittings[0]["command"].startswith(".venv/bin/python -m runner run --experiment fig06 --scale tiny")
    monkeypatch.setattr(machine, "identity", lambda _: "another machine")
    done = runner("run", *selection, "--mixed-code")
    assert done.returncode == 2
    assert "was measured under other conditions (machine: " in done.stderr
    assert "now another machine)" in done.stderr
    done = runner("run", *selection[:-1], str(target.path))
    assert done.returncode == 2
    assert f"{target.path} is no compact copy, but a run" in done.stderr
    done = runner("run", *selection[:-1], str(tmp_path / "nowhere"))
    assert (done.returncode, "nowhere is no run directory" in done.stderr) == (2, True)


def test_a_second_runner_on_the_node_is_refused(tmp_path: Path, runner: Runner) -> None:
    here = Host("here")
    assert here.hold(tmp_path / "var" / "runner.lock", store.holder("runs fig06")) is None
    node = f"--node-var=node_root={tmp_path / 'var'}"
    done = runner("run", "--scale", "tiny", "--results", str(tmp_path / "results"), node)
    assert done.returncode == 2
    assert f"is in use by process {os.getpid()} on " in done.stderr
    assert not (tmp_path / "results").exists()
    here.close()


def test_values_of_variables_are_not_recorded_with_the_command() -> None:
    repeated = {"node-var": ["mysql_password=…"], "where": ["a=1"]}
    command = command_line("run", {"scale": "tiny", "systems": ""}, repeated)
    assert command == ".venv/bin/python -m runner run --scale tiny --node-var 'mysql_password=…' --where a=1"


def test_verdicts_are_shown_with_their_qualifiers(failed_run: Run, tmp_path: Path, runner: Runner) -> None:
    done = runner("claims", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    entries = {e["id"]: e for e in read_json(failed_run.path / "claims.json")}
    assert all("qualifiers" in e and all("qualifiers" in a for a in e["alternatives"]) for e in entries.values())
    first = failed_run.trials[0]["hash"]
    write_json(
        failed_run.trial_path(failed_run.trials[1]["hash"]) / "result.json", {"status": "ok", "throughput_txn_s": 0.5}
    )
    done = runner("claims", "--results", str(tmp_path))
    judged = {e["id"]: e for e in read_json(failed_run.path / "claims.json")}["C07"]
    assert (judged["verdict"], judged["qualifiers"]) == ("reproduced", ["one trial", "part of its cells"])
    assert "one trial" in done.stdout
    report = (failed_run.path / "report.html").read_text()
    assert "reproduced (one trial, part of its cells)" in report
    assert first in report
    assert "Code: aaaaaaaaaaaa." in report
    environment = {"code": {"commit": "b" * 40, "dirty": False, "shaping": "new"}}
    write_json(failed_run.trial_path(first) / "environment.json", environment)
    runner("claims", "--results", str(tmp_path))
    assert "Code: mixed: bbbbbbbbbbbb, aaaaaaaaaaaa." in (failed_run.path / "report.html").read_text()


def test_a_disk_that_is_too_small_is_noticed_before_the_start(tmp_path: Path, runner: Runner) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        done = runner("run", "--results", str(tmp_path / "results"), "--node-var", f"node_root={tmp_path}/var")
        assert done.returncode == 2, done.stderr
        assert "0.0 GB free; this needs about" in done.stderr
        assert "choose a smaller SCALE" in done.stderr
        assert not (tmp_path / "results").exists()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
