"""Forks with a directory of their own.

The files come first, under a temporary name, and are durable with their pointer before one journal
transaction makes the session; only then they move into place (``placing``).
"""

from __future__ import annotations

from pathlib import Path

from mulligan.engine import Engine
from mulligan.errors import RestoreIncomplete, SessionExists
from mulligan.failpoints import Failpoint
from mulligan.locate.pointer import write_pointer
from mulligan.model import Point, SessionRecord
from mulligan.session.write.files import Files
from mulligan.session.write.fork import free_name, make_fork, refuse_taken
from mulligan.session.write.fork_directory import (
    ForkNote,
    end_interrupted,
    finish_directory,
    make_draft,
    move_into_place,
    new_note,
    noted,
)
from mulligan.workspace.entries import Directory
from mulligan.workspace.restore.fileops import reason
from mulligan.workspace.workspace import Workspace


class Forker:
    """Makes forks of one session's timeline with its files."""

    def __init__(self, engine: Engine, files: Files, actor: str) -> None:
        self._engine = engine
        self._files = files
        self._actor = actor

    def fork_into(
        self, point: Point, name: str | None, to: Path, *, pointer: bool
    ) -> tuple[SessionRecord, Workspace]:
        """Make a session with a directory of its own; either both are there afterwards or none.

        With ``pointer`` commands in the directory find the store and the session.
        """
        end_interrupted(self._engine)
        refuse_taken(self._engine, name)
        tree = self._files.tree_at(point)
        target = self._files.place_for_fork(to)
        contents = self._files.contents(tree, None)
        entry = next((entry for place, entry in contents.directories if place.above is None), None)
        with noted(self._engine, new_note(target, entry)) as note:
            make_draft(self._engine, note)
            self._files.fill(note.draft, contents, to)
            record = self._named(point, name, note, entry, pointer)
            try:
                move_into_place(self._engine, note)
            except OSError as error:
                raise _unplaced(record.name, note, error) from error
        return record, self._files.elsewhere(target)

    def _named(
        self, point: Point, name: str | None, note: ForkNote, entry: Directory | None, pointer: bool
    ) -> SessionRecord:
        """Complete the directory for a name that is free, and make the session."""
        while True:
            chosen = name or self._free_name(point.session)
            note.draft.chmod(0o700)
            if pointer and self._engine.directory is not None:
                of = None if note.is_new else note.place
                store, failpoint = str(self._engine.directory), self._engine.failpoint
                write_pointer(note.draft, store, chosen, failpoint, of=of)
            finish_directory(note, entry)
            self._engine.failpoint(Failpoint.FORK_WRITTEN)
            if note.is_new:
                # Files take their time: another fork may be there by now, and none could be moved.
                self._files.place_for_fork(note.place)
            try:
                return make_fork(self._engine, point, chosen, self._actor, note.place, note.token)
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
        f"{note.draft}.",
    )
