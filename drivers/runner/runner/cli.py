"""The command line behind the Makefile: ``python -m runner <command>``.

Exit codes: 0 all recorded (also trials that are flagged invalid), 1 something outside failed, 2 bad input and nothing
was started, 3 trials failed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from runner import (
    claims,
    cluster,
    collect,
    context,
    driver,
    identity,
    machine,
    outputs,
    precautions,
    report,
    resume,
    store,
)
from runner import publish as publication
from runner import workload as workloads
from runner.cluster import Cluster, Lane
from runner.deploy import Ansible
from runner.disk import Disk, choose
from runner.errors import InputError, RunError
from runner.interrupt import Interrupt
from runner.inventory import Inventory
from runner.lane import LaneWorker
from runner.plan import Estimate, Plan, Trial, estimate, make_plan, parse_where
from runner.progress import SweepProgress, duration
from runner.recording import Recorder, Summary, Tools
from runner.store import INTERRUPTED, Run
from runner.sweep import Sweep

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

UNKNOWN_CPUS = machine.CpuSets("0", "1")  # to plan with before the nodes are asked
EXIT_FAILED, EXIT_BAD_INPUT, EXIT_TRIALS_FAILED, EXIT_INTERRUPTED = 1, 2, 3, 130

ExperimentOption = Annotated[str, typer.Option(help="experiments, separated by commas")]
ScaleOption = Annotated[str, typer.Option(help="a scale of workloads/scales.yml")]
InventoryOption = Annotated[str, typer.Option(help="local, lab, or the path of an Ansible inventory")]
DiskOption = Annotated[str, typer.Option(help="the disk profile; so far: none")]
ResultsOption = Annotated[Path, typer.Option(help="where results go")]
SystemsOption = Annotated[str, typer.Option(help="only these systems, separated by commas")]
WhereOption = Annotated[list[str], typer.Option(help="only these cells: AXIS=VALUE[,VALUE…], e.g. skew=1.5,1.25")]
TrialsOption = Annotated[int | None, typer.Option(min=1, help="another number of trials per cell")]
NodeVarOption = Annotated[list[str], typer.Option(help="override a variable of the inventory: NAME=VALUE")]
MixedCodeOption = Annotated[bool, typer.Option(help="go on also where other code measured the recorded trials")]
RunOption = Annotated[str, typer.Option("--run", help="a run below RESULTS/runs, or latest")]


def _out(text: str = "") -> None:
    typer.echo(text)


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked for, read and checked as far as this can be done before any node is asked."""

    loaded: list[workloads.Workload]
    disk: Disk
    systems: list[str] | None
    where: dict[str, list[str]]
    trials: int | None
    inventory: Inventory

    def plan(self, cpus: machine.CpuSets) -> Plan:
        """Plan it for nodes with these CPU sets."""
        return make_plan(self.loaded, cpus, self.disk, systems=self.systems, where=self.where, trials=self.trials)


def _requested(
    experiment: str,
    scale: str,
    inventory: str,
    disk: str,
    *,
    systems: str,
    where: list[str],
    trials: int | None,
    node_var: list[str],
) -> Request:
    """Read and check; every mistake in the input ends here."""
    loaded = [workloads.load(context.WORKLOADS, name, scale) for name in context.experiments(experiment)]
    claims.load(context.WORKLOADS / "claims.yml")
    nodes = Inventory(context.ROOT, inventory, context.node_variables(node_var))
    request = Request(loaded, choose(disk, context.ROOT), context.systems(systems), parse_where(where), trials, nodes)
    request.plan(UNKNOWN_CPUS)  # refuses what is not in the grids
    nodes.path()
    return request


@app.command()
def plan(
    *,
    experiment: ExperimentOption = "fig06",
    scale: ScaleOption = "smoke",
    inventory: InventoryOption = "local",
    disk: DiskOption = "none",
    results: ResultsOption = Path("results"),
    systems: SystemsOption = "",
    where: WhereOption = [],  # noqa: B006 - typer copies it
    trials: TrialsOption = None,
    node_var: NodeVarOption = [],  # noqa: B006
) -> None:
    """Print cells, trials, deployments, estimated time and disk; run nothing.

    The nodes are asked what they are, where they can be reached.
    """
    request = _requested(
        experiment, scale, inventory, disk, systems=systems, where=where, trials=trials, node_var=node_var
    )
    lanes = request.inventory.lanes()
    with contextlib.ExitStack() as stack:
        nodes: Cluster | None = None
        try:
            nodes = stack.enter_context(cluster.connected(request.inventory, lanes))
        except cluster.UnreachableError as error:
            _warn(f"{error}; so CPU sets, kept data sets, free space and recorded trials are not known")
        cpus = nodes.cpus if nodes is not None else UNKNOWN_CPUS
        made = request.plan(cpus)
        cost = estimate(made, made.trials, nodes.kept_datasets() if nodes is not None else set(), len(lanes))
        _print_plan(made, cost, len(lanes))
        if nodes is None:
            _out(f"  disk         up to {context.gigabytes(cost.disk_bytes)} on each DB node")
            return
        _out(f"  CPUs         server {cpus.server}, terminals {cpus.client}")
        free = min(lane.db.file_system(lane.nodes.db.node_root)["free_bytes"] for lane in nodes.lanes)
        _out(f"  disk         up to {context.gigabytes(cost.disk_bytes)} ({context.gigabytes(free)} free)")
        for warning in precautions.of_plan(made, cpus):
            _warn(warning)
        code = identity.code_identity(context.ROOT)
        run = store.find(results, resume.key_of(made.scale, request.inventory, disk, code, nodes.identity))
    if run is not None:
        recorded = run.recorded()
        done = len(made.trials) - len(store.to_run(made.trials, recorded))
        _out(f"  recorded     {done} of {cost.trials} in {run.path}: `run` goes on from there (--fresh for a new one)")


def _print_plan(made: Plan, cost: Estimate, lanes: int) -> None:
    """Print what does not depend on the nodes, but on their number."""
    cells = [(t.experiment, t.cell) for t in made.trials if t.index == 0]
    _out(f"{', '.join(w.id for w in made.workloads)} at scale {made.scale}")
    for line in _data_of(made):
        _out(f"  {line}")
    _out(f"  cells        {len(cells)}")
    for system, count in Counter(c.system for _, c in cells).items():
        _out(f"    {system:<18}{count}")
    lengths = {w.id: f"{w.values.warmup_s:g} s warm-up + {w.values.measure_s:g} s measured" for w in made.workloads}
    same = len(set(lengths.values())) == 1
    told = [next(iter(lengths.values()))] if same else [f"{name}: {length}" for name, length in lengths.items()]
    _out(f"  trials       {cost.trials} of {'; '.join(told)}")
    _out(f"  deployments  {cost.deployments}")
    if lanes > 1:
        _out(f"  lanes        {lanes}")
    _out(f"  time         about {duration(cost.seconds)}")


def _data_of(made: Plan) -> list[str]:
    """Say what is loaded, in one line for each amount."""
    lines = []
    for workload in made.workloads:
        cells = {
            (workload.benchmark_of(t.cell), t.cell.data_memory_ratio)
            for t in made.trials
            if t.experiment == workload.id
        }
        for benchmark in dict.fromkeys(name for name, _ in sorted(cells)):
            amounts: dict[str, list[str]] = {}
            for ratio in sorted(ratio for name, ratio in cells if name == benchmark):
                data = workload.section(benchmark).data(workload.values, ratio)
                amounts.setdefault(data.described, []).append(f"{ratio:g}x")
            lines += [f"{workload.id} {', '.join(ratios)}: {what}" for what, ratios in amounts.items()]
    return lines


@app.command()
def run(
    *,
    experiment: ExperimentOption = "fig06",
    scale: ScaleOption = "smoke",
    inventory: InventoryOption = "local",
    disk: DiskOption = "none",
    results: ResultsOption = Path("results"),
    systems: SystemsOption = "",
    where: WhereOption = [],  # noqa: B006
    trials: TrialsOption = None,
    node_var: NodeVarOption = [],  # noqa: B006
    fresh: Annotated[bool, typer.Option(help="start a new run even if one could be continued")] = False,
    into: Annotated[str, typer.Option(help="go on with this run (or latest) instead of the newest that fits")] = "",
    mixed_code: MixedCodeOption = False,
    figures: Annotated[bool, typer.Option(help="execute the notebooks at the end")] = True,
) -> None:
    """Run what is planned and not recorded yet, then collect, judge the claims and draw the figures.

    Goes on with the newest run that measured the same scale on the same machine, inventory, variables and disk with the
    same code of servers, drivers and roles; failed and interrupted trials are run again, valid ones are not.
    """
    request = _requested(
        experiment, scale, inventory, disk, systems=systems, where=where, trials=trials, node_var=node_var
    )
    with cluster.connected(request.inventory, request.inventory.lanes()) as nodes:
        made = request.plan(nodes.cpus)
        code = identity.code_identity(context.ROOT)
        key = resume.key_of(made.scale, request.inventory, disk, code, nodes.identity)
        target = None if fresh else store.find(results, key)
        if into:
            target = store.open_run(results, into)
        recorded = target.recorded() if target is not None else {}
        work = Work(made, store.to_run(made.trials, recorded), request.inventory, nodes, key, code)
        work.check(target, mixed_code)
        context.check_space(results, len(work.todo) * 64 * 1024)
        if target is None:
            first = nodes.lanes[0].db_facts
            target = store.create(results, key, code, {**first, "rustc": machine.rustc(context.ROOT)})
        else:
            store.point_latest(results, target.path)
        target.add_plan(made)
        summary = _sweep(work, target)
    _finish(target, summary, figures)


@app.command()
def retry(
    *,
    results: ResultsOption = Path("results"),
    run_name: RunOption = "latest",
    node_var: NodeVarOption = [],  # noqa: B006
    invalid: Annotated[bool, typer.Option(help="also the invalid ones, those with saturated terminals too")] = False,
    mixed_code: MixedCodeOption = False,
    figures: Annotated[bool, typer.Option(help="execute the notebooks at the end")] = True,
) -> None:
    """Run only the failed trials of a run again."""
    target = store.open_run(results, run_name)
    again = {"failed", "invalid"} if invalid else {"failed"}
    if not again & set(target.states().values()):
        _out(f"{target.path}: no failed {'or invalid ' if invalid else ''}trial")
        return
    inventory = Inventory(context.ROOT, target.key.inventory, context.node_variables(node_var))
    with cluster.connected(inventory, inventory.lanes()) as nodes:
        made = _plan_of(target, nodes.cpus)
        todo = store.to_retry(made.trials, target.recorded(), invalid)
        code = identity.code_identity(context.ROOT)
        key = resume.key_of(made.scale, inventory, target.key.disk, code, nodes.identity)
        work = Work(made, todo, inventory, nodes, key, code)
        work.check(target, mixed_code)
        summary = _sweep(work, target)
    _finish(target, summary, figures)


def _plan_of(target: Run, cpus: machine.CpuSets) -> Plan:
    """Plan a run's experiments again and keep the trials that the run planned.

    Raises InputError when workloads, CPUs or formats changed so that the recorded hashes mean something else now.
    """
    wanted = {t["hash"] for t in target.trials}
    loaded = [workloads.load(context.WORKLOADS, name, target.key.scale) for name in target.meta["experiments"]]
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

    @functools.cached_property
    def cost(self) -> Estimate:
        """Estimate what is left."""
        return estimate(self.plan, self.todo, self.nodes.kept_datasets(), len(self.nodes.lanes))

    def check(self, target: Run | None, mixed_code: bool) -> None:
        """Raise InputError for what forbids the work: another run's conditions or code, unlike nodes, no space."""
        if target is not None:
            resume.refuse_other_conditions(target, self.key)
            if not mixed_code:
                resume.refuse_other_code(target, self.code, identity.shaping_files(context.ROOT), self.todo)
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


def _sweep(work: Work, target: Run) -> Summary:
    """Execute what is left."""
    already = len(work.plan.trials) - len(work.todo)
    seconds = work.cost.seconds
    _out(f"run {target.path}: {len(work.todo)} trials to do, {already} recorded, about {duration(seconds)}")
    if not work.todo:
        return Summary()
    lanes, cpus = work.nodes.lanes, work.nodes.cpus
    described = {h.name: facts for lane in lanes for h, facts in lane.described()}
    warnings = precautions.before_a_sweep(work.plan, cpus, context.ROOT, described)
    for warning in warnings:
        _warn(warning)
    target.add_warnings(warnings)
    target.keep_code(work.code, identity.shaping_files(context.ROOT))
    target.add_lanes({lane.name: lane.record() for lane in lanes})
    interrupt = Interrupt()
    with interrupt.listening(), SweepProgress(len(work.todo), seconds, lanes=len(lanes)) as progress:
        interrupt.on_ask = lambda: progress.say("interrupted: ending the trials in flight, stopping the servers")
        tools = Tools(context.ROOT, driver.binary(context.ROOT), cpus, choose(work.key.disk, context.ROOT), work.code)
        recorder = Recorder(work.plan, target, tools, progress)
        workers = [LaneWorker(lane, work.ansible(lane, interrupt), recorder, interrupt) for lane in lanes]
        return Sweep(work.plan, workers, recorder, interrupt).execute(work.todo)


def _finish(target: Run, summary: Summary, figures: bool) -> None:
    """Write everything that follows from the records, and leave with the fitting exit code."""
    outputs.refresh(target, draw=figures and not summary.interrupted)
    _close(target, summary)


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def _close(target: Run, summary: Summary) -> None:
    """Print the summary with the command that comes next, and exit."""
    counts = Counter(target.states().values())
    for line in list(dict.fromkeys(summary.reasons))[:10]:
        _out(f"  {line}")
    if len(summary.reasons) > 10:  # noqa: PLR2004 - the rest stands in the table
        _out(f"  … and {len(summary.reasons) - 10} more")
    text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    if summary.interrupted:
        _out(f"interrupted; {text}; go on with the same command. {target.path}")
        raise typer.Exit(EXIT_INTERRUPTED)
    if counts["failed"] or counts["planned"]:
        _out(f"{text}; reasons: {target.path}/trials.csv; run the failed ones again: make retry")
        raise typer.Exit(EXIT_TRIALS_FAILED)
    _out(f"{text}; results: {target.path} (report.html, trials.csv, claims.json, figures/)")


@app.command()
def status(results: ResultsOption = Path("results"), run_name: RunOption = "latest") -> None:
    """Say how far a run is, and why trials failed."""
    target = store.open_run(results, run_name)
    recorded = target.recorded()
    states = target.states()
    table = Table("system", *collect.STATUSES, title=f"{target.path}")
    for system in dict.fromkeys(t["cell"]["system"] for t in target.trials):
        counts = Counter(states[t["hash"]] for t in target.trials if t["cell"]["system"] == system)
        table.add_row(system, *(str(counts[s]) for s in collect.STATUSES))
    Console().print(table)
    reasons = Counter(recorded[h].reason for h, s in states.items() if s in ("failed", "invalid"))
    for reason, count in reasons.most_common():
        _out(f"{count} x {reason}")
    counts = Counter(states.values())
    if counts["failed"]:
        _out("run the failed ones again: make retry")
    if counts["invalid"]:
        _out("run the failed and the invalid ones again: .venv/bin/python -m runner retry --invalid")
    if counts["planned"] or any(recorded[h].reason == INTERRUPTED for h in states if h in recorded):
        _out(f"go on: make {target.meta['experiments'][0]} SCALE={target.key.scale}")


def _to_show(results: Path, run_name: str) -> Run:
    """Open the run to be shown, and say so when it is the published one."""
    target = store.to_show(results, run_name, context.PUBLISHED)
    if target.published:
        _out(
            f"no run of your own in {results}: this is the published one, {target.path}, of {target.meta['created_at']}"
        )
    return target


@app.command("collect")
def collect_command(results: ResultsOption = Path("results"), run_name: RunOption = "latest") -> None:
    """Write trials.parquet and trials.csv of a run."""
    target = store.open_run(results, run_name)
    table = collect.collect(target)
    collect.write(table, target.path)
    _out(f"{len(table)} trials: {target.path}/trials.parquet, {target.path}/trials.csv")


@app.command("claims")
def claims_command(results: ResultsOption = Path("results"), run_name: RunOption = "latest") -> None:
    """Judge the paper's claims on a run; prints the table and writes claims.json."""
    target = _to_show(results, run_name)
    entries = outputs.refresh(target)
    table = Table("id", "verdict", "expected", "measured", "95 % interval", "note", title=f"Claims on {target.path}")
    for e in entries:
        measured = "" if e["measured"] is None else f"{e['measured']:.3g}"
        interval = "" if e["interval"] is None else f"{e['interval'][0]:.3g} to {e['interval'][1]:.3g}"
        verdict = claims.qualified(e["verdict"], e["qualifiers"])
        table.add_row(e["id"], verdict, e["expected"], measured, interval, e["note"])
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    counts = Counter(e["verdict"] for e in entries)
    _out(", ".join(f"{counts[v]} {v}" for v in (claims.REPRODUCED, claims.NOT_REPRODUCED, claims.NOT_MEASURED)))


@app.command()
def figures(
    results: ResultsOption = Path("results"),
    run_name: RunOption = "latest",
    in_place: Annotated[bool, typer.Option(help="also save the outputs into notebooks/, to be committed")] = False,
) -> None:
    """Execute the notebooks of a run: figures, and executed copies beside them."""
    target = _to_show(results, run_name)
    outputs.refresh(target, draw=True, in_place=in_place)
    for kind in ("notebooks", "figures"):
        for path in sorted((target.path / kind).glob("*.*")):
            _out(str(path))


@app.command()
def publish(
    *,
    results: ResultsOption = Path("results"),
    run_name: RunOption = "latest",
    to: Annotated[Path | None, typer.Option(help="where the copy goes (default: results/published/SCALE)")] = None,
) -> None:
    """Publish a run: its compact copy, to be committed, and the notebooks in notebooks/ executed on it."""
    source = store.open_run(results, run_name)
    _execute_notebooks(publication.publish(source, to or context.PUBLISHED / source.key.scale))


@app.command("notebooks")
def notebooks_command(
    run: Annotated[Path | None, typer.Option(help="the published run (default: the newest)")] = None,
) -> None:
    """Execute the notebooks in notebooks/ on the published run again: after a change of what they show, or how."""
    target = Run(run) if run is not None else store.newest_published(context.PUBLISHED)
    if target is None or not target.published:
        raise InputError(f"{run or context.PUBLISHED}: no published run there; make one with `make publish`")
    _execute_notebooks(target)


def _execute_notebooks(published: Run) -> None:
    outputs.refresh(published, draw=True, in_place=True)
    size_bytes = sum(p.stat().st_size for p in published.path.rglob("*") if p.is_file())
    _out(f"{published.path}: {len(published.trials)} trials, {size_bytes / 1e6:.1f} MB with what is drawn and not kept")
    unshown = {p.stem for p in context.NOTEBOOKS.glob("*.ipynb")} - {
        p.stem for p in (published.path / "notebooks").glob("*.ipynb")
    }
    for name in sorted(unshown):
        _warn(f"notebooks/{name}.ipynb was not executed: the run has no such experiment")


@app.command("report")
def report_command(
    results: ResultsOption = Path("results"),
    run_name: RunOption = "latest",
    figures: Annotated[bool, typer.Option(help="execute the notebooks first")] = True,
) -> None:
    """Write the report of a run, report.html and report.pdf, from its records alone."""
    target = _to_show(results, run_name)
    outputs.refresh(target, draw=figures)
    page = target.path / "report.html"
    _out(str(page))
    _out(str(report.write_pdf(page)))


def main(arguments: list[str] | None = None) -> int:
    """Run a command (of the command line, or `arguments`); a foreseen failure is one clear text and its exit code."""
    call: Callable[..., Any] = typer.main.get_command(app)
    try:
        return int(call(args=arguments, standalone_mode=False) or 0)
    except (InputError, RunError) as error:
        typer.echo(str(error), err=True)
        return EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_FAILED
    except OSError as error:  # a full disk or missing rights while writing results
        typer.echo(f"{error.strerror}: {error.filename or 'results'}; what was recorded is kept", err=True)
        return EXIT_FAILED
    except (typer.Exit, typer.Abort) as error:
        return int(getattr(error, "exit_code", EXIT_INTERRUPTED))
    except Exception as error:
        # Click's usage errors know how to show themselves; anything else is a defect and keeps its traceback.
        show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
        if show is None or code is None:
            raise
        show()
        return int(code)
