"""Whether a notebook's committed outputs are what it gives today on the published data.

Texts and tables must be equal. Pictures are compared as pixels: that is what a reader sees, while compressed bytes may
differ between builds of a library. Libraries and fonts are pinned, so only the shading of edges may differ from
processor to processor. A pixel counts where it differs by more than that, and a few of them are too many: the
change of one digit in a label is dozens.
"""

from __future__ import annotations

import base64
import io
from itertools import zip_longest
from pathlib import Path
from typing import Any

from runner.files import read_json

MEND = "make notebooks"
"""Executes the committed notebooks on the published data; what changed is then seen in the diff."""
SHADE = 48 / 255
PIXELS = 12
SHOWN = 60  # characters of each of two texts


def differences(committed: Path, executed: Path) -> list[str]:
    """Return one line for each output that is not the same: notebook, cell, what differs."""
    found = []
    pairs = zip_longest(*(read_json(path)["cells"] for path in (committed, executed)), fillvalue={"cell_type": "none"})
    for number, (one, other) in enumerate(pairs, start=1):
        where = f"{committed.name}, cell {number}"
        if _text(one.get("source", "")) != _text(other.get("source", "")):
            found.append(f"{where}: the cell itself is another one")
        for mine, now in zip_longest(one.get("outputs", []), other.get("outputs", [])):
            if what := _output(mine, now):
                found.append(f"{where}: {what}")
    return found


def _output(committed: dict[str, Any] | None, executed: dict[str, Any] | None) -> str:
    if committed is None or executed is None:
        return (
            "has an output more than committed" if committed is None else "an output that is committed is missing now"
        )
    mine, now = (_contents(each) for each in (committed, executed))
    if mine.keys() != now.keys():
        return f"kinds of output: committed {', '.join(sorted(mine))}; now {', '.join(sorted(now))}"
    for kind, content in mine.items():
        what = pictures(content, now[kind]) if kind == "image/png" else _texts(content, now[kind])
        if what:
            return f"{kind}: {what}"
    return ""


def _contents(output: dict[str, Any]) -> dict[str, str]:
    """Return an output by kind; of an error, its name and its text."""
    kind = output["output_type"]
    if kind == "stream":
        return {output["name"]: _text(output["text"])}
    if kind == "error":
        return {"error": f"{output['ename']}: {output['evalue']}"}
    return {name: _text(content) for name, content in output["data"].items()}


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def _texts(committed: str, executed: str) -> str:
    if committed == executed:
        return ""
    at = next((i for i, (a, b) in enumerate(zip(committed, executed, strict=False)) if a != b), -1)
    begin = max(0, (at if at >= 0 else min(len(committed), len(executed))) - SHOWN // 3)
    shown = (repr(text[begin : begin + SHOWN]) for text in (committed, executed))
    return "committed …{}…, now …{}…".format(*shown)


def pictures(committed: str, executed: str) -> str:
    """Say in which way two pictures (PNG, base64) differ; empty where a reader sees no difference."""
    # Here, because the commands that neither draw nor compare would wait for their import.
    import numpy as np  # noqa: PLC0415
    from matplotlib.image import imread  # noqa: PLC0415

    mine, now = (np.asarray(imread(io.BytesIO(base64.b64decode(each)))) for each in (committed, executed))
    if mine.shape != now.shape:
        return f"the picture had {mine.shape[1]} x {mine.shape[0]} pixels and has {now.shape[1]} x {now.shape[0]}"
    other = (np.abs(mine - now) > SHADE).any(axis=-1)
    count = int(other.sum())
    if count <= PIXELS:
        return ""
    rows, columns = np.nonzero(other)
    return (
        f"{count} pixels of the picture are others, between column {columns.min()}, row {rows.min()} and column"
        f" {columns.max()}, row {rows.max()}"
    )
