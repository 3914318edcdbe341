"""Writing a transcript where an agent finds it: whole or not at all, and never over another file.

A transcript is written under the name of a draft, which no agent lists, and gets its own name when
everything that belongs to it is durable. The writer holds a lock on its draft, so one that a killed
rewind has left is told apart from one that is being written, and the next rewind removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.layout import sync_directory, write_all
from mulligan.workspace.fsync import make_directories, sync_names

SUFFIX = ".mulligan"
"""What the name of a file ends with until it is whole; the agents do not list such names."""

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""What filesystems without hard links answer."""


class Draft:
    """A file under the name of its draft, durable, and locked until it is closed."""

    def __init__(self, path: Path, data: bytes, failpoint: FailpointHook) -> None:
        self.path = path
        self.draft = path.with_name(path.name + SUFFIX)
        self._failpoint = failpoint
        make_private(path.parent)
        self._handle = _opened(self.draft)
        try:
            write_all(self._handle, data)
            # Before it gets its name: that must not lead to bytes that a power cut can lose.
            os.fsync(self._handle)
            failpoint(Failpoint.REWIND_DRAFT_WRITTEN)
        except BaseException:
            self.remove()
            raise

    def publish(self) -> None:
        """Give the file its name: from here on the agent finds it.

        Raises ``FileExistsError`` if another file has the name.
        """
        try:
            # A link fails if the name is taken; a rename would replace the conversation of another
            # session.
            os.link(self.draft, self.path, follow_symlinks=False)
            self.draft.unlink()
        except OSError as error:
            # Some file systems have no hard links.
            if error.errno not in NO_LINKS or os.path.lexists(self.path):
                raise
            os.rename(self.draft, self.path)  # the check above is then the best there is
        # Before the caller reports the rewind: what it reports must survive a power cut.
        sync_directory(self.path.parent)
        self._failpoint(Failpoint.REWIND_PUBLISHED)

    def remove(self) -> None:
        """Remove the file of a rewind that failed, whether it has its name yet or not."""
        # Compared by identity: under either name there may be a file of another program by now.
        ours = os.fstat(self._handle)
        for path in (self.draft, self.path):
            # What cannot be removed cannot have been written either, and the first error counts.
            with suppress(OSError):
                if os.path.samestat(os.lstat(path), ours):
                    path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def remove_left_drafts(directory: Path) -> list[Path]:
    """Remove the drafts that killed rewinds have left in a directory or below; return which."""
    return [path for path in sorted(directory.rglob(f"*{SUFFIX}")) if _remove_left(path)]


def remove_empty_folder(transcript: Path) -> None:
    """Remove the folder beside a transcript that was removed, as far as no file is in it."""
    for directory, _, _ in os.walk(transcript.with_suffix(""), topdown=False):
        with suppress(OSError):  # what has files stays
            os.rmdir(directory)


def make_private(directory: Path) -> None:
    """Make a directory that only its owner can read, durable; one that is there stays as it is."""
    made = make_directories(directory)
    for one in made:
        one.chmod(0o700)  # the program's own folders may be open to others; what is said is not
    sync_names(made)


def _opened(draft: Path) -> int:
    """Create and lock a draft. Another rewind may remove it in between: then once more."""
    while True:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(draft, flags, 0o600)
        try:
            # No waiting: who holds it is about to remove it, as one that was left.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and lock, another rewind may have removed the file, and what is written
            # to it would have no name.
            if os.path.samestat(os.lstat(draft), os.fstat(handle)):
                return handle
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        draft.unlink(missing_ok=True)


def _remove_left(path: Path) -> bool:
    """Remove a draft unless its writer lives."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # a link, or published meanwhile
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False  # its writer lives
    finally:
        os.close(handle)
    return True
