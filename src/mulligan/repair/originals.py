"""Damaged originals: what a repair keeps aside before it puts something else in its place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from mulligan import layout
from mulligan.owner import make_directory, open_as_owner


class Originals:
    """Where the damaged originals of one repair are kept."""

    def __init__(self, store: Path, now: datetime) -> None:
        self._store = store
        self.directory = store / layout.DAMAGED / now.strftime("%Y%m%dT%H%M%S.%fZ")
        self.is_empty = True
        self._stretches: list[Path] = []

    def path(self, name: str) -> Path:
        """Return the path of an original, in a directory that exists."""
        path = self.directory / name
        for made in reversed((path.parent, *path.parent.parents)):
            if made.is_relative_to(self._store) and not made.is_dir():
                make_directory(made)  # one by one: parents get no mode from ``mkdir``
                # Each name on the way must be durable before the store forgets the original.
                layout.sync_directory(made.parent)
        self.is_empty = False
        return path

    def keep(self, name: str) -> None:
        """Keep a copy of a small file, if there is one."""
        file = self._store / name
        if file.is_file():
            self.keep_bytes(name, file.read_bytes())

    def keep_bytes(self, name: str, data: bytes) -> None:
        """Keep bytes under a name; durable on return."""
        path = self.path(name)
        layout.write_file(path, data)
        layout.sync_directory(path.parent)

    def keep_stretch(self, name: str, length: int, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Keep a stretch of a pack, of which pieces are not zero; durable on return.

        It may be most of a pack: a hole takes no space here, either.
        """
        path = self.path(name)
        self._stretches.append(path)
        handle = open_as_owner(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.ftruncate(handle, length)
            for offset, data in pieces:
                os.lseek(handle, offset, os.SEEK_SET)
                layout.write_all(handle, data)
            # Before the index leads past it: then nothing protects it in its pack any more.
            os.fsync(handle)
        finally:
            os.close(handle)
        layout.sync_directory(path.parent)

    def drop_stretches(self) -> None:
        """Delete the stretches that were kept, and directories that are empty then."""
        for path in self._stretches:
            path.unlink(missing_ok=True)
        for path in self._stretches[:1]:
            for directory in (path.parent, self.directory, self.directory.parent):
                with suppress(OSError):  # it has other originals, or was never made
                    directory.rmdir()
        self._stretches.clear()


def kept_originals(store: Path) -> list[Path]:
    """Return the directories with damaged originals, oldest first."""
    return sorted(path for path in (store / layout.DAMAGED).glob("*") if path.is_dir())


def discard_originals(store: Path) -> int:
    """Delete the damaged originals that repairs kept; return how many bytes they had."""
    home = store / layout.DAMAGED
    size = sum(_size(path.lstat()) for path in home.rglob("*") if not path.is_dir())
    if home.is_dir():
        layout.remove_tree(home)
    return size


def _size(status: os.stat_result) -> int:
    """Return how many bytes a file occupies, without its holes."""
    return min(status.st_size, status.st_blocks * 512)
