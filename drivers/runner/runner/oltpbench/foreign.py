"""Trials of another installation in a run of ours: as rows of its table, with the installation as the system.

They are kept apart from ours: no plan has them, `retry` does not repeat them, no figure and no claim is made of them.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.agent import Agent
from runner.files import tail, write_json, write_text
from runner.identity import sha256
from runner.oltpbench import mapping
from runner.oltpbench.configuration import Configuration
from runner.oltpbench.installation import Installation
from runner.oltpbench.results import Measured
from runner.plan import digest
from runner.store import FOREIGN, Run

WHY_NOT_LIMITED = "deployed by somebody else: neither its memory nor its disk nor its CPUs are this harness's"
LOG_LINES = 200


def system_name(installation: Installation, configuration: Configuration) -> str:
    """Name it as a system under test: the clients, and the DBMS that they reach where it is not their own."""
    if installation.kind == "h-store" or not configuration.dbms:
        return installation.kind
    return f"{installation.kind}-{configuration.dbms}"


def planned(
    run: Run, installation: Installation, configuration: Configuration, system: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the next trial of an installation as plan.json keeps it, and its deployment."""
    section = _section(configuration)
    experiment = mapping.name_of(configuration.path)
    values = {
        "system": system,
        "benchmark": configuration.benchmark,
        FOREIGN: {
            "program": installation.title,
            "installation": str(installation.root),
            "configuration": configuration.path.name,
            "configuration_sha256": sha256(configuration.path),
            "dbms": configuration.dbms,
        },
    }
    identity = digest(values)
    same = [t for t in run.trials if t["deployment"] == identity]
    index = len(same)
    trial = {
        "hash": digest({"deployment": identity, "trial": index}),
        "experiment": experiment,
        "scale": run.key.scale,
        "cell": {"system": system, **({"mix": section["mix"]} if "mix" in section else {})},
        "trial": index,
        "seed": None,
        "deployment": identity,
        "spec": {
            "format": 1,
            "system": system,
            "benchmark": configuration.benchmark,
            configuration.benchmark: section,
            "terminals": configuration.terminals,
            "warmup_s": float(sum(phase.warmup_s for phase in configuration.phases)),
            "measure_s": float(sum(phase.time_s for phase in configuration.phases)),
            "client_cpus": "",
        },
    }
    deployment = {
        "id": identity,
        "benchmark": configuration.benchmark,
        "system": system,
        "data_memory_ratio": None,
        "dataset": "",
        "content": "",
        "values": values,
    }
    return trial, deployment


def _section(configuration: Configuration) -> dict[str, Any]:
    """Return what the configuration says of its benchmark, by the names of ours; what it leaves open is left out."""
    if configuration.benchmark == "tpcc":
        return {
            "warehouses": int(configuration.scale_factor),
            "items": mapping.TPCC_ITEMS,
            "customers_per_district": mapping.TPCC_CUSTOMERS,
            "orders_per_district": mapping.TPCC_ORDERS,
        }
    skew = configuration.values.get("skewFactor")
    names = [transaction.name for transaction in configuration.types]
    weights = configuration.phases[0].weights
    mix = ", ".join(f"{name} {weight:g}" for name, weight in zip(names, weights, strict=True) if weight > 0)
    section: dict[str, Any] = {
        "records": round(configuration.scale_factor * mapping.RECORDS_PER_SCALE_FACTOR),
        "fields": 10,
        "field_bytes": 100,
        "mix": mix if len(configuration.phases) == 1 else f"{len(configuration.phases)} phases",
    }
    if skew is not None:
        section["skew"] = float(skew.text)
    return section


def record(
    run: Run,
    planned_trial: tuple[dict[str, Any], dict[str, Any]],
    outcome: Measured | str,
    *,
    files: list[Path],
    logs: Path,
    started: datetime,
    hidden: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Record a trial: what was measured, or why nothing was; returns the result.

    Their files are copied beside it, of a failed trial the ends of their logs, without the texts `hidden`.
    """
    trial, deployment = planned_trial
    program = deployment["values"][FOREIGN]["program"]
    run.add_foreign(trial, deployment)
    directory = run.begin(trial["hash"])
    result = (
        outcome.result(program)
        if isinstance(outcome, Measured)
        else {"format": 1, "status": "failed", "reason": outcome, "flags": []}
    )
    write_json(directory / "spec.json", {"format": 2, "run": run.name, **trial, "deployment": deployment})
    write_json(directory / "result.json", result)
    if isinstance(outcome, Measured) and outcome.seconds:
        rows = "".join(f"{second},{count},0,0,0,0\n" for second, count in enumerate(outcome.seconds))
        head = "second,committed,aborted,retried,latency_us_p50,latency_us_p99\n"
        write_text(directory / "timeline.csv", head + rows)
    environment = {
        "format": 1,
        "started_at": started.isoformat(timespec="milliseconds"),
        "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        # Not measured by our code: so it mixes with that of no other trial.
        "code": run.meta["code"],
        "disk_profile": "",
        "control_group": {"enforced": False, "why_not": WHY_NOT_LIMITED, "limit_bytes": None},
        "machine": Agent().describe(str(run.path)),
        "versions": result.get("versions", {}),
        **deployment["values"],
    }
    write_json(directory / "environment.json", environment)
    theirs = directory / "theirs"
    theirs.mkdir()
    for path in files:
        if path.parent != logs:  # a log is kept below, without passwords
            shutil.copyfile(path, theirs / path.name)
    for log in sorted(logs.glob("*.log")):
        text = tail(log, LOG_LINES)
        for secret in hidden:
            text = text.replace(secret, "(not shown)")
        write_text(theirs / log.name, text + "\n")
    run.commit(trial["hash"])
    return result
