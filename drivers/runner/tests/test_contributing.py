"""CONTRIBUTING.md does what it says: its pages are followed in a copy of the checkout; what they promise is there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from nodes import free_port, play

from runner import collect
from runner.files import read_json
from runner.remarks import REMARKS

ROOT = Path(__file__).resolve().parents[3]
PAGES = dict(page.split("\n", 1) for page in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## ")[1:])
BLOCK = re.compile(r"^( *)```(\w+)(?: (\S+))?\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
PYTHON = ".venv/bin/python"
LONGEST_PAGE = 60  # lines

COPIED = (
    "DEVIATIONS.md",
    "ansible",
    "drivers/runner/runner",
    "drivers/spindle/profiles",
    "examples",
    "notebooks",
    "results/published/laptop",
    "results/reference",
    "workloads",
)
LINKED = (".venv", ".tools", "target")


def blocks(title: str) -> list[tuple[str, str, str]]:
    """The blocks of a page: kind, file, text."""
    found = []
    for indent, kind, file, text in BLOCK.findall(PAGES[title]):
        found.append((kind, file, "".join(line[len(indent) :] + "\n" for line in text.splitlines())))
    return found


def lines_of(title: str, beginning: str) -> list[str]:
    """The commands of a page that begin so."""
    lines = [line for kind, _, text in blocks(title) if kind == "sh" for line in text.splitlines()]
    return [line for line in lines if line.startswith(beginning)]


def changed(text: str, change: str) -> str:
    """A file's text after the change that a `diff` block shows; its context has to be there, once."""
    before, after = (
        "".join(line[1:] + "\n" for line in change.splitlines() if not line.startswith(sign)) for sign in "+-"
    )
    assert text.count(before) == 1, f"stands {text.count(before)} times there:\n{before}"
    return text.replace(before, after)


class Checkout:
    """A copy of this checkout, less tests, with this one's tools and builds."""

    def __init__(self, place: Path) -> None:
        self.root = place / "checkout"
        for name in COPIED:
            source, target = ROOT / name, self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("tests", "__pycache__", "*.parquet"))
            else:
                shutil.copy(source, target)
        for name in LINKED:
            (self.root / name).symlink_to(ROOT / name)
        paths = (self.root / "drivers" / "runner", self.root / "notebooks")
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        self.environment.pop("RESULTS", None)

    def follow(self, title: str) -> None:
        """Do what a page says, less its commands with Python."""
        for line in lines_of(title, "cp "):
            subprocess.run(shlex.split(line), cwd=self.root, check=True, timeout=60)
        for kind, file, text in blocks(title):
            if kind == "diff":
                path = self.root / file
                path.write_text(changed(path.read_text(encoding="utf-8"), text), encoding="utf-8")

    def call(self, line: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a page, with further arguments."""
        program, *arguments = shlex.split(line)
        assert program == PYTHON
        return subprocess.run(
            [sys.executable, *arguments, *more],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.mark.parametrize("title", ["Add a workload", "Add a figure", "Add a system"])
def test_a_page_is_one_page_and_its_changes_fit(title: str) -> None:
    assert len(PAGES[title].strip().splitlines()) < LONGEST_PAGE
    files: dict[str, str] = {}
    for kind, file, text in blocks(title):
        if kind == "diff":
            files[file] = changed(files.get(file) or (ROOT / file).read_text(encoding="utf-8"), text)
    assert files or title == "Working here"
    (copy,) = lines_of(title, "cp ")
    source = ROOT / shlex.split(copy)[2]
    for path in source.rglob("*"):
        if path.is_file():
            assert not (ROOT / path.relative_to(source)).exists(), f"{path} would replace a file of the checkout"


def test_a_change_that_does_not_fit_is_found() -> None:
    assert changed("a\nb\nc\n", " a\n-b\n+B\n c\n") == "a\nB\nc\n"
    for text in ("a\nx\nc\n", "a\nb\nc\na\nb\nc\n"):
        with pytest.raises(AssertionError, match="times there"):
            changed(text, " a\n-b\n+B\n c\n")


# -- add a figure -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published run of a checkout in which the page was followed."""
    checkout = Checkout(tmp_path_factory.mktemp("figure"))
    checkout.follow("Add a figure")
    figures, claims = lines_of("Add a figure", PYTHON)
    for line in (figures, claims):
        done = checkout.call(line)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "C25" in done.stdout
    (run,) = (checkout.root / "results" / "published").iterdir()
    return run


def test_the_figure_is_drawn_and_described(drawn: Path) -> None:
    names = {f"fig06-latency.{suffix}" for suffix in ("pdf", "svg", "png")}
    # A checkout in which `make notebooks` was called has the other figures as well.
    assert {path.name for path in (drawn / "figures").glob("fig06-latency*")} == names
    svg = (drawn / "figures" / "fig06-latency.svg").read_text(encoding="utf-8")
    for text in ("p99 of the latency", "read-heavy, 8x", "MySQL + Memcached", "(published)"):
        assert text in svg, text


def test_its_notebook_and_the_report_have_it(drawn: Path) -> None:
    cells = read_json(drawn / "notebooks" / "fig06-latency.ipynb")["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert not [o for o in outputs if o["output_type"] == "error"]
    assert any("image/png" in o.get("data", {}) for o in outputs)
    assert "Figure 6, latencies" in (drawn / "report.html").read_text(encoding="utf-8")


def test_its_statement_is_judged_by_the_trials(drawn: Path) -> None:
    (entry,) = (e for e in read_json(drawn / "claims.json") if e["id"] == "C25")
    table = collect.read_csv(drawn / "trials.csv")
    table = table[table["experiment"] == "fig06"]
    cell = (table["mix"] == "read-heavy") & (table["data_memory_ratio"] == 8) & (table["skew"] == 1.5)
    of = {system: table[cell & (table["system"] == system)] for system in ("anticache-alru", "mysql")}
    assert set(entry["evidence"]) == {h for rows in of.values() for h in rows["trial_hash"]}
    p99_us = {system: float(rows["latency_us_p99"].mean()) for system, rows in of.items()}
    assert entry["measured"] == pytest.approx(p99_us["anticache-alru"] / p99_us["mysql"])
    assert entry["verdict"] == ("reproduced" if entry["measured"] <= 1 else "not reproduced")


def test_a_notebook_that_is_not_there_is_refused(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    done = checkout.call(f"{PYTHON} -m runner figures --only fig06-latencies,fig06")
    assert done.returncode == 2
    assert "no notebook 'fig06-latencies' of an experiment of" in done.stderr
    assert "there is: fig01-05, fig06, fig07" in done.stderr


# -- add a workload, add a system -------------------------------------------------------------------------------------


class Node(Checkout):
    """A checkout with a node of its own: directories and ports."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.variables: dict[str, Any] = {"node_root": str(place / "var"), "control_root": str(place / "var")}
        self.variables |= {name: free_port() for name in ("mysql_port", "memcached_port", "anticached_port")}

    def runner(self, line: str) -> subprocess.CompletedProcess[str]:
        return self.call(line, *(f"--node-var={name}={value}" for name, value in self.variables.items()))

    @property
    def latest(self) -> Path:
        return self.root / "results" / "latest"

    def table(self, experiment: str) -> pd.DataFrame:
        """The trials of an experiment; the tests share a run."""
        table = collect.read(self.latest)
        return table[table["experiment"] == experiment]

    def results(self, system: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What loadgen recorded of a system's trials, by their mixes."""
        for path in self.latest.glob("trials/*/result.json"):
            cell = read_json(path.with_name("spec.json"))["cell"]
            if cell["system"] == system:
                yield cell["mix"], read_json(path)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("node"))
    made.follow("Add a workload")
    made.follow("Add a system")
    play(made.root, "site", made.variables)
    yield made
    play(made.root, "stop", made.variables)


@pytest.mark.servers
def test_the_workload_is_planned_and_run(node: Node) -> None:
    plan, run = lines_of("Add a workload", PYTHON)
    done = node.runner(plan)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "beyond-mixes at scale smoke" in done.stdout
    assert "cells        4" in done.stdout, "two mixes on two systems are four cells"
    assert "0.2 s warm-up + 0.6 s measured" in done.stdout, "as scales.yml says for this experiment"

    done = node.runner(run)
    assert done.returncode == 0, done.stdout + done.stderr
    table = node.table("beyond-mixes")
    assert set(table["system"]) == {"anticache-alru"}
    assert sorted(table["mix"]) == ["read-only", "write-only"]
    assert set(table["status"]) <= {"ok", "invalid"}, table["reason"].to_list()
    assert (table["throughput_txn_s"] > 100).all()
    of_type = {mix: result["latency_us_by_type"] for mix, result in node.results("anticache-alru")}
    kinds = {mix: {kind for kind, found in each.items() if found["max"]} for mix, each in of_type.items()}
    assert kinds == {"read-only": {"read"}, "write-only": {"update"}}, "the mixes are what their names say"


@pytest.mark.servers
def test_the_system_is_deployed_loaded_and_measured(node: Node) -> None:
    (run,) = lines_of("Add a system", PYTHON)
    done = node.runner(run)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = node.table("beyond-cache").to_dict("records")
    assert row["system"] == "memcached-alone"
    assert row["status"] in ("ok", "invalid"), row["reason"]
    assert set(filter(None, row["flags"].split(";"))) - REMARKS <= {"client_saturated"}, row["reason"]
    assert row["throughput_txn_s"] > 100
    assert row["verified"] > 0
    assert row["verify_failed"] == 0
    assert row["memory_budget_bytes"] < row["memory_limit_bytes"]
    ((_, result),) = node.results("memcached-alone")
    given = result["server_settings"]["memcached"]["limit_maxbytes"]
    assert given == row["memory_budget_bytes"] // (1 << 20) * (1 << 20), "all of the budget"
    assert "memcached-alone" in (node.latest / "report.html").read_text(encoding="utf-8")


@pytest.mark.servers
def test_the_system_refuses_what_it_cannot_do(node: Node) -> None:
    path = node.root / "workloads" / "beyond-cache.yml"
    path.write_text(changed(path.read_text(encoding="utf-8"), '-durability: "off"\n+durability: sync\n'))
    (run,) = lines_of("Add a system", PYTHON)
    done = node.runner(run)
    assert done.returncode == 3, done.stdout + done.stderr
    table = node.table("beyond-cache")
    (reason,) = table[table["status"] == "failed"]["reason"].to_list()
    assert "durability is sync: Memcached keeps nothing on disk; allowed for it: off" in reason
