"""How a system looks in every figure: told apart by colour, by marker and by line, so also in grey.

Colours: the colour-blind-safe palette of Okabe and Ito, chosen with rising lightness for print in grey.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.typing import LineStyleType


@dataclass(frozen=True)
class Look:
    """Label, colour, marker and line of one system, and the hatch of its bars, which have neither marker nor line."""

    label: str
    colour: str
    marker: str
    line: LineStyleType
    hatch: str = ""


SYSTEMS = {
    "mysql": Look("MySQL", "#000000", "s", "-"),
    "mysql-memcached": Look("MySQL + Memcached", "#D55E00", "D", "--", "//"),
    "anticache-lru": Look("anti-caching, LRU", "#0072B2", "^", "-.", "\\\\"),
    "anticache-alru": Look("anti-caching, aLRU", "#009E73", "o", "-", ".."),
    "anticache-off": Look("no anti-caching", "#B8860B", "v", ":", "xx"),
}

MIXES = ("read-only", "read-heavy", "write-heavy")
"""YCSB's mixes in the paper's order (§4.1.1), which is that of Figure 6's rows."""

SEQUENCE: tuple[tuple[str, str, LineStyleType], ...] = (
    ("#000000", "s", "-"),
    ("#0072B2", "^", "--"),
    ("#D55E00", "D", "-."),
    ("#009E73", "o", ":"),
    ("#CC79A7", "v", "-"),
    ("#E69F00", "P", "--"),
    ("#56B4E9", "X", "-."),
)
"""Colour (of Okabe and Ito's palette), marker and line of the values of a setting, in their order."""


def sequence(labels: list[str]) -> list[Look]:
    """Return a look for each of the values of a setting; raises ValueError where there are more than looks."""
    if len(labels) > len(SEQUENCE):
        raise ValueError(f"{len(labels)} series in one panel; there are {len(SEQUENCE)} looks")
    return [Look(label, *look) for label, look in zip(labels, SEQUENCE, strict=False)]


RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "anticache-eval",  # the same data gives the same bytes
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def apply() -> None:
    """Make the style the default of this process."""
    matplotlib.style.use(RC)
