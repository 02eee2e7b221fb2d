"""Remarks: flags that leave a trial valid and weaken what is concluded from it.

Those of this module follow from the records when the table is made, so that older runs have them as well: whether the
throughput kept one level, whether the machine was disturbed, and how a trial lies among the other trials of its cell.
A remark never takes a trial out of its cell's mean: leaving out what does not fit would make every cell look precise.

What can be said within a cell depends on how many trials it has. One: nothing. Two: how far they are apart, not which
of them is off. Three or four: a trial stands apart where the others agree with each other. From five on: the modified
z-score (Iglewicz and Hoaglin 1993), whose median absolute deviation one bad trial cannot move.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from runner.steady import Level

NOT_SETTLED = "not_settled"
CPU_STOLEN = "cpu_stolen"
MACHINE_BUSY = "machine_busy"
OUTLIER = "outlier"
NOISY_CELL = "noisy_cell"
OTHER_MACHINE = "other_machine"
"""Of a comparison, not of a trial: the trials of its sides are of different hardware, see `runner.sample`."""
OTHER_CODE = "other_code"
"""The same of the code that shapes numbers."""
OVERLOADED = "overloaded"
"""Of an open loop in which more arrived than was over: its response times have no end."""
WEAKENS = {
    NOT_SETTLED: "throughput not settled",
    CPU_STOLEN: "stolen CPU time",
    MACHINE_BUSY: "a busy machine",
    OUTLIER: "an outlier among its trials",
    NOISY_CELL: "a noisy cell",
    "disk_unlike_model": "disk unlike its model",
    OTHER_MACHINE: "different machines",
    OTHER_CODE: "different code",
}
"""Remarks that a verdict names where it would not be given without such trials, and in which words."""
OF_COMPARISONS = frozenset({OTHER_MACHINE, OTHER_CODE})
REMARKS = frozenset({*WEAKENS, "events_lost", "goodput_unknown", OVERLOADED, "client_late"} - OF_COMPARISONS)
"""Flags that leave a trial valid; every other one is a reason for being invalid."""

STOLEN_SHARE = 0.03
"""Of the CPU time that was wanted; more of it than this went to other virtual machines."""
OTHER_CORES = 0.2
"""Cores that other programs may use during a trial. The figure is no better than a tenth: ticks are coarse, kernel
threads count as others, and what interrupts take from our programs is counted with these but not with the machine."""
NOISY_VARIATION = 0.15
"""Coefficient of variation of a cell's trials above which it is noisy: of three such trials the interval reaches 37 %
to each side."""
APART, TOGETHER = 1.25, 1.10
"""Of three or four trials one is an outlier at this factor from the median, when the others lie within the second."""
MODIFIED_Z, LEAST_APART = 3.5, 1.15
"""From five trials on: the usual limit, and a factor from the median below which the distance does not matter. Of five
equal trials with 5 % of spread the limit alone finds one in every fifth cell; with the factor it is one in fifty."""
SCORED_TRIALS = 5


def of_level(level: Level, measured_s: float) -> dict[str, str]:
    """Return the flag of a trial whose throughput did not keep one level, with what is to be said about it."""
    if level.settled is not False:
        return {}
    if level.change is None:
        return {NOT_SETTLED: "most seconds were without a transaction"}
    return {
        NOT_SETTLED: f"the throughput changed by {level.change.share:+.0%} after {level.change.second:g} of"
        f" {measured_s:g} s"
    }


def stolen_share(environment: dict[str, Any]) -> float | None:
    """Return how much of the CPU time that was wanted on a trial's worst node the hypervisor gave to others.

    Over the call of loadgen, warm-up and drain included. None where it was not recorded, or no CPU time was used.
    """
    shares: list[float] = [
        node["stolen_s"] / wanted_s
        for node in environment.get("machine_cpu", {}).values()
        if (wanted_s := node["user_s"] + node["system_s"] + node["interrupts_s"] + node["stolen_s"]) > 0
    ]
    return max(shares) if shares else None


def other_cores(environment: dict[str, Any]) -> float | None:
    """Return how many cores of a trial's busiest node others used, over the call of loadgen; None: not recorded.

    Others are all but the servers, loadgen, the runner's agent and the emulated disk. The kernel's own threads are
    among them; interrupts are not.
    """
    nodes, servers = environment.get("machine_cpu", {}), environment.get("server_cpu", {})
    if not nodes or not servers.get("call_s"):
        return None
    observed = environment.get("disk", {}).get("observed", {})
    known_s = {"dbms": sum(servers["cpu_s"].values()) + observed.get("daemon_cpu_s", 0.0)}
    used_s = [n["user_s"] + n["system_s"] - n["own_s"] - known_s.get(role, 0.0) for role, n in nodes.items()]
    return float(max(0.0, *used_s) / servers["call_s"])


def of_machine(stolen: float | None, others: float | None) -> dict[str, str]:
    """Return the flags of a trial on a machine that did not get the CPU time that it wanted, or not alone."""
    found = {}
    if stolen is not None and stolen > STOLEN_SHARE:
        found[CPU_STOLEN] = f"{stolen:.1%} of the CPU time that was wanted went to other virtual machines"
    if others is not None and others > OTHER_CORES:
        found[MACHINE_BUSY] = f"other programs used {others:.2f} cores meanwhile"
    return found


def remark(row: dict[str, Any], found: dict[str, str]) -> None:
    """Add flags to a row of the table, and what is to be said about them to its reason."""
    flags = [flag for flag in row["flags"].split(";") if flag and flag not in found]
    row["flags"] = ";".join([*flags, *found])
    row["reason"] = "; ".join(filter(None, [row["reason"], *found.values()]))


def among(values: Sequence[float]) -> list[bool]:
    """Tell of each trial of a cell whether it stands apart from the others, as far as their number allows."""
    data = np.asarray(values, dtype=float)
    middle = float(np.median(data)) if data.size else 0.0
    if data.size <= 2 or middle <= 0:  # noqa: PLR2004 - of two nobody can say which
        return [False] * len(values)
    far = np.array([_factor(value, middle) for value in data])
    if data.size >= SCORED_TRIALS:
        deviation = float(np.median(np.abs(data - middle)))
        scores = 0.6745 * np.abs(data - middle) / deviation if deviation > 0 else np.full(data.size, np.inf)
        return [bool(apart) for apart in (scores > MODIFIED_Z) & (far > LEAST_APART)]
    return [
        bool(far[place] > APART) and _factor(float(others.max()), float(others.min())) <= TOGETHER
        for place in range(data.size)
        for others in [np.delete(data, place)]
    ]


def variation(values: Sequence[float]) -> float | None:
    """Return the coefficient of variation; None with one trial or a mean of zero."""
    data = np.asarray(values, dtype=float)
    if data.size <= 1 or data.mean() <= 0:
        return None
    return float(data.std(ddof=1) / data.mean())


def of_cells(rows: Iterable[dict[str, Any]], cells: Sequence[Hashable], values: Sequence[float | None]) -> None:
    """Set `cell_ratio` and `cell_variation` of the table's rows, and flag those that their cells say something about.

    `cells` names each row's cell, `values` is what each row measured; None for one that does not count.
    """
    members: dict[Hashable, list[tuple[dict[str, Any], float]]] = {}
    for row, cell, value in zip(rows, cells, values, strict=True):
        if value is not None:
            members.setdefault(cell, []).append((row, value))
    for trials in members.values():
        found = [value for _, value in trials]
        middle, spread = float(np.median(found)), variation(found)
        for (row, value), apart in zip(trials, among(found), strict=True):
            if len(found) > 1 and middle > 0:
                row["cell_ratio"] = value / middle
            row["cell_variation"] = spread
            if apart:
                remark(row, {OUTLIER: f"{value / middle:.2f} times the median of its cell's {len(found)} trials"})
            if spread is not None and spread > NOISY_VARIATION:
                remark(row, {NOISY_CELL: f"its cell's {len(found)} trials vary by {spread:.0%}"})


def _factor(one: float, other: float) -> float:
    """Return how many times the larger of two figures is the smaller; infinite where that is zero."""
    return max(one, other) / min(one, other) if min(one, other) > 0 else float("inf")
