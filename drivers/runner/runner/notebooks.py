"""Executing the notebooks against a run."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runner.context import ROOT
from runner.errors import InputError, RunError

CELL_LIMIT_S = 300
RUN_VARIABLE = "ANTICACHE_EVAL_RUN"
"""Names the run directory for the notebook's kernel; without it a notebook reads ``results/latest``."""


def applicable(experiments: list[str], directory: Path) -> list[str]:
    """Return the notebooks of `experiments` that exist, and the one that shows the claims.

    Experiments whose names have a first part in common share the one that has its name: ``beyond-…``.
    """
    names = dict.fromkeys([*(name.split("-")[0] for name in experiments), "claims"])
    return [name for name in names if (directory / f"{name}.ipynb").is_file()]


def execute_all(notebooks: list[Path], run: Path, in_place: bool = False) -> list[Path]:
    """Execute notebooks side by side, as many at once as there are CPUs; each is `execute`, also in what it raises."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="notebook") as pool:
        return list(pool.map(lambda notebook: execute(notebook, run, in_place), notebooks))


def execute(notebook: Path, run: Path, in_place: bool = False) -> Path:
    """Execute `notebook` on `run`; the executed copy goes to the run, with `in_place` also over the original.

    Raises InputError when it cannot be read and RunError with the cell's own last line when it fails.
    """
    # Here, because only the commands that draw need them, and every command would wait for their import.
    import nbformat  # noqa: PLC0415
    from nbclient import NotebookClient  # noqa: PLC0415
    from nbclient.exceptions import CellExecutionError  # noqa: PLC0415

    try:
        document = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"{notebook}: cannot be read: {error}") from None
    client = NotebookClient(
        document,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook.parent)}},
        # Loopback only; the kernel's warning about unencrypted sockets would fill every log.
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    paths = [str(ROOT / "drivers" / "runner"), str(ROOT / "notebooks"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        RUN_VARIABLE: str(run.resolve()),
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        raise RunError(f"{notebook.name} failed: {error.ename}: {error.evalue}") from None
    document["metadata"].pop("language_info", None)
    for cell in document["cells"]:
        cell["metadata"].pop("execution", None)  # times of day: noise in a diff
    copy = run / "notebooks" / notebook.name
    copy.parent.mkdir(exist_ok=True)
    nbformat.write(document, copy)  # type: ignore[no-untyped-call]
    if in_place:
        nbformat.write(document, notebook)  # type: ignore[no-untyped-call]
    return copy
