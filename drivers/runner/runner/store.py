"""The run directory: what was planned, what was recorded, and which run to go on with.

::

    results/runs/<UTC time>/
      run.json            what the run is: experiments, scale, inventory, disk, code, sittings
      progress.json       what the runner that fills it does now (`runner.heartbeat`)
      runner.lock         held by the runner that fills it
      plan.json           every planned trial and deployment, in order
      datasets.json       rows and checksum of every table after loading, by data set and primary store
      code/<digest>.json  the files of the code that measured, with their digests
      trials/<hash>/      spec.json result.json timeline.csv latency.hdr environment.json *.log
      attempts/<hash>/<n> failed attempts that a later one replaced
      deployments/<n>-…/  deployment file, Ansible's and the loader's logs

A trial's directory is filled under a hidden name, synced, and renamed when it is complete, so a crash or a power cut
can lose the trial in flight and nothing else.

A *sitting* is one call that measures: ``run.json`` lists them with their times, code, machine, lanes (with the disks'
self-tests) and warnings, and each trial's ``environment.json`` names its own. Sittings may lie days apart, each in a
checkout of its own: `runner.union` takes the trials of earlier ones over from a compact copy.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.agent import Agent
from runner.errors import InputError
from runner.files import read_json, rename, sync_tree, write_json
from runner.identity import Code
from runner.plan import Deployment, Plan, Trial

RUN_FORMAT = 2
INTERRUPTED = "interrupted"
FOREIGN = "foreign"
"""Key of a deployment's values in plan.json: what was deployed and measured by another installation's clients."""
PUBLISHED = "published"
"""Key of run.json in a published copy: the name of the run that it is of."""
LOCK = "runner.lock"
PARTIAL, COMPLETE = ".partial", ".complete"
"""Ends of hidden names in ``trials``: a trial in flight, and one that waits for its predecessor to make room."""


@dataclass(frozen=True)
class Key:
    """Runs with the same key measure the same thing: a later call goes on with the newest of them."""

    scale: str
    inventory: str
    disk: str
    shaping_code: str
    inventory_content: str
    """Digest of the inventory's files: another inventory may go by the same name."""
    node_variables: str
    """Digest of the variables that override the inventory's."""
    machine: str
    """CPU model, cores, memory and kernel release of a lane's nodes, which are alike on all lanes."""


@dataclass(frozen=True)
class Recorded:
    """The outcome of a recorded trial."""

    status: str
    reason: str


class Run:
    """One directory below ``results/runs``."""

    def __init__(self, path: Path) -> None:
        """Open an existing run; raises InputError when the directory is none or of another format."""
        self.path = path
        self._lock = threading.Lock()  # several lanes write into one run
        self._sitting: dict[str, Any] = {}
        try:
            self.meta: dict[str, Any] = read_json(path / "run.json")
            self.plan: dict[str, Any] = read_json(path / "plan.json")
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is no run directory: {error}") from None
        if self.meta.get("format") != RUN_FORMAT:
            raise InputError(
                f"{path}: run format {self.meta.get('format')!r} is not {RUN_FORMAT}: another version of this program"
                " wrote it; start a new run"
            )

    @property
    def published(self) -> bool:
        """Return whether this is a published copy (`runner.publish`), whose records and table stay as they are."""
        return PUBLISHED in self.meta

    @property
    def name(self) -> str:
        """Return the run's name: its UTC start time, and of a published copy also that it is one."""
        return f"{self.meta[PUBLISHED]} (published)" if self.published else self.path.name

    @property
    def key(self) -> Key:
        """Return what this run measures."""
        return Key(**self.meta["key"])

    @property
    def sittings(self) -> list[dict[str, Any]]:
        """Return the calls that measured, in the order of time; none of a run that is older than sittings are."""
        return sorted(self.meta.get("sittings", []), key=lambda sitting: str(sitting["began_at"]))

    @property
    def sitting(self) -> str:
        """Return the name of the sitting that goes on through this object, the time of its beginning; empty: none."""
        return str(self._sitting.get("began_at", ""))

    def begin_sitting(self, told: dict[str, Any]) -> None:
        """Begin a sitting with what is `told` of it; what is added from now on belongs to it."""
        with self._lock:
            began_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._sitting = {"began_at": began_at, "ended_at": "", "end": "", **told, "lanes": {}, "warnings": []}
            self.meta["sittings"] = [*self.meta.get("sittings", []), self._sitting]
            write_json(self.path / "run.json", self.meta)

    def end_sitting(self, how: str) -> None:
        """End the sitting: ``finished``, ``interrupted``, or why it failed; a killed one never comes here."""
        with self._lock:
            self._sitting |= {"ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"), "end": how}
            write_json(self.path / "run.json", self.meta)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let nobody else fill the run meanwhile; raises InputError that names who does.

        What an earlier holder left between two steps is brought to its end first.
        """
        keeper = Agent()
        other = keeper.hold(str(self.path / LOCK), holder(f"fills {self.path}"))
        if other is not None:
            raise InputError(f"{self.path} is being filled by {held_by(other)}")
        try:
            self._recover()
            yield
        finally:
            keeper.close()

    def _recover(self) -> None:
        """Put complete trials in their places, and remove what a killed runner had in flight."""
        for path in sorted((self.path / "trials").glob(f".*{COMPLETE}")):
            self._put(path.name[1 : -len(COMPLETE)])
        for path in (self.path / "trials").glob(f".*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Return the planned trials in order, as stored in plan.json."""
        return list(self.plan["trials"])

    def trial_path(self, trial_hash: str) -> Path:
        """Return where a trial is recorded."""
        return self.path / "trials" / trial_hash

    def recorded(self) -> dict[str, Recorded]:
        """Return the outcome of every recorded trial by hash; a record that cannot be read counts as failed."""
        found = {}
        for directory in sorted((self.path / "trials").glob("[!.]*")):
            try:
                result = read_json(directory / "result.json")
                found[directory.name] = Recorded(str(result["status"]), str(result.get("reason", "")))
            except (OSError, ValueError, KeyError, TypeError) as error:
                found[directory.name] = Recorded("failed", f"result.json cannot be read: {error}")
        return found

    def states(self) -> dict[str, str]:
        """Return the state of every planned trial by hash: the status of its record, or ``planned``."""
        recorded = self.recorded()
        return {t["hash"]: recorded[t["hash"]].status if t["hash"] in recorded else "planned" for t in self.trials}

    def environment(self, trial_hash: str) -> dict[str, Any]:
        """Return what a trial's record says about where it ran; empty without a readable record."""
        try:
            return dict(read_json(self.trial_path(trial_hash) / "environment.json"))
        except (OSError, ValueError):
            return {}

    def code_of(self, trial_hash: str) -> Code:
        """Return the code that a trial ran; that of the run's start where no record says so."""
        return Code(**self.environment(trial_hash).get("code", self.meta["code"]))

    def keep_code(self, code: Code, files: dict[str, str]) -> None:
        """Keep which files the code consists of, so that a later call can say what changed."""
        place = self.path / "code"
        place.mkdir(exist_ok=True)
        write_json(place / f"{code.shaping}.json", {**asdict(code), "files": files})

    def files_of(self, shaping: str) -> dict[str, str]:
        """Return the files of a code that measured in this run; empty when they were not kept."""
        try:
            return dict(read_json(self.path / "code" / f"{shaping}.json")["files"])
        except (OSError, ValueError, KeyError):
            return {}

    def add_warnings(self, warnings: list[str]) -> None:
        """Keep what was warned of before trials were run."""
        with self._lock:
            for kept in (self.meta, self._sitting):
                kept["warnings"] = list(dict.fromkeys([*kept.get("warnings", []), *warnings]))
            write_json(self.path / "run.json", self.meta)

    def add_lanes(self, lanes: dict[str, Any]) -> None:
        """Keep which lanes measured, with their hosts; a lane of the same name replaces what was kept of it.

        Self-tests of disks stay until the same disk is tested again: each call tests only those of its own trials.
        """
        with self._lock:
            kept = self.meta.get("lanes", {})
            for name, lane in lanes.items():
                tests = {**kept.get(name, {}).get("disk_self_tests", {}), **lane.get("disk_self_tests", {})}
                kept[name] = {**lane, "disk_self_tests": tests} if tests else lane
                self._sitting["lanes"] = {**self._sitting.get("lanes", {}), name: lane}
            self.meta["lanes"] = kept
            write_json(self.path / "run.json", self.meta)

    def add_plan(self, plan: Plan) -> None:
        """Add the trials of `plan` that the run does not have yet, keeping those it has."""
        known = {t["hash"] for t in self.plan["trials"]}
        self.plan["trials"] += [t.record() for t in plan.trials if t.hash not in known]
        for deployment in plan.deployments.values():
            self.plan["deployments"][deployment.id] = asdict(deployment)
        experiments = [*self.meta["experiments"], *(w.id for w in plan.workloads)]
        self.meta["experiments"] = list(dict.fromkeys(experiments))
        write_json(self.path / "plan.json", self.plan)
        write_json(self.path / "run.json", self.meta)

    def add_configurations(self, configurations: dict[str, dict[str, Any]]) -> None:
        """Keep mapped configurations of OLTP-Bench by the names of their experiments."""
        if configurations:
            self.meta["configurations"] = {**self.meta.get("configurations", {}), **configurations}
            write_json(self.path / "run.json", self.meta)

    def add_foreign(self, trial: dict[str, Any], deployment: dict[str, Any]) -> None:
        """Add a trial of another installation, or replace its plan; its experiment is none that could be run again."""
        with self._lock:
            others = [t for t in self.plan["trials"] if t["hash"] != trial["hash"]]
            self.plan["trials"] = [*others, trial]
            self.plan["deployments"][deployment["id"]] = deployment
            write_json(self.path / "plan.json", self.plan)

    def contents(self) -> list[str]:
        """Return the data sets whose tables are known."""
        try:
            return list(read_json(self.path / "datasets.json"))
        except (OSError, ValueError):
            return []

    def tables(self, content: str) -> dict[str, Any]:
        """Return what the tables of a data set held in each primary store after loading, as far as it is known."""
        try:
            return dict(read_json(self.path / "datasets.json").get(content, {}))
        except (OSError, ValueError):
            return {}

    def add_tables(self, content: str, store: str, tables: dict[str, Any]) -> dict[str, Any]:
        """Keep what the tables of a data set hold in a primary store; return what is known of it in all of them.

        Tables unlike those that were kept before, in this store or another, are returned beside them and not kept:
        whoever loads them again must compare them again.
        """
        with self._lock:
            try:
                every = dict(read_json(self.path / "datasets.json"))
            except (OSError, ValueError):
                every = {}
            known = dict(every.get(content, {}))
            if any(kept != tables for kept in known.values()):
                return {**known, f"{store}, loaded again" if store in known else store: tables}
            every[content] = {**known, store: tables}
            write_json(self.path / "datasets.json", every)
            return dict(every[content])

    def begin(self, trial_hash: str) -> Path:
        """Make an empty hidden directory for a trial in flight."""
        partial = self.path / "trials" / f".{trial_hash}{PARTIAL}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        return partial

    def commit(self, trial_hash: str) -> Path:
        """Publish the trial in flight; an earlier record of it moves to ``attempts``.

        Each step survives a power cut before the next one begins, and `held` goes on where they ended.
        """
        partial = self.path / "trials" / f".{trial_hash}{PARTIAL}"
        sync_tree(partial)
        if not self.trial_path(trial_hash).exists():
            rename(partial, self.trial_path(trial_hash))
            return self.trial_path(trial_hash)
        rename(partial, partial.with_name(f".{trial_hash}{COMPLETE}"))
        return self._put(trial_hash)

    def _put(self, trial_hash: str) -> Path:
        place = self.trial_path(trial_hash)
        if place.exists():
            earlier = self.path / "attempts" / trial_hash
            earlier.mkdir(parents=True, exist_ok=True)
            rename(place, earlier / str(1 + sum(1 for _ in earlier.iterdir())))
        rename(place.with_name(f".{trial_hash}{COMPLETE}"), place)
        return place

    def attempts(self, trial_hash: str) -> int:
        """Return how often the trial was recorded, the present record included."""
        earlier = self.path / "attempts" / trial_hash
        before = sum(1 for _ in earlier.iterdir()) if earlier.is_dir() else 0
        return before + (1 if self.trial_path(trial_hash).is_dir() else 0)

    def new_deployment(self, deployment: Deployment, lane: str) -> Path:
        """Make a numbered directory for one deployment's files."""
        parent = self.path / "deployments"
        parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            number = 1 + sum(1 for _ in parent.iterdir())
            name = f"{deployment.benchmark}-{deployment.system}-{deployment.data_memory_ratio:g}x"
            place = parent / f"{number:03d}-{name}-lane-{lane}"
            place.mkdir()
        return place


def holder(purpose: str) -> str:
    """Return what the lock file of this process says: which one it is, since when, and what for."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since, "purpose": purpose})


def held_by(text: str) -> str:
    """Say from a lock file's text who holds it and what to do; of a holder that has not written yet, that."""
    try:
        told = json.loads(text)
        who = f"process {told['pid']} on {told['host']}, which since {told['since']} {told['purpose']}"
        end = f"or end it with `kill -INT {told['pid']}`"
    except (ValueError, KeyError, TypeError):
        who, end = "another runner, which has just begun", "or try again to see which"
    return f"{who}. Two at once would disturb each other: look at it with `make status` and wait, {end}"


def is_foreign(plan: dict[str, Any], trial: dict[str, Any]) -> bool:
    """Tell whether a stored trial is another installation's (`runner.oltpbench.foreign`), which no plan of ours has."""
    return FOREIGN in plan["deployments"][trial["deployment"]]["values"]


def to_run(trials: Iterable[Trial], recorded: dict[str, Recorded]) -> list[Trial]:
    """Return the trials that `run` still has to do: those without a record, and those that failed."""
    return [t for t in trials if t.hash not in recorded or recorded[t.hash].status == "failed"]


def to_retry(trials: Iterable[Trial], recorded: dict[str, Recorded], invalid: bool = False) -> list[Trial]:
    """Return the trials that `retry` does again: those whose record failed, with `invalid` also the invalid ones.

    An invalid trial is a result: repeating until the terminals happen not to be saturated would choose the slow ones.
    """
    again = {"failed", "invalid"} if invalid else {"failed"}
    return [t for t in trials if t.hash in recorded and recorded[t.hash].status in again]


def create(results: Path, key: Key, code: Code, machine: dict[str, Any]) -> Run:
    """Make a new, empty run named by the present UTC time and point ``latest`` at it."""
    parent = results / "runs"
    parent.mkdir(parents=True, exist_ok=True)
    started = datetime.now(UTC)
    path = parent / started.strftime("%Y-%m-%dT%H-%M-%SZ")
    number = 1
    while path.exists():  # two runs within one second
        number += 1
        path = parent / f"{started.strftime('%Y-%m-%dT%H-%M-%SZ')}.{number}"
    building = parent / f".{path.name}.partial"
    shutil.rmtree(building, ignore_errors=True)
    (building / "trials").mkdir(parents=True)
    write_json(
        building / "run.json",
        {
            "format": RUN_FORMAT,
            "created_at": started.isoformat(timespec="seconds"),
            "experiments": [],
            "key": asdict(key),
            "code": asdict(code),
            "machine": machine,
            "lanes": {},
            "warnings": [],
        },
    )
    write_json(building / "plan.json", {"format": RUN_FORMAT, "trials": [], "deployments": {}})
    sync_tree(building)
    rename(building, path)
    point_latest(results, path)
    return Run(path)


def point_latest(results: Path, run: Path) -> None:
    """Let ``results/latest`` name `run`, in one step."""
    temporary = results / f".latest.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(os.path.relpath(run.resolve(), results.resolve()))
    temporary.replace(results / "latest")


def find(results: Path, key: Key) -> Run | None:
    """Return the newest run with `key`, or None."""
    for path in sorted((results / "runs").glob("[!.]*"), reverse=True):
        try:
            run = Run(path)
        except InputError:
            continue
        if run.key == key:
            return run
    return None


def open_run(results: Path, name: str) -> Run:
    """Open a run by name, ``latest`` included; raises InputError naming those that exist."""
    path = results / "latest" if name == "latest" else results / "runs" / name
    if not path.exists():
        present = sorted(p.name for p in (results / "runs").glob("[!.]*"))
        listed = f"present: {', '.join(present)}" if present else "none exist yet: start one with `make smoke`"
        raise InputError(f"there is no run {name!r} in {results}; {listed}")
    return Run(path.resolve())


def newest_published(parent: Path) -> Run | None:
    """Return the published run that was measured last, or None."""
    found = []
    for path in sorted(parent.glob("[!.]*/run.json")):
        run = Run(path.parent)
        if run.published:
            found.append(run)
    return max(found, key=lambda run: str(run.meta["created_at"]), default=None)


def to_show(results: Path, name: str, published: Path) -> Run:
    """Return the run whose results are asked for; for ``latest`` the published one where nothing was run in `results`.

    Raises InputError as `open_run` does.
    """
    if name == "latest" and not (results / "latest").exists() and (run := newest_published(published)):
        return run
    return open_run(results, name)
