"""Which program this is: its version, and whether it was replaced since it was started."""

from __future__ import annotations

from pathlib import Path

import mulligan


def version() -> str:
    """Return the version of Mulligan, with where it is installed: two may share a state."""
    from importlib.metadata import version as installed

    return f"{installed('mulligan')} {Path(mulligan.__file__).parent}"


class Program:
    """The files of the program as they were when this process started."""

    def __init__(self) -> None:
        self._file = Path(mulligan.__file__)
        self._was = self._stamp()

    def changed(self) -> bool:
        """Whether the program was replaced, so that this process runs an older one."""
        return self._stamp() != self._was

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
