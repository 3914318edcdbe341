"""Application snapshots, for files whose bytes alone are not consistent.

``[workspace.snapshot]`` in the store's configuration lists them: SQLite databases, which SQLite
copies at a point in time including their logs, and files for which a command writes a copy. It also
lists commands that run before and after each capture. None of this is ever read from the workspace
itself.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mulligan.model import LeftOut
from mulligan.workspace.capture.ignore import compiled
from mulligan.workspace.capture.limits import Command, Snapshot
from mulligan.workspace.file_handles import close_file, open_file

if TYPE_CHECKING:
    import sqlite3

    from pathspec import GitIgnoreSpec

SIDE_FILE_SUFFIXES = (b"-wal", b"-shm", b"-journal")
"""Suffixes of the files that SQLite keeps beside a database in use."""

IN_SNAPSHOT = "its content is in the snapshot of "
"""Prefix of the reason when such a file is left out."""

IN_USE = "a program has it open"
"""Prefix of the reason when a restore leaves such a database alone."""

PATH, OUTPUT = "{path}", "{output}"
"""Placeholders in a command for the file and for the path of its copy."""

_MAGIC = b"SQLite format 3\0"
_WAL = 2
"""Value of two header fields of a database in write-ahead-log mode (``-wal``)."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MAX_SHOWN_OUTPUT = 200
"""Maximum number of characters kept of a failed command's error output."""


class SnapshotFailed(Exception):
    """No snapshot could be taken; the text says why."""


class Snapshots:
    """Take snapshots of files in a workspace as configured."""

    def __init__(self, root: Path, setting: Snapshot) -> None:
        self._root = root
        self._setting = setting
        self.is_used = bool(setting.sqlite or setting.command)

    @cached_property
    def _sqlite(self) -> GitIgnoreSpec:
        return compiled(self._setting.sqlite)

    @cached_property
    def _commands(self) -> list[tuple[GitIgnoreSpec, Command]]:
        return [(compiled(command.files), command) for command in self._setting.command]

    def has(self, path: bytes) -> bool:
        """Whether a file is captured through a snapshot."""
        text = path.decode("utf-8", "replace")
        return self.is_database(path) or any(spec.match_file(text) for spec, _ in self._commands)

    def is_database(self, path: bytes) -> bool:
        """Whether a file is copied by SQLite."""
        return self._sqlite.match_file(path.decode("utf-8", "replace"))

    def database_of(self, path: bytes) -> bytes | None:
        """Return the database that a SQLite side file belongs to."""
        for side in SIDE_FILE_SUFFIXES:
            database = path.removesuffix(side)
            if database != path and self.is_database(database):
                return database
        return None

    @contextmanager
    def take(self, path: bytes, directory: int) -> Iterator[IO[bytes] | None]:
        """Take a snapshot of a file in an open directory.

        It is None for a database that no program has open: its bytes are complete. Raises
        ``SnapshotFailed``.
        """
        from tempfile import TemporaryDirectory  # slow to import, only snapshots need it

        with TemporaryDirectory(prefix="mulligan-snapshot-") as place:
            copy = Path(place) / "copy"
            try:
                is_taken = self._take(path, directory, copy)
                with copy.open("rb") if is_taken else nullcontext() as file:
                    yield file
            except OSError as error:
                raise SnapshotFailed(str(error)) from error

    def _take(self, path: bytes, directory: int, copy: Path) -> bool:
        if self.is_database(path):
            return _back_up(self._root, path, directory, copy, self._setting.timeout)
        text = path.decode("utf-8", "replace")
        command = next(command for spec, command in self._commands if spec.match_file(text))
        whole = os.fsdecode(os.fsencode(self._root) + b"/" + path)
        run = [part.replace(PATH, whole).replace(OUTPUT, str(copy)) for part in command.run]
        with copy.open("wb") as output:
            run_command(run, self._root, self._setting.timeout, output)
        return True


def databases_in_use(left_out: Iterable[LeftOut]) -> dict[str, str]:
    """Return the databases that have SQLite side files now, and why they are left alone.

    Beside a different version of the database, such a file would corrupt it.
    """
    sides = [left.path for left in left_out if left.rule.startswith(IN_SNAPSHOT)]
    return {
        path.rpartition("-")[0]: f"{IN_USE}, or ended without closing it: {path}" for path in sides
    }


@contextmanager
def quiesced(root: Path, setting: Snapshot) -> Iterator[list[str]]:
    """Run the configured commands around a capture; yield the problems they had."""
    problems: list[str] = []
    _attempt("before", setting.before, root, setting.timeout, problems)
    try:
        yield problems
    finally:
        # Even if the capture failed: a program that was paused must be resumed.
        _attempt("after", setting.after, root, setting.timeout, problems)


def _attempt(name: str, command: list[str], root: Path, limit: float, problems: list[str]) -> None:
    if command:
        try:
            run_command(command, root, limit)
        except (OSError, SnapshotFailed) as error:
            problems.append(f"the command {name!r} failed: {error}")


def run_command(
    command: list[str], root: Path, limit: float, output: IO[bytes] | None = None
) -> None:
    """Run a command in a directory; raises ``SnapshotFailed`` if it fails or takes too long."""
    from subprocess import DEVNULL, Popen, TimeoutExpired
    from tempfile import TemporaryFile

    with TemporaryFile() as said:
        process = Popen(
            command,
            cwd=root,
            stdin=DEVNULL,
            stdout=output or DEVNULL,
            stderr=said,
            # Its own process group, so that a timeout can kill its children too.
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all its children
            process.wait()
            if isinstance(error, TimeoutExpired):
                raise SnapshotFailed(f"{command[0]} took longer than {limit:g} s") from error
            raise
        if status:
            said.seek(0)
            text = said.read(_MAX_SHOWN_OUTPUT).decode(errors="replace").strip()
            raise SnapshotFailed(f"{command[0]} ended with {status}{text and ': ' + text}")


def _back_up(root: Path, path: bytes, directory: int, copy: Path, limit: float) -> bool:
    """Let SQLite copy a database; return False if no program has it open."""
    import sqlite3
    from urllib.parse import quote

    name = path.rpartition(b"/")[2]
    handle = open_file(name, _OPEN, directory)
    try:
        header = os.pread(handle, 100, 0)
        if not header.startswith(_MAGIC):
            raise SnapshotFailed("it is not a SQLite database")
        is_logged = _WAL in header[18:20]
        if is_logged and not _exists(name + b"-wal", directory):
            return False  # opening it would create a log in the workspace
        if is_logged and not _exists(name + b"-shm", directory):
            raise SnapshotFailed("a program ended without closing it")
        uri = f"file:{quote(os.fsencode(root) + b'/' + path)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=limit)) as source:
            source.execute("PRAGMA schema_version")  # opens the file
            # Only now is the file open in SQLite, so that its identity can be compared.
            _check_same(handle)
            _copy(source, copy, limit)
    except sqlite3.Error as error:
        raise SnapshotFailed(str(error)) from error
    finally:
        close_file(handle)
    return True


def _copy(source: sqlite3.Connection, copy: Path, limit: float) -> None:
    import sqlite3

    end = time.monotonic() + limit

    def check_time(*_: int) -> None:
        # SQLite waits for a writer that holds the database, and Python would retry forever.
        if time.monotonic() > end:
            raise SnapshotFailed(f"it was locked for longer than {limit:g} s")

    with closing(sqlite3.connect(copy)) as target:
        # The copy is read once and deleted; it need not survive a crash.
        target.execute("PRAGMA synchronous = OFF")
        source.backup(target, progress=check_time)


def _check_same(handle: int) -> None:
    """Refuse if SQLite opened another file under the name: it follows symlinks, we do not."""
    own = os.fstat(handle)
    with suppress(FileNotFoundError):  # /proc is not available everywhere
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if int(name) != handle and os.path.samestat(os.fstat(int(name)), own):
                    return
        raise SnapshotFailed("another file took its place")


def _exists(name: bytes, directory: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
