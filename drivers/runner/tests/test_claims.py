"""Claims: every kind of predicate both ways, the quantifier over missing trials, and the file of all claims."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import TypeAdapter

from runner import claims, collect, extent, predicates
from runner.axes import Cell
from runner.claims import NOT_MEASURED, NOT_REPRODUCED, REPRODUCED, AllOf, Judgement
from runner.disk import NODE_DISK
from runner.machine import CpuSets
from runner.plan import Trial, all_cells, make_plan
from runner.workload import Workload, load

ROOT = Path(__file__).resolve().parents[3]
MakeTable = Callable[..., pd.DataFrame]

BASE = {
    "mysql": 1000.0,
    "mysql-memcached": 2000.0,
    "anticache-lru": 19_000.0,
    "anticache-alru": 20_000.0,
    "anticache-off": 21_000.0,
}
HIGH = {"mix": "read-only", "data_memory_ratio": 8, "skew": [1.5, 1.25]}


def rows(*trials: tuple[dict[str, Any], float | None], experiment: str = "figXX") -> pd.DataFrame:
    """Builds a bare table: columns of each trial and its metric; None = failed."""
    return pd.DataFrame(
        [
            {
                "trial_hash": f"h{number:03d}",
                "experiment": experiment,
                "status": "ok" if value is not None else "failed",
                "reason": "" if value is not None else "mysqld died",
                "flags": "",
                "throughput_txn_s": value,
                **columns,
            }
            for number, (columns, value) in enumerate(trials)
        ]
    )


def judge(judged: Any, table: pd.DataFrame) -> Judgement:
    """Judges without a grid that says which cells there could be."""
    return claims.judge(judged, table, {})


def predicate(**values: Any) -> Any:
    adapter: TypeAdapter[Any] = TypeAdapter(predicates.Simple)
    return adapter.validate_python({"experiment": "figXX", **values})


def ratio(**values: Any) -> Any:
    return predicate(kind="ratio", of={"system": "a"}, to={"system": "b"}, by=["skew"], **values)


def pair(skew: float, a: float | None, b: float | None) -> list[tuple[dict[str, Any], float | None]]:
    return [({"system": "a", "skew": skew}, a), ({"system": "b", "skew": skew}, b)]


def test_ratio_takes_the_worst_cell() -> None:
    table = rows(*pair(1.5, 200, 10), *pair(1.25, 100, 10))
    found = judge(ratio(at_least=9), table)
    assert (found.verdict, found.measured) == (REPRODUCED, 10.0)
    assert (found.note, found.qualifiers) == ("2 of 2 hold", ["one trial"])
    assert found.evidence == ["h002", "h003", "h000", "h001"]
    assert judge(ratio(at_least=11), table).verdict == NOT_REPRODUCED
    assert judge(ratio(at_most=20), table).verdict == REPRODUCED
    assert judge(ratio(at_most=19), table).measured == 20.0
    assert judge(ratio(at_least=8, at_most=17), table).verdict == NOT_REPRODUCED
    assert judge(ratio(at_least=11, holds_in="any"), table).verdict == REPRODUCED
    assert judge(ratio(at_least=21, holds_in="any"), table).verdict == NOT_REPRODUCED


def test_ratio_uses_all_trials_of_a_cell_and_gives_an_interval() -> None:
    table = rows(*pair(1.5, 90, 10), *pair(1.5, 110, 10), *pair(1.5, 100, 10))
    found = judge(ratio(at_least=9), table)
    assert found.measured == pytest.approx(10.0)
    # log(10) ± t(0.975, 2) · 0.1 / √3: the numerator alone varies, by 10 %
    assert found.interval == pytest.approx(
        [10 * math.exp(-4.3027 * 0.1 / 3**0.5), 10 * math.exp(4.3027 * 0.1 / 3**0.5)], rel=1e-4
    )
    assert len(found.evidence) == 6


def test_missing_trials_decide_only_where_they_cannot_matter() -> None:
    good, bad, gone = pair(1.5, 100, 10), pair(1.25, 10, 10), pair(1.0, None, 10)
    found = judge(ratio(at_least=9), rows(*good, *gone))
    assert found.verdict == NOT_MEASURED
    assert "mysqld died" in found.note
    assert judge(ratio(at_least=9), rows(*good, *bad, *gone)).verdict == NOT_REPRODUCED
    assert judge(ratio(at_least=9, share=0.3), rows(*good, *bad, *gone)).verdict == REPRODUCED
    assert judge(ratio(at_least=9, share=0.5), rows(*good, *bad, *gone)).verdict == NOT_MEASURED
    assert judge(ratio(at_least=9, share=0.9), rows(*good, *bad, *gone)).verdict == NOT_REPRODUCED


def test_a_saturated_client_is_a_lower_bound() -> None:
    table = rows(*pair(1.5, 100, 10))
    table.loc[0, ["status", "flags", "reason"]] = ["invalid", "client_saturated", "the terminals used 97 %"]
    found = judge(ratio(at_least=9), table)
    assert found.verdict == REPRODUCED
    assert "lower bound" in found.note
    assert judge(ratio(at_least=11), table).verdict == NOT_MEASURED, "the true ratio may be above"
    assert judge(ratio(at_most=11), table).verdict == NOT_MEASURED
    # Wrong reads are another matter: nothing follows from such a trial.
    table.loc[0, "flags"] = "verify_failed;client_saturated"
    assert judge(ratio(at_least=9), table).verdict == NOT_MEASURED


def bounded(top: bool, bottom: bool) -> pd.DataFrame:
    """A ratio of 10 in one cell, a side of which was held back."""
    table = rows(*pair(1.5, 100, 10))
    for row, held_back in enumerate((top, bottom)):
        if held_back:
            table.loc[row, ["status", "flags"]] = ["invalid", "client_saturated"]
    return table


@pytest.mark.parametrize(
    ("top", "bottom", "limits", "verdict"),
    [
        # The true ratio is 10 or more.
        (True, False, {"at_least": 9}, REPRODUCED),
        (True, False, {"at_least": 11}, NOT_MEASURED),
        (True, False, {"at_most": 9}, NOT_REPRODUCED),
        (True, False, {"at_most": 11}, NOT_MEASURED),
        (True, False, {"at_least": 2, "at_most": 9}, NOT_REPRODUCED),
        (True, False, {"at_least": 9, "at_most": 11}, NOT_MEASURED),
        # It is 10 or less.
        (False, True, {"at_least": 11}, NOT_REPRODUCED),
        (False, True, {"at_least": 9}, NOT_MEASURED),
        (False, True, {"at_most": 11}, REPRODUCED),
        (False, True, {"at_most": 9}, NOT_MEASURED),
        # It may be anything.
        (True, True, {"at_least": 9}, NOT_MEASURED),
        (True, True, {"at_most": 9}, NOT_MEASURED),
    ],
)
def test_a_bound_decides_what_it_proves(top: bool, bottom: bool, limits: dict[str, float], verdict: str) -> None:
    found = judge(ratio(**limits), bounded(top, bottom))
    assert found.verdict == verdict
    expected = {(True, False): ["lower bound"], (False, True): ["upper bound"], (True, True): []}[top, bottom]
    assert [q for q in found.qualifiers if "bound" in q] == expected
    assert "terminals were saturated" in found.note


def test_bounds_in_percent_series_and_orders() -> None:
    within = predicate(kind="within_percent", of={"system": "a"}, to={"system": "b"}, by=["skew"], percent=5)
    assert judge(within, bounded(top=True, bottom=False)).verdict == REPRODUCED
    assert judge(within, bounded(top=True, bottom=False)).qualifiers == ["one trial", "upper bound"], "less is better"
    assert judge(within, bounded(top=False, bottom=True)).verdict == NOT_MEASURED
    falls = predicate(kind="monotone", along="x", direction="falls", series=["system"])
    table = points((1, 100), (2, 80))
    table.loc[0, ["status", "flags"]] = ["invalid", "client_saturated"]
    assert judge(falls, table).verdict == REPRODUCED, "it fell from 100 or more"
    table.loc[1, ["status", "flags"]] = ["invalid", "client_saturated"]
    assert judge(falls, table).verdict == NOT_MEASURED
    order = predicate(
        kind="ratio_order", of={"system": "a"}, to={"system": "b"}, by=["skew"], greater_at={"skew": 1.5},
        than_at={"skew": 1.0},
    )  # fmt: skip
    table = rows(*pair(1.5, 30, 10), *pair(1.0, 20, 10))
    table.loc[0, ["status", "flags"]] = ["invalid", "client_saturated"]
    assert judge(order, table).verdict == REPRODUCED
    table = rows(*pair(1.5, 30, 10), *pair(1.0, 20, 10))
    table.loc[2, ["status", "flags"]] = ["invalid", "client_saturated"]
    assert judge(order, table).verdict == NOT_MEASURED


def test_saturated_trials_are_not_left_out_of_a_cell() -> None:
    # The fastest trials saturate the terminals: the mean of the others alone would be 100.
    table = rows(*pair(1.5, 100, 10), *pair(1.5, 200, 10))
    table.loc[2, ["status", "flags"]] = ["invalid", "client_saturated;not_settled"]
    found = judge(ratio(at_least=9), table)
    assert (found.verdict, found.measured) == (REPRODUCED, 15.0)
    assert "lower bound" in found.qualifiers
    table.loc[2, "flags"] = "client_saturated;verify_failed"
    found = judge(ratio(at_least=9), table)
    assert (found.measured, found.qualifiers) == (10.0, ["one trial"])


def test_a_saturated_trial_bounds_nothing_but_throughput() -> None:
    table = rows(*pair(1.5, 100, 10))
    table["latency_us_p99"] = 5.0
    table.loc[0, ["status", "flags"]] = ["invalid", "client_saturated"]
    assert judge(ratio(at_least=0.5, metric="latency_us_p99"), table).verdict == NOT_MEASURED


def test_an_interval_that_contains_the_limit_is_said() -> None:
    def trials(skew: float, *tops: float) -> list[tuple[dict[str, Any], float | None]]:
        return [trial for top in tops for trial in pair(skew, top, 10)]

    near, far, low = trials(1.5, 92, 100, 108), trials(1.25, 290, 300, 310), trials(1.0, 9, 10, 11)
    assert judge(ratio(at_least=9), rows(*near)).qualifiers == ["the interval contains the limit"]
    assert judge(ratio(at_least=11), rows(*near)).qualifiers == ["the interval contains the limit"]
    assert judge(ratio(at_least=9), rows(*far)).qualifiers == []
    assert judge(ratio(at_least=9), rows(*near, *far)).qualifiers == ["the interval contains the limit"]
    assert judge(ratio(at_least=11), rows(*near, *low)).qualifiers == [], "the other cell refutes it without doubt"
    assert judge(ratio(at_least=9, holds_in="any"), rows(*near, *far)).qualifiers == []
    order = predicate(
        kind="ratio_order", of={"system": "a"}, to={"system": "b"}, by=["skew"], greater_at={"skew": 1.5},
        than_at={"skew": 1.0},
    )  # fmt: skip
    found = judge(order, rows(*near, *trials(1.0, 90, 96, 104)))
    assert (found.verdict, found.qualifiers) == (REPRODUCED, ["the interval contains the limit"])
    falls = predicate(kind="monotone", along="skew", direction="falls", series=["system"], where={"system": "a"})
    found = judge(falls, rows(*trials(1.0, 92, 100, 108), *trials(1.5, 90, 96, 104)))
    assert (found.verdict, found.qualifiers) == (REPRODUCED, ["the interval contains the limit"])


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("not_settled", "throughput not settled"),
        ("cpu_stolen", "stolen CPU time"),
        ("machine_busy", "a busy machine"),
        ("outlier", "an outlier among its trials"),
        ("noisy_cell", "a noisy cell"),
        ("disk_unlike_model", "disk unlike its model"),
    ],
)
def test_a_remark_on_trials_that_the_verdict_rests_on_is_said(flag: str, text: str) -> None:
    def of(skew: float, *tops: float) -> list[tuple[dict[str, Any], float | None]]:
        return [trial for top in tops for trial in pair(skew, top, 10)]

    table = rows(*of(1.5, 100, 101, 102), *of(1.0, 200, 201, 202))
    table.loc[0, "flags"] = f"events_lost;{flag}"
    assert judge(ratio(at_least=9), table).qualifiers == [text]
    assert judge(ratio(at_least=50), table).qualifiers == [], "the other cell refutes it alone"
    assert judge(ratio(at_least=9, holds_in="any"), table).qualifiers == [], "the other cell proves it alone"
    series = {"along": "skew", "series": ["system"], "where": {"system": "a"}}
    for judged in (
        predicate(kind="monotone", order="falling", direction="rises", **series),
        predicate(kind="endpoints", end=1.0, start=1.5, at_least=1.5, **series),
        predicate(kind="value", at_least=50, by=["skew"], where={"system": "a"}),
        predicate(
            kind="ratio_order", of={"system": "a"}, to={"system": "b"}, by=["skew"], greater_at={"skew": 1.0},
            than_at={"skew": 1.5},
        ),
        predicate(kind="within_percent", of={"system": "a"}, to={"system": "b"}, by=["skew"], percent=5),
    ):  # fmt: skip
        found = judge(judged, table)
        assert (found.verdict, found.qualifiers) == (REPRODUCED, [text]), judged.kind
    line = rows(*of(1.5, 100, 101, 102), *of(1.0, 200, 201, 202), *of(0.5, 300, 301, 302))
    line.loc[0, "flags"] = flag
    line["skew"] = -line["skew"]
    assert judge(predicate(kind="linear", r2_at_least=0.99, **series), line).qualifiers == [text]


def test_the_qualifiers_of_several_parts() -> None:
    table = rows(*pair(1.5, 100, 10), *[trial for top in (290, 300, 310) for trial in pair(1.0, top, 10)])
    one, three = {"skew": 1.5}, {"skew": 1.0}
    both = AllOf(kind="all_of", of=[ratio(at_least=9, where=one), ratio(at_least=9, where=three)])
    assert judge(both, table).qualifiers == ["one trial"], "each part is needed to prove it"
    both = AllOf(kind="all_of", of=[ratio(at_least=99, where=one), ratio(at_least=99, where=three)])
    assert judge(both, table).qualifiers == [], "the second part suffices to refute it"


def test_within_percent() -> None:
    within = predicate(kind="within_percent", of={"system": "a"}, to={"system": "b"}, by=["skew"], percent=7)
    found = judge(within, rows(*pair(1.5, 95, 100), *pair(1.0, 99, 100)))
    assert found.verdict == REPRODUCED
    assert found.measured == pytest.approx(5.0)
    assert judge(within, rows(*pair(1.5, 92, 100))).verdict == NOT_REPRODUCED
    assert judge(within, rows(*pair(1.5, 130, 100))).verdict == REPRODUCED, "being better is within"
    slower = within.model_copy(update={"better": "lower"})
    assert judge(slower, rows(*pair(1.5, 110, 100))).verdict == NOT_REPRODUCED
    assert judge(slower, rows(*pair(1.5, 105, 100))).verdict == REPRODUCED


def points(*values: tuple[float, float | None]) -> pd.DataFrame:
    return rows(*[({"system": "a", "x": x}, y) for x, y in values])


def test_a_comparison_of_different_machines_is_said() -> None:
    table = rows(*pair(1.5, 100, 10), *pair(1.5, 100, 10), *pair(1.0, 200, 10), *pair(1.0, 200, 10))
    one, other = "A CPU, 2 cores, 8 GiB, kernel 6.1", "B CPU, 2 cores, 8 GiB, kernel 6.1"
    table["machine"] = one
    assert judge(ratio(at_least=9), table).qualifiers == []
    table.loc[2:3, "machine"] = other
    assert judge(ratio(at_least=9), table).qualifiers == [], "both sides have a trial of either"
    table.loc[3, "machine"] = one
    assert judge(ratio(at_least=9), table).qualifiers == ["different machines"]
    table.loc[2, "machine"] = one.replace("6.1", "6.2")
    assert judge(ratio(at_least=9), table).qualifiers == [], "another kernel is a warning of the run"


def test_a_comparison_of_different_code_is_said() -> None:
    table = rows(*pair(1.5, 100, 10), *pair(1.5, 100, 10))
    table["shaping_code"] = ["a", "b", "b", "b"]
    assert judge(ratio(at_least=9), table).qualifiers == ["different code"]
    table.loc[3, "shaping_code"] = "a"
    assert judge(ratio(at_least=9), table).qualifiers == [], "both sides have a trial of either"


def test_bounds_have_a_limit() -> None:
    with pytest.raises(ValueError, match="neither at_least nor at_most"):
        ratio()


@pytest.mark.parametrize(
    ("values", "direction", "order", "verdict"),
    [
        ([(1, 100), (2, 80), (4, 50)], "falls", "rising", REPRODUCED),
        ([(1, 100), (2, 103), (4, 50)], "falls", "rising", REPRODUCED),  # 3 % up is noise
        ([(1, 100), (2, 110), (4, 50)], "falls", "rising", NOT_REPRODUCED),
        ([(1, 100), (2, 99), (4, 101)], "falls", "rising", NOT_REPRODUCED),  # ends above its start
        ([(1, 50), (2, 80), (4, 100)], "rises", "rising", REPRODUCED),
        ([(1, 50), (2, 80), (4, 100)], "falls", "falling", REPRODUCED),
        ([(1, 50), (2, 80), (4, 100)], "rises", "falling", NOT_REPRODUCED),
        ([(1, 100), (2, None), (4, 50)], "falls", "rising", NOT_MEASURED),
    ],
)
def test_monotone(values: list[tuple[float, float | None]], direction: str, order: str, verdict: str) -> None:
    tested = predicate(kind="monotone", along="x", direction=direction, order=order, series=["system"])
    assert judge(tested, points(*values)).verdict == verdict


def test_endpoints() -> None:
    tested = predicate(kind="endpoints", along="x", end=8, start=1, at_least=0.8, series=["system"])
    found = judge(tested, points((1, 100), (4, 10), (8, 85)))
    assert (found.verdict, found.measured) == (REPRODUCED, 0.85)
    assert judge(tested, points((1, 100), (8, 70))).verdict == NOT_REPRODUCED
    assert judge(tested, points((1, 100), (8, None))).verdict == NOT_MEASURED


def test_ratio_order() -> None:
    tested = predicate(
        kind="ratio_order",
        of={"system": "a"},
        to={"system": "b"},
        by=["skew"],
        greater_at={"skew": 1.5},
        than_at={"skew": [1.0, 0.5]},
    )
    table = rows(*pair(1.5, 30, 10), *pair(1.0, 20, 10), *pair(0.5, 10, 10))
    found = judge(tested, table)
    assert (found.verdict, found.measured) == (REPRODUCED, 1.5)
    assert judge(tested, rows(*pair(1.5, 30, 10), *pair(1.0, 40, 10), *pair(0.5, 10, 10))).verdict == NOT_REPRODUCED
    assert judge(tested, rows(*pair(1.5, 30, 10), *pair(1.0, None, 10))).verdict == NOT_MEASURED
    assert judge(tested, rows(*pair(1.5, 30, 10))).verdict == NOT_MEASURED


def test_linear() -> None:
    tested = predicate(kind="linear", along="x", r2_at_least=0.95, series=["system"])
    assert judge(tested, points((1, 10), (2, 20.5), (4, 39), (8, 81))).verdict == REPRODUCED
    assert judge(tested, points((1, 10), (2, 50), (4, 12), (8, 40))).verdict == NOT_REPRODUCED
    assert judge(tested, points((1, 10), (2, 20))).verdict == NOT_MEASURED
    bent = judge(tested, points((1, 1), (2, 2.8), (4, 8), (8, 22.6), (16, 64)))
    assert (bent.verdict, round(bent.measured or 0, 2)) == (NOT_REPRODUCED, 0.98), "x to the power of 1.5"
    assert bent.checks[0].note == "its slope changes 2-fold"
    falling, constant = points((1, 80), (2, 70), (4, 50)), points((1, 10), (2, 10), (4, 10))
    assert judge(tested, falling).verdict == NOT_REPRODUCED, "a straight line, but nothing grows"
    assert (judge(tested, constant).verdict, judge(tested, constant).measured) == (NOT_REPRODUCED, 0.0)


def test_value() -> None:
    tested = predicate(kind="value", by=["system"], at_most=1)
    assert judge(tested, points((1, 0.8))).verdict == REPRODUCED
    assert judge(tested, points((1, 1.2))).verdict == NOT_REPRODUCED
    assert judge(tested, points((1, None))).verdict == NOT_MEASURED


def test_all_of() -> None:
    table = rows(*pair(1.5, 100, 10))
    good, bad = ratio(at_least=9), ratio(at_least=11)
    gone = ratio(at_least=9, where={"skew": 0.5})
    assert judge(AllOf(kind="all_of", of=[good, good]), table).verdict == REPRODUCED
    found = judge(AllOf(kind="all_of", of=[good, bad, gone]), table)
    assert found.verdict == NOT_REPRODUCED
    assert "(2)" in found.note
    assert judge(AllOf(kind="all_of", of=[good, gone]), table).verdict == NOT_MEASURED


def test_nothing_to_judge_by_is_said() -> None:
    table = rows(*pair(1.5, 100, 10))
    assert (
        judge(ratio(at_least=1).model_copy(update={"experiment": "fig99"}), table).note
        == "no trials of fig99 in this run"
    )
    assert judge(ratio(at_least=1, metric="elapsed_ms"), table).note == "the trials have no elapsed_ms"
    assert judge(ratio(at_least=1, where={"chain": "double"}), table).note == "the trials have no chain"
    assert "none of the cells" in judge(ratio(at_least=1, where={"skew": 0.5}), table).note


def test_cells_that_the_scale_leaves_out_are_named() -> None:
    cells = [Cell(system, "m", skew, x) for system in ("a", "b") for skew in (1.5, 1.25) for x in (1.0, 8.0)]
    whole = {"figXX": extent.table_of(cells)}
    present = [
        ({"system": c.system, "mix": c.mix, "skew": c.skew, "data_memory_ratio": c.data_memory_ratio}, value)
        for c, value in zip(cells, (100.0, 100.0, 100.0, 100.0, 10.0, 10.0, 10.0, 10.0), strict=True)
    ]
    by = ["skew", "data_memory_ratio"]
    named = ratio(at_least=9).model_copy(update={"by": by})
    table = rows(*[row for row in present if row[0]["skew"] == 1.5])
    found = claims.judge(named, table, whole)
    assert (found.verdict, found.qualifiers) == (REPRODUCED, ["one trial", "part of its cells"])
    assert "not in this run: 4 of 8 cells (skew 1.25)" in found.note
    only = named.model_copy(update={"where": {"skew": 1.5}})
    assert claims.judge(only, table, whole).qualifiers == ["one trial"], "the claim names no other cell"
    without_one = claims.judge(named, rows(*present[1:]), whole)
    assert "1 of 8 cells (a m s=1.5 1x)" in without_one.note
    assert claims.judge(named, rows(*present), whole).qualifiers == ["one trial"]


def test_a_smaller_scale_judges_part_of_the_claims_cells(smoke: Workload, table: MakeTable) -> None:
    whole = dataclasses.replace(smoke, grid=smoke.experiment.grid)
    full = table(_paperlike)
    at_smoke = full[full["skew"].isin(smoke.grid.values("skew"))]
    at_smoke = at_smoke[at_smoke["data_memory_ratio"].isin(smoke.grid.values("data_memory_ratio"))]
    listed = claims.load(ROOT / "workloads" / "claims.yml")
    entries = claims.judge_all(listed, at_smoke, {"fig06": extent.table_of(all_cells(whole))})
    part = {e["id"] for e in entries if "part of its cells" in e["qualifiers"]}
    assert part == {f"C{n:02d}" for n in range(1, 13)}, "C13 speaks of 1x at s = 1.5 and 0.5 only, all of it there"
    notes = {e["id"]: e["note"] for e in entries}
    assert "skew 1.25" in notes["C01"]
    assert "skew 1.25, 1, 0.75; data_memory_ratio 2, 4" in notes["C07"]
    entries = claims.judge_all(listed, full, {"fig06": extent.table_of(all_cells(whole))})
    assert not any("part of its cells" in e["qualifiers"] for e in entries)
    assert all("one trial" in e["qualifiers"] for e in entries if e["verdict"] != NOT_MEASURED)


def test_a_crashing_predicate_is_not_a_verdict() -> None:
    table = rows(*pair(1.5, 100, 0.0))
    found = judge(ratio(at_least=9), table)
    assert found.verdict == NOT_MEASURED
    assert "ValueError" in found.note
    assert "zero" in found.note


def _paperlike(trial: Trial) -> float:
    """A throughput as the paper describes it: falls with data and with falling skew, aLRU 20 x MySQL at 8x."""
    cell = trial.cell
    assert cell.mix is not None
    assert cell.skew is not None
    level: float = BASE[cell.system] * (0.5 + cell.skew) / cell.data_memory_ratio**0.1
    if cell.system == "mysql" and cell.mix != "read-only" and cell.skew > 1:
        level /= 2
    if cell.system == "mysql-memcached":
        level *= {"read-only": 0.3 + 0.4 * cell.skew, "read-heavy": 0.24, "write-heavy": 0.2}[cell.mix]
        level *= 0.5 if cell.skew == 0.5 else 1
    if cell.system == "anticache-lru":
        level *= 0.5 + cell.skew / 3
    return level


def test_all_claims_stand_in_the_file_and_are_judged(table: MakeTable) -> None:
    entries = claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table(_paperlike), {})
    assert [e["id"] for e in entries] == [f"C{n:02d}" for n in range(1, 25)]
    verdicts = {e["id"]: e["verdict"] for e in entries}
    for entry in entries:
        assert {"id", "verdict", "qualifiers", "measured", "interval", "evidence"} <= set(entry)
        assert "could not be judged" not in entry["note"], entry
        if entry["id"] > "C13":
            assert entry["verdict"] == NOT_MEASURED
            assert entry["note"]
        else:
            assert entry["evidence"], entry["id"]
    judged = {i for i, v in verdicts.items() if v != NOT_MEASURED}
    assert judged == {f"C{n:02d}" for n in range(1, 14)}
    assert {i for i in judged if verdicts[i] == NOT_REPRODUCED} == {"C08"}, (
        "C10 contradicts C08 for MySQL, see its reading"
    )


def test_the_claims_are_not_reproduced_when_all_systems_are_equal(table: MakeTable) -> None:
    entries = claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table(lambda _: 1000.0), {})
    verdicts = {e["id"]: e["verdict"] for e in entries}
    for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13):
        assert verdicts[f"C{number:02d}"] == NOT_REPRODUCED, number
    for number in (11, 12):
        assert verdicts[f"C{number:02d}"] == REPRODUCED, number


def test_a_system_that_failed_makes_its_claims_not_measured(table: MakeTable) -> None:
    without = table(lambda t: None if t.cell.system == "mysql" else _paperlike(t))
    entries = {e["id"]: e for e in claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), without, {})}
    assert entries["C01"]["verdict"] == NOT_MEASURED
    assert "deploy failed" in entries["C01"]["note"]
    assert entries["C04"]["verdict"] == REPRODUCED


def test_the_other_readings_of_c02_are_recorded(table: MakeTable) -> None:
    entries = {
        e["id"]: e for e in claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table(_paperlike), {})
    }
    alternatives = {a["where"]: a for a in entries["C02"]["alternatives"]}
    assert alternatives["abstract"]["verdict"] == REPRODUCED
    assert alternatives["§8"]["verdict"] == NOT_REPRODUCED, "40 times is more than 17"


MakeRun = Callable[[Any], Any]


def _table_of(names: list[str], new_run: MakeRun, record_trial: Callable[..., None], figure: Any) -> pd.DataFrame:
    """The collected table of figures at scale laptop whose throughput a function of the cell gives."""
    loaded = [load(ROOT / "workloads", name, "laptop") for name in names]
    plan = make_plan(loaded, CpuSets("0", "1"), NODE_DISK)
    run = new_run(plan)
    for trial in plan.trials:
        record_trial(run, trial, figure(trial.cell) * (1 + trial.index / 100))
    return collect.collect(run)


def _tpcc_like_the_paper(cell: Cell) -> float:
    level = {"mysql": 1000.0, "mysql-memcached": 800.0}.get(cell.system, 10_000.0)
    return level * (1 - 0.02 * cell.data_memory_ratio if cell.system.startswith("anticache") else 1)


def _judged(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    whole = {
        name: extent.table_of(all_cells(load(ROOT / "workloads", name, "laptop"))) for name in set(table["experiment"])
    }
    return {e["id"]: e for e in claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table, whole)}


def test_the_claims_about_tpcc_both_ways(new_run: MakeRun, record_trial: Callable[..., None]) -> None:
    entries = _judged(_table_of(["fig07"], new_run, record_trial, _tpcc_like_the_paper))
    for name in ("C14", "C15", "C16"):
        assert (entries[name]["verdict"], entries[name]["qualifiers"]) == (REPRODUCED, []), entries[name]
    assert entries["C15"]["measured"] == pytest.approx(0.84 / 0.98)
    entries = _judged(_table_of(["fig07"], new_run, record_trial, lambda cell: 1000 / cell.data_memory_ratio))
    verdicts = {name: entries[name]["verdict"] for name in ("C14", "C15", "C16")}
    assert verdicts == {"C14": NOT_REPRODUCED, "C15": NOT_REPRODUCED, "C16": REPRODUCED}, "equal is not faster"


def test_both_other_architectures_have_to_be_slower(new_run: MakeRun, record_trial: Callable[..., None]) -> None:
    """Seven times the mean of the two is not seven times each."""
    levels = {"mysql": 1800.0, "mysql-memcached": 100.0}
    table = _table_of(["fig07"], new_run, record_trial, lambda cell: levels.get(cell.system, 10_000.0))
    assert _judged(table)["C14"]["verdict"] == NOT_REPRODUCED


def test_an_inconsistent_trial_proves_nothing(new_run: MakeRun, record_trial: Callable[..., None]) -> None:
    table = _table_of(["fig07"], new_run, record_trial, _tpcc_like_the_paper)
    mysql = table["system"] == "mysql"
    table.loc[mysql, ["status", "flags", "reason"]] = ["invalid", "inconsistent", "3 violations"]
    entry = _judged(table)["C16"]
    assert entry["verdict"] == NOT_MEASURED
    assert "invalid: 3 violations" in entry["note"]


def test_part_of_figure_7_is_said(new_run: MakeRun, record_trial: Callable[..., None]) -> None:
    table = _table_of(["fig07"], new_run, record_trial, _tpcc_like_the_paper)
    entries = _judged(table[table["data_memory_ratio"].isin([1, 4])])
    assert entries["C14"]["verdict"] == REPRODUCED
    assert entries["C14"]["qualifiers"] == ["part of its cells"]
    assert "data_memory_ratio 2, 8" in entries["C14"]["note"]
    assert entries["C15"]["verdict"] == NOT_MEASURED


def test_the_claim_about_evictions_both_ways(new_run: MakeRun, record_trial: Callable[..., None]) -> None:
    table = _table_of(["fig12"], new_run, record_trial, lambda _: 1000.0)
    ycsb = table["benchmark"] == "ycsb"
    assert sorted(table["mix"].unique()) == ["", "read-heavy"], "an axis that TPC-C does not have"
    table["evictions_per_s"] = ycsb.map({True: 40.0, False: 2.0})
    table["throughput_variation"] = ycsb.map({True: 0.2, False: 0.05})
    table["throughput_share_at_evictions"] = 0.9
    entry = _judged(table)["C24"]
    assert (entry["verdict"], entry["qualifiers"]) == (REPRODUCED, []), entry
    assert _judged(table.assign(evictions_per_s=5.0))["C24"]["verdict"] == REPRODUCED, "at most as many"
    unsteady = table.assign(throughput_variation=ycsb.map({True: 0.05, False: 0.2}))
    assert _judged(unsteady)["C24"]["verdict"] == NOT_REPRODUCED
    everywhere = table.assign(throughput_share_at_evictions=pd.array([None] * len(table), dtype="Float64"))
    entry = _judged(everywhere)["C24"]
    assert entry["verdict"] == NOT_MEASURED
    assert "ok: no throughput_share_at_evictions" in entry["note"]
