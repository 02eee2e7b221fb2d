"""``python -m runner compare RUN_A RUN_B``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from runner import collect, context, store
from runner.compare import shown
from runner.compare.cells import FASTER, SLOWER, Comparison, Measured, Metric, Verdict
from runner.compare.cells import compare as compare_cells
from runner.compare.differences import differences
from runner.errors import InputError
from runner.execution import ResultsOption, say
from runner.store import Run

EXIT_DIFFERENT = 4
"""What ``--fail-on`` names was found."""
NARROW = 160  # columns where the output is no terminal
FAILING: dict[str, tuple[Verdict, ...]] = {"slower": (SLOWER,), "different": (SLOWER, FASTER)}

RunA = Annotated[
    str, typer.Argument(metavar="RUN_A", help="a run: latest, its name or directory, a published one's name")
]
RunB = Annotated[str, typer.Argument(metavar="RUN_B", help="the run that is held against it, named likewise")]
Names = Annotated[str, typer.Option(help="only these, separated by commas")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write everything to this file")]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="write one line for each cell to this file")]
MarginOption = Annotated[
    float, typer.Option(min=0.1, max=100, help="by how many percent cells may differ and still be the same")
]
MetricOption = Annotated[Metric, typer.Option(help="what is compared; microbenchmarks by their times all the same")]
FigureOption = Annotated[bool, typer.Option("--figure", help="draw the ratios as PDF, SVG and PNG")]
OutOption = Annotated[Path | None, typer.Option(help="where figures go (default: RESULTS/compare/A-against-B)")]
FailOption = Annotated[
    Literal["slower", "different"] | None,
    typer.Option(help=f"exit with {EXIT_DIFFERENT} where a system as a whole or a cell is, corrected for their number"),
]


def compare(
    run_a: RunA,
    run_b: RunB,
    *,
    results: ResultsOption = Path("results"),
    experiment: Names = "",
    system: Names = "",
    metric: MetricOption = "throughput_txn_s",
    margin: MarginOption = 5.0,
    json_file: JsonOption = None,
    csv_file: CsvOption = None,
    figure: FigureOption = False,
    out: OutOption = None,
    fail_on: FailOption = None,
) -> None:
    """Compare two runs cell by cell: ratios B / A with 95 % intervals, and a verdict for each cell.

    Also says what else differs between the runs, and which cells only one of them has.
    """
    a, b = (_measured(find_run(results, name)) for name in (run_a, run_b))
    found = compare_cells(
        a, b, margin / 100, experiments=context.names(experiment), systems=context.names(system), metric=metric
    )
    other = differences(found)
    _print(found)
    console = _console()
    console.print(shown.differences_table(other) if other else "nothing else differs between the runs", end="\n\n")
    for line in shown.summary(found):
        say(line)
    if json_file is not None:
        shown.write_document(json_file, found, other)
    if csv_file is not None:
        shown.write_csv(csv_file, found)
    if figure or out is not None:
        _draw(found, out or results / "compare" / f"{a.run.path.name}-against-{b.run.path.name}")
    if fail_on is not None and (failing := shown.failing(found, FAILING[fail_on])):
        say(f"B is {fail_on}: {', '.join(failing)}")
        raise typer.Exit(EXIT_DIFFERENT)


def find_run(results: Path, name: str) -> Run:
    """Open a run by its directory, by its name in `results`, ``latest`` included, or by that of a published one.

    Raises InputError naming those that exist.
    """
    for place in (Path(name), results / "runs" / name, context.PUBLISHED / name):
        if name != "latest" and (place / "run.json").is_file():
            return Run(place.resolve())
    try:
        return store.open_run(results, name)
    except InputError as error:
        published = sorted(path.parent.name for path in context.PUBLISHED.glob("[!.]*/run.json"))
        raise InputError(f"{error}; published: {', '.join(published) or 'none'}; or give a run's directory") from None


def _measured(run: Run) -> Measured:
    """Read the table of a published run as it was published, that of another from its records."""
    return Measured(run, collect.read(run.path) if run.published else collect.collect(run))


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else NARROW)


def _print(found: Comparison) -> None:
    say(f"A: {shown.name_of(found.a)}")
    say(f"B: {shown.name_of(found.b)}")
    for table in shown.tables(found):
        _console().print(table, end="\n\n")


def _draw(found: Comparison, directory: Path) -> None:
    # Here, because matplotlib takes longer to load than all else, and few comparisons are drawn.
    from figures import forest  # noqa: PLC0415

    for path in forest.save_all(found, directory):
        say(str(path))
