"""Forks with a directory of their own.

The files come first, under a temporary name, and are durable with their pointer before one journal
transaction makes the session; only then are they moved into place.
"""

from __future__ import annotations

from pathlib import Path

from mulligan.engine import Engine
from mulligan.errors import RestoreIncomplete, SessionExists
from mulligan.failpoints import Failpoint
from mulligan.locate.pointer import write_pointer
from mulligan.model import Point, SessionRecord
from mulligan.session.write.fork import free_name, make_fork, refuse_taken
from mulligan.session.write.fork_directory import (
    ForkNote,
    end_interrupted,
    finish_directory,
    make_staging,
    move_into_place,
    new_note,
    noted,
)
from mulligan.session.write.stored_files import StoredFiles
from mulligan.session.write.writer import Writer
from mulligan.workspace.entries import Directory
from mulligan.workspace.restore.fileops import reason
from mulligan.workspace.workspace import Workspace


class Forker:
    """Makes forks of one session's timeline with its files."""

    def __init__(self, engine: Engine, writer: Writer, files: StoredFiles) -> None:
        self._engine = engine
        self._writer = writer
        self._files = files

    def fork_into(
        self, point: Point, name: str | None, to: Path, *, pointer: bool, key: str | None = None
    ) -> tuple[SessionRecord, Workspace]:
        """Make a session with its own directory; both exist afterwards, or neither.

        With ``pointer`` commands in the directory find the store and the session.
        """
        # First: the leftovers of a killed fork may be in the way.
        end_interrupted(self._engine)
        # Checked early, to avoid writing files for nothing; the transaction checks again.
        refuse_taken(self._engine, name, key)
        tree = self._files.tree_at(point)
        target = self._files.place_for_fork(to)
        contents = self._files.contents(tree, None)
        entry = next((entry for place, entry in contents.directories if place.above is None), None)
        with noted(self._engine, new_note(target, entry)) as note:
            make_staging(self._engine, note)
            self._files.fill(note.staging, contents, to)
            record = self._named(point, name, note, entry, pointer, key)
            try:
                move_into_place(self._engine, note)
            except OSError as error:
                raise _unplaced(record.name, note, error) from error
        return record, self._files.elsewhere(target)

    def _named(
        self,
        point: Point,
        name: str | None,
        note: ForkNote,
        entry: Directory | None,
        pointer: bool,
        key: str | None,
    ) -> SessionRecord:
        """Complete the directory for a free name, and create the session."""
        # In a loop: another process may take a chosen name before the transaction. A given name is
        # not retried, because its loss is an error.
        while True:
            chosen = name or self._free_name(point.session)
            # Each round: the directory has the mode of the tree after the first one, which may
            # forbid writing.
            note.staging.chmod(0o700)
            if pointer and self._engine.directory is not None:
                of = None if note.is_new else note.place
                store, failpoint = str(self._engine.directory), self._engine.failpoint
                write_pointer(note.staging, store, chosen, failpoint, of=of)
            # Durable before the session exists; moving it into place comes after that, and is
            # repeated after a crash.
            finish_directory(note, entry)
            self._engine.failpoint(Failpoint.FORK_WRITTEN)
            if note.is_new:
                # Writing files takes time: another fork may be there by now, and then the move
                # would fail.
                self._files.place_for_fork(note.place)
            try:
                return make_fork(
                    self._engine,
                    point,
                    chosen,
                    self._writer.actor,
                    note.place,
                    note.token,
                    by=self._writer,
                    key=key,
                )
            except SessionExists:
                if name is not None:
                    raise
                # The name was chosen outside the write lock, since the pointer file holds it, and
                # another process took it first: choose the next one.

    def _free_name(self, parent: str) -> str:
        with self._engine.read() as view:
            return free_name(view, parent)


def _unplaced(name: str, note: ForkNote, error: OSError) -> RestoreIncomplete:
    return RestoreIncomplete(
        f"The session {name!r} was made, but its files are not all in {note.place} yet: "
        f"{reason(error)}.",
        hint="The next command that writes to the store moves them; until then they are safe in "
        f"{note.staging}.",
    )
