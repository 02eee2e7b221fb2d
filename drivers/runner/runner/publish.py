"""A run as it is published: a compact copy that the committed notebooks, the claims and the report are made from.

It is a run directory, less what only its machine can use: logs, endpoints, loadgen's copies of its specification; of
``events.csv`` the lines that figures and table need. Paths become ``…/NAME``, hosts of an inventory ``node 1``,
``node 2``, addresses other than loopback ``ADDRESS``. The table and the verdicts are made from these records, so
everybody can make them again. The same run gives the same bytes. An unfinished run is published the same way, to be
gone on with elsewhere (`runner.union`).
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import collect, resume, union
from runner.errors import InputError
from runner.files import read_json, rename, sync_tree
from runner.hidden import Hidden
from runner.store import PUBLISHED, Run

UNPUBLISHED_FILES = ("loadgen-*.json", "anticache-micro-*.json", "spec.json", "transactions.csv")
"""Of trials: copies of what plan.json holds, and single transactions, which are many."""
TRAFFIC = frozenset({"fetch", "merge", "restart"})
"""Kinds of events that are left out: one for each access to an evicted tuple, and nothing is drawn from them."""


def publish(run: Run, target: Path, *, merge: bool = False) -> Run:
    """Write the published copy of `run` to `target`, replacing an earlier one of the same name.

    With `merge` what an earlier one has beyond `run` is kept: other sittings filled it. Raises InputError for a run
    that is itself published, a target that is something else, and one to be merged with that measured something else.
    """
    if run.published:
        raise InputError(f"{run.path} is published already; name the run that it came from, or execute its notebooks")
    if target.exists() and not _is_published(target):
        raise InputError(f"{target} exists and is no published run: choose another name, or remove it")
    building, former = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.former")
    if former.exists() and not target.exists():  # a call before this one ended between its last two steps
        rename(former, target)
    earlier = Run(target) if merge and target.exists() else None
    if earlier is not None:
        resume.refuse_to_merge(run, earlier)
    for left in (building, former):
        shutil.rmtree(left, ignore_errors=True)
    building.mkdir(parents=True)
    _records(run, building, Hidden(run))
    copy = Run(building)
    if earlier is not None:
        union.adopt(copy, earlier)
        _in_one_form(building)
    collect.write(collect.collect(copy), building, collect.PUBLISHED_FILES)
    sync_tree(building)
    if target.exists():
        rename(target, former)
    rename(building, target)
    shutil.rmtree(former, ignore_errors=True)
    return Run(target)


def unclean(copy: Run) -> int:
    """Count the measured trials whose code had changes that are in no commit."""
    table = collect.read(copy.path)
    return int((table["dirty"].fillna(value=False) & ~table["status"].isin(["failed", "planned"])).sum())


def _in_one_form(directory: Path) -> None:
    for pattern in ("*.json", "code/*.json", "attempts/*/*/result.json"):
        for path in directory.glob(pattern):
            _write(path, read_json(path))


def _is_published(path: Path) -> bool:
    try:
        return Run(path).published
    except InputError:
        return False


def _records(run: Run, to: Path, hidden: Hidden) -> None:
    """Copy what is recorded, without what is not to be published."""
    for name in ("run.json", "plan.json", "datasets.json"):
        if (run.path / name).is_file():
            document = read_json(run.path / name)
            if name == "run.json":
                document[PUBLISHED] = run.name
            _write(to / name, hidden.of(document))
    for path in sorted((run.path / "code").glob("*.json")):
        _write(to / "code" / path.name, read_json(path))
    planned = {trial["hash"] for trial in run.trials}
    for path in sorted((run.path / "trials").glob("[!.]*/*")):
        if path.parent.name in planned:
            _trial_file(path, to / "trials" / path.parent.name / path.name, hidden)
    # Why an attempt failed, and how many there were.
    for path in sorted((run.path / "attempts").glob("*/*/result.json")):
        _write(to / path.relative_to(run.path), hidden.of(read_json(path)))


def _trial_file(path: Path, target: Path, hidden: Hidden) -> None:
    if any(path.match(pattern) for pattern in UNPUBLISHED_FILES):
        return
    if path.suffix == ".json":
        _write(target, hidden.of(read_json(path)))
    elif path.name == "events.csv":
        _copy_lines(path, target, lambda row: row.get("kind") not in TRAFFIC)
    elif path.suffix == ".csv":
        _copy_lines(path, target, lambda row: True)
    elif path.suffix == ".hdr":
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _copy_lines(path: Path, target: Path, wanted: Callable[[dict[str, str]], bool]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with path.open(newline="", encoding="utf-8") as source, target.open("w", newline="", encoding="utf-8") as file:
        rows = csv.DictReader(source)
        writer = csv.DictWriter(file, rows.fieldnames or [], lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row for row in rows if wanted(row))


def _write(path: Path, document: Any) -> None:
    """Write JSON in its one form: keys sorted, so that a new publication differs only where data do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=0, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")
