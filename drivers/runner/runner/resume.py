"""Which run to go on with, and what refuses to: one run must not mix engines, settings or machines unseen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from runner import identity, union
from runner.errors import InputError
from runner.hidden import inventory_name
from runner.identity import Code
from runner.inventory import Inventory
from runner.machine import without_kernel
from runner.plan import Trial
from runner.store import PUBLISHED, Key, Run

Mixed = Literal["", "kernel", "machine"]
"""In what the machines of a run's sittings may differ, because somebody said so: the kernel alone, or anything."""
_WIDER: tuple[Mixed, ...] = ("kernel", "machine")
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


def refuse_other_conditions(run: Run, wanted: Key, mixed: Mixed = "") -> None:
    """Raise InputError when `run` measured under other conditions than `wanted`; its code is another matter.

    `mixed` says in what its machine may be another one.
    """
    found, now = (_comparable(key, mixed) for key in (run.key, wanted))
    different = [f"{text}: {found[name]}, now {now[name]}" for name, text in SHOWN.items() if found[name] != now[name]]
    if not different:
        return
    advice = f"{_fresh(run)}, or restore them"
    enough: list[Mixed] = [m for m in _WIDER if _comparable(run.key, m) == _comparable(wanted, m)]
    if enough:
        advice += f", or add --mixed-{enough[0]} to go on all the same: the run will then say so"
    raise InputError(f"{run.path} was measured under other conditions ({'; '.join(different)}). {advice}")


def _comparable(key: Key, mixed: Mixed) -> dict[str, str]:
    """Return a key as it can be compared with a published one; its code is left out."""
    values = {**dataclasses.asdict(key), "inventory": inventory_name(key.inventory)}
    del values["shaping_code"]
    machine = {"": key.machine, "kernel": without_kernel(key.machine), "machine": ""}[mixed]
    return {**values, "machine": machine}


def machines_of(run: Run) -> str:
    """Say that a run's sittings had different machines, or kernels; empty when they had not."""
    machines = list(dict.fromkeys(str(sitting.get("machine", "")) for sitting in run.sittings))
    if len(machines) < 2:  # noqa: PLR2004
        return ""
    what = "kernels" if len({without_kernel(machine) for machine in machines}) == 1 else "machines"
    return f"mixed {what}: sittings of this run were measured on {'; and on '.join(machines)}"


def refuse_to_merge(run: Run, earlier: Run) -> None:
    """Raise InputError when the trials of a published copy must not be put together with those of `run`.

    They may when `run` was begun from that copy, or the copy is of that run: then somebody allowed what differs. They
    may also when both measured the same by their keys.
    """
    if union.share_a_sitting(run, earlier):
        return
    # Runs older than sittings are known by their names, which two checkouts may have given within one second.
    if not (run.sittings and earlier.sittings) and run.name == earlier.meta[PUBLISHED]:
        return
    found, now = (_comparable(key, "") for key in (earlier.key, run.key))
    different = [f"{text}: {found[name]}, here {now[name]}" for name, text in SHOWN.items() if found[name] != now[name]]
    if earlier.key.shaping_code != run.key.shaping_code:
        files = (other.files_of(other.key.shaping_code) for other in (earlier, run))
        different.append(f"code{_differences(*files) or ': other files that shape a number'}")
    if different:
        raise InputError(
            f"{earlier.path} holds trials that were not measured like those of {run.path} ({'; '.join(different)}):"
            " publish to another place, or remove it"
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
