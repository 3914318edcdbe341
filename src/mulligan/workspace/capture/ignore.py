"""Ignore rules: a short built-in list, then ``.mulliganignore`` in gitignore syntax."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.layout import NAME, STAGING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FILE_NAME = ".mulliganignore"

STORE = NAME
"""Stores and pointers to stores are never captured, whatever the rules say."""

_STORE, _STAGING = os.fsencode(NAME), os.fsencode(STAGING)

TEMPORARY = ".mulligan-draft-*"
"""The rule that leaves out temporary files of this store's restores."""

BUILT_IN = (
    "__pycache__/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".hypothesis/",
    ".tox/",
    ".nox/",
    ".DS_Store",
    "**/.opencode/node_modules/",
)
"""Caches that their tools recreate; nothing else is left out unless a user rule says so."""

IGNORED = "ignored by "
"""Prefix of the reason when a rule leaves something out."""

GIT = ".git/**/*.lock, .git/objects/**/tmp_*"
"""The rule that leaves out locks and unfinished objects of running git commands.

A restored lock file would block git permanently.
"""

_GIT = re.compile(rb"(^|/)[^/]*\.git/(.*\.lock|objects/(.*/)?tmp_[^/]*)$")
_TEMPORARY_PREFIX = TEMPORARY.removesuffix("*").encode()
_NAMES = {pattern.removesuffix("/").rpartition("/")[2]: pattern for pattern in BUILT_IN}


class Rules:
    """Decide what is left out of the workspace, and by which rule.

    ``is_temporary`` decides whether a name with the prefix of temporary files belongs to a restore.
    ``stores`` are paths in the workspace that hold stores under other names.
    """

    def __init__(
        self,
        lines: list[str],
        is_temporary: Callable[[bytes], bool] = lambda _: False,
        stores: Collection[bytes] = (),
    ) -> None:
        self._is_temporary = is_temporary
        self._stores = frozenset(stores)
        # One invalid pattern must not disable the others, so each line is compiled on its own
        # first.
        own = [line for line in lines if _is_pattern(line)]
        self._lines = [*BUILT_IN, *own]
        # Without user rules, comparing names is enough and far cheaper than matching patterns.
        self._spec = compiled(self._lines) if own else None
        # Part of the index: other rules mean that everything is scanned again.
        self.identity = "\n".join([*self._lines, GIT, *map(os.fsdecode, sorted(stores))])

    @classmethod
    def read(
        cls,
        root: Path,
        is_temporary: Callable[[bytes], bool] = lambda _: False,
        stores: Collection[bytes] = (),
    ) -> Rules:
        """Return the rules of a workspace; an unreadable file counts as empty."""
        lines = []
        # Without its rules more is captured, never less.
        with suppress(OSError):
            lines = _read(root / FILE_NAME).decode(errors="replace").split("\n")
        return cls(lines, is_temporary, stores)

    def rule(self, path: bytes, name: bytes, *, is_directory: bool) -> str | None:
        """Return the rule that leaves a path out, or None if it is captured."""
        # First, so that no user rule can include a store: restoring one would roll it back.
        if is_of_store(name) or path in self._stores:
            return STORE
        if name.startswith(_TEMPORARY_PREFIX) and not is_directory and self._is_temporary(name):
            return TEMPORARY
        may_be_of_git = not is_directory and (name.endswith(b".lock") or name.startswith(b"tmp_"))
        if may_be_of_git and _GIT.search(path):
            return GIT
        text = name.decode("utf-8", "replace")
        if self._spec is None:
            pattern = _NAMES.get(text)
            return pattern if pattern and _matches(pattern, path, is_directory) else None
        whole = path.decode("utf-8", "replace") + ("/" if is_directory else "")
        found = self._spec.check_file(whole)
        if not found.include or found.index is None:
            return None
        return self._lines[found.index]


def _matches(pattern: str, path: bytes, is_directory: bool) -> bool:
    """Whether a pattern of the built-in list matches a path whose name it ends with."""
    below = pattern.removesuffix("/").removeprefix("**")
    if "/" in below and not b"/".join((b"", path)).endswith(below.encode()):
        return False
    return is_directory or not pattern.endswith("/")


def is_users(reason: str) -> bool:
    """Whether a user's own rule leaves something out."""
    ours = (STORE, TEMPORARY, *BUILT_IN)
    return reason.startswith(IGNORED) and reason.removeprefix(IGNORED) not in ours


def is_of_store(name: bytes) -> bool:
    """Whether a name belongs to a store or a pointer, finished or not, file or directory."""
    return name == _STORE or name.startswith(_STAGING)


def _read(file: Path) -> bytes:
    """Return the content of a regular file; a FIFO of that name must not block the caller."""
    # O_NONBLOCK, and the type is checked on the open handle: a name could be replaced in between.
    handle = _opened(file)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return b""
        with open(handle, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(handle)


def _opened(file: Path) -> int:
    """Open a file; follow a symlink only if it leads to something in the same directory."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(file, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    from mulligan.workspace.syscalls import open_beneath  # symlinks are rare here

    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_beneath(directory, os.fsencode(file.name), flags)
    finally:
        os.close(directory)


def _is_pattern(line: str) -> bool:
    """Whether a line is a pattern: not blank, not a comment, and valid for git."""
    if not line.strip() or line.startswith("#"):
        return False
    try:
        compiled([line])
    except ValueError:
        return False
    return True


def compiled(lines: list[str]) -> GitIgnoreSpec:
    """Return compiled gitignore patterns; raises ``ValueError`` if one is invalid."""
    from pathspec import (
        GitIgnoreSpec,
    )  # slow to import, and most workspaces have no rules of their own

    return GitIgnoreSpec.from_lines(lines)
