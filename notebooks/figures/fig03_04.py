"""Figures 3 and 4: how evicted tuples lie in blocks, and how the LRU chain runs through the headers of tuples."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import boxes
from figures.boxes import Box
from figures.engine import Block, Engine, key_text, size_text, telling

BLOCKS = 3
ENTRIES_OF_A_BLOCK = 3
CHAIN = 6


def layout(engine: Engine, partition: int = 0) -> Figure:
    """Draw the Evicted Table beside the Block Table (Fig. 3): keys, block ids, offsets and holes are the engine's.

    An entry is drawn from the tuple that it leads to; the engine compares the two when it describes itself.
    """
    figure, (axes,) = boxes.sheet(16, 7.9)
    table, shown = engine.table(partition), telling(engine.blocks(partition), BLOCKS)
    title = f"Evicted Table in memory: {table['evicted']:,} entries"
    evicted = boxes.frame(axes, Box(0.1, 1.2, 4.7, 6.6), title, fill=boxes.MEMORY)
    boxes.frame(
        axes, Box(5.75, 1.2, 10.15, 6.6), f"Block Table: {_live(engine, partition)} blocks on disk", fill=boxes.PLAIN
    )
    heads = ((0.55, "entry"), (1.65, "key"), (2.9, "block id"), (4.0, "offset"))
    for x, name in heads:
        axes.text(evicted.x + x, 7.3, name, ha="center", va="top", fontsize=7.5, color=boxes.FAINT)
    rows = BLOCKS * ENTRIES_OF_A_BLOCK
    row_at = iter([6.5 - 0.6 * n for n in range(rows)])
    channel = iter([5.68 - 0.09 * n for n in range(rows)])
    for number, block in enumerate(shown):
        places = _block(axes, engine, block, y=5.85 - 2.05 * number)
        live = [t for t in block.tuples if not t["hole"]][:ENTRIES_OF_A_BLOCK]
        for order, tuple_ in enumerate(live):
            y = next(row_at)
            values = (tuple_["entry"], key_text(tuple_["key"]), block.id, tuple_["offset"])
            for (x, _), value in zip(heads, values, strict=True):
                width = 1.05
                place = Box(evicted.x + x - width / 2, y, width, 0.44)
                boxes.box(axes, place, str(value), fill=boxes.PLAIN, size=7.5)
            target = places[tuple_["offset"]]
            end, across = target.at(0.35, 0.0), next(channel)
            below = end[1] - 0.15 - 0.16 * order
            boxes.path(axes, [(evicted.x + 4.55, y + 0.22), (across, y + 0.22), (across, below), (end[0], below), end])
    prefix, location = engine.layout["block_tuple_prefix_bytes"], engine.layout["evicted_location_bytes"]
    row_bytes, block_bytes = table["row_bytes"], size_text(engine.settings["eviction_block_bytes"])
    text = (
        f"An entry keeps {location} bytes of place (block id, offset) and the row's indexed columns, to which every"
        f" index leads. Of the Block Table the ids are in memory and the blocks of {block_bytes} on disk; a tuple has a"
        f" prefix of {prefix} bytes and {row_bytes:,} bytes of row. Hatched: holes, whose tuples are in memory again;"
        " no entry leads to them."
    )
    boxes.note(axes, (0.1, 1.0), text, columns=150)
    boxes.sign(figure, engine.source)
    return figure


def _live(engine: Engine, partition: int) -> str:
    gauges = engine.partitions[partition]["gauges"]
    return f"{gauges['blocks_live']:,}"


def _block(axes: Axes, engine: Engine, block: Block, y: float) -> dict[int, Box]:
    """Draw a block to scale, its header widened to be seen; return the place of each tuple by offset."""
    size_bytes = engine.settings["eviction_block_bytes"]
    header_bytes, prefix_bytes = engine.layout["block_header_bytes"], engine.layout["block_tuple_prefix_bytes"]
    boxes.box(axes, Box(5.75, y, 1.15, 0.95), f"block\n{block.id}", fill=boxes.MEMORY)
    body = boxes.box(axes, Box(7.3, y, 8.45, 0.95), fill=boxes.DISK)
    boxes.arrow(axes, (6.9, y + 0.475), (7.3, y + 0.475))
    header = 0.75
    boxes.box(axes, Box(body.x, y, header, 0.95), f"header\n{header_bytes} B", fill=boxes.STRONG, size=6.5)
    unit = (body.width - header) / (size_bytes - header_bytes)
    places = {}
    for tuple_ in block.tuples:
        x = body.x + header + (tuple_["offset"] - header_bytes) * unit
        place = Box(x, y, (prefix_bytes + tuple_["bytes"]) * unit, 0.95)
        hatch = {"hatch": "////", "edgecolor": boxes.FAINT} if tuple_["hole"] else {}
        boxes.box(axes, place, "" if tuple_["hole"] else key_text(tuple_["key"]), fill=_fill(tuple_), size=7, **hatch)
        axes.text(x, y + 1.0, f"{tuple_['offset']}", ha="left", va="bottom", fontsize=6, color=boxes.FAINT)
        places[tuple_["offset"]] = place
    last = max(block.tuples, key=lambda t: int(t["offset"]))
    unused = size_bytes - last["offset"] - prefix_bytes - last["bytes"]
    if unused > size_bytes / 20:
        axes.text(
            body.x + body.width - unused * unit / 2,
            y + 0.475,
            f"{unused} B\nfree",
            ha="center",
            va="center",
            fontsize=6,
        )
    return places


def _fill(tuple_: dict[str, Any]) -> str:
    return boxes.HOLE if tuple_["hole"] else boxes.PLAIN


def chain(engine: Engine, partition: int = 0) -> Figure:
    """Draw the cold end of the LRU chain (Fig. 4): tuples as they lie in memory, linked by the ids in their headers."""
    figure, (axes,) = boxes.sheet(16, 5.0)
    table = engine.table(partition)
    links = table["chain"]
    shown = links["tuples"][:CHAIN]
    places: dict[int, Box] = {}
    width = 15.0 / len(shown)
    for position, tuple_ in enumerate(sorted(shown, key=lambda t: int(t["tuple"]))):
        places[tuple_["tuple"]] = _tuple(axes, tuple_, Box(0.5 + position * width, 2.2, width - 0.45, 1.0))
    for tuple_ in shown:
        begin = places[tuple_["tuple"]]
        _link(axes, begin, places.get(tuple_["next"]), next_one=True, to=tuple_["next"])
        if tuple_["previous"] is not None:
            _link(axes, begin, places.get(tuple_["previous"]), next_one=False, to=tuple_["previous"])
    coldest = places[links["coldest"]]
    axes.text(*coldest.at(0.5, -0.55), "coldest", ha="center", fontsize=8, fontweight="bold", color=boxes.ACCENT)
    header = engine.layout["tuple_header_bytes"]
    row_bytes = table["row_bytes"]
    text = (
        f"{table['name']}, partition {partition}: {links['length']:,} tuples in the chain, from {links['coldest']}"
        f" (evicted next) to {links['hottest']}; the {len(shown)} coldest, in the order of their ids, which is that of"
        f" memory. Header: {header['flags']} byte of flags, {header['next']} bytes of the next id (solid arrow),"
        f" {header['previous']} of the previous one (dashed); {row_bytes:,} bytes of row follow the flags. The ids lie"
        " in an array of their own under the same tuple id."
    )
    boxes.note(axes, (0.3, 0.8), text, columns=150)
    boxes.sign(figure, engine.source)
    return figure


def _tuple(axes: Axes, tuple_: dict[str, Any], place: Box) -> Box:
    """Draw one tuple: flags, both ids, its key."""
    label = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    axes.text(
        *place.at(1.0, 1.12), f"tuple {tuple_['tuple']}", fontsize=7, ha="right", va="bottom", bbox=label, zorder=5
    )
    parts = (
        (0.0, 0.22, f"{tuple_['flags']:#04x}", boxes.STRONG),
        (0.22, 0.25, _id(tuple_["next"]), boxes.MEMORY),
        (0.47, 0.25, _id(tuple_["previous"]), boxes.MEMORY),
        (0.72, 0.28, f"key\n{key_text(tuple_['key'])}", boxes.PLAIN),
    )
    for begin, share, text, fill in parts:
        boxes.box(
            axes, Box(place.x + begin * place.width, place.y, share * place.width, 1.0), text, fill=fill, size=6.5
        )
    return place


def _id(link: int | None) -> str:
    return "none" if link is None else str(link)


def _link(axes: Axes, begin: Box, end: Box | None, *, next_one: bool, to: int | None) -> None:
    """Draw one pointer: `next` above, solid; `previous` below, dashed; to a tuple that is not shown, its name."""
    level, share = (1.0, 0.35) if next_one else (0.0, 0.6)
    look: dict[str, Any] = {"color": boxes.LINE} if next_one else {"color": "#0072B2", "linestyle": (0, (4, 2))}
    start = begin.at(share, level)
    if end is not None:
        forward = end.x > begin.x
        distance = abs(end.x - begin.x)
        height = 0.55 + 0.05 * distance
        bend = 2 * height / distance * (-1 if forward == next_one else 1)
        boxes.arrow(axes, start, end.at(0.1, level), bend=bend, **look)
    elif to is not None:
        away = start[0] + 0.5, start[1] + (1.1 if next_one else -0.9)
        boxes.arrow(axes, start, away, **look)
        axes.text(*away, f"to tuple {to}", fontsize=7, ha="left", va="center", color=boxes.FAINT)
