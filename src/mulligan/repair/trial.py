"""A copy of a store on which a repair is tried out, so that its result is known beforehand.

The copy is in ``tmp/`` of the store. It shares the bytes of packs, which are most of a store: as
reflinks, or else as further names of the same files. These are locked, as a writer of packs does,
so that no writer of the copy appends to one of them or cuts its tail. All else is small, and is
copied.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from mulligan import layout
from mulligan.errors import StoreNotFound
from mulligan.journal.lmdb import lockfile
from mulligan.journal.lmdb.replace import locked
from mulligan.workspace.syscalls import FICLONE


@contextmanager
def trial_copy(store: Path) -> Iterator[Path]:
    """Copy a store for as long as a block runs; raises ``StoreInUse`` if a process has it open."""
    if not store.is_dir():
        raise StoreNotFound(f"There is no store at {store}.")
    with ExitStack() as held:
        # Without its lock file, no process has it open; making one would change the store.
        if (store / "journal" / lockfile.NAME).exists():
            held.enter_context(locked(store / "journal"))
        copy = _directory(store)
        held.callback(layout.remove_tree, copy)
        for part in layout.PARTS:
            (copy / part).mkdir(mode=0o700)
        for file in [*_files(store), *_files(store / "journal")]:
            _copy(file, copy / file.relative_to(store))
        for pack in _files(store / "packs"):
            _share(pack, copy / "packs" / pack.name, held)
        yield copy


def _directory(store: Path) -> Path:
    """Make a directory for the copy: in the store, or elsewhere if that cannot be written."""
    with suppress(OSError):
        layout.remove_trials(store)
        return Path(mkdtemp(prefix=layout.TRIAL, dir=store / "tmp"))
    return Path(mkdtemp(prefix=f"mulligan-{layout.TRIAL}"))


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if path.is_file() and not path.is_symlink()]


def _share(pack: Path, to: Path, held: ExitStack) -> None:
    if _clone(pack, to):
        return
    try:
        os.link(pack, to, follow_symlinks=False)
    except OSError:
        _copy(pack, to)
        return
    fd = os.open(to, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    held.callback(os.close, fd)
    # Until the end of the trial: a writer of the copy passes over packs that are locked.
    fcntl.flock(fd, fcntl.LOCK_EX)


def _copy(file: Path, to: Path) -> None:
    if not _clone(file, to):
        # With the bytes and the mode alone: a lock file or a damaged one is as it is.
        shutil.copy(file, to)


def _clone(file: Path, to: Path) -> bool:
    """Share the bytes of a file with a copy, if the file system can; return whether it did."""
    source = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        made = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(made, FICLONE, source)
        except OSError:
            to.unlink()
            return False
        finally:
            os.close(made)
        return True
    finally:
        os.close(source)
