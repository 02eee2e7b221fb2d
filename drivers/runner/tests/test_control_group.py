"""Reading a control group through files as the kernel writes them, recorded from both versions."""

from __future__ import annotations

from typing import Any

import pytest

from runner import control_group
from runner.control_group import Watch

MIB = 1 << 20

V1 = {
    "/g/memory.max_usage_in_bytes": "181927936\n",
    "/g/memory.usage_in_bytes": "179658752\n",
    "/g/memory.limit_in_bytes": "402653184\n",
    "/g/memory.failcnt": "3\n",
    "/g/memory.memsw.failcnt": "4\n",
    "/g/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "/g/memory.stat": "cache 0\nrss 0\nhierarchical_memory_limit 402653184\ntotal_cache 520192\ntotal_rss 178937856\n",
}
V1_PATHS = {
    "peak": "/g/memory.max_usage_in_bytes",
    "current": "/g/memory.usage_in_bytes",
    "limit": "/g/memory.limit_in_bytes",
    "limit_hits": "/g/memory.failcnt",
    "limit_hits_with_swap": "/g/memory.memsw.failcnt",
    "events": "/g/memory.oom_control",
    "stat": "/g/memory.stat",
}
V2 = {
    "/g/memory.peak": "181927936\n",
    "/g/memory.current": "179658752\n",
    "/g/memory.max": "402653184\n",
    "/g/memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n",
    "/g/memory.stat": "anon 178937856\nfile 520192\nkernel 204800\nanon_thp 0\nfile_mapped 4096\n",
}
V2_PATHS = {
    "peak": "/g/memory.peak",
    "current": "/g/memory.current",
    "limit": "/g/memory.max",
    "events": "/g/memory.events",
    "stat": "/g/memory.stat",
}


def group(version: int, **more: Any) -> dict[str, Any]:
    paths = {1: V1_PATHS, 2: V2_PATHS}[version]
    sizes = {"limit_bytes": 402653184, "budget_bytes": 125829120, "allowance_bytes": 276824064}
    return {"version": version, "enforced": True, "why_not": "", "cpuset": True, "path": dict(paths), **sizes, **more}


@pytest.mark.parametrize(("version", "files"), [(1, V1), (2, V2)])
def test_both_versions_tell_the_same(version: int, files: dict[str, str]) -> None:
    assert control_group.usage(group(version), files.get) == {
        "peak_bytes": 181927936,
        "current_bytes": 179658752,
        "limit_bytes": 402653184,
        "oom_kills": 1,
        "limit_hits": 7,
        "anonymous_bytes": 178937856,
        "file_bytes": 520192,
    }


def test_a_kernel_without_a_peak_leaves_it_out() -> None:
    found = control_group.usage(group(2), {**V2, "/g/memory.peak": ""}.get)
    assert "peak_bytes" not in found
    assert found["current_bytes"] == 179658752


def test_the_peak_is_reset_where_a_written_zero_does_that() -> None:
    written: list[tuple[str, str]] = []

    def write(path: str, text: str) -> bool:
        written.append((path, text))
        return True

    assert control_group.reset_peak(group(1), write) == "reset"
    assert written == [("/g/memory.max_usage_in_bytes", "0")]
    assert control_group.reset_peak(group(2), write) == "start"
    assert control_group.reset_peak(group(1), lambda _path, _text: False) == "start"
    assert len(written) == 1


@pytest.mark.parametrize(("version", "files"), [(1, V1), (2, V2)])
def test_what_was_exceeded_is_said_with_its_parts(version: int, files: dict[str, str]) -> None:
    after = control_group.usage(group(version), files.get)
    assert control_group.exceeded(group(version), {"oom_kills": 0}, after, ["mysqld"]) == (
        "mysqld exceeded its memory: limit 402653184 bytes = budget 125829120 + allowance 276824064; oom_kill 1"
    )
    assert control_group.exceeded(group(version), after, after, ["mysqld"]) == "", "that was an earlier trial's"
    assert control_group.exceeded(group(version), {}, after, []).startswith("a process of the system exceeded")


def test_a_limit_that_was_lifted_or_cannot_be_read_fails_the_trial() -> None:
    lifted = control_group.usage(group(2), {**V2, "/g/memory.max": "402653185\n"}.get)
    assert "changed from 402653184 to 402653185" in control_group.exceeded(group(2), lifted, lifted, [])
    assert "cannot be read" in control_group.exceeded(
        group(2), {}, control_group.usage(group(2), lambda _path: None), []
    )
    unlimited = control_group.usage(group(2), {**V2, "/g/memory.max": "max\n"}.get)
    assert "cannot be read" in control_group.exceeded(group(2), {}, unlimited, [])


def test_what_is_not_enforced_is_recorded_and_warned_of() -> None:
    why_not = "memory_enforced is false in the inventory"
    off = {**group(1), "version": 0, "enforced": False, "why_not": why_not, "path": {}}
    watch = Watch({"control_group": off}, V1.get, lambda _path, _text: False).reset_peak()
    assert watch.exceeded(["mysqld"]) == ""
    recorded = watch.record()
    assert (recorded["enforced"], recorded["limit_bytes"], recorded["used"]) == (False, None, {})
    assert control_group.warning(off) == f"memory is not enforced, only configured: {why_not}"
    assert "names no control group" in control_group.warning(control_group.group_of({}))
    assert control_group.warning(group(1)) == ""
    assert "affinity alone: no controller" in control_group.warning(
        group(2, cpuset=False, why_no_cpuset="no controller")
    )


def test_a_watch_keeps_the_peak_of_before() -> None:
    files = dict(V1)

    def write(path: str, _text: str) -> bool:
        files[path] = "1000\n"
        return True

    watch = Watch({"control_group": group(1)}, files.get, write).reset_peak()
    files["/g/memory.oom_control"] = "oom_kill 2\n"
    recorded = watch.record()
    assert (recorded["peak_before_bytes"], recorded["used"]["peak_bytes"]) == (181927936, 1000)
    assert recorded["peak_since"] == "reset"
    assert watch.exceeded(["mysqld", "memcached"]).startswith("mysqld and memcached exceeded its memory")
