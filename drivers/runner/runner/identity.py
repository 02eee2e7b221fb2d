"""Which code measured, on what: what makes trials comparable, and what refuses to mix those that are not."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPING_MODULES = (
    "agent",
    "benchmarks/micro",
    "benchmarks/tpcc",
    "benchmarks/ycsb",
    "consistency",
    "control_group",
    "deploy",
    "disk",
    "driver",
    "engine",
    "hosts",
    "judge",
    "lane",
    "machine",
    "plan",
    "sweep",
)
# A change of these can change a measured number; a change elsewhere (documents, notebooks, tests, tables) cannot, nor
# one of the documents and tests among them, so it does not end a run that could be continued. Inventories are told
# apart by their own content, see `Key`.
SHAPING_PATHS = (
    "ansible",
    "anticache-engine",
    "drivers/loadgen",
    "drivers/micro",
    "drivers/spindle",
    "Cargo.toml",
    "Cargo.lock",
    "workloads/schemas",
    *(f"drivers/runner/runner/{name}.py" for name in SHAPING_MODULES),
    ":(exclude)ansible/inventories",
    ":(exclude,glob)**/tests/**",
    ":(exclude,glob)**/tests.rs",
    ":(exclude,glob)**/*.md",
    ":(exclude,glob)anticache-engine/*.json",  # what its benchmarks measured
)
DIGITS = 16
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Code:
    """Which code measured: commit, dirty flag, and a digest of only what can shape a number."""

    commit: str
    dirty: bool
    shaping: str


def digest_of(parts: Mapping[str, str]) -> str:
    """Hash names with their contents' digests, shortened to 64 bits of hex."""
    text = "\n".join(f"{name} {parts[name]}" for name in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def shaping_files(root: Path) -> dict[str, str]:
    """Return the digest of every file that shapes a number, as it is in the checkout; empty in a tree without git.

    Contents, not commits: committing what was measured does not make it another code.
    """
    try:
        listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *SHAPING_PATHS)
    except (OSError, subprocess.CalledProcessError):
        return {}
    names = sorted({name for name in listed.split("\0") if name})
    return {name: sha256(root / name)[:DIGITS] for name in names if (root / name).is_file()}


def code_identity(root: Path) -> Code:
    """Ask git about the checkout at `root`; a tree without git counts as dirty, its commit as ``unknown``."""
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        dirty = bool(_git(root, "status", "--porcelain", "--untracked-files=normal").strip())
    except (OSError, subprocess.CalledProcessError):
        return Code(UNKNOWN, True, UNKNOWN)
    return Code(commit, dirty, digest_of(shaping_files(root)))


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=16)
def _sha256_of_version(path: Path, _modified_ns: int, _size_bytes: int) -> str:
    return sha256(path)


def binaries(programs: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of each program, hashed once per version of the file; ``unknown`` where it cannot be read."""
    found = {}
    for name, path in programs.items():
        try:
            status = path.stat()
            found[name] = _sha256_of_version(path, status.st_mtime_ns, status.st_size)
        except OSError:
            found[name] = UNKNOWN
    return found


def stale_binary(path: Path) -> str:
    """Say that a binary is older than a source file that it is built from; empty when it is not.

    Cargo lists the sources in a file beside the binary; without that list nothing is said.
    """
    try:
        built_ns = path.stat().st_mtime_ns
        listed = path.with_suffix(".d").read_text(encoding="utf-8").partition(": ")[2]
    except OSError:
        return ""
    sources = [Path(name.replace("\\ ", " ")) for name in re.split(r"(?<!\\)\s+", listed.strip()) if name]
    newer = sorted(str(source) for source in sources if source.is_file() and source.stat().st_mtime_ns > built_ns)
    if not newer:
        return ""
    more = f" and {len(newer) - 1} more" if len(newer) > 1 else ""
    return f"{path} is older than its source {newer[0]}{more}: build it with `make build`"


def inventory_digest(path: Path) -> str:
    """Hash an inventory: a directory's files, or one file with the variables that Ansible reads from beside it."""
    root, files = path, list(path.rglob("*"))
    if path.is_file():
        root = path.parent
        files = [path, *(f for name in ("group_vars", "host_vars") for f in (root / name).rglob("*"))]
    return digest_of({str(file.relative_to(root)): sha256(file) for file in files if file.is_file()})


def variables_digest(variables: Mapping[str, Any]) -> str:
    """Hash the variables that override the inventory's; a digest, because one of them may be a password."""
    return digest_of({name: repr(value) for name, value in variables.items()})
