"""``python -m runner oltpbench``: configurations of OLTP-Bench and BenchBase run here, results exchanged."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from runner import claims, context, identity, machine, outputs, store
from runner.agent import Agent
from runner.disk import choose
from runner.errors import EXIT_INTERRUPTED, EXIT_TRIALS_FAILED, InputError, RunError
from runner.execution import (
    UNKNOWN_CPUS,
    DiskOption,
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
    carry_out,
    say,
    warn,
)
from runner.interrupt import Interrupt
from runner.inventory import Inventory
from runner.oltpbench import configuration, foreign, installation, mapping
from runner.oltpbench.export import GENERATIONS, export
from runner.oltpbench.results import Measured
from runner.progress import SweepProgress
from runner.store import INTERRUPTED, Key, Run

app = typer.Typer(no_args_is_help=True, help=__doc__)

ConfigurationArgument = Annotated[Path, typer.Argument(metavar="CONFIG.xml", help="a configuration of theirs")]
BenchmarkOption = Annotated[str, typer.Option(help="ycsb or tpcc: as their option -b")]
NOT_OURS = Key("none", "none", "none", "none", "none", "none", "none")
"""Of a run that holds nothing but trials of other installations."""


@app.command()
def run(
    config: ConfigurationArgument,
    *,
    benchmark: BenchmarkOption,
    scale: ScaleOption = "smoke",
    inventory: InventoryOption = "local",
    disk: DiskOption = "none",
    results: ResultsOption = Path("results"),
    systems: SystemsOption = "",
    data_memory_ratio: Annotated[
        str, typer.Option(help="data bytes / memory for them, separated by commas: their files know no memory")
    ] = "1",
    phase: Annotated[int | None, typer.Option(min=1, help="which <work>, where there are several")] = None,
    transactions: Annotated[
        int, typer.Option(min=0, max=100_000_000, help="record at most so many transactions of a trial one by one")
    ] = mapping.MOST_TRANSACTIONS,
    trials: TrialsOption = None,
    node_var: NodeVarOption = [],  # noqa: B006 - typer copies it
    fresh: Annotated[bool, typer.Option(help="start a new run even if one could be continued")] = False,
    mixed_code: MixedCodeOption = False,
    figures: Annotated[bool, typer.Option(help="execute the notebooks at the end")] = False,
) -> None:
    """Run a configuration on our systems, with our drivers, and record it as any experiment.

    What the drivers cannot honour is refused by element and value; elements that are not known are named.
    """
    read = configuration.read(config, benchmark)
    for line in mapping.described(read):
        warn(line)
    if read.unused:
        say(f"{config}: not used here: {', '.join(read.unused)}")
    choice = mapping.check_choice(context.systems(systems), data_memory_ratio, transactions)
    mapped = mapping.settings_of(read, replace(choice, phase=phase))
    for note in mapped.notes:
        say(f"note: {note}")
    claims.load(context.WORKLOADS / "claims.yml")
    workload = mapping.workload_of(mapped.settings, context.WORKLOADS, scale)
    nodes = Inventory(context.ROOT, inventory, context.node_variables(node_var))
    request = Request([workload], choose(disk, context.ROOT), None, {}, trials, nodes)
    request.plan(UNKNOWN_CPUS)
    nodes.path()
    settings = mapped.settings
    command = (
        f".venv/bin/python -m runner oltpbench run {config} --benchmark {benchmark} --scale {scale} --disk {disk}"
        f" --inventory {inventory} --results {results} --data-memory-ratio {data_memory_ratio}"
    )
    manner = Manner(results, command, fresh=fresh, mixed_code=mixed_code, figures=figures)
    carry_out(request, disk, manner, {settings.id: settings.record()}, [f"{settings.id}: {n}" for n in mapped.notes])


@app.command("export")
def export_command(
    *,
    results: ResultsOption = Path("results"),
    run_name: RunOption = "latest",
    files: Annotated[str, typer.Option("--format", help="benchbase or oltpbench (the older generation)")] = "benchbase",
    window: Annotated[int, typer.Option(min=1, help="seconds of a window of results, as their option -s")] = 1,
) -> None:
    """Write the measured trials of a run in their files, beside ours: trials/HASH/benchbase/ or oltpbench/."""
    generation = next((name for name in GENERATIONS if name == files), None)
    if generation is None:
        raise InputError(f"--format {files!r}: not known; allowed: {', '.join(GENERATIONS)}")
    done = export(store.open_run(results, run_name), generation, window)
    for exported in done:
        say(f"{exported.directory}: {len(exported.files)} files")
    lacking = sorted({exported.lacking for exported in done if exported.lacking})
    for reason in lacking:
        count = sum(exported.lacking == reason for exported in done)
        warn(f"of {count} trials the summary alone: {reason}")


@app.command()
def drive(
    place: Annotated[
        Path, typer.Argument(metavar="INSTALLATION", help="the directory of BenchBase, OLTP-Bench, H-Store")
    ],
    config: ConfigurationArgument,
    *,
    benchmark: BenchmarkOption,
    results: ResultsOption = Path("results"),
    into: Annotated[str, typer.Option(help="the run that gets the results; new: one for them alone")] = "latest",
    name: Annotated[str, typer.Option(help="how the system is called in the table")] = "",
    trials: Annotated[int, typer.Option(min=1, max=1000, help="so many times")] = 1,
    load: Annotated[bool, typer.Option(help="create the tables and load them before the first trial")] = True,
    limit: Annotated[float | None, typer.Option(min=1.0, help="seconds after which a call is ended")] = None,
) -> None:
    """Drive an installation that is there already, and record its results as those of another system.

    It reaches its DBMS as the configuration says; nothing is deployed, limited or checked here.
    """
    read = configuration.read(config, benchmark)
    for line in mapping.described(read):
        warn(line)
    theirs = installation.find(place)
    theirs.check(read, load)
    target = _target(results, into)
    system = name or foreign.system_name(theirs, read)
    failed = 0
    interrupt = Interrupt()
    with target.held(), interrupt.listening(), SweepProgress(trials, trials * float(read.seconds())) as progress:
        for number in range(trials):
            again = load and (number == 0 or theirs.kind == "h-store")
            result = _trial(
                target,
                theirs,
                read,
                system=system,
                interrupt=interrupt,
                progress=progress,
                load=again,
                limit_s=limit,
            )
            failed += result["status"] == "failed"
            if interrupt():
                break
    outputs.refresh(target)
    say(f"{trials} trials of {system}: {target.path} (trials.csv, report.html)")
    if interrupt():
        raise typer.Exit(EXIT_INTERRUPTED)
    if failed:
        raise typer.Exit(EXIT_TRIALS_FAILED)


def _trial(
    target: Run,
    theirs: installation.Installation,
    read: configuration.Configuration,
    *,
    system: str,
    interrupt: Interrupt,
    progress: SweepProgress,
    load: bool,
    limit_s: float | None,
) -> dict[str, object]:
    planned = foreign.planned(target, theirs, read, system)
    started = datetime.now(UTC)
    files: list[Path] = []
    outcome: Measured | str
    with tempfile.TemporaryDirectory(prefix="anticache-eval-") as scratch:
        work = Path(scratch)
        try:
            outcome, files = installation.drive(
                theirs, read, work, load=load, cancelled=interrupt, tell=progress.doing, limit_s=limit_s
            )
        except RunError as error:
            outcome = INTERRUPTED if interrupt() else str(error)
        secrets = tuple(read.values[name].text for name in ("password",) if name in read.values)
        result = foreign.record(
            target,
            planned,
            outcome,
            files=files,
            logs=work,
            started=started,
            hidden=tuple(filter(None, secrets)),
        )
    throughput = result.get("throughput_txn_s", 0.0)
    told = f"{result['status']}: {result['reason']}" if result["reason"] else f"{throughput:,.0f} txn/s"
    progress.trial_done(f"{system} #{planned[0]['trial'] + 1}", told)
    return result


def _target(results: Path, into: str) -> Run:
    """Open the run that gets the results; a new one where none is there, or it is asked for."""
    if into != "new" and (into != "latest" or (results / "latest").exists()):
        target = store.open_run(results, into)
        if target.published:
            raise InputError(f"{target.path} is published: its table stays as it is; name another run, or new")
        return target
    here = Agent().describe(str(context.ROOT))
    rustc = machine.rustc(context.ROOT)
    return store.create(results, NOT_OURS, identity.code_identity(context.ROOT), {**here, "rustc": rustc})
