"""YAML in, checked model out; every complaint names file, line, key, value and what is allowed."""

from __future__ import annotations

import copy
import difflib
import functools
import typing
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError

from runner.errors import InputError

Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A model that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Document:
    """A parsed YAML file that remembers on which line each key and value stands."""

    def __init__(self, path: Path, data: Any, lines: dict[Location, int]) -> None:
        """Keep plain `data` with the 1-based line of every location in it."""
        self.path = path
        self.data = data
        self._lines = lines
        self._adopted: dict[Location, Document] = {}

    def adopt(self, location: Location, other: Document) -> None:
        """Replace the value of a key of the file by what `other` has there; complaints about it name `other`."""
        self.data = {**self.data, location[0]: other.value(location)}
        self._adopted[location] = other

    def where(self, location: Location) -> str:
        """Return ``file:line`` of the nearest known ancestor of `location`."""
        for adopted, other in self._adopted.items():
            if location[: len(adopted)] == adopted:
                return other.where(location)
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
    data, lines = _parsed(path, text)
    return Document(path, copy.deepcopy(data), lines)


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, text: str) -> tuple[Any, dict[Location, int]]:
    """Return the plain values and their lines; kept, because each of a dozen experiments reads the scales."""
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
    return _plain(tree, (), lines), lines


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
    location, owner, field = _resolve(document.data, model, tuple(error["loc"]), error["type"] == "missing")
    return str(document.error(location, _problem(error, owner, field)))


def _resolve(
    data: Any, model: type[BaseModel], raw: Location, missing: bool
) -> tuple[Location, type[BaseModel] | None, FieldInfo | None]:
    """Turn pydantic's location into the file's: it adds steps for union members, which no file has.

    Returns the location, the model that it lies in, and the innermost field on the way.
    """
    location: list[str | int] = []
    owner: type[BaseModel] | None = model
    inner: type[BaseModel] | None = model
    field: FieldInfo | None = None
    name_next = False
    for position, step in enumerate(raw):
        last = position == len(raw) - 1
        here = isinstance(data, list) or (isinstance(data, dict) and step in data)
        if not here and not (last and missing):
            continue
        location.append(step)
        data = None if not here else data[step]
        if isinstance(step, int) or (field is not None and name_next):
            name_next = False  # an index of a list, a name of a dict: not a field
        elif inner is not None:
            owner, field = inner, _field(inner, step)
            name_next = field is not None and typing.get_origin(field.annotation) is dict
        inner = _member(field.annotation, data) if field is not None else None
    return tuple(location), owner, field


def _field(model: type[BaseModel], name: str) -> FieldInfo | None:
    return next((f for n, f in model.model_fields.items() if name == (f.alias or n)), None)


def _members(annotation: Any) -> list[type[BaseModel]]:
    """List the models inside an annotation such as ``list[Model] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in _members(part)]


def _member(annotation: Any, data: Any) -> type[BaseModel] | None:
    """Choose the model that `data` is meant for: the one of its `kind` where there are several."""
    members = _members(annotation)
    kind = data.get("kind") if isinstance(data, dict) else None
    for member in members:
        if "kind" in member.model_fields and kind in typing.get_args(member.model_fields["kind"].annotation):
            return member
    return members[0] if len(members) == 1 else None


def _problem(error: ErrorDetails, owner: type[BaseModel] | None, field: FieldInfo | None) -> str:
    kind, value = error["type"], error["input"]
    hint = f"; allowed: {field.description}" if field is not None and field.description else ""
    if kind == "extra_forbidden":
        names = [f.alias or n for n, f in owner.model_fields.items()] if owner is not None else []
        return f"unknown key{nearest(str(error['loc'][-1]), names)}; allowed here: {', '.join(names)}"
    if kind == "missing":
        return "this key is missing" + hint
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"):
        return f"{value!r} is not allowed{hint}"
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        context = error.get("ctx", {})
        expected = str(context.get("expected_tags") or context["expected"])
        names = [name.strip(" '") for name in expected.replace(" or ", ", ").split(",")]
        found = context.get("tag", value)
        return f"{found!r} is not known{nearest(str(found), names)}; allowed: {', '.join(names)}"
    if kind in ("too_short", "string_too_short"):
        return f"must not be empty{hint}"
    expected = str(error["msg"]).removeprefix("Input should be ")
    return f"{describe(value)} is not allowed: expected {expected}{hint}"
