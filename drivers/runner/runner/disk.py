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
SPINDLE = Path("target/release/spindle")
NONE = "none"
LATE_SHARE_LIMIT = 0.05
"""Above this share of operations that ended over 1 ms late, a trial measured this machine's timers and not the disk.
Timers of virtual machines alone can be that late once in fifty times; operations take about ten times as long."""
FEWEST_LATE = 3
"""Fewer late operations say nothing: one of the eleven of a trial in memory is a share, but no disturbance."""
UNLIKE_MODEL = "disk_unlike_model"
"""The flag of a trial on an emulated disk that this machine cannot serve as its profile says: a remark."""
SINCE_START = ("host_io_errors", "failed_operations", "daemon_cpu_s")
"""What `stats --json` counts since the daemon started, whatever was reset meanwhile."""
SELF_TEST_TRIES = 3
SELF_TEST_LIMIT_S = 180.0
CPU_UNIT = "cores"  # of the self-test's rows about what emulating costs, where the others are about the drive
SYNC_LIMIT_S = 60
COMMAND_LIMIT_S = 130.0  # a change of mode writes what the emulated drive has cached; its own limit is 120 s

Run = Callable[[list[str], float], str]
"""Runs a command on the DB node within so many seconds and returns what it printed; raises RunError."""


def is_emulated(profile: str) -> bool:
    """Tell whether drivers/spindle serves a disk of this name."""
    return profile != NONE and not profile.startswith("/dev/")


@dataclass(frozen=True)
class Disk:
    """What ``DISK`` names."""

    profile: str
    rotational: bool
    """Whether it seeks: decides two settings of MySQL (roles/mysql)."""

    @property
    def emulated(self) -> bool:
        """Whether drivers/spindle serves it."""
        return is_emulated(self.profile)

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

    def __init__(self, profile: str, run: Run, program: str, directory: str) -> None:
        """Prepare to ask the disk in `directory` of the node through its program."""
        self.profile = profile
        self._run, self._program, self._directory = run, program, directory

    def _ask(self, verb: str, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        return self._run([self._program, verb, self._directory, *arguments], limit_s)

    def self_test(self, region_bytes: int) -> list[dict[str, Any]]:
        """Measure an emulated disk of this size against its model; raises RunError when it keeps differing.

        Returns ``{name, measured, model, ratio, unit, tolerance, ok}`` of each test. Tried again a few times: a machine
        that is busy for a moment makes the disk late.
        """
        if not is_emulated(self.profile):
            return []
        for _ in range(SELF_TEST_TRIES):
            tests = self.try_out(region_bytes)
            wrong = outside(tests)
            if not wrong:
                return tests
        raise RunError(
            f"the emulated disk {self.profile} does not keep to its model on this machine, tried {SELF_TEST_TRIES}"
            f" times: {wrong}. Stop what else runs there, or measure with DISK=none"
        )

    def try_out(self, region_bytes: int) -> list[dict[str, Any]]:
        """Run the self-test once, whatever it finds."""
        place = f"{self._directory}-self-test"
        try:
            return self._test_scratch(place, region_bytes)
        finally:
            # A self-test that was killed leaves its scratch disk mounted.
            each = f'for d in "{place}"/selftest-*; do [ ! -e "$d" ] || "{self._program}" unmount "$d"; done'
            self._run(["sh", "-c", f'{each}; rm -rf "{place}"'], COMMAND_LIMIT_S)

    def _test_scratch(self, place: str, region_bytes: int) -> list[dict[str, Any]]:
        """Run the self-test; raises RunError when it leaves no results: then there is no such disk on this machine."""
        results = f"{place}/results.json"
        size = ["--region-bytes", str(region_bytes), "--profile", self.profile]
        self._run([self._program, "create", place, *size], COMMAND_LIMIT_S)
        # What a build has written goes to the disk below when the kernel likes: now, and not during the test.
        self._run(["sh", "-c", f'timeout {SYNC_LIMIT_S} sync -f "{place}" || true'], COMMAND_LIMIT_S)
        said = ""
        try:
            self._run([self._program, "selftest", place, "--quick", "--json", results], SELF_TEST_LIMIT_S)
        except RunError as error:  # also when a figure is outside its tolerance: then there are results
            said = str(error)
        try:
            return list(json.loads(self._run(["cat", results], COMMAND_LIMIT_S)))
        except (RunError, ValueError):
            raise RunError(f"no emulated disk {self.profile}: {said}; or measure with DISK=none") from None

    @contextmanager
    def measuring(self) -> Iterator[Observed]:
        """Let the disk have its service times meanwhile; `stats` of what is yielded is filled in at the end."""
        observed = Observed()
        if not is_emulated(self.profile):
            yield observed
            return
        try:
            self._ask("mode", "model")
            before = json.loads(self._ask("stats", "--reset", "--json"))
            yield observed
            stats = json.loads(self._ask("stats", "--json"))
            since = {name: stats[name] - before[name] for name in SINCE_START}
            observed.stats = {**stats, **since}
        finally:
            self._ask("mode", "bypass")


def service_times(tests: list[dict[str, Any]]) -> dict[str, float]:
    """Return the measured figures of a self-test that follow from the profile, by name: to compare nodes by."""
    return {test["name"]: test["measured"] for test in tests if test.get("tolerance")}


def outside(tests: list[dict[str, Any]]) -> str:
    """Say which figures of a self-test are not the model's; empty when all are.

    What emulating costs is no figure of the drive: see `costly`.
    """
    return _listed(_unlike(tests))


def costly(tests: list[dict[str, Any]]) -> str:
    """Say which figures of a self-test show that emulating takes more CPU than it should; empty when none does."""
    return _listed([test for test in tests if not test["ok"] and test["unit"] == CPU_UNIT])


def _unlike(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [test for test in tests if not test["ok"] and test["unit"] != CPU_UNIT]


def _listed(wrong: list[dict[str, Any]]) -> str:
    return ", ".join(f"{t['name']}: {t['measured']:.4g} {t['unit']}, not {_model(t)}" for t in wrong)


def _model(test: dict[str, Any]) -> str:
    return "known" if test["model"] is None else f"{test['model']:.4g}"


def judge(result: dict[str, Any], stats: dict[str, Any], tests: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a result invalid, flagged ``disk_late``, when the disk was not as its profile says; a failed one stays.

    One that already failed its self-test makes the result flagged ``disk_unlike_model`` whatever the trial saw of it.
    """
    if result["status"] == "failed":
        return result
    if failed := _unlike(tests):
        text = f"the disk is unlike its model on this machine: {len(failed)} of {len(tests)} figures of its self-test"
        reason = "; ".join(filter(None, [result.get("reason", ""), text]))
        result = {**result, "reason": reason, "flags": [*result.get("flags", []), UNLIKE_MODEL]}
    wrong = problem(stats)
    if not wrong:
        return result
    reason = "; ".join(filter(None, [result.get("reason", ""), wrong]))
    return {**result, "status": "invalid", "reason": reason, "flags": [*result.get("flags", []), "disk_late"]}


def without(stats: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return what a disk observed, with the late operations of some kinds counted as in time."""
    late = stats.get("late")
    if not late or not kinds:
        return stats
    left = late["late"] - sum(late["late_by_kind"].get(kind, 0) for kind in kinds)
    return {**stats, "late": {**late, "late": left, "late_share": left / max(1, late["operations"])}}


def problem(stats: dict[str, Any]) -> str:
    """Say why the disk's part of a trial is not to be trusted; empty when nothing is wrong."""
    if errors := stats.get("host_io_errors", 0) + stats.get("failed_operations", 0):
        return f"{errors} operations of the emulated disk failed, on the disk below it: is that full?"
    late = stats.get("late", {})
    share = float(late.get("late_share", 0.0))
    if share <= LATE_SHARE_LIMIT or late["late"] < FEWEST_LATE:
        return ""
    return (
        f"{share:.1%} of the emulated disk's {late['operations']} operations ended more than {late['threshold_us']} us"
        f" late (limit {LATE_SHARE_LIMIT:.0%}; worst {late['worst_us']} us): something else keeps this machine busy"
    )
