"""Which settings file an installation made, and which directories for it.

An uninstallation removes what was made, if nothing else is in it; without this record, an empty
file could as well be a person's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
from blake3 import blake3

from mulligan.coding.settings_file import replace_file
from mulligan.locate.small_json import decoded, encoded

MAX_BYTES = 1 << 20


class _Record(msgspec.Struct):
    directories: list[str]


class MadeFile:
    """The record of one settings file, below a directory for such records."""

    def __init__(self, records: Path, file: Path) -> None:
        self._file = file
        digest = blake3(os.fsencode(file)).hexdigest(length=16)
        self._record = records / f"made-{digest}"

    @property
    def is_ours(self) -> bool:
        """Whether an installation made the file."""
        return self._record.is_file()

    def remember(self) -> None:
        """Record that the file is about to be made, with the directories that are missing."""
        missing = [str(parent) for parent in self._file.parents if not parent.exists()]
        self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Durable before the file is made: after a crash in between, the record is of a file that
        # does not exist, which is harmless. The other way round it would never be removed.
        replace_file(self._record, encoded({"directories": missing}).decode() + "\n", 0o600)

    def forget(self) -> None:
        """Treat the file as a person's from now on."""
        self._record.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the directories that were made for a file that is gone, if they are empty."""
        if not self.is_ours or os.path.lexists(self._file):
            return
        # The innermost first, as they were recorded; one that is in use stays.
        with contextlib.suppress(OSError):
            for directory in self._directories():
                directory.rmdir()
        self.forget()

    def _directories(self) -> list[Path]:
        with open(self._record, "rb") as file:
            data = file.read(MAX_BYTES)
        try:
            found = decoded(data, _Record)
        except (ValueError, RecursionError):
            return []  # not as it was written: nothing is removed
        parents = set(self._file.parents)
        return [path for name in found.directories if (path := Path(name)) in parents]
