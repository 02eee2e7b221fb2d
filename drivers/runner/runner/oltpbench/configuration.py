"""An XML configuration of OLTP-Bench or BenchBase, as it says; what of it our drivers can do is decided elsewhere.

Elements of both generations are known (``dbtype`` and ``type``, ``DBUrl`` and ``url``, …). An element with an attribute
``bench`` is for that benchmark alone and stands before one without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import InputError
from runner.oltpbench import xmlfile
from runner.oltpbench.xmlfile import Element
from runner.yamlfile import nearest, shown

BENCHMARKS = ("ycsb", "tpcc")
ROOT = "parameters"
CONNECTION = ("type", "dbtype", "driver", "url", "DBUrl", "DBName", "username", "password")
"""How their clients reach a DBMS: of no use to ours, which deploy and reach their systems themselves."""
WITHOUT_MEANING = (
    *CONNECTION,
    *("batchsize", "datadir", "ddlpath", "reconnectOnConnectionFailure", "recordabortmessages", "retries"),
    *("selectivity", "uploadCode", "uploadUrl"),
)
"""Known elements that decide nothing about YCSB and TPC-C here: how to load, to reconnect, to send results away."""
USED = (
    *("afterload", "fieldSize", "isolation", "loaderThreads", "newConnectionPerTxn", "randomSeed", "scalefactor"),
    *("skewFactor", "terminals", "transactiontypes", "works"),
)
_TYPE = "transactiontypes/transactiontype"
_GROUPING = "transactiontypes/groupings"
BELOW = (
    *("works/work", *(f"works/work/{n}" for n in ("time", "warmup", "rate", "weights", "serial", "active_terminals"))),
    *(_TYPE, *(f"{_TYPE}/{name}" for name in ("name", "id", "preExecutionWait", "postExecutionWait"))),
    *(_GROUPING, f"{_GROUPING}/grouping", f"{_GROUPING}/grouping/name", f"{_GROUPING}/grouping/weights"),
)
KNOWN = frozenset({*WITHOUT_MEANING, *USED, *BELOW})
ATTRIBUTES = {"works/work": {"arrival"}}
"""Attributes besides `bench`."""
BENCH = "bench"


@dataclass(frozen=True)
class Given:
    """A value as it stands in the file: for complaints about it."""

    element: str
    text: str
    line: int


@dataclass(frozen=True)
class TransactionType:
    """One entry of ``transactiontypes``; `number` is what their raw results call it."""

    name: str
    number: int
    before_ms: float
    after_ms: float
    given: Given


@dataclass(frozen=True)
class Phase:
    """One ``work``: so many seconds with one mix."""

    number: int
    time_s: int
    warmup_s: int
    rate: Given
    arrival: Given
    serial: Given
    active_terminals: Given | None
    weights: tuple[float, ...]
    given_weights: Given


@dataclass(frozen=True)
class Configuration:
    """What a file says about one benchmark."""

    path: Path
    benchmark: str
    dbms: str
    """``type`` or ``dbtype`` in small letters; empty where there is none."""
    values: dict[str, Given]
    """Single values by element, those that are there."""
    scale_factor: float
    terminals: int
    types: tuple[TransactionType, ...]
    phases: tuple[Phase, ...]
    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = field(default=())
    """Known elements that stand in the file and are of no use here."""

    def error(self, given: Given, problem: str, allowed: str) -> InputError:
        """Build the complaint about a value."""
        value = given.text if len(given.text) <= 60 else given.text[:57] + "…"  # noqa: PLR2004 - one line
        return InputError(f"{shown(self.path)}:{given.line}: {given.element} {value!r}: {problem}; allowed: {allowed}")

    def phase(self, number: int | None) -> Phase:
        """Return the one phase, or that with a number; raises InputError where it has to be chosen."""
        if number is None and len(self.phases) == 1:
            return self.phases[0]
        chosen = [phase for phase in self.phases if phase.number == number]
        if not chosen:
            numbers = ", ".join(str(phase.number) for phase in self.phases)
            asked = "one phase is run" if number is None else f"there is no phase {number}"
            raise InputError(
                f"{shown(self.path)}: works has {len(self.phases)} work elements: {asked}; allowed: --phase with one of"
                f" {numbers}"
            )
        return chosen[0]

    @property
    def warms_up(self) -> bool:
        """Tell whether transactions run before what is measured."""
        return any(phase.warmup_s > 0 for phase in self.phases)

    def seconds(self) -> int:
        """Return how long all phases take."""
        return sum(phase.warmup_s + phase.time_s for phase in self.phases)


def read(path: Path, benchmark: str) -> Configuration:
    """Read what a configuration says about a benchmark; raises InputError with file, line, element and value."""
    if benchmark not in BENCHMARKS:
        raise InputError(
            f"--benchmark {benchmark!r}: not known here{nearest(benchmark, BENCHMARKS)}; allowed:"
            f" {', '.join(BENCHMARKS)}"
        )
    root = xmlfile.read(path)
    if root.name != ROOT:
        raise InputError(
            f"{shown(path)}:{root.line}: the outermost element is {root.name!r}, so this is no configuration of"
            f" OLTP-Bench or BenchBase; allowed: {ROOT}"
        )
    return _Reader(path, root, benchmark).configuration()


class _Reader:
    """Reads one file for one benchmark."""

    def __init__(self, path: Path, root: Element, benchmark: str) -> None:
        self._path, self._root, self._benchmark = path, root, benchmark

    def configuration(self) -> Configuration:
        values = {}
        for name in dict.fromkeys(child.name for child in self._root.children):
            chosen = (
                self._one(self._root, name) if name in KNOWN and name not in ("works", "transactiontypes") else None
            )
            if chosen is not None:
                values[name] = self._given(name, chosen)
        dbms = values.get("type") or values.get("dbtype")
        types = self._types()
        return Configuration(
            path=self._path,
            benchmark=self._benchmark,
            dbms=dbms.text.lower() if dbms else "",
            values=values,
            scale_factor=self._number(values["scalefactor"], least=0.0) if "scalefactor" in values else 1.0,
            terminals=self._whole(values.get("terminals") or self._missing("terminals"), 1),
            types=types,
            phases=self._phases(len(types)),
            unknown=tuple(self._unknown()),
            unused=tuple(name for name in values if name in WITHOUT_MEANING),
        )

    # -- elements ---------------------------------------------------------------------------------------------

    def _chosen(self, parent: Element, name: str) -> list[Element]:
        """Return the children of a name that are for this benchmark, or else those for any."""
        found = parent.all(name)
        own = [element for element in found if element.attributes.get(BENCH) == self._benchmark]
        return own or [element for element in found if BENCH not in element.attributes]

    def _one(self, parent: Element, name: str) -> Element | None:
        found = self._chosen(parent, name)
        if len(found) > 1:
            raise self._error(found[1].line, f"{name} stands twice; allowed: once for each benchmark")
        return found[0] if found else None

    def _given(self, name: str, element: Element) -> Given:
        return Given(name, element.text, element.line)

    def _value(self, parent: Element, place: str, name: str) -> Given | None:
        element = self._one(parent, name)
        return self._given(f"{place}/{name}", element) if element is not None else None

    def _unknown(self) -> list[str]:
        found = []
        for place, element in self._root.walk():
            if place not in KNOWN:
                # What is below it is unknown with it.
                if place.rpartition("/")[0] in ("", *KNOWN):
                    found.append(place)
                continue
            known = ATTRIBUTES.get(place, set()) | {BENCH}
            found += [f"{place}/@{name}" for name in element.attributes if name not in known]
        return list(dict.fromkeys(found))

    # -- values -----------------------------------------------------------------------------------------------

    def _error(self, line: int, problem: str) -> InputError:
        return InputError(f"{shown(self._path)}:{line}: {problem}")

    def _missing(self, element: str, line: int | None = None) -> Given:
        raise self._error(line or self._root.line, f"{element} is missing; allowed: an element of this name")

    def _number(self, given: Given, least: float) -> float:
        try:
            number = float(given.text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= least):
            raise self._error(given.line, f"{given.element} {given.text!r}: allowed: a number of at least {least:g}")
        return number

    def _whole(self, given: Given, least: int) -> int:
        number = self._number(given, least)
        if number != int(number):
            raise self._error(given.line, f"{given.element} {given.text!r}: allowed: a whole number from {least}")
        return int(number)

    # -- transactions and phases ------------------------------------------------------------------------------

    def _types(self) -> tuple[TransactionType, ...]:
        parent = self._one(self._root, "transactiontypes")
        elements = self._chosen(parent, "transactiontype") if parent is not None else []
        if not elements:
            self._missing(_TYPE, parent.line if parent is not None else None)
        found = []
        for position, element in enumerate(elements, start=1):
            name = self._value(element, _TYPE, "name") or self._missing(f"{_TYPE}/name", element.line)
            number = self._value(element, _TYPE, "id")
            before, after = (self._value(element, _TYPE, f"{when}ExecutionWait") for when in ("pre", "post"))
            found.append(
                TransactionType(
                    name.text,
                    self._whole(number, 1) if number else position,
                    self._number(before, 0.0) if before else 0.0,
                    self._number(after, 0.0) if after else 0.0,
                    name,
                )
            )
        return tuple(found)

    def _phases(self, types: int) -> tuple[Phase, ...]:
        works = self._one(self._root, "works")
        elements = works.all("work") if works is not None else []
        if not elements:
            self._missing("works/work", works.line if works is not None else None)
        return tuple(self._phase(element, number, types) for number, element in enumerate(elements, start=1))

    def _phase(self, work: Element, number: int, types: int) -> Phase:
        place = "works/work"
        time, warmup = self._value(work, place, "time"), self._value(work, place, "warmup")
        weights = self._value(work, place, "weights") or self._missing(f"{place}/weights", work.line)
        return Phase(
            number=number,
            time_s=self._whole(time, 0) if time else 0,
            warmup_s=self._whole(warmup, 0) if warmup else 0,
            rate=self._value(work, place, "rate") or self._missing(f"{place}/rate", work.line),
            arrival=Given(f"{place}/@arrival", work.attributes.get("arrival", "regular"), work.line),
            serial=self._value(work, place, "serial") or Given(f"{place}/serial", "false", work.line),
            active_terminals=self._value(work, place, "active_terminals"),
            weights=self._weights(weights, types),
            given_weights=weights,
        )

    def _weights(self, given: Given, types: int) -> tuple[float, ...]:
        """Read a list of weights, or the name of one under ``groupings``; ``all`` weighs all types alike."""
        groupings = self._groupings()
        name = given.text.lower()
        text = groupings.get(name, ",".join(["1"] * types) if name == "all" else given.text)
        try:
            found = tuple(float(part) for part in text.split(","))
        except ValueError:
            listed = ", ".join([*groupings, "all"])
            raise self._error(
                given.line, f"{given.element} {given.text!r}: allowed: numbers with commas between, or one of {listed}"
            ) from None
        if len(found) != types or min(found) < 0 or not 0 < sum(found) < math.inf:
            raise self._error(
                given.line,
                f"{given.element} {given.text!r}: {len(found)} weights for {types} transaction types; allowed: one for"
                " each, none below 0, not all 0",
            )
        return found

    def _groupings(self) -> dict[str, str]:
        parent = self._one(self._root, "transactiontypes")
        listed = self._one(parent, "groupings") if parent is not None else None
        found = {}
        for grouping in listed.all("grouping") if listed is not None else []:
            name, weights = (self._value(grouping, f"{_GROUPING}/grouping", n) for n in ("name", "weights"))
            if name is not None and weights is not None:
                found[name.text.lower()] = weights.text
        return found
