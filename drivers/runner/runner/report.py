"""``report.html``: one self-contained page with environment, settings, figures, claims and troubled trials."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from runner import collect
from runner.claims import qualified
from runner.files import read_json, write_text
from runner.store import Run

SETTINGS = (
    "memory_budget_bytes",
    "stored_bytes",
    "row_memory_bytes",
    "mysql_buffer_pool_bytes",
    "memcached_bytes",
    "mysql_redo_log_bytes",
    "eviction_block_bytes",
    "merge",
    "partitions",
    "terminals",
    "durability",
    "server_cpus",
    "client_cpus",
    "disk_profile",
    "versions",
)


def write(run: Run) -> Path:
    """Write the report of a run from what is collected there; figures that were not drawn are left out, and said so."""
    table = collect.read(run.path)
    template = Environment(
        loader=PackageLoader("runner", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template("report.html.j2")
    page = template.render(
        run=run.name,
        meta=run.meta,
        code=collect.code_of(table),
        qualified=qualified,
        counts=table["status"].value_counts().to_dict(),
        settings=_settings(table),
        figures=_figures(run.path / "figures"),
        claims=read_json(run.path / "claims.json"),
        troubled=_troubled(table),
        systems=_server_settings(run),
    )
    path = run.path / "report.html"
    write_text(path, page)
    return path


def _settings(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the settings of each system by benchmark and data/memory ratio, of measured trials before planned ones."""
    rows = []
    ordered = table.sort_values("status", key=lambda s: s == "planned", kind="stable")
    cells = ["experiment", "benchmark", "system", "data_memory_ratio"]
    for (experiment, benchmark, system, ratio), group in ordered.groupby(cells, sort=False):
        first = group.iloc[0]
        values = {name: "" if pd.isna(first[name]) else first[name] for name in SETTINGS}
        where = {"experiment": experiment, "benchmark": benchmark, "system": system}
        rows.append({**where, "data_memory_ratio": f"{ratio:g}x", **values})
    return sorted(rows, key=lambda r: tuple(r[name] for name in cells))


def _figures(directory: Path) -> list[dict[str, str]]:
    """Return the drawn figures as data URLs."""
    return [
        {"name": path.stem, "url": f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"}
        for path in sorted(directory.glob("*.svg"))
    ]


def _troubled(table: pd.DataFrame) -> list[dict[str, Any]]:
    chosen = table[(table["status"] != "ok") | (table["flags"] != "")]
    names = [
        "trial_hash",
        "experiment",
        "benchmark",
        "system",
        "mix",
        "skew",
        "data_memory_ratio",
        "trial",
        "status",
        "flags",
        "reason",
    ]
    return [{str(k): v for k, v in row.items()} for row in chosen[names].to_dict("records")]


def _server_settings(run: Run) -> list[dict[str, Any]]:
    """Return what each system's servers reported about themselves in their first recorded trial."""
    found: dict[str, dict[str, Any]] = {}
    for stored in run.trials:
        system = stored["cell"]["system"]
        path = run.trial_path(stored["hash"]) / "environment.json"
        if system not in found and path.is_file():
            environment = read_json(path)
            if environment.get("server_settings"):
                settings = {
                    f"{server}: {name}": value
                    for server, values in environment["server_settings"].items()
                    for name, value in values.items()
                }
                found[system] = {"system": system, "settings": settings}
    return list(found.values())
