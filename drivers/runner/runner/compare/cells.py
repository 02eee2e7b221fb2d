"""The cells that two runs have in common, each with the ratio B / A, its interval and a verdict.

A cell is one point of an experiment's grid, so runs on other machines, disks, settings or code have the same cells. Of
each the trials are used that stand for it everywhere (`runner.sample`).

A verdict says no more than the trials do. *same*: the interval of the ratio lies within the margin. *faster*, *slower*:
it lies beyond 1. *cannot tell*: anything else, as with a single trial on a side, which has no interval. The interval is
of 95 % for each cell by itself: of many cells without any difference one in twenty is called faster or slower. So there
are also the probabilities corrected for the number of cells (Holm), and each system as a whole: the geometric mean of
its ratios, with the interval over its cells, which single trials suffice for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from runner import stats
from runner.axes import AXES, written
from runner.checks import NOTES, Bound, Figure, quotient
from runner.errors import InputError
from runner.sample import THROUGHPUT, Sample, sample
from runner.stats import Estimate
from runner.store import Run
from runner.systems import SYSTEMS
from runner.yamlfile import nearest

Verdict = Literal["faster", "slower", "same", "cannot tell"]
FASTER: Verdict = "faster"
SLOWER: Verdict = "slower"
SAME: Verdict = "same"
CANNOT_TELL: Verdict = "cannot tell"
VERDICTS: tuple[Verdict, ...] = (FASTER, SLOWER, SAME, CANNOT_TELL)
ELAPSED = "elapsed_ms"
"""What microbenchmarks measure instead."""
Metric = Literal["throughput_txn_s", "latency_us_p50", "latency_us_p95", "latency_us_p99", "latency_us_p999"]
"""What cells can be compared by; of a latency, as of a time, less is faster."""
LATENCIES = ("latency_us_p50", "latency_us_p95", "latency_us_p99", "latency_us_p999")
READ = ("trial_hash", "status", "flags", "reason", "started_at", "ended_at", THROUGHPUT, ELAPSED, *LATENCIES)
"""The columns that a comparison needs."""
LIMIT = 1 - stats.CONFIDENCE

Key = tuple[str, tuple[tuple[str, str], ...]]
"""An experiment and a cell's coordinates as text."""


@dataclass(frozen=True)
class Measured:
    """A run with its table."""

    run: Run
    table: pd.DataFrame

    def cells(self) -> dict[Key, list[dict[str, Any]]]:
        """Return the planned trials of every cell, in the plan's order, by trial number."""
        found: dict[Key, list[dict[str, Any]]] = {}
        for trial in self.run.trials:
            coordinates = tuple(sorted((name, written(value)) for name, value in trial["cell"].items()))
            found.setdefault((trial["experiment"], coordinates), []).append(trial)
        return {key: sorted(trials, key=lambda t: int(t["trial"])) for key, trials in found.items()}

    def rows(self, cells: Iterable[list[dict[str, Any]]]) -> Iterator[pd.DataFrame]:
        """Yield, for each cell's planned trials, what the table has of them."""
        # All columns would take ten times as long.
        read = self.table[list(READ)].set_index("trial_hash", drop=False).rename_axis(None)
        for trials in cells:
            yield read.loc[[t["hash"] for t in trials if t["hash"] in read.index]]


@dataclass(frozen=True)
class Side:
    """What one run measured in a cell; `mean` is None where no trial can be used, `missing` says why."""

    mean: Estimate | None
    sample: Sample
    latency_us_p50: float | None
    latency_us_p99: float | None

    @property
    def missing(self) -> str:
        """Say why no ratio can be made of it; empty where one can."""
        return "nothing was done" if self.mean is not None and self.mean.value == 0 else self.sample.missing


@dataclass(frozen=True)
class Compared:
    """One cell in both runs."""

    experiment: str
    cell: dict[str, Any]
    metric: str
    a: Side
    b: Side
    ratio: Estimate | None
    """B / A; of a throughput more than 1 is faster, of a time or latency less."""
    bound: Bound = ""
    chance: float | None = None
    """That a difference like this comes about where there is none (Welch); None without an interval."""
    corrected: float | None = None
    """The same, corrected for the number of cells (Holm)."""
    verdict: Verdict = CANNOT_TELL
    note: str = ""

    @property
    def system(self) -> str:
        """Return the system under test."""
        return str(self.cell["system"])

    @property
    def label(self) -> str:
        """Name the cell within its experiment, its system first."""
        named = [axis for axis in AXES if axis.name in self.cell]
        return " ".join(axis.shown.format(written(self.cell[axis.name])) for axis in named)

    @property
    def holds(self) -> bool:
        """Tell whether a verdict of faster or slower stays when it is corrected for the number of cells."""
        return self.verdict in (FASTER, SLOWER) and self.corrected is not None and self.corrected < LIMIT


@dataclass(frozen=True)
class Whole:
    """A system over all of its cells: the geometric mean of its ratios, with the interval over the cells."""

    system: str
    metric: str
    ratio: Estimate
    """`trials` is the number of cells."""
    verdict: Verdict
    holds: bool = False
    """Whether faster or slower stays when it is corrected for the number of systems (Holm)."""


@dataclass(frozen=True)
class Unmatched:
    """Cells that only one of the runs has planned."""

    run: Literal["A", "B"]
    experiment: str
    system: str
    cells: int


@dataclass(frozen=True)
class Comparison:
    """Everything that two runs say together."""

    a: Measured
    b: Measured
    margin: float
    """How far from 1 a ratio may lie and still be called the same, as a share."""
    cells: list[Compared]
    wholes: list[Whole]
    unmatched: list[Unmatched]
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    """The first planned trials, of A and of B, of every cell in common."""

    def count(self, verdict: Verdict) -> int:
        """Count the cells with a verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    @property
    def tested(self) -> list[Compared]:
        """Return the cells whose difference could be tested."""
        return [cell for cell in self.cells if cell.chance is not None]

    @property
    def by_chance(self) -> float:
        """Return how many of the tested cells would be called faster or slower if none were."""
        return LIMIT * len(self.tested)

    @property
    def without_interval(self) -> list[Compared]:
        """Return the cells that have a ratio of single trials, and nothing that says how sure it is."""
        return [c for c in self.cells if c.ratio is not None and c.ratio.interval is None and c.verdict == CANNOT_TELL]

    def far_apart(self, cells: Iterable[Compared]) -> list[Compared]:
        """Return those of `cells` whose ratio lies outside the margin, whatever that is worth."""
        return [c for c in cells if c.ratio is not None and not _within(c.ratio.value, c.ratio.value, self.margin)]


def compare(
    a: Measured,
    b: Measured,
    margin: float = 0.05,
    *,
    experiments: Sequence[str] = (),
    systems: Sequence[str] = (),
    metric: Metric = THROUGHPUT,
) -> Comparison:
    """Compare the cells of `a` and `b` that `experiments` and `systems` choose; empty means all.

    Microbenchmarks are compared by their times whatever `metric` is.

    Raises InputError for runs of different scales, a name that neither has, and runs without a common cell.
    """
    if a.run.key.scale != b.run.key.scale:
        raise InputError(
            f"A ({a.run.path}) is of scale {a.run.key.scale}, B ({b.run.path}) of scale {b.run.key.scale}: their cells"
            " are different workloads; compare runs of one scale"
        )
    ours, theirs = a.cells(), b.cells()
    chosen = _chosen({**ours, **theirs}, experiments, systems)
    common = sorted((key for key in chosen if key in ours and key in theirs), key=lambda key: _order(ours[key][0]))
    if not common:
        among = " among those chosen" if experiments or systems else ""
        raise InputError(
            f"A ({a.run.path}) and B ({b.run.path}) have no cell in common{among}: A has {_experiments(ours)}, B"
            f" {_experiments(theirs)}"
        )
    sides = zip(a.rows(ours[key] for key in common), b.rows(theirs[key] for key in common), strict=True)
    found = [_cell(ours[key][0], *rows, margin, metric) for key, rows in zip(common, sides, strict=True)]
    cells = _corrected(found)
    unmatched = [*_only("A", chosen, ours, theirs), *_only("B", chosen, theirs, ours)]
    pairs = [(ours[key][0], theirs[key][0]) for key in common]
    return Comparison(a, b, margin, cells, _wholes(cells, margin), unmatched, pairs)


def _chosen(every: Mapping[Key, object], experiments: Sequence[str], systems: Sequence[str]) -> list[Key]:
    """Return the cells of some experiments and systems; raises InputError for one that is not there."""
    kinds = {"experiment": (experiments, {key[0] for key in every}), "system": (systems, {_system(k) for k in every})}
    for kind, (wanted, present) in kinds.items():
        for name in wanted:
            if name not in present:
                raise InputError(
                    f"neither run has the {kind} {name!r}{nearest(name, sorted(present))};"
                    f" there is: {', '.join(sorted(present))}"
                )
    return [
        key for key in every if (not experiments or key[0] in experiments) and (not systems or _system(key) in systems)
    ]


def _order(trial: dict[str, Any]) -> tuple[Any, ...]:
    """Order cells for readers: by experiment and system, then as figures do, with the skew falling."""
    cell = trial["cell"]
    system = SYSTEMS.index(cell["system"]) if cell["system"] in SYSTEMS else len(SYSTEMS)
    rest = []
    for axis in AXES:
        value = cell.get(axis.name, "")
        number = float(value) if isinstance(value, int | float) else 0.0
        rest.append((-number if axis.name == "skew" else number, str(value)))
    return trial["experiment"], system, cell["system"], *rest


def _system(key: Key) -> str:
    return dict(key[1])["system"]


def _experiments(cells: Mapping[Key, object]) -> str:
    return ", ".join(dict.fromkeys(key[0] for key in cells)) or "none"


def _only(
    run: Literal["A", "B"], chosen: Iterable[Key], ours: Mapping[Key, object], theirs: Mapping[Key, object]
) -> list[Unmatched]:
    counts = Counter((key[0], _system(key)) for key in chosen if key in ours and key not in theirs)
    return [Unmatched(run, experiment, system, count) for (experiment, system), count in counts.items()]


def _cell(trial: dict[str, Any], ours: pd.DataFrame, theirs: pd.DataFrame, margin: float, metric: Metric) -> Compared:
    """Compare one cell; `trial` is one of its planned trials."""
    timed = any(rows[ELAPSED].notna().any() for rows in (ours, theirs))
    name = ELAPSED if timed else metric
    a, b = _side(ours, name), _side(theirs, name)
    cell = Compared(trial["experiment"], dict(trial["cell"]), name, a, b, None)
    if gone := [f"{name}: {side.missing}" for name, side in (("A", a), ("B", b)) if side.missing]:
        return replace(cell, note="; ".join(gone))
    figure = quotient([b.sample], [a.sample])
    cell = replace(cell, ratio=figure.estimate, bound=figure.bound)
    if _same_records(ours, theirs, name):
        return replace(cell, verdict=SAME, note="the same records")
    chance = stats.chance(b.sample.values, a.sample.values) if not figure.bound else None
    verdict = judge(figure, margin, higher_is_better=name == THROUGHPUT)
    return replace(cell, chance=chance, verdict=verdict, note=_note(figure, a, b))


def _side(rows: pd.DataFrame, metric: str) -> Side:
    found = sample(rows, metric)
    used = rows[rows["trial_hash"].isin(found.hashes)]
    p50, p99 = (used[name].dropna().astype(float) for name in ("latency_us_p50", "latency_us_p99"))
    return Side(
        stats.mean(found.values) if found.values else None,
        found,
        float(p50.mean()) if len(p50) else None,
        float(p99.mean()) if len(p99) else None,
    )


def judge(figure: Figure, margin: float, *, higher_is_better: bool) -> Verdict:
    """Judge a ratio B / A by its interval; what is only a bound is open on its other side."""
    interval = figure.estimate.interval
    if interval is None:
        return CANNOT_TELL
    low = 0.0 if figure.bound in ("upper", "none") else interval[0]
    high = math.inf if figure.bound in ("lower", "none") else interval[1]
    if _within(low, high, margin):
        return SAME
    if low <= 1 <= high:
        return CANNOT_TELL
    return FASTER if (low > 1) == higher_is_better else SLOWER


def _within(low: float, high: float, margin: float) -> bool:
    """Tell whether all of an interval is as near to 1 as the margin says, up and down alike."""
    return 1 / (1 + margin) <= low and high <= 1 + margin


def _same_records(ours: pd.DataFrame, theirs: pd.DataFrame, metric: str) -> bool:
    """Tell whether both runs hold the very same trials, as a run and its published copy do."""
    columns = ["trial_hash", "status", "started_at", "ended_at", metric]
    one, other = (rows[columns].sort_values("trial_hash", ignore_index=True) for rows in (ours, theirs))
    return bool((one["started_at"] != "").all()) and one.equals(other)


def _note(figure: Figure, a: Side, b: Side) -> str:
    """Say what a verdict has to be read with."""
    single = [name for name, side in (("A", a), ("B", b)) if len(side.sample.values) == 1]
    notes = [f"one trial {'each' if len(single) == 2 else 'in ' + single[0]}: no interval"] if single else []  # noqa: PLR2004
    notes += [NOTES[figure.bound]] if figure.bound else []
    flags = {name: ", ".join(sorted(side.sample.remarks)) for name, side in (("A", a), ("B", b))}
    return "; ".join([*notes, *(f"{name}: {found}" for name, found in flags.items() if found)])


def _corrected(cells: list[Compared]) -> list[Compared]:
    """Add the probabilities that are corrected for how many cells were tested."""
    tested = [cell.chance for cell in cells if cell.chance is not None]
    corrected = iter(stats.holm(tested))
    return [cell if cell.chance is None else replace(cell, corrected=next(corrected)) for cell in cells]


def _wholes(cells: Iterable[Compared], margin: float) -> list[Whole]:
    """Summarise every system; ratios that are only bounds, or zero, say nothing of a mean."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if cell.ratio is not None and not cell.bound and cell.ratio.value > 0:
            ratios.setdefault((cell.system, cell.metric), []).append(cell.ratio.value)
    chances = {key: chance for key, values in ratios.items() if (chance := stats.chance_of_factor(values)) is not None}
    corrected = dict(zip(chances, stats.holm(list(chances.values())), strict=True))
    found = []
    for (system, metric), values in ratios.items():
        mean = stats.geometric_mean(values)
        verdict = judge(Figure(mean, ""), margin, higher_is_better=metric == THROUGHPUT)
        holds = verdict in (FASTER, SLOWER) and corrected.get((system, metric), 1.0) < LIMIT
        found.append(Whole(system, metric, mean, verdict, holds))
    return found
