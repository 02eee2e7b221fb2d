"""What ``make plan`` prints: everything that would be run, what of it is recorded, how long the rest takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from runner.estimate import Estimate
from runner.history import Range
from runner.plan import Plan, Trial
from runner.progress import duration
from runner.store import Recorded
from runner.workload import Workload


def span(time: Range) -> str:
    """Write a time with its spread where there is one that can be seen."""
    usual, low, high = (duration(seconds) for seconds in (time.usual, time.low, time.high))
    return f"about {usual}" if low == high else f"about {usual} ({low} to {high})"


def basis(cost: Estimate) -> str:
    """Say what an estimate is made of."""
    seen = cost.history
    if not seen.trials:
        return "from constants: no earlier trial of this machine at this scale and on this disk"
    runs = "a run" if seen.runs == 1 else f"{seen.runs} runs"
    text = f"from {seen.trials} earlier trials in {runs} of this machine at this scale and on this disk"
    if cost.unlike:
        text += f"; {cost.unlike} of these {cost.trials} are unlike all of them: of those by constants"
    return text


def lines(made: Plan, cost: Estimate, left: Estimate, recorded: Mapping[str, Recorded]) -> Iterator[str]:
    """Say what a plan holds, what of it is recorded, and what `left`, the rest of it, takes."""
    yield f"{', '.join(w.id for w in made.workloads)} at scale {made.scale}"
    for line in _data_of(made):
        yield f"  {line}"
    cells = [(t.experiment, t.cell) for t in made.trials if t.index == 0]
    yield f"  cells        {len(cells)}"
    for system, count in Counter(c.system for _, c in cells).items():
        yield f"    {system:<18}{count}"
    lengths: dict[str, list[str]] = {}
    for w in made.workloads:
        length = f"{w.values.warmup_s:g} s warm-up + {w.values.measure_s:g} s measured"
        lengths.setdefault(length, []).append(w.id)
    told = [length + (f" ({', '.join(names)})" if len(lengths) > 1 else "") for length, names in lengths.items()]
    yield f"  trials       {cost.trials} of {'; '.join(told)}"
    yield f"  deployments  {cost.deployments}"
    if cost.lanes > 1:
        yield f"  lanes        {cost.lanes}"
    if len(made.workloads) > 1:
        yield from _table(made, cost, left, recorded)
    yield from _times(made, cost, left)


def _table(made: Plan, cost: Estimate, left: Estimate, recorded: Mapping[str, Recorded]) -> Iterator[str]:
    """Say it by experiment; what several of them share counts for the first."""
    yield f"    {'experiment':<18}{'cells':>6}{'trials':>8}{'recorded':>10}  time of all, and what is left of it"
    for workload in made.workloads:
        own = [t for t in made.trials if t.experiment == workload.id]
        cells = sum(t.index == 0 for t in own)
        done = sum(t.hash in recorded and recorded[t.hash].status != "failed" for t in own)
        rest = left.of(t.hash for t in own)
        time = f"{span(cost.of(t.hash for t in own))}, {duration(rest.usual) if rest.high else 'nothing'} left"
        yield f"    {workload.id:<18}{cells:>6}{len(own):>8}{done:>10}  {time}"


def _times(made: Plan, cost: Estimate, left: Estimate) -> Iterator[str]:
    of_it = f"of it {duration(cost.deploying.usual)} for {cost.deployments} deployments"
    if cost.loading.usual:
        of_it += f", {duration(cost.loading.usual)} for loading data sets that are then kept"
    yield f"  time         {span(cost.time)}, {of_it}"
    if any(t.index for t in made.trials):
        yield f"               one trial of every cell: {span(cost.of(t.hash for t in made.trials if t.index == 0))}"
    if left.trials < cost.trials:
        what = f"{span(left.time)} for {left.trials} trials" if left.trials else "nothing"
        yield f"  left         {what}; {cost.trials - left.trials} of {cost.trials} are recorded"
    yield f"               {basis(cost)}"


def _data_of(made: Plan) -> Iterator[str]:
    """Say what is loaded: in one line what is the same at several ratios."""
    for workload in made.workloads:
        amounts: dict[tuple[str, str], list[float]] = {}
        for trial in _of(made, workload):
            section = workload.section_of(trial.cell)
            ratio = trial.cell.data_memory_ratio
            described = section.data(workload.values, ratio).described
            ratios = amounts.setdefault((workload.benchmark_of(trial.cell), described), [])
            if ratio not in ratios:
                ratios.append(ratio)
        for (_, described), ratios in amounts.items():
            yield f"{workload.id} {', '.join(f'{ratio:g}x' for ratio in sorted(ratios))}: {described}"


def _of(made: Plan, workload: Workload) -> list[Trial]:
    return [t for t in made.trials if t.experiment == workload.id and t.index == 0]
