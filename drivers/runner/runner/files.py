"""Writing files so that a crash leaves the old or the new content, never half of it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Replace `path` by `text` atomically: temporary name, sync, rename, sync of the directory.

    What is not `durable` may be lost by a power cut, then as a whole or to nothing; a crash of the program loses none.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def sync(path: Path) -> None:
    """Make a file's content, or the names in a directory, survive a power cut; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Make everything in a directory survive a power cut, its own name apart; raises OSError."""
    for path in directory.rglob("*"):
        if not path.is_symlink():
            sync(path)
    sync(directory)


def rename(path: Path, to: Path) -> None:
    """Rename in one step that survives a power cut; what the name stands for was synced before."""
    path.rename(to)
    sync(to.parent)
    if path.parent != to.parent:
        sync(path.parent)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """Replace `path` by `value` as readable JSON, atomically; `durable` as for `write_text`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", durable)


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
