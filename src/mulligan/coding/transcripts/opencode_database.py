"""The database in which opencode keeps its conversations, for directories without its plugin.

opencode writes messages and their parts into an SQLite database, as JSON. It is read, never
written: each look is one short read-only transaction. A conversation that has changed is written
out as the plugin writes it, one message with its parts in each line, and is read from there like
that of any other agent.

The layout of the database is opencode's own and may change: one that is not as expected has no
conversations, and the plugin, which asks the program itself, does not depend on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mulligan.coding.settings import opencode_settings
from mulligan.coding.transcripts.opencode_transcript import FOLDER
from mulligan.coding.transcripts.transcript_format import Entry, TranscriptOwner, encode, owner_of
from mulligan.locate.registry import state_directory

if TYPE_CHECKING:
    import sqlite3

Stamp = tuple[int, int, int]
"""By what a conversation is known to have changed: parts, messages, and the newest time."""

RECENT = 20
"""How many conversations of a directory are looked at: those with the latest activity."""

BUSY_MS = 200
"""How long a look waits for the program; the next look comes soon."""

# Subagents have a parent; what they answered is part of the conversation above them.
_SESSIONS = """
SELECT id, directory,
    (SELECT count(*) FROM part WHERE session_id = session.id),
    (SELECT count(*) FROM message WHERE session_id = session.id),
    max(coalesce((SELECT max(time_updated) FROM part WHERE session_id = session.id), 0),
        coalesce((SELECT max(time_updated) FROM message WHERE session_id = session.id), 0))
FROM session
WHERE parent_id IS NULL AND (directory = :root OR substr(directory, 1, length(:below)) = :below)
ORDER BY time_updated DESC LIMIT :recent
"""
_MESSAGES = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
_PARTS = "SELECT id, message_id, data FROM part WHERE session_id = ? ORDER BY id"


class OpenCodeDatabase:
    """The conversations of opencode in a directory, by the files they are written out to."""

    def __init__(self, variables: Mapping[str, str], root: Path) -> None:
        self._variables, self._root = variables, root
        self._place = state_directory(variables) / FOLDER
        self._file = database_file(variables)
        self._looked_at: object = None
        self._owners: dict[Path, TranscriptOwner] = {}
        self._stamps: dict[Path, Stamp] = {}

    def stamps(self) -> Iterator[tuple[Path, Stamp]]:
        """Yield the conversations with their stamps; nothing where the plugin records them."""
        now = [_known(self._file), _known(self._file.with_name(f"{self._file.name}-wal"))]
        if now[0] is None or has_plugin(self._variables, self._root):
            return
        if now != self._looked_at and self._look():
            self._looked_at = now
        yield from self._stamps.items()

    def owner(self, path: Path) -> TranscriptOwner | None:
        """Return whose conversation a file is for; None if none of the database."""
        return self._owners.get(path)

    def write_out(self, path: Path) -> bool:
        """Write a conversation to its file as it is now; False if it cannot be read.

        Atomic, and readable by the user alone.
        """
        owner = self._owners[path]
        entries = self._read(lambda opened: _entries(opened, owner.id))
        if entries is None:
            return False
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(handle, "wb") as file:
            file.write(encode(entries))
        # Not synced: it is a copy of the database, and the lines that count go into the store.
        os.replace(temporary, path)
        return True

    def _look(self) -> bool:
        """Learn which conversations there are; False if the database cannot be read now."""
        root = os.path.realpath(self._root)
        given = {"root": root, "below": root.rstrip("/") + "/", "recent": RECENT}
        rows = self._read(lambda opened: opened.execute(_SESSIONS, given).fetchall())
        for id, cwd, parts, messages, time in rows or ():
            owner = owner_of(id, cwd)
            if owner is not None and all(isinstance(n, int) for n in (parts, messages, time)):
                path = self._place / f"{id}.jsonl"
                self._owners[path], self._stamps[path] = owner, (parts, messages, time)
        return rows is not None

    def _read(self, work: Any) -> Any:
        """Return what a function reads in one transaction; None if that is not possible now."""
        try:
            import sqlite3
        except ImportError:  # a Python that was built without it
            return None
        # A look must not end the program that looks, whatever is in a row: no text, or JSON that is
        # nested too deeply.
        with suppress(sqlite3.Error, OSError, ValueError, TypeError, RecursionError):
            address = f"file:{quote(str(self._file))}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as opened:
                opened.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
                opened.execute("PRAGMA query_only = ON")
                opened.execute("BEGIN")  # messages and parts of one moment
                return work(opened)
        return None


def database_file(variables: Mapping[str, str]) -> Path:
    """Return where the program keeps its conversations."""
    home = Path(variables.get("HOME") or "~").expanduser()
    data = Path(variables.get("XDG_DATA_HOME") or home / ".local/share") / "opencode"
    return data / (variables.get("OPENCODE_DB") or "opencode.db")


def has_plugin(variables: Mapping[str, str], root: Path) -> bool:
    """Whether the plugin records what opencode does in a directory."""
    for file in opencode_settings.files(root, variables):
        with suppress(OSError, ValueError):
            text = file.read_text(encoding="utf-8")
            if opencode_settings.installed({opencode_settings.TEXT: text}):
                return True
    return False


def _entries(opened: sqlite3.Connection, id: str) -> list[Entry]:
    """Return the messages of a session with their parts, as the program's own interface does."""
    parts: dict[str, list[Entry]] = {}
    for part, message, data in opened.execute(_PARTS, (id,)):
        ids = {"id": part, "messageID": message, "sessionID": id}
        parts.setdefault(message, []).append({**_decoded(data), **ids})
    return [
        {
            "info": {**_decoded(data), "id": message, "sessionID": id},
            "parts": parts.get(message, []),
        }
        for message, data in opened.execute(_MESSAGES, (id,))
    ]


def _decoded(data: str) -> Entry:
    """Return a column of JSON; raises ``ValueError`` for anything else."""
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"a row of opencode is no object: {data[:80]!r}")
    return found


def _known(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None
