"""``progress.json``: what a sweep does now, for whoever looks from another terminal (`runner.status`).

Written when something begins or ends, never while a trial is measured, in one step; a power cut may lose the newest.
The runner is told from another process with its id by when it started, and from one of another boot by the boot.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.agent import boot_id, start_ticks
from runner.files import read_json, write_json

FILE = "progress.json"
FORMAT = 1
FINISHED, INTERRUPTED = "finished", "interrupted"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Heartbeat:
    """Keeps ``progress.json`` of a run; a failure to write it disturbs nobody."""

    def __init__(self, run: Path, sitting: str, total: int, seconds_left: float) -> None:
        """Begin with `total` trials to do, which will take about `seconds_left`."""
        self._path = run / FILE
        self._lock = threading.RLock()  # lanes, and whoever interrupts one of them
        self._told: dict[str, Any] = {
            "format": FORMAT,
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "boot_id": boot_id(),
            "host": platform.node(),
            "sitting": sitting,
            "began_at": _now(),
            "updated_at": "",
            "total": total,
            "done": 0,
            "seconds_left": seconds_left,
            "left_at": _now(),
            "lanes": {},
            "end": "",
        }
        self._how = FINISHED

    def __enter__(self) -> Heartbeat:
        """Say that it begins."""
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Say how it ended."""
        if kind is not None:
            self._how = f"failed: {' '.join(str(error).split()) or kind.__name__}"
        self._tell(lanes={}, end=self._how)

    @property
    def how(self) -> str:
        """Return how it ended, or would if it ended now."""
        return self._how

    def interrupted(self) -> None:
        """Let the end be that of an interruption."""
        self._how = INTERRUPTED

    def doing(self, text: str, lane: str, trial: str = "", expected_s: float | None = None) -> None:
        """Say what a lane does now, for about how long where that is known, and for which trial."""
        with self._lock:
            now = {"doing": text, "since": _now(), "trial": trial, "expected_s": expected_s}
            self._tell(lanes={**self._told["lanes"], lane: now})

    def done(self, count: int, seconds_left: float) -> None:
        """Say how many trials are done, and how long the others will take."""
        self._tell(done=count, seconds_left=seconds_left, left_at=_now())

    def _tell(self, **told: Any) -> None:
        with self._lock:
            self._told |= told
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            write_json(self._path, {**self._told, "updated_at": _now()}, durable=False)


def read(run: Path) -> dict[str, Any]:
    """Return what the last runner of a run told; empty where none did, or another version of this program."""
    try:
        found = dict(read_json(run / FILE))
    except (OSError, ValueError, TypeError):
        return {}
    return found if found.get("format") == FORMAT else {}


def lives(told: dict[str, Any]) -> bool | None:
    """Tell whether the runner that told this is still there; None when that cannot be seen from this machine."""
    if told["boot_id"] != boot_id():
        return False if told["host"] == platform.node() else None
    ticks = start_ticks(int(told["pid"]))
    return ticks is not None and ticks == told["start_ticks"]
