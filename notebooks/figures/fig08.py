"""Figure 8: throughput of both merge strategies by skew; as in the paper, and on a logarithmic axis."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from figures import sweeps
from figures.sweeps import Panel


def draw(table: pd.DataFrame) -> Figure:
    """Draw both strategies; a scale's smaller block is named below."""
    panels = [Panel("read-only, 2x"), Panel("the same, logarithmic", log=True)]
    return sweeps.draw(table, panels, series="merge", note=sweeps.stands_for(table))
