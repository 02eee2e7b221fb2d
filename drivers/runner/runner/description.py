"""What a running engine says of its own data structures, recorded after a trial; Figures 1 to 5 are drawn from it.

``engine.json``: ``{"format": 1, "most": N, "partitions": [what `anticached describe` prints of each]}``, at most N
tuples, entries and blocks of a table (``anticache-engine/src/describe.rs`` has the keys).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.errors import RunError
from runner.files import read_json, write_json
from runner.hosts import Host, LostNodeError

FILE = "engine.json"
FORMAT = 1
LIMIT_S = 30.0


def record(host: Host, endpoint: dict[str, Any], partitions: int, most: int, directory: Path) -> None:
    """Ask the engine that serves `endpoint` on `host` and write ``engine.json``; raises RunError when it cannot."""
    found = [_describe(host, endpoint["anticache_describe"], partition, most) for partition in range(partitions)]
    write_json(directory / FILE, {"format": FORMAT, "most": most, "partitions": found})


def _describe(host: Host, command: list[str], partition: int, most: int) -> dict[str, Any]:
    argv = [*command, "--partition", str(partition), "--limit", str(most)]
    asked = f"asking the engine on {host.name} what partition {partition} holds"
    try:
        done = host.run(argv, LIMIT_S)
    except LostNodeError:
        raise
    except OSError as error:
        raise RunError(f"{asked}: {error}") from None
    if done["exit_code"] != 0:
        raise RunError(f"{asked}: {done['stderr'].strip() or 'exit code ' + str(done['exit_code'])}")
    try:
        return dict(json.loads(done["stdout"]))
    except ValueError as error:
        raise RunError(f"{asked}: its answer is no JSON: {error}") from None


def read(directory: Path) -> dict[str, Any] | None:
    """Return what was recorded of a trial, None where nothing was; raises RunError for what cannot be read."""
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        found = dict(read_json(path))
    except ValueError as error:
        raise RunError(f"{path} is no JSON: {error}; run the trial again") from None
    if found.get("format") != FORMAT:
        raise RunError(f"{path} has format {found.get('format')!r}, not {FORMAT}: run the trial again")
    return found
