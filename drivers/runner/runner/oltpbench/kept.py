"""The mapped configurations that a run keeps: experiments without a file in ``workloads/``.

The configuration itself is not kept: it holds passwords and addresses that are of no use here.
"""

from __future__ import annotations

from typing import Any

from runner import context
from runner.errors import InputError
from runner.oltpbench.mapping import Settings, workload_of
from runner.store import Run
from runner.workload import Workload, load

Record = dict[str, Any]
KEY = "configurations"


def records(run: Run) -> dict[str, Record]:
    """Return what a run keeps, by experiment."""
    return dict(run.meta.get(KEY, {}))


def experiment_of(run: Run, name: str) -> Workload:
    """Return an experiment of a run at its scale: of a kept configuration, or of ``workloads/``; raises InputError."""
    record = records(run).get(name)
    if record is None:
        return load(context.WORKLOADS, name, run.key.scale)
    return workload_of(Settings.of(record), context.WORKLOADS, run.key.scale)


def refuse_others(run: Run, configurations: dict[str, Record]) -> None:
    """Raise InputError when a run keeps another configuration of the same name."""
    for name, record in configurations.items():
        before = records(run).get(name, record)
        different = sorted(key for key in record if record[key] != before.get(key))
        if different:
            raise InputError(
                f"{run.path} ran another {name} ({', '.join(different)} differ): add --fresh, or give the file another"
                " name"
            )
