"""Ignore rules: a short built-in list, and ``.mulliganignore`` in gitignore syntax over it."""

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

DRAFT = ".mulligan-draft-*"
"""The rule by which what a restore of this store was writing is left out."""

BUILT_IN = (
    "__pycache__/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".hypothesis/",
    ".tox/",
    ".nox/",
    ".DS_Store",
)
"""Caches that their tools make anew; nothing else is left out unless a person says so."""

IGNORED = "ignored by "
"""How the reason begins why a rule leaves something out."""

GIT = ".git/**/*.lock, .git/objects/**/tmp_*"
"""The rule by which locks of running git commands, and objects that they have not finished, are
left out: brought back, a lock would stop git for good."""

_GIT = re.compile(rb"(^|/)[^/]*\.git/(.*\.lock|objects/(.*/)?tmp_[^/]*)$")
_DRAFT_START = DRAFT.removesuffix("*").encode()
_NAMES = {pattern.removesuffix("/"): pattern for pattern in BUILT_IN}


class Rules:
    """Decides what is left out of the workspace, and by which rule.

    ``is_draft`` says of a name that begins like one whether it is that of a restore's draft.
    ``stores`` are paths in the workspace where there are stores under other names.
    """

    def __init__(
        self,
        lines: list[str],
        is_draft: Callable[[bytes], bool] = lambda _: False,
        stores: Collection[bytes] = (),
    ) -> None:
        self._is_draft = is_draft
        self._stores = frozenset(stores)
        own = [line for line in lines if _is_pattern(line)]
        self._lines = [*BUILT_IN, *own]
        # Without rules of one's own a name decides, which is far cheaper than patterns.
        self._spec = compiled(self._lines) if own else None
        self.identity = "\n".join([*self._lines, GIT, *map(os.fsdecode, sorted(stores))])

    @classmethod
    def read(
        cls,
        root: Path,
        is_draft: Callable[[bytes], bool] = lambda _: False,
        stores: Collection[bytes] = (),
    ) -> Rules:
        """Return the rules of a workspace; a file that cannot be read has none."""
        lines = []
        with suppress(OSError):
            lines = _read(root / FILE_NAME).decode(errors="replace").split("\n")
        return cls(lines, is_draft, stores)

    def rule(self, path: bytes, name: bytes, *, is_directory: bool) -> str | None:
        """Return the rule that leaves a path out, or None if it is captured."""
        if is_of_store(name) or path in self._stores:
            return STORE
        if name.startswith(_DRAFT_START) and not is_directory and self._is_draft(name):
            return DRAFT
        may_be_of_git = not is_directory and (name.endswith(b".lock") or name.startswith(b"tmp_"))
        if may_be_of_git and _GIT.search(path):
            return GIT
        text = name.decode("utf-8", "replace")
        if self._spec is None:
            pattern = _NAMES.get(text)
            return pattern if pattern and (is_directory or not pattern.endswith("/")) else None
        whole = path.decode("utf-8", "replace") + ("/" if is_directory else "")
        found = self._spec.check_file(whole)
        if not found.include or found.index is None:
            return None
        return self._lines[found.index]


def is_users(reason: str) -> bool:
    """Whether something is left out by a rule of the user's own."""
    ours = (STORE, DRAFT, *BUILT_IN)
    return reason.startswith(IGNORED) and reason.removeprefix(IGNORED) not in ours


def is_of_store(name: bytes) -> bool:
    """Whether a name is that of a store or a pointer, finished or not, file or directory."""
    return name == _STORE or name.startswith(_STAGING)


def _read(file: Path) -> bytes:
    """Return the content of a regular file; a FIFO of that name must not make anyone wait."""
    handle = _opened(file)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return b""
        with open(handle, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(handle)


def _opened(file: Path) -> int:
    """Open a file; if it is a symlink, only when it leads to something in the same directory."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(file, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    from mulligan.workspace.syscalls import open_beneath  # hardly any rules are symlinks

    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_beneath(directory, os.fsencode(file.name), flags)
    finally:
        os.close(directory)


def _is_pattern(line: str) -> bool:
    """Whether a line says anything: not if blank, a comment, or nothing that git would take."""
    if not line.strip() or line.startswith("#"):
        return False
    try:
        compiled([line])
    except ValueError:
        return False
    return True


def compiled(lines: list[str]) -> GitIgnoreSpec:
    """Return patterns in gitignore syntax, ready to be matched; ``ValueError`` if one is none."""
    from pathspec import GitIgnoreSpec  # slow to import, and most workspaces have no rules

    return GitIgnoreSpec.from_lines(lines)
