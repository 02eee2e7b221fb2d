"""The command line behind the Makefile: ``python -m runner <command>``.

Exit codes: 0 all recorded (also trials that are flagged invalid), 1 something outside failed, 2 bad input and nothing
was started, 3 trials failed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from runner import claims, cluster, collect, context, identity, notebooks, outputs, precautions, report, resume, store
from runner import publish as publication
from runner import workload as workloads
from runner.cluster import Cluster
from runner.disk import choose
from runner.errors import InputError, RunError
from runner.execution import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    UNKNOWN_CPUS,
    DiskOption,
    ExperimentOption,
    InventoryOption,
    Manner,
    MixedCodeOption,
    NodeVarOption,
    Request,
    ResultsOption,
    RunOption,
    ScaleOption,
    SystemsOption,
    TrialsOption,
    WhereOption,
    Work,
    carry_out,
    finish,
    plan_of,
    say,
    sweep,
    warn,
)
from runner.inventory import Inventory
from runner.oltpbench import commands as oltpbench
from runner.plan import Estimate, Plan, estimate, parse_where
from runner.progress import duration
from runner.store import INTERRUPTED, Run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(oltpbench.app, name="oltpbench")


def requested(
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
    request = requested(
        experiment, scale, inventory, disk, systems=systems, where=where, trials=trials, node_var=node_var
    )
    lanes = request.inventory.lanes()
    with contextlib.ExitStack() as stack:
        nodes: Cluster | None = None
        try:
            nodes = stack.enter_context(cluster.connected(request.inventory, lanes))
        except cluster.UnreachableError as error:
            warn(f"{error}; so CPU sets, kept data sets, free space and recorded trials are not known")
        cpus = nodes.cpus if nodes is not None else UNKNOWN_CPUS
        made = request.plan(cpus)
        cost = estimate(made, made.trials, nodes.kept_datasets() if nodes is not None else set(), len(lanes))
        _print_plan(made, cost, len(lanes))
        if nodes is None:
            say(f"  disk         up to {context.gigabytes(cost.disk_bytes)} on each DB node")
            return
        say(f"  CPUs         server {cpus.server}, terminals {cpus.client}")
        free = min(lane.db.file_system(lane.nodes.db.node_root)["free_bytes"] for lane in nodes.lanes)
        say(f"  disk         up to {context.gigabytes(cost.disk_bytes)} ({context.gigabytes(free)} free)")
        for warning in precautions.of_plan(made, cpus):
            warn(warning)
        code = identity.code_identity(context.ROOT)
        run = store.find(results, resume.key_of(made.scale, request.inventory, disk, code, nodes.identity))
    if run is not None:
        recorded = run.recorded()
        done = len(made.trials) - len(store.to_run(made.trials, recorded))
        say(f"  recorded     {done} of {cost.trials} in {run.path}: `run` goes on from there (--fresh for a new one)")


def _print_plan(made: Plan, cost: Estimate, lanes: int) -> None:
    """Print what does not depend on the nodes, but on their number."""
    cells = [(t.experiment, t.cell) for t in made.trials if t.index == 0]
    say(f"{', '.join(w.id for w in made.workloads)} at scale {made.scale}")
    for line in _data_of(made):
        say(f"  {line}")
    say(f"  cells        {len(cells)}")
    for system, count in Counter(c.system for _, c in cells).items():
        say(f"    {system:<18}{count}")
    lengths = {w.id: f"{w.values.warmup_s:g} s warm-up + {w.values.measure_s:g} s measured" for w in made.workloads}
    same = len(set(lengths.values())) == 1
    told = [next(iter(lengths.values()))] if same else [f"{name}: {length}" for name, length in lengths.items()]
    say(f"  trials       {cost.trials} of {'; '.join(told)}")
    say(f"  deployments  {cost.deployments}")
    if lanes > 1:
        say(f"  lanes        {lanes}")
    say(f"  time         about {duration(cost.seconds)}")


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
    request = requested(
        experiment, scale, inventory, disk, systems=systems, where=where, trials=trials, node_var=node_var
    )
    carry_out(request, disk, Manner(results, fresh, into, mixed_code, figures))


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
    own = {t["hash"] for t in target.trials if not store.is_foreign(target.plan, t)}
    if not any(state in again for trial_hash, state in target.states().items() if trial_hash in own):
        say(f"{target.path}: no failed {'or invalid ' if invalid else ''}trial")
        return
    inventory = Inventory(context.ROOT, target.key.inventory, context.node_variables(node_var))
    with cluster.connected(inventory, inventory.lanes()) as nodes:
        made = plan_of(target, nodes.cpus)
        todo = store.to_retry(made.trials, target.recorded(), invalid)
        code = identity.code_identity(context.ROOT)
        key = resume.key_of(made.scale, inventory, target.key.disk, code, nodes.identity)
        work = Work(made, todo, inventory, nodes, key, code)
        work.check(target, mixed_code)
        summary = sweep(work, target)
    finish(target, summary, figures)


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
        say(f"{count} x {reason}")
    counts = Counter(states.values())
    if counts["failed"]:
        say("run the failed ones again: make retry")
    if counts["invalid"]:
        say("run the failed and the invalid ones again: .venv/bin/python -m runner retry --invalid")
    if counts["planned"] or any(recorded[h].reason == INTERRUPTED for h in states if h in recorded):
        say(f"go on: make {target.meta['experiments'][0]} SCALE={target.key.scale}")


def _to_show(results: Path, run_name: str) -> Run:
    """Open the run to be shown, and say so when it is the published one."""
    target = store.to_show(results, run_name, context.PUBLISHED)
    if target.published:
        say(
            f"no run of your own in {results}: this is the published one, {target.path}, of {target.meta['created_at']}"
        )
    return target


@app.command("collect")
def collect_command(results: ResultsOption = Path("results"), run_name: RunOption = "latest") -> None:
    """Write trials.parquet and trials.csv of a run."""
    target = store.open_run(results, run_name)
    table = collect.collect(target)
    collect.write(table, target.path)
    say(f"{len(table)} trials: {target.path}/trials.parquet, {target.path}/trials.csv")


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
    say(", ".join(f"{counts[v]} {v}" for v in (claims.REPRODUCED, claims.NOT_REPRODUCED, claims.NOT_MEASURED)))


@app.command()
def figures(
    results: ResultsOption = Path("results"),
    run_name: RunOption = "latest",
    in_place: Annotated[bool, typer.Option(help="also save the outputs into notebooks/, to be committed")] = False,
    only: Annotated[str, typer.Option(help="only these notebooks, separated by commas")] = "",
) -> None:
    """Execute the notebooks of a run: figures, and executed copies beside them."""
    target = _to_show(results, run_name)
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    outputs.refresh(target, draw=True, in_place=in_place, only=chosen)
    for kind in ("notebooks", "figures"):
        for path in sorted((target.path / kind).glob("*.*")):
            say(str(path))


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
    notebooks.keep_picture(published.path)
    size_bytes = sum(p.stat().st_size for p in published.path.rglob("*") if p.is_file())
    say(f"{published.path}: {len(published.trials)} trials, {size_bytes / 1e6:.1f} MB with what is drawn and not kept")
    unshown = {p.stem for p in context.NOTEBOOKS.glob("*.ipynb")} - {
        p.stem for p in (published.path / "notebooks").glob("*.ipynb")
    }
    for name in sorted(unshown):
        warn(f"notebooks/{name}.ipynb was not executed: the run has no such experiment")


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
    say(str(page))
    say(str(report.write_pdf(page)))


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
