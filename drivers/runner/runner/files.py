"""Writing files so that a crash leaves the old or the new content, never half of it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` atomically: temporary name, sync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as readable JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def tail(path: Path, lines: int = 200, limit_bytes: int = 65536) -> str:
    """Return the last `lines` lines of a log, reading at most `limit_bytes`; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
