"""Carrying out what the command line asks for: a request is planned for its nodes, what is left of the plan is run.

Exit codes are those of every command (`runner.cli`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from runner import (
    cluster,
    context,
    driver,
    history,
    identity,
    machine,
    outputs,
    precautions,
    preview,
    resume,
    store,
    union,
)
from runner.cluster import Cluster, Lane
from runner.deploy import Ansible
from runner.disk import Disk, choose
from runner.errors import EXIT_INTERRUPTED, EXIT_TRIALS_FAILED, InputError
from runner.estimate import Estimate, estimate
from runner.heartbeat import Heartbeat
from runner.history import History
from runner.interrupt import Interrupt
from runner.inventory import Inventory
from runner.lane import LaneWorker
from runner.oltpbench import kept
from runner.plan import Plan, Trial, make_plan
from runner.progress import SweepProgress
from runner.recording import Recorder, Summary, Tools
from runner.store import Run
from runner.sweep import Sweep
from runner.workload import Workload

UNKNOWN_CPUS = machine.CpuSets("0", "1")  # to plan with before the nodes are asked

ExperimentOption = Annotated[str, typer.Option(help="experiments, separated by commas")]
ScaleOption = Annotated[str, typer.Option(help="a scale of workloads/scales.yml")]
InventoryOption = Annotated[str, typer.Option(help="local, lab, or the path of an Ansible inventory")]
DiskOption = Annotated[str, typer.Option(help="an emulated disk's profile, none, or /dev/NAME")]
ResultsOption = Annotated[Path, typer.Option(help="where results go")]
SystemsOption = Annotated[str, typer.Option(help="only these systems, separated by commas")]
WhereOption = Annotated[list[str], typer.Option(help="only these cells: AXIS=VALUE[,VALUE…], e.g. skew=1.5,1.25")]
TrialsOption = Annotated[int | None, typer.Option(min=1, help="another number of trials per cell")]
NodeVarOption = Annotated[list[str], typer.Option(help="override a variable of the inventory: NAME=VALUE")]
MixedCodeOption = Annotated[bool, typer.Option(help="go on also where other code measured the recorded trials")]
MixedKernelOption = Annotated[
    bool, typer.Option(help="go on also where the same hardware measured the recorded trials under another kernel")
]
MixedMachineOption = Annotated[
    bool,
    typer.Option(help="go on also where other hardware measured the recorded trials; verdicts say what compares both"),
]
FromOption = Annotated[
    Path | None,
    typer.Option("--from", help="begin with the trials of this compact copy of an unfinished run (publish --to)"),
]
RunOption = Annotated[str, typer.Option("--run", help="a run below RESULTS/runs, or latest")]


def say(text: str = "") -> None:
    """Print a line."""
    typer.echo(text)


def warn(text: str) -> None:
    """Print a warning."""
    typer.echo(f"warning: {text}", err=True)


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked for, read and checked as far as this can be done before any node is asked."""

    loaded: list[Workload]
    disk: Disk
    systems: list[str] | None
    where: dict[str, list[str]]
    trials: int | None
    inventory: Inventory

    def plan(self, cpus: machine.CpuSets) -> Plan:
        """Plan it for nodes with these CPU sets."""
        return make_plan(self.loaded, cpus, self.disk, systems=self.systems, where=self.where, trials=self.trials)


def plan_of(target: Run, cpus: machine.CpuSets) -> Plan:
    """Plan a run's experiments again and keep the trials that the run planned.

    Raises InputError when workloads, CPUs or formats changed so that the recorded hashes mean something else now.
    """
    wanted = {t["hash"] for t in target.trials if not store.is_foreign(target.plan, t)}
    loaded = [kept.experiment_of(target, name) for name in target.meta["experiments"]]
    most = max((t["trial"] for t in target.trials), default=0) + 1
    whole = make_plan(loaded, cpus, choose(target.key.disk, context.ROOT), trials=most)
    trials = tuple(t for t in whole.trials if t.hash in wanted)
    if len(trials) != len(wanted):
        raise InputError(
            f"{target.path}: {len(wanted) - len(trials)} of its trials are not in the plan any more (workloads, CPUs"
            f" or formats changed since); start a new run with `make {target.meta['experiments'][0]}`"
        )
    return Plan(whole.scale, whole.workloads, trials, whole.deployments)


@dataclasses.dataclass(frozen=True)
class Work:
    """What one call is to do: the trials of a plan that are left, where, and with which code."""

    plan: Plan
    todo: list[Trial]
    inventory: Inventory
    nodes: Cluster
    key: store.Key
    code: identity.Code
    results: Path
    command: str
    """What goes on with it after an interruption."""

    @functools.cached_property
    def cost(self) -> Estimate:
        """Estimate what is left."""
        seen = seen_before(self.results, self.key)
        return estimate(self.plan, self.todo, self.nodes.kept_datasets(), len(self.nodes.lanes), seen)

    def check(self, measured: list[Run], mixed_code: bool, mixed: resume.Mixed = "") -> None:
        """Raise InputError for what forbids the work: runs of other conditions or code, unlike nodes, no space.

        `measured` are the runs whose trials will stand beside the new ones.
        """
        for run in measured:
            resume.refuse_other_conditions(run, self.key, mixed)
            if not mixed_code:
                resume.refuse_other_code(run, self.code, identity.shaping_files(context.ROOT), self.todo)
        driver.binary(context.ROOT)
        if self.todo:
            self.nodes.check_sameness()
        for lane in self.nodes.lanes:
            context.check_space(lane.nodes.db.node_root, self.cost.disk_bytes, lane.db)

    def ansible(self, lane: Lane, interrupt: Interrupt) -> Ansible:
        """Return what runs plays on a lane."""
        return Ansible(
            context.ROOT,
            self.inventory.path(),
            dict(self.inventory.variables),
            lane.nodes.db.control_root,
            (lane.db.name, lane.client.name),
            interrupt.patience_over,
        )


def seen_before(results: Path, key: store.Key) -> History:
    """Read what earlier trials under the conditions of `key` took, own and published ones."""
    places = (results, context.PUBLISHED.parent)
    return history.of_results(places, machine=key.machine, scale=key.scale, disk=key.disk)


def sweep(work: Work, target: Run) -> Summary:
    """Execute what is left, in a sitting of its own."""
    already = sum(state in ("ok", "invalid") for state in target.states().values())
    say(f"run {target.path}: {len(work.todo)} trials to do, {already} recorded, {preview.span(work.cost.time)}")
    if not work.todo:
        return Summary()
    say(f"  {preview.basis(work.cost)}; from another terminal: make status")
    lanes, cpus = work.nodes.lanes, work.nodes.cpus
    target.begin_sitting(
        {"code": dataclasses.asdict(work.code), "machine": work.nodes.identity, "command": work.command}
    )
    described = {h.name: facts for lane in lanes for h, facts in lane.described()}
    warnings = precautions.before_a_sweep(work.plan, cpus, context.ROOT, described)
    if mixed := resume.machines_of(target):
        warnings.append(mixed)
    for warning in warnings:
        warn(warning)
    target.add_warnings(warnings)
    target.keep_code(work.code, identity.shaping_files(context.ROOT))
    target.add_lanes({lane.name: lane.record() for lane in lanes})
    interrupt, cost = Interrupt(), work.cost
    heartbeat = Heartbeat(target.path, target.sitting, len(work.todo), cost.seconds)
    costs = {trial_hash: time.usual for trial_hash, time in cost.by_trial.items()}
    progress = SweepProgress(len(work.todo), cost.seconds, lanes=len(lanes), costs=costs, heartbeat=heartbeat)
    try:
        with interrupt.listening(), heartbeat, progress:
            interrupt.on_ask = lambda: progress.say("interrupted: ending the trials in flight, stopping the servers")
            disk = choose(work.key.disk, context.ROOT)
            tools = Tools(context.ROOT, driver.binary(context.ROOT), cpus, disk, work.code)
            recorder = Recorder(work.plan, target, tools, progress)
            workers = [LaneWorker(lane, work.ansible(lane, interrupt), recorder, interrupt) for lane in lanes]
            summary = Sweep(work.plan, workers, recorder, interrupt).execute(work.todo)
            if summary.interrupted:
                heartbeat.interrupted()
    finally:
        with contextlib.suppress(OSError):  # a full disk: the trials themselves are judged by their own records
            target.end_sitting(heartbeat.how)
    return summary


def finish(target: Run, summary: Summary, figures: bool) -> None:
    """Write everything that follows from the records, and leave with the fitting exit code."""
    outputs.refresh(target, draw=figures and not summary.interrupted)
    close(target, summary)


def close(target: Run, summary: Summary) -> None:
    """Print the summary with the command that comes next, and exit."""
    counts = Counter(target.states().values())
    for line in list(dict.fromkeys(summary.reasons))[:10]:
        say(f"  {line}")
    if len(summary.reasons) > 10:  # noqa: PLR2004 - the rest stands in the table
        say(f"  … and {len(summary.reasons) - 10} more")
    text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    if summary.interrupted:
        say(f"interrupted; {text}; go on with the same command, or keep it: make publish TO=DIR. {target.path}")
        raise typer.Exit(EXIT_INTERRUPTED)
    if counts["failed"] or counts["planned"]:
        say(f"{text}; reasons: {target.path}/trials.csv; run the failed ones again: make retry")
        raise typer.Exit(EXIT_TRIALS_FAILED)
    say(f"{text}; results: {target.path} (report.html, trials.csv, claims.json, figures/)")


@dataclasses.dataclass(frozen=True)
class Manner:
    """How a request is carried out: where its records go, and what is done with them."""

    results: Path
    command: str
    """What goes on with it after an interruption."""
    fresh: bool = False
    into: str = ""
    origin: Path | None = None
    """A compact copy of an unfinished run, whose trials are taken over."""
    mixed_code: bool = False
    mixed: resume.Mixed = ""
    """In what the machine may differ from that of the recorded trials."""
    figures: bool = True

    def target(self, key: store.Key) -> Run | None:
        """Return the run to go on with; None for a new one."""
        if self.into:
            return store.open_run(self.results, self.into)
        return None if self.fresh else store.find(self.results, key)


def compact_copy(path: Path | None) -> Run | None:
    """Open the copy that a run begins with; raises InputError when it is none."""
    if path is None:
        return None
    copy = Run(path)
    if not copy.published:
        raise InputError(
            f"{path} is no compact copy, but a run: name it with --into, or make a copy with `make publish TO=DIR`"
        )
    return copy


def recorded_in(runs: list[Run]) -> dict[str, store.Recorded]:
    """Return the outcome of every trial that any of some runs recorded; one that failed gives way to another."""
    found: dict[str, store.Recorded] = {}
    for run in runs:
        for trial_hash, recorded in run.recorded().items():
            if trial_hash not in found or found[trial_hash].status == "failed":
                found[trial_hash] = recorded
    return found


def carry_out(
    request: Request,
    disk: str,
    manner: Manner,
    configurations: dict[str, kept.Record] | None = None,
    notes: list[str] | None = None,
) -> None:
    """Run what is planned and not recorded yet, then write all that follows from the records.

    `configurations` are kept with the run, its workloads that have no file in ``workloads/``; so are `notes` on them.
    Ends with `typer.Exit` unless all trials are recorded and none failed.
    """
    origin = compact_copy(manner.origin)
    with cluster.connected(request.inventory, request.inventory.lanes()) as nodes:
        nodes.hold(store.holder(f"runs {', '.join(w.id for w in request.loaded)} in {manner.results}"))
        made = request.plan(nodes.cpus)
        code = identity.code_identity(context.ROOT)
        key = resume.key_of(made.scale, request.inventory, disk, code, nodes.identity)
        target = manner.target(key)
        measured = [run for run in (target, origin) if run is not None]
        todo = store.to_run(made.trials, recorded_in(measured))
        work = Work(made, todo, request.inventory, nodes, key, code, manner.results, manner.command)
        work.check(measured, manner.mixed_code, manner.mixed)
        for run in measured:
            kept.refuse_others(run, configurations or {})
        context.check_space(manner.results, len(work.todo) * 64 * 1024)
        if target is None:
            first = nodes.lanes[0].db_facts
            target = store.create(manner.results, key, code, {**first, "rustc": machine.rustc(context.ROOT)})
        else:
            store.point_latest(manner.results, target.path)
        with target.held():
            if origin is not None:
                say(f"{target.path}: {union.adopt(target, origin)} trials taken over from {origin.path}")
            target.add_configurations(configurations or {})
            target.add_warnings(notes or [])
            target.add_plan(made)
            summary = sweep(work, target)
    finish(target, summary, manner.figures)
