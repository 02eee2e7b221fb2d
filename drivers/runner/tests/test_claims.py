"""Claims: every kind of predicate both ways, the quantifier over missing trials, and the file of all claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import TypeAdapter

from runner import claims, predicates
from runner.claims import NOT_MEASURED, NOT_REPRODUCED, REPRODUCED, AllOf, judge
from runner.plan import Trial

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
    assert found.note == "2 of 2 hold; one trial per cell, so no interval"
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
    assert found.interval == pytest.approx([9.0, 11.0])
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
    within = predicate(kind="within_percent", of={"system": "a"}, to={"system": "b"}, by=["skew"], percent=5)
    assert judge(within, table).verdict == NOT_MEASURED
    # Wrong reads are another matter: nothing follows from such a trial.
    table.loc[0, "flags"] = "verify_failed;client_saturated"
    assert judge(ratio(at_least=9), table).verdict == NOT_MEASURED
    # And a bound on the denominator makes the ratio an upper bound.
    table = rows(*pair(1.5, 100, 10))
    table.loc[1, ["status", "flags"]] = ["invalid", "client_saturated"]
    assert judge(ratio(at_least=9), table).verdict == NOT_MEASURED


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
    found = judge(ratio(at_least=9, where={"skew": [1.5, 1.25]}), rows(*pair(1.5, 100, 10)))
    assert found.verdict == REPRODUCED
    assert "not in this run: skew 1.25" in found.note


def test_a_crashing_predicate_is_not_a_verdict() -> None:
    table = rows(*pair(1.5, 100, 0.0))
    found = judge(ratio(at_least=9), table)
    assert found.verdict == NOT_MEASURED
    assert "ValueError" in found.note
    assert "zero" in found.note


def _paperlike(trial: Trial) -> float:
    """A throughput as the paper describes it: falls with data and with falling skew, aLRU 20 x MySQL at 8x."""
    cell = trial.cell
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
    entries = claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table(_paperlike))
    assert [e["id"] for e in entries] == [f"C{n:02d}" for n in range(1, 25)]
    verdicts = {e["id"]: e["verdict"] for e in entries}
    for entry in entries:
        assert {"id", "verdict", "measured", "interval", "evidence"} <= set(entry)
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
    entries = claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table(lambda _: 1000.0))
    verdicts = {e["id"]: e["verdict"] for e in entries}
    for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13):
        assert verdicts[f"C{number:02d}"] == NOT_REPRODUCED, number
    for number in (11, 12):
        assert verdicts[f"C{number:02d}"] == REPRODUCED, number


def test_a_system_that_failed_makes_its_claims_not_measured(table: MakeTable) -> None:
    without = table(lambda t: None if t.cell.system == "mysql" else _paperlike(t))
    entries = {e["id"]: e for e in claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), without)}
    assert entries["C01"]["verdict"] == NOT_MEASURED
    assert "deploy failed" in entries["C01"]["note"]
    assert entries["C04"]["verdict"] == REPRODUCED


def test_the_other_readings_of_c02_are_recorded(table: MakeTable) -> None:
    entries = {e["id"]: e for e in claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table(_paperlike))}
    alternatives = {a["where"]: a for a in entries["C02"]["alternatives"]}
    assert alternatives["abstract"]["verdict"] == REPRODUCED
    assert alternatives["§8"]["verdict"] == NOT_REPRODUCED, "40 times is more than 17"
