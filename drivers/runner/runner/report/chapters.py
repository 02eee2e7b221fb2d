"""The executed notebooks of a run as chapters: their text, their tables, their figures, without their code."""

from __future__ import annotations

import base64
import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mistune
from PIL import Image

from runner.errors import RunError
from runner.files import read_json

CLAIMS = "claims"  # the notebook of the verdicts, which have a section of their own
SAVED = re.compile(r"""\b(?:save|show)\(.*["']figures["']\s*,\s*["']([\w.-]+)["']""")
"""How a notebook's cell names the files of the figure that it shows (`figures.parts.save`, `figures.beyond.show`)."""
SAVED_DENSITY = 2  # pixels of a saved figure for one of the page
_markdown = mistune.create_markdown(plugins=["table", "url"])


@dataclass(frozen=True)
class Chapter:
    """One notebook: title, and its cells as HTML."""

    name: str
    title: str
    body: str


def of_run(run: Path) -> list[Chapter]:
    """Return a chapter for each executed notebook, figures of the paper first; raises RunError when one is broken.

    Drawn figures that no notebook shows make a last chapter, so that none is left out.
    """
    paths = [p for p in (run / "notebooks").glob("*.ipynb") if p.stem != CLAIMS]
    shown: set[str] = set()
    chapters = []
    for path in sorted(paths, key=lambda p: (not p.stem.startswith("fig"), p.stem)):
        try:
            chapters.append(_chapter(path, run / "figures", shown))
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path}: no executed notebook ({error}); draw it again with `make figures`") from None
    others = sorted(p for p in (run / "figures").glob("*.png") if p.stem not in shown)
    if others:
        chapters.append(Chapter("others", "Other figures", "\n".join(_figure(path) for path in others)))
    return chapters


def markdown(text: str, lower_by: int = 0) -> str:
    """Return Markdown as HTML, its headings lowered, its tables in boxes that scroll by themselves."""
    found = str(_markdown(text))
    found = re.sub(r"<(/?)h([1-6])", lambda m: f"<{m[1]}h{min(6, int(m[2]) + lower_by)}", found)
    return _boxed(found)


def _boxed(text: str) -> str:
    return text.replace("<table", '<div class="wide"><table').replace("</table>", "</table></div>")


def _chapter(path: Path, figures: Path, shown: set[str]) -> Chapter:
    title, parts = path.stem, []
    for cell in read_json(path)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if title == path.stem and (heading := re.match(r"#\s+(.+)\n?", source)):
                title, source = heading[1].strip(), source[heading.end() :]
            parts.append(markdown(source, lower_by=2))
        elif cell["cell_type"] == "code":
            names = [name for name in SAVED.findall(source) if (figures / f"{name}.png").is_file()]
            parts += _outputs(cell["outputs"], [figures / f"{name}.png" for name in names], shown)
    return Chapter(path.stem, title, "\n".join(parts))


def _outputs(outputs: list[dict[str, Any]], saved: list[Path], shown: set[str]) -> list[str]:
    """Return what a cell printed and showed; its pictures from the files that it saved, which have more pixels."""
    parts, left = [], list(saved)
    for output in outputs:
        data = output.get("data", {})
        if "image/png" in data:
            if left:
                shown.add(left[0].stem)
                parts.append(_figure(left.pop(0)))
            else:
                alt = "".join(data.get("text/plain", "figure"))
                parts.append(_picture("".join(data["image/png"]).replace("\n", ""), alt))
        elif "text/html" in data:
            parts.append(_table("".join(data["text/html"])))
        elif "text/plain" in data or "text" in output:
            parts.append(f"<pre>{html.escape(''.join(data.get('text/plain') or output['text']))}</pre>")
    return parts


def _table(text: str) -> str:
    """Return a table as pandas writes it, without style and border, and without an index that only counts the rows.

    Long names in its head may break at their underscores.
    """
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL).replace('<table border="1"', "<table")
    head, divider, body = text.partition("<tbody>")
    index = re.findall(r"<tr>\s*<th>(.*?)</th>", body)
    if index == [str(number) for number in range(len(index))]:
        head = re.sub(r"<th></th>", "", head, count=1)
        body = re.sub(r"(<tr>\s*)<th>\d+</th>", r"\1", body)
    head = re.sub(r">[^<]*<", lambda text: text[0].replace("_", "_<wbr>"), head)
    return _boxed(head + divider + body)


def _figure(path: Path) -> str:
    """Return a saved figure with the description in words that it carries."""
    with Image.open(path) as image:
        alt, width = str(image.info.get("Description") or path.stem), image.width // SAVED_DENSITY
    return _picture(base64.b64encode(path.read_bytes()).decode(), alt, f' width="{width}"')


def _picture(png_base64: str, alt: str, size: str = "") -> str:
    image = f'<img src="data:image/png;base64,{png_base64}" alt="{html.escape(alt, quote=True)}"{size}>'
    return f'<figure><div class="drawing">{image}</div></figure>'
