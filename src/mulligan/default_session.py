"""Which session is meant when none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.errors import UnknownSession

if TYPE_CHECKING:
    from mulligan.store import Store

DEFAULT_SESSION = "main"


def choose_session(store: Store, *, create: bool = False) -> str:
    """Return the default session when none is named and the directory belongs to none.

    That is ``main`` if it is in use or about to be created. While ``main`` is missing, or empty as
    ``mulligan init`` leaves it, the default is the only session in use. So after ``mulligan up`` of
    a workflow with its own session, ``mulligan log`` shows that session.
    """
    sessions = store.sessions()
    names = [session.name for session in sessions]
    used = [session.name for session in sessions if session.head.seq > 1]
    if DEFAULT_SESSION in used or (create and (DEFAULT_SESSION in names or not names)):
        return DEFAULT_SESSION
    if len(used) == 1:
        return used[0]
    if DEFAULT_SESSION in names:
        return DEFAULT_SESSION
    if len(names) == 1:
        return names[0]
    if not names:
        raise UnknownSession(
            "The store has no session yet.", hint=f"`mulligan init` makes {DEFAULT_SESSION!r}."
        )
    raise UnknownSession(
        f"There are several sessions, and none is named {DEFAULT_SESSION!r}:{listing(names)}",
        hint="Choose one with -s NAME, or set MULLIGAN_SESSION.",
    )


def listing(names: list[str]) -> str:
    """Return names as the lines of a message, the first twenty of them."""
    shown = [f"\n  {name}" for name in names[:20]]
    more = f"\n  … and {len(names) - 20} more" if len(names) > 20 else ""
    return "".join(shown) + more
