"""XML in, elements with their lines out; a document type, and with it every entity, is refused.

The standard library's expat is used directly: it tells lines, and without a document type there is nothing that it
could expand or fetch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from runner.errors import InputError
from runner.yamlfile import missing_file, shown

LARGEST_BYTES = 1 << 20


@dataclass
class Element:
    """One element; `text` is its own, without what stands in its children."""

    name: str
    attributes: dict[str, str]
    line: int
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, name: str) -> list[Element]:
        """Return the children of a name."""
        return [child for child in self.children if child.name == name]

    def walk(self, path: str = "") -> Iterator[tuple[str, Element]]:
        """Go through all elements below this one, with their paths."""
        for child in self.children:
            place = f"{path}/{child.name}" if path else child.name
            yield place, child
            yield from child.walk(place)


class _DoctypeError(Exception):
    pass


def read(path: Path) -> Element:
    """Return the root of an XML file; raises InputError with file and line for what is no plain XML."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(missing_file(path)) from None
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_BYTES:
        raise InputError(f"{shown(path)}: {len(content)} bytes; allowed for a configuration: {LARGEST_BYTES}")
    parser = expat.ParserCreate()
    open_elements: list[Element] = []
    roots: list[Element] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        element = Element(name, attributes, parser.CurrentLineNumber)
        (open_elements[-1].children if open_elements else roots).append(element)
        open_elements.append(element)

    def end(_name: str) -> None:
        element = open_elements.pop()
        element.text = element.text.strip()

    def characters(text: str) -> None:
        open_elements[-1].text += text

    def doctype(*_: object) -> None:
        raise _DoctypeError

    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = characters, doctype
    try:
        parser.Parse(content, True)
    except _DoctypeError:
        raise InputError(
            f"{shown(path)}:{parser.CurrentLineNumber}: a document type (<!DOCTYPE …>) is not allowed: it could make"
            " other files part of this one; remove it"
        ) from None
    except expat.ExpatError as error:
        raise InputError(f"{shown(path)}:{error.lineno}: not valid XML: {expat.ErrorString(error.code)}") from None
    return roots[0]
