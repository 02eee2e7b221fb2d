"""A configuration of theirs as a workload of ours; every value that our drivers cannot honour is refused by name.

What is meant alike but not done alike is told as a note, printed and kept with the run.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from runner.axes import Grid
from runner.benchmarks.section import Section
from runner.benchmarks.tpcc import TpccSize
from runner.benchmarks.ycsb import Ycsb
from runner.errors import InputError
from runner.oltpbench.configuration import Configuration, Given, Phase
from runner.systems import SYSTEMS, WITHOUT_EVICTION
from runner.workload import Only, Workload, load, size_problem
from runner.yamlfile import nearest, shown

PREFIX = "oltpbench-"
BASES = {"ycsb": "fig06", "tpcc": "fig07"}
"""The experiments that say all that their files do not: schema, durability, stored bytes, settings of the engine."""
MIX = "configured"
RECORDS_PER_SCALE_FACTOR = 1000
DEFAULT_SKEW = 0.99
SKEWS = (0.5, 1.5)
SERIALIZABLE = "TRANSACTION_SERIALIZABLE"
READ, UPDATE = "ReadRecord", "UpdateRecord"
YCSB_TYPES = (READ, "InsertRecord", "ScanRecord", UPDATE, "DeleteRecord", "ReadModifyWriteRecord")
OUR_TYPES = {
    "ycsb": {"read": READ, "update": UPDATE},
    "tpcc": {
        "new_order": "NewOrder",
        "payment": "Payment",
        "order_status": "OrderStatus",
        "delivery": "Delivery",
        "stock_level": "StockLevel",
    },
}
"""Our names of transactions, with theirs."""
TPCC_WEIGHTS = (45.0, 43.0, 4.0, 4.0, 4.0)
TPCC_DECK = (10, 10, 1, 1, 1)
"""What our terminals draw from: the deck of clause 5.2.4.2, which satisfies the shares of clause 5.2.3."""
KEYING_MS = (18_000.0, 3_000.0, 2_000.0, 2_000.0, 2_000.0)
THINKING_MS = (12_000.0, 12_000.0, 10_000.0, 5_000.0, 5_000.0)
"""Clause 5.2.5.7, in the order of `OUR_TYPES`."""
TPCC_ITEMS, TPCC_CUSTOMERS, TPCC_ORDERS = 100_000, 3_000, 3_000
"""Their scale factor counts warehouses of the specification's size."""
ARRIVALS = {"regular": "fixed", "poisson": "poisson"}
"""Their names of arrivals, with ours."""
OFFERED_TXN_S = (0.001, 10_000_000.0)
MOST_TRANSACTIONS = 5_000_000
ELEMENT_OF_KEY = {
    "records": "scalefactor",
    "warehouses": "scalefactor",
    "terminals": "terminals",
    "tpcc": "scalefactor",
}
"""Which element is to blame for a size of ours."""


@dataclass(frozen=True)
class Choice:
    """What is chosen beside their file: it knows of no systems under test and of no memory."""

    systems: tuple[str, ...]
    data_memory_ratio: tuple[float, ...]
    phase: int | None = None
    record_transactions: int = MOST_TRANSACTIONS


@dataclass(frozen=True)
class Settings:
    """A mapped configuration: all that makes its workload at a scale. Kept with the run, so only plain values."""

    id: str
    file: str
    benchmark: str
    systems: list[str]
    data_memory_ratio: list[float]
    scale_factor: str
    terminals: int
    warmup_s: float
    measure_s: float
    types: dict[str, int]
    """Their transaction types with the numbers that raw results have."""
    record_transactions: int
    records: int = 0
    read_share: float = 0.0
    skew: float = 0.0
    warehouses: int = 0
    wait_factor: float = 0.0
    loading_threads: int | None = None
    seed: int | None = None
    arrival: str = ""
    """Of an open loop; empty where the rate is unlimited."""
    offered_txn_s: float = 0.0

    def record(self) -> dict[str, Any]:
        """Return it as JSON keeps it."""
        return asdict(self)

    @staticmethod
    def of(record: dict[str, Any]) -> Settings:
        """Read a kept one; raises InputError for one of another version."""
        try:
            return Settings(**{f.name: record[f.name] for f in fields(Settings)})
        except KeyError as missing:
            raise InputError(f"the run keeps a configuration without {missing}: another version wrote it") from None


@dataclass(frozen=True)
class Mapped:
    """A configuration that can be run, with what is told of it."""

    settings: Settings
    notes: tuple[str, ...]


def settings_of(configuration: Configuration, choice: Choice) -> Mapped:
    """Map a configuration; raises InputError with file, line, element, value and what is allowed."""
    _refuse_strangers(configuration)
    phase = configuration.phase(choice.phase)
    _refuse_phase(configuration, phase)
    terminals = configuration.terminals
    if phase.active_terminals is not None:
        terminals = _bounded(configuration, phase.active_terminals, 1, configuration.terminals)
    if terminals > 4096:  # noqa: PLR2004 - loadgen's own limit
        raise configuration.error(configuration.values["terminals"], "too many", "1 to 4096")
    scale_factor = configuration.values.get("scalefactor")
    common: dict[str, Any] = {
        "id": experiment_name(configuration, phase),
        "file": configuration.path.name,
        "benchmark": configuration.benchmark,
        "systems": list(choice.systems),
        "data_memory_ratio": list(choice.data_memory_ratio),
        "scale_factor": scale_factor.text if scale_factor else "1",
        "terminals": terminals,
        "warmup_s": float(phase.warmup_s),
        "measure_s": float(phase.time_s),
        "types": {t.name: t.number for t in configuration.types},
        "record_transactions": choice.record_transactions,
    }
    if (threads := configuration.values.get("loaderThreads")) is not None:
        common["loading_threads"] = _bounded(configuration, threads, 1, 256)
    seed = configuration.values.get("randomSeed")
    if seed is not None and seed.text != "-1":  # which means: any
        common["seed"] = _bounded(configuration, seed, 0, 2**32 - 1)
    own, notes = (_ycsb if configuration.benchmark == "ycsb" else _tpcc)(configuration, phase)
    if load := _load(configuration, phase):
        if own.get("wait_factor"):
            raise configuration.error(
                configuration.types[0].given, "terminals do not wait in an open loop", "waits of 0, or rate unlimited"
            )
        notes.append(
            f"works/work/rate {phase.rate.text}: an open loop; latencies in their files count from the submission,"
            " response times in trials.csv from the arrival"
        )
    return Mapped(Settings(**common, **own, **load), tuple(notes))


def name_of(path: Path) -> str:
    """Return the name of the experiment that a file stands for."""
    return PREFIX + re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")


def experiment_name(configuration: Configuration, phase: Phase) -> str:
    """Name a configuration's experiment; where there are several phases, each is one."""
    name = name_of(configuration.path)
    return f"{name}-phase-{phase.number}" if len(configuration.phases) > 1 else name


def workload_of(settings: Settings, workloads: Path, scale: str) -> Workload:
    """Make the workload of a mapped configuration at a scale, which says all that it does not.

    Raises InputError when the scale is unknown, or the configuration's size does not fit it.
    """
    base = load(workloads, BASES[settings.benchmark], scale)
    section = base.section(settings.benchmark)
    values, terminals = base.values, settings.terminals
    changed: dict[str, Any] = {"warmup_s": settings.warmup_s, "measure_s": settings.measure_s}
    changed["loading_threads"] = settings.loading_threads or values.loading_threads
    if isinstance(section, Ycsb):
        section = section.model_copy(update={"terminals": terminals, "mixes": {MIX: settings.read_share}})
        changed["records"] = settings.records
        axes: dict[str, Any] = {"mix": [MIX], "skew": [settings.skew]}
    else:
        section = section.model_copy(update={"terminals": terminals, "wait_factor": settings.wait_factor})
        changed["tpcc"] = TpccSize(
            warehouses=settings.warehouses,
            items=TPCC_ITEMS,
            customers_per_district=TPCC_CUSTOMERS,
            orders_per_district=TPCC_ORDERS,
            growth_bytes=values.tpcc.growth_bytes,
            terminals=terminals,
        )
        axes = {}
    axes |= {"data_memory_ratio": settings.data_memory_ratio, "system": settings.systems}
    if settings.arrival:
        axes |= {"arrival": [settings.arrival], "offered_txn_s": [settings.offered_txn_s]}
    grid = Grid(**axes)
    experiment = base.experiment.model_copy(
        update={
            "title": f"{settings.benchmark} as {settings.file} configures it",
            "paper": "none: a configuration of OLTP-Bench or BenchBase",
            "seed": base.experiment.seed if settings.seed is None else settings.seed,
            "grid": grid,
            "only": _without_eviction(settings),
            settings.benchmark: section,
            "mysql_transaction": "explicit",  # as their clients do
            "record_transactions": settings.record_transactions or None,
        }
    )
    made = Workload(settings.id, scale, experiment, values.model_copy(update=changed), grid, base.schemas)
    _refuse_size(settings, made, section)
    return made


def _without_eviction(settings: Settings) -> list[Only]:
    """Leave the engine without anti-caching out where the data exceed memory."""
    if WITHOUT_EVICTION not in settings.systems:
        return []
    fitting = [ratio for ratio in settings.data_memory_ratio if ratio <= 1]
    if not fitting:
        raise InputError(
            f"--systems {WITHOUT_EVICTION!r}: cannot evict, so its data have to fit in memory; allowed with"
            " --data-memory-ratio up to 1"
        )
    return [Only(system="anticache-off", data_memory_ratio=fitting)]


def _refuse_size(settings: Settings, made: Workload, section: Section) -> None:
    found = size_problem(made, section.name)
    if found is None:
        return
    key, problem = found
    blamed = ELEMENT_OF_KEY.get(str(key[-1]), "")
    where = f"{settings.file}, {blamed} {settings.scale_factor if blamed == 'scalefactor' else settings.terminals}"
    raise InputError(f"{where if blamed else settings.file} at scale {made.scale}: {problem}")


def check_choice(systems: list[str] | None, ratios: str, transactions: int) -> Choice:
    """Read what is chosen beside the file; raises InputError."""
    for system in systems or []:
        if system not in SYSTEMS:
            raise InputError(
                f"--systems {system!r}: not known{nearest(system, SYSTEMS)}; allowed: {', '.join(SYSTEMS)}"
            )
    try:
        found = tuple(dict.fromkeys(float(part) for part in ratios.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 < ratio <= 1024 for ratio in found):  # noqa: PLR2004 - as in every grid
        raise InputError(f"--data-memory-ratio {ratios!r}: allowed: numbers above 0 and up to 1024, e.g. 1,2,4,8")
    return Choice(tuple(systems or SYSTEMS), found, record_transactions=transactions)


# -- what is refused ------------------------------------------------------------------------------------------


def _refuse_strangers(configuration: Configuration) -> None:
    """Refuse single values that no driver of ours honours."""
    values = configuration.values
    isolation = values.get("isolation")
    if isolation is not None and isolation.text != SERIALIZABLE:
        raise configuration.error(isolation, "every system here is measured at serializable isolation", SERIALIZABLE)
    if "afterload" in values:
        raise configuration.error(values["afterload"], "no script runs after loading here", "no such element")
    connection = values.get("newConnectionPerTxn")
    if connection is not None and connection.text.lower() != "false":
        raise configuration.error(connection, "a terminal keeps its connection here", "false")
    own = {"fieldSize": "ycsb", "skewFactor": "ycsb"}
    for name, benchmark in own.items():
        if name in values and benchmark != configuration.benchmark:
            raise configuration.error(values[name], f"an element of {benchmark}", "no such element")


def _refuse_phase(configuration: Configuration, phase: Phase) -> None:
    if phase.serial.text.lower() != "false":
        raise configuration.error(phase.serial, "transactions are drawn by their weights here", "false")
    if phase.time_s < 1:
        given = Given("works/work/time", str(phase.time_s), phase.rate.line)
        raise configuration.error(given, "nothing would be measured", "seconds from 1 to 86400")
    for name, seconds in (("time", phase.time_s), ("warmup", phase.warmup_s)):
        if seconds > 86_400:  # noqa: PLR2004 - a day, as in scales.yml
            given = Given(f"works/work/{name}", str(seconds), phase.rate.line)
            raise configuration.error(given, "too long", "seconds up to 86400")


def _load(configuration: Configuration, phase: Phase) -> dict[str, Any]:
    """Return how transactions arrive, and at which rate; nothing for a closed loop, which is theirs without a limit."""
    arrival = ARRIVALS.get(phase.arrival.text.lower())
    if phase.rate.text.lower() == "unlimited":
        if arrival != "fixed":
            raise configuration.error(phase.arrival, "without a rate terminals are a closed loop here", "regular")
        return {}
    if arrival is None:
        raise configuration.error(phase.arrival, "nothing arrives so here", ", ".join(ARRIVALS))
    least, most = OFFERED_TXN_S
    try:
        offered_txn_s = float(phase.rate.text)
    except ValueError:
        offered_txn_s = 0.0
    if not least <= offered_txn_s <= most:
        raise configuration.error(
            phase.rate,
            "no rate that terminals keep here",
            f"unlimited, or {least:g} to {most:.0f} (transactions per second)",
        )
    return {"arrival": arrival, "offered_txn_s": offered_txn_s}


def _bounded(configuration: Configuration, given: Given, least: int, most: int) -> int:
    allowed = f"whole numbers from {least} to {most}"
    if not re.fullmatch(r"\d{1,18}", given.text) or not least <= int(given.text) <= most:
        raise configuration.error(given, "not allowed here", allowed)
    return int(given.text)


# -- benchmarks -----------------------------------------------------------------------------------------------


def _ycsb(configuration: Configuration, phase: Phase) -> tuple[dict[str, Any], list[str]]:
    values = configuration.values
    if (size := values.get("fieldSize")) is not None and size.text != "100":
        raise configuration.error(size, "records have ten fields of 100 bytes (workloads/schemas/ycsb.sql)", "100")
    skew = values.get("skewFactor")
    exponent = _skew(configuration, skew) if skew is not None else DEFAULT_SKEW
    weights = dict.fromkeys((READ, UPDATE), 0.0)
    for transaction, weight in zip(configuration.types, phase.weights, strict=True):
        _refuse_pause(configuration, transaction.before_ms + transaction.after_ms, transaction.given)
        if transaction.name not in YCSB_TYPES:
            raise configuration.error(
                transaction.given,
                f"not a transaction of YCSB{nearest(transaction.name, YCSB_TYPES)}",
                ", ".join(YCSB_TYPES),
            )
        if transaction.name not in weights and weight > 0:
            raise configuration.error(
                transaction.given,
                f"our terminals have no such transaction, and it has weight {weight:g} in {phase.given_weights.text!r}",
                f"weight 0 for it; weights above 0 for {READ} and {UPDATE}",
            )
        if transaction.name in weights:
            weights[transaction.name] += weight
    records = round(configuration.scale_factor * RECORDS_PER_SCALE_FACTOR)
    if records < RECORDS_PER_SCALE_FACTOR:
        raise configuration.error(values["scalefactor"], f"{records} records are too few", "numbers from 1")
    share = weights[READ] / (weights[READ] + weights[UPDATE])
    notes = ["YCSB: keys by an exact Zipf distribution, the highest key the hottest; theirs draws it approximately"]
    if share < 1:
        notes.append(f"YCSB: {UPDATE} writes one field of a record, as in the paper; theirs writes all ten")
    return {"records": records, "read_share": share, "skew": exponent}, notes


def _skew(configuration: Configuration, given: Given) -> float:
    try:
        exponent = float(given.text)
    except ValueError:
        exponent = -1.0
    if not SKEWS[0] <= exponent <= SKEWS[1]:
        raise configuration.error(
            given, "not an exponent that is drawn here", f"{SKEWS[0]:g} to {SKEWS[1]:g} (BenchBase itself: below 1)"
        )
    return exponent


def _refuse_pause(configuration: Configuration, pause_ms: float, given: Given) -> None:
    if pause_ms > 0:
        raise configuration.error(given, "terminals of YCSB do not wait between transactions", "waits of 0")


def _tpcc(configuration: Configuration, phase: Phase) -> tuple[dict[str, Any], list[str]]:
    warehouses = configuration.scale_factor
    if warehouses != int(warehouses) or not 1 <= warehouses <= 32_767:  # noqa: PLR2004 - a SMALLINT
        raise configuration.error(
            configuration.values["scalefactor"], "warehouses are whole", "whole numbers from 1 to 32767"
        )
    theirs = list(OUR_TYPES["tpcc"].values())
    weights = dict.fromkeys(theirs, 0.0)
    for transaction, weight in zip(configuration.types, phase.weights, strict=True):
        if transaction.name not in weights:
            raise configuration.error(
                transaction.given,
                f"our terminals have no such transaction{nearest(transaction.name, theirs)}",
                ", ".join(theirs),
            )
        weights[transaction.name] += weight
    shares = _shares(weights.values())
    if shares not in (_shares(TPCC_WEIGHTS), _shares(TPCC_DECK)):
        raise configuration.error(
            phase.given_weights,
            "our terminals draw from the deck of clause 5.2.4.2 alone",
            f"{_listed(TPCC_WEIGHTS)} or {_listed(TPCC_DECK)} for {', '.join(theirs)}",
        )
    notes = [
        f"TPC-C: the deck {_listed(TPCC_DECK)} of clause 5.2.4.2 (43.5 % New-Order) stands for weights of"
        f" {phase.given_weights.text}",
        "TPC-C: every transaction stays at its home warehouse, as in the paper; theirs go elsewhere in one of ten",
    ]
    if shares == _shares(TPCC_DECK):
        notes = notes[1:]
    factor = _wait_factor(configuration)
    if factor > 0:
        notes.append("TPC-C: think times are drawn around their mean (clause 5.2.5.4); theirs are all of one length")
    return {"warehouses": int(warehouses), "wait_factor": factor}, notes


def _shares(weights: Any) -> list[float]:
    listed = list(weights)
    return [round(weight / sum(listed), 4) for weight in listed]


def _listed(weights: tuple[float, ...]) -> str:
    return ",".join(f"{weight:g}" for weight in weights)


def _wait_factor(configuration: Configuration) -> float:
    """Return the share of the specification's keying and think times that the waits are: one for all of them."""
    places = {name: place for place, name in enumerate(OUR_TYPES["tpcc"].values())}
    found = set()
    for transaction in configuration.types:
        place = places[transaction.name]
        found.add(round(transaction.before_ms / KEYING_MS[place], 6))
        found.add(round(transaction.after_ms / THINKING_MS[place], 6))
    if len(found) > 1 or max(found) > 1:
        raise configuration.error(
            configuration.types[0].given,
            "waits before and after transactions are here one share of the specification's for all of them",
            "preExecutionWait 18000, 3000, 2000, 2000, 2000 and postExecutionWait 12000, 12000, 10000, 5000, 5000"
            " (clause 5.2.5.7), or all of them times one number from 0 to 1",
        )
    return found.pop()


def described(configuration: Configuration) -> list[str]:
    """Say what of a file is not used: unknown elements first, in one line each."""
    lines = []
    if configuration.unknown:
        lines.append(f"{shown(configuration.path)}: unknown elements, not used: {', '.join(configuration.unknown)}")
    return lines
