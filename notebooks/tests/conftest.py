"""What the tests of all figures share: no window, no figure left open, and a recorded run as the one to be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from runner import claims, collect

ROOT = Path(__file__).resolve().parents[2]

mpl.use("Agg")


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def as_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[pd.DataFrame], Path]:
    """Return what makes a table, with the verdicts on it, the run to be shown, and returns its directory.

    What a run has besides may be put there before.
    """
    directory = tmp_path / "results" / "runs" / "recorded"

    def show(table: pd.DataFrame) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        collect.write(table, directory)
        claims.write(claims.judge_all(claims.load(ROOT / "workloads" / "claims.yml"), table, {}), directory)
        (tmp_path / "results" / "latest").symlink_to("runs/recorded")
        monkeypatch.delenv("ANTICACHE_EVAL_RUN", raising=False)
        monkeypatch.setenv("RESULTS", str(tmp_path / "results"))
        return directory

    return show
