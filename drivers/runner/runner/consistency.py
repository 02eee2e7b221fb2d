"""What ``loadgen check`` says: whether a database keeps TPC-C's consistency conditions, and what its tables hold.

A trial that leaves a database that breaks a condition (clause 3.3.2), or that could not be checked, is invalid: its
throughput is that of something else than TPC-C.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from runner.driver import Outcome
from runner.errors import RunError
from runner.files import read_json
from runner.store import INTERRUPTED

CHECK_FILE = "check.json"
INCONSISTENT_EXIT = 3
Tables = dict[str, dict[str, Any]]
"""Rows and checksum of each table."""


def read(directory: Path) -> dict[str, Any]:
    """Return what a check found; empty where there was none, or its file cannot be read."""
    try:
        return dict(read_json(directory / CHECK_FILE))
    except (OSError, ValueError):
        return {}


def violations(found: dict[str, Any]) -> int:
    """Count what breaks a condition."""
    return sum(found.get("violations_by_condition", {}).values()) or len(found.get("violations", []))


def judge(result: dict[str, Any], outcome: Outcome, dead: list[str], directory: Path) -> dict[str, Any]:
    """Make a trial's result invalid when its database is inconsistent or was not checked; an interruption fails it."""
    if outcome.stopped == INTERRUPTED:
        return {**result, "status": "failed", "reason": INTERRUPTED}
    found = read(directory)
    if outcome.exit_code == 0 and found.get("consistent") is True and not outcome.stopped and not dead:
        return result
    if outcome.exit_code == INCONSISTENT_EXIT and found.get("violations"):
        flag, count = "inconsistent", violations(found)
        problem = f"{count} violation{'' if count == 1 else 's'} of TPC-C's consistency: {found['violations'][0]}"
    else:
        died = f"{', '.join(dead)} died" if dead else ""
        why = died or outcome.stopped or outcome.last_line or f"exit code {outcome.exit_code}"
        flag, problem = "not_checked", f"not checked: {why}"
    reason = "; ".join(filter(None, [result.get("reason", ""), problem]))
    return {**result, "status": "invalid", "reason": reason, "flags": [*result.get("flags", []), flag]}


def loaded_tables(outcome: Outcome, directory: Path) -> Tables:
    """Return the tables that were loaded; raises RunError when they were not checked or are inconsistent."""
    found = read(directory)
    if outcome.exit_code != 0 or not found.get("consistent"):
        why = outcome.stopped or outcome.last_line or f"exit code {outcome.exit_code}"
        listed = found.get("violations")
        problem = f"is not consistent: {listed[0]}" if listed else f"could not be checked: {why}"
        raise RunError(f"what was loaded {problem}; log: {directory / 'loadgen-check.log'}")
    return {str(name): dict(table) for name, table in found["tables"].items()}


def refuse_differences(tables: dict[str, Tables], described: str) -> None:
    """Raise RunError naming the first table that two primary stores loaded differently, with both values."""
    stores = sorted(tables)
    for one, other in pairwise(stores):
        for name in sorted({*tables[one], *tables[other]}):
            here, there = tables[one].get(name), tables[other].get(name)
            if here != there:
                raise RunError(
                    f"the systems loaded different rows for {described}: table {name} has {_shown(here)} in {one} and"
                    f" {_shown(there)} in {other}; their figures could not be compared"
                )


def _shown(table: dict[str, Any] | None) -> str:
    return "nothing" if table is None else f"{table['rows']} rows with checksum {table['checksum']}"
