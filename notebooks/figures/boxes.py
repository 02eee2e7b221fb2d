"""Boxes and arrows on an empty sheet, alike in all drawings; told apart by shade, hatch and line, so also in grey."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from figures.style import apply as apply_style

MEMORY = "#DCEAF5"
DISK = "#F2E3CC"
PLAIN = "#FFFFFF"
STRONG = "#A9CCE8"
HOLE = "#DDDDDD"
LINE = "#333333"
FAINT = "#666666"
ACCENT = "#D55E00"
FOOTER_INCHES = 0.4


@dataclass(frozen=True)
class Box:
    """Where a box lies: its lower left corner, width and height, in units of the sheet."""

    x: float
    y: float
    width: float
    height: float

    def at(self, across: float, up: float) -> tuple[float, float]:
        """Return a point of it by shares of its width and height."""
        return self.x + across * self.width, self.y + up * self.height


def sheet(width: float, height: float, *, inches: float = 9.0, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with sheets side by side, each `width` x `height` units, without axes."""
    apply_style()
    drawn_inches = inches / panels * height / width
    whole_inches = drawn_inches + FOOTER_INCHES
    figure, grid = plt.subplots(1, panels, figsize=(inches, whole_inches), squeeze=False)
    figure.subplots_adjust(left=0, right=1, top=1, bottom=FOOTER_INCHES / whole_inches, wspace=0)
    every = list(grid[0])
    for axes in every:
        axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
        axes.axis("off")
    return figure, every


def box(axes: Axes, place: Box, text: str = "", *, fill: str = PLAIN, size: float = 8.0, **look: Any) -> Box:
    """Draw a box with text in its middle; `look` goes to the rectangle."""
    style: dict[str, Any] = {"edgecolor": LINE, "lw": 0.8} | look
    axes.add_patch(Rectangle((place.x, place.y), place.width, place.height, facecolor=fill, **style))
    if text:
        axes.text(*place.at(0.5, 0.5), text, ha="center", va="center", fontsize=size, linespacing=1.25)
    return place


def frame(axes: Axes, place: Box, title: str, *, fill: str = PLAIN, size: float = 8.0, **look: Any) -> Box:
    """Draw a box that holds others, its title at its upper left."""
    box(axes, place, fill=fill, **look)
    axes.text(
        place.x + 0.12, place.y + place.height - 0.1, title, ha="left", va="top", fontsize=size, fontweight="bold"
    )
    return place


def note(axes: Axes, at: tuple[float, float], text: str, *, columns: int = 200, **look: Any) -> None:
    """Write a remark, broken into lines of `columns` characters."""
    lines = "\n".join(textwrap.fill(line, columns) for line in text.split("\n"))
    style: dict[str, Any] = {"ha": "left", "va": "top", "fontsize": 7.5, "color": FAINT, "linespacing": 1.3} | look
    axes.text(*at, lines, **style)


def path(axes: Axes, points: list[tuple[float, float]], **look: Any) -> None:
    """Draw an arrow along `points`."""
    style: dict[str, Any] = {"color": LINE, "lw": 0.8} | look
    x, y = zip(*points[:-1], strict=True)
    axes.plot(x, y, **style)
    arrow(axes, points[-2], points[-1], **style)


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], *, bend: float = 0.0, **look: Any) -> None:
    """Draw an arrow; `bend` above 0 curves it to the right of its direction."""
    style: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 8,
        "lw": 0.9,
        "color": LINE,
        "shrinkA": 0,
        "shrinkB": 0,
    } | look
    axes.add_patch(FancyArrowPatch(begin, end, connectionstyle=f"arc3,rad={bend}", **style))


def sign(figure: Figure, text: str) -> None:
    """Say below the drawing where its numbers are from."""
    figure.text(0.995, 0.01, textwrap.fill(text, 150), ha="right", va="bottom", fontsize=7, color=FAINT)
