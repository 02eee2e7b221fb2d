"""One result set that is filled in several places: a run takes over what a compact copy of it holds, or the reverse.

A run of hours is measured in several sittings, and nothing but what was committed may reach the next one. So an
unfinished run is published as a compact copy (`runner.publish`); the next sitting takes the copy's trials over into a
run of its own and goes on; publishing again puts the two together. A trial's hash names all of the plan that shapes its
result; what else does (code, machine, disk) is compared by whoever calls `adopt`.
"""

from __future__ import annotations

import shutil
from typing import Any

from runner.errors import InputError
from runner.files import read_json, write_json
from runner.hidden import Hidden
from runner.oltpbench import kept
from runner.store import Run

RECORDED, FAILED, MISSING = 2, 1, 0


def share_a_sitting(one: Run, other: Run) -> bool:
    """Tell whether some of the trials of two runs may be the very same ones."""
    return not {s["began_at"] for s in one.sittings}.isdisjoint(s["began_at"] for s in other.sittings)


def standing(run: Run) -> dict[str, tuple[int, str]]:
    """Return how good each recorded trial is: what failed gives way to what did not, then the earlier to the later."""
    return {
        trial_hash: (
            FAILED if recorded.status == "failed" else RECORDED,
            str(run.environment(trial_hash).get("ended_at", "")),
        )
        for trial_hash, recorded in run.recorded().items()
    }


def wanted_from(source: Run, target: Run | None) -> list[str]:
    """Return the recorded trials of `source` that `target` lacks, or has a worse record of, in the plan's order."""
    there, here = standing(source), standing(target) if target is not None else {}
    hashes = (trial["hash"] for trial in source.trials)
    return [h for h in hashes if h in there and there[h] > here.get(h, (MISSING, ""))]


def adopt(target: Run, source: Run) -> int:
    """Take over what `source` has beyond `target`: trials, plan, sittings, loaded tables; return how many trials.

    Of two records of one trial the later one stands, a failed one only where there is no other; what gives way becomes
    an attempt. Raises InputError when the two loaded different data, and OSError; called again it goes on where it
    ended.
    """
    _adopt_tables(target, source)
    _adopt_plan(target, source)
    taken = wanted_from(source, target)
    for trial_hash in taken:
        _adopt_trial(target, source, trial_hash)
    for trial in source.trials:
        _adopt_attempts(target, source, trial["hash"])
    return len(taken)


def _adopt_plan(target: Run, source: Run) -> None:
    """Add trials, deployments and experiments that only `source` has planned, and what it tells of its sittings."""
    known = {trial["hash"] for trial in target.trials}
    target.plan["trials"] += [trial for trial in source.trials if trial["hash"] not in known]
    for name, deployment in source.plan["deployments"].items():
        target.plan["deployments"].setdefault(name, deployment)
    meta, other = target.meta, source.meta
    meta["experiments"] = list(dict.fromkeys([*meta["experiments"], *other["experiments"]]))
    meta["warnings"] = list(dict.fromkeys([*meta["warnings"], *other["warnings"]]))
    meta["lanes"] = {**other.get("lanes", {}), **meta.get("lanes", {})}
    if configurations := {**kept.records(source), **kept.records(target)}:
        meta[kept.KEY] = configurations
    known = {sitting["began_at"] for sitting in target.sittings}
    new = [sitting for sitting in source.sittings if sitting["began_at"] not in known]
    meta["sittings"] = [*new, *meta.get("sittings", [])]
    for path in sorted((source.path / "code").glob("*.json")):
        if not (target.path / "code" / path.name).exists():
            (target.path / "code").mkdir(exist_ok=True)
            write_json(target.path / "code" / path.name, read_json(path))
    write_json(target.path / "plan.json", target.plan)
    write_json(target.path / "run.json", meta)


def _adopt_trial(target: Run, source: Run, trial_hash: str) -> None:
    partial = target.begin(trial_hash)
    shutil.copytree(source.trial_path(trial_hash), partial, dirs_exist_ok=True)
    environment = source.environment(trial_hash)
    if "code" not in environment:  # of the run's start, which the other run does not know
        write_json(partial / "environment.json", {**environment, "code": source.meta["code"]})
    target.commit(trial_hash)


def _adopt_attempts(target: Run, source: Run, trial_hash: str) -> None:
    """Add the attempts that `target` does not have; they are told apart by what is published of them."""
    hidden = Hidden(target)
    place = target.path / "attempts" / trial_hash
    known = [hidden.of(result) for result in _attempts(target, trial_hash)]
    for result in _attempts(source, trial_hash):
        if (published := hidden.of(result)) in known:
            known.remove(published)
            continue
        number = 1 + (sum(1 for _ in place.iterdir()) if place.is_dir() else 0)
        (place / str(number)).mkdir(parents=True)
        write_json(place / str(number) / "result.json", result)


def _attempts(run: Run, trial_hash: str) -> list[Any]:
    """Return the results of all attempts, the one that stands included."""
    found = []
    for directory in [*sorted((run.path / "attempts" / trial_hash).glob("*")), run.trial_path(trial_hash)]:
        if directory.is_dir():
            try:
                found.append(read_json(directory / "result.json"))
            except (OSError, ValueError):
                found.append(None)
    return found


def _adopt_tables(target: Run, source: Run) -> None:
    """Add what the tables held after loading; raises InputError when the same data set held something else there."""
    for content in source.contents():
        mine = target.tables(content)
        for store, tables in source.tables(content).items():
            if any(known != tables for known in mine.values()):
                raise InputError(
                    f"{source.path} and {target.path} loaded different rows of one data set ({content}, {store}):"
                    " their trials are not comparable; begin a new run with --fresh"
                )
            if store not in mine:
                target.add_tables(content, store, tables)
