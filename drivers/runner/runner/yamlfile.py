"""YAML in, checked model out; every complaint names file, line, key, value and what is allowed."""

from __future__ import annotations

import difflib
import typing
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError

from runner.errors import InputError

Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class Document:
    """A parsed YAML file that remembers on which line each key and value stands."""

    def __init__(self, path: Path, data: Any, lines: dict[Location, int]) -> None:
        """Keep plain `data` with the 1-based line of every location in it."""
        self.path = path
        self.data = data
        self._lines = lines

    def where(self, location: Location) -> str:
        """Return ``file:line`` of the nearest known ancestor of `location`."""
        for end in range(len(location), -1, -1):
            line = self._lines.get(location[:end])
            if line is not None:
                return f"{shown(self.path)}:{line}"
        return shown(self.path)

    def value(self, location: Location) -> Any:
        """Return the value at `location`, or None where the file has none."""
        value = self.data
        for step in location:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def error(self, location: Location, problem: str) -> InputError:
        """Build the one-line complaint about `location`."""
        name = dotted(location)
        return InputError(f"{self.where(location)}: {name + ': ' if name else ''}{problem}")


def shown(path: Path) -> str:
    """Return `path` relative to the working directory where it lies below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def dotted(location: Location) -> str:
    """Write a location as people do: ``grid.skew[0]``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def nearest(name: str, allowed: typing.Iterable[str]) -> str:
    """Return `` (did you mean …?)`` for the closest allowed name, or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def read(path: Path) -> Document:
    """Parse one YAML file.

    Raises InputError when the file is missing, unreadable, empty, no mapping, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(missing_file(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{shown(path)}: cannot be read: {error}") from None
    parser = YAML(typ="rt")
    try:
        tree = parser.load(text)
    except DuplicateKeyError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        what = str(error.problem or "").split("with value")[0].strip()
        raise InputError(f"{shown(path)}:{line}: {what}: every key may stand only once") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{shown(path)}:{line}: not valid YAML: {error.problem}") from None
    if not isinstance(tree, CommentedMap):
        raise InputError(f"{shown(path)}:1: expected a mapping of keys, found {describe(tree)}")
    lines: dict[Location, int] = {(): 1}
    return Document(path, _plain(tree, (), lines), lines)


def missing_file(path: Path) -> str:
    """Say that `path` is missing and which files stand where it was expected."""
    siblings = sorted(p.stem for p in path.parent.glob(f"*{path.suffix}")) if path.parent.is_dir() else []
    present = f"; present there: {', '.join(siblings)}" if siblings else ""
    return f"{shown(path)}: no such file{nearest(path.stem, siblings)}{present}"


def check(document: Document, model: type[Model]) -> Model:
    """Validate `document` against `model`; raise one InputError listing every problem, one line each."""
    try:
        return model.model_validate(document.data, strict=True)
    except ValidationError as error:
        raise InputError("\n".join(_complaint(document, model, e) for e in error.errors())) from None


def describe(value: Any) -> str:
    """Name a value and its type as a person would."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    kinds = {bool: "a boolean", int: "an integer", float: "a number", str: "a text"}
    return f"{value!r} ({kinds.get(type(value), type(value).__name__)})"


def _plain(node: Any, location: Location, lines: dict[Location, int]) -> Any:
    """Copy the parser's tree into plain Python values, noting the line of every location."""
    if isinstance(node, CommentedMap):
        for key, position in (node.lc.data or {}).items():  # keys merged from an anchor have no line of their own
            lines[(*location, key)] = position[0] + 1
        return {key: _plain(value, (*location, key), lines) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        for index in range(len(node)):
            lines[(*location, index)] = node.lc.item(index)[0] + 1
        return [_plain(value, (*location, index), lines) for index, value in enumerate(node)]
    for kind in (bool, int, float, str):  # the parser's own scalar classes derive from these
        if isinstance(node, kind):
            return kind(node)
    return node


def _complaint(document: Document, model: type[BaseModel], error: ErrorDetails) -> str:
    location: Location = tuple(error["loc"])
    # Pydantic adds steps of its own (union members, '[key]'); the file has no such place.
    while location and error["type"] != "missing" and document.value(location[:-1]) is None:
        location = location[:-1]
    return str(document.error(location, _problem(model, location, error)))


def _problem(model: type[BaseModel], location: Location, error: ErrorDetails) -> str:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        names = _names_at(model, location[:-1])
        return f"unknown key{nearest(str(location[-1]), names)}; allowed here: {', '.join(names)}"
    if kind == "missing":
        return "this key is missing" + _hint(model, location)
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"):
        return f"{value!r} is not allowed{_hint(model, location)}"
    if kind in ("literal_error", "enum"):
        expected = str(error.get("ctx", {})["expected"])
        names = [name.strip(" '") for name in expected.replace(" or ", ", ").split(",")]
        return f"{value!r} is not known{nearest(str(value), names)}; allowed: {', '.join(names)}"
    if kind in ("too_short", "string_too_short"):
        return f"must not be empty{_hint(model, location)}"
    expected = str(error["msg"]).removeprefix("Input should be ")
    return f"{describe(value)} is not allowed: expected {expected}{_hint(model, location)}"


def _fields(annotation: Any) -> type[BaseModel] | None:
    """Find the model inside an annotation such as ``list[Model] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in reversed(typing.get_args(annotation)):
        found = _fields(part)
        if found is not None:
            return found
    return None


def _names_at(model: type[BaseModel], location: Location) -> list[str]:
    current: type[BaseModel] | None = model
    for step in location:
        if current is None:
            return []
        if isinstance(step, str) and step in current.model_fields:
            current = _fields(current.model_fields[step].annotation)
    return list(current.model_fields) if current is not None else []


def _hint(model: type[BaseModel], location: Location) -> str:
    """Return the description of the innermost field on the way to `location`: its meaning and what is allowed."""
    current: type[BaseModel] | None = model
    text = ""
    for step in location:
        if current is None:
            break
        if isinstance(step, str) and step in current.model_fields:
            field = current.model_fields[step]
            text, current = field.description or "", _fields(field.annotation)
    return f"; allowed: {text}" if text else ""
