"""``report.html``: everything that a run says, on one page without a reference to the outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from runner import claims, collect, context, identity, notebooks
from runner.files import read_json, write_text
from runner.report import chapters, conditions, settings
from runner.store import Run
from runner.yamlfile import read

Grids = Mapping[str, pd.DataFrame]
"""The whole grid of each experiment of the run, one row per cell with a column per axis."""
VERDICTS = (claims.REPRODUCED, claims.NOT_REPRODUCED, claims.NOT_MEASURED)


def write(run: Run, grids: Grids) -> Path:
    """Write the report of a run from its records, its verdicts and its executed notebooks; needs no server.

    An earlier ``report.pdf`` is removed: it would show another state than the page. Raises InputError and RunError.
    """
    table = collect.read(run.path)
    loader = PackageLoader("runner", "templates")
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.globals["figure"] = _figure
    verdicts = read_json(run.path / "claims.json")
    here = identity.code_identity(context.ROOT)
    page = jinja.get_template("report.html.j2").render(
        run=run,
        table=table,
        style=(Path(__file__).parent.parent / "templates" / "report.css").read_text(encoding="utf-8"),
        code=collect.code_of(table),
        written_by=here.commit[:12] + (" with uncommitted changes" if here.dirty else ""),
        purpose=_purpose(run),
        counts={s: n for s in collect.STATUSES if (n := int((table["status"] == s).sum()))},
        flagged=int(((table["status"] == "ok") & (table["flags"] != "")).sum()),
        verdicts={v: n for v in VERDICTS if (n := Counter(c["verdict"] for c in verdicts)[v])},
        claims=verdicts,
        qualified=claims.qualified,
        chapters=chapters.of_run(run.path),
        outdated=_outdated(run.path),
        benchmarks=settings.side_by_side(run),
        checked=list(settings.checked(run)),
        reported=conditions.reported_settings(run),
        machines=conditions.machines(run),
        sittings=conditions.sittings(run, table),
        self_tests=conditions.self_tests(run),
        drive=conditions.drive(run),
        versions=conditions.versions(run),
        deviations=chapters.markdown(conditions.deviations(), lower_by=1),
        troubled=conditions.troubled(run, table),
        not_run=conditions.not_run(table),
        extents=conditions.extents(run, table, grids),
        rerun=conditions.rerun(run, grids),
        overridden=run.key.node_variables != identity.variables_digest({}),
    )
    path = run.path / "report.html"
    write_text(path, page)
    path.with_suffix(".pdf").unlink(missing_ok=True)
    return path


def _figure(value: float) -> str:
    """Write a measured value with four digits, large ones in full."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004


def _purpose(run: Run) -> str:
    """Say what the run's scale is for; empty where this checkout does not have the scale."""
    scales = read(context.WORKLOADS / "scales.yml").data["scales"]
    return str(scales.get(run.key.scale, {}).get("purpose", ""))


def _outdated(run: Path) -> bool:
    """Tell whether the figures were drawn from another table than the one that the rest of the report is made of."""
    try:
        drawn_from = (run / "notebooks" / notebooks.DRAWN_FROM).read_text(encoding="utf-8").strip()
    except OSError:
        return any((run / "notebooks").glob("*.ipynb"))
    return drawn_from != identity.sha256(run / "trials.csv")
