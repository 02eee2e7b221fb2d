"""A run as it is published: a compact copy that the committed notebooks, the claims and the report are made from.

It is a run directory, less what only its machine can use: logs, endpoints, latency histograms, loadgen's copies of its
specification; of ``events.csv`` the lines that figures and table need. Paths become ``…/NAME``, hosts of an inventory
``node 1``, ``node 2``, addresses other than loopback ``ADDRESS``. The table and the verdicts are made from these
records, so everybody can make them again. The same run gives the same bytes.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import collect
from runner.errors import InputError
from runner.files import read_json
from runner.store import PUBLISHED, Run

UNPUBLISHED_KEYS = frozenset({"hostname", "boot_id", "endpoint", "load_average", "node_root_device"})
"""Of JSON records, at any depth: what names or describes a machine at a moment, and serves no figure."""
UNPUBLISHED_FILES = ("loadgen-*.json", "anticache-micro-*.json", "spec.json", "transactions.csv")
"""Of trials: copies of what plan.json holds, and single transactions, which are many."""
TRAFFIC = frozenset({"fetch", "merge", "restart"})
"""Kinds of events that are left out: one for each access to an evicted tuple, and nothing is drawn from them."""
_PATH = re.compile(r"(?<![\w.…/:])/(?!dev/|sys/|proc/)[\w.+@-]+(?:/[\w.+@-]+)+/?")
_ADDRESS = re.compile(r"\b(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}\b(?!\.\d)")


def publish(run: Run, target: Path) -> Run:
    """Write the published copy of `run` to `target`, replacing an earlier one of the same name.

    Raises InputError for a run that is itself published, or a target that is something else.
    """
    if run.published:
        raise InputError(f"{run.path} is published already; name the run that it came from, or execute its notebooks")
    if target.exists() and not _is_published(target):
        raise InputError(f"{target} exists and is no published run: choose another name, or remove it")
    building = target.with_name(f".{target.name}.partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    hidden = Hidden(run)
    _records(run, building, hidden)
    copy = Run(building)
    collect.write(collect.collect(copy), building, names=("trials.csv",))
    shutil.rmtree(target, ignore_errors=True)
    building.rename(target)
    return Run(target)


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


class Hidden:
    """What stands for paths, hosts and addresses."""

    def __init__(self, run: Run) -> None:
        """Number the hosts of the run's lanes in the order of the lanes."""
        lanes = run.meta.get("lanes", {})
        hosts = [lanes[lane]["hosts"][role] for lane in sorted(lanes) for role in ("dbms", "clients")]
        others = [host for host in dict.fromkeys(hosts) if host != "localhost"]
        self._hosts = {host: f"node {number}" for number, host in enumerate(others, start=1)}
        inventory = run.meta["key"]["inventory"]
        self._inventory = inventory if "/" not in inventory else Path(inventory).name

    def of(self, value: Any) -> Any:
        """Return a JSON value as it may be published; ``lane`` and ``inventory`` keep their names."""
        if isinstance(value, dict):
            return {
                k: self._inventory if k == "inventory" else self.of(v)
                for k, v in value.items()
                if k not in UNPUBLISHED_KEYS
            }
        if isinstance(value, list):
            return [self.of(each) for each in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for host, name in self._hosts.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", name, text)
        text = _PATH.sub(lambda path: "…/" + path[0].rstrip("/").rsplit("/", 1)[-1], text)
        return _ADDRESS.sub("ADDRESS", text)
