"""Stops the servers that were started from this checkout and removes what runs leave behind: `make clean`, `make stop`.

Says what it removes; asks nothing. Figures and tables that were committed (results/reference, results/published), the
Python environment, the build and the unpacked servers stay. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STOP_TIMEOUT_S = 60.0
AS_ROOT = () if os.geteuid() == 0 else ("sudo", "-n")

sys.path.insert(0, str(ROOT / "ansible" / "module_utils"))
import daemons  # noqa: E402  (the repository's own, beside the roles that start the servers)


def stop_servers(node_root: Path) -> list[str]:
    """Stops every server recorded under the node root; returns what went wrong, one text per server."""
    problems = []
    for state_path in daemons.files_of_servers(node_root, "*.daemon.json"):
        name = state_path.name.removesuffix(".daemon.json")
        try:
            if daemons.stop(state_path, STOP_TIMEOUT_S):
                print(f"clean: stopped {name}")
        except daemons.DaemonError as error:
            problems.append(str(error))
    return problems


def mounts_below(place: Path) -> list[str]:
    """Mount points below a directory, the innermost first."""
    escaped = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    points = [point.encode("ascii", "backslashreplace").decode("unicode_escape") for point in escaped]
    return sorted((p for p in points if Path(p).is_relative_to(place)), key=len, reverse=True)


def let_disk_be_fast(node_root: Path, spindle: Path) -> None:
    """Takes an emulated disk out of the mode in which it is as slow as its profile: servers are about to stop on it."""
    if (node_root / "disk" / "spindle.json").exists() and spindle.exists():
        subprocess.run([*AS_ROOT, spindle, "mode", node_root / "disk", "bypass"], capture_output=True, check=False)


def unmount_disk(node_root: Path, spindle: Path) -> list[str]:
    """Takes an emulated disk away; returns why that failed, and what is still mounted: none of it is removed then."""
    problems = []
    if (node_root / "disk" / "spindle.json").exists():
        try:
            done = subprocess.run(
                [*AS_ROOT, spindle, "unmount", node_root / "disk"], capture_output=True, text=True, check=False
            )
            said = (done.stderr or done.stdout).strip() if done.returncode else ""
        except OSError as error:
            said = f"{spindle}: {error.strerror}; build it with `make build`"
        problems += [f"the emulated disk in {node_root / 'disk'} was not unmounted: {said}"] if said else []
    still = mounts_below(node_root.resolve())
    problems += [f"{point} is still mounted: unmount it (umount {point}), then again" for point in still]
    return problems


def remove_firewall(node_root: Path) -> list[str]:
    """Removes the nftables table that the role `firewall` noted under the node root; returns what went wrong."""
    try:
        table = (node_root / "firewall-table").read_text(encoding="ascii").strip()
    except OSError:
        return []
    program = shutil.which("nft") or "/usr/sbin/nft"
    command = [*AS_ROOT, program, "--file", "-"]
    transaction = f"add table inet {table}\ndelete table inet {table}\n"
    try:
        done = subprocess.run(command, input=transaction, capture_output=True, text=True, check=False, timeout=60)
        said = "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said:
        return [f"the firewall's table stays ({said}): remove it with `sudo nft delete table inet {table}`"]
    print(f"clean: removed the nftables table {table}")
    return []


def runner_at_work(node_root: Path) -> str:
    """Says which runner uses the node now, from its lock (INTERFACES.md); empty where none does."""
    try:
        with (node_root / "runner.lock").open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return ""
    except BlockingIOError:
        text = (node_root / "runner.lock").read_text(encoding="utf-8")
        try:
            return f"process {json.loads(text)['pid']} is measuring here: end it first with `kill -INT` and that number"
        except (ValueError, KeyError, TypeError):
            return "a runner has just begun here: end it first"
    return ""


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
        if AS_ROOT and (path / "disk").is_dir():  # made through sudo
            subprocess.run([*AS_ROOT, "rm", "-rf", path / "disk"], check=False)
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> int:
    """Entry point; 1 when a server was not stopped cleanly (its data go all the same) or a disk stays mounted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="where results were written")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    parser.add_argument("--servers", action="store_true", help="only stop the servers and take the disk away")
    options = parser.parse_args()
    node_root = options.root / "var"
    if at_work := runner_at_work(node_root):
        print(f"clean: {at_work}", file=sys.stderr)
        return 1
    let_disk_be_fast(node_root, ROOT / "target" / "release" / "spindle")
    problems = stop_servers(node_root) + remove_firewall(node_root)
    mounted = unmount_disk(node_root, ROOT / "target" / "release" / "spindle")
    work = options.root / ".tools" / "work"  # of a trial whose runner was killed
    left = (*(() if mounted else (node_root,)), work, options.results / "runs", options.results / "latest")
    for path in () if options.servers else left:
        remove(path)
    problems += mounted
    for problem in problems:
        print(f"clean: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
