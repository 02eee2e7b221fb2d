"""Files and data directories that a server finds when it starts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from node_files import DataDirectory, NodeFile, NodeFileError


def test_a_file_is_written_once_and_again_when_content_or_mode_differ(tmp_path: Path) -> None:
    wanted = NodeFile.from_options({"path": str(tmp_path / "secret"), "content": "a\n", "mode": "0600"})
    assert not wanted.is_there()
    wanted.write()
    assert wanted.is_there()
    assert stat.S_IMODE(wanted.path.stat().st_mode) == 0o600
    wanted.path.chmod(0o644)
    assert not wanted.is_there()
    wanted.write()
    assert wanted.is_there()
    wanted.path.write_text("b\n")
    assert not wanted.is_there()
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeFileError, match=r"absent/my\.cnf cannot be written: No such file"):
        NodeFile(tmp_path / "absent" / "my.cnf", "").write()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "kept"
    place.mkdir()
    with (place / "ibdata1").open("wb") as file:
        file.truncate(1 << 20)  # a hole
    return place


def test_a_data_directory_is_copied_without_holes_where_there_is_none(tmp_path: Path, source: Path) -> None:
    data = DataDirectory(tmp_path / "mysql" / "data", str(source), fresh=False)
    (tmp_path / "mysql" / "data.new").mkdir(parents=True)  # of a copy that was cut off
    assert data.prepare()
    copied = (data.path / "ibdata1").stat()
    assert copied.st_blocks * 512 >= copied.st_size == 1 << 20
    (data.path / "marker").touch()
    assert not data.prepare()
    assert (data.path / "marker").exists(), "what is there is kept"
    assert [path.name for path in data.path.parent.iterdir()] == ["data"]


def test_a_fresh_data_directory_replaces_what_is_there(tmp_path: Path, source: Path) -> None:
    data = DataDirectory(tmp_path / "data", str(source), fresh=True)
    data.path.mkdir()
    (data.path / "marker").touch()
    assert data.prepare()
    assert [path.name for path in data.path.iterdir()] == ["ibdata1"]
    empty = DataDirectory(data.path, "", fresh=True)
    assert empty.prepare()
    assert not data.path.exists(), "the server makes its own"
    assert not empty.prepare()


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data", str(tmp_path / "absent"), fresh=False)
    with pytest.raises(NodeFileError, match=f"no data directory at {tmp_path}/absent"):
        data.prepare()
    assert not data.path.exists()
