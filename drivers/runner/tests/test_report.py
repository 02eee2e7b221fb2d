"""The report: written where there is neither server nor build, on a run with failed, flagged and missing trials."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pytest

from runner import collect, context, outputs, report, store
from runner.disk import NODE_DISK
from runner.errors import InputError, RunError
from runner.files import read_json, write_json
from runner.identity import Code, variables_digest
from runner.machine import CpuSets
from runner.plan import Plan, Trial, make_plan
from runner.report import chapters, conditions, settings
from runner.store import Key, Run
from runner.workload import load

ROOT = Path(__file__).resolve().parents[3]
CODE = Code("c" * 40, False, "code-1")
MACHINE = {"cpu_model": "A Processor", "memory_bytes": 8 << 30, "kernel": "6.1"}
SELF_TEST = {"name": "random read", "measured": 150.0, "model": 165.0, "ratio": 0.9, "unit": "IOPS", "tolerance": 0.1}

GUARD = """
import os, sys

def watch(event, arguments):
    if event in ("subprocess.Popen", "socket.connect"):
        with open(os.environ["GUARD_LOG"], "a") as log:
            log.write(f"{event} {arguments[0] if event == 'subprocess.Popen' else arguments[1]}\\n")

sys.addaudithook(watch)
"""


def a_plan(*experiments: str) -> Plan:
    return make_plan([load(ROOT / "workloads", name, "tiny") for name in experiments], CpuSets("0", "1"), NODE_DISK)


def environment_of(trial: Trial) -> dict[str, Any]:
    return {
        "code": dataclasses.asdict(CODE),
        "binaries": {"loadgen": "aa", "anticached": "bb"},
        "versions": {"loadgen": "0.1.0"},
        "cpu_sets": {"server": "0", "client": "1", "shared": False},
        "control_group": {"enforced": True, "limit_bytes": 300 << 20},
        "server_settings": {"server": {"of": trial.cell.system, "some_setting": 42}},
    }


def record(run: Run, trial: Trial, **result: Any) -> None:
    directory = run.begin(trial.hash)
    measured = {"throughput_txn_s": 1234.0, "committed": 1234, "measured_s": 1.0}
    write_json(directory / "result.json", {"format": 1, "status": "ok", "flags": [], **measured, **result})
    write_json(directory / "environment.json", environment_of(trial))
    run.commit(trial.hash)


def a_run(results: Path, *experiments: str) -> tuple[Run, Plan]:
    """A run at the smallest scale: the first trial failed, the second is flagged, the last was not run."""
    plan = a_plan(*experiments)
    key = Key("tiny", "local", "none", "code-1", "inventory-1", variables_digest({}), "a machine")
    run = store.create(results, key, CODE, MACHINE)
    run.add_plan(plan)
    run.begin_sitting({"code": dataclasses.asdict(CODE), "machine": "a machine", "command": "run"})
    run.add_lanes(
        {
            "1": {
                "hosts": {"dbms": "db1", "clients": "client1"},
                "machines": {"dbms": MACHINE, "clients": MACHINE},
                "cpu_sets": {"server": "0", "client": "1", "shared": False},
                "disk_self_test": [{**SELF_TEST, "ok": True}, {**SELF_TEST, "name": "append", "ok": False}],
            }
        }
    )
    record(run, plan.trials[0], status="failed", reason="mysqld <died>", throughput_txn_s=None)
    record(run, plan.trials[1], flags=["events_lost"])
    for trial in plan.trials[2:-1]:
        record(run, trial)
    return run, plan


@pytest.fixture
def troubled(tmp_path: Path) -> tuple[Run, Plan]:
    return a_run(tmp_path / "results", "fig06", "fig07")


class Reported(NamedTuple):
    """What a checkout with results and nothing else made of them."""

    run: Path
    page: str
    touched: list[str]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The command's doing in a checkout without builds, tools and servers, with an empty PATH."""
    place = tmp_path_factory.mktemp("alone")
    bare = place / "checkout"
    ignore = shutil.ignore_patterns("tests", "__pycache__")
    for name in ("drivers/runner/runner", "notebooks", "workloads", "results/reference"):
        shutil.copytree(ROOT / name, bare / name, ignore=ignore)
    shutil.copy(ROOT / "DEVIATIONS.md", bare)
    (place / "guard").mkdir()
    (place / "guard" / "sitecustomize.py").write_text(GUARD)
    run, _ = a_run(place / "results", "fig07")
    paths = [place / "guard", bare / "drivers" / "runner", bare / "notebooks", os.environ.get("PYTHONPATH") or "."]
    done = subprocess.run(
        [sys.executable, "-m", "runner", "report", "--results", str(place / "results")],
        cwd=place,
        env={
            "PATH": "",
            "HOME": str(place),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "GUARD_LOG": str(place / "touched"),
            "MPLCONFIGDIR": mpl.get_configdir(),  # where its list of fonts is; making it takes seconds
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(run.path / "report.html"), str(run.path / "report.pdf")]
    touched = (place / "touched").read_text().splitlines()
    return Reported(run.path, (run.path / "report.html").read_text(), touched)


def test_it_needs_no_server_and_no_program_but_python(reported: Reported) -> None:
    programs = {line.removeprefix("subprocess.Popen ") for line in reported.touched if line.startswith("subprocess")}
    for_fonts_and_libraries = {"fc-list", "ld", "/sbin/ldconfig", "uname"}  # asked by Python's own modules, if there
    assert programs <= {sys.executable, "git", *for_fonts_and_libraries}, "git is asked which version writes"
    assert [line for line in reported.touched if line.startswith("socket.connect")] == []


def test_the_page_refers_to_nothing_outside(reported: Reported) -> None:
    assert "<script" not in reported.page
    assert "<link" not in reported.page
    assert "url(" not in reported.page
    assert set(re.findall(r'src="(.{10})', reported.page)) == {"data:image"}
    targets = re.findall(r'href="#([^"]+)"', reported.page)
    assert targets
    for target in targets:
        assert f'id="{target}"' in reported.page, target


def test_every_figure_of_the_run_is_on_the_page_with_its_note(reported: Reported) -> None:
    drawn = list((reported.run / "figures").glob("*.png"))
    assert [path.stem for path in drawn] == ["fig07"]
    (alt,) = re.findall(r'<img src="data:image/png;base64,[^"]*" alt="([^"]*)"', reported.page)
    for what in ("1 not run", "1 failed (MySQL)", "1 valid with a flag: events_lost (MySQL + Memcached)"):
        assert what in alt
    assert "Other figures" not in reported.page


def test_the_pdf_has_pages(reported: Reported) -> None:
    content = (reported.run / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    assert len(content) > 50_000, "with the figure"


def test_the_page_says_what_a_reader_looks_for(reported: Reported) -> None:
    for text in (
        "mysqld &lt;died&gt;",
        "events_lost",
        "A Processor",
        "8 GiB",
        "Lane 1: client1, terminals",
        '<span class="bad">no</span>',  # the self-test that failed
        "the end-to-end test; its figures mean nothing",  # the scale's purpose
        f"git checkout {CODE.commit}",
        "--experiment fig07 --scale tiny --inventory local --disk none",
        "one 7200 RPM disk, its model not stated",  # a deviation
        "<h3>TPC-C: data and memory</h3>",  # and what the table of them refers to
        "Code: cccccccccccc.",
    ):
        assert text in reported.page, text
    assert re.search(r"<tr><td>fig12</td>.*?not run", reported.page, re.DOTALL)
    assert "--systems" not in reported.page, "the run has all"
    assert "overridden" not in reported.page
    assert "The figures are older" not in reported.page


def test_the_page_lists_the_sittings(reported: Reported) -> None:
    assert "<h3>Sittings</h3>" in reported.page
    assert "at most 10.0% off (random read)" in reported.page


def test_figures_that_are_older_than_the_records_are_called_so(reported: Reported, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(reported.run, tmp_path / "results" / "runs" / "copy")))
    missing = next(t for t in a_plan("fig07").trials if not run.trial_path(t.hash).is_dir())
    record(run, missing)
    outputs.refresh(run)
    page = (run.path / "report.html").read_text()
    assert "The figures are older than the rest of this page" in page
    assert not (run.path / "report.pdf").exists(), "one of another state would contradict the page"


def test_without_a_drawn_figure_the_page_says_so(troubled: tuple[Run, Plan]) -> None:
    outputs.refresh(troubled[0])
    assert "No figure has been drawn for this run yet" in (troubled[0].path / "report.html").read_text()


def test_what_the_systems_share_and_what_not(troubled: tuple[Run, Plan]) -> None:
    run, _ = troubled
    ycsb, tpcc = settings.side_by_side(run)
    assert (ycsb.benchmark, tpcc.benchmark) == ("ycsb", "tpcc")
    assert ycsb.systems == ["mysql", "mysql-memcached", "anticache-lru", "anticache-alru", "anticache-off"]
    same = {s.name: s.common for s in ycsb.same}
    assert same["memory_budget_bytes"] == "1x: 24 MiB, 2x: 12 MiB"
    assert {"terminals", "durability", "disk.profile", "server_cpus", "measure_s"} <= set(same)
    different = {s.name: s.values for s in ycsb.different}
    assert different["memcached_bytes"] == {"mysql-memcached": "1x: 12 MiB, 2x: 6 MiB"}
    assert different["engine.anticaching"] == {"anticache-lru": "lru", "anticache-alru": "alru", "anticache-off": "off"}
    assert set(different["engine.merge"]) == {"anticache-lru", "anticache-alru"}
    more_memory = {s.name: s for s in tpcc.different}["memory_budget_bytes"]
    assert "cannot evict" in more_memory.why
    assert {s.name for s in ycsb.different} <= set(settings.WHY), "a difference has its reason"


def _change(run: Run, change: Callable[[dict[str, Any]], None]) -> Run:
    plan = read_json(run.path / "plan.json")
    change(plan)
    write_json(run.path / "plan.json", plan)
    return Run(run.path)


def test_an_unfair_setting_shows(troubled: tuple[Run, Plan]) -> None:
    def unfair(plan: dict[str, Any]) -> None:
        for deployment in plan["deployments"].values():
            if deployment["system"] == "mysql":
                deployment["values"]["terminals"] = 8

    ycsb, _ = settings.side_by_side(_change(troubled[0], unfair))
    assert {s.name: s.values for s in ycsb.different}["terminals"]["mysql"] == "8"


def test_the_conditions_are_held_against_the_records(troubled: tuple[Run, Plan]) -> None:
    run, plan = troubled
    assert all(c.holds for c in settings.checked(run)), list(settings.checked(run))

    def another_seed(changed: dict[str, Any]) -> None:
        changed["trials"][0]["seed"] += 1

    other = environment_of(plan.trials[2])
    other |= {"code": {**other["code"], "shaping": "code-2"}, "binaries": {"loadgen": "cc", "anticached": "bb"}}
    other |= {"control_group": {"enforced": False, "why_not": "no controller"}}
    write_json(run.trial_path(plan.trials[2].hash) / "environment.json", other)
    broken = {c.what.partition(":")[0] for c in settings.checked(_change(run, another_seed)) if not c.holds}
    assert broken == {
        "the same operations",
        "one state of the code",
        "one build of the driver",
        "memory limited by the kernel",
    }


def test_values_in_words() -> None:
    for name, value, words in (
        ("memory_budget_bytes", 20 << 20, "20 MiB"),
        ("field_bytes", 100, "100 B"),
        ("data.stored_bytes_per_order", 1000, "1,000 B"),
        ("warmup_s", 0.5, "0.5 s"),
        ("records", 20000, "20,000"),
        ("tpcc.population_seed", 2013, "2013"),
        ("rotational", True, "yes"),
        ("cpus", [0, 1], "0, 1"),
        ("merge", "", "—"),
    ):
        assert settings.value_in_words(name, value) == words


def test_a_choice_of_systems_is_part_of_the_command(tmp_path: Path) -> None:
    loaded = [load(ROOT / "workloads", "fig07", "tiny")]
    plan = make_plan(loaded, CpuSets("0", "1"), NODE_DISK, systems=["mysql", "anticache-alru"])
    key = Key("tiny", "local", "none", "code-1", "inventory-1", "overridden", "a machine")
    run = store.create(tmp_path / "results", key, CODE, MACHINE)
    run.add_plan(plan)
    outputs.refresh(run)
    page = (run.path / "report.html").read_text()
    assert "--systems mysql,anticache-alru" in page
    assert "Variables of the inventory were overridden" in page
    assert "no trial has been recorded" in page
    fig07 = next(e for e in conditions.extents(run, collect.read(run.path), {}) if e.experiment == "fig07")
    assert fig07.cells is None, "without its grid nothing can be said of its extent"


def test_a_choice_of_trials_is_part_of_the_command(tmp_path: Path) -> None:
    for count, words in ((None, ""), (2, " --trials 2")):
        loaded = [load(ROOT / "workloads", name, "laptop") for name in ("fig01-05", "fig07")]
        plan = make_plan(loaded, CpuSets("0", "1"), NODE_DISK, trials=count)
        key = Key("laptop", "local", "none", "code-1", "inventory-1", variables_digest({}), "a machine")
        run = store.create(tmp_path / str(count), key, CODE, MACHINE)
        run.add_plan(plan)
        assert conditions.rerun(run, {})[-2].endswith(f"--disk none --systems {','.join(_systems(plan))}{words}")


def _systems(plan: Plan) -> list[str]:
    return list(dict.fromkeys(t.cell.system for t in plan.trials))


def test_microbenchmarks_have_no_settings_of_a_server(tmp_path: Path) -> None:
    run, _ = a_run(tmp_path / "results", "fig11b")
    (found,) = settings.side_by_side(run)
    names = {s.name for s in (*found.same, *found.different)}
    assert {"memory_budget_bytes", "server_cpus", "micro.indexes", "disk.profile"} <= names
    assert not [
        n for n in names if n.startswith(("engine.", "mysql")) or n in ("durability", "partitions", "terminals")
    ]


def test_settings_of_a_running_engine_stand_where_those_of_its_start_do(tmp_path: Path) -> None:
    plan = make_plan([load(ROOT / "workloads", "fig08", "smoke")], CpuSets("0", "1"), NODE_DISK)
    key = Key("smoke", "local", "none", "code-1", "inventory-1", variables_digest({}), "a machine")
    run = store.create(tmp_path / "results", key, CODE, MACHINE)
    run.add_plan(plan)
    (found,) = settings.side_by_side(run)
    every = {s.name: s for s in (*found.same, *found.different)}
    assert set(every["engine.merge"].common.split(", ")) == {"tuple-merge: tuple", "block-merge: block"}
    assert not [name for name in every if name.startswith("engine_settings")]


def test_sittings_are_listed_with_their_code_machine_and_disk(troubled: tuple[Run, Plan]) -> None:
    run, plan = troubled
    first = run.sitting
    run.end_sitting("interrupted")
    run.begin_sitting({"code": {"commit": "d" * 40, "dirty": True}, "machine": "a machine", "command": "run"})
    trial = plan.trials[-1]
    directory = run.begin(trial.hash)
    write_json(directory / "result.json", {"status": "ok", "throughput_txn_s": 1.0})
    write_json(directory / "environment.json", {**environment_of(trial), "sitting": run.sitting})
    run.commit(trial.hash)
    one, two = conditions.sittings(run, collect.collect(run))
    assert (one.began_at, one.code, one.machine) == (first, "c" * 12, "a machine")
    assert one.ended.endswith(" (interrupted)")
    assert one.disk == "1: at most 10.0% off (random read)"
    assert (two.code, two.trials, two.disk) == ("d" * 12 + " with uncommitted changes", 1, "")
    assert two.ended == "(killed, or still going on)"


def test_self_tests_of_all_disks_are_shown(tmp_path: Path) -> None:
    run, _ = a_run(tmp_path / "results", "fig07")
    run.add_lanes({"1": {"disk_self_tests": {"nvme": [SELF_TEST], "hdd-7200": [SELF_TEST], "none": []}}})
    assert set(conditions.self_tests(run)) == {"1, nvme", "1, hdd-7200"}
    run.add_lanes({"1": {"hosts": {}}})  # the run goes on, with cells of one disk
    run.add_lanes({"1": {"disk_self_tests": {"hdd-7200": [{**SELF_TEST, "ok": True}]}}})
    assert conditions.self_tests(run) == {"1, nvme": [SELF_TEST], "1, hdd-7200": [{**SELF_TEST, "ok": True}]}


def test_chapters_show_tables_and_pictures(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    head = "<thead><tr><th></th><th>long_name</th></tr></thead>"
    table = f'<table border="1">{head}<tbody><tr>\n<th>0</th><td>a_b</td></tr></tbody></table>'
    picture = {"image/png": "QUJD\n", "text/plain": "<Figure>"}
    cells = [
        {"cell_type": "markdown", "source": "# Title\n\nText <b>bold</b>.\n\n## Part\n"},
        {"cell_type": "code", "source": "x", "outputs": [{"output_type": "stream", "text": "1 < 2\n"}]},
        {"cell_type": "code", "source": "x", "outputs": [{"data": {"text/html": f"<style>x</style>{table}"}}]},
        {"cell_type": "code", "source": "plot()", "outputs": [{"data": picture}]},
    ]
    write_json(tmp_path / "notebooks" / "beyond.ipynb", {"cells": cells})
    write_json(tmp_path / "notebooks" / "fig99.ipynb", {"cells": []})
    write_json(tmp_path / "notebooks" / "claims.ipynb", {"cells": []})
    found = chapters.of_run(tmp_path)
    assert [(c.name, c.title) for c in found] == [("fig99", "fig99"), ("beyond", "Title")]
    body = found[1].body
    assert "<h4>Part</h4>" in body
    assert "Text &lt;b&gt;bold" in body
    assert "<pre>1 &lt; 2\n</pre>" in body
    assert "<th>long_<wbr>name</th>" in body
    assert "<th></th>" not in body
    assert "<th>0</th>" not in body
    assert "a_b" in body
    assert "style>" not in body
    assert '<img src="data:image/png;base64,QUJD" alt="&lt;Figure&gt;">' in body


def test_a_broken_notebook_is_named(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "fig06.ipynb").write_text("{")
    with pytest.raises(RunError, match=r"fig06\.ipynb: no executed notebook .*make figures"):
        chapters.of_run(tmp_path)


def test_without_the_deviations_the_report_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "ROOT", tmp_path)
    with pytest.raises(InputError, match=r"DEVIATIONS\.md: cannot be read"):
        conditions.deviations()
    for text in ("# x\n\nNothing differs.\n", "| the paper | here |\n|---|---|\n"):
        (tmp_path / "DEVIATIONS.md").write_text(text)
        with pytest.raises(InputError, match=r"DEVIATIONS\.md: not a title with a table below it"):
            conditions.deviations()


def test_without_the_libraries_of_the_pdf_the_message_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(RunError, match=r"report.html is written, but report\.pdf cannot be: .*libpango-1\.0-0"):
        report.write_pdf(tmp_path / "report.html")
    assert not (tmp_path / "report.pdf").exists()
