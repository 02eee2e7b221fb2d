"""Everything that follows from a run's records: table, verdicts, figures, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import pandas as pd

from runner import claims, collect, context, extent, identity, notebooks, report
from runner.errors import InputError
from runner.files import write_text
from runner.oltpbench import kept
from runner.plan import all_cells
from runner.store import Run
from runner.workload import Workload
from runner.yamlfile import nearest


def refresh(
    run: Run, *, draw: bool = False, in_place: bool = False, only: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Write a run's table, verdicts and report anew, with `draw` also its figures; return the verdicts.

    `in_place` saves the notebooks' outputs over the originals; of the notebooks `only` those are executed, if any are
    named. A published run keeps the table that it was published with; with `in_place` the table, which is committed as
    well, is collected from its records again. Raises RunError when a record or a notebook is broken, InputError when
    the run has no notebook of such a name.
    """
    names = _notebooks(run, only) if draw else []
    if run.published and not in_place:
        table = collect.read(run.path)
    else:
        table = collect.collect(run)
        collect.write(table, run.path, collect.PUBLISHED_FILES if run.published else collect.FILES)
    whole = whole_grids(run)
    entries = claims.judge_all(claims.load(context.WORKLOADS / "claims.yml"), table, whole)
    claims.write(entries, run.path)
    if draw:
        notebooks.execute_all([context.NOTEBOOKS / f"{name}.ipynb" for name in names], run.path, in_place)
        if not only or {path.stem for path in (run.path / "notebooks").glob("*.ipynb")} <= set(names):
            write_text(run.path / "notebooks" / notebooks.DRAWN_FROM, identity.sha256(run.path / "trials.csv") + "\n")
    report.write(run, whole)
    return entries


def _notebooks(run: Run, only: Collection[str]) -> list[str]:
    """Name the notebooks to execute."""
    names = notebooks.applicable(run.meta["experiments"], context.NOTEBOOKS)
    for name in only:
        if name not in names:
            raise InputError(
                f"no notebook {name!r} of an experiment of {run.path}{nearest(name, names)};"
                f" there is: {', '.join(names)}"
            )
    return [name for name in names if name in only] if only else names


def whole_grids(run: Run) -> dict[str, pd.DataFrame]:
    """Return the cells of each of a run's experiments, those that its scale leaves out included."""
    return {name: extent.table_of(all_cells(_whole(run, name))) for name in run.meta["experiments"]}


def _whole(run: Run, experiment: str) -> Workload:
    """Return the experiment with its whole grid, of which the scale may run a part."""
    loaded = kept.experiment_of(run, experiment)
    return dataclasses.replace(loaded, grid=loaded.experiment.grid)
