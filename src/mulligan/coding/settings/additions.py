"""What an installation added to the world besides hooks, so that an uninstallation removes it.

That is the settings file itself, directories for it, switches in it that turn hooks on, and a line
that makes git ignore it. Without a record, each of them could as well be a person's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from mulligan.coding.settings.settings_file import SettingsFile, replace_file
from mulligan.locate.registry import state_directory
from mulligan.locate.small_json import decoded, encoded

MAX_BYTES = 1 << 20

MAX_TEXT = 1 << 16
"""A file that is longer, in characters, is not kept in its record."""

BACKUPS = "backups"
"""The directory, beside the stores, of such records, and of settings files before a change."""

Switch = tuple[str, str]
"""A key that is on or off: its table, and its name there."""


class Additions(msgspec.Struct, frozen=True):
    """What was added: the file with its directories, the innermost first, switches, and for git.

    ``before`` is the text of a file that was there, ``written`` a digest of the text that replaced
    it. Where that is about to change, it is two digests: the change may never be made.
    """

    is_made: bool = False
    directories: list[str] = []
    switches: list[Switch] = []
    exclusion: str = ""
    before: str | None = None
    written: str = ""

    def original(self, text: str) -> str | None:
        """Return what was there before, if nothing but the installation has changed the text."""
        return self.before if _digest(text) in self.written.split() else None


NOTHING = Additions()


def records(variables: Mapping[str, str]) -> Path:
    """Return the directory of the records of a user."""
    return state_directory(variables) / BACKUPS


class AdditionsRecord:
    """The record of one settings file, below a directory for such records."""

    def __init__(self, records: Path, file: Path) -> None:
        self._file = file
        digest = blake3(os.fsencode(file)).hexdigest(length=16)
        self._record = records / f"added-{digest}"

    @property
    def exists(self) -> bool:
        """Whether hooks were installed in the file, and not uninstalled since."""
        return self._record.exists()

    def read(self) -> Additions:
        """Return what was added; nothing if that is not known."""
        try:
            with open(self._record, "rb") as file:
                found = decoded(file.read(MAX_BYTES), Additions)
        except (OSError, ValueError, RecursionError):
            return NOTHING  # not there, or not as it was written: nothing is removed
        parents = {str(parent) for parent in self._file.parents}
        kept = [name for name in found.directories if name in parents]
        return msgspec.structs.replace(found, directories=kept)

    def write(
        self,
        file: SettingsFile,
        text: str | None,
        switches: Sequence[Switch],
        *,
        exclusion: str,
        is_again: bool,
    ) -> None:
        """Record what is about to be added to a file, of which ``text`` is what it will hold.

        ``is_again`` says that hooks are there already: what was there before is not known then.
        """
        missing = [str(parent) for parent in self._file.parents if not parent.exists()]
        # Of an installation that was cut off, or whose file was deleted since, the line is there.
        exclusion = exclusion or self.read().exclusion
        new = [one for one in switches if not _has(file.settings if file.exists else {}, one)]
        is_known = file.exists and not is_again and len(file.text) <= MAX_TEXT
        self._write(
            Additions(
                not file.exists,
                missing,
                [] if is_again else new,
                exclusion,
                file.text if is_known else None,
                _digest(text),
            )
        )

    def write_again(self, file: SettingsFile, text: str | None, *, exclusion: str) -> None:
        """Record that our hooks are about to change; what was there before them stays known."""
        known = self.read()
        if known.original(file.text) is not None:
            written = f"{_digest(file.text)} {_digest(text)}"
            self._write(msgspec.structs.replace(known, written=written))
        self.write_exclusion(exclusion)

    def write_exclusion(self, exclusion: str) -> None:
        """Record what is about to be added for git, in a repository newer than the hooks."""
        known = self.read()
        if exclusion and known.exclusion != exclusion:
            self._write(msgspec.structs.replace(known, exclusion=exclusion))

    def _write(self, added: Additions) -> None:
        self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Durable before the file is written: after a crash in between, the record is of something
        # that does not exist. The other way round it would never be removed.
        text = encoded(msgspec.to_builtins(added)).decode()
        replace_file(self._record, f"{text}\n", 0o600)

    def remove(self) -> None:
        """Forget what was added: it is gone, or a person's from now on."""
        self._record.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the directories of a file that is gone, if they are empty, and the record."""
        if not os.path.lexists(self._file):
            # One that is in use stays, and those around it.
            with contextlib.suppress(OSError):
                for directory in self.read().directories:
                    os.rmdir(directory)
        self.remove()


def without_switches(settings: Mapping[str, Any], switches: Sequence[Switch]) -> dict[str, Any]:
    """Return settings without switches that are still on, and without tables left empty by that."""
    left = dict(settings)
    for table, key in switches:
        found = left.get(table)
        if isinstance(found, dict) and found.get(key) is True:
            left[table] = {name: value for name, value in found.items() if name != key}
            if not left[table]:
                del left[table]
    return left


def _digest(text: str | None) -> str:
    return blake3((text or "").encode()).hexdigest(length=16)


def _has(settings: Mapping[str, Any], switch: Switch) -> bool:
    table, key = switch
    found = settings.get(table)
    return isinstance(found, dict) and key in found
