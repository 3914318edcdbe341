"""Finding sessions by name within one snapshot of the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.errors import UnknownSession

if TYPE_CHECKING:
    from mulligan.journal.protocol import View
    from mulligan.model import SessionRecord


def known_session(view: View, name: str) -> SessionRecord:
    """Return the session of a name; raises ``UnknownSession``.

    There is no fallback: the same seq in another session is another point in time.
    """
    record = view.find(name)
    if record is None:
        raise UnknownSession(f"There is no session {name!r}.")
    return record


def check_exists(view: View, record: SessionRecord) -> None:
    """Raise ``UnknownSession`` if a session was deleted, also if another one has its name since."""
    if known_session(view, record.name).number != record.number:
        raise UnknownSession(f"The session {record.name!r} was replaced by another one.")
