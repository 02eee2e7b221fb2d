"""Comparing two runs: what is matched, what a cell's trials allow to say, what else differs; on the published run."""

from __future__ import annotations

import csv
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from runner import collect, context, store
from runner.checks import Bound, Figure
from runner.cli import main
from runner.compare import shown
from runner.compare.cells import CANNOT_TELL, FASTER, SAME, SLOWER, Compared, Comparison, Measured, compare, judge
from runner.compare.command import EXIT_DIFFERENT, find_run
from runner.compare.differences import differences
from runner.errors import InputError
from runner.files import read_json, write_json
from runner.stats import Estimate
from runner.store import Run

ROOT = Path(__file__).resolve().parents[3]
Change = Callable[[pd.DataFrame], pd.DataFrame]


def unchanged(table: pd.DataFrame) -> pd.DataFrame:
    return table


@pytest.fixture(scope="module")
def published() -> Run:
    return Run(context.PUBLISHED / "smoke")


class Copies:
    """Makes copies of the published run with other tables."""

    def __init__(self, published: Run, place: Path) -> None:
        self._published, self._place = published, place
        self._table = collect.read(published.path)

    def make(self, name: str, change: Change = unchanged, trials: int = 1) -> Run:
        """Copy what a comparison reads; several `trials` of a cell are copies of its one, with other hashes."""
        path = self._place / "results" / "runs" / name
        path.mkdir(parents=True)
        plan, table = dict(self._published.plan), self._table
        if trials > 1:
            numbers = range(trials)
            plan["trials"] = [{**t, "hash": f"{t['hash']}-{n}", "trial": n} for n in numbers for t in plan["trials"]]
            each = (table.assign(trial=n, trial_hash=table["trial_hash"] + f"-{n}") for n in numbers)
            table = pd.concat(each, ignore_index=True)
        write_json(path / "plan.json", plan)
        write_json(path / "run.json", {**self._published.meta, "published": name})
        shutil.copytree(self._published.path / "code", path / "code")
        collect.write(change(table), path, collect.PUBLISHED_FILES)
        return Run(path)

    def measured(self, name: str, change: Change = unchanged, trials: int = 1) -> Measured:
        return Measured(run := self.make(name, change, trials), collect.read(run.path))


@pytest.fixture
def copies(published: Run, tmp_path: Path) -> Copies:
    return Copies(published, tmp_path)


def times(factor: float, experiment: str = "", system: str = "", noise: float = 0.0, seed: int = 0) -> Change:
    """Returns what multiplies the throughputs and times of some trials, all of them with noise."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        chosen = pd.Series(True, index=table.index)
        for column, wanted in (("experiment", experiment), ("system", system)):
            chosen &= table[column].eq(wanted) if wanted else True
        factors = np.where(chosen, factor, 1.0) * np.random.default_rng(seed).normal(1, noise, len(table))
        return table.assign(**{name: table[name] * factors for name in ("throughput_txn_s", "elapsed_ms")})

    return change


def by_verdict(found: Comparison) -> dict[str, set[str]]:
    cells = sorted(found.cells, key=lambda cell: cell.verdict)
    return {
        verdict: {f"{cell.experiment} {cell.system}" for cell in group}
        for verdict, group in itertools.groupby(cells, key=lambda cell: cell.verdict)
    }


# -- what an interval allows to say ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "bound", "verdict"),
    [
        (0.97, 1.04, "", SAME),
        (1.01, 1.04, "", SAME),
        (0.953, 1.05, "", SAME),
        (0.94, 1.04, "", CANNOT_TELL),
        (1.01, 1.2, "", FASTER),
        (0.7, 0.99, "", SLOWER),
        (0.7, 1.2, "", CANNOT_TELL),
        (1.1, 1.2, "lower", FASTER),
        (0.97, 1.04, "lower", CANNOT_TELL),
        (0.7, 0.8, "lower", CANNOT_TELL),
        (0.7, 0.8, "upper", SLOWER),
        (1.1, 1.2, "upper", CANNOT_TELL),
        (1.1, 1.2, "none", CANNOT_TELL),
    ],
)
def test_a_verdict_says_what_the_interval_allows(low: float, high: float, bound: Bound, verdict: str) -> None:
    figure = Figure(Estimate((low + high) / 2, low, high, 3), bound)
    assert judge(figure, 0.05, higher_is_better=True) == verdict
    turned = {FASTER: SLOWER, SLOWER: FASTER}
    assert judge(figure, 0.05, higher_is_better=False) == turned.get(verdict, verdict), "a time"


def test_a_single_trial_allows_nothing() -> None:
    assert judge(Figure(Estimate(0.5, None, None, 1), ""), 0.05, higher_is_better=True) == CANNOT_TELL


# -- two runs -------------------------------------------------------------------------------------------------------


def test_a_run_is_the_same_as_itself(published: Run) -> None:
    measured = Measured(published, collect.read(published.path))
    found = compare(measured, measured)
    assert len(found.cells) == len(measured.table)
    assert {(cell.verdict, cell.note) for cell in found.cells} == {(SAME, "the same records")}
    assert {whole.verdict for whole in found.wholes} == {SAME}
    assert (found.unmatched, differences(found), found.by_chance) == ([], [], 0.0)


def test_single_trials_that_differ_are_shown_and_not_judged(copies: Copies) -> None:
    a = copies.measured("a")
    b = copies.measured("b", times(0.5, "fig06", "mysql"))
    found = compare(a, b)
    assert by_verdict(found)[CANNOT_TELL] == {"fig06 mysql"}
    single = found.without_interval
    assert len(single) == 18
    assert {cell.note for cell in single} == {"one trial each: no interval"}
    assert all(cell.ratio is not None and cell.ratio.value == pytest.approx(0.5) for cell in single)
    assert found.far_apart(single) == single
    (summary,) = [line for line in shown.summary(found) if "single trial" in line]
    assert summary.startswith("18 cells have a single trial on a side")
    assert summary.endswith("in 18 of them B is more than 5 % away from A")
    (mysql,) = [whole for whole in found.wholes if whole.system == "mysql"]
    assert mysql.ratio.trials == sum(cell.system == "mysql" for cell in found.cells)
    assert (mysql.verdict, shown.failing(found, (SLOWER,))) == (SLOWER, ["mysql as a whole"])


def test_what_three_trials_show(copies: Copies) -> None:
    a = copies.measured("a", times(1.0, noise=0.01, seed=1), trials=3)
    b = copies.measured("b", lambda t: times(0.8, "fig06", "mysql")(times(1.0, noise=0.01, seed=2)(t)), trials=3)
    found = compare(a, b, margin=0.05)
    slow = [cell for cell in found.cells if (cell.experiment, cell.system) == ("fig06", "mysql")]
    assert {cell.verdict for cell in slow} == {SLOWER}
    assert all(cell.ratio is not None and cell.ratio.value == pytest.approx(0.8, rel=0.05) for cell in slow)
    assert sum(cell.holds for cell in slow) >= 9, "half of them also among so many"
    others = [cell for cell in found.cells if cell not in slow]
    assert not any(cell.holds for cell in others)
    wrong = [cell for cell in others if cell.verdict in (FASTER, SLOWER)]
    assert len(wrong) <= 1.5 * found.by_chance
    assert sum(cell.verdict == SAME for cell in others) > len(others) / 2
    assert len(found.tested) == len(found.cells)
    assert found.by_chance == pytest.approx(0.05 * len(found.cells))
    assert {w.system: w.verdict for w in found.wholes if w.metric == "throughput_txn_s"} == {
        "mysql": SLOWER, "mysql-memcached": SAME, "anticache-lru": SAME, "anticache-alru": SAME, "anticache-off": SAME,
    }  # fmt: skip


def test_of_times_less_is_faster(copies: Copies) -> None:
    a = copies.measured("a", times(1.0, noise=0.01, seed=1), trials=3)
    b = copies.measured("b", lambda t: times(0.5, "fig10")(times(1.0, noise=0.01, seed=2)(t)), trials=3)
    found = compare(a, b, experiments=["fig10"])
    assert {cell.verdict for cell in found.cells} == {FASTER}
    assert {cell.metric for cell in found.cells} == {"elapsed_ms"}
    assert shown.failing(found, (SLOWER,)) == []
    assert shown.failing(found, (SLOWER, FASTER))[0] == "anticache-lru as a whole"


def test_latencies_can_be_compared_instead(copies: Copies) -> None:
    def slower(table: pd.DataFrame) -> pd.DataFrame:
        noise = np.random.default_rng(3).normal(1, 0.01, len(table))
        return table.assign(latency_us_p99=table["latency_us_p99"] * 2 * noise)

    found = compare(
        copies.measured("a", trials=3), copies.measured("b", slower, trials=3), metric="latency_us_p99",
        experiments=["fig07", "fig10"],
    )  # fmt: skip
    assert {(cell.experiment, cell.metric, cell.verdict) for cell in found.cells} == {
        ("fig07", "latency_us_p99", SLOWER),
        ("fig10", "elapsed_ms", SAME),
    }


def test_runs_without_a_difference_seldom_have_one(copies: Copies) -> None:
    """The rate of wrong verdicts is what the summary says, and after the correction there is none."""
    wrong = held = tested = 0
    for seed in range(3):
        a = copies.measured(f"a{seed}", times(1.0, noise=0.05, seed=10 + seed), trials=3)
        b = copies.measured(f"b{seed}", times(1.0, noise=0.05, seed=20 + seed), trials=3)
        found = compare(a, b)
        wrong += sum(cell.verdict in (FASTER, SLOWER) for cell in found.cells)
        held += sum(cell.holds for cell in found.cells)
        tested += len(found.tested)
    assert 0.01 * tested < wrong < 0.08 * tested
    assert held == 0


def test_saturated_and_flagged_trials(copies: Copies) -> None:
    def spoil(table: pd.DataFrame) -> pd.DataFrame:
        one = (table["experiment"] == "fig07") & (table["system"] == "mysql")
        table.loc[one, ["status", "flags"]] = ["invalid", "client_saturated"]
        two = (table["experiment"] == "fig07") & (table["system"] == "anticache-lru")
        table.loc[two, "flags"] = "cpu_stolen;events_lost"
        return table

    a = copies.measured("a", times(1.0, noise=0.01, seed=1), trials=3)
    b = copies.measured("b", lambda t: spoil(times(0.5, "fig07")(times(1.0, noise=0.01, seed=2)(t))), trials=3)
    cells = {cell.system: cell for cell in compare(a, b, experiments=["fig07"]).cells}
    assert (cells["mysql"].verdict, cells["mysql"].bound) == (CANNOT_TELL, "lower")
    assert cells["mysql"].note == "terminals were saturated: a lower bound"
    assert cells["mysql"].chance is None
    assert (cells["anticache-lru"].verdict, cells["anticache-lru"].note) == (SLOWER, "B: cpu_stolen, events_lost")


def test_failed_trials_and_idle_ones_leave_a_cell_open(copies: Copies) -> None:
    def spoil(table: pd.DataFrame) -> pd.DataFrame:
        failed = (table["experiment"] == "fig07") & (table["system"] == "mysql")
        table.loc[failed, list(collect.MEASURED)] = pd.NA
        table.loc[failed, ["status", "reason"]] = ["failed", "mysqld died"]
        idle = (table["experiment"] == "fig07") & (table["system"] == "mysql-memcached")
        table.loc[idle, "throughput_txn_s"] = 0.0
        return table

    found = compare(copies.measured("a"), copies.measured("b", spoil), experiments=["fig07"])
    notes = {cell.system: (cell.verdict, cell.ratio, cell.note) for cell in found.cells}
    assert notes["mysql"] == (CANNOT_TELL, None, "B: failed: mysqld died")
    assert notes["mysql-memcached"] == (CANNOT_TELL, None, "B: nothing was done")
    assert "2 cells have no usable trial on a side" in shown.summary(found)


def test_cells_that_only_one_run_has(copies: Copies) -> None:
    a, b = copies.make("a"), copies.make("b")
    kept = [t for t in b.plan["trials"] if (t["experiment"], t["cell"]["system"]) != ("fig06", "mysql")]
    write_json(b.path / "plan.json", {**b.plan, "trials": kept})
    found = compare(Measured(a, collect.read(a.path)), Measured(Run(b.path), collect.read(b.path)))
    assert [(u.run, u.experiment, u.system, u.cells) for u in found.unmatched] == [("A", "fig06", "mysql", 18)]
    assert "only A has fig06 mysql: 18 cells" in shown.summary(found)


def test_cells_are_matched_by_their_coordinates_not_by_the_disk(copies: Copies) -> None:
    a, b = copies.make("a"), copies.make("b")
    plan = b.plan
    for deployment in plan["deployments"].values():
        deployment["values"]["terminals"] = 8
    for trial in plan["trials"]:
        trial["spec"]["terminals"] = 8
        trial["seed"] = 1
    write_json(b.path / "plan.json", plan)
    meta = b.meta
    meta["key"] = {**meta["key"], "disk": "nvme", "shaping_code": "0" * 16}
    meta["machine"] = {**meta["machine"], "cpu_cores": 64}
    write_json(b.path / "run.json", meta)
    (code,) = (b.path / "code").glob("*.json")
    document = read_json(code)
    document["files"]["drivers/runner/runner/lane.py"] = "changed"
    write_json(b.path / "code" / f"{'0' * 16}.json", document)
    again = Run(b.path)
    table = collect.read(b.path).assign(disk_profile="nvme", commit="c0ffee" * 6)
    found = compare(Measured(a, collect.read(a.path)), Measured(again, table))
    assert len(found.cells) == len(a.trials)
    told = {each.what: each for each in differences(found)}
    assert (told["disk profile"].a, told["disk profile"].b) == ("hdd-7200", "nvme")
    assert told["machine: cpu_cores"].b == "64"
    assert told["commit"].b == "c0ffeec0ffee"
    assert told["files that shape figures"].b == "drivers/runner/runner/lane.py"
    assert told["terminals"].b.startswith("8")
    assert told["terminals"].cells > 100
    assert not {"hostname", "boot_id"} & set(told)


def test_settings_that_servers_report_are_compared(published: Run, copies: Copies) -> None:
    a, b = copies.make("a"), copies.make("b")
    trial = next(t for t in a.trials if (t["experiment"], t["cell"]["system"]) == ("fig07", "mysql"))
    recorded = read_json(published.trial_path(trial["hash"]) / "environment.json")
    for run, size, place in ((a, "1", "/one/data/"), (b, "2", "…/data")):
        settings = dict(recorded["server_settings"]["mysqld"])
        settings |= {"innodb_log_buffer_size": size, "datadir": place, "server_uuid": f"{size}-uuid"}
        run.trial_path(trial["hash"]).mkdir(parents=True)
        write_json(run.trial_path(trial["hash"]) / "environment.json", {"server_settings": {"mysqld": settings}})
    found = compare(Measured(a, collect.read(a.path)), Measured(b, collect.read(b.path)))
    (told,) = differences(found)
    assert (told.what, told.a, told.b, told.cells) == ("reported: mysqld.innodb_log_buffer_size", "1", "2", 1)


def test_bad_input_is_one_clear_error(copies: Copies) -> None:
    a = copies.measured("a")
    with pytest.raises(InputError, match=r"neither run has the system 'mysq' \(did you mean 'mysql'\?\); there is: "):
        compare(a, a, systems=["mysq"])
    with pytest.raises(InputError, match="neither run has the experiment 'fig66'"):
        compare(a, a, experiments=["fig66"])
    with pytest.raises(InputError, match="have no cell in common among those chosen: A has fig01-05, "):
        compare(a, a, experiments=["fig07"], systems=["anticache-lru"]) and compare(
            a, a, experiments=["fig10"], systems=["mysql"]
        )
    other = copies.make("other")
    key = {**other.meta["key"], "scale": "laptop"}
    write_json(other.path / "run.json", {**other.meta, "key": key})
    with pytest.raises(
        InputError, match=r"A \(.*\) is of scale smoke, B \(.*\) of scale laptop: .* compare runs of one"
    ):
        compare(a, Measured(Run(other.path), a.table))
    write_json(other.path / "run.json", other.meta)
    write_json(other.path / "plan.json", {**other.plan, "trials": []})
    with pytest.raises(InputError, match=r"have no cell in common: A has .*fig06.*, B none"):
        compare(a, Measured(Run(other.path), a.table))


def test_runs_are_found_by_name_directory_or_as_published(copies: Copies, tmp_path: Path, published: Run) -> None:
    results = tmp_path / "results"
    run = copies.make("2026-01-01T00-00-00Z")
    store.point_latest(results, run.path)
    for name in ("latest", "2026-01-01T00-00-00Z", str(run.path)):
        assert find_run(results, name).path == run.path.resolve()
    assert find_run(results, "smoke").path == published.path
    with pytest.raises(
        InputError,
        match=r"no run 'yesterday' in .*; present: 2026-01-01T00-00-00Z; published: .*smoke.*; or give a run's",
    ):
        find_run(results, "yesterday")


# -- the command ----------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(
    copies: Copies, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Runs ``compare`` in this process, as ``python -m runner`` would, on results of the test's own."""
    monkeypatch.chdir(ROOT)

    def call(*arguments: str) -> Done:
        code = main(["compare", "--results", str(tmp_path / "results"), *arguments])
        return Done(code, *capfd.readouterr())

    return call


def test_the_published_run_against_itself(command: Callable[..., Done], published: Run) -> None:
    done = command("smoke", "smoke", "--fail-on", "different")
    assert done.returncode == 0, done.stderr
    count = len(published.trials)
    told = f"{count} cells in both runs: B is 0 faster, 0 slower, {count} same within 5 %, 0 cannot tell"
    assert told in done.stdout
    assert "nothing else differs between the runs" in done.stdout
    assert not done.stderr


def test_a_changed_copy_is_found(command: Callable[..., Done], copies: Copies, tmp_path: Path) -> None:
    copies.make("before", times(1.0, noise=0.01, seed=1), trials=3)
    copies.make("after", lambda t: times(0.7, "fig06", "mysql")(times(1.0, noise=0.01, seed=2)(t)), trials=3)
    where = tmp_path / "out"
    files = ["--json", str(where / "c.json"), "--csv", str(where / "c.csv")]
    done = command("before", "after", "--experiment", "fig06", *files, "--fail-on", "slower")
    assert done.returncode == EXIT_DIFFERENT
    assert "18 slower" in done.stdout
    assert "B is slower: mysql as a whole, fig06 mysql read-" in done.stdout
    assert "up to 4.1 would be called faster or slower by chance alone" in " ".join(done.stdout.split())
    document = read_json(where / "c.json")
    assert document["verdicts"]["slower"] == 18
    assert (document["format"], document["a"]["scale"], document["margin_percent"]) == (1, "smoke", 5.0)
    slow = next(cell for cell in document["cells"] if cell["verdict"] == "slower")
    assert slow["ratio"] == pytest.approx(0.7, rel=0.05)
    assert slow["interval"][0] < slow["ratio"] < slow["interval"][1]
    assert slow["a"]["trials"] == len(slow["a"]["evidence"]) == 3
    assert slow["a"]["latency_us_p99"] > slow["a"]["latency_us_p50"]
    with (where / "c.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 81
    assert sum(line["verdict"] == "slower" for line in lines) == 18
    assert float(lines[0]["ratio"]) == document["cells"][0]["ratio"]
    assert command("before", "after", "--experiment", "fig07", "--fail-on", "slower").returncode == 0
    assert command("before", "after", "--experiment", "fig06", "--margin", "60", "--fail-on", "slower").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smoke", "nowhere"], "there is no run 'nowhere'"),
        (["smoke", "smoke", "--system", "oracle"], "neither run has the system 'oracle'"),
        (["smoke", "smoke", "--margin", "0"], "Invalid value for '--margin'"),
        (["smoke", "smoke", "--fail-on", "ugly"], "Invalid value for '--fail-on'"),
        (["smoke"], "Missing argument 'RUN_B'"),
    ],
)
def test_bad_input_ends_with_two(command: Callable[..., Done], arguments: list[str], message: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_an_own_run_is_read_from_its_records(
    command: Callable[..., Done], copies: Copies, tmp_path: Path, published: Run
) -> None:
    """Without the mark of a published copy its table is collected anew, whatever trials.csv says."""
    own = tmp_path / "results" / "runs" / "own"
    shutil.copytree(published.path, own, ignore=shutil.ignore_patterns("figures", "notebooks", "report.*"))
    write_json(own / "run.json", {k: v for k, v in published.meta.items() if k != "published"})
    (own / "trials.csv").write_text("nonsense")
    done = command("smoke", str(own))
    assert done.returncode == 0, done.stderr
    assert f"{len(published.trials)} same within 5 %" in done.stdout


def test_a_label_names_the_cell(published: Run) -> None:
    measured = Measured(published, collect.read(published.path))
    cells: list[Compared] = compare(measured, measured, experiments=["fig06"], systems=["mysql"]).cells
    assert cells[0].label == "mysql read-heavy s=1.5 1x"
    assert len({cell.label for cell in cells}) == 18
