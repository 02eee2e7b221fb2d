"""The documents name what is there: files, links, targets of make, commands, verdicts; and the citation is valid."""

from __future__ import annotations

import base64
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from runner import store
from runner.cli import app
from runner.files import read_json
from runner.notebooks import PICTURE
from runner.store import Run

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("*.md", "*/*.md", "drivers/*/*.md")
FOREIGN = ("target", ".pytest_cache")
"""Where tools put documents of their own."""
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern) if not set(FOREIGN) & set(path.parts))
BASES = (
    "anticache-engine",
    "anticache-engine/src",
    "anticache-engine/src/partition",
    "anticache-engine/tests/engine",
    "ansible",
    "ansible/roles/memcached",
    "drivers/bench/src",
    "drivers/loadgen",
    "drivers/loadgen/src",
    "drivers/loadgen/src/systems",
    "drivers/micro",
    "drivers/runner",
    "drivers/runner/runner",
    "drivers/spindle",
    "notebooks",
    "setup",
    "workloads",
)
"""Where a path may begin besides at the document and at the root: a document on a part names its files shortly."""
MADE = re.compile(
    r"^(\.tools|\.venv|target|var|results/(latest|runs|bench)|notebooks/drawn-from)\b|NN|^ansible/inventories/lab$"
)
"""What commands make, so that it is not in the repository, and names that stand for several."""
PATH = re.compile(r"^\.?[\w-][\w.-]*(/[\w.-]+)+/?$")
SUFFIXES = (".cff", ".ipynb", ".lock", ".md", ".py", ".rs", ".sh", ".sql", ".toml", ".yml")
EXAMPLES = [path for path in (ROOT / "examples").glob("*") if path.is_dir()]


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_of(text: str) -> list[str]:
    """What stands as code: each code span, and each line of a fenced block less its comment."""
    fenced = re.findall(r"^ *```[^\n]*\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0].strip() for block in fenced for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE))
    return [*spans, *lines]


def missing(document: Path, name: str) -> bool:
    """Whether a path that a document names is not there."""
    if MADE.search(name):
        return False
    bases = [document.parent, ROOT, *(ROOT / base for base in BASES), *EXAMPLES]
    return not any((base / name).exists() for base in bases)


@pytest.mark.parametrize("document", DOCUMENTS, ids=identity)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (document.parent / t.split("#")[0]).exists()]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=identity)
def test_named_files_are_there(document: Path) -> None:
    words = [word.rstrip(":,") for code in code_of(document.read_text(encoding="utf-8")) for word in code.split()]
    top = {path.name for path in ROOT.iterdir() if path.is_dir()}
    named = [w for w in words if PATH.match(w) and (w.split("/")[0] in top or w.endswith(SUFFIXES))]
    assert not [word for word in dict.fromkeys(named) if missing(document, word)]


def test_a_file_that_is_not_there_would_be_found() -> None:
    readme = ROOT / "README.md"
    assert missing(readme, "drivers/loadgen/src/nothing.rs")
    assert not missing(readme, "drivers/loadgen/src/spec.rs")
    assert code_of("a `make smoke` b\n\n```sh\nmake fig06  # draws\n```\n") == ["make smoke", "make fig06"]


def makefile() -> tuple[set[str], set[str]]:
    """The targets and the variables of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    variables = dict(re.findall(r"^([A-Z]+) (?:\?|:)?= *(.*)$", text, re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    return set(phony.replace("$(FIGURES)", variables["FIGURES"]).split()), set(variables)


@pytest.mark.parametrize("document", DOCUMENTS, ids=identity)
def test_targets_of_make_exist(document: Path) -> None:
    targets, variables = makefile()
    for code in code_of(document.read_text(encoding="utf-8")):
        for call in re.findall(r"(?:^|&& |[A-Z]=\w+ )make ([^&|;#]+)", code):
            for word in call.split():
                name, equals, _ = word.partition("=")
                assert name in (variables if equals else targets), f"{code}: {name}"


def commands() -> dict[str, Any]:
    """The runner's commands, by their words."""
    root: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        found[name] = command
        found |= {f"{name} {inner}": each for inner, each in getattr(command, "commands", {}).items()}
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=identity)
def test_commands_of_the_runner_exist(document: Path) -> None:
    known = commands()
    for code in code_of(document.read_text(encoding="utf-8")):
        for call in re.findall(r"(?:^|-m )runner ([a-z].*)", code):
            words = shlex.split(call.replace("…", ""), comments=True)
            command = known.get(" ".join(words[:2])) or known.get(words[0])
            assert command is not None, code
            allowed = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
            asked = {word.split("=")[0] for word in words if word.startswith("--")}
            assert asked <= allowed, f"{code}: {asked - allowed}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=identity)
def test_packages_of_cargo_exist(document: Path) -> None:
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    packages = {tomllib.loads((ROOT / m / "Cargo.toml").read_text())["package"]["name"] for m in members}
    for code in code_of(document.read_text(encoding="utf-8")):
        assert set(re.findall(r"cargo .*-p ([\w-]+)", code)) <= packages, code


# -- README and the published run -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> Run:
    found = store.newest_published(ROOT / "results" / "published")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def verdicts(published: Run) -> dict[str, str]:
    return {entry["id"]: entry["verdict"] for entry in read_json(published.path / "claims.json")}


def section(title: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_readmes_picture_is_the_published_one(published: Run) -> None:
    (shown,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", section("What you will see"))
    assert ROOT / shown == published.path / f"{PICTURE}.png", "README shows the newest published run"
    cells = read_json(ROOT / "notebooks" / f"{PICTURE}.ipynb")["cells"]
    pictures = [o["data"]["image/png"] for c in cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert (ROOT / shown).read_bytes() == base64.b64decode("".join(pictures[0])), "make it anew with `make notebooks`"


def test_readmes_verdicts_are_the_published_ones(verdicts: dict[str, str]) -> None:
    counts = Counter(verdicts.values())
    said = " ".join(section("What you will see").split())
    assert f"the paper's {len(verdicts)} claims" in said
    assert f"{counts['reproduced']} are reproduced" in said
    assert f"{counts['not reproduced']} are not reproduced and {counts['not measured']} are not measured" in said
    shown = re.findall(r"^(C\d\d)  (not \w+|\w+)", section("What you will see"), re.MULTILINE)
    assert shown
    assert dict(shown) == {name: verdicts[name] for name, _ in shown}


def test_readmes_findings_have_the_published_verdicts(verdicts: dict[str, str]) -> None:
    parts = re.split(r"^\*\*(Reproduced|Not reproduced|Not measured)", section("Findings"), flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        for first, last in re.findall(r"\b(C\d\d)(?: to (C\d\d))?", text):
            numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
            found |= {f"C{number:02d}": title.lower() for number in numbers}
    assert found
    assert found == {name: verdicts[name] for name in found}


# -- what the engine reaches ------------------------------------------------------------------------------------------

SIZES = {"M": 1e6, "k": 1e3, "": 1.0}
# In the cells of a run that is older than an entry.
NOT_MEASURED = "-"


def number(text: str) -> float:
    """Read ``4.4 M txn/s``, ``0.97 of anticache-off`` or ``5 ms`` in the units of the entries."""
    value, unit = re.fullmatch(r"(-?[\d.]+) ?(M|k)?\b.*", text.replace(" ms", " k us")).groups()  # type: ignore[union-attr]
    return float(value) * SIZES[unit or ""]


def meets(value: float, target: str, better: str) -> bool:
    """Tell whether a value is as good as its target, or within both of them."""
    if " to " in target:
        least, most = map(float, target.split(" to "))
        return least <= value <= most
    return value <= number(target) if better == "lower" else value >= number(target)


def wrong_cells(name: str, entry: dict[str, Any], *cells: tuple[str, str, float]) -> list[str]:
    """Say what is wrong with cells of a table's row: as shown, its target, the value that was measured."""
    wrong = []
    for shown, wanted, value in cells:
        plain = shown.strip("*")
        if plain and abs(number(plain) - value) > 0.0051 * max(1.0, abs(value)):
            wrong.append(f"{name}: {shown} is not {value}")
        if wanted and meets(value, wanted, entry["better"]) == shown.startswith("**"):
            wrong.append(f"{name}: {shown} against {wanted}: bold is what misses its target, and nothing else")
    return wrong


def table_rows(columns: int) -> list[list[str]]:
    """Return the rows of BENCHMARKS.md's tables with so many columns, the first of them an entry's name."""
    text = (ROOT / "anticache-engine" / "BENCHMARKS.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[row[0].strip(" `"), *(cell.strip() for cell in row[1:])] for row in rows if len(row) == columns]


def entries_of(name: str) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in read_json(ROOT / "anticache-engine" / name)}


def test_benchmarks_are_those_of_the_runs_and_misses_are_bold() -> None:
    rows = table_rows(8)
    assert len(rows) > 30, "the tables are found"
    wrong, measured_anywhere = [], set()
    for place, machine in enumerate(("xeon", "epyc")):
        entries = entries_of(f"benchmarks-{machine}.json")
        measured_anywhere |= set(entries)
        for name, target, *cells in rows:
            measured, ratio = cells[place], cells[4 + place]
            peer, ratio_target = cells[2:4]
            entry = entries.get(name)
            if entry is None:  # a run that is older than the entry
                if (measured, ratio) != (NOT_MEASURED, NOT_MEASURED if peer else ""):
                    wrong.append(f"{machine}: {name}: {measured} and {ratio}, and the run has no such entry")
                continue
            if peer and peer != entry["peer"]:
                wrong.append(f"{name}: the ratio is to {entry['peer']}, not to {peer}")
            wrong += wrong_cells(
                f"{machine}: {name}", entry, (measured, target, entry["value"]), (ratio, ratio_target, entry["ratio"])
            )
    wrong += [f"{name}: no run has it" for name, *_ in rows if name not in measured_anywhere]
    assert not wrong, "\n".join(wrong)


def test_counts_are_those_of_the_run() -> None:
    entries, rows = entries_of("counts.json"), table_rows(3)
    assert len(rows) > 20, "the table is found"
    wrong = []
    for name, counted, ratio in rows:
        entry = entries[name]
        wrong += wrong_cells(name, entry, (counted, "", entry["value"]), (ratio, "", entry["ratio"]))
    assert not wrong, "\n".join(wrong)


# -- citation and licence ---------------------------------------------------------------------------------------------

# Of the Citation File Format, schema 1.2.0: https://github.com/citation-file-format/citation-file-format
CFF_KEYS = """
abstract authors cff-version commit contact date-released doi identifiers keywords license license-url message
preferred-citation references repository repository-artifact repository-code title type url version
"""
CFF_REQUIRED = {"authors", "cff-version", "message", "title"}
CFF_REFERENCE_KEYS = """
abbreviation abstract authors collection-doi collection-title collection-type commit conference contact copyright
data-type database database-provider date-accessed date-downloaded date-published date-released department doi
edition editors editors-series end entry filename format identifiers institution isbn issn issue issue-date
issue-title journal keywords languages license license-url loc-end loc-start location medium month nihmsid notes
number number-volumes pages patent-states pmcid publisher recipients repository repository-artifact
repository-code scope section senders start status term thesis-type title translators type url version volume
volume-title year year-original
"""


def test_the_citation_is_valid_and_agrees_with_the_package() -> None:
    citation: dict[str, Any] = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert CFF_REQUIRED <= set(citation) <= set(CFF_KEYS.split())
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    assert (str(citation["version"]), citation["license"]) == (package["version"], package["license"])
    assert all("name" in author or "family-names" in author for author in citation["authors"])
    (paper,) = citation["references"]
    assert {"authors", "title", "type"} <= set(paper) <= set(CFF_REFERENCE_KEYS.split())
    assert re.fullmatch(r"10\.\d{4,9}(\.\d+)?/\S+", paper["doi"])
    assert all(isinstance(paper[key], int) for key in ("volume", "issue", "month", "year", "start", "end"))


def test_the_licence_is_the_one_that_is_named() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
