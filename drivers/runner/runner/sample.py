"""The trials that stand for one cell: the one choice that figures, tables and claims share."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

CLIENT_SATURATED = "client_saturated"
"""The flag of a trial whose terminals were the bottleneck: invalid, but its throughput is a lower bound."""
THROUGHPUT = "throughput_txn_s"
OVERLOADED = "overloaded"
"""The flag of an open loop in which more arrived than was over: a remark, but its response times have no end."""
REMARKS = frozenset({"not_settled", "events_lost", "disk_unlike_model", "goodput_unknown", OVERLOADED, "client_late"})
"""Flags that leave a trial valid; every other one is a reason for being invalid."""


@dataclass
class Sample:
    """The usable trials of one cell; `missing` says why there is none."""

    values: list[float] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    lower_bound: bool = False
    """The terminals held some of the trials back: the true mean is at least that of `values`."""
    missing: str = ""


def sample(rows: pd.DataFrame, metric: str = THROUGHPUT) -> Sample:
    """Gather the trials of one cell.

    Valid trials and those whose only fault is a saturated client are used together: the terminals saturate in the
    fastest trials, so leaving those out would choose the slow ones. The throughput is a lower bound then; another
    metric is not bounded by such trials, and its sample is missing.
    """
    measured = rows[rows[metric].notna()]
    saturated = (measured["status"] == "invalid") & measured["flags"].map(_only_saturated).astype(bool)
    usable = measured[(measured["status"] == "ok") | saturated]
    hashes = [str(h) for h in usable["trial_hash"]]
    if saturated.any() and metric != THROUGHPUT:
        return Sample(hashes=hashes, missing="terminals were saturated")
    if usable.empty:
        reasons = dict.fromkeys(f"{r.status}: {str(r.reason) or f'no {metric}'}" for r in rows.itertuples())
        return Sample(missing="; ".join(reasons) or "not planned")
    return Sample([float(v) for v in usable[metric]], hashes, lower_bound=bool(saturated.any()))


def _only_saturated(flags: str) -> bool:
    return set(flags.split(";")) - REMARKS == {CLIENT_SATURATED}
