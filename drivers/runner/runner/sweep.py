"""Carries out trials on all lanes at once: each takes the next batch of the plan as soon as it is free.

A lane that loses a node ends; what it had not begun goes back to the queue for the others. Only an interruption ends
the sweep before its time, and then what was started is stopped and what was measured is kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from runner import sameness
from runner.hosts import LostNodeError
from runner.interrupt import Interrupt
from runner.judge import one_line
from runner.lane import Batch, LaneWorker
from runner.plan import Plan, Trial
from runner.recording import Recorder, Summary, Tools

__all__ = ["Queue", "Summary", "Sweep", "Tools"]

LOOK_S = 0.5  # between looks at an interruption while a lane waits for work


class Queue:
    """Batches in the plan's order, for several lanes."""

    def __init__(self, batches: Iterable[Batch], stopped: Callable[[], bool]) -> None:
        """Hold `batches`; when `stopped` says so, none is given out any more."""
        self._waiting = deque(batches)
        self._stopped = stopped
        self._out = 0
        self._changed = threading.Condition()

    def take(self) -> Batch | None:
        """Return the next batch; None when there will be none any more.

        While another lane still works on one, it may come back from there: so long a lane waits.
        """
        with self._changed:
            while not self._stopped():
                if self._waiting:
                    self._out += 1
                    return self._waiting.popleft()
                if self._out == 0:
                    return None
                self._changed.wait(LOOK_S)
            return None

    def done(self) -> None:
        """Say that a batch which was taken is done with."""
        with self._changed:
            self._out -= 1
            self._changed.notify_all()

    def give_back(self, batch: Batch) -> None:
        """Put what is left of a batch before all others: it was planned before them."""
        with self._changed:
            if batch.pending:
                self._waiting.appendleft(batch)
        self.done()

    def rest(self) -> list[Trial]:
        """Return the trials that nobody took."""
        return [trial for batch in self._waiting for trial in batch.pending]


class Sweep:
    """Executes the trials of one call against one run directory, on one or several lanes."""

    def __init__(self, plan: Plan, workers: list[LaneWorker], recorder: Recorder, interrupt: Interrupt) -> None:
        """Prepare; nothing starts before `execute`."""
        self._plan, self._workers = plan, workers
        self._recorder, self._interrupt = recorder, interrupt
        self._broken = False  # by a defect: the other lanes then end after their batch
        self._losses: list[str] = []

    def execute(self, trials: list[Trial]) -> Summary:
        """Run `trials` in order and return what came out; raises RunError when a lane cannot be cleared before."""
        batches = [Batch(deployment, on_it) for deployment, on_it in self._plan.batches(trials)]
        queue = Queue(batches, lambda: self._interrupt() or self._broken)
        self._prepare()
        self._on_all(lambda worker: self._work(worker, queue))
        if not self._interrupt():
            for trial in queue.rest():
                self._recorder.failure(trial, f"no lane is left: {'; '.join(self._losses)}", None)
        self._recorder.summary.interrupted = self._interrupt()
        return self._recorder.summary

    def _on_all(self, task: Callable[[LaneWorker], None]) -> None:
        """Run a task for every lane at once; what one raises is raised when all have ended."""
        if len(self._workers) < 2:  # noqa: PLR2004 - without threads where there is nothing to run side by side
            for worker in self._workers:
                task(worker)
            return
        with ThreadPoolExecutor(len(self._workers), thread_name_prefix="lane") as pool:
            ends = [pool.submit(task, worker) for worker in self._workers]
        for end in ends:
            end.result()

    def _prepare(self) -> None:
        """Clear every lane and test its disk; one that loses a node ends here, the others go on.

        Raises RunError for a lane that cannot be cleared or whose disk is unlike its profile, or unlike the others.
        """
        figures: dict[str, dict[str, float]] = {}

        def prepare(worker: LaneWorker) -> None:
            try:
                worker.clean_slate()
                figures[worker.lane.db.name] = worker.test_disk()
            except LostNodeError as error:
                self._lose(worker, error)

        self._on_all(prepare)
        self._workers = [worker for worker in self._workers if worker.lane.db.name in figures]
        if figures:
            sameness.refuse_unlike_disks(figures)

    def _work(self, worker: LaneWorker, queue: Queue) -> None:
        """Let a lane take batches until there are none, or until it loses a node."""
        try:
            while (batch := queue.take()) is not None:
                try:
                    worker.serve(batch)
                    queue.done()
                except LostNodeError as error:
                    self._lose(worker, error)
                    queue.give_back(batch)
                    return
        except BaseException:
            self._broken = True
            queue.done()
            raise
        finally:
            worker.bring_down()

    def _lose(self, worker: LaneWorker, error: LostNodeError) -> None:
        said = one_line(error)
        self._losses.append(said)
        text = f"lane {worker.lane.name} ended: {said}"
        self._recorder.progress.say(text)
        self._recorder.run.add_warnings([text])
