"""The tidy table: one row per planned trial, each carrying its trial hash; checked against a schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa

from runner import consistency, engine, evictions, machine, remarks, steady
from runner.axes import written
from runner.errors import RunError
from runner.files import read_json
from runner.hidden import Hidden
from runner.plan import digest
from runner.sample import THROUGHPUT, is_usable
from runner.store import FOREIGN, Run
from runner.systems import EVICTING, family

STATUSES = ("ok", "invalid", "failed", "planned")
"""`invalid`: measured, but not to be trusted (the terminals were saturated, a read was wrong); `planned`: not run."""


def _text(nullable: bool = False, **kwargs: Any) -> pa.Column:
    return pa.Column(str, nullable=nullable, coerce=True, **kwargs)


def _integer(**kwargs: Any) -> pa.Column:
    return pa.Column("Int64", pa.Check.ge(0), nullable=True, coerce=True, **kwargs)


def _number(**kwargs: Any) -> pa.Column:
    return pa.Column("Float64", pa.Check.ge(0), nullable=True, coerce=True, **kwargs)


def _signed(**kwargs: Any) -> pa.Column:
    return pa.Column("Float64", nullable=True, coerce=True, **kwargs)


def _flag(**kwargs: Any) -> pa.Column:
    return pa.Column("boolean", nullable=True, coerce=True, **kwargs)


HIT_QUALITY = (
    "restarted_share",
    "fetched_blocks_per_1000_txn",
    "fetched_bytes_per_txn",
    "evicted_blocks_per_1000_txn",
)
"""How well the engine's memory holds what is wanted, from its counters over the measured interval."""

MICRO = (
    "elapsed_ms",
    "construct_ms",
    "write_ms",
    "sync_ms",
    "fetch_ms",
    "merge_ms",
    "repetitions",
    "walked_per_update",
    "tuples_per_block",
)
"""Medians over the repetitions of a microbenchmark's trial."""

OPEN_LOOP = ("arrived", "achieved_txn_s", "latest_start_us", "backlog_at_start", "not_started")
"""What loadgen says of an open loop besides its response times and its own lateness."""

QUANTILES = ("mean", "p50", "p95", "p99", "p999", "max")

MEASURED = (
    "throughput_txn_s",
    "committed",
    "aborted",
    "retried",
    "errors",
    "measured_s",
    *(f"latency_us_{name}" for name in QUANTILES),
    *(f"response_us_{name}" for name in QUANTILES),
    "client_late_us_p50",
    "client_late_us_p99",
    *OPEN_LOOP,
    "verified",
    "verify_failed",
    "client_cpu_share",
    "server_cpu_cores",
    "memory_peak_bytes",
    "memory_anonymous_bytes",
    "new_orders_per_minute",
    "new_order_share",
    "new_order_p50_us",
    "new_order_p95_us",
    "new_order_p99_us",
    "orders_at_end",
    "data_memory_ratio_end",
    "cache_different",
    "throughput_variation",
    "level_change_s",
    "level_change_share",
    "cell_ratio",
    "cell_variation",
    "cpu_stolen_share",
    "other_cpu_cores",
    "evictions_per_s",
    "throughput_share_at_evictions",
    *HIT_QUALITY,
    *MICRO,
)
"""The columns that hold a measurement: a failed trial has none, whatever loadgen had counted until then."""

SCHEMA = pa.DataFrameSchema(
    {
        # which trial
        "trial_hash": _text(unique=True),
        "run": _text(),
        "experiment": _text(),
        "system": _text(),
        "benchmark": _text(),
        "mix": _text(),
        "read_share": _number(),
        "skew": _number(),
        "data_memory_ratio": _number(),
        "scale": _text(),
        "trial": _integer(),
        # how it ended
        "status": pa.Column(str, pa.Check.isin(STATUSES), coerce=True),
        "reason": _text(),
        "flags": _text(),
        "settled": _flag(),
        "attempts": _integer(),
        "started_at": _text(),
        "ended_at": _text(),
        # what was measured
        "throughput_txn_s": _number(),
        "committed": _integer(),
        "aborted": _integer(),
        "retried": _integer(),
        "errors": _integer(),
        "warmup_s": _number(),
        "measured_s": _number(),
        "latency_us_mean": _number(),
        "latency_us_p50": _number(),
        "latency_us_p95": _number(),
        "latency_us_p99": _number(),
        "latency_us_p999": _number(),
        "latency_us_max": _number(),
        # of an open loop: from the arrival to the commit; latencies are service times, from the submission
        "response_us_mean": _number(),
        "response_us_p50": _number(),
        "response_us_p95": _number(),
        "response_us_p99": _number(),
        "response_us_p999": _number(),
        "response_us_max": _number(),
        "client_late_us_p50": _number(),  # of starts for which a terminal was free
        "client_late_us_p99": _number(),
        "arrived": _integer(),
        "achieved_txn_s": _number(),
        "latest_start_us": _integer(),
        "backlog_at_start": _integer(),
        "not_started": _integer(),
        "verified": _integer(),
        "verify_failed": _integer(),
        "client_cpu_share": _number(),
        "server_cpu_cores": _number(),
        "memory_budget_bytes": _integer(),
        "memory_limit_bytes": _integer(),  # empty: not enforced
        "memory_peak_bytes": _integer(),
        "memory_anonymous_bytes": _integer(),
        # of TPC-C: no audited results, and not comparable with any that are
        "new_orders_per_minute": _number(),
        "new_order_share": _number(),
        "new_order_p50_us": _number(),
        "new_order_p95_us": _number(),
        "new_order_p99_us": _number(),
        "consistency": _text(),  # after the trial: ok, N violations, not checked
        "orders_at_end": _integer(),
        "data_memory_ratio_end": _number(),
        "cache_different": _integer(),
        # how it went on
        "throughput_variation": _number(),
        "level_change_s": _number(),  # empty: it kept one level
        "level_change_share": _signed(),  # of the interval's median; below 0 it fell
        "cell_ratio": _number(),  # to the median of the cell's trials; empty: the only one
        "cell_variation": _number(),  # of the cell's trials: standard deviation / mean
        "cpu_stolen_share": _number(),  # of the CPU time that was wanted, by other virtual machines
        "other_cpu_cores": _number(),  # used by other programs on the same machine
        "evictions_per_s": _number(),
        "throughput_share_at_evictions": _number(),
        "restarted_share": _number(),  # restarts of transactions that met evicted tuples / committed transactions
        "fetched_blocks_per_1000_txn": _number(),
        "fetched_bytes_per_txn": _number(),
        "evicted_blocks_per_1000_txn": _number(),
        # of microbenchmarks: milliseconds of one repetition, the median over all
        "elapsed_ms": _number(),
        "construct_ms": _number(),
        "write_ms": _number(),
        "sync_ms": _number(),  # no part of elapsed_ms
        "fetch_ms": _number(),
        "merge_ms": _number(),
        "repetitions": _integer(),
        "walked_per_update": _number(),  # links that a singly-linked chain made follow
        "tuples_per_block": _number(),
        # under which settings
        "measure": _text(),
        "tuples": _integer(),
        "updates": _integer(),
        "chain": _text(),
        "block_bytes": _integer(),
        "merged": _text(),
        "indexes": _integer(),
        "index_kind": _text(),
        "records": _integer(),
        "fields": _integer(),
        "field_bytes": _integer(),
        "records_factor": _number(),  # times the scale's records; empty: not what is compared
        "terminals_factor": _number(),  # times the section's terminals, as above
        "key_order": _text(),
        "tuple_bytes": _integer(),  # empty: not what is compared
        "warehouses": _integer(),
        "items": _integer(),
        "customers_per_district": _integer(),
        "orders_per_district": _integer(),
        "access": _text(),
        "wait_factor": _number(),
        "stored_bytes": _integer(),
        "row_memory_bytes": _integer(),
        "terminals": _integer(),
        "arrival": _text(),  # empty: a closed loop
        "offered_txn_s": _number(),
        "partitions": _integer(),
        "durability": _text(),
        "mysql_buffer_pool_bytes": _integer(),
        "memcached_bytes": _integer(),
        "mysql_redo_log_bytes": _integer(),
        "eviction_block_bytes": _integer(),
        "block_factor": _number(),  # times the scale's block, where sizes are compared
        "merge": _text(),
        "fetch": _text(),
        "evict_from": _text(),
        "answer_readers": _text(),
        "hole_threshold": _number(),
        "lru_sample_rate": _number(),
        "eviction_check_interval_us": _integer(),
        "eviction_blocks": _integer(),
        "settings_changed": _text(),  # in the running server, with what the trial before left; empty: at its start
        "disk_profile": _text(),
        "disk_region_bytes": _integer(),
        "disk_operations": _integer(),
        "disk_late_share": _number(),
        "disk_read_us_mean": _number(),
        "disk_write_us_mean": _number(),
        "disk_busy_share": _number(),
        "server_cpus": _text(),
        "client_cpus": _text(),
        "seed": _integer(),
        "deployment": _text(),
        "dataset": _text(),
        "settings_hash": _text(),
        "versions": _text(),
        "commit": _text(),
        "dirty": _flag(),
        "shaping_code": _text(),
        # where: a trial that never came to a node has none
        "lane": _text(),
        "db_node": _text(),
        "client_node": _text(),
        "sitting": _text(),  # when the call began that measured it
        "machine": _text(),  # of the DB node: what `runner.machine.identity` says
    },
    strict=True,
    ordered=True,
    checks=[
        pa.Check(
            lambda table: (
                table[["throughput_txn_s", "elapsed_ms"]].notna().any(axis="columns") | (table["status"] != "ok")
            ),
            error="an ok trial has a throughput, or a time",
        ),
        pa.Check(
            lambda table: table[list(MEASURED)].isna().all(axis="columns") | table["status"].isin(["ok", "invalid"]),
            error="a failed or planned trial has no measurement",
        ),
    ],
)
COLUMNS = tuple(SCHEMA.columns)
FILES = ("trials.parquet", "trials.csv")
PUBLISHED_FILES = ("trials.csv",)
"""A published run has its table as text alone, which git can compare."""
TEXTS = [name for name, column in SCHEMA.columns.items() if not column.nullable]  # numbers may all be missing


def collect(run: Run) -> pd.DataFrame:
    """Read every planned trial of `run` into one checked table; raises RunError when a record breaks the schema."""
    rows = [row(run, stored) for stored in run.trials]
    cells = [(stored["experiment"], digest(stored["cell"])) for stored in run.trials]
    remarks.of_cells(rows, cells, [_what_counts(each) for each in rows])
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    try:
        return SCHEMA.validate(table, lazy=True)
    except pa.errors.SchemaErrors as error:
        cases = error.failure_cases.head(5).to_dict("records")
        found = "; ".join(f"{c['column']}: {c['failure_case']!r} breaks {c['check']}" for c in cases)
        raise RunError(f"the records of {run.path} break the table's schema: {found}") from None


def write(table: pd.DataFrame, directory: Path, names: tuple[str, ...] = FILES) -> None:
    """Write ``trials.parquet`` and ``trials.csv``, each in one step."""
    for name in names:
        temporary = directory / f".{name}.tmp"
        if name.endswith(".parquet"):
            table.to_parquet(temporary, index=False)
        else:
            table.to_csv(temporary, index=False)
        temporary.replace(directory / name)


def read_csv(path: Path) -> pd.DataFrame:
    """Read a ``trials.csv`` with the types of the table, checked again; empty texts stay texts."""
    table = _completed(pd.read_csv(path, dtype=dict.fromkeys(TEXTS, str)))
    table[TEXTS] = table[TEXTS].fillna("")
    return SCHEMA.validate(table)


def read(directory: Path) -> pd.DataFrame:
    """Read a table that `write` left, checked again; a published run has it as CSV alone."""
    if not (directory / "trials.parquet").is_file():
        return read_csv(directory / "trials.csv")
    return SCHEMA.validate(_completed(pd.read_parquet(directory / "trials.parquet")))


def _completed(table: pd.DataFrame) -> pd.DataFrame:
    """Add the columns that an older table lacks, empty; one with strangers stays as it is."""
    if not set(table.columns) <= set(COLUMNS):
        return table
    texts = pd.DataFrame("", index=table.index, columns=[name for name in TEXTS if name not in table])
    return pd.concat([table, texts], axis="columns").reindex(columns=list(COLUMNS))


def _what_counts(row: dict[str, Any]) -> float | None:
    """Return the figure that a trial of a cell is compared with the others by; None for one that is not usable."""
    if not is_usable(row["status"], row["flags"]):
        return None
    found = row.get(THROUGHPUT)
    return row.get("elapsed_ms") if found is None else float(found)


def row(run: Run, stored: dict[str, Any]) -> dict[str, Any]:
    """Build the row of one planned trial; a trial without a record has status ``planned``."""
    directory = run.trial_path(stored["hash"])
    result: dict[str, Any] = {"status": "planned", "reason": "not run yet"}
    if directory.is_dir():
        result = _read(directory / "result.json") or {"status": "failed", "reason": "result.json cannot be read"}
    environment = run.environment(stored["hash"])
    spec = stored["spec"]
    deployment = run.plan["deployments"][stored["deployment"]]
    code = run.code_of(stored["hash"])
    found = {
        "trial_hash": stored["hash"],
        "run": run.name,
        "experiment": stored["experiment"],
        "scale": stored["scale"],
        "benchmark": spec["benchmark"],
        "trial": stored["trial"],
        "seed": stored["seed"],
        "attempts": run.attempts(stored["hash"]),
        "status": result["status"],
        "reason": str(result.get("reason") or ""),
        # Earlier versions judged when a trial ended whether it had settled.
        "flags": ";".join(str(flag) for flag in result.get("flags", []) if flag != remarks.NOT_SETTLED),
        "started_at": environment.get("started_at", ""),
        "ended_at": environment.get("ended_at", ""),
        "terminals": spec["terminals"],
        "warmup_s": spec["warmup_s"],
        "client_cpus": spec["client_cpus"],
        "disk_profile": environment.get("disk_profile", run.meta["key"]["disk"]),
        "deployment": stored["deployment"],
        "dataset": deployment["dataset"],
        "settings_hash": digest(Hidden(run).of(result["server_settings"])) if result.get("server_settings") else "",
        "versions": "; ".join(f"{k} {v}" for k, v in sorted(result.get("versions", {}).items())),
        "commit": code.commit,
        "dirty": code.dirty,
        "shaping_code": code.shaping,
        "lane": environment.get("lane", ""),
        "db_node": environment.get("hosts", {}).get("dbms", ""),
        "client_node": environment.get("hosts", {}).get("clients", ""),
        "sitting": environment.get("sitting", ""),
        "machine": _machine(environment),
        **_WITHOUT_TEXT,
        **_workload(spec[spec["benchmark"]]),
        **(_measured(result, environment) if result["status"] not in ("failed", "planned") else {}),
        **(_hit_quality(result) if result["status"] not in ("failed", "planned") else {}),
        **(_tpcc(directory, result, deployment["values"].get("data", {})) if _checked(result, spec) else {}),
        **_settings(deployment["values"], spec),
        **stored["cell"],
        **_reported(result),
        "memory_limit_bytes": environment.get("control_group", {}).get("limit_bytes"),
    }
    if result["status"] not in ("failed", "planned"):
        _judge_course(found, directory, float(result.get("measured_s") or 0.0))
        stolen, others = remarks.stolen_share(environment), remarks.other_cores(environment)
        found |= {"cpu_stolen_share": stolen, "other_cpu_cores": others}
        remarks.remark(found, remarks.of_machine(stolen, others))
    return found


def code_of(table: pd.DataFrame) -> str:
    """Say which code measured the table's trials: its commit, or ``mixed`` with every commit where there are several.

    Two states of the files that shape a number count as several, also on one commit with uncommitted changes.
    """
    measured = table[~table["status"].isin(["failed", "planned"])]
    codes = (measured if not measured.empty else table)[["commit", "dirty", "shaping_code"]].drop_duplicates()
    states = zip(codes["commit"].map(str), codes["dirty"], strict=True)
    commits = list(dict.fromkeys(c[:12] + (" with uncommitted changes" if dirty else "") for c, dirty in states))
    mixed = codes["commit"].nunique() > 1 or codes["shaping_code"].nunique() > 1
    return f"mixed: {', '.join(commits)}" if mixed else commits[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError):
        return {}


_WITHOUT_TEXT = dict.fromkeys(
    (
        *("mix", "key_order", "access", "consistency", "fetch", "evict_from", "answer_readers", "settings_changed"),
        *("measure", "chain", "merged", "index_kind", "arrival"),
    ),
    "",
)
"""Texts that not every benchmark has; an absent number is empty by itself."""


def _workload(section: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name in COLUMNS}


def _checked(result: dict[str, Any], spec: dict[str, Any]) -> bool:
    return spec["benchmark"] == "tpcc" and result["status"] not in ("failed", "planned")


def _judge_course(found: dict[str, Any], directory: Path, measured_s: float) -> None:
    """Add what the interval's seconds say: how steady the trial was, and whether it kept one level."""
    course = evictions.read(directory, measured_s)
    level = steady.level(course.seconds, course.tenths)
    found |= course.metrics(measured_s) | {"settled": level.settled}
    if level.settled is False and level.change is not None:
        found |= {"level_change_s": level.change.second, "level_change_share": level.change.share}
    remarks.remark(found, remarks.of_level(level, measured_s))


def _tpcc(directory: Path, result: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return what only TPC-C has, with what the check after the trial found."""
    found = consistency.read(directory)
    new_order = result.get("latency_us_by_type", {}).get("new_order", {})
    columns: dict[str, Any] = {name: result.get(name) for name in ("new_orders_per_minute", "new_order_share")}
    columns |= {f"new_order_{name}_us": new_order.get(name) for name in ("p50", "p95", "p99")}
    count = consistency.violations(found)
    if not found or "not_checked" in result.get("flags", []):
        return {**columns, "consistency": "not checked"}
    columns["consistency"] = "ok" if count == 0 else f"{count} violation{'' if count == 1 else 's'}"
    columns["cache_different"] = found.get("cache", {}).get("different")
    orders = found.get("tables", {}).get("orders", {}).get("rows")
    if orders is not None:
        end_bytes = data["static_bytes"] + orders * data["stored_bytes_per_order"]
        columns |= {"orders_at_end": orders, "data_memory_ratio_end": end_bytes / data["row_memory_bytes"]}
    return columns


def _measured(result: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    latency = result.get("latency_us") or {}
    names = ("throughput_txn_s", "committed", "measured_s", "verified", "verify_failed", "client_cpu_share")
    measured = {name: result.get(name) for name in names}
    for name in ("aborted", "retried", "errors"):
        counts = result.get(name)
        measured[name] = sum(counts.values()) if isinstance(counts, dict) else None
    for name in QUANTILES:
        measured[f"latency_us_{name}"] = latency.get(name)
    measured |= _open_loop(result.get("open_loop", {}))
    measured |= {name: result[name] for name in MICRO if name in result}
    measured |= _disk(environment.get("disk", {}).get("observed", {}))
    measured["server_cpu_cores"] = environment.get("server_cpu", {}).get("cores")
    measured["memory_peak_bytes"] = _memory_peak(environment)
    used = environment.get("control_group", {}).get("used", {})
    measured["memory_anonymous_bytes"] = used.get("anonymous_bytes")
    return measured


def _open_loop(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured from arrivals on; nothing for a closed loop."""
    if not found:
        return {}
    return {
        **{f"response_us_{name}": found["response_us"][name] for name in QUANTILES},
        **{f"client_late_us_{name}": found["client_late_us"][name] for name in ("p50", "p99")},
        **{name: found[name] for name in OPEN_LOOP},
    }


def _disk(stats: dict[str, Any]) -> dict[str, Any]:
    """Return what an emulated disk did during the trial, warm-up included; nothing for a disk that cannot tell."""
    if not stats:
        return {}
    model, late = stats["model"], stats["late"]
    return {
        "disk_operations": late["operations"],
        "disk_late_share": late["late_share"],
        "disk_read_us_mean": model["read_service"]["mean_us"] if model["reads"] else None,
        "disk_write_us_mean": model["write_service"]["mean_us"] if model["writes"] else None,
        "disk_busy_share": model["busy_ns"] / model["elapsed_ns"] if model["elapsed_ns"] else None,
    }


def _machine(environment: dict[str, Any]) -> str:
    """Name the kind of the DB node; empty where the record does not describe it."""
    described = environment.get("machine", {})
    return machine.identity(described) if "memory_bytes" in described else ""


def _hit_quality(result: dict[str, Any]) -> dict[str, float | None]:
    """Return how often what was wanted lay on disk; nothing for a system that does not count it."""
    before, after = (result.get(name, {}).get("anticached", {}) for name in ("counters_before", "counters_after"))
    names = ("committed", "restarted", "fetched_blocks", "fetched_bytes", "evicted_blocks")
    if any(name not in counters for name in names for counters in (before, after)):
        return {}
    committed, restarted, blocks, read_bytes, evicted = (after[name] - before[name] for name in names)
    if committed <= 0:
        return {}
    figures = (restarted, 1000 * blocks, read_bytes, 1000 * evicted)
    return {name: figure / committed for name, figure in zip(HIT_QUALITY, figures, strict=True)}


def _settings(values: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a deployment and of a trial on it; those that the system does not have stay empty."""
    if FOREIGN in values:  # deployed by somebody else
        return {"merge": "", "durability": "", "server_cpus": ""}
    names = ("memory_budget_bytes", "durability", "server_cpus")
    settings = {name: values[name] for name in names} | {"merge": ""}
    settings["disk_region_bytes"] = values["disk"]["region_bytes"] or None
    settings |= {name: values.get("data", {}).get(name) for name in ("stored_bytes", "row_memory_bytes")}
    if values["benchmark"] == "micro":
        return settings | {"durability": ""}
    if family(values["system"]) == "mysql":
        settings |= {n: values[n] for n in ("mysql_buffer_pool_bytes", "memcached_bytes", "mysql_redo_log_bytes")}
    if family(values["system"]) != "anticache":
        return settings
    settings["partitions"] = values["partitions"]
    if values["system"] in EVICTING:
        settings["eviction_block_bytes"] = values["engine"]["eviction_block_bytes"]
        own = {name: value for name, value in values["engine"].items() if name in engine.LIVE}
        changed = spec.get("engine_settings", {})
        deployed = engine.live_settings(engine.Engine(**own), values["system"])
        different = {name: value for name, value in changed.items() if value != deployed[name]}
        settings |= deployed | changed
        settings["settings_changed"] = "; ".join(f"{name} = {written(value)}" for name, value in different.items())
    return settings


def _reported(result: dict[str, Any]) -> dict[str, str]:
    """Return what only the running engine can tell: engines before a setting existed do not name it."""
    reported = result.get("server_settings", {}).get("anticached", {})
    return {name: str(reported[name]) for name in ("evict_from", "answer_readers") if name in reported}


def _memory_peak(environment: dict[str, Any]) -> int | None:
    """Return the peak of the control group: anonymous memory and page cache, as the limit counts them.

    Without one: the sum of the peaks of the servers' processes, an upper bound of the peak of their sum.
    """
    peak = environment.get("control_group", {}).get("used", {}).get("peak_bytes")
    if peak is not None:
        return int(peak)
    processes = environment.get("memory", {}).get("processes", {})
    return sum(p["peak_bytes"] for p in processes.values()) if processes else None
