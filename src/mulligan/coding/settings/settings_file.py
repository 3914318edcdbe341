"""The settings file of a coding agent: JSON that others own too, so it is merged with care.

What is not ours stays as it is, in its order. A file with comments, or otherwise not plain JSON, is
not changed: it could not be written back as it was.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mulligan.errors import InvalidSettings
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.layout import sync_directory

MAX_BYTES = 8 << 20

COMMENTS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
"""Texts and comments of JSON with comments: what looks like a comment in a text is none."""

BY_HAND = (
    "Nothing was changed. Fix the file, or change the hooks by hand; `mulligan install AGENT "
    "--dry-run` in an empty directory shows them."
)


class OneLine(dict[str, Any]):
    """An object of settings that is written in one line, so that a diff stays short."""


class SettingsFile:
    """A settings file as it was read; a missing one is empty.

    A symlink is followed: people keep settings in another directory, and the link has to stay.
    """

    EMPTY: ClassVar[Mapping[str, Any]] = {}
    """The settings of a file that does not exist."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises ``InvalidSettings`` if it cannot be merged with."""
        self.path = path
        self._target = Path(os.path.realpath(path))
        self._mode = 0o600
        self.exists = True
        self.text = self._read()
        self.settings = self._parsed()

    def _parsed(self) -> dict[str, Any]:
        return _parsed(self.text, self.path)

    def _read(self) -> str:
        try:
            handle = os.open(self._target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(handle, "rb") as file:
                self._mode = os.fstat(handle).st_mode & 0o777
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            self.exists = False
            return ""
        except OSError as error:
            raise InvalidSettings(f"{self.path} cannot be read: {error.strerror}.") from error
        if len(data) > MAX_BYTES:
            raise InvalidSettings(f"{self.path} is longer than {MAX_BYTES >> 20} MiB.")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidSettings(f"{self.path} is not UTF-8.") from error

    def changed(self, settings: dict[str, Any]) -> str | None:
        """Return the text of the file with other settings, indented as the file is.

        None is no file.
        """
        if settings == self.settings:
            return self.text
        found = re.search(r"^([ \t]+)\S", self.text, re.MULTILINE)
        return _dumped(settings, found[1] if found else 2)

    def diff(self, text: str | None) -> str:
        """Return what another text, or None for no file, would change, as a unified diff."""
        before, after = self.text.splitlines(True), (text or "").splitlines(True)
        name = str(self.path)
        return "".join(
            line if line.endswith("\n") else f"{line}\n"
            for line in difflib.unified_diff(before, after, name, name)
        )

    def write(
        self, text: str | None, backup: Path, failpoint: FailpointHook = ignore
    ) -> Path | None:
        """Replace the file in one step; return ``backup``, now a copy of what was there, if any.

        Without a text, the file is removed.

        Raises ``InvalidSettings`` if another process has changed the file since it was read.
        """
        try:
            if self.text:
                backup.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Durable before the settings change: a person can always go back to what was there.
                replace_file(backup, self.text, 0o600)
                failpoint(Failpoint.SETTINGS_BACKED_UP)
            self._target.parent.mkdir(parents=True, exist_ok=True)
            # As late as possible: the agent itself may write its settings at any time, and its
            # change must not be undone. No lock can help, because agents take none.
            if self._read() != self.text:
                raise InvalidSettings(f"{self.path} was changed by another program meanwhile.")
            if text is not None:
                replace_file(self._target, text, self._mode)
            else:
                self._target.unlink(missing_ok=True)
                sync_directory(self._target.parent)
            failpoint(Failpoint.SETTINGS_WRITTEN)
        except OSError as error:
            raise InvalidSettings(f"{self.path} cannot be written: {error.strerror}.") from error
        return backup if self.text else None


class CommentedFile(SettingsFile):
    """A settings file of an agent that accepts comments: one with some is read, never changed."""

    def _parsed(self) -> dict[str, Any]:
        self._has_comments = False
        try:
            return super()._parsed()
        except InvalidSettings as error:
            try:
                found = _parsed(COMMENTS.sub(_without_comment, self.text), self.path)
            except InvalidSettings:
                raise error from None  # which names the place in the file
            self._has_comments = True
            return found

    def changed(self, settings: dict[str, Any]) -> str | None:
        """Return the text of the file with other settings; refused if that would lose comments."""
        if self._has_comments and settings != self.settings:
            raise InvalidSettings(f"{self.path} has comments.", hint=BY_HAND)
        return super().changed(settings)


def _without_comment(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else " "


def _dumped(settings: dict[str, Any], indent: str | int) -> str:
    """Return settings as JSON, each ``OneLine`` in them in one line."""
    lines: dict[str, str] = {}
    mark = os.urandom(8).hex()

    def marked(value: Any) -> Any:
        if isinstance(value, OneLine):
            name = f"{mark}-{len(lines)}"
            lines[f'"{name}"'] = json.dumps(value, ensure_ascii=False)
            return name
        if isinstance(value, dict):
            return {key: marked(child) for key, child in value.items()}
        return [marked(child) for child in value] if isinstance(value, list) else value

    text = json.dumps(marked(settings), indent=indent, ensure_ascii=False) + "\n"
    for name, line in lines.items():
        text = text.replace(name, line, 1)
    return text


def _parsed(text: str, path: Path) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(
            f"{path} is not plain JSON, or has comments: {error}.",
            hint=BY_HAND,
        ) from error
    if not isinstance(found, dict):
        raise InvalidSettings(f"{path} holds no JSON object.")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; one with a key twice could not be written back as it was."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def replace_file(path: Path, text: str, mode: int) -> None:
    """Write a file beside its place, and rename it: a crash leaves the old one or the new one."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Left by a process of the same number that was killed.
    beside.unlink(missing_ok=True)
    try:
        with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Before the rename: at no moment is the file more open than the one that it replaces.
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        # After the sync: the name must not lead to bytes that a power cut can lose.
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
