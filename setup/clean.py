"""Stops the servers that were started from this checkout and removes what runs leave behind: `make clean`.

Says what it removes; asks nothing. Figures and tables that were committed (results/reference, results/published), the
Python environment, the build and the unpacked servers stay. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STOP_TIMEOUT_S = 60.0

sys.path.insert(0, str(ROOT / "ansible" / "module_utils"))
import daemons  # noqa: E402  (the repository's own, beside the roles that start the servers)


def stop_servers(node_root: Path) -> list[str]:
    """Stops every server recorded under the node root; returns what went wrong, one text per server."""
    problems = []
    for state_path in sorted(node_root.glob("*/*.daemon.json")):
        name = state_path.name.removesuffix(".daemon.json")
        try:
            if daemons.stop(state_path, STOP_TIMEOUT_S):
                print(f"clean: stopped {name}")
        except daemons.DaemonError as error:
            problems.append(str(error))
    return problems


def size_bytes(path: Path) -> int:
    """Bytes that a file or a directory tree occupies on disk."""
    trees = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
    return sum(entry.lstat().st_blocks * 512 for entry in trees)


def remove(path: Path) -> None:
    """Removes a file, link or tree, if it is there, and says so."""
    if not os.path.lexists(path):
        return
    print(f"clean: removing {path} ({size_bytes(path) / 1e6:.0f} MB)")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> int:
    """Entry point; 1 when a server could not be stopped cleanly (its data are removed all the same)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="where results were written")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    options = parser.parse_args()
    problems = stop_servers(options.root / "var")
    work = options.root / ".tools" / "work"  # of a trial whose runner was killed
    for path in (options.root / "var", work, options.results / "runs", options.results / "latest"):
        remove(path)
    for problem in problems:
        print(f"clean: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
