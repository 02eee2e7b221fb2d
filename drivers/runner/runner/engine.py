"""Settings of the anti-caching engine that an experiment decides, once for all or cell by cell (paper §3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from runner.yamlfile import Strict

Alpha = Annotated[float, Field(gt=0, le=1)]
Threshold = Annotated[float, Field(gt=0, le=1)]
IntervalUs = Annotated[int, Field(ge=0, le=60_000_000)]
Blocks = Annotated[int, Field(ge=0, le=31)]
MergeName = Literal["tuple", "block"]
FetchName = Literal["block", "sectors"]
EvictFrom = Literal["coldest", "inverse-accesses"]
AnswerReaders = Literal["at-once", "durable"]

LIVE = ("lru_sample_rate", "merge", "fetch", "hole_threshold", "eviction_check_interval_us", "eviction_blocks")
"""What the engine can change while it runs (anticache-engine/src/config.rs: LIVE_SETTINGS)."""


class Engine(Strict):
    """Settings of the anti-caching engine that do not depend on the scale (paper §3.1, §3.2, §3.4, §5.1).

    The defaults are those of the role (ansible/roles/anticache); what has its default is not part of a deployment.
    """

    merge: MergeName = Field(description="tuple or block")
    hole_threshold: float = Field(
        gt=0, le=1, description="a number from 0 to 1, above 0 (share of holes that triggers compaction)"
    )
    lru_sample_rate: float = Field(
        default=0.01, gt=0, le=1, description="a number above 0 and up to 1 (alpha of anticache-alru)"
    )
    fetch: FetchName = Field(default="block", description="block or sectors (what is read of a block)")
    eviction_check_interval_us: int = Field(
        default=0, ge=0, le=60_000_000, description="an integer from 0 to 60000000 (0 = after every batch)"
    )
    eviction_blocks: int = Field(
        default=0, ge=0, le=31, description="an integer from 0 to 31 (blocks of an eviction; 0 = derived)"
    )

    evict_from: EvictFrom = Field(
        default="coldest",
        description="coldest (the table with the coldest tuple) or inverse-accesses (the paper's shares)",
    )
    answer_readers: AnswerReaders = Field(
        default="at-once",
        description="at-once (as MySQL does) or durable (when what they have read is on disk)",
    )

    def deployed(self) -> dict[str, Any]:
        """Return what a deployment file says: defaults are left to the role."""
        return self.model_dump(include={"merge", "hole_threshold"}) | self.model_dump(exclude_defaults=True)


def live_settings(settings: Engine, system: str) -> dict[str, Any]:
    """Return every setting that a running engine is given before a trial; `anticache-lru` has no alpha to set."""
    kept = [name for name in LIVE if name != "lru_sample_rate" or system != "anticache-lru"]
    return {name: getattr(settings, name) for name in kept}


def judge(result: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Make a result invalid, flagged ``settings_differ``, when the engine reports other settings than it was to have.

    A failed one stays, and so does one of a system that is not the engine.
    """
    reported = result.get("server_settings", {}).get("anticached")
    if result["status"] == "failed" or reported is None:
        return result
    wrong = [
        f"{name} is {reported.get(name)}, not {value}" for name, value in asked.items() if reported.get(name) != value
    ]
    if not wrong:
        return result
    text = f"the engine ran with other settings than the trial's: {', '.join(wrong)}"
    reason = "; ".join(filter(None, [result.get("reason", ""), text]))
    return {**result, "status": "invalid", "reason": reason, "flags": [*result.get("flags", []), "settings_differ"]}
