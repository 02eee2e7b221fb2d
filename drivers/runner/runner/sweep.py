"""Carries out trials: deployment by deployment, trial by trial, and records every outcome.

Nothing that goes wrong with one system ends the sweep: a deployment that fails makes its trials failed rows; a
server that dies fails its trial and is deployed anew for the next one. Only an interruption ends it, and then what
was started is stopped and what was measured is kept.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner import control_group, driver, identity, machine, stats
from runner.deploy import Ansible, DeployError, deployment_file, save
from runner.disk import Disk
from runner.errors import RunError
from runner.files import read_json, tail, write_json, write_text
from runner.interrupt import Interrupt
from runner.plan import Deployment, Plan, Trial, loadgen_spec, make_deployment
from runner.progress import SweepProgress
from runner.store import INTERRUPTED, Run
from runner.workload import Workload, family

LOAD_LIMIT_S = 60.0
LOAD_RECORDS_PER_S = 2_000  # slower loading than this counts as hung
LOG_TAIL_LINES = 200


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
    """What a sweep works with."""

    root: Path
    ansible: Ansible
    loadgen: Path
    cpus: machine.CpuSets
    disk: Disk
    code: identity.Code


class Sweep:
    """Executes the trials of one call against one run directory."""

    def __init__(self, plan: Plan, run: Run, tools: Tools, interrupt: Interrupt, progress: SweepProgress) -> None:
        """Prepare; nothing starts before `execute`."""
        self._plan, self._run, self._tools = plan, run, tools
        self._interrupt, self._progress = interrupt, progress
        self._datasets = tools.ansible.node.node_root / "datasets"
        self._up: Path | None = None  # the newest deployment's directory while its servers may run
        self._servers: machine.Processes = {}  # of the newest deployment
        self._summary = Summary()

    def execute(self, trials: list[Trial]) -> Summary:
        """Run `trials` in order and return what came out."""
        self._clean_slate()
        previous = ""
        for deployment, on_it in self._plan.batches(trials):
            if self._interrupt():
                break
            if deployment.id == previous:  # `deploy.yml` would leave it running with the data of the last trial
                self._bring_down()
            self._serve(deployment, on_it)
            previous = deployment.id
        self._bring_down()
        self._summary.interrupted = self._interrupt()
        return self._summary

    def _serve(self, deployment: Deployment, on_it: list[Trial]) -> None:
        """Run the trials of one deployment; deploy again after a server died."""
        pending = list(on_it)
        while pending and not self._interrupt():
            place = self._run.new_deployment(deployment)
            try:
                endpoint = self._bring_up(deployment, place)
            except (RunError, OSError) as error:
                self._bring_down()
                if not self._interrupt():
                    for trial in pending:
                        self._record_failure(trial, _one_line(error), place)
                return
            healthy = True
            while pending and healthy and not self._interrupt():
                healthy = self._measure(pending.pop(0), deployment, endpoint, place)
            if not healthy:
                self._bring_down()  # what is left of it; `deploy.yml` itself stops a healthy predecessor

    # -- deployments ------------------------------------------------------------------------------------------

    def _bring_up(self, deployment: Deployment, place: Path) -> dict[str, Any]:
        """Configure, fill and start a system: the dataset restored where one is kept, loaded where it cannot be."""
        workload = self._plan.workload(deployment.experiment)
        restore = family(deployment.system) == "mysql"
        if restore:
            self._keep_dataset(deployment, workload, place)
        self._progress.doing(f"deploying {deployment.system} at {deployment.data_memory_ratio:g}x")
        values = self._deployment_file(deployment, workload, "restore" if restore else "none")
        save(values, place)
        endpoint = self._start(deployment, values, place)
        if not restore:
            self._loadgen("load", deployment.system, workload, endpoint, place)
        # All start with the hottest records in memory: short warm-ups cannot do that, and one would be favoured.
        self._loadgen("prewarm", deployment.system, workload, endpoint, place)
        return endpoint

    def _keep_dataset(self, deployment: Deployment, workload: Workload, place: Path) -> None:
        """Load a data set once, with the whole of it in memory, and keep the clean data directory."""
        if (self._datasets / deployment.dataset).is_dir():
            return
        self._progress.doing(f"loading {workload.values.records} records into MySQL, to be kept")
        loading = make_deployment(workload, "mysql", 1.0, self._tools.cpus, self._tools.disk)
        values = self._deployment_file(loading, workload, "none")
        self._play("reset", values, place)
        endpoint = self._start(loading, values, place)
        self._loadgen("load", loading.system, workload, endpoint, place)
        self._play("keep", values, place)
        self._up = None

    def _deployment_file(self, deployment: Deployment, workload: Workload, action: str) -> dict[str, Any]:
        return deployment_file(deployment, workload.schema, self._datasets.absolute(), action)

    def _start(self, deployment: Deployment, values: dict[str, Any], place: Path) -> dict[str, Any]:
        self._up = place  # from here on something may run and has to be stopped
        self._play("deploy", values, place)
        endpoint = self._tools.ansible.endpoint(deployment)
        self._servers = machine.processes(endpoint.get("pids", {}))
        if warning := control_group.warning(control_group.group_of(endpoint)):
            self._progress.say(f"warning: {warning}")
            self._run.add_warnings([warning])
        return endpoint

    def _play(self, name: str, values: dict[str, Any], place: Path, cancellable: bool = True) -> None:
        self._tools.ansible.play(name, values, place / "ansible.log", cancellable)

    def _loadgen(self, verb: str, system: str, workload: Workload, endpoint: dict[str, Any], place: Path) -> None:
        """Load or prewarm; raises RunError with loadgen's last line when that fails."""
        first = next(t.cell for t in self._plan.trials if t.experiment == workload.id)
        spec = loadgen_spec(workload, first, workload.experiment.seed, self._tools.cpus)
        spec |= {"system": system, "endpoint": endpoint, "schema": str(workload.schema.resolve())}
        limit_s = LOAD_LIMIT_S + workload.values.records / LOAD_RECORDS_PER_S
        memory = control_group.Watch(endpoint)
        outcome = driver.call(
            self._tools.loadgen,
            verb,
            spec,
            place,
            cancelled=self._interrupt,
            limit_s=limit_s,
            servers=self._servers,
        )
        if outcome.stopped or outcome.exit_code != 0:
            why = outcome.stopped or outcome.last_line or f"exit code {outcome.exit_code}"
            why = memory.exceeded(machine.dead(self._servers)) or why
            self._keep_logs(endpoint, place)
            raise RunError(f"loadgen {verb} failed: {why}; log: {place / f'loadgen-{verb}.log'}")

    def _clean_slate(self) -> None:
        """Stop servers that an earlier, killed call left behind; raises DeployError when that fails."""
        self._tools.ansible.play("stop", {}, self._run.path / "stop.log", cancellable=False)

    def _bring_down(self) -> None:
        """Stop what was started, also after an interruption; a failure is told, the sweep goes on."""
        if self._up is None:
            return
        place, self._up = self._up, None
        try:
            self._play("stop", {}, place, cancellable=False)
        except (DeployError, OSError) as error:
            self._progress.say(f"stopping the servers failed: {_one_line(error)}")

    # -- trials -----------------------------------------------------------------------------------------------

    def _measure(self, trial: Trial, deployment: Deployment, endpoint: dict[str, Any], place: Path) -> bool:
        """Run one trial and record it; returns False when the deployment cannot serve another one."""
        self._progress.doing(trial.cell.label())
        pids: dict[str, int] = endpoint.get("pids", {})
        try:
            directory = self._run.begin(trial.hash)
            spec = {**trial.spec, "endpoint": endpoint}
            write_json(directory / "spec.json", self._spec_record(trial, deployment))
            started, load = datetime.now(UTC), os.getloadavg()
            unreset = machine.reset_memory_peaks(pids)
            group = control_group.Watch(endpoint).reset_peak()
            limit_s = trial.spec["warmup_s"] + trial.spec["measure_s"]
            limit_s += driver.TRIAL_SLACK_S + 0.5 * limit_s
            outcome = driver.call(
                self._tools.loadgen,
                "run",
                spec,
                directory,
                cancelled=self._interrupt,
                limit_s=limit_s,
                servers=self._servers,
                out=True,
            )
            memory = machine.memory_of(pids)
            dead = machine.dead(self._servers)
            result = judge(directory, outcome, dead, pids, trial.spec["measure_s"])
            if exceeded := group.exceeded(dead):
                result |= {"status": "failed", "reason": exceeded}
            write_json(directory / "result.json", result)
            environment = self._environment(endpoint, result, started, load)
            environment["memory"] = {"processes": memory, "peak_not_reset": unreset}
            environment["control_group"] = group.record()
            write_json(directory / "environment.json", environment)
            if result["status"] == "failed":
                self._keep_logs(endpoint, directory)
            self._run.commit(trial.hash)
        except OSError as error:
            self._record_failure(trial, disk_reason(error), place)
            return not machine.dead(self._servers)
        self._report(trial, result)
        return not dead and not exceeded

    def _spec_record(self, trial: Trial, deployment: Deployment) -> dict[str, Any]:
        return {"format": 2, "run": self._run.name, **trial.record(), "deployment": asdict(deployment)}

    def _environment(
        self,
        endpoint: dict[str, Any],
        result: dict[str, Any],
        started: datetime,
        load: tuple[float, float, float],
    ) -> dict[str, Any]:
        node_root = self._tools.ansible.node.node_root
        return {
            "format": 1,
            "started_at": started.isoformat(timespec="milliseconds"),
            "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "load_average_before": list(load),
            "code": asdict(self._tools.code),
            "binaries": self._binaries(endpoint),
            "machine": machine.describe(node_root, self._tools.root),
            "disk_profile": self._tools.disk.profile,
            "cpu_sets": asdict(self._tools.cpus),
            "endpoint": driver.without_secrets(endpoint),
            "server_settings": result.get("server_settings", {}),
            "versions": result.get("versions", {}),
        }

    def _binaries(self, endpoint: dict[str, Any]) -> dict[str, str]:
        """Hash what ran: a server's own file is asked of its process, for it may have been built anew since."""
        pid = endpoint.get("pids", {}).get("anticached")
        anticached = Path(f"/proc/{pid}/exe") if pid else self._tools.root / driver.ANTICACHED
        return identity.binaries({"loadgen": self._tools.loadgen, "anticached": anticached})

    def _keep_logs(self, endpoint: dict[str, Any], directory: Path) -> None:
        """Copy the ends of the servers' logs beside the record of a failure."""
        for number, name in enumerate(endpoint.get("logs", [])):
            text = tail(Path(name), LOG_TAIL_LINES)
            if text:
                with contextlib.suppress(OSError):
                    write_text(directory / f"server-{number}-{Path(name).stem}.log", text + "\n")

    def _record_failure(self, trial: Trial, reason: str, place: Path) -> None:
        """Record a trial that could not be run: a row with its reason, never a gap."""
        result = {"format": 1, "status": "failed", "reason": reason, "flags": []}
        try:
            directory = self._run.begin(trial.hash)
            deployment = self._plan.deployments[trial.deployment]
            write_json(directory / "spec.json", self._spec_record(trial, deployment))
            write_json(directory / "result.json", result)
            now = datetime.now(UTC)
            environment = self._environment({}, result, now, os.getloadavg())
            write_json(directory / "environment.json", {**environment, "deployment_logs": place.name})
            self._run.commit(trial.hash)
        except OSError as error:
            self._progress.say(f"{trial.cell.label()}: its failure cannot be recorded: {disk_reason(error)}")
        self._report(trial, result)

    def _report(self, trial: Trial, result: dict[str, Any]) -> None:
        status, reason = result["status"], str(result.get("reason", ""))
        throughput = result.get("throughput_txn_s")
        shown = f"{throughput:,.0f} txn/s" if isinstance(throughput, int | float) else ""
        outcome = shown if status == "ok" else f"{status}: {reason}" + (f" ({shown})" if shown else "")
        self._summary.count(trial.cell.label(), status, reason)
        self._progress.trial_done(f"{trial.cell.label()} #{trial.index + 1}", outcome)


def judge(
    directory: Path, outcome: driver.Outcome, dead: list[str], pids: dict[str, int], measure_s: float
) -> dict[str, Any]:
    """Read loadgen's result and correct its status by what only the runner can see.

    A missing or unreadable result, a loadgen that had to be ended, and a server that is gone make the trial failed;
    a trial that has not settled is flagged ``not_settled``.
    """
    try:
        result = dict(read_json(directory / "result.json"))
    except (OSError, ValueError):
        result = {"format": 1, "flags": []}
    result.setdefault("flags", [])
    reason = ""
    if dead:
        names = ", ".join(f"{name} (pid {pids[name]})" for name in dead)
        reason = f"server died during the trial: {names}; its log's end is kept with the trial"
    elif outcome.stopped == INTERRUPTED:
        reason = INTERRUPTED
    elif outcome.stopped:
        reason = outcome.stopped
    elif "status" not in result:
        reason = f"loadgen left no result (exit code {outcome.exit_code}): {outcome.last_line or 'it said nothing'}"
    if reason:
        result |= {"status": "failed", "reason": reason}
    elif result["status"] == "ok":
        result["settled"] = stats.settled(measured_seconds(directory / "timeline.csv", measure_s))
        if result["settled"] is False:
            result["flags"] = [*result["flags"], "not_settled"]
    return result


def measured_seconds(timeline: Path, measure_s: float) -> list[float]:
    """Return the committed transactions of every whole second of a timeline's `measure_s` measured seconds."""
    try:
        with timeline.open(encoding="utf-8", newline="") as file:
            rows = [(int(row["second"]), float(row["committed"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError):
        return []
    return [committed for second, committed in rows if 0 <= second <= measure_s - 1]


def disk_reason(error: OSError) -> str:
    """Put an I/O error while recording into words."""
    if error.errno == errno.ENOSPC:
        return f"disk full while recording {error.filename or 'the trial'}: free some space, then `make retry`"
    return f"recording failed: {error}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
