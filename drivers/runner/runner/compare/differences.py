"""What else differs between two runs: code, machine, disk, versions, settings as planned and as servers report them.

A ratio between runs that differ in two of these says nothing about either.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runner import collect, resume
from runner.compare.cells import Comparison, Measured
from runner.hidden import UNPUBLISHED_KEYS
from runner.report import conditions
from runner.store import Run

UNTOLD = UNPUBLISHED_KEYS | {"free_bytes"}
"""Of a machine's description: names, and what is of a moment."""
OF_A_START = re.compile(r"uuid|\bpid\b|hostname|timestamp|log_file$")
"""Reported settings that are another at every start."""
NONE = "—"


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in both runs; `cells` counts the cells that it is of, 0 where it is of the run."""

    what: str
    a: str
    b: str
    cells: int = 0


def differences(found: Comparison) -> list[Difference]:
    """Return what differs, that of the runs as a whole first."""
    return [*_runs(found.a, found.b), *_planned(found), *_reported(found)]


def _runs(a: Measured, b: Measured) -> Iterator[Difference]:
    ours, theirs = asdict(a.run.key), asdict(b.run.key)
    for name, text in resume.SHOWN.items():
        yield from _if_unequal(text, ours[name], theirs[name])
    yield from _if_unequal("commit", collect.code_of(a.table), collect.code_of(b.table))
    if ours["shaping_code"] != theirs["shaping_code"]:
        yield Difference("files that shape figures", *_files(a.run, b.run))
    yield from _mappings("machine: ", _machine(a.run), _machine(b.run))
    yield from _mappings("", conditions.versions(a.run), conditions.versions(b.run))


def _machine(run: Run) -> dict[str, Any]:
    return _flat({k: v for k, v in run.meta.get("machine", {}).items() if k not in UNTOLD})


def _files(a: Run, b: Run) -> tuple[str, str]:
    """Name the files whose contents differ; by their number where a run did not keep their digests."""
    ours, theirs = a.files_of(a.key.shaping_code), b.files_of(b.key.shaping_code)
    if not ours or not theirs:
        return a.key.shaping_code, b.key.shaping_code
    changed = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    here, there = ([name for name in changed if name in files] for files in (ours, theirs))
    return _listed(here), _listed(there)


def _listed(names: list[str]) -> str:
    shown = 8
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return (", ".join(names[:shown]) + more) or NONE


def _planned(found: Comparison) -> Iterator[Difference]:
    """Compare what loadgen and the deployment were given, cell by cell."""

    def given(measured: Measured, trial: dict[str, Any]) -> dict[str, Any]:
        deployment = measured.run.plan["deployments"][trial["deployment"]]
        return _flat({**deployment["values"], **trial["spec"]})

    pairs = ((given(found.a, ours), given(found.b, theirs)) for ours, theirs in found.pairs)
    yield from _over_cells("", pairs)


def _reported(found: Comparison) -> Iterator[Difference]:
    """Compare what the servers said of themselves in each cell's first usable trial."""

    def said(measured: Measured, hashes: list[str]) -> dict[str, Any]:
        reported = measured.run.environment(hashes[0]).get("server_settings") or {} if hashes else {}
        return {name: _nameless(value) for name, value in _flat(reported).items() if not OF_A_START.search(name)}

    pairs = ((said(found.a, cell.a.sample.hashes), said(found.b, cell.b.sample.hashes)) for cell in found.cells)
    yield from _over_cells("reported: ", ((ours, theirs) for ours, theirs in pairs if ours and theirs))


def _over_cells(prefix: str, pairs: Iterator[tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[Difference]:
    """Count in how many cells each setting differs, and show the values of most of them."""
    values: dict[str, Counter[tuple[str, str]]] = {}
    for ours, theirs in pairs:
        for name in dict.fromkeys([*ours, *theirs]):
            one, other = _text(ours.get(name)), _text(theirs.get(name))
            if one != other:
                values.setdefault(name, Counter())[one, other] += 1
    for name, counted in values.items():
        (one, other), _ = counted.most_common(1)[0]
        more = f" and {len(counted) - 1} other pair(s)" if len(counted) > 1 else ""
        yield Difference(f"{prefix}{name}", one, other + more, counted.total())


def _mappings(prefix: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*ours, *theirs]):
        yield from _if_unequal(f"{prefix}{name}", ours.get(name), theirs.get(name))


def _if_unequal(what: str, ours: Any, theirs: Any) -> Iterator[Difference]:
    if _text(ours) != _text(theirs):
        yield Difference(what, _text(ours), _text(theirs))


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Write nested values with dots between their names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        elif name not in UNTOLD:
            found[f"{above}{name}"] = value
    return found


def _nameless(value: Any) -> Any:
    """Leave out where a path leads, which a published copy does not have."""
    return value.rstrip("/").rsplit("/", 1)[-1] if isinstance(value, str) and "/" in value else value


def _text(value: Any) -> str:
    if value is None or value == "":
        return NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
