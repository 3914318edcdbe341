"""Files that are written for an agent: whole or not at all, and never over another one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mulligan.coding.transcripts.transcript_draft import Draft, remove_left_drafts
from mulligan.failpoints import Failpoint, ignore
from mulligan.testing.failpoints import fail_at


def test_a_draft_gets_its_name_and_belongs_to_its_owner(tmp_path: Path):
    path = tmp_path / "new" / "said.jsonl"
    draft = Draft(path, b"said", ignore)
    assert not path.exists()
    draft.publish()
    draft.close()
    assert path.read_bytes() == b"said"
    assert [one.name for one in path.parent.iterdir()] == ["said.jsonl"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("has_links", [True, False])
def test_another_file_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
):
    path = tmp_path / "said.jsonl"
    draft = Draft(path, b"mine", ignore)
    path.write_bytes(b"another")
    if not has_links:
        monkeypatch.setattr(os, "link", _refuse)
    with pytest.raises(OSError, match=r"exists|no links"):
        draft.publish()
    draft.remove()
    assert path.read_bytes() == b"another"
    assert remove_left_drafts(tmp_path) == []


def test_without_links_a_draft_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "link", _refuse)
    draft = Draft(tmp_path / "said.jsonl", b"said", ignore)
    draft.publish()
    draft.close()
    assert [one.name for one in tmp_path.iterdir()] == ["said.jsonl"]


def test_only_drafts_without_a_writer_are_removed(tmp_path: Path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below/left.jsonl.mulligan").write_bytes(b"half")
    (tmp_path / "other.jsonl").write_bytes(b"kept")
    (tmp_path / "link.mulligan").symlink_to("other.jsonl")
    draft = Draft(tmp_path / "said.jsonl", b"said", ignore)
    assert [one.name for one in remove_left_drafts(tmp_path)] == ["left.jsonl.mulligan"]
    draft.publish()
    draft.close()
    assert (tmp_path / "said.jsonl").read_bytes() == b"said"
    assert (tmp_path / "link.mulligan").is_symlink()
    assert remove_left_drafts(tmp_path / "missing") == []


def test_a_draft_that_fails_is_removed(tmp_path: Path):
    failing = fail_at(Failpoint.REWIND_DRAFT_WRITTEN, OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError, match="full"):
        Draft(tmp_path / "said.jsonl", b"said", failing)
    assert list(tmp_path.iterdir()) == []


def _refuse(*names: object, **options: object) -> None:
    raise OSError(errno.EPERM, "this file system has no links")
