"""Damaged originals: durable under their names before a repair goes on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mulligan import layout
from mulligan.repair.originals import Originals


@pytest.mark.parametrize("name", ["FORMAT", "packs/00000001.pack-16"])
def test_every_directory_on_the_way_to_an_original_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A power cut may take the name of a directory whose parent was not synced."""
    synced: list[Path] = []
    real = layout.sync_directory
    monkeypatch.setattr(layout, "sync_directory", lambda d: (synced.append(d), real(d)))
    originals = Originals(tmp_path, datetime(2026, 11, 18, tzinfo=UTC))
    originals.keep_bytes(name, b"damaged")
    kept = originals.directory / name
    assert kept.read_bytes() == b"damaged"
    for made in (kept, *kept.parents):
        if made == tmp_path:
            break
        assert made.parent in synced, made
