"""Mulligan: checkpoint and recovery for long-running AI agents.

A store holds sessions; a session is one durable timeline. The layout, from the top::

    cli/        the command line
    store.py    Store: the open handle, what mulligan.open() returns
    session/    Session: state, checkpoints, restore, undo, fork, leases
    upkeep/     verify
    timeline/   points, checkpoint records, diff, restores as events
    state/      the document: values, persistent containers, events, keyframes
    engine.py   joins journal and objects, and owns the order of writes
    journal/    events, checkpoints, leases and the object index, in LMDB or in memory
    objects/    content-addressed packs, or memory
    codec.py    canonical encoding        model.py   the nouns
    faults.py   the named crash points    errors.py  every error, in one tree

Imports point down this list; ``tests/unit/test_layers.py`` holds it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from mulligan import errors, layout
from mulligan.clock import Clock, SystemClock
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.faults import Reach, pass_by
from mulligan.journal.keyed import KeyedJournal, check_identity, claim
from mulligan.journal.lmdb import LmdbTables
from mulligan.journal.memory import MemoryTables
from mulligan.model import (
    Checkpoint,
    Cost,
    Digest,
    Environment,
    Event,
    Lease,
    Location,
    Point,
    Problem,
    Report,
    Restored,
)
from mulligan.objects.memory import MemoryObjects
from mulligan.objects.packs import PackObjects
from mulligan.session import Session
from mulligan.session.surroundings import Surroundings
from mulligan.state.document import MISSING
from mulligan.store import Store
from mulligan.timeline.diff import Diff, Difference

__all__ = [
    "MISSING",
    "Checkpoint",
    "Cost",
    "Diff",
    "Difference",
    "Digest",
    "Environment",
    "Event",
    "Lease",
    "MulliganError",
    "Point",
    "Problem",
    "Report",
    "Restored",
    "Session",
    "Store",
    "errors",
    "open",
]

MEMORY = "memory:"


def open(
    path: str | os.PathLike[str],
    create: bool = True,
    *,
    keep_env: Iterable[str] = (),
    clock: Clock | None = None,
    reach: Reach = pass_by,
) -> Store:
    """Open the store in a directory (``DIR/.mulligan``), made if missing unless told otherwise.

    ``"memory:"`` gives a store that lives and dies with the handle. A store in a directory that
    cannot be written is opened for reading. ``keep_env`` names further environment variables
    that checkpoints record; whatever looks like a secret is never stored. ``clock`` and
    ``reach`` are for tests.
    """
    clock = clock or SystemClock()
    if str(path) == MEMORY:
        engine = Engine(
            KeyedJournal(MemoryTables(reach=reach), reach=reach), MemoryObjects(), clock
        )
        return Store(engine, Surroundings(Path.cwd(), os.environ, keep_env))
    directory = layout.locate(Path(path).absolute())
    format_ = _format(directory, create, reach)
    engine = _engine(directory, bytes.fromhex(format_.id), clock, reach)
    return Store(engine, Surroundings(directory.parent, os.environ, keep_env))


def _format(directory: Path, create: bool, reach: Reach) -> layout.Format:
    if create and not (directory / layout.FORMAT).is_file():
        return layout.create(directory, _new_journal, reach)
    return layout.read_format(directory)


def _new_journal(directory: Path) -> bytes:
    """Make the journal of a new store and return the id that it carries."""
    tables = LmdbTables(directory)
    try:
        return claim(tables, secrets.token_bytes(16))
    finally:
        tables.close()


def _engine(directory: Path, identity: bytes, clock: Clock, reach: Reach) -> Engine:
    read_only = not os.access(directory, os.W_OK)
    tables = LmdbTables(directory / "journal", read_only=read_only, reach=reach)
    try:
        check_identity(tables, identity)
    except BaseException:
        tables.close()
        raise
    journal = KeyedJournal(tables, reach=reach)

    def locate(digest: Digest) -> Location | None:
        with journal.read() as view:
            return view.locate(digest)

    def committed(pack: int) -> int:
        with journal.read() as view:
            return view.pack_length(pack)

    objects = PackObjects(
        directory / "packs", identity, locate, committed, reach=reach, read_only=read_only
    )
    return Engine(journal, objects, clock, directory)
