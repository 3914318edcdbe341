"""Every object store passes the public suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan.objects.memory import MemoryObjects
from mulligan.objects.packs import PackObjects
from mulligan.objects.protocol import Flushed, Objects
from mulligan.testing.objects import MemoryIndex, ObjectsSuite


class TestMemoryObjects(ObjectsSuite):
    @pytest.fixture
    def objects(self) -> Objects:
        return MemoryObjects()


class TestPackObjects(ObjectsSuite):
    pack_limit = 512 << 20

    @pytest.fixture
    def objects(self, tmp_path: Path) -> Iterator[Objects]:
        self.index = MemoryIndex()
        store = PackObjects(
            tmp_path,
            b"0123456789abcdef",
            self.index.locate,
            self.index.committed,
            pack_limit=self.pack_limit,
        )
        yield store
        store.close()

    def commit(self, flushed: Flushed) -> None:
        self.index.commit(flushed)


class TestSmallPacks(TestPackObjects):
    """The same over many packs, so that rolling over is part of every test."""

    pack_limit = 50_000
