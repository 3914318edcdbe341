"""The store and the sessions of the directory that the server works for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mulligan.default_session import DEFAULT_SESSION, choose_session
from mulligan.errors import StoreGone, UnknownSession
from mulligan.locate.find import Found, find_in, finding_text, nearest
from mulligan.session_directory import Standing, workspace_of

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.store import Store

ACTOR = "mcp"
"""The actor of what tools write."""

MAX_OPEN = 4
"""How many sessions stay open; each may hold an index of all files."""


class Settings(msgspec.Struct, frozen=True):
    """How the server was started: where, and what was named.

    ``state`` is the directory of stores outside their projects, ``conversation`` the session that
    hooks of the client write to, if it has any; ``tell`` gets sentences for the log.
    """

    here: Path
    state: Path
    store: str | None = None
    session: str | None = None
    conversation: str | None = None
    tell: Callable[[str], None] = lambda said: None


class Project:
    """Opens the store when it is first needed, and again after it was replaced.

    One thread uses it at a time.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.current = settings.conversation
        """The session of the conversation; a hook names another one after `/clear`."""
        self._store: Store | None = None
        self._standing: Standing | None = None
        self._sessions: dict[str, Session] = {}
        self._directories: dict[str, Path | None] = {}

    def store(self) -> Store:
        """Return the open store."""
        if self._store is not None:
            try:
                self._store.check_present()
            except StoreGone:
                self.close()
        if self._store is None:
            self._store = self._opened()
        return self._store

    def session(self, name: str | None = None, *, create: bool = False) -> Session:
        """Return a session with its files; the default one without a name."""
        store = self.store()
        chosen = name or self.default(store, create=create)
        known = self._sessions.pop(chosen, None)
        if known is not None:
            # Another process may have deleted it, and may have made another one of that name.
            if known.internal.is_present():
                self._sessions[chosen] = known
                return known
            known.close()
        while len(self._sessions) >= MAX_OPEN:
            self._sessions.pop(next(iter(self._sessions))).close()
        opened = self._with_files(store, chosen, create=create and name is None)
        self._sessions[chosen] = opened
        return opened

    def directory(self, session: Session) -> Path | None:
        """Return where the files of an open session are; None if it has none."""
        return self._directories.get(session.name)

    def default(self, store: Store, *, create: bool = False) -> str:
        """Return the session that a call without a name means.

        That is the named one, that of the conversation, that of the directory, ``main``, or the
        one that was written last.
        """
        pointer = self._standing.pointer if self._standing else None
        # Without hooks, nothing is recorded of the conversation, and there is no such session.
        if self.current and any(one.name == self.current for one in store.sessions()):
            return self.settings.session or self.current
        known = self.settings.session or (pointer and pointer.session)
        if known:
            return known
        try:
            return choose_session(store, create=create)
        except UnknownSession:
            sessions = store.sessions()
            if not sessions:
                raise
            return max(sessions, key=lambda session: session.updated).name

    def close(self) -> None:
        """Close sessions and store. Idempotent."""
        sessions, self._sessions, self._directories = self._sessions, {}, {}
        store, self._store = self._store, None
        for session in sessions.values():
            session.close()
        if store is not None:
            store.close()

    def _opened(self) -> Store:
        import mulligan

        here, state, named = self.settings.here, self.settings.state, self.settings.store
        place = Path(named or here)
        found = find_in(place, state, write=True) if named else nearest(here, state)
        if found is not None:
            self._tell(found)
        pointer = found.pointer if found else None
        self._standing = Standing(here, state, pointer, bool(named), self._tell)
        return mulligan.open(found.store if found else place, create=False)

    def _with_files(self, store: Store, name: str, *, create: bool) -> Session:
        bare = store.session(name, create=create and name == DEFAULT_SESSION, actor=ACTOR)
        root = None
        if self._standing is not None:
            root = workspace_of(store, bare, self._standing, force=False)
        self._directories[name] = root
        if root is None:
            return bare
        return store.session(name, create=False, actor=ACTOR, workspace=root)

    def _tell(self, found: Found) -> None:
        said = finding_text(found)
        if said is not None:
            self.settings.tell(said)
