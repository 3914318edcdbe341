"""The store: its sessions, found by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.errors import InvalidName
from mulligan.journal import kv_view


def test_sessions_by_prefix_are_the_oldest_first_and_no_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mulligan.open("memory:") as store:
        for number in range(50):
            store.session(f"other-{number}")
        for name in ("claude-b", "claude-a", "claude-", "claudia"):
            store.session(name)
        read: list[bytes] = []
        opened = kv_view.opened

        def counted(table: str, key: bytes, value: Any) -> Any:
            read.append(key)
            return opened(table, key, value)

        monkeypatch.setattr(kv_view, "opened", counted)
        assert [s.name for s in store.sessions("claude-")] == ["claude-b", "claude-a", "claude-"]
        assert len(read) <= 3 * 3
        assert [s.name for s in store.sessions(prefix="other-4")][:2] == ["other-4", "other-40"]
        assert store.sessions("nothing") == []
        assert len(store.sessions()) == 54
        with pytest.raises(InvalidName):
            store.sessions(7)  # type: ignore[arg-type]


def test_a_store_shows_its_directory_in_a_notebook(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        assert repr(store) == f"<Store '{tmp_path}/.mulligan'>"
    with mulligan.open("memory:") as store:
        assert repr(store) == "<Store 'memory:'>"
