"""The control group of a deployed system: its peak, its limit, and whether the system exceeded it.

Ansible makes the group and leaves the paths of the kernel's files in endpoint.json (INTERFACES.md). Everything here
works on those through `read` and `write`, so that the node may be another machine than this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Read = Callable[[str], str | None]
"""Content of a file of the node; None when it cannot be read."""
Write = Callable[[str, str], bool]
"""Write a file of the node; False when that is refused."""

SINCE_RESET, SINCE_START = "reset", "start"

V1, V2 = 1, 2

NAMES = {V1: ("total_rss", "total_cache"), V2: ("anon", "file")}
"""Anonymous memory and page cache in ``memory.stat``; in version 1 with those of the groups below."""


def read_local(path: str) -> str | None:
    """Read a file of this machine."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return None


def write_local(path: str, text: str) -> bool:
    """Write a file of this machine."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError:
        return False
    return True


def group_of(endpoint: dict[str, Any]) -> dict[str, Any]:
    """Return an endpoint's control group; one that enforces nothing where the endpoint tells of none."""
    return endpoint.get("control_group") or {
        "version": 0,
        "path": {},
        "enforced": False,
        "why_not": "the endpoint names no control group",
    }


def reset_peak(group: dict[str, Any], write: Write) -> str:
    """Set the peak back to the present size; return ``reset``, or ``start`` where it stays that since the start.

    Version 1 takes a written 0. Version 2 resets the peak for the open file that was written to only, which does not
    help a reader that opens the file anew: there the peak is that since the group was made, load included.
    """
    path = group["path"].get("peak")
    return SINCE_RESET if group["version"] == V1 and path and write(path, "0") else SINCE_START


def usage(group: dict[str, Any], read: Read) -> dict[str, int]:
    """Read peak, present size, limit and counts; what the kernel does not offer is left out.

    `peak_bytes` and `current_bytes` count anonymous memory and the page cache of files that the servers touched;
    `limit_hits` is how often the limit was met (reclaiming page cache then is no failure), `oom_kills` how often a
    process was ended for it.
    """
    if not group["enforced"]:
        return {}
    path, version = group["path"], group["version"]
    texts = {key: read(path[key]) or "" for key in path}
    found: dict[str, int | None] = {
        "peak_bytes": _number(texts.get("peak", "")),
        "current_bytes": _number(texts.get("current", "")),
        "limit_bytes": _number(texts.get("limit", "")),
        "oom_kills": _value(texts.get("events", ""), "oom_kill"),
        "limit_hits": _value(texts.get("events", ""), "max"),
    }
    if version == V1:
        hits = [_number(texts.get(key, "")) for key in ("limit_hits", "limit_hits_with_swap")]
        found["limit_hits"] = sum(hit for hit in hits if hit is not None)
    anonymous, file = NAMES[version]
    found["anonymous_bytes"] = _value(texts.get("stat", ""), anonymous)
    found["file_bytes"] = _value(texts.get("stat", ""), file)
    return {key: number for key, number in found.items() if number is not None}


def exceeded(group: dict[str, Any], before: dict[str, int], after: dict[str, int], gone: list[str]) -> str:
    """Say that the system exceeded its memory since `before`; empty when it did not. `gone`: servers that ended.

    Also when the counts cannot be read any more, because a limit that cannot be checked is not enforced.
    """
    if not group["enforced"]:
        return ""
    if "oom_kills" not in after or "limit_bytes" not in after:
        return f"the control group's files cannot be read ({', '.join(group['path'].values()) or 'none named'})"
    if after["limit_bytes"] != group["limit_bytes"]:
        return f"the memory limit was changed from {group['limit_bytes']} to {after['limit_bytes']} bytes meanwhile"
    kills = after["oom_kills"] - before.get("oom_kills", 0)
    if kills <= 0:
        return ""
    return (
        f"{' and '.join(gone) or 'a process of the system'} exceeded its memory: limit {group['limit_bytes']} bytes ="
        f" budget {group['budget_bytes']} + allowance {group['allowance_bytes']}; oom_kill {kills}"
    )


def record(group: dict[str, Any], after: dict[str, int], peak_since: str) -> dict[str, Any]:
    """Build the entry of environment.json: what was enforced, and what was used."""
    kept = ("version", "manager", "enforced", "why_not", "cpuset", "why_no_cpuset", "budget_bytes", "allowance_bytes")
    return {
        **{key: group[key] for key in kept if key in group},
        "limit_bytes": group.get("limit_bytes") if group["enforced"] else None,
        "peak_since": peak_since if group["enforced"] else "",
        "used": after,
    }


def warning(group: dict[str, Any]) -> str:
    """Say what the deployment does not enforce; empty when all is."""
    if not group["enforced"]:
        return f"memory is not enforced, only configured: {group['why_not']}"
    return "" if group["cpuset"] else f"the CPU set is the servers' affinity alone: {group['why_no_cpuset']}"


class Watch:
    """A deployment's group over one call of loadgen: made before it, asked after it."""

    def __init__(self, endpoint: dict[str, Any], reader: Read = read_local, writer: Write = write_local) -> None:
        """Read the counts."""
        self._group, self._read, self._write = group_of(endpoint), reader, writer
        self._peak_since = SINCE_START
        self._before = usage(self._group, reader)

    def reset_peak(self) -> Watch:
        """Let the recorded peak be that of this call, where the kernel can."""
        self._peak_since = reset_peak(self._group, self._write)
        return self

    def exceeded(self, gone: list[str]) -> str:
        """Say that the system exceeded its memory since; see `exceeded`."""
        return exceeded(self._group, self._before, usage(self._group, self._read), gone)

    def record(self) -> dict[str, Any]:
        """Build the entry of environment.json; see `record`."""
        after = usage(self._group, self._read)
        return {**record(self._group, after, self._peak_since), "peak_before_bytes": self._before.get("peak_bytes")}


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _value(text: str, name: str) -> int | None:
    found = re.search(rf"^{name} (\d+)$", text, re.M)
    return int(found.group(1)) if found else None
