"""What a running engine said of itself after a trial (``engine.json``), for the drawings of Figures 1 to 5."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from figures.data import NoRunError
from figures.tables import headline
from runner import description
from runner.files import read_json

Record = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """A block of the anti-cache, with all that it holds."""

    id: int
    place: str
    tuples: list[Record]
    """`offset` in the block, `bytes` of the row, `key`, Evicted Table `entry`, and whether it is a `hole`."""
    holes: int


@dataclass(frozen=True)
class Engine:
    """One engine with its partitions, as it was when its trial had ended."""

    partitions: list[Record]
    settings: Record
    counted: dict[str, int]
    """By how much each counter rose during the trial, warm-up included."""
    source: str
    """Which run and trial it is, in a line."""

    @property
    def layout(self) -> Record:
        """Return sizes of headers in bytes, the same in every partition."""
        return dict(self.partitions[0]["layout"])

    def table(self, partition: int) -> Record:
        """Return the evictable table of a partition that has most tuples on disk."""
        return dict(max(self.partitions[partition]["tables"], key=lambda table: int(table["evicted"])))

    def blocks(self, partition: int) -> list[Block]:
        """Return the blocks of that table that were recorded and could be read."""
        found = (b for b in self.table(partition)["blocks"] if isinstance(b["contents"], list))
        return [Block(b["block"], b["place"], b["contents"], b["holes"]) for b in found]


def described(run: Path, table: pd.DataFrame) -> Engine:
    """Return what the first trial of `table` that was described recorded; raises NoRunError when none was."""
    for trial in table["trial_hash"]:
        directory = run / "trials" / str(trial)
        found = description.read(directory)
        if found:
            result = read_json(directory / "result.json")
            return Engine(
                found["partitions"],
                dict(read_json(directory / "environment.json")["server_settings"]["anticached"]),
                _counted(result),
                headline(table),
            )
    raise NoRunError(
        f"{run}: no engine of {', '.join(table['experiment'].unique())} was described: run `make fig01-05`"
    )


def _counted(result: Record) -> dict[str, int]:
    """Return by how much each of the engine's counters rose during a trial."""
    before, after = (result.get(f"counters_{when}", {}).get("anticached", {}) for when in ("before", "after"))
    return {name: int(value) - int(before.get(name, 0)) for name, value in after.items()}


def beside_the_paper(engine: Engine) -> pd.DataFrame:
    """Return the sizes that the paper states (§3.1, Fig. 4) beside the engine's."""
    layout, header = engine.layout, engine.layout["tuple_header_bytes"]
    block = f"{layout['block_header_bytes']} bytes: also lengths, a checksum"
    rows = (
        ("tuple header: flags", "1 byte", f"{header['flags']} byte"),
        ("tuple header: ids of two neighbours", "2 x 4 bytes", f"{header['next']} + {header['previous']} bytes"),
        ("place of an evicted tuple", "block id and offset, 4 bytes each", f"{layout['evicted_location_bytes']} bytes"),
        ("block header", "table, time of creation", block),
        ("before a tuple in a block", "its size", f"{layout['block_tuple_prefix_bytes']} bytes"),
        ("block", "fixed size (1 MB in §4)", size_text(engine.settings["eviction_block_bytes"])),
    )
    return pd.DataFrame(rows, columns=["what", "paper", "engine"]).set_index("what")


def telling(blocks: Iterable[Block], count: int) -> list[Block]:
    """Return `count` blocks that show most: with holes and live tuples first, then by id."""
    ordered = sorted(blocks, key=lambda b: (not 0 < b.holes < len(b.tuples), -b.holes, b.id))
    return sorted(ordered[:count], key=lambda b: b.id)


def key_text(key: list[Any] | None) -> str:
    """Write a primary key."""
    return "no key" if key is None else ", ".join(str(part) for part in key)


def size_text(size_bytes: float) -> str:
    """Write an amount of memory in the unit that fits; the units are binary."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= step:
            return f"{size_bytes / step:.4g} {unit}"
    return f"{size_bytes:.0f} bytes"
