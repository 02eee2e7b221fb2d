"""Files that a server needs before it starts: its configuration, and the data directory that it finds.

Only the standard library is used: these functions run on the node, under whatever Python it has (>= 3.9).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NodeFileError(Exception):
    """A file or a directory could not be made; the message names it, and why."""


@dataclass(frozen=True)
class NodeFile:
    """A text file as it is wanted."""

    path: Path
    content: str
    mode: int = 0o644

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> NodeFile:
        """From a module's arguments, where the mode is text in octal digits; raises ValueError for another mode."""
        return cls(Path(options["path"]), options["content"], int(options["mode"], 8))

    def is_there(self) -> bool:
        """Whether the file has this content and this mode."""
        try:
            status = self.path.stat()
            return status.st_mode & 0o7777 == self.mode and self.path.read_bytes() == self.content.encode()
        except OSError:
            return False

    def write(self) -> None:
        """Put the file in its place in one step, with its mode from the first byte on; raises NodeFileError."""
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.mode), "wb") as file:
                os.fchmod(file.fileno(), self.mode)  # whatever the umask
                file.write(self.content.encode())
            partial.replace(self.path)
        except OSError as error:
            raise NodeFileError(f"{self.path} cannot be written: {error.strerror}") from error


@dataclass(frozen=True)
class DataDirectory:
    """What a server is to find in its data directory when it starts."""

    path: Path
    source: str  # a directory that is copied when there is none; empty: the server makes its own
    fresh: bool  # what is there goes first

    def prepare(self) -> bool:
        """Bring it about; returns whether anything changed. Raises NodeFileError."""
        try:
            removed = self.fresh and self.path.exists()
            if removed:
                shutil.rmtree(self.path)
            if not self.source or self.path.exists():
                return removed
            self._copy()
        except OSError as error:
            raise NodeFileError(f"{error.filename or self.path}: {error.strerror}") from error
        return True

    def _copy(self) -> None:
        """Copy the source aside, then rename the complete copy.

        Synced, so that the kernel does not write the copy back while somebody is measured; without holes, as the server
        had written its files, or their pages would be allocated meanwhile.
        """
        if not Path(self.source).is_dir():
            raise NodeFileError(f"{self.path} cannot be filled: no data directory at {self.source}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.new")
        shutil.rmtree(partial, ignore_errors=True)
        for command in (["cp", "-a", "--sparse=never", self.source, str(partial)], ["sync", "-f", str(partial)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
                raise NodeFileError(f"{self.path} cannot be filled: {' '.join(command)}: {said}")
        partial.rename(self.path)
