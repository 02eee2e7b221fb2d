"""One lane at work: deployment by deployment, trial by trial, every outcome recorded.

Nothing that goes wrong with one system ends the lane: a deployment that fails makes its trials failed rows; a server
that dies fails its trial and is deployed anew for the next one. Only a lost node ends it, by LostNodeError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner import consistency, control_group, description, disk, driver, engine
from runner.axes import Cell
from runner.cluster import Lane
from runner.deploy import Ansible, deployment_file, save
from runner.errors import RunError
from runner.files import read_json, write_json, write_text
from runner.hosts import Host, LostNodeError, Processes, alive
from runner.interrupt import Interrupt
from runner.judge import disk_reason, judge, one_line
from runner.plan import Deployment, Trial, loadgen_spec, make_deployment
from runner.recording import Recorder
from runner.systems import family
from runner.workload import Workload

LOAD_LIMIT_S = 60.0
LOAD_ROWS_PER_S = 2_000  # slower loading than this counts as hung
LOG_TAIL_LINES = 200
KILL_GRACE_S = 1.0
CACHE_LIMIT_S = 120.0
REPORTING = ("check", "quiesce")  # what loadgen says in a file as well
SYSTEM_DIRECTORIES = ("mysql", "memcached", "anticache")  # below node_root; beside them lie data sets and disk


def servers_cpu(before: dict[str, float], after: dict[str, float], elapsed_s: float) -> dict[str, Any]:
    """Say what the servers used of the CPUs over a call of loadgen, warm-up and drain included.

    `before` and `after` are CPU seconds by process; one that is missing in either is left out. `cores` = all of it per
    second of the call.
    """
    used_s = {name: after[name] - before[name] for name in before.keys() & after.keys()}
    return {"cpu_s": dict(sorted(used_s.items())), "call_s": elapsed_s, "cores": sum(used_s.values()) / elapsed_s}


def machines_cpu(hosts: dict[str, Host], before: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Say by role what the nodes' CPUs did since `before`, other programs included; see `agent.Agent.cpu_times`."""
    after = {role: host.cpu_times() for role, host in hosts.items()}
    return {
        role: {kind: round(times[kind] - before[role][kind], 2) for kind in times}
        for role, times in after.items()
        if times
    }


@dataclass
class Batch:
    """Trials that share a deployment; `pending` are those that are not begun yet."""

    deployment: Deployment
    pending: list[Trial]


@dataclass(frozen=True)
class Running:
    """A deployment that is up."""

    deployment: Deployment
    endpoint: dict[str, Any]
    servers: Processes
    place: Path
    """Its directory in the run."""


@dataclass(frozen=True)
class Measured:
    """What a trial's call of loadgen did, and what was observed while it ran."""

    outcome: driver.Outcome
    server_cpu: dict[str, Any]
    """See `servers_cpu`."""
    machine_cpu: dict[str, dict[str, float]]
    """See `machines_cpu`."""
    observed: disk.Observed


class LaneWorker:
    """Carries out batches on one lane."""

    def __init__(self, lane: Lane, ansible: Ansible, recorder: Recorder, interrupt: Interrupt) -> None:
        """Prepare; nothing starts before `clean_slate`."""
        self.lane, self._ansible, self._recorder, self._interrupt = lane, ansible, recorder, interrupt
        self._plan, self._run, self._tools = recorder.plan, recorder.run, recorder.tools
        self._datasets = lane.nodes.db.node_root / "datasets"
        self._up: Path | None = None  # the newest deployment's directory while its servers may run
        self._previous = ""
        self._clients: dict[bool, driver.Client] = {}
        self._disks: dict[str, disk.Control] = {}
        self._disk_tests: dict[str, list[dict[str, Any]]] = {}
        self._took_s: dict[str, float] = {}  # of the deployment, until the first trial on it has taken it over

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Add what this takes to the times of the next trial's record."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._took_s[what] = self._took_s.get(what, 0.0) + time.monotonic() - began_s

    def clean_slate(self) -> None:
        """Stop servers that an earlier, killed call left behind; raises DeployError when that fails."""
        self._doing("stopping what an earlier call may have left")
        self._play("stop", {}, self._run.path, cancellable=False)

    def test_disk(self) -> dict[str, float]:
        """Hold the emulated disks against their models and return the figures of the one that was asked for.

        Raises RunError when that one differs. Another that only some cells name may: their trials are then flagged.
        """
        emulated = {d.values["disk"]["profile"]: d.values["disk"] for d in self._plan.deployments.values()}
        asked = self._tools.disk.profile
        for profile in (p for p in emulated if disk.is_emulated(p)):
            self._doing(f"self-test of the emulated disk {profile}")
            control, region_bytes = self._disk(profile), emulated[profile]["region_bytes"]
            self._disk_tests[profile] = (
                control.self_test(region_bytes) if profile == asked else control.try_out(region_bytes)
            )
            if wrong := disk.outside(self._disk_tests[profile]):
                self._recorder.warn(
                    f"the emulated disk {profile} is unlike its model here, its trials are flagged: {wrong}"
                )
            if cost := disk.costly(self._disk_tests[profile]):
                self._recorder.warn(f"the emulated disk {profile} takes CPU time from what is measured: {cost}")
        if self._disk_tests:
            tests = {"disk_self_test": self._disk_tests.get(asked, []), "disk_self_tests": self._disk_tests}
            self._run.add_lanes({self.lane.name: {**self.lane.record(), **tests}})
        return disk.service_times(self._disk_tests.get(asked, []))

    def serve(self, batch: Batch) -> None:
        """Run the trials of a batch; deploy again after a server died.

        Raises LostNodeError, with the trial in flight recorded as failed, and the others left in the batch.
        """
        self._took_s = {}
        if batch.deployment.id == self._previous:  # `deploy.yml` would leave it running with the data of the last trial
            self.bring_down()
        self._previous = batch.deployment.id
        while batch.pending and not self._interrupt():
            place = self._run.new_deployment(batch.deployment, self.lane.name)
            try:
                running = self._bring_up(batch.deployment, batch.pending[0], place)
            except LostNodeError:
                raise
            except (RunError, OSError) as error:
                self._check_nodes()
                self.bring_down()
                while batch.pending and not self._interrupt():
                    self._recorder.failure(batch.pending.pop(0), one_line(error), self.lane, place.name)
                return
            healthy = True
            while batch.pending and healthy and not self._interrupt():
                healthy = self._measure(batch.pending.pop(0), running)
            if not healthy:
                self.bring_down()  # what is left of it; `deploy.yml` itself stops a healthy predecessor

    def bring_down(self) -> None:
        """Stop what was started, also after an interruption; a failure is told, the sweep goes on."""
        if self._up is None:
            return
        place, self._up = self._up, None
        self._doing("stopping the servers")
        if lost := alive(self.lane.db):
            self._recorder.progress.say(f"what runs there cannot be stopped now: {lost}")
            return
        try:
            with self._timed("stop"):
                self._play("stop", {}, place, cancellable=False)
        except (RunError, OSError) as error:
            self._recorder.progress.say(f"stopping the servers failed: {one_line(error)}")

    def _check_nodes(self) -> None:
        """Raise LostNodeError when one of the nodes does not answer: that, then, is why something failed."""
        for host in (self.lane.db, self.lane.client):
            host.load_average()

    # -- deployments ------------------------------------------------------------------------------------------

    def _bring_up(self, deployment: Deployment, trial: Trial, place: Path) -> Running:
        """Configure, fill and start a system: the dataset restored where one is kept, loaded where it cannot be."""
        # Experiments that need the same deployment share it; the trial tells which of them this is.
        workload, cell = self._plan.workload(trial.experiment), trial.cell
        restore = family(deployment.system) == "mysql"
        if restore:
            self._keep_dataset(deployment, workload, cell, place)
        self._doing(f"deploying {deployment.label()}")
        values = self._deployment_file(deployment, workload, cell, "restore" if restore else "none")
        save(values, place)
        with self._timed("deploy"):
            running = self._start(deployment, values, place)
        if workload.section(deployment.benchmark).inside:
            return running
        if not restore:
            self._doing(f"loading {deployment.label()}")
            with self._timed("load"):
                self._loadgen("load", workload, cell, running)
                if not self._run.tables(deployment.content).get(family(deployment.system)):
                    self._compare_tables(deployment, self._check_load(workload, cell, running))
        # All start with the hottest records in memory: short warm-ups cannot do that, and one would be favoured.
        self._doing(f"prewarming {deployment.label()}")
        with self._timed("prewarm"):
            self._loadgen("prewarm", workload, cell, running)
        return running

    def _keep_dataset(self, deployment: Deployment, workload: Workload, cell: Cell, place: Path) -> None:
        """Load a data set once, check it, and keep the clean data directory with what its tables hold."""
        section = workload.section_of(cell)
        tables_file = self._datasets / f"{deployment.dataset}.tables.json"
        kept = self._kept_tables(tables_file) if section.alone else {}
        if kept is not None and deployment.dataset in self.lane.db.directories(self._datasets):
            self._compare_tables(deployment, kept)
            return
        described = section.data(workload.values, deployment.data_memory_ratio).described
        self._doing(f"loading {described} into MySQL, to be kept")
        with self._timed("keep"):
            tables = self._load_dataset(deployment, workload, cell, place)
        if section.alone:
            self.lane.db.write(tables_file, json.dumps(tables).encode())
        self._up = None

    def _kept_tables(self, path: Path) -> consistency.Tables | None:
        """Read what a kept data set holds; None where that is not known, or only half of it was written."""
        try:
            return dict(json.loads(self.lane.db.read_text(str(path)) or ""))
        except ValueError:
            return None

    def _load_dataset(self, deployment: Deployment, workload: Workload, cell: Cell, place: Path) -> consistency.Tables:
        """Load MySQL's data set and keep it; return what its tables hold."""
        cell = dataclasses.replace(cell, system="mysql")
        loading = make_deployment(workload, cell, self._tools.cpus, self._tools.disk, to_load=True)
        values = self._deployment_file(loading, workload, cell, "none")
        self._play("reset", values, place)
        running = self._start(loading, values, place)
        self._loadgen("load", workload, cell, running)
        tables = self._check_load(workload, cell, running)
        self._compare_tables(deployment, tables)
        self._play("keep", values, place)
        return tables

    def _check_load(self, workload: Workload, cell: Cell, running: Running) -> consistency.Tables:
        """Return what the tables hold after loading, where the benchmark's check can tell."""
        if not workload.section(running.deployment.benchmark).alone:
            return {}
        self._doing(f"checking what was loaded into {running.deployment.label()}")
        outcome = self._call("check", workload, cell, running, running.place)
        return consistency.loaded_tables(outcome, running.place)

    def _compare_tables(self, deployment: Deployment, tables: consistency.Tables) -> None:
        """Keep what a primary store loaded; raises RunError when another one loaded something else."""
        if tables:
            label = f"{deployment.benchmark} at {deployment.data_memory_ratio:g}x"
            known = self._run.add_tables(deployment.content, family(deployment.system), tables)
            consistency.refuse_differences(known, label)

    def _deployment_file(self, deployment: Deployment, workload: Workload, cell: Cell, action: str) -> dict[str, Any]:
        return deployment_file(deployment, workload.schema_of(cell), self._datasets.absolute(), action)

    def _start(self, deployment: Deployment, values: dict[str, Any], place: Path) -> Running:
        self._up = place  # from here on something may run and has to be stopped
        self._play("deploy", values, place)
        endpoint = self._ansible.endpoint(deployment)
        if warning := control_group.warning(control_group.group_of(endpoint)):
            self._recorder.warn(warning)
        return Running(deployment, endpoint, self.lane.db.processes(endpoint.get("pids", {})), place)

    def _play(self, name: str, values: dict[str, Any], place: Path, cancellable: bool = True) -> None:
        self._let_disk_be_fast()
        log = place / ("ansible.log" if place != self._run.path else f"{name}-{self.lane.name}.log")
        self._ansible.play(name, values, log, cancellable)

    def _client(self, inside: bool = False) -> driver.Client:
        """Put loadgen on the client node, once; or the program that measures inside the engine."""
        if inside not in self._clients:
            tools = self.lane.nodes.client.node_tools
            built = self._tools.root / driver.MICRO if inside else self._tools.loadgen
            if not built.is_file():
                raise RunError(f"{built} is missing: build it with `make build`")
            program = self.lane.client.place(built, tools)
            self._clients[inside] = driver.Client(
                self.lane.client, tools, program, driver.MICRO.name if inside else driver.LOADGEN.name
            )
        return self._clients[inside]

    def _schema(self, workload: Workload, cell: Cell) -> str:
        """Put the DDL on the client node and return its path there."""
        path = workload.schema_of(cell)
        return str(self.lane.client.place(path, self._client().tools))

    def _call(self, verb: str, workload: Workload, cell: Cell, running: Running, directory: Path) -> driver.Outcome:
        """Call loadgen for what takes as long as there are rows."""
        spec = loadgen_spec(workload, cell, workload.experiment.seed, self._tools.cpus)
        spec |= {"endpoint": running.endpoint, "schema": self._schema(workload, cell)}
        section = workload.section_of(cell)
        rows = section.data(workload.values, running.deployment.data_memory_ratio).rows
        return driver.call(
            self._client(),
            verb,
            spec,
            directory,
            cancelled=self._interrupt,
            limit_s=LOAD_LIMIT_S + rows / LOAD_ROWS_PER_S,
            servers=running.servers,
            out=verb in REPORTING,
        )

    def _loadgen(
        self, verb: str, workload: Workload, cell: Cell, running: Running, directory: Path | None = None
    ) -> None:
        """Load, prewarm or quiesce; raises RunError with loadgen's last line when that fails.

        What it says goes to `directory`, by default the deployment's.
        """
        directory = directory or running.place
        memory = self._watch_memory(running)
        outcome = self._call(verb, workload, cell, running, directory)
        if outcome.stopped or outcome.exit_code != 0:
            why = outcome.stopped or outcome.last_line or f"exit code {outcome.exit_code}"
            why = memory.exceeded(running.servers.dead()) or why
            self._keep_logs(running.endpoint, directory)
            raise RunError(f"loadgen {verb} failed: {why}; log: {directory / f'loadgen-{verb}.log'}")

    def _quiesce(self, trial: Trial, running: Running, directory: Path) -> str:
        """Let the servers write what they put off, with the disk still fast: no trial pays for what came before it.

        Returns what they did. Raises RunError when it cannot be done.
        """
        workload = self._plan.workload(trial.experiment)
        if workload.section_of(trial.cell).inside:
            return ""
        self._doing(f"quiescing before {trial.cell.label()}")
        with self._timed("quiesce"):
            self._loadgen("quiesce", workload, trial.cell, running, directory)
            cached = self._cache_files(running.endpoint.get("cached_files", []))
        return str(read_json(directory / "quiesce.json")["summary"]) + cached

    def _cache_files(self, files: list[str]) -> str:
        """Read files of a server into the DB node's page cache, which its memory limit allows for; say so.

        A node may have dropped them since the restore: then each write of a part of a page waits for a read.
        """
        if not files:
            return ""
        command = ["sh", "-c", 'cat -- "$@" > /dev/null', "sh", *files]
        try:
            done = self.lane.db.run(command, CACHE_LIMIT_S)
        except OSError as error:
            raise RunError(f"{files[0]} cannot be read into the page cache: {one_line(error)}") from None
        if done["exit_code"] != 0:
            raise RunError(f"{files[0]} cannot be read into the page cache: {one_line(RunError(done['stderr']))}")
        return f"; read into the page cache: {', '.join(Path(file).name for file in files)}"

    # -- trials -----------------------------------------------------------------------------------------------

    def _measure(self, trial: Trial, running: Running) -> bool:
        """Run one trial and record it; returns False when the deployment cannot serve another one."""
        try:
            directory = self._run.begin(trial.hash)
            quiesced = self._quiesce(trial, running, directory)
            self._doing(trial.cell.label(), trial.hash, trial.spec["warmup_s"] + trial.spec["measure_s"])
            result, healthy = self._run_trial(trial, running, directory, quiesced)
            if result["status"] == "failed":
                self._keep_logs(running.endpoint, directory)
            self._run.commit(trial.hash)
        except LostNodeError as error:
            self._recorder.failure(trial, one_line(error), self.lane, running.place.name)
            raise
        except (OSError, RunError) as error:
            reason = disk_reason(error) if isinstance(error, OSError) else one_line(error)
            self._recorder.failure(trial, reason, self.lane, running.place.name)
            self._took_s = {}
            # What failed beside the recording may have left the system in any state.
            return isinstance(error, OSError) and not running.servers.dead()
        self._recorder.report(trial, result, self.lane)
        return healthy

    def _run_trial(self, trial: Trial, running: Running, directory: Path, quiesced: str) -> tuple[dict[str, Any], bool]:
        """Measure and write the record; return the result, and whether the deployment can serve another trial."""
        db, pids = self.lane.db, running.servers.pids
        write_json(directory / "spec.json", self._recorder.spec(trial, running.deployment))
        started = datetime.now(UTC)
        load = {host.name: host.load_average() for host in (db, self.lane.client)}
        unreset = db.reset_memory_peaks(pids)
        group = self._watch_memory(running).reset_peak()
        measured = self._call_run(trial, running, directory)
        memory, dead = db.memory_of(pids), running.servers.dead()
        result = judge(directory, measured.outcome, dead, pids)
        if group.exceeded(dead) and not dead:
            time.sleep(KILL_GRACE_S)  # who was killed takes a moment to be gone, and is then named
            dead = running.servers.dead()
        exceeded = group.exceeded(dead)
        if exceeded:
            result |= {"status": "failed", "reason": exceeded}
        result = self._judge_conditions(result, trial, running, measured)
        control = group.record()
        result, dead = self._look_afterwards(result, dead, trial, running, directory)
        write_json(directory / "result.json", result)
        profile = running.deployment.values["disk"]["profile"]
        environment = self._recorder.environment(self.lane, running.endpoint, result, started, profile=profile)
        environment |= {
            "took_s": {name: round(s, 3) for name, s in self._took_s.items()},
            "quiesced": quiesced,
            "node_bytes": self._node_bytes(running.deployment),
            "load_average_before": load[db.name],
            "client_load_average_before": load[self.lane.client.name],
            "memory": {"processes": memory, "peak_not_reset": unreset},
            "server_cpu": measured.server_cpu,
            "machine_cpu": measured.machine_cpu,
            "control_group": control,
            "disk": {
                **running.deployment.values["disk"],
                "self_test": self._disk_tests.get(profile, []),
                "observed": measured.observed.stats,
            },
        }
        self._took_s = {}
        write_json(directory / "environment.json", environment)
        return result, not dead and not exceeded

    def _call_run(self, trial: Trial, running: Running, directory: Path) -> Measured:
        """Let the clients run the trial, and watch what the disk and the CPUs do meanwhile."""
        db, pids = self.lane.db, running.servers.pids
        limit_s = trial.spec["warmup_s"] + trial.spec["measure_s"]
        limit_s += driver.TRIAL_SLACK_S + 0.5 * limit_s
        workload = self._plan.workload(trial.experiment)
        section = workload.section_of(trial.cell)
        profile = running.deployment.values["disk"]["profile"]
        # The disk's lateness says nothing about what does not use it.
        measuring = self._disk(profile).measuring() if section.uses_disk else contextlib.nullcontext(disk.Observed())
        with measuring as observed, self._timed("run"):
            nodes = {"dbms": db} if self.lane.client is db else {"dbms": db, "clients": self.lane.client}
            nodes_before = {role: host.cpu_times() for role, host in nodes.items()}
            cpu_before, asked_at = db.cpu_of(pids), time.monotonic()
            outcome = driver.call(
                self._client(section.inside),
                "run",
                {**trial.spec, "endpoint": running.endpoint, "schema": self._schema(workload, trial.cell)},
                directory,
                cancelled=self._interrupt,
                limit_s=limit_s,
                servers=running.servers,
                out=True,
            )
            cpu = servers_cpu(cpu_before, db.cpu_of(pids), time.monotonic() - asked_at)
            nodes_cpu = machines_cpu(nodes, nodes_before)
        return Measured(outcome, cpu, nodes_cpu, observed)

    def _judge_conditions(
        self, result: dict[str, Any], trial: Trial, running: Running, measured: Measured
    ) -> dict[str, Any]:
        """Flag a result whose disk was unlike its model, or whose engine did not run with what was asked for."""
        untimed = self._plan.workload(trial.experiment).section_of(trial.cell).untimed_operations
        tests = self._disk_tests.get(running.deployment.values["disk"]["profile"], [])
        result = disk.judge(result, disk.without(measured.observed.stats, untimed), tests)
        asked = {**running.deployment.values["engine"], **trial.spec.get("engine_settings", {})}
        return engine.judge(result, {**asked, **trial.cell.engine_settings()})

    def _look_afterwards(
        self, result: dict[str, Any], dead: list[str], trial: Trial, running: Running, directory: Path
    ) -> tuple[dict[str, Any], list[str]]:
        """Check the database, and record what the engine says of itself; return the result and the dead servers."""
        workload = self._plan.workload(trial.experiment)
        if workload.section_of(trial.cell).alone and result["status"] != "failed":
            self._doing(f"checking {trial.cell.label()}", trial.hash)
            with self._timed("check"):
                checked = self._call("check", workload, trial.cell, running, directory)
            dead = running.servers.dead()
            result = consistency.judge(result, checked, dead, directory)
        if (most := workload.experiment.describe) and family(running.deployment.system) == "anticache" and not dead:
            description.record(self.lane.db, running.endpoint, running.deployment.values["partitions"], most, directory)
        return result, dead

    def _node_bytes(self, deployment: Deployment) -> dict[str, int]:
        """Return what the kept data set and the deployed system take of the DB node's own file system."""
        root, db = self.lane.nodes.db.node_root, self.lane.db
        places = [*(root / name for name in SYSTEM_DIRECTORIES), self.lane.nodes.db.disk_directory]
        dataset = self._datasets / deployment.dataset
        return {"dataset": db.allocated_bytes([dataset]), "system": db.allocated_bytes(places)}

    def _watch_memory(self, running: Running) -> control_group.Watch:
        return control_group.Watch(running.endpoint, self.lane.db.read_text, self.lane.db.write_text)

    def _disk(self, profile: str) -> disk.Control:
        """Put the emulated disk's program on the DB node, once for each profile."""
        if profile not in self._disks:
            node, program = self.lane.nodes.db, ""
            if disk.is_emulated(profile):
                built = self._tools.root / disk.SPINDLE
                if not built.is_file():
                    raise RunError(f"{built} is missing: build it with `make build`")
                program = str(self.lane.db.place(built, node.node_tools))
            self._disks[profile] = disk.Control(profile, self._as_root, program, str(node.disk_directory))
        return self._disks[profile]

    def _let_disk_be_fast(self) -> None:
        """Take an emulated disk out of mode ``model``, where a trial that was cut off left it: servers stop on it."""
        node, program = self.lane.nodes.db, self._tools.root / disk.SPINDLE
        if program.is_file() and "spindle.json" in self.lane.db.entries(node.disk_directory):
            placed = str(self.lane.db.place(program, node.node_tools))
            try:
                self._as_root([placed, "mode", str(node.disk_directory), "bypass"], disk.COMMAND_LIMIT_S)
            except LostNodeError:
                raise
            except RunError:
                pass  # no daemon answers: nothing waits for it then

    def _as_root(self, argv: list[str], limit_s: float) -> str:
        """Run a command on the DB node, through sudo where the inventory says so."""
        node = self.lane.nodes.db
        # What runs through sudo cannot be ended from here.
        command = ["sudo", "-n", "timeout", "--kill-after=5", f"{limit_s:.0f}", *argv] if node.become else argv
        try:
            done = self.lane.db.run(command, limit_s + 15.0)
        except OSError as error:
            raise RunError(f"{' '.join(argv[:2])} on {node.name}: {one_line(error)}") from None
        if done["exit_code"] != 0:
            said = " ".join((done["stderr"] or done["stdout"]).split())[-600:]
            raise RunError(f"{' '.join(argv[:2])} on {node.name}: {said or 'exit code ' + str(done['exit_code'])}")
        return str(done["stdout"])

    def _keep_logs(self, endpoint: dict[str, Any], directory: Path) -> None:
        """Copy the ends of the servers' logs beside the record of a failure."""
        for number, name in enumerate(endpoint.get("logs", [])):
            text = self.lane.db.tail(Path(name), LOG_TAIL_LINES)
            if text:
                with contextlib.suppress(OSError):
                    write_text(directory / f"server-{number}-{Path(name).stem}.log", text + "\n")

    def _doing(self, text: str, trial: str = "", expected_s: float | None = None) -> None:
        self._recorder.progress.doing(text, lane=self.lane.name, trial=trial, expected_s=expected_s)
