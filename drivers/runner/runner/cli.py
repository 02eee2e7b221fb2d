"""The command line behind the Makefile: ``python -m runner <command>``.

Exit codes: 0 all recorded (also trials that are flagged invalid), 1 something outside failed, 2 bad input and nothing
was started, 3 trials failed, 4 `compare --fail-on` found what it was asked for, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from runner import (
    claims,
    cluster,
    collect,
    context,
    entry,
    identity,
    notebooks,
    outputs,
    precautions,
    preview,
    report,
    resume,
    status,
    store,
)
from runner import publish as publication
from runner import workload as workloads
from runner.compare.command import compare
from runner.disk import choose
from runner.errors import InputError
from runner.estimate import estimate
from runner.execution import (
    UNKNOWN_CPUS,
    DiskOption,
    ExperimentOption,
    FromOption,
    InventoryOption,
    Manner,
    MixedCodeOption,
    MixedKernelOption,
    MixedMachineOption,
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
    compact_copy,
    finish,
    plan_of,
    recorded_in,
    say,
    seen_before,
    sweep,
    warn,
)
from runner.inventory import Inventory
from runner.oltpbench import commands as oltpbench
from runner.plan import parse_where
from runner.store import Run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(oltpbench.app, name="oltpbench")
app.command()(compare)


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
    from_path: FromOption = None,
) -> None:
    """Print cells, trials, deployments, estimated time and disk, and what of it is recorded; run nothing.

    Times come from earlier trials of this machine at this scale, where there are any. The nodes are asked what they
    are, where they can be reached.
    """
    request = requested(
        experiment, scale, inventory, disk, systems=systems, where=where, trials=trials, node_var=node_var
    )
    origin = compact_copy(from_path)
    lanes = request.inventory.lanes()
    with contextlib.ExitStack() as stack:
        try:
            nodes = stack.enter_context(cluster.connected(request.inventory, lanes))
        except cluster.UnreachableError as error:
            warn(f"{error}; so CPU sets, kept data sets, free space and recorded trials are not known")
            made = request.plan(UNKNOWN_CPUS)
            cost = estimate(made, made.trials, set(), len(lanes))
            _say_all(preview.lines(made, cost, cost, {}))
            say(f"  disk         up to {context.gigabytes(cost.disk_bytes)} on each DB node")
            return
        cpus, kept_datasets = nodes.cpus, nodes.kept_datasets()
        made = request.plan(cpus)
        key = resume.key_of(made.scale, request.inventory, disk, identity.code_identity(context.ROOT), nodes.identity)
        target = store.find(results, key)
        measured = [each for each in (target, origin) if each is not None]
        recorded, seen = recorded_in(measured), seen_before(results, key)
        cost = estimate(made, made.trials, kept_datasets, len(lanes), seen)
        left = estimate(made, store.to_run(made.trials, recorded), kept_datasets, len(lanes), seen)
        _say_all(preview.lines(made, cost, left, recorded))
        say(f"  CPUs         server {cpus.server}, terminals {cpus.client}")
        free = min(lane.db.file_system(lane.nodes.db.node_root)["free_bytes"] for lane in nodes.lanes)
        say(f"  disk         up to {context.gigabytes(left.disk_bytes)} more ({context.gigabytes(free)} free)")
        for warning in precautions.of_plan(made, cpus):
            warn(warning)
        if origin is not None:
            try:
                resume.refuse_other_conditions(origin, key)
            except InputError as error:
                warn(f"`run` would refuse this: {error}")
    for each in measured:
        done = sum(t.hash in each.recorded() for t in made.trials)
        rest = "" if each is origin else ": `run` goes on from there (--fresh for a new one)"
        say(f"  recorded     {done} of {cost.trials} in {each.path}{rest}")


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


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
    from_path: FromOption = None,
    mixed_code: MixedCodeOption = False,
    mixed_kernel: MixedKernelOption = False,
    mixed_machine: MixedMachineOption = False,
    figures: Annotated[bool, typer.Option(help="execute the notebooks at the end")] = True,
) -> None:
    """Run what is planned and not recorded yet, then collect, judge the claims and draw the figures.

    Goes on with the newest run that measured the same scale on the same machine, inventory, variables and disk with
    the same code of servers, drivers and roles; failed and interrupted trials are run again, valid ones are not. With
    --from it takes over first what an unfinished run recorded elsewhere, or in an earlier checkout.
    """
    request = requested(
        experiment, scale, inventory, disk, systems=systems, where=where, trials=trials, node_var=node_var
    )
    given = {"experiment": experiment, "scale": scale, "inventory": inventory, "disk": disk, "results": str(results)}
    given |= {"systems": systems, "trials": str(trials or ""), "into": into}
    command = command_line("run", given, {"where": where, "node-var": [f"{v.partition('=')[0]}=…" for v in node_var]})
    manner = Manner(
        results,
        command,
        fresh=fresh,
        into=into,
        origin=from_path,
        mixed_code=mixed_code,
        mixed="machine" if mixed_machine else "kernel" if mixed_kernel else "",
        figures=figures,
    )
    carry_out(request, disk, manner)


def command_line(verb: str, options: Mapping[str, str], repeated: Mapping[str, list[str]]) -> str:
    """Write a command as it can be given again, less what is empty; values of variables may be passwords: none."""
    given = [("--" + name, value) for name, value in options.items() if value]
    given += [("--" + name, value) for name, values in repeated.items() for value in values]
    return shlex.join([".venv/bin/python", "-m", "runner", verb, *(part for pair in given for part in pair)])


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
        nodes.hold(store.holder(f"runs failed trials of {target.path} again"))
        made = plan_of(target, nodes.cpus)
        todo = store.to_retry(made.trials, target.recorded(), invalid)
        code = identity.code_identity(context.ROOT)
        key = resume.key_of(made.scale, inventory, target.key.disk, code, nodes.identity)
        work = Work(made, todo, inventory, nodes, key, code, results, "make retry")
        work.check([target], mixed_code)
        with target.held():
            summary = sweep(work, target)
    finish(target, summary, figures)


app.command()(status.status)


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
    """Publish a run: its compact copy, to be committed, and the notebooks in notebooks/ executed on it.

    A copy elsewhere than in results/published keeps an unfinished run, for `run --from` to go on with: what other
    sittings added to it stays there, and no notebook is executed.
    """
    source = store.open_run(results, run_name)
    if disturbing := status.warning(source):
        warn(disturbing)
    shown = to is None or to.resolve().parent == context.PUBLISHED.resolve()
    copy = publication.publish(source, to or context.PUBLISHED / source.key.scale, merge=not shown)
    if unclean := publication.unclean(copy):
        warn(
            f"{unclean} of {len(copy.trials)} trials were measured by code with uncommitted changes, which nobody else"
            " can have: commit what measures, then measure these anew"
        )
    states = Counter(copy.states().values())
    if shown:
        if states["planned"]:
            warn(f"{states['planned']} of {len(copy.trials)} planned trials were not run: figures and claims say so")
        _execute_notebooks(copy)
        return
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    size_bytes = sum(p.stat().st_size for p in copy.path.rglob("*") if p.is_file())
    say(f"{copy.path}: {told}; {len(copy.sittings)} sittings, {size_bytes / 1e6:.1f} MB. Commit it; go on with it:")
    say(f"  {status.go_on(source, to)}")


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
    """Run a command (of the command line, or `arguments`); return its exit code."""
    return entry.call(app, arguments)
