"""Printing the report: the same page, by its style sheet for print."""

from __future__ import annotations

import logging
from pathlib import Path

from runner.errors import RunError

NEEDED = "apt-get install libpango-1.0-0 libpangoft2-1.0-0 fonts-dejavu-core"


def write_pdf(page: Path) -> Path:
    """Print ``report.html`` into ``report.pdf`` beside it; fetches nothing, because the page holds everything.

    Raises RunError when the system's libraries for text are missing, naming the packages.
    """
    # Here, because only this command prints, and every command would wait for the import.
    try:
        from weasyprint import HTML  # noqa: PLC0415
        from weasyprint.urls import URLFetcher  # noqa: PLC0415
    except (ImportError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise RunError(
            f"{page} is written, but report.pdf cannot be: {reason}: install what it needs: make setup, or {NEEDED}"
        ) from None
    logging.getLogger("weasyprint").setLevel(logging.ERROR)  # it warns of rules that concern the screen only
    path = page.with_suffix(".pdf")
    temporary = path.with_name(f".{path.name}.tmp")
    only_within = URLFetcher(allowed_protocols=("data",))
    HTML(string=page.read_text(encoding="utf-8"), url_fetcher=only_within).write_pdf(temporary)
    temporary.replace(path)
    return path
