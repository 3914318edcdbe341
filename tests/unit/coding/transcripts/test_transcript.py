"""A transcript is read line by line, whatever the agent does to the file meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.transcript import START, Progress, read_new


def write(path: Path, *entries: Any, mode: str = "a") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a transcript that does not exist yet."""
    return tmp_path / "t.jsonl"


def test_a_file_that_is_not_there_yet_has_nothing_new(path: Path) -> None:
    assert read_new(path) == transcript.NewEntries([], START)
    known = Progress(5, "x", 1)
    assert read_new(path, known).progress == known, "what was read before stays"


def test_only_new_lines_are_returned(path: Path) -> None:
    write(path, {"n": 1}, {"n": 2})
    first = read_new(path)
    write(path, {"n": 3})
    second = read_new(path, first.progress)
    assert first.entries == [{"n": 1}, {"n": 2}]
    assert (second.entries, second.is_whole) == ([{"n": 3}], False)
    assert second.progress.entries == 3
    assert read_new(path, second.progress).entries == []


def test_a_line_that_is_not_complete_waits(path: Path) -> None:
    write(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": ')
    first = read_new(path)
    with path.open("a") as file:
        file.write("2}\n")
    assert first.entries == [{"n": 1}]
    assert read_new(path, first.progress).entries == [{"n": 2}]


def test_a_rewritten_file_is_read_from_its_beginning(path: Path) -> None:
    fill = "x" * 100_000
    write(path, {"n": 1, "x": fill}, {"n": 2, "x": fill}, {"n": 3, "x": fill})
    before = read_new(path)
    write(path, {"n": 1, "x": fill}, {"n": 3, "x": fill}, {"n": 4, "x": fill}, mode="w")
    found = read_new(path, before.progress)
    assert found.is_whole
    assert [one["n"] for one in found.entries] == [1, 3, 4]
    assert found.progress.entries == 3


def test_a_file_that_shrank_is_read_from_its_beginning(path: Path) -> None:
    write(path, {"n": 1}, {"n": 2})
    before = read_new(path)
    write(path, {"n": 1}, mode="w")
    found = read_new(path, before.progress)
    assert (found.entries, found.is_whole) == ([{"n": 1}], True)


def test_a_file_that_was_replaced_by_another_is_read_from_its_beginning(path: Path) -> None:
    write(path, {"n": 1})
    before = read_new(path)
    other = path.with_name("other")
    write(other, {"m": 1}, {"m": 2})
    os.replace(other, path)
    assert read_new(path, before.progress).entries == [{"m": 1}, {"m": 2}]


def test_a_file_that_was_copied_back_unchanged_continues(path: Path) -> None:
    write(path, {"n": 1})
    before = read_new(path)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes() + b'{"n": 2}\n')
    os.replace(other, path)
    found = read_new(path, before.progress)
    assert (found.entries, found.is_whole) == ([{"n": 2}], False)


def test_a_line_that_is_no_json_or_cannot_be_stored_is_kept_as_text(path: Path) -> None:
    deep = b"[" * 200 + b"]" * 200
    path.write_bytes(b"garbage\n" + deep + b"\n\n\xff\n")
    assert read_new(path).entries == ["garbage", deep.decode(), "\\xff"]


def test_a_long_file_is_read_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_BYTES", 20)
    write(path, {"n": 1}, {"n": 2}, {"n": 3})
    first = read_new(path)
    second = read_new(path, first.progress)
    assert (first.entries, second.entries) == ([{"n": 1}, {"n": 2}], [{"n": 3}])


def test_neither_a_fifo_nor_a_symlink_nor_a_directory_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    write(tmp_path / "real", {"n": 1})
    (tmp_path / "link").symlink_to("real")
    for name in ("fifo", "link", "."):
        assert read_new(tmp_path / name).entries == []
