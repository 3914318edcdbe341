"""The environment of a checkpoint: machine, tools, git head, and variables without secrets."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from mulligan.model import Environment

ALLOWED = frozenset(
    {
        "CI",
        "CONDA_DEFAULT_ENV",
        "EDITOR",
        "LANG",
        "LANGUAGE",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "NODE_ENV",
        "PATH",
        "PYTHONHASHSEED",
        "PYTHONPATH",
        "SHELL",
        "TERM",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
"""The variables that are kept when they are set."""

_COMMIT = "[0-9a-f]{40}|[0-9a-f]{64}"

TOOLS_CACHE = "tools"
"""The name of the cache of tool versions in ``tmp/``."""


class EnvironmentReader:
    """Captures the environment of a process, given its variables.

    ``cache`` is a file that keeps tool versions for the next process.
    """

    def __init__(
        self,
        directory: Path,
        variables: Mapping[str, str],
        keep: Iterable[str] = (),
        cache: Path | None = None,
    ) -> None:
        self._cache = cache
        self._directory = directory
        self._variables = variables
        self._keep = ALLOWED | frozenset(keep)
        # Not cached_property: before Python 3.12 it has a lock, and a child that was forked while
        # another thread looked for tools would wait for it forever.
        self._known: tuple[Environment, Path | None] | None = None

    def capture(self) -> Environment:
        """Return the environment as it is now; only the git head can change between calls."""
        if self._known is None:
            self._known = self._constant(), self._git_directory()
        constant, git = self._known
        return msgspec.structs.replace(constant, git_head=None if git is None else git_head(git))

    def _constant(self) -> Environment:
        import platform  # slow to import, and needed only once per process

        from mulligan.session.tool_versions import find_tools

        tools = find_tools(self._cache)
        return Environment(
            platform=tools.platform,
            python=platform.python_version(),
            host=os.uname().nodename,
            tools=tools.versions,
            variables=safe_variables(self._variables, self._keep),
        )

    def _git_directory(self) -> Path | None:
        from mulligan.locate.git import find_git

        return find_git(self._directory)


def safe_variables(variables: Mapping[str, str], keep: Iterable[str]) -> dict[str, str]:
    """Return the allowed variables, without those that look like secrets."""
    from mulligan.redact import is_secret  # compiles long patterns, and only checkpoints need them

    return {
        name: variables[name]
        for name in sorted(keep)
        if name in variables and not is_secret(name, variables[name])
    }


def git_head(git: Path) -> str | None:
    """Return the commit that HEAD names, read from the files of a git directory."""
    head = _line(git / "HEAD")
    if head is None or not head.startswith("ref:"):
        return _commit(head)
    ref = head.removeprefix("ref:").strip()
    if not ref.startswith("refs/") or ".." in ref.split("/"):
        return None  # it would lead outside the git directory
    common = git / (_line(git / "commondir") or ".")
    return _commit(_line(git / ref) or _line(common / ref) or _packed(common, ref))


def _commit(text: str | None) -> str | None:
    """Return the text if it is the digest of a commit; a file may hold anything."""
    return text if text is not None and re.fullmatch(_COMMIT, text) else None


def _packed(git: Path, ref: str) -> str | None:
    try:
        lines = (git / "packed-refs").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in lines if line.endswith(f" {ref}")), None)


def _line(file: Path) -> str | None:
    """Return the text of a short regular file; reading a FIFO would block."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.read(handle, 4096).decode(errors="replace").strip() or None
    except OSError:
        return None
    finally:
        os.close(handle)
