"""A comparison as text, as JSON and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table

from runner.compare.cells import ELAPSED, VERDICTS, Compared, Comparison, Measured, Side, Verdict, Whole
from runner.compare.differences import Difference
from runner.files import write_json
from runner.sample import THROUGHPUT
from runner.stats import CONFIDENCE, Estimate

FORMAT = 1
LONG_US = 10_000  # from here on latencies are written in milliseconds
MOST_DIFFERENCES = 24
UNITS = {THROUGHPUT: "txn/s", ELAPSED: "ms"}
BOUNDS = {"": "", "lower": "≥ ", "upper": "≤ ", "none": "about "}


def name_of(measured: Measured) -> str:
    """Name a run, with what it is of."""
    return f"{measured.run.name}, {measured.run.path}"


def verdict_of(verdict: Verdict, margin: float) -> str:
    """Write a verdict; *same* with what that means."""
    return f"same within {100 * margin:g} %" if verdict == "same" else verdict


def ratio_of(cell: Compared | Whole) -> str:
    """Write a ratio with its interval, and whether it is a bound."""
    if cell.ratio is None:
        return ""
    lead = BOUNDS[cell.bound] if isinstance(cell, Compared) else ""
    interval = cell.ratio.interval
    return f"{lead}{cell.ratio.value:.3g}" + (f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else "")


def tables(found: Comparison) -> Iterator[Table]:
    """Return a table for each experiment, and one of the systems as wholes."""
    for experiment, cells in groupby(found.cells, key=lambda cell: cell.experiment):
        listed = list(cells)
        unit = UNITS.get(listed[0].metric, "µs")
        table = Table(title=experiment, title_justify="left")
        table.add_column("cell")
        for name in (f"A {unit}", f"B {unit}", f"B / A [{100 * CONFIDENCE:g} %]", "p50 A, B", "p99 A, B"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        table.add_column("note")
        for cell in listed:
            p50 = _latencies(cell.a.latency_us_p50, cell.b.latency_us_p50)
            p99 = _latencies(cell.a.latency_us_p99, cell.b.latency_us_p99)
            verdict = verdict_of(cell.verdict, found.margin) + ("*" if cell.holds else "")
            table.add_row(cell.label, _mean(cell.a), _mean(cell.b), ratio_of(cell), p50, p99, verdict, cell.note)
        yield table
    table = Table("system", "cells", "B / A over its cells", "verdict", title="systems as wholes", title_justify="left")
    for whole in found.wholes:
        what = whole.system if whole.metric == THROUGHPUT else f"{whole.system}, {whole.metric}"
        verdict = verdict_of(whole.verdict, found.margin) + ("*" if whole.holds else "")
        table.add_row(what, str(whole.ratio.trials), ratio_of(whole), verdict)
    yield table


def differences_table(differences: list[Difference]) -> Table:
    """Return the table of what else differs, cut off where it gets long."""
    table = Table("what differs", "A", "B", "cells", title="between the runs", title_justify="left")
    for each in differences[:MOST_DIFFERENCES]:
        table.add_row(each.what, each.a, each.b, str(each.cells or ""))
    if len(differences) > MOST_DIFFERENCES:
        table.add_row(f"… and {len(differences) - MOST_DIFFERENCES} more: --json has them all")
    return table


def summary(found: Comparison) -> list[str]:
    """Return the closing lines: verdicts, what is by chance, what has no interval, what only one run has."""
    counts = ", ".join(f"{found.count(v)} {verdict_of(v, found.margin)}" for v in VERDICTS)
    lines = [f"{len(found.cells)} cells in both runs: B is {counts}"]
    if found.tested:
        held = sum(cell.holds for cell in found.cells)
        lines.append(
            f"of {len(found.tested)} cells with an interval up to {found.by_chance:.1f} would be called faster or"
            f" slower by chance alone; {held} hold when corrected for their number (Holm; *)"
        )
    if single := found.without_interval:
        far = found.far_apart(single)
        lines.append(
            f"{len(single)} cells have a single trial on a side, which says nothing about how much trials vary;"
            f" in {len(far)} of them B is more than {100 * found.margin:g} % away from A"
        )
    if gone := [c for c in found.cells if c.ratio is None]:
        lines.append(f"{len(gone)} cells have no usable trial on a side")
    lines += [f"only {u.run} has {u.experiment} {u.system}: {u.cells} cells" for u in found.unmatched]
    return lines


def _mean(side: Side) -> str:
    if side.mean is None:
        return "—"
    value = side.mean.value
    return f"{'≥ ' if side.sample.lower_bound else ''}{value:,.0f}" if value >= 100 else f"{value:.4g}"  # noqa: PLR2004


def _latencies(a_us: float | None, b_us: float | None) -> str:
    if a_us is None or b_us is None:
        return ""
    if max(a_us, b_us) >= LONG_US:
        return f"{a_us / 1e3:.4g}, {b_us / 1e3:.4g} ms"
    return f"{a_us:.4g}, {b_us:.4g} µs"


def document(found: Comparison, differences: list[Difference]) -> dict[str, Any]:
    """Return everything as one JSON value."""
    return {
        "format": FORMAT,
        "a": _run(found.a),
        "b": _run(found.b),
        "margin_percent": 100 * found.margin,
        "verdicts": {verdict: found.count(verdict) for verdict in VERDICTS},
        "expected_by_chance": found.by_chance,
        "cells": [_cell(cell) for cell in found.cells],
        "systems": [_whole(whole) for whole in found.wholes],
        "unmatched": [
            {"run": u.run, "experiment": u.experiment, "system": u.system, "cells": u.cells} for u in found.unmatched
        ],
        "differences": [{"what": d.what, "a": d.a, "b": d.b, "cells": d.cells} for d in differences],
    }


def _run(measured: Measured) -> dict[str, Any]:
    run, key = measured.run, measured.run.key
    return {"name": run.name, "created_at": run.meta.get("created_at", ""), "scale": key.scale, "disk": key.disk}


def _whole(whole: Whole) -> dict[str, Any]:
    of_what = {"system": whole.system, "metric": whole.metric, "cells": whole.ratio.trials}
    return {**of_what, **_estimate("ratio", whole.ratio), "verdict": whole.verdict, "holds": whole.holds}


def _cell(cell: Compared) -> dict[str, Any]:
    return {
        "experiment": cell.experiment,
        "cell": cell.cell,
        "metric": cell.metric,
        "a": _side(cell.a),
        "b": _side(cell.b),
        **_estimate("ratio", cell.ratio),
        "bound": cell.bound,
        "chance": cell.chance,
        "chance_corrected": cell.corrected,
        "verdict": cell.verdict,
        "holds": cell.holds,
        "note": cell.note,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        **_estimate("mean", side.mean),
        "trials": len(side.sample.values),
        "latency_us_p50": side.latency_us_p50,
        "latency_us_p99": side.latency_us_p99,
        "flags": sorted(side.sample.remarks),
        "evidence": side.sample.hashes,
    }


def _estimate(name: str, found: Estimate | None) -> dict[str, Any]:
    return {name: found.value if found else None, "interval": found.interval if found else None}


COLUMNS = (
    *("experiment", "cell", "system", "metric", "a_mean", "a_low", "a_high", "a_trials", "b_mean", "b_low", "b_high"),
    *("b_trials", "ratio", "ratio_low", "ratio_high", "bound", "chance", "chance_corrected"),
    *("a_latency_us_p50", "b_latency_us_p50", "a_latency_us_p99", "b_latency_us_p99", "verdict", "holds", "note"),
)


def _line(cell: Compared) -> dict[str, Any]:
    def bounds(name: str, found: Estimate | None, value: str) -> dict[str, Any]:
        known = found or Estimate(float("nan"), None, None, 0)
        return {value: found.value if found else None, f"{name}_low": known.low, f"{name}_high": known.high}

    same_name = ("experiment", "system", "metric", "bound", "verdict", "holds", "note")
    line = {name: getattr(cell, name) for name in same_name}
    line |= {"cell": cell.label, "chance": cell.chance, "chance_corrected": cell.corrected}
    line |= bounds("ratio", cell.ratio, "ratio")
    for name, side in (("a", cell.a), ("b", cell.b)):
        line |= bounds(name, side.mean, f"{name}_mean") | {f"{name}_trials": len(side.sample.values)}
        line |= {f"{name}_{which}": getattr(side, which) for which in ("latency_us_p50", "latency_us_p99")}
    return line


def write_document(path: Path, found: Comparison, differences: list[Difference]) -> None:
    """Write the JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, document(found, differences))


def write_csv(path: Path, found: Comparison) -> None:
    """Write one line for each cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_line(cell) for cell in found.cells)


def failing(found: Comparison, verdicts: tuple[Verdict, ...]) -> list[str]:
    """Name the systems and cells that have one of `verdicts`, where that holds among so many."""
    wholes = [f"{w.system} as a whole" for w in found.wholes if w.holds and w.verdict in verdicts]
    cells = [f"{c.experiment} {c.label}" for c in found.cells if c.holds and c.verdict in verdicts]
    return [*wholes, *cells]
