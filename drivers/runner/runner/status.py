"""``make status``: what a sweep does now, from another terminal, and what its run holds; it only reads.

While trials are measured every other process takes time from them: so this one imports little (`runner.__main__`), runs
behind all others, and asks neither nodes nor Ansible.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from runner import entry, heartbeat, store
from runner.files import read_json
from runner.progress import duration
from runner.store import INTERRUPTED, Run

STATES = ("ok", "flagged", "invalid", "failed", "planned")
RETRY = "make retry"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@app.command()
def status(
    results: Annotated[Path, typer.Option(help="where results go")] = Path("results"),
    run_name: Annotated[str, typer.Option("--run", help="a run below RESULTS/runs, or latest")] = "latest",
) -> None:
    """Say what is going on in a run now, how far it is, and why trials failed."""
    run = store.open_run(results, run_name)
    told = heartbeat.read(run.path)
    for line in _now(told):
        typer.echo(line)
    records = {trial["hash"]: _record(run, trial["hash"]) for trial in run.trials}
    Console(width=None if sys.stdout.isatty() else 160).print(_table(run, records))
    for line in [*_experiments(run, records), *_reasons(records)]:
        typer.echo(line)
    if not (told and not told["end"] and heartbeat.lives(told)):
        for line in _next(run, records):
            typer.echo(line)


def main(arguments: list[str] | None = None) -> int:
    """Run the command as ``python -m runner status``; return its exit code."""
    return entry.call(app, (sys.argv[1:] if arguments is None else arguments)[1:])


def _record(run: Run, trial_hash: str) -> dict[str, Any]:
    """Return state, reason and flags of a planned trial."""
    directory = run.trial_path(trial_hash)
    if not directory.is_dir():
        return {"state": "planned", "reason": "", "flags": []}
    try:
        result = dict(read_json(directory / "result.json"))
    except (OSError, ValueError, TypeError) as error:
        return {"state": "failed", "reason": f"result.json cannot be read: {error}", "flags": []}
    flags = [str(flag) for flag in result.get("flags", [])]
    state = "flagged" if result["status"] == "ok" and flags else str(result["status"])
    return {"state": state, "reason": str(result.get("reason", "")), "flags": flags}


def _now(told: dict[str, Any]) -> Iterator[str]:
    """Say whether somebody fills the run, and what every lane does."""
    if not told:
        return
    alive, process = heartbeat.lives(told), f"process {told['pid']} on {told['host']}"
    if told["end"]:
        yield f"the last sweep ended {_ago(told['updated_at'])} ago: {told['end']}"
        if alive:
            yield f"  {process} goes on with tables and figures"
        return
    if alive is False:
        yield f"interrupted: {process} is gone and did not end its sweep: it was killed, or the machine went down"
        yield f"  it was last heard of {_ago(told['updated_at'])} ago; at most these trials are lost, the rest is kept:"
    elif alive is None:
        yield f"{process}, which cannot be seen from here, was last heard of {_ago(told['updated_at'])} ago"
    else:
        yield f"running for {_ago(told['began_at'])}: {process}"
    for lane, doing in told["lanes"].items():
        expected = f" of about {duration(doing['expected_s'])}" if doing["expected_s"] else ""
        trial = f" (trial {doing['trial']})" if doing["trial"] else ""
        yield f"  lane {lane}: {doing['doing']}{trial}, for {_ago(doing['since'])}{expected}"
    left_s = max(0.0, told["seconds_left"] - _seconds_since(told["left_at"]))
    ends = f", about {duration(left_s)} left" if alive is not False else ""
    yield f"  {told['done']} of {told['total']} trials of this call are done{ends}"


def _seconds_since(moment: str) -> float:
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def _ago(moment: str) -> str:
    return duration(_seconds_since(moment))


def _table(run: Run, records: dict[str, dict[str, Any]]) -> Table:
    table = Table("system", *STATES, title=f"{run.path}")
    for system in dict.fromkeys(t["cell"]["system"] for t in run.trials):
        counts = Counter(records[t["hash"]]["state"] for t in run.trials if t["cell"]["system"] == system)
        table.add_row(system, *(str(counts[state]) for state in STATES))
    return table


def _experiments(run: Run, records: dict[str, dict[str, Any]]) -> Iterator[str]:
    planned = Counter(t["experiment"] for t in run.trials)
    done = Counter(t["experiment"] for t in run.trials if records[t["hash"]]["state"] not in ("planned", "failed"))
    for experiment, count in planned.items() if len(planned) > 1 else ():
        yield f"{experiment}: {done[experiment]} of {count} trials"
    if len(run.sittings) > 1:
        yield f"filled in {len(run.sittings)} sittings, the first of {run.sittings[0]['began_at']}"


def _reasons(records: dict[str, dict[str, Any]]) -> Iterator[str]:
    reasons = Counter(r["reason"] for r in records.values() if r["state"] in ("failed", "invalid"))
    for reason, count in reasons.most_common():
        yield f"{count} x {reason}"
    for flag, count in Counter(f for r in records.values() if r["state"] == "flagged" for f in r["flags"]).items():
        yield f"{count} x flagged {flag}"


def _next(run: Run, records: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Say how to go on."""
    counts = Counter(r["state"] for r in records.values())
    if counts["failed"]:
        yield f"run the failed ones again: {RETRY}"
    if counts["invalid"]:
        yield "run the failed and the invalid ones again: .venv/bin/python -m runner retry --invalid"
    if counts["planned"] or any(r["reason"] == INTERRUPTED for r in records.values()):
        yield f"go on: {go_on(run)}"


def go_on(run: Run, origin: Path | None = None) -> str:
    """Return the command that goes on with a run: that of its last sitting which did not only repeat.

    With `origin` it begins with that copy of the run.
    """
    commands = [str(sitting["command"]) for sitting in run.sittings if sitting.get("command", RETRY) != RETRY]
    if not commands:  # older than sittings are
        copy = f" FROM={origin}" if origin else ""
        return f"make {run.meta['experiments'][0]} SCALE={run.key.scale} DISK={run.key.disk}{copy}"
    return commands[-1] + (f" --from {origin}" if origin else "")


def warning(run: Run) -> str:
    """Say that a sweep is going on in a run, for whoever is about to take CPU time from it; empty when none is."""
    told = heartbeat.read(run.path)
    if not told or told["end"] or not heartbeat.lives(told):
        return ""
    return f"process {told['pid']} is measuring in {run.path}: what else runs here takes time from its trials"
