"""The closed set of predicates over the table of trials that ``claims.yml`` may use, as data.

A predicate turns the table into *checks* (module ``checks``), one per cell, pair of cells or series; the quantifier
(`share`, 1.0 unless the claim says otherwise) decides over them.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runner.yamlfile import Strict

Selector = dict[str, str | int | float | list[str] | list[int] | list[float]]
SELECTOR = "columns of the table with a value or a list of values, e.g. {mix: read-only, skew: [1.5, 1.25]}"


class Predicate(Strict):
    """What all kinds share: which experiment, which cells, how many checks have to hold."""

    experiment: str = Field(description="the experiment whose trials are judged, e.g. fig06")
    where: Selector = Field(default={}, description=SELECTOR)
    by: list[str] = Field(
        ["mix", "skew", "data_memory_ratio"], description="the columns that tell one cell from another"
    )
    metric: str = Field("throughput_txn_s", description="the column that is compared")
    share: float = Field(1.0, gt=0, le=1, description="a share above 0 and up to 1 of the checks that must hold")
    holds_in: Literal["every", "any"] = Field("every", description="every (or `share` of the) cells, or any cell")


class Bounds(Strict):
    """Limits of a value, both inclusive."""

    at_least: float | None = Field(default=None, description="a number")
    at_most: float | None = Field(default=None, description="a number")

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("neither at_least nor at_most: every value would keep it")
        return self


class Ratio(Predicate, Bounds):
    """In each cell: metric of `of` divided by the metric of `to` keeps the bounds."""

    kind: Literal["ratio"]
    of: Selector = Field(description=SELECTOR)
    to: Selector = Field(description=SELECTOR)


class WithinPercent(Predicate):
    """In each cell: `of` is at most `percent` worse than `to` (being better is within)."""

    kind: Literal["within_percent"]
    of: Selector = Field(description=SELECTOR)
    to: Selector = Field(description=SELECTOR)
    percent: float = Field(ge=0, le=100, description="a number from 0 to 100")
    better: Literal["higher", "lower"] = Field("higher", description="higher or lower")


class Monotone(Predicate):
    """In each series: the metric falls (rises) with every step along a column, save for a tolerance.

    A series passes when no step goes the wrong way by more than `tolerance` (measurement noise) and its end lies
    on the right side of its start. The value is the metric at the end divided by that at the start.
    """

    kind: Literal["monotone"]
    along: str = Field(description="a numeric column, e.g. data_memory_ratio")
    order: Literal["rising", "falling"] = Field("rising", description="in which order `along` is walked")
    direction: Literal["falls", "rises"] = Field(description="falls or rises")
    tolerance: float = Field(0.05, ge=0, le=1, description="a share from 0 to 1")
    series: list[str] = Field(description="the columns that tell one series from another")


class Endpoints(Predicate, Bounds):
    """In each series: the metric at one value of a column, divided by that at another, keeps the bounds."""

    kind: Literal["endpoints"]
    along: str = Field(description="a column, e.g. data_memory_ratio")
    end: float = Field(description="the value of `along` in the numerator")
    start: float = Field(description="the value of `along` in the denominator")
    series: list[str] = Field(description="the columns that tell one series from another")


class RatioOrder(Predicate):
    """The ratio `of` / `to` is greater in every cell of `greater_at` than in the matching cells of `than_at`."""

    kind: Literal["ratio_order"]
    of: Selector = Field(description=SELECTOR)
    to: Selector = Field(description=SELECTOR)
    greater_at: Selector = Field(description=SELECTOR)
    than_at: Selector = Field(description=SELECTOR)
    match: list[str] = Field(default=[], description="the columns in which both cells have to agree")


class Linear(Predicate):
    """In each series: the metric lies on a rising line over a column, with this r² or more, and one slope.

    r² alone would pass for much that bends: x to the power of 1.5 has 0.98 over five points that double. So the slope
    of the upper half (from the middle point on) is held against that of the lower half, either way.
    """

    kind: Literal["linear"]
    along: str = Field(description="a numeric column")
    r2_at_least: float = Field(ge=0, le=1, description="a number from 0 to 1")
    slope_change_at_most: float = Field(1.5, ge=1, description="a factor of 1 or more")
    series: list[str] = Field(description="the columns that tell one series from another")


class Value(Predicate, Bounds):
    """In each cell: the metric itself keeps the bounds."""

    kind: Literal["value"]


Simple = Annotated[
    Ratio | WithinPercent | Monotone | Endpoints | RatioOrder | Linear | Value, Field(discriminator="kind")
]
