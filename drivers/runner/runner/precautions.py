"""What is looked at before a sweep: warnings that are printed, and kept with the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner import driver, identity, machine
from runner.plan import Plan
from runner.systems import family


def of_plan(plan: Plan, cpus: machine.CpuSets) -> list[str]:
    """Warn of what the plan asks of CPUs that are not there."""
    found = []
    if cpus.shared:
        found.append("only one CPU: servers and terminals share it, the figures say little")
    available = machine.count_cpus(cpus.server)
    # Where structures are described, nobody reads the throughput.
    measured = {t.deployment for t in plan.trials if not plan.workload(t.experiment).experiment.describe}
    engines = [d for d in plan.deployments.values() if d.id in measured and family(d.system) == "anticache"]
    wanted = max((d.values["partitions"] for d in engines), default=1)
    if wanted > available:
        found.append(
            f"{wanted} partitions on the {available} CPUs of the server's set ({cpus.server}): partitions will share"
            " CPUs, so the engine's figures are too low; lower the scale's `partitions`, or use a larger machine"
        )
    return found


def before_a_sweep(plan: Plan, cpus: machine.CpuSets, root: Path, nodes: dict[str, dict[str, Any]]) -> list[str]:
    """Warn of everything that would spoil figures: also of busy nodes, and of binaries older than their sources."""
    programs = (driver.LOADGEN, driver.ANTICACHED, driver.MICRO)
    stale = (identity.stale_binary(root / program) for program in programs)
    busy = (machine.load_warning(name, description) for name, description in nodes.items())
    return [*of_plan(plan, cpus), *filter(None, [*busy, *stale])]
