"""Figure 9b: throughput by tuple size and skew, in both mixes: the paper's text and caption name different ones."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from figures import sweeps
from figures.sweeps import Panel

MIXES = (("read-heavy", "read-heavy (the text), 2x"), ("read-only", "read-only (the caption), 2x"))


def draw(table: pd.DataFrame) -> Figure:
    """Draw a line for each tuple size: a row for each mix, linear as in the paper, then logarithmic."""
    panels = []
    for mix, title in MIXES:
        where = (("mix", mix),)
        panels += [Panel(title, where=where), Panel("the same, logarithmic", where=where, log=True)]
    return sweeps.draw(table, panels, series="tuple_bytes", note=sweeps.stands_for(table))
