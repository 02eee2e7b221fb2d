"""The logic behind the notebooks: reading a run's table, drawing the paper's figures, tables of what was measured."""

import pandas as pd


def _digits(value: float) -> str:
    """Write a measured value with four digits, large ones in full: more would be noise."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004


pd.set_option("display.float_format", _digits)  # of every table that a notebook shows
