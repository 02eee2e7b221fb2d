"""Configurations of OLTP-Bench and BenchBase: read, mapped to workloads of ours, refused where that cannot be done."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from runner.disk import NODE_DISK
from runner.errors import InputError
from runner.machine import CpuSets
from runner.oltpbench import mapping
from runner.oltpbench.configuration import read
from runner.oltpbench.mapping import Choice, Settings
from runner.plan import all_cells, loadgen_spec, make_plan
from runner.systems import SYSTEMS
from runner.workload import load

ROOT = Path(__file__).resolve().parents[3]
WORKLOADS = ROOT / "workloads"
SAMPLES = Path(__file__).parent / "samples" / "oltpbench"
pytestmark = pytest.mark.usefixtures("read_once")
YCSB, TPCC = SAMPLES / "benchbase-ycsb.xml", SAMPLES / "oltpbench-tpcc.xml"
CPUS = CpuSets("0", "1")
load_once = cache(load)


def changed(sample: Path, place: Path, *changes: tuple[str, str]) -> Path:
    """A copy of a sample with other text in places."""
    text = sample.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    path = place / sample.name
    path.write_text(text, encoding="utf-8")
    return path


def mapped(path: Path, benchmark: str, **choice: Any) -> mapping.Mapped:
    chosen = {"systems": ("anticache-alru",), "data_memory_ratio": (1.0,), **choice}
    return mapping.settings_of(read(path, benchmark), Choice(**chosen))


def spec_of(path: Path, benchmark: str, scale: str, **choice: Any) -> dict[str, Any]:
    """The first cell's specification, as loadgen gets it."""
    settings = mapped(path, benchmark, **choice).settings
    workload = mapping.workload_of(Settings.of(settings.record()), WORKLOADS, scale)
    return loadgen_spec(workload, all_cells(workload)[0], 7, CPUS)


def test_a_configuration_of_benchbase_becomes_a_specification_of_ours() -> None:
    spec = spec_of(YCSB, "ycsb", "smoke", record_transactions=9)
    assert spec["ycsb"] == {
        "records": 100_000,
        "fields": 10,
        "field_bytes": 100,
        "mix": "configured",
        "read_share": 0.9,
        "skew": 0.9,
        "key_order": "clustered",
        "update_fields": 1,
        "verify_share": 0.01,
    }
    assert (spec["terminals"], spec["warmup_s"], spec["measure_s"], spec["loading_threads"]) == (16, 2.0, 5.0, 3)
    assert (spec["mysql_transaction"], spec["record_transactions"]) == ("explicit", 9)
    settings = mapped(YCSB, "ycsb").settings
    assert (settings.id, settings.seed) == ("oltpbench-benchbase-ycsb", 77)
    assert "hidden" not in str(settings.record())


def test_a_configuration_of_oltpbench_takes_what_is_for_its_benchmark() -> None:
    found = read(TPCC, "tpcc")
    assert (found.dbms, found.terminals, found.unknown) == ("mysql", 8, ())
    assert found.unused == ("dbtype", "driver", "DBUrl", "username", "password", "uploadCode", "uploadUrl")
    spec = spec_of(TPCC, "tpcc", "smoke")
    assert {k: spec["tpcc"][k] for k in ("warehouses", "items", "customers_per_district", "orders_per_district")} == {
        "warehouses": 2,
        "items": 100_000,
        "customers_per_district": 3000,
        "orders_per_district": 3000,
    }
    assert (spec["terminals"], spec["tpcc"]["wait_factor"], spec["warmup_s"]) == (6, 0.0, 0.0)
    notes = mapped(TPCC, "tpcc").notes
    assert any("10,10,1,1,1" in note and "45,43,4,4,4" in note for note in notes)


@pytest.mark.parametrize("skew", [0.5, 0.75, 1.0, 1.25, 1.5])
def test_the_papers_ycsb_settings_are_those_of_figure_6(skew: float) -> None:
    path = WORKLOADS / "oltpbench" / f"ycsb-skew-{skew:.2f}.xml"
    assert read(path, "ycsb").unknown == ()
    figure = load_once(WORKLOADS, "fig06", "paper")
    for phase, mix in enumerate(("read-only", "read-heavy", "write-heavy"), start=1):
        found = spec_of(path, "ycsb", "paper", phase=phase, data_memory_ratio=(8.0,))
        cell = next(
            c
            for c in all_cells(figure)
            if (c.system, c.mix, c.skew, c.data_memory_ratio) == ("anticache-alru", mix, skew, 8)
        )
        wanted = loadgen_spec(figure, cell, 7, CPUS)
        for spec in (found, wanted):
            del spec["mysql_transaction"]
        assert found.pop("record_transactions") == mapping.MOST_TRANSACTIONS
        assert found["ycsb"].pop("mix") == "configured"
        del wanted["ycsb"]["mix"]
        assert found == wanted


def test_the_papers_tpcc_settings_are_those_of_figure_7() -> None:
    found = spec_of(WORKLOADS / "oltpbench" / "tpcc.xml", "tpcc", "paper", data_memory_ratio=(4.0,))
    figure = load_once(WORKLOADS, "fig07", "paper")
    cell = next(c for c in all_cells(figure) if (c.system, c.data_memory_ratio) == ("anticache-alru", 4))
    wanted = loadgen_spec(figure, cell, 7, CPUS)
    assert found["tpcc"] == wanted["tpcc"]
    names = ("terminals", "warmup_s", "measure_s")
    assert [found[name] for name in names] == [wanted[name] for name in names]


def test_all_systems_and_ratios_are_planned_but_for_what_cannot_evict() -> None:
    settings = mapped(YCSB, "ycsb", systems=SYSTEMS, data_memory_ratio=(1.0, 4.0)).settings
    plan = make_plan([mapping.workload_of(settings, WORKLOADS, "smoke")], CPUS, NODE_DISK, trials=2)
    assert {t.experiment for t in plan.trials} == {"oltpbench-benchbase-ycsb"}
    assert len(plan.trials) == 2 * (2 * len(SYSTEMS) - 1)
    with pytest.raises(InputError, match=r"cannot evict.*--data-memory-ratio up to 1"):
        mapping.workload_of(
            mapped(YCSB, "ycsb", systems=("anticache-off",), data_memory_ratio=(2.0,)).settings, WORKLOADS, "smoke"
        )


RATE = "<rate>unlimited</rate>"
REFUSED = [
    ((RATE, "<rate>disabled</rate>"), r":21: works/work/rate 'disabled': .*allowed: unlimited, or 0.001 to 10000000"),
    ((RATE, "<rate>0</rate>"), "works/work/rate '0': .*allowed: unlimited, or 0.001"),
    ((RATE, "<rate>-5</rate>"), "works/work/rate '-5': .*allowed: unlimited, or 0.001"),
    ((RATE, "<rate>nan</rate>"), "works/work/rate 'nan': .*allowed: unlimited, or 0.001"),
    (("<work>", '<work arrival="poisson">'), "works/work/@arrival 'poisson': .*; allowed: regular"),
    ((RATE, RATE + "<serial>true</serial>"), "works/work/serial 'true': .*; allowed: false"),
    (
        ("TRANSACTION_SERIALIZABLE", "TRANSACTION_READ_COMMITTED"),
        ":9: isolation 'TRANSACTION_READ_COMMITTED': .*; allowed: TRANSACTION_SERIALIZABLE",
    ),
    (("90, 0, 0, 10, 0, 0", "90,5,0,5,0,0"), ":27: .*name 'InsertRecord': .*weight 5 in '90,5,0,5,0,0'; allowed: w"),
    (("90, 0, 0, 10, 0, 0", "90,10"), "works/work/weights '90,10': 2 weights for 6 transaction types"),
    (("90, 0, 0, 10, 0, 0", "many"), "works/work/weights 'many': allowed: numbers .* or one of all"),
    (("<name>ScanRecord", "<name>ScanRecords"), r"ScanRecords': .*did you mean 'ScanRecord'.*; allowed: ReadRecord,"),
    (("<skewFactor>0.9<", "<skewFactor>0.3<"), "skewFactor '0.3': .*; allowed: 0.5 to 1.5"),
    (("<fieldSize>100<", "<fieldSize>50<"), "fieldSize '50': .*; allowed: 100"),
    (("<terminals>16<", "<terminals>0<"), "terminals '0': allowed: a number of at least 1"),
    (("<terminals>16<", "<terminals>5000<"), "terminals '5000': too many; allowed: 1 to 4096"),
    (("<terminals>16</terminals>", ""), ":2: terminals is missing"),
    (("<loaderThreads>3<", "<loaderThreads>0<"), "loaderThreads '0': .*; allowed: whole numbers from 1 to 256"),
    (("<randomSeed>77<", "<randomSeed>-2<"), "randomSeed '-2': .*; allowed: whole numbers from 0"),
    (("<scalefactor>100<", "<scalefactor>0.1<"), "scalefactor '0.1': 100 records are too few"),
    (("<scalefactor>100<", "<scalefactor>x<"), "scalefactor 'x': allowed: a number of at least 0"),
    (("<time>5</time>", ""), "works/work/time '0': nothing would be measured; allowed: seconds from 1"),
    (("<batchsize>", "<newConnectionPerTxn>true</newConnectionPerTxn><batchsize>"), "newConnectionPerTxn 'true'"),
    (("<batchsize>", "<afterload>x.sql</afterload><batchsize>"), "afterload 'x.sql'"),
    (("<batchsize>", "<terminals>4</terminals><batchsize>"), ":16: terminals stands twice"),
    (("<name>UpdateRecord</name>", "<name>UpdateRecord</name><postExecutionWait>5</postExecutionWait>"), "waits of 0"),
]


def test_a_rate_is_an_open_loop(tmp_path: Path) -> None:
    path = changed(YCSB, tmp_path, (RATE, "<rate>2500</rate>"))
    spec = spec_of(path, "ycsb", "laptop")
    assert (spec["arrival"], spec["offered_txn_s"]) == ("fixed", 2500.0)
    assert any("count from the submission" in note for note in mapped(path, "ycsb").notes)
    path = changed(path, tmp_path, ("<work>", '<work arrival="POISSON">'))
    assert spec_of(path, "ycsb", "laptop")["arrival"] == "poisson"
    with pytest.raises(InputError, match=r"works/work/@arrival 'bursts': .*; allowed: regular, poisson"):
        mapped(changed(path, tmp_path, ("POISSON", "bursts")), "ycsb")
    assert "arrival" not in spec_of(YCSB, "ycsb", "laptop")


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_our_drivers_cannot_honour_is_refused_by_element_and_value(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        mapped(changed(YCSB, tmp_path, change), "ycsb")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("45,43,4,4,4", "100,0,0,0,0"), "weights '100,0,0,0,0': .*deck.*; allowed: 45,43,4,4,4 or 10,10,1,1,1"),
        (("<scalefactor>2<", "<scalefactor>1.5<"), "scalefactor '1.5': .*; allowed: whole numbers"),
        (("<name>Delivery", "<name>Deliver"), "'Deliver': .*did you mean 'Delivery'"),
        (("<active_terminals>6<", "<active_terminals>9<"), "active_terminals '9': .*from 1 to 8"),
        (("<scalefactor>2<", "<skewFactor>0.9</skewFactor><scalefactor>2<"), "skewFactor '0.9': an element of ycsb"),
        (("<id>1</id>", "<id>1</id><preExecutionWait>9000</preExecutionWait>"), "one share of the specification's"),
    ],
)
def test_what_our_terminals_of_tpcc_cannot_do_is_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        mapped(changed(TPCC, tmp_path, change), "tpcc")


def test_waits_that_are_one_share_of_the_specifications_are_ours(tmp_path: Path) -> None:
    waits = zip((1800, 300, 200, 200, 200), (1200, 1200, 1000, 500, 500), strict=True)
    changes = [
        (f"<id>{n}</id>", f"<preExecutionWait>{a}</preExecutionWait><postExecutionWait>{b}</postExecutionWait>")
        for n, (a, b) in enumerate(waits, start=1)
    ]
    found = mapped(changed(TPCC, tmp_path, *changes), "tpcc")
    assert found.settings.wait_factor == 0.1
    assert any("think times" in note for note in found.notes)


def test_several_phases_are_run_one_at_a_time() -> None:
    path = WORKLOADS / "oltpbench" / "ycsb-skew-0.50.xml"
    with pytest.raises(InputError, match="3 work elements: one phase is run; allowed: --phase with one of 1, 2, 3"):
        mapped(path, "ycsb")
    with pytest.raises(InputError, match="there is no phase 4"):
        mapped(path, "ycsb", phase=4)
    settings = mapped(path, "ycsb", phase=3).settings
    assert (settings.id, settings.read_share) == ("oltpbench-ycsb-skew-0-50-phase-3", 0.5)


def test_weights_may_be_the_name_of_a_grouping(tmp_path: Path) -> None:
    grouping = "<groupings><grouping><name>reads</name><weights>100,0,0,0,0,0</weights></grouping></groupings>"
    named = ("90, 0, 0, 10, 0, 0", "Reads")
    path = changed(YCSB, tmp_path, named, ("<transactiontypes>", f"<transactiontypes>{grouping}"))
    assert mapped(path, "ycsb").settings.read_share == 1.0
    assert read(path, "ycsb").unknown == ()


def test_unknown_elements_are_named_in_one_warning(tmp_path: Path) -> None:
    strange = '<monitor><interval>5</interval></monitor><terminals colour="red">'
    path = changed(YCSB, tmp_path, ("<terminals>", strange), ("<work>", "<work><think>1</think>"))
    found = read(path, "ycsb")
    assert found.unknown == ("monitor", "terminals/@colour", "works/work/think")
    (line,) = mapping.described(found)
    assert "unknown elements, not used: monitor, terminals/@colour, works/work/think" in line


def test_a_size_that_the_scale_has_no_room_for_is_refused_by_element(tmp_path: Path) -> None:
    path = changed(YCSB, tmp_path, ("<scalefactor>100<", "<scalefactor>1<"))
    settings = mapped(path, "ycsb", systems=("mysql",)).settings
    message = "benchbase-ycsb.xml, scalefactor 1 at scale smoke: 1000 records .*for MySQL's buffer pool"
    with pytest.raises(InputError, match=message):
        mapping.workload_of(settings, WORKLOADS, "smoke")
    path = changed(TPCC, tmp_path, ("<scalefactor>2<", "<scalefactor>40<"))
    message = "oltpbench-tpcc.xml, terminals 6 at scale smoke: 6 terminals for 40 warehouses"
    with pytest.raises(InputError, match=message):
        mapping.workload_of(mapped(path, "tpcc").settings, WORKLOADS, "smoke")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<?xml version="1.0"?>\n<!DOCTYPE p [<!ENTITY a "b">]>\n<parameters>&a;</parameters>', ":2: a document type"),
        ('<!DOCTYPE p SYSTEM "file:///etc/passwd"><parameters/>', ":1: a document type"),
        ("<parameters>\n<work>\n</parameters>", ":3: not valid XML: mismatched tag"),
        ("<parameters>&lol;</parameters>", ":1: not valid XML: undefined entity"),
        ("", "not valid XML: no element found"),
        ("<configuration/>", ":1: the outermost element is 'configuration'.*; allowed: parameters"),
        ("<parameters/>", "transactiontypes/transactiontype is missing"),
        (
            "<parameters><transactiontypes><transactiontype><name>a</name></transactiontype></transactiontypes></parameters>",
            "terminals is missing",
        ),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.xml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read(path, "ycsb")


def test_a_file_that_is_not_there_and_a_benchmark_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file .*present there"):
        read(SAMPLES / "benchbase-ycbs.xml", "ycsb")
    with pytest.raises(InputError, match=r"did you mean 'tpcc'.*allowed: ycsb, tpcc"):
        read(TPCC, "tpcch")
    large = tmp_path / "large.xml"
    large.write_bytes(b"<parameters>" + b" " * (1 << 20))
    with pytest.raises(InputError, match="allowed for a configuration: 1048576"):
        read(large, "ycsb")


@pytest.mark.parametrize(
    ("systems", "ratios", "message"),
    [
        (["mysqll"], "1", "--systems 'mysqll': not known .did you mean 'mysql'"),
        (None, "1,x", "--data-memory-ratio '1,x': allowed: numbers above 0"),
        (None, "0", "--data-memory-ratio '0'"),
    ],
)
def test_what_is_chosen_beside_the_file_is_checked(systems: list[str] | None, ratios: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mapping.check_choice(systems, ratios, 0)
