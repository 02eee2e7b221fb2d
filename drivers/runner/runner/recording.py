"""Recording what trials came to: one directory per trial, whatever happened to it, and a line for whoever watches."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner import driver, identity, machine
from runner.cluster import Lane
from runner.disk import Disk
from runner.files import write_json
from runner.hosts import LostNodeError
from runner.judge import disk_reason
from runner.plan import Deployment, Plan, Trial
from runner.progress import SweepProgress
from runner.store import Run


@dataclass
class Summary:
    """What came out of a sweep."""

    ok: int = 0
    invalid: int = 0
    failed: int = 0
    interrupted: bool = False
    reasons: list[str] = field(default_factory=list)
    """One line per distinct failure, for the closing summary."""

    def count(self, label: str, status: str, reason: str) -> None:
        """Count one trial."""
        if status == "ok":
            self.ok += 1
        elif status == "invalid":
            self.invalid += 1
        else:
            self.failed += 1
        if status != "ok":
            self.reasons.append(f"{label}: {status}: {reason}")


@dataclass(frozen=True)
class Tools:
    """What a sweep works with, on every lane."""

    root: Path
    loadgen: Path
    cpus: machine.CpuSets
    disk: Disk
    code: identity.Code


class Recorder:
    """Writes the records of a sweep's trials; several lanes use it at the same time."""

    def __init__(self, plan: Plan, run: Run, tools: Tools, progress: SweepProgress) -> None:
        """Start with nothing counted."""
        self.plan, self.run, self.tools, self.progress = plan, run, tools, progress
        self.summary = Summary()
        self._lock = threading.Lock()

    def warn(self, text: str) -> None:
        """Tell whoever watches, and keep it with the run."""
        self.progress.say(f"warning: {text}")
        self.run.add_warnings([text])

    def spec(self, trial: Trial, deployment: Deployment) -> dict[str, Any]:
        """Return what a trial's ``spec.json`` holds."""
        return {"format": 2, "run": self.run.name, **trial.record(), "deployment": asdict(deployment)}

    def environment(
        self, lane: Lane | None, endpoint: dict[str, Any], result: dict[str, Any], started: datetime, *, profile: str
    ) -> dict[str, Any]:
        """Return where and with what a trial ran; without `lane` it never came to a node."""
        return {
            "format": 1,
            "started_at": started.isoformat(timespec="milliseconds"),
            "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "sitting": self.run.sitting,
            "code": asdict(self.tools.code),
            **(self._nodes(lane, endpoint) if lane is not None else {}),
            "disk_profile": profile,
            "cpu_sets": asdict(self.tools.cpus),
            "endpoint": driver.without_secrets(endpoint),
            "server_settings": result.get("server_settings", {}),
            "versions": result.get("versions", {}),
        }

    def _nodes(self, lane: Lane, endpoint: dict[str, Any]) -> dict[str, Any]:
        """Describe the lane's nodes as they are now; one that is lost, as it was before the sweep."""
        db, client = lane.db_facts, lane.client_facts
        anticached = identity.binaries({"it": self.tools.root / driver.ANTICACHED})["it"]
        try:
            db = lane.db.describe(lane.nodes.db.node_root)
            if pid := endpoint.get("pids", {}).get("anticached"):
                # The running server's own file: it may have been built anew since.
                anticached = lane.db.sha256({"it": Path(f"/proc/{pid}/exe")})["it"] or identity.UNKNOWN
            client = db if lane.client is lane.db else lane.client.describe(lane.nodes.client.node_root)
        except LostNodeError:
            pass  # which is the trial's reason
        binaries = {**identity.binaries({"loadgen": self.tools.loadgen}), "anticached": anticached}
        if pid := endpoint.get("pids", {}).get(driver.MICRO.name):
            binaries |= lane.db.sha256({driver.MICRO.name: Path(f"/proc/{pid}/exe")})
        return {
            "lane": lane.name,
            "hosts": {"dbms": lane.db.name, "clients": lane.client.name},
            "binaries": binaries,
            "machine": {**db, "rustc": machine.rustc(self.tools.root)},
            **({} if machine.same_machine(db, client) else {"client_machine": client}),
        }

    def failure(self, trial: Trial, reason: str, lane: Lane | None, deployment_logs: str = "") -> None:
        """Record a trial that could not be run: a row with its reason, never a gap."""
        result = {"format": 1, "status": "failed", "reason": reason, "flags": []}
        try:
            directory = self.run.begin(trial.hash)
            deployment = self.plan.deployments[trial.deployment]
            write_json(directory / "spec.json", self.spec(trial, deployment))
            write_json(directory / "result.json", result)
            environment = self.environment(
                lane, {}, result, datetime.now(UTC), profile=deployment.values["disk"]["profile"]
            )
            write_json(directory / "environment.json", {**environment, "deployment_logs": deployment_logs})
            self.run.commit(trial.hash)
        except OSError as error:
            self.progress.say(f"{trial.cell.label()}: its failure cannot be recorded: {disk_reason(error)}")
        self.report(trial, result, lane)

    def report(self, trial: Trial, result: dict[str, Any], lane: Lane | None) -> None:
        """Count a trial and print its outcome."""
        status, reason = result["status"], str(result.get("reason", ""))
        throughput, elapsed_ms = result.get("throughput_txn_s"), result.get("elapsed_ms")
        shown = f"{throughput:,.0f} txn/s" if isinstance(throughput, int | float) else ""
        shown = f"{elapsed_ms:,.3f} ms" if isinstance(elapsed_ms, int | float) else shown
        outcome = shown if status == "ok" else f"{status}: {reason}" + (f" ({shown})" if shown else "")
        with self._lock:
            self.summary.count(trial.cell.label(), status, reason)
        name = lane.name if lane is not None else ""
        self.progress.trial_done(f"{trial.cell.label()} #{trial.index + 1}", outcome, lane=name, trial=trial.hash)
