"""The committed notebooks show the published data: executed again, they give what is committed."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from figures import parts
from runner import claims, collect, notebooks, outputs, stale, store
from runner.files import read_json, write_json
from runner.store import Run

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = sorted((ROOT / "notebooks").glob("*.ipynb"))
DRAWN = ("figures", "notebooks", "report.html", "report.pdf", "*.parquet")


@pytest.fixture(scope="session")
def published() -> Run:
    found = store.newest_published(ROOT / "results" / "published")
    assert found is not None, "nothing is published: `make publish`"
    return found


def _copy(published: Run, place: Path) -> Run:
    without = shutil.ignore_patterns(*DRAWN)
    return Run(Path(shutil.copytree(published.path, place / published.path.name, ignore=without)))


@pytest.fixture(scope="session")
def executed(published: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed notebooks, executed on a copy of the published run."""
    copy = _copy(published, tmp_path_factory.mktemp("published"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(parts.FORMATS_VARIABLE, "svg")  # the others take most of the time
        notebooks.execute_all(COMMITTED, copy.path)
    return copy.path


def test_the_committed_outputs_are_those_of_the_published_data(executed: Path) -> None:
    found = [line for path in COMMITTED for line in stale.differences(path, executed / "notebooks" / path.name)]
    assert not found, "\n".join([*found, f"mend it with `{stale.MEND}`, and look at what changed"])


def test_each_figure_is_there_as_a_file(executed: Path) -> None:
    drawn = {path.stem for path in (executed / "figures").iterdir()}
    assert {f"fig0{number}" for number in range(1, 8)} | {"fig12"} <= drawn
    assert all(path.stat().st_size > 5_000 for path in (executed / "figures").iterdir())


def test_table_and_verdicts_are_those_of_the_records(published: Run) -> None:
    table = collect.read(published.path)
    pd.testing.assert_frame_equal(collect.collect(published), table)
    wanted = claims.load(ROOT / "workloads" / "claims.yml")
    judged = claims.judge_all(wanted, table, outputs.whole_grids(published))
    assert read_json(published.path / "claims.json") == json.loads(json.dumps(judged)), f"mend it with `{stale.MEND}`"


def test_each_notebook_says_that_it_shows_the_published_run(published: Run) -> None:
    assert published.name.endswith("(published)")
    for path in COMMITTED:
        first = next(c for c in read_json(path)["cells"] if c["cell_type"] == "code")
        assert f"run {published.name}" in "".join(first["outputs"][0]["text"]), path.name


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_it_is_thin(path: Path) -> None:
    cells = read_json(path)["cells"]
    assert cells[0]["cell_type"] == "markdown", "first what the figure should show"
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]
    assert len(lines) < 25, "logic belongs into notebooks/figures/"


def test_no_machine_is_named(published: Run) -> None:
    private = re.compile(rb'"/(?:home|root|tmp|work|var|opt|usr)/|"(?:hostname|boot_id|endpoint|pids)"')
    for path in published.path.rglob("*.json"):
        if not {"figures", "notebooks"} & set(path.relative_to(published.path).parts):
            assert not private.search(path.read_bytes()), path


# -- the check itself can fail --------------------------------------------------------------------------------------


@pytest.fixture
def tampered(executed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(executed / "notebooks" / "fig07.ipynb", tmp_path))


def _alter(path: Path, kind: str, change: Any) -> int:
    """Change the first output of a kind; return its cell's number."""
    document = read_json(path)
    for number, cell in enumerate(document["cells"], start=1):
        for output in cell.get("outputs", []):
            if kind in output.get("data", {}):
                content = output["data"][kind]
                output["data"][kind] = change(content if isinstance(content, str) else "".join(content))
                write_json(path, document)
                return number
    raise AssertionError(f"{path} has no {kind}")


def test_a_changed_number_in_a_table_is_found(tampered: Path, executed: Path) -> None:
    def change(html: str) -> str:
        digit = html.rindex("<td>") + len("<td>")
        return html[:digit] + "9" + html[digit:]

    number = _alter(tampered, "text/html", change)
    (found,) = stale.differences(tampered, executed / "notebooks" / "fig07.ipynb")
    assert found.startswith(f"fig07.ipynb, cell {number}: text/html: committed …")


def test_a_changed_picture_is_found_and_its_shades_are_not(tampered: Path, executed: Path) -> None:
    def change(levels: float, pixels: int) -> Any:
        def repaint(picture: str) -> str:
            image = np.array(plt.imread(io.BytesIO(base64.b64decode(picture))))
            part = image[100:110, 100 : 100 + pixels // 10, :3]
            part[...] = np.where(part > 0.5, part - levels, part + levels)
            file = io.BytesIO()
            plt.imsave(file, image, format="png")
            return base64.b64encode(file.getvalue()).decode()

        return repaint

    again = executed / "notebooks" / "fig07.ipynb"
    _alter(tampered, "image/png", change(0.1, 300))
    assert stale.differences(tampered, again) == []
    number = _alter(tampered, "image/png", change(0.4, 40))
    (found,) = stale.differences(tampered, again)
    assert found == (
        f"fig07.ipynb, cell {number}: image/png: 40 pixels of the picture are others, between column 100, row 100 and"
        " column 103, row 109"
    )


def test_a_changed_cell_or_a_missing_output_is_found(tampered: Path, executed: Path) -> None:
    document = read_json(tampered)
    code = [n for n, cell in enumerate(document["cells"]) if cell["cell_type"] == "code"]
    document["cells"][code[0]]["source"] = "print('another')"
    document["cells"][code[1]]["outputs"] = []
    write_json(tampered, document)
    assert stale.differences(tampered, executed / "notebooks" / "fig07.ipynb") == [
        f"fig07.ipynb, cell {code[0] + 1}: the cell itself is another one",
        f"fig07.ipynb, cell {code[1] + 1}: has an output more than committed",
    ]


def test_a_changed_table_is_found_in_figure_and_table(
    published: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trial's throughput doubled in trials.csv: the records no longer give the table, nor the table the outputs."""
    copy = _copy(published, tmp_path)
    table = collect.read(copy.path)
    chosen = table.index[(table["experiment"] == "fig07") & (table["status"] == "ok")][0]
    table.loc[chosen, "throughput_txn_s"] *= 2
    collect.write(table, copy.path, names=("trials.csv",))
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(collect.collect(copy), collect.read(copy.path))
    monkeypatch.setenv(parts.FORMATS_VARIABLE, "svg")
    notebooks.execute(ROOT / "notebooks" / "fig07.ipynb", copy.path)
    both = (ROOT / "notebooks" / "fig07.ipynb", copy.path / "notebooks" / "fig07.ipynb")
    found = "\n".join(stale.differences(*both))
    assert "image/png:" in found
    assert "text/html: committed" in found


def test_what_is_to_be_committed_again_is_collected_again(published: Run, tmp_path: Path) -> None:
    """A published run keeps its table until its notebooks are executed anew."""
    copy = _copy(published, tmp_path)
    true = collect.read(copy.path)
    collect.write(true.assign(flags="outlier"), copy.path, collect.PUBLISHED_FILES)
    outputs.refresh(copy)
    assert set(collect.read(copy.path)["flags"]) == {"outlier"}
    outputs.refresh(copy, in_place=True)
    pd.testing.assert_frame_equal(collect.read(copy.path), true)
    assert not (copy.path / "trials.parquet").exists()


def test_the_picture_of_readme_is_taken_from_the_executed_notebook(executed: Path, tmp_path: Path) -> None:
    notebooks.keep_picture(tmp_path)
    assert not list(tmp_path.iterdir()), "no notebook, no picture"
    name = f"{notebooks.PICTURE}.ipynb"
    (tmp_path / "notebooks").mkdir()
    shutil.copy(executed / "notebooks" / name, tmp_path / "notebooks")
    notebooks.keep_picture(tmp_path)
    shown = next(
        output["data"]["image/png"]
        for cell in read_json(tmp_path / "notebooks" / name)["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    )
    assert (tmp_path / f"{notebooks.PICTURE}.png").read_bytes() == base64.b64decode("".join(shown))
