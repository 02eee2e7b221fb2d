"""The disk under test: which one, what it is asked before a sweep, and what it says about each trial.

An emulated disk (drivers/spindle) is fast in mode ``bypass``, in which systems are loaded and prewarmed, and has its
profile's service times in mode ``model``, in which they are measured. ``none`` is the node's own disk as it is; the
path of a block device is a real disk, formatted at each deployment.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import InputError, RunError
from runner.yamlfile import nearest

PROFILES = Path("drivers/spindle/profiles")
NONE = "none"
LATE_SHARE_LIMIT = 0.01
"""Above this share of operations that ended late, a trial measured this machine's timers and not the disk."""
SELF_TEST_TRIES = 3
SELF_TEST_LIMIT_S = 180.0
COMMAND_LIMIT_S = 60.0  # a change of mode writes at most the emulated write cache to the image

Run = Callable[[list[str], float], str]
"""Runs a command on the DB node within so many seconds and returns what it printed; raises RunError."""


@dataclass(frozen=True)
class Disk:
    """What ``DISK`` names."""

    profile: str
    rotational: bool
    """Whether it seeks: decides two settings of MySQL (roles/mysql)."""

    @property
    def emulated(self) -> bool:
        """Whether drivers/spindle serves it."""
        return self.profile != NONE and not self.profile.startswith("/dev/")

    def values(self, region_bytes: int) -> dict[str, Any]:
        """Return the deployment file's ``disk``: the region is the emulated disk's size, 0 for another disk."""
        region = region_bytes if self.emulated else 0
        return {"profile": self.profile, "region_bytes": region, "rotational": self.rotational}


NODE_DISK = Disk(NONE, rotational=False)
"""The node's own disk, taken for flash."""


def choose(name: str, root: Path) -> Disk:
    """Return the disk that `name` means; raises InputError with the profiles that there are."""
    if name == NONE:
        return NODE_DISK
    if name.startswith("/dev/"):
        return Disk(name, rotational=True)
    present = sorted(p.stem for p in (root / PROFILES).glob("*.toml"))
    if name not in present:
        allowed = ", ".join([*(p for p in present if p != NONE), NONE, "/dev/NAME (a real disk)"])
        raise InputError(f"DISK={name}: there is no such disk{nearest(name, present)}; allowed: {allowed}")
    with (root / PROFILES / f"{name}.toml").open("rb") as file:
        profile = tomllib.load(file)
    return Disk(name, rotational=profile.get("kind") == "disk")


@dataclass
class Observed:
    """What the disk did while something was measured; empty for a disk that cannot tell."""

    stats: dict[str, Any] = field(default_factory=dict)


class Control:
    """Talks to the disk of one DB node."""

    def __init__(self, disk: Disk, run: Run, program: str, directory: str) -> None:
        """Prepare to ask the disk in `directory` of the node through its program."""
        self.disk = disk
        self._run, self._program, self._directory = run, program, directory

    def _ask(self, verb: str, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        return self._run([self._program, verb, self._directory, *arguments], limit_s)

    def self_test(self) -> dict[str, Any]:
        """Measure the emulated disk against its model; raises RunError when it keeps differing.

        Tried again a few times: a machine that is busy for a moment makes the disk late.
        """
        if not self.disk.emulated:
            return {}
        problem = ""
        for _ in range(SELF_TEST_TRIES):
            try:
                said = self._run(
                    [self._program, "selftest", "--profile", self.disk.profile, "--quick", "--json", "-"],
                    SELF_TEST_LIMIT_S,
                )
                return {"profile": self.disk.profile, "tests": json.loads(said)}
            except (RunError, ValueError) as error:
                problem = " ".join(str(error).split())
        raise RunError(
            f"the emulated disk {self.disk.profile} does not keep to its model on this machine, tried"
            f" {SELF_TEST_TRIES} times: {problem}. Stop what else runs here, or measure with DISK=none"
        )

    @contextmanager
    def measuring(self) -> Iterator[Observed]:
        """Let the disk have its service times meanwhile; `stats` of what is yielded is filled in at the end."""
        observed = Observed()
        if not self.disk.emulated:
            yield observed
            return
        self._ask("mode", "model")
        self._ask("stats", "--reset")
        try:
            yield observed
        finally:
            observed.stats = json.loads(self._ask("stats", "--json"))
            self._ask("mode", "bypass")


def too_late(stats: dict[str, Any]) -> str:
    """Say that too many operations ended later than the model has it; empty when not."""
    late = stats.get("late", {})
    share = float(late.get("share", 0.0))
    if share <= LATE_SHARE_LIMIT:
        return ""
    return (
        f"{share:.1%} of the emulated disk's operations ended more than {late.get('threshold_us', 0)} us late (limit"
        f" {LATE_SHARE_LIMIT:.0%}; worst {late.get('worst_us', 0)} us): something else keeps this machine busy"
    )
