"""What a figure says about itself: trials that are missing, invalid or flagged, systems left out, unlike machines."""

from __future__ import annotations

import contextlib
from typing import Any

import pandas as pd

from figures.style import SYSTEMS
from runner import context, workload
from runner.axes import AXES, written
from runner.errors import InputError
from runner.machine import without_kernel


def note(table: pd.DataFrame) -> str:
    """Say which of the table's trials are missing, invalid or flagged; empty where all are valid and without a flag.

    Also which systems of the experiment's grid the table does not have at all: a legend lists only those it has; and
    which hardware measured what, where it is not the same for all.
    """
    status, flags = table["status"], table["flags"]
    groups = (
        ("not run", table[status == "planned"]),
        ("failed", table[status == "failed"]),
        ("invalid", table[status == "invalid"]),
        ("valid with a flag", table[(status == "ok") & (flags != "")]),
    )
    found = [f"{len(rows)} {what}{_details(rows)}" for what, rows in groups if not rows.empty]
    sentences = [f"Of {len(table)} trials {', '.join(found)}."] if found else []
    absent = systems_left_out(table)
    if absent:
        sentences.append(f"Not in this run: {'; '.join(_label(system) for system in absent)}.")
    return " ".join([*sentences, *machines(table)])


def machines(table: pd.DataFrame) -> list[str]:
    """Return a sentence that says which hardware measured which trials; none where it is the same for all.

    Where the values of one axis tell the trials of each machine, it names them: what lies at one value is comparable.
    """
    measured = table[table["machine"].fillna("") != ""] if "machine" in table else table.iloc[:0]
    hardware = measured["machine"].map(without_kernel) if len(measured) else pd.Series(dtype=str)
    kinds = sorted(set(hardware))
    if len(kinds) < 2:  # noqa: PLR2004
        return []
    axis = next((a.name for a in AXES if a.name in measured and _tells(measured[a.name], hardware)), "")
    parts = []
    for kind in kinds:
        rows = measured[hardware == kind]
        values = ", ".join(written(value) for value in dict.fromkeys(rows[axis])) if axis else ""
        parts.append(f"{len(rows)} on {kind}" + (f" ({axis.replace('_', ' ')} {values})" if axis else ""))
    return [f"Measured on different machines: {'; '.join(parts)}."]


def _tells(values: pd.Series[Any], hardware: pd.Series[str]) -> bool:
    """Tell whether each value of an axis was measured on one kind of hardware."""
    return bool(values.notna().all() and (hardware.groupby(values).nunique() == 1).all())


def systems_left_out(table: pd.DataFrame) -> list[str]:
    """Return the systems that the experiments' grids have at the table's scale and the table has not."""
    wanted: dict[str, None] = {}
    for found in workloads(table):
        wanted |= dict.fromkeys(found.grid.values("system"))
    return [system for system in wanted if not (table["system"] == system).any()]


def workloads(table: pd.DataFrame) -> list[workload.Workload]:
    """Return the table's experiments at its scale, but for those that this checkout does not have (any more)."""
    found = []
    for experiment, scale in dict.fromkeys(zip(table["experiment"], table["scale"], strict=True)):
        with contextlib.suppress(InputError):
            found.append(workload.load(context.WORKLOADS, experiment, scale))
    return found


def _details(rows: pd.DataFrame) -> str:
    """Name the flags of `rows`, and whose they are."""
    names = dict.fromkeys(flag for flags in rows["flags"] for flag in flags.split(";") if flag)
    systems = "; ".join(_label(system) for system in dict.fromkeys(rows["system"]))
    return (f": {', '.join(names)}" if names else "") + f" ({systems})"


def _label(system: str) -> str:
    return SYSTEMS[system].label if system in SYSTEMS else system
