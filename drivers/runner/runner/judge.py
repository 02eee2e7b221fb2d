"""What a trial came to: loadgen's result, corrected by what only the runner can see."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from runner import driver
from runner.files import read_json
from runner.store import INTERRUPTED


def judge(directory: Path, outcome: driver.Outcome, dead: list[str], pids: dict[str, int]) -> dict[str, Any]:
    """Read loadgen's result and correct its status by what only the runner can see.

    A missing or unreadable result, a loadgen that had to be ended, and a server that is gone make the trial failed.
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
        said = outcome.last_line or "it said nothing"
        reason = f"{outcome.program} left no result (exit code {outcome.exit_code}): {said}"
    if reason:
        result |= {"status": "failed", "reason": reason}
    return result


def disk_reason(error: OSError) -> str:
    """Put an I/O error while recording into words."""
    if error.errno == errno.ENOSPC:
        return f"disk full while recording {error.filename or 'the trial'}: free some space, then `make retry`"
    return f"recording failed: {error}"


def one_line(error: BaseException) -> str:
    """Put an error's message into one line."""
    return " ".join(str(error).split())
