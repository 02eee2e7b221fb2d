"""Which run to go on with, and what refuses to: one run must not mix engines, settings or machines unseen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from runner import identity
from runner.errors import InputError
from runner.identity import Code
from runner.inventory import Inventory
from runner.plan import Trial
from runner.store import Key, Run

SHOWN = {
    "scale": "scale",
    "inventory": "inventory",
    "disk": "disk profile",
    "inventory_content": "content of the inventory",
    "node_variables": "variables given with --node-var",
    "machine": "machine",
}


def key_of(scale: str, inventory: Inventory, disk: str, code: Code, machine: str) -> Key:
    """Return what trials measured now on `inventory`, whose lanes are each a `machine`, would have in common."""
    return Key(
        scale=scale,
        inventory=inventory.name,
        disk=disk,
        shaping_code=code.shaping,
        inventory_content=identity.inventory_digest(inventory.path()),
        node_variables=identity.variables_digest(inventory.variables),
        machine=machine,
    )


def refuse_other_conditions(run: Run, wanted: Key) -> None:
    """Raise InputError when `run` measured under other conditions than `wanted`; its code is another matter."""
    found, now = dataclasses.asdict(run.key), dataclasses.asdict(wanted)
    different = [f"{text}: {found[name]}, now {now[name]}" for name, text in SHOWN.items() if found[name] != now[name]]
    if different:
        raise InputError(
            f"{run.path} was measured under other conditions ({'; '.join(different)}). {_fresh(run)}, or restore them"
        )


def refuse_other_code(run: Run, code: Code, files: dict[str, str], todo: Iterable[Trial]) -> None:
    """Raise InputError when trials that `run` keeps beside those of `todo` were measured by other code than `code`."""
    again = {trial.hash for trial in todo}
    if not again:
        return
    kept = [h for h, r in run.recorded().items() if r.status != "failed" and h not in again]
    others: dict[Code, int] = {}
    for trial_hash in kept:
        measured = run.code_of(trial_hash)
        if measured.shaping != code.shaping:
            others[measured] = others.get(measured, 0) + 1
    if not others:
        return
    told = "; ".join(
        f"{count} by {_commit(other)}{_differences(run.files_of(other.shaping), files)}"
        for other, count in others.items()
    )
    raise InputError(
        f"{run.path} holds trials that other code measured than the present {_commit(code)}: {told}. {_fresh(run)},"
        " or add --mixed-code to go on all the same: the report and the figures will then say mixed"
    )


def _differences(recorded: dict[str, str], present: dict[str, str]) -> str:
    """Name the first files in which two states of the code differ; nothing where the run did not keep its files."""
    names = sorted(name for name in {*recorded, *present} if recorded.get(name) != present.get(name))
    if not recorded:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""  # noqa: PLR2004 - a line should stay readable
    return f", which differs in {', '.join(names[:5])}{more}"


def _fresh(run: Run) -> str:
    experiments = ",".join(run.meta["experiments"])
    command = f".venv/bin/python -m runner run --experiment {experiments} --scale {run.key.scale} --fresh"
    return f"Start a fresh run: `{command}`"


def _commit(code: Code) -> str:
    return f"commit {code.commit[:12]}" + (" with changes" if code.dirty else "")
