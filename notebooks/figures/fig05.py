"""Figure 5: the life of a transaction, drawn from the states and steps that the engine names."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import boxes
from figures.boxes import Box
from figures.engine import Engine

WIDTH, HEIGHT = 3.0, 1.0
LABEL_COLUMNS = 20
NOTE = (
    "In brackets: how often in the trial, warm-up included, where the engine counts it. In the darker boxes a"
    " transaction waits for the disk, and the partition runs others. Evictions between two transactions, which are the"
    " rule, are no part of one's life."
)
PLACES = {
    "queued": (0.2, 5.9),
    "executing": (6.4, 5.9),
    "replied": (12.8, 5.9),
    "waiting for its log group": (12.8, 8.8),
    "evicting": (6.4, 8.8),
    "pre-pass": (6.4, 3.0),
    "rolled back, blocks requested": (0.2, 3.0),
    "failed": (0.2, 0.2),
}
"""Where each state stands; one that is not named here goes to the free row at the bottom, and is seen."""
COUNTERS = {
    ("executing", "replied", "aborted"): "aborted",
    ("executing", "evicting", ""): "evictions_on_demand",
    ("rolled back, blocks requested", "queued", ""): "restarted",
    ("rolled back, blocks requested", "failed", ""): "failed",
}
"""Which counter tells how often a step was taken; the third part is how its event begins."""
WAITS_FOR_DISK = frozenset({"rolled back, blocks requested", "waiting for its log group"})


def draw(engine: Engine) -> Figure:
    """Draw every state and step that partition 0 reports, and how often it was taken where that is counted."""
    figure, (axes,) = boxes.sheet(16, 10.0)
    steps: list[dict[str, str]] = engine.partitions[0]["transaction_states"]
    places = _places(dict.fromkeys(state for step in steps for state in (step["from"], step["to"])))
    for state, place in places.items():
        fill = boxes.DISK if state in WAITS_FOR_DISK else boxes.MEMORY
        boxes.box(axes, place, textwrap.fill(state, 18), fill=fill, size=8.5)
    for step in steps:
        between = [s for s in steps if {s["from"], s["to"]} == {step["from"], step["to"]}]
        aside = between.index(step) - (len(between) - 1) / 2
        _step(axes, places[step["from"]], places[step["to"]], _label(step, engine), aside)
    boxes.note(axes, (9.2, 2.6), NOTE, columns=64)
    boxes.sign(figure, engine.source)
    return figure


def _places(states: Iterable[str]) -> dict[str, Box]:
    """Return where each state is drawn."""
    free = iter(range(len(PLACES) + 100))
    found = {}
    for state in states:
        x, y = PLACES.get(state) or (4.2 + 3.9 * next(free), 0.2)
        found[state] = Box(x, y, WIDTH, HEIGHT)
    return found


def _label(step: dict[str, str], engine: Engine) -> str:
    """Write what happens, and how often it did."""
    for (begin, end, event), counter in COUNTERS.items():
        if (begin, end) == (step["from"], step["to"]) and step["event"].startswith(event) and counter in engine.counted:
            return f"{step['event']} ({engine.counted[counter]:,})"
    return step["event"]


def _step(axes: Axes, begin: Box, end: Box, text: str, aside: float) -> None:
    """Draw one arrow from side to side, `aside` of the middle where several join the same two states, and its text."""
    across, up = end.x - begin.x, end.y - begin.y
    if abs(across) > abs(up):
        shift = 0.5 + 0.5 * aside
        points = begin.at(float(across > 0), shift), end.at(float(across < 0), shift)
    else:
        shift = 0.5 + 0.75 * aside
        points = begin.at(shift, float(up > 0)), end.at(shift, float(up < 0))
    boxes.arrow(axes, *points)
    x, y = ((a + b) / 2 for a, b in zip(*points, strict=True))
    label = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.text(x, y, textwrap.fill(text, LABEL_COLUMNS), ha="center", va="center", fontsize=7.5, bbox=label)
