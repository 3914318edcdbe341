"""Which session of a coding agent is meant: by its name, by the agent's id of it, or by place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.coding.agent_session import AgentSession, agent_session
from mulligan.coding.rewind.run import rewound_from
from mulligan.coding.rewind.target import INSTALL_HINT, is_prompt_number
from mulligan.default_session import listing
from mulligan.errors import CannotRewind
from mulligan.session.names import session_name
from mulligan.timeline.undo import first_restore

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.store import Store

FILES = "`mulligan undo -s NAME` undoes one of files alone."
SHORTEST = 4
"""How many characters of an id are enough to name a session."""


def find_agent_session(store: Store, named: str | None, root: Path | None) -> Session:
    """Return the session that is meant: a name, an id or the beginning of one.

    Without a name, it is the newest one with a prompt of an agent in ``root`` or below it, or else
    anywhere. One whose rewind was undone, or failed, does not count, nor does a fork that no agent
    writes to.
    """
    known = _known(store)
    if named is not None:
        return _named(named, known)
    if not known:
        raise CannotRewind(
            "No conversation of a coding agent is recorded here.",
            hint=INSTALL_HINT,
        )
    return _newest(known, root)


def newest_agent_session(store: Store, root: Path | None) -> Session | None:
    """Return the session that is meant without a name, as above; None if there is none."""
    known = _known(store)
    return _newest(known, root) if known else None


def _known(store: Store) -> list[tuple[Session, AgentSession]]:
    return [
        (session, agent)
        for session in store.sessions()
        if (agent := agent_session(session)) is not None
    ]


def _is_own(session: Session, agent: AgentSession) -> bool:
    """Whether hooks of the agent write to a session.

    They do not write to a fork, or to what a rewind that failed has left: these have the
    conversation of another session, and its id.
    """
    return session.name == session_name(f"{agent.agent}-{agent.id}")


def _newest(known: list[tuple[Session, AgentSession]], root: Path | None) -> Session:
    known = [one for one in known if _is_own(*one)] or known
    here = [one for one in known if root and Path(one[1].cwd).is_relative_to(root)] or known
    used = [session for session, agent in here if agent.prompts and not _is_left(session, agent)]
    return max(used or [session for session, _ in here], key=lambda session: session.updated)


def find_rewound(store: Store, named: str | None) -> Session:
    """Return the session that a rewind made and that is not undone.

    That is the one that is named, or the newest one, of those made from the named one.
    """
    wanted = None if named is None else find_agent_session(store, named, None)
    if wanted is not None and rewound_from(wanted) is not None:
        return wanted
    made = [
        one
        for one in store.sessions()
        if (origin := rewound_from(one)) is not None
        and not origin.undone
        and (wanted is None or origin.left == wanted.name)
    ]
    if not made:
        of = "" if wanted is None else f" of {wanted.name!r}"
        raise CannotRewind(f"There is no rewind{of} to undo.", hint=f"Nothing was changed. {FILES}")
    newest = max(made, key=lambda one: one.created)
    if wanted is None:
        _check_last(store, newest)
    return newest


def _check_last(store: Store, made: Session) -> None:
    """Refuse if files were restored after a rewind of the conversation alone: that came last."""
    origin = rewound_from(made)
    if origin is None or origin.restore is not None or origin.since is not None:
        return
    left = store.session(origin.left, create=False)
    later = (one for one in left.events(since=origin.seq) if one.time > made.created)
    if first_restore(later) is not None:
        raise CannotRewind(
            f"Files of {left.name!r} were restored after the last rewind of a conversation.",
            hint=f"Nothing was changed. `mulligan undo -s {left.name}` undoes that; `mulligan "
            f"rewind {made.name} --undo` the rewind of the conversation.",
        )


def _is_left(session: Session, agent: AgentSession) -> bool:
    """Whether a rewind was undone, or failed: nothing was continued in its session, or can be."""
    origin = rewound_from(session)
    if origin is None:
        return False
    is_gone = agent.transcript is not None and not os.path.exists(agent.transcript)
    return origin.undone or (is_gone and agent.offset == origin.length)


def _named(named: str, known: list[tuple[Session, AgentSession]]) -> Session:
    names = [
        (session, [session.name, *([agent.id] if _is_own(session, agent) else [])])
        for session, agent in known
    ]
    exact = [session for session, own in names if named in own]
    if exact:
        return exact[0]
    found = [
        session
        for session, own in names
        if len(named) >= SHORTEST and any(name.startswith(named) for name in own)
    ]
    if len(found) == 1:
        return found[0]
    there = [session.name for session in found] or [session.name for session, _ in known]
    if not there:
        raise CannotRewind(f"There is no conversation {named!r}, nor any other.", hint=INSTALL_HINT)
    said = "Several conversations begin with" if found else "There is no conversation"
    hint = "Nothing was changed. Name one of them."
    if not found and is_prompt_number(named):
        hint = f"Nothing was changed. `mulligan rewind --to {named}` goes back to before a prompt."
    raise CannotRewind(f"{said} {named!r}; there are:{listing(there)}", hint=hint)
