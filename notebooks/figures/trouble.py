"""What a figure says about itself: trials that are missing, invalid or flagged, and systems that were left out."""

from __future__ import annotations

import contextlib

import pandas as pd

from figures.style import SYSTEMS
from runner import context, workload
from runner.errors import InputError


def note(table: pd.DataFrame) -> str:
    """Say which of the table's trials are missing, invalid or flagged; empty where all are valid and without a flag.

    Also which systems of the experiment's grid the table does not have at all: a legend lists only those it has.
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
    return " ".join(sentences)


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
