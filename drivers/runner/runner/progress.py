"""How far a sweep is: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runner.heartbeat import Heartbeat


def duration(seconds: float) -> str:
    """Write seconds as people say them: ``40 s``, ``12 min``, ``8 h 30 min``."""
    if seconds < 90:  # noqa: PLR2004 - below a minute and a half minutes are too coarse
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:  # noqa: PLR2004
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


class SweepProgress:
    """Reports trials as they end; the time left is the estimate corrected by what the sweep really took so far."""

    def __init__(
        self,
        total: int,
        estimated_s: float,
        console: Console | None = None,
        lanes: int = 1,
        *,
        costs: Mapping[str, float] | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """Expect `total` trials in about `estimated_s` seconds; with several `lanes`, lines name theirs.

        `costs` say by trial which part of the whole each is (in any unit): without them all are alike.
        """
        self._lanes, self._costs, self._heartbeat = lanes, dict(costs or {}), heartbeat
        self._whole = sum(self._costs.values()) or float(total)
        self._part_done = 0.0
        self._doing: dict[str, str] = {}
        self._lock = threading.Lock()
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._total, self._done = total, 0
        self._estimated_s = max(estimated_s, 1.0)
        self._started = time.monotonic()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]} left"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, left=duration(self._estimated_s))

    def __enter__(self) -> SweepProgress:
        """Show the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()

    def say(self, text: str) -> None:
        """Print one line above the bar; a terminal that is gone disturbs nobody, for all is recorded."""
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False)

    def doing(self, text: str, lane: str = "", trial: str = "", expected_s: float | None = None) -> None:
        """Say what is going on now on a lane; on a terminal beside the bar, else as a line.

        `trial` is the hash of the trial that it is for, `expected_s` how long it takes, where that is known.
        """
        if self._heartbeat is not None:
            self._heartbeat.doing(text, lane, trial, expected_s)
        with self._lock:
            self._doing[lane] = text
            if self._bar is not None:
                self._bar.update(
                    self._task, description=" | ".join(map(self._named, self._doing.values(), self._doing))
                )
            else:
                self.say(f"{self._stamp()} {self._named(text, lane)}")

    def trial_done(self, label: str, outcome: str, lane: str = "", trial: str = "") -> None:
        """Count one trial, by its hash where the costs are known by it, and print its outcome."""
        with self._lock:
            self._done += 1
            self._part_done += self._costs.get(trial, 0.0) if self._costs else 1.0
            if self._heartbeat is not None:
                self._heartbeat.done(self._done, self.seconds_left())
            left = duration(self.seconds_left())
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done, left=left)
            self.say(f"{self._stamp()} {self._named(label, lane)}: {outcome}; {left} left")

    def _named(self, text: str, lane: str) -> str:
        return f"{lane}: {text}" if self._lanes > 1 and lane else text

    def seconds_left(self) -> float:
        """Estimate the seconds to the end, from the estimate's share that is done and the time it really took."""
        elapsed = time.monotonic() - self._started
        share = min(1.0, self._part_done / self._whole) if self._done < self._total else 1.0
        planned_left = self._estimated_s * (1 - share)
        # The first trials say little about the whole (a data set is loaded before them): trust them by and by.
        pace = elapsed / (self._estimated_s * share) if share > 0 else 1.0
        return planned_left * (pace * share + 1.0 * (1 - share))

    def _stamp(self) -> str:
        width = len(str(self._total))
        return f"[{self._done:{width}d}/{self._total}]"
