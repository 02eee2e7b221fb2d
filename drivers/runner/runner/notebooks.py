"""Executing the notebooks against a run."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runner.context import ROOT
from runner.errors import InputError, RunError
from runner.files import read_json

if TYPE_CHECKING:
    from nbformat import NotebookNode

CELL_LIMIT_S = 300
RUN_VARIABLE = "ANTICACHE_EVAL_RUN"
"""Names the run directory for the notebook's kernel; without it a notebook reads ``results/latest``."""
FORGET = "%reset -f"
"""Between two notebooks of a kernel: names, results and the count of cells go, imported modules stay loaded."""

PICTURE = "fig06"
"""The notebook whose first picture README shows."""
DRAWN_FROM = "drawn-from.sha256"
"""Beside a run's executed notebooks: the digest of the ``trials.csv`` that they showed."""


def applicable(experiments: list[str], directory: Path) -> list[str]:
    """Return the notebooks of `experiments` that exist, and the one that shows the claims.

    An experiment may have several, ``NAME.ipynb`` and ``NAME-….ipynb``. Experiments whose names have a first part in
    common share those that begin with it: ``beyond.ipynb``, ``beyond-….ipynb``. What a run lacks of them, they say
    themselves. The paper's figures come first, in their order: a run that grew in several sittings has another one.
    """
    experiments = sorted(experiments, key=lambda name: (not name.startswith("fig"), name))
    families = (name.split("-")[0] for name in experiments)
    shared = (path.stem for family in families for path in sorted(directory.glob(f"{family}-*.ipynb")))
    named = (part for name in experiments for part in (name, name.split("-")[0]))
    names = dict.fromkeys([*named, *shared, "claims"])
    return [name for name in names if (directory / f"{name}.ipynb").is_file()]


def execute_all(notebooks: list[Path], run: Path, in_place: bool = False) -> list[Path]:
    """Execute notebooks side by side, as many at once as there are CPUs; each is `execute`, also in what it raises.

    Those that a CPU executes one after another share a kernel: loading the libraries takes longer than most of them.
    """
    lanes = min(len(os.sched_getaffinity(0)), len(notebooks))
    with ThreadPoolExecutor(max(1, lanes), thread_name_prefix="notebook") as pool:
        done = pool.map(lambda lane: _one_after_another(notebooks[lane::lanes], run, in_place), range(lanes))
        made = {path.name: path for paths in done for path in paths}
    return [made[notebook.name] for notebook in notebooks]


def execute(notebook: Path, run: Path, in_place: bool = False) -> Path:
    """Execute `notebook` on `run`; the executed copy goes to the run, with `in_place` also over the original.

    Raises InputError when it cannot be read and RunError with the cell's own last line when it fails.
    """
    return _one_after_another([notebook], run, in_place)[0]


def _one_after_another(notebooks: list[Path], run: Path, in_place: bool) -> list[Path]:
    with _kernel(run, notebooks[0].parent) as in_kernel:
        return [_execute(in_kernel, notebook, run, in_place) for notebook in notebooks]


@contextmanager
def _kernel(run: Path, directory: Path) -> Iterator[Callable[[NotebookNode], None]]:
    """Start a kernel that finds our packages and the run; give what executes a document there as if in a new one."""
    # Here, because only the commands that draw need them, and every command would wait for their import.
    from jupyter_core.utils import run_sync  # noqa: PLC0415
    from nbclient import NotebookClient  # noqa: PLC0415
    from nbformat.v4 import new_code_cell, new_notebook  # noqa: PLC0415

    paths = [str(ROOT / "drivers" / "runner"), str(ROOT / "notebooks"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        RUN_VARIABLE: str(run.resolve()),
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    forget = new_notebook(cells=[new_code_cell(FORGET)])  # type: ignore[no-untyped-call]
    first = NotebookClient(
        forget,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(directory)}},
        # Loopback only; the kernel's warning about unencrypted sockets would fill every log.
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    try:
        first.execute(env=environment, cleanup_kc=False)

        def execute_in_it(document: NotebookNode) -> None:
            for each in (forget, document):
                # One text for what a cell prints, however it came in pieces.
                client = NotebookClient(each, km=first.km, timeout=CELL_LIMIT_S, coalesce_streams=True)
                client.kc = first.kc
                client.execute()

        yield execute_in_it
    finally:
        if first.kc is not None:
            first.kc.stop_channels()
        if first.km is not None and first.km.has_kernel:
            run_sync(first.km.shutdown_kernel)(now=True)  # type: ignore[arg-type]


def _execute(in_kernel: Callable[[NotebookNode], None], notebook: Path, run: Path, in_place: bool) -> Path:
    import nbformat  # noqa: PLC0415
    from nbclient.exceptions import CellExecutionError  # noqa: PLC0415

    try:
        document = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"{notebook}: cannot be read: {error}") from None
    try:
        in_kernel(document)
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


def keep_picture(run: Path) -> None:
    """Keep the picture that README shows beside a run's records, as the executed notebook has it; none without that."""
    notebook = run / "notebooks" / f"{PICTURE}.ipynb"
    if not notebook.is_file():
        return
    outputs = (output for cell in read_json(notebook)["cells"] for output in cell.get("outputs", []))
    pictures = (output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {}))
    for picture in pictures:
        (run / f"{PICTURE}.png").write_bytes(base64.b64decode("".join(picture)))
        return
