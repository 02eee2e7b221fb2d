"""How long a plan takes and how much disk it needs: by earlier trials (`runner.history`), else by constants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from runner.benchmarks.section import Data, Section
from runner.history import History, Range, Sorts, exactly, sorts_of, sorts_of_data
from runner.plan import Deployment, Plan, Trial
from runner.systems import family
from runner.workload import Workload

# Measured on a 2-core machine without an emulated disk; they count where nothing like it was seen.
TRIAL_OVERHEAD_S = 0.5  # starting loadgen, connecting, counters, recording
DEPLOYMENT_OVERHEAD_S = 10.0  # the Ansible plays that stop one system, make a disk and start the next
PREWARM_BYTES_PER_S = 75_000_000
CHECK_ROWS_PER_S = 300_000
COPY_BYTES_PER_S = 400_000_000
RESULT_BYTES_PER_TRIAL = 64 * 1024
MYSQL_BYTES_PER_STORED_BYTE = 1.25  # tablespace with free space in its pages, doublewrite buffer, system tables
ENGINE_LOG_BYTES_PER_S = 20_000_000  # command log of a fast write-heavy trial; emptied with each deployment


@dataclass(frozen=True)
class Estimate:
    """What trials cost: seconds on all lanes together, bytes on each DB node."""

    lanes: int
    deployments: int
    disk_bytes: int
    """Beyond what is there already."""
    by_trial: dict[str, Range]
    """What each trial takes of one lane, by its hash; the first one of a start also deploying and loading."""
    deploying: Range
    loading: Range
    """Of it: what starting systems takes, and what loading data sets that are then kept."""
    unlike: int
    """Trials unlike any earlier one: of them the times are constants."""
    history: History = field(default_factory=History)

    @property
    def trials(self) -> int:
        """Return the number of trials."""
        return len(self.by_trial)

    @property
    def time(self) -> Range:
        """Return how long all of it takes."""
        return self.of(self.by_trial)

    @property
    def seconds(self) -> float:
        """Return how long all of it usually takes."""
        return self.time.usual

    def of(self, hashes: Iterable[str]) -> Range:
        """Return how long some of the trials take when all lanes share them."""
        busy = max(1, min(self.lanes, self.deployments))  # a deployment is not divided between lanes
        return _sum(self.by_trial[h] for h in hashes if h in self.by_trial).times(1 / busy)


def _sum(ranges: Iterable[Range]) -> Range:
    return reduce(add, ranges, Range())


def estimate(
    plan: Plan, trials: Iterable[Trial], kept: set[str], lanes: int = 1, history: History | None = None
) -> Estimate:
    """Estimate time, and disk per node, for `trials` on a number of equal lanes.

    `kept` names the data sets that are already loaded and kept on all of them; others each lane loads for itself.
    """
    batches = list(plan.batches(trials))
    busy = max(1, min(lanes, len(batches)))
    found = _Estimator(plan, kept, busy, history or History())
    for deployment, on_it in batches:
        found.add(deployment, on_it)
    return Estimate(
        lanes=lanes,
        deployments=len(batches),
        disk_bytes=found.disk_bytes(),
        by_trial=found.by_trial,
        deploying=found.deploying.times(1 / busy),
        loading=found.loading.times(1 / busy),
        unlike=found.unlike,
        history=found.history,
    )


class _Estimator:
    """Adds up batch by batch."""

    def __init__(self, plan: Plan, kept: set[str], busy: int, history: History) -> None:
        self._plan, self._kept, self._busy, self.history = plan, kept, busy, history
        self.by_trial: dict[str, Range] = {}
        self.deploying, self.loading = Range(), Range()
        self.unlike = 0
        self._loaded: dict[str, int] = {}
        self._system_bytes = 0

    def add(self, deployment: Deployment, on_it: list[Trial]) -> None:
        workload = self._plan.workload(on_it[0].experiment)
        section = workload.section_of(on_it[0].cell)
        data = section.data(workload.values, deployment.data_memory_ratio)
        described = {"benchmark": deployment.benchmark, "system": deployment.system, "dataset": deployment.dataset}
        described["data_memory_ratio"] = str(deployment.data_memory_ratio)
        for trial in on_it:
            self.by_trial[trial.hash] = self._trial(trial, described, section, data)
        sorts = sorts_of(on_it[0].experiment, on_it[0].cell.coordinates(), described)
        first = self._deployment(deployment, data, section, sorts[1:])
        self.deploying += first
        if family(deployment.system) == "mysql" and not section.inside:
            loading = self._dataset(deployment, data, section, sorts_of_data(described))
            self.loading += loading
            first += loading
        self.by_trial[on_it[0].hash] += first
        self._system_bytes = max(
            self._system_bytes, self._needed_bytes(deployment, workload, on_it, data, sorts=sorts[1:])
        )

    def _trial(self, trial: Trial, described: dict[str, str], section: Section, data: Data) -> Range:
        set_s = trial.spec["warmup_s"] + trial.spec["measure_s"]
        beside = self.history.look_up("beside", sorts_of(trial.experiment, trial.cell.coordinates(), described))
        if beside is None:
            self.unlike += 1
            checking_s = data.rows / CHECK_ROWS_PER_S if section.alone else 0.0
            beside = exactly(TRIAL_OVERHEAD_S + checking_s)
        return exactly(set_s) + beside

    def _deployment(self, deployment: Deployment, data: Data, section: Section, sorts: Sorts) -> Range:
        """Return what a start takes: stopping the one before, deploying, restoring or loading, prewarming."""
        seen = self.history.look_up("deployment", sorts)
        if seen is not None or section.inside:
            return seen or exactly(DEPLOYMENT_OVERHEAD_S)
        if family(deployment.system) != "mysql":
            return exactly(DEPLOYMENT_OVERHEAD_S + data.rows / section.engine_load_rows_per_s)
        warmed_bytes = min(data.stored_bytes, deployment.values["memory_budget_bytes"])
        copying_s = _mysql_bytes(data) / COPY_BYTES_PER_S
        return exactly(DEPLOYMENT_OVERHEAD_S + copying_s + warmed_bytes / PREWARM_BYTES_PER_S)

    def _dataset(self, deployment: Deployment, data: Data, section: Section, sorts: Sorts) -> Range:
        """Return what loading a data set to be kept takes, once; each lane does it for itself."""
        if deployment.dataset in self._kept or deployment.dataset in self._loaded:
            return Range()
        self._loaded[deployment.dataset] = self.history.bytes_of("dataset", sorts) or _mysql_bytes(data)
        seen = self.history.look_up("keep", sorts)
        return (seen or exactly(DEPLOYMENT_OVERHEAD_S + data.rows / section.mysql_load_rows_per_s)).times(self._busy)

    def _needed_bytes(
        self, deployment: Deployment, workload: Workload, on_it: list[Trial], data: Data, *, sorts: Sorts
    ) -> int:
        """Return what the system takes while it is deployed: restored data, log, blocks."""
        if (seen := self.history.bytes_of("system", sorts)) is not None:
            return seen
        size_bytes = _mysql_bytes(data)
        if family(deployment.system) == "mysql":
            return size_bytes + 2 * workload.values.mysql_redo_log_bytes
        section = workload.section_of(on_it[0].cell)
        writing_s = sum(section.write_share(t.cell) * (t.spec["warmup_s"] + t.spec["measure_s"]) for t in on_it)
        return size_bytes * 2 + int(2 * writing_s * ENGINE_LOG_BYTES_PER_S)

    def disk_bytes(self) -> int:
        """Return data sets that are not kept yet, the system that takes most, and what is recorded."""
        sizes = self.history.result_bytes
        results = round(sum(sizes) / len(sizes)) if sizes else RESULT_BYTES_PER_TRIAL
        return sum(self._loaded.values()) + self._system_bytes + len(self.by_trial) * results


def _mysql_bytes(data: Data) -> int:
    return int(data.stored_bytes * MYSQL_BYTES_PER_STORED_BYTE)
