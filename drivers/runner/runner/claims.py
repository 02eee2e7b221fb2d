"""Every claim of the paper as a predicate over measured trials; the verdict is never silently dropped.

*reproduced*: the predicate holds; *not reproduced*: it does not; *not measured*: the trials it needs do not exist,
failed or are invalid, or judging it raised an exception. A claim is judged on the cells that the run planned. Where
planned cells have no valid trial, the verdict is given only when it would be the same whatever they had measured.

What weakens a verdict stands beside it as its *qualifiers*: it rests on single trials, its figures lie so close to the
limit that their intervals contain it, the run leaves out part of the cells that the claim names (which: in the note),
trials carry a remark (they did not settle, the machine was disturbed, an outlier, a noisy cell), or a figure is only a
bound because the terminals were saturated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from runner.checks import Check, NotMeasuredError, checks
from runner.extent import Cells, left_out
from runner.files import write_json
from runner.predicates import Endpoints, Monotone, Ratio, Simple, WithinPercent
from runner.remarks import WEAKENS
from runner.yamlfile import Strict, check, read

Verdict = Literal["reproduced", "not reproduced", "not measured"]
REPRODUCED: Verdict = "reproduced"
NOT_REPRODUCED: Verdict = "not reproduced"
NOT_MEASURED: Verdict = "not measured"
ONE_TRIAL = "one trial"
AT_THE_LIMIT = "the interval contains the limit"
PART_OF_CELLS = "part of its cells"


class AllOf(Strict):
    """Several predicates that must all hold; the value is the share of them that do."""

    kind: Literal["all_of"]
    of: list[Simple] = Field(min_length=2, description="at least two predicates")


class Alternative(Strict):
    """Another reading of the claim that the paper gives elsewhere."""

    where: str = Field(min_length=1, description="the paper's section")
    text: str = Field(min_length=1, description="a text")
    predicate: Simple


class Claim(Strict):
    """One sentence of the paper, in our words, and what decides it."""

    id: str = Field(pattern=r"^C\d\d$", description="C and two digits")
    where: str = Field(min_length=1, description="the paper's section")
    text: str = Field(min_length=1, description="a text")
    reading: str = Field("", description="how the sentence was turned into a predicate, where that is a choice")
    predicate: Annotated[Simple | AllOf, Field(discriminator="kind")]
    alternatives: list[Alternative] = Field(default=[], description="other readings that the paper gives")


class Claims(Strict):
    """``workloads/claims.yml``."""

    format: Literal[1] = Field(description="1 (the version of this file's format)")
    claims: list[Claim] = Field(min_length=1, description="at least one claim")


@dataclass
class Judgement:
    """What was found about one predicate."""

    verdict: Verdict
    measured: float | None = None
    interval: list[float] | None = None
    evidence: list[str] = field(default_factory=list)
    note: str = ""
    qualifiers: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


def load(path: Path) -> list[Claim]:
    """Read and check the claims; raises InputError."""
    document = read(path)
    model = check(document, Claims)
    seen: set[str] = set()
    for index, claim in enumerate(model.claims):
        if claim.id in seen:
            raise document.error(("claims", index, "id"), f"{claim.id!r} stands twice: each claim has its own id")
        seen.add(claim.id)
    return model.claims


def judge_all(claims: list[Claim], table: pd.DataFrame, cells: Cells) -> list[dict[str, Any]]:
    """Judge every claim; the result is what ``claims.json`` holds. `cells` are the experiments' whole grids."""
    return [_entry(claim, table, cells) for claim in claims]


def write(entries: list[dict[str, Any]], directory: Path) -> None:
    """Write ``claims.json``."""
    write_json(directory / "claims.json", entries)


def _entry(claim: Claim, table: pd.DataFrame, cells: Cells) -> dict[str, Any]:
    judgement = judge(claim.predicate, table, cells)
    return {
        "id": claim.id,
        "verdict": judgement.verdict,
        "qualifiers": judgement.qualifiers,
        "measured": judgement.measured,
        "interval": judgement.interval,
        "evidence": judgement.evidence,
        "note": judgement.note,
        "claim": claim.text,
        "where": claim.where,
        "expected": expected(claim.predicate),
        "reading": claim.reading,
        "alternatives": [_alternative(a, table, cells) for a in claim.alternatives],
        "checks": [
            {"cell": c.label, "measured": c.value, "interval": c.interval, "holds": c.passed, "note": c.note}
            for c in judgement.checks
        ],
    }


def _alternative(alternative: Alternative, table: pd.DataFrame, cells: Cells) -> dict[str, Any]:
    judgement = judge(alternative.predicate, table, cells)
    return {
        "where": alternative.where,
        "claim": alternative.text,
        "expected": expected(alternative.predicate),
        "verdict": judgement.verdict,
        "qualifiers": judgement.qualifiers,
        "measured": judgement.measured,
        "interval": judgement.interval,
    }


def judge(predicate: Simple | AllOf, table: pd.DataFrame, cells: Cells) -> Judgement:
    """Judge one predicate; an exception in it makes the verdict *not measured*, with the exception as the note."""
    try:
        if isinstance(predicate, AllOf):
            return _judge_all_of(predicate, table, cells)
        return decide(predicate, checks(predicate, table), left_out(predicate, table, cells))
    except NotMeasuredError as reason:
        return Judgement(NOT_MEASURED, note=str(reason))
    except Exception as error:  # a crashing check is unknown, not a verdict
        return Judgement(NOT_MEASURED, note=f"could not be judged: {type(error).__name__}: {error}")


def decide(predicate: Simple, found: list[Check], omitted: str = "") -> Judgement:
    """Apply the quantifier to the checks; `omitted` says which cells the run leaves out."""
    verdict = _verdict(predicate, [c.passed for c in found])
    measured, interval = _measured(predicate, found)
    held = sum(c.passed is True for c in found)
    unknown = [c for c in found if c.passed is None]
    notes = [f"{held} of {len(found)} hold"] if len(found) > 1 else []
    if unknown:
        notes.append(f"{len(unknown)} could not be judged ({unknown[0].label}: {unknown[0].note})")
    if omitted:
        notes.append(f"not in this run: {omitted}")
    bounded = [c for c in found if c.passed is not None and c.note]
    if bounded:
        notes.append(bounded[0].note)
    evidence = list(dict.fromkeys(h for c in found for h in c.evidence))
    qualifiers = _qualifiers(predicate, verdict, found) + ([PART_OF_CELLS] if omitted else [])
    return Judgement(verdict, measured, interval, evidence, "; ".join(notes), qualifiers, found)


def _verdict(predicate: Simple, outcomes: list[bool | None]) -> Verdict:
    """Decide by the quantifier, and only if no outcome of the open checks could turn it."""
    held, unknown = sum(o is True for o in outcomes), sum(o is None for o in outcomes)
    needed = 1.0 if predicate.holds_in == "any" else predicate.share * len(outcomes)
    slack = 1e-9  # shares such as 0.9 of 10 must not fail by rounding
    if held >= needed - slack:
        return REPRODUCED
    return NOT_REPRODUCED if held + unknown < needed - slack else NOT_MEASURED


def _qualifiers(predicate: Simple, verdict: Verdict, found: list[Check]) -> list[str]:
    """Say what weakens a verdict: what it would not be given without, and bounds among its figures."""

    def rests_on(doubtful: Callable[[Check], bool]) -> bool:
        without = _verdict(predicate, [None if doubtful(c) else c.passed for c in found])
        return verdict not in (NOT_MEASURED, without)

    qualifiers = {
        ONE_TRIAL: rests_on(lambda c: c.trials == 1),
        AT_THE_LIMIT: rests_on(lambda c: not c.certain),
        **{text: rests_on(partial(_has, flag)) for flag, text in WEAKENS.items()},
        "lower bound": any(c.bound == "lower" for c in found),
        "upper bound": any(c.bound == "upper" for c in found),
    }
    return [text for text, applies in qualifiers.items() if applies]


def _has(flag: str, found: Check) -> bool:
    return flag in found.remarks


def _measured(predicate: Simple, found: list[Check]) -> tuple[float | None, list[float] | None]:
    """Choose the figure to show: the worst check where every cell counts, the best where any does, else a share."""
    known = [c for c in found if c.value is not None]
    if not known:
        return None, None
    if predicate.share < 1:
        judged = [c for c in found if c.passed is not None]
        return (sum(c.passed is True for c in judged) / len(judged) if judged else None), None
    choose = max if predicate.holds_in == "any" else min
    shown = choose(known, key=lambda c: _goodness(predicate, c.value or 0.0))
    return shown.value, shown.interval


def _goodness(predicate: Simple, value: float) -> float:
    """Order values so that the one furthest from the claim comes first."""
    if isinstance(predicate, WithinPercent):
        return -value
    if isinstance(predicate, Monotone):
        return value if predicate.direction == "rises" else -value
    at_least = getattr(predicate, "at_least", None)
    at_most = getattr(predicate, "at_most", None)
    if at_most is not None:
        return -value if at_least is None else -max(at_least - value, value - at_most)
    return value


def _judge_all_of(predicate: AllOf, table: pd.DataFrame, cells: Cells) -> Judgement:
    parts = [judge(part, table, cells) for part in predicate.of]
    verdicts = [p.verdict for p in parts]
    verdict = next((v for v in (NOT_REPRODUCED, NOT_MEASURED) if v in verdicts), REPRODUCED)
    known = [p for p in parts if p.verdict != NOT_MEASURED]
    notes = [
        f"({number}) {expected(part)}: {qualified(found.verdict, found.qualifiers)}"
        + (f", {found.note}" if found.note else "")
        for number, (part, found) in enumerate(zip(predicate.of, parts, strict=True), start=1)
    ]
    return Judgement(
        verdict,
        sum(p.verdict == REPRODUCED for p in known) / len(known) if known else None,
        None,
        list(dict.fromkeys(h for p in parts for h in p.evidence)),
        "; ".join(notes),
        _qualifiers_of_parts(verdict, parts),
        [c for p in parts for c in p.checks],
    )


def _qualifiers_of_parts(verdict: Verdict, parts: list[Judgement]) -> list[str]:
    """Combine the qualifiers of the parts that decide: one part suffices to refute, so one without doubt removes it."""
    deciding = [p for p in parts if p.verdict == verdict]
    every = dict.fromkeys(q for p in deciding for q in p.qualifiers)
    if verdict != NOT_REPRODUCED:
        return list(every)
    return [q for q in every if all(q in p.qualifiers for p in deciding)]


def qualified(verdict: str, qualifiers: list[str]) -> str:
    """Write a verdict with its qualifiers, as it is shown everywhere."""
    return f"{verdict} ({', '.join(qualifiers)})" if qualifiers else verdict


def _side(selector: dict[str, Any]) -> str:
    shown = (" or ".join(map(str, v)) if isinstance(v, list) else str(v) for v in selector.values())
    return " ".join(shown)


def _bounds(predicate: Any) -> str:
    low, high = predicate.at_least, predicate.at_most
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    return f"≥ {low:g}" if low is not None else f"≤ {high:g}"


def expected(predicate: Simple | AllOf) -> str:
    """Say what a predicate demands, in one phrase."""
    if isinstance(predicate, AllOf):
        return f"all of {len(predicate.of)} parts"
    if isinstance(predicate, Ratio):
        text = f"{_side(predicate.of)} / {_side(predicate.to)} {_bounds(predicate)}"
    elif isinstance(predicate, WithinPercent):
        text = f"{_side(predicate.of)} at most {predicate.percent:g} % worse than {_side(predicate.to)}"
    elif isinstance(predicate, Monotone):
        text = f"{predicate.metric} {predicate.direction} along {predicate.order} {predicate.along}"
    elif isinstance(predicate, Endpoints):
        text = f"{predicate.metric} at {predicate.end:g} / at {predicate.start:g} {_bounds(predicate)}"
    elif predicate.kind == "ratio_order":
        text = (
            f"{_side(predicate.of)} / {_side(predicate.to)} greater at {_side(predicate.greater_at)}"
            f" than at {_side(predicate.than_at)}"
        )
    elif predicate.kind == "linear":
        text = (
            f"{predicate.metric} grows linearly with {predicate.along}, r² ≥ {predicate.r2_at_least:g},"
            f" slope within {predicate.slope_change_at_most:g}-fold"
        )
    else:
        text = f"{predicate.metric} {_bounds(predicate)}"
    if predicate.holds_in == "any":
        return f"{text} in any cell"
    return text if predicate.share == 1 else f"{text} in {100 * predicate.share:g} % of the cells"
