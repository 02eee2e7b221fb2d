"""Figure 9a: throughput by block size and skew; as in the paper, and on a logarithmic axis."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from figures import sweeps
from figures.sweeps import Panel


def draw(table: pd.DataFrame) -> Figure:
    """Draw a line for each block size; which of them stands for 1 MiB is said below."""
    panels = [Panel("read-only, 2x"), Panel("the same, logarithmic", log=True)]
    return sweeps.draw(table, panels, series="block_factor", note=sweeps.stands_for(table))
