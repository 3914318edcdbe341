"""Deciding whether a journal's file can be trusted, and checking it if in doubt."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from mulligan.journal.lmdb import clean_close, layout
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.protocol import ALL_TABLES

_MAX_ATTEMPTS = 5
"""How often a check is repeated because other processes commit during it."""


class Verdict(msgspec.Struct, frozen=True):
    """The damaged tables with the reason, and what was checked if the file was in doubt."""

    damage: dict[str, str]
    checked: tuple[clean_close.Look, int] | None = None


NO_FILE = Verdict({ALL_TABLES: "there is no data.mdb, or nothing in it"})

IsShared = Callable[[], bool]
"""Whether another process has the journal open now."""


def examine(directory: Path, *, is_shared: IsShared, may_be_new: bool) -> Verdict:
    """Check a file before LMDB opens it, unless it matches its mark.

    Processes that have it open checked it when they opened it, and may have committed any number
    of times. Beside them, it is only checked now and then: see ``shared_check``.
    """
    nothing = Verdict({}) if may_be_new else NO_FILE
    file = directory / DATA
    try:
        # A descriptor of its own: closing it drops no lock, because LMDB's locks are on the lock
        # file.
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return nothing
    try:
        if os.fstat(fd).st_size == 0:
            return nothing
        if not layout.has_known_pages():
            return Verdict({})
        return _verdict(fd, file, clean_close.read(directory), is_shared=is_shared)
    finally:
        os.close(fd)


def _verdict(fd: int, file: Path, mark: clean_close.Mark | None, *, is_shared: IsShared) -> Verdict:
    damage: dict[str, str] = {}
    # If other processes commit during the check, the pages read are not from one commit, and the
    # check is repeated. Each time, look first whether another process has opened the file since.
    for _ in range(_MAX_ATTEMPTS):
        found = clean_close.look(file)
        try:
            newest = _newest(fd)
            shared = is_shared()
            if _is_trusted(fd, file.parent, mark, found, newest, shared=shared):
                return Verdict({})
            from mulligan.journal.lmdb import pages  # a journal in doubt is rare

            damage = pages.check(fd, newest)
            if not damage:
                if shared:
                    _note_checked(file.parent)
                return Verdict({}, None if shared else (found, newest.number))
            # LMDB keeps the pages of a commit until the third one after it, which may be under way
            # once there are two more. Before that, what was found is damage.
            if _newest(fd).number <= newest.number + 1:
                return Verdict(damage)
        except layout.Unreadable as error:
            # A writer may be in the middle of a meta page; only a repeated failure is damage.
            damage = {ALL_TABLES: str(error)}
    # Busy writers overtook every check: they checked it when they opened it.
    return Verdict({} if is_shared() and ALL_TABLES not in damage else damage)


def _note_checked(directory: Path) -> None:
    from mulligan.journal.lmdb import shared_check

    shared_check.note(directory)


def _is_trusted(
    fd: int,
    directory: Path,
    mark: clean_close.Mark | None,
    found: clean_close.Look,
    newest: layout.Commit,
    *,
    shared: bool,
) -> bool:
    # A truncated file would crash LMDB even if another process has it open.
    if found.size < (newest.last_page + 1) * newest.page_size:
        return False
    if shared:
        from mulligan.journal.lmdb import shared_check  # most commands have the journal alone

        return not shared_check.is_due(directory, found.size)
    return clean_close.is_clean(mark, found, newest.number, fd)


def _newest(fd: int) -> layout.Commit:
    """Return the newest commit; raises ``Unreadable`` unless the other one is its predecessor.

    LMDB uses the one with the higher number, so a flipped bit there would silently lose commits.
    """
    newest, before = layout.commits(fd)
    if newest.number - before.number not in ((1,) if newest.number else (0,)):
        raise layout.Unreadable(
            f"its newest commits have the numbers {newest.number} and {before.number}; "
            "one of them is wrong"
        )
    return newest


def check_commit(directory: Path, number: int) -> dict[str, str] | None:
    """Check the tables as of a commit that a reader holds; None if it is no longer on record.

    Only the two newest commits are on record, and a writer may have made two more.
    """
    from mulligan.journal.lmdb import pages

    fd = os.open(directory / DATA, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kept = [commit for commit in layout.commits(fd) if commit.number == number]
        return pages.check(fd, kept[0]) if kept else None
    except layout.Unreadable as error:
        return {ALL_TABLES: str(error)}
    finally:
        os.close(fd)


def commits_lost(directory: Path, number: int) -> int:
    """Return how many known commits came after this one, the newest of the file.

    They are missing from a file that was restored from an older copy.
    """
    mark = clean_close.read(directory)
    return max(0, mark.highest - number) if mark else 0
