"""The trials that stand for one cell: the one choice that figures, tables and claims share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pandas as pd

from runner.machine import without_kernel
from runner.remarks import OTHER_CODE, OTHER_MACHINE, REMARKS

CLIENT_SATURATED = "client_saturated"
"""The flag of a trial whose terminals were the bottleneck: invalid, but its throughput is a lower bound."""
THROUGHPUT: Final = "throughput_txn_s"

SAMPLED: Final = ("trial_hash", "status", "reason", "flags", "machine", "shaping_code")
"""What a sample is made of, besides its metric."""


@dataclass
class Sample:
    """The usable trials of one cell; `missing` says why there is none."""

    values: list[float] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    lower_bound: bool = False
    """The terminals held some of the trials back: the true mean is at least that of `values`."""
    remarks: frozenset[str] = frozenset()
    """Flags of the trials that leave them valid, and weaken what is concluded from them."""
    machines: frozenset[str] = frozenset()
    """The hardware that measured them."""
    codes: frozenset[str] = frozenset()
    """The states of the code that measured them."""
    missing: str = ""


def sample(rows: pd.DataFrame, metric: str = THROUGHPUT) -> Sample:
    """Gather the trials of one cell.

    Valid trials and those whose only fault is a saturated client are used together: the terminals saturate in the
    fastest trials, so leaving those out would choose the slow ones. The throughput is a lower bound then; another
    metric is not bounded by such trials, and its sample is missing.
    """
    # As plain values: a selection of rows would copy a hundred columns, for each of thousands of cells.
    trials = list(_trials(rows, metric))
    measured = [t for t in trials if t.value is not None]
    saturated = [t.status == "invalid" and _only_saturated(t.flags) for t in measured]
    usable = [t for t, held_back in zip(measured, saturated, strict=True) if held_back or t.status == "ok"]
    hashes = [t.trial_hash for t in usable]
    if any(saturated) and metric != THROUGHPUT:
        return Sample(hashes=hashes, missing="terminals were saturated")
    if not usable:
        reasons = dict.fromkeys(f"{t.status}: {t.reason or f'no {metric}'}" for t in trials)
        return Sample(missing="; ".join(reasons) or "not planned")
    remarks = REMARKS & {flag for t in usable for flag in t.flags.split(";")}
    machines = frozenset(without_kernel(t.machine) for t in usable if t.machine is not None)
    codes = frozenset(t.shaping_code for t in usable if t.shaping_code is not None)
    return Sample([t.value for t in usable if t.value is not None], hashes, any(saturated), remarks, machines, codes)


class _Trial(NamedTuple):
    """What a sample needs of a row."""

    value: float | None
    trial_hash: str
    status: str
    reason: str
    flags: str
    machine: str | None
    shaping_code: str | None


def _trials(rows: pd.DataFrame, metric: str) -> Iterator[_Trial]:
    texts = [rows[name].astype(str).tolist() if name in rows else [None] * len(rows) for name in SAMPLED]
    for value, *rest in zip(rows[metric].tolist(), *texts, strict=True):
        yield _Trial(None if pd.isna(value) else float(value), *rest)


def compared(samples: Iterable[Sample]) -> frozenset[str]:
    """Return the remarks of all samples, and whether they were measured on different machines, or by other code.

    Where each side has trials of the same machines, all of them meet what a machine does alike; so it is with code.
    """
    found = [s for s in samples if s.values]
    apart = {OTHER_MACHINE: {s.machines for s in found}, OTHER_CODE: {s.codes for s in found}}
    return frozenset().union(*(s.remarks for s in found), {name for name, sets in apart.items() if len(sets) > 1})


def is_usable(status: str, flags: str) -> bool:
    """Tell whether a trial with this status and these flags stands for its cell's throughput."""
    return status == "ok" or (status == "invalid" and _only_saturated(flags))


def _only_saturated(flags: str) -> bool:
    return set(flags.split(";")) - REMARKS == {CLIENT_SATURATED}
