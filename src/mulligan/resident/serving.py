"""Which agents have an MCP server of ours that handles their hooks: a lock for each.

The hooks of Claude Code call the server, and beside it they run a command that works only where
no server does. A server holds a POSIX lock on a file named after its agent's process; the system
releases it when the server dies, however that happens. The file by itself says nothing.
``client.c`` and ``client.py`` look at the same lock in their own way.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from mulligan import procfs
from mulligan.resident.place import helper_directory, own_directory

PREFIX = "served-"

_HELD = {errno.EACCES, errno.EAGAIN}
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class ServedAgent:
    """What a server holds while it handles the hooks of an agent."""

    def __init__(self, state: Path, process: int) -> None:
        """Name the agent by its process; ``state`` is the directory of stores."""
        self._state = state
        self._process = process
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock; return False if another server of this agent has it. Idempotent.

        Raises ``OSError``, and ``UnsafeHelper`` for a directory of another user.
        """
        if self._file is not None:
            return True
        directory = own_directory(self._state)
        _sweep(directory)
        file = os.open(directory / _name(self._process), os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            # Not a flock: a hook could look at that only by taking it, and would hide the server
            # from another hook of the same moment.
            os.lockf(file, os.F_TLOCK, 0)
        except OSError as error:
            os.close(file)
            if error.errno in _HELD:
                return False
            raise
        self._file = file
        return True

    def release(self) -> None:
        """Release the lock. Idempotent.

        The file stays while the agent lives: its next server locks the same one.
        """
        if self._file is not None:
            os.close(self._file)
            self._file = None


def is_served(state: Path, process: int) -> bool:
    """Whether a server in another process handles the hooks of an agent."""
    try:
        file = os.open(helper_directory(state) / _name(process), os.O_RDONLY | _FLAGS)
    except OSError:
        return False  # no server ever did
    try:
        os.lockf(file, os.F_TEST, 0)
    except OSError as error:
        return error.errno in _HELD
    finally:
        os.close(file)
    return False


def _name(process: int) -> str:
    """Return the name of an agent's file: with its start, since process ids are used again."""
    return f"{PREFIX}{process}-{procfs.started(process) or 0}"


def _sweep(directory: Path) -> None:
    """Remove the files of agents that have ended."""
    for path in directory.glob(f"{PREFIX}*"):
        process = path.name.removeprefix(PREFIX).partition("-")[0]
        if process.isdecimal() and path.name != _name(int(process)):
            with suppress(OSError):  # another server removed it, or it is not a file
                path.unlink()
