"""Bad input in a workload: every complaint names file, line, key, value and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner import claims
from runner.errors import InputError
from runner.workload import load


def _spoil(workloads: Path, name: str, old: str, new: str) -> int:
    """Replace `old` once; return the line where it stood."""
    path = workloads / name
    text = path.read_text()
    assert text.count(old) >= 1, old
    path.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


CASES = [
    ("fig06.yml", "skew: [1.5,", "skew: [-1,", ["grid.skew[0]", "-1", "numbers from 0.5 to 1.5"]),
    ("fig06.yml", "skew: [1.5, 1.25, 1.0, 0.75, 0.5]", "skew: []", ["grid.skew", "must not be empty", "numbers from"]),
    ("fig06.yml", "ratio: [1, 2, 4, 8]", "ratio: [0, 2]", ["grid.data_memory_ratio[0]", "0 is not allowed", "above 0"]),
    ("fig06.yml", "ratio: [1, 2, 4, 8]", "ratio: [1, 2, 2]", ["data_memory_ratio[2]", "2.0 stands twice"]),
    (
        "fig06.yml",
        "system: [mysql,",
        "system: [mysqll,",
        ["system[0]", "'mysqll'", "did you mean 'mysql'", "anticache-lru"],
    ),
    ("fig06.yml", "terminals: 64", 'terminals: "64"', ["terminals", "'64' (a text)", "integer from 1 to 4096"]),
    ("fig06.yml", "terminals: 64", "terminals: 6.5", ["terminals", "6.5", "integer"]),
    ("fig06.yml", "durability: sync", "durability: snyc", ["durability", "'snyc'", "did you mean 'sync'", "off"]),
    ("fig06.yml", "read-heavy: 0.9", "read-heavy: 90", ["mixes.read-heavy", "90", "0 to 1"]),
    ("fig06.yml", "mix: [read-only,", "mix: [readonly,", ["grid.mix[0]", "'readonly'", "did you mean 'read-only'"]),
    (
        "fig06.yml",
        "schema: schemas/ycsb.sql",
        "schema: schemas/yscb.sql",
        ["schema", "'schemas/yscb.sql'", "no such file"],
    ),
    ("fig06.yml", "stored_bytes_per_record: 1250", "stored_bytes_per_record: 900", ["900 is less than the 1000 bytes"]),
    ("fig06.yml", "fields: 10", "fields: 9", ["ycsb.fields", "9 is not allowed", "ycsb.sql", "allowed: 10"]),
    ("fig06.yml", "field_bytes: 100", "field_bytes: 99", ["ycsb.field_bytes", "99 is not", "ycsb.sql", "allowed: 100"]),
    (
        "fig06.yml",
        "data_memory_ratio: [1]\n",
        "data_memory_ratio: [1, 2]\n",
        ["only[0].data_memory_ratio[1]", "2: anticache-off cannot evict", "up to 1"],
    ),
    ("fig06.yml", "hole_threshold: 0.5", "hole_threshold: 1.5", ["engine.hole_threshold", "1.5", "0 to 1"]),
    ("fig06.yml", "update_fields: 1", "update_fields: 3", ["ycsb.update_fields", "3", "1 (an update"]),
    ("fig06.yml", "format: 1", "format: 2", ["format", "2", "allowed: 1"]),
    ("scales.yml", "records: 20000\n", "records: -5\n", ["scales.tiny.records", "-5", "at least 1000"]),
    ("scales.yml", "records: 100000\n", "records: 10000\n", ["budget of 1562500 bytes", "5242880", "raise records"]),
    (
        "scales.yml",
        "skew: [1.5, 0.5]\n          data_memory_ratio",
        "skew: [1.5, 1.1]\n          data_memory_ratio",
        ["smoke.experiments.fig06.grid.skew[1]", "1.1", "[1.5, 1.25, 1.0, 0.75, 0.5]"],
    ),
    ("scales.yml", "eviction_block_bytes: 65536", "eviction_block_bytes: 65537", ["65537", "multiple of 4096"]),
    ("scales.yml", "warmup_s: 10.0", "warmup_s: true", ["laptop.warmup_s", "True (a boolean)", "seconds from 0"]),
    ("scales.yml", "trials: 1", "trials: 0", ["trials", "0 is not allowed", "1 to 1000"]),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), CASES, ids=[f"{c[0]}-{c[2]}".strip() for c in CASES])
def test_bad_values(workloads: Path, name: str, old: str, new: str, expected: list[str]) -> None:
    line = _spoil(workloads, name, old, new)
    with pytest.raises(InputError) as caught:
        load(workloads, "fig06", "smoke")
    message = str(caught.value)
    assert re.search(rf"{re.escape(name)}:{line}: ", message), message
    for part in expected:
        assert part in message
    assert "\n" not in message


def test_the_engine_without_eviction_needs_a_limit(workloads: Path) -> None:
    path = workloads / "fig06.yml"
    text = path.read_text()
    limit = "only:\n  - system: anticache-off\n    data_memory_ratio: [1]\n"
    assert limit in text
    path.write_text(text.replace(limit, ""))
    line = text[: text.index("  system: [mysql")].count("\n") + 1
    with pytest.raises(
        InputError,
        match=rf"fig06\.yml:{line}: grid\.system\[4\]: 'anticache-off' at data_memory_ratio 8: .* up to 1, by an entry",
    ):
        load(workloads, "fig06", "smoke")
    path.write_text(path.read_text().replace("data_memory_ratio: [1, 2, 4, 8]", "data_memory_ratio: [0.5, 1]"))
    scales = workloads / "scales.yml"
    scales.write_text(scales.read_text().replace("data_memory_ratio: [1, 8]", "data_memory_ratio: [1]"))
    assert load(workloads, "fig06", "smoke").grid.data_memory_ratio == [1.0]


def test_columns_are_those_of_the_statement_not_of_comments(workloads: Path) -> None:
    schema = workloads / "schemas" / "ycsb.sql"
    schema.write_text("-- was: fieldX CHAR(7)\n" + schema.read_text().replace("field9 CHAR(100)", "field9 char( 50 )"))
    with pytest.raises(InputError, match=r"ycsb\.field_bytes: 100 is not allowed: .* 50, 100 bytes; allowed: one size"):
        load(workloads, "fig06", "smoke")


@pytest.mark.parametrize(
    ("name", "old", "new", "suggestion"),
    [
        ("fig06.yml", "terminals: 64", "terminlas: 64", "terminals"),
        ("fig06.yml", "  data_memory_ratio: [1, 2, 4, 8]", "  data_memory_ration: [1]", "data_memory_ratio"),
        ("fig06.yml", "  hole_threshold: 0.5", "  hole_treshold: 0.5", "hole_threshold"),
        ("fig06.yml", "schema: schemas", "shema: schemas", "schema"),
        ("scales.yml", "    warmup_s: 10.0", "    warmup: 10.0", "warmup_s"),
    ],
)
def test_unknown_keys_name_the_nearest(workloads: Path, name: str, old: str, new: str, suggestion: str) -> None:
    line = _spoil(workloads, name, old, new)
    with pytest.raises(InputError) as caught:
        load(workloads, "fig06", "smoke")
    complaint = next(c for c in str(caught.value).splitlines() if "unknown key" in c)
    assert f"{name}:{line}: " in complaint
    assert f"(did you mean {suggestion!r}?)" in complaint
    assert "allowed here: " in complaint
    # Renaming a key also leaves one out: that is said as well, save for axes, which an experiment may leave out.
    if not old.startswith("  data_memory_ratio"):
        assert any(suggestion in c and "missing" in c for c in str(caught.value).splitlines())


def test_a_key_that_stands_twice(workloads: Path) -> None:
    line = _spoil(workloads, "fig06.yml", "  terminals: 64\n", "  terminals: 64\n  terminals: 65\n")
    with pytest.raises(InputError, match=rf"fig06\.yml:{line + 1}: .*\"terminals\".*only once"):
        load(workloads, "fig06", "smoke")


def test_broken_yaml(workloads: Path) -> None:
    line = _spoil(workloads, "fig06.yml", "grid:\n", "grid: [1, 2\n")
    with pytest.raises(InputError, match=rf"fig06\.yml:({line}|{line + 1}): not valid YAML"):
        load(workloads, "fig06", "smoke")


@pytest.mark.parametrize("content", ["", "- 1\n- 2\n", "just text\n"])
def test_a_file_that_is_no_mapping(workloads: Path, content: str) -> None:
    (workloads / "fig06.yml").write_text(content)
    with pytest.raises(InputError, match=r"fig06\.yml:1: expected a mapping of keys"):
        load(workloads, "fig06", "smoke")


def test_a_missing_file_names_what_is_there(workloads: Path) -> None:
    with pytest.raises(InputError, match=r"fig6\.yml: no such file \(did you mean 'fig06'\?\); present there: .*fig06"):
        load(workloads, "fig6", "smoke")


def test_an_unknown_scale(workloads: Path) -> None:
    with pytest.raises(
        InputError, match=r"unknown scale 'smok' \(did you mean 'smoke'\?\); allowed: tiny, smoke, laptop, paper"
    ):
        load(workloads, "fig06", "smok")


def test_an_override_for_an_unknown_experiment(workloads: Path) -> None:
    line = _spoil(
        workloads,
        "scales.yml",
        "      fig12:\n",
        "      fig66: {trials: 2}\n      fig12:\n",
    )
    with pytest.raises(InputError, match=rf"scales\.yml:{line}: .*no experiment 'fig66' \(did you mean 'fig06'\?\)"):
        load(workloads, "fig06", "smoke")


def test_an_override_applies_to_its_experiment(workloads: Path) -> None:
    _spoil(
        workloads,
        "scales.yml",
        "          skew: [1.5, 0.5]\n          data_memory_ratio",
        "          skew: [0.5]\n          data_memory_ratio",
    )
    _spoil(
        workloads,
        "scales.yml",
        "      fig06:\n        warmup_s",
        "      fig06:\n        trials: 2\n        warmup_s",
    )
    workload = load(workloads, "fig06", "smoke")
    assert (workload.values.trials, workload.grid.skew) == (2, [0.5])
    assert load(workloads, "fig06", "laptop").grid.skew == [1.5, 1.25, 1.0, 0.75, 0.5]


def test_a_block_too_large_for_the_budget(workloads: Path) -> None:
    _spoil(
        workloads,
        "scales.yml",
        "eviction_block_bytes: 65536\n    mysql_redo_log_bytes: 16777216",
        "eviction_block_bytes: 1048576\n    mysql_redo_log_bytes: 16777216",
    )
    with pytest.raises(
        InputError, match=r"smoke\.eviction_block_bytes: 1048576 is not allowed here.*allowed: up to 487424"
    ):
        load(workloads, "fig06", "smoke")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("kind: ratio\n", "kind: ration\n", "did you mean 'ratio'"),
        ("at_least: 9\n", "at_leest: 9\n", "did you mean 'at_least'"),
        ("id: C02", "id: C01", "'C01' stands twice"),
        ("share: 0.9", "share: 90", "above 0 and up to 1"),
    ],
)
def test_bad_claims(workloads: Path, old: str, new: str, part: str) -> None:
    line = _spoil(workloads, "claims.yml", old, new)
    with pytest.raises(InputError) as caught:
        claims.load(workloads / "claims.yml")
    message = str(caught.value)
    assert part in message, message
    found = int(message.split("claims.yml:", 1)[1].split(":", 1)[0])
    assert found in (line - 1, line), message  # an unknown kind is told of the predicate, one line above
