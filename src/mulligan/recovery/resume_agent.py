"""Resuming one agent of a team: which parts are its own, and what others used since.

The others continue as they are. They may already have used what the agent sent or finished after
the point. That cannot be undone, so it is listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from mulligan.document.fold import RESTORED
from mulligan.errors import PathNotFound, UnknownPoint
from mulligan.model import Event, Point, Task
from mulligan.session import Session
from mulligan.session.components import AGENTS, MAILBOX, TASKS
from mulligan.session.parts.tasks import DONE

Record = dict[str, Any]


class Consumed(msgspec.Struct, frozen=True):
    """Something an agent produced after a point that another one has used since.

    ``what`` is mail or task, ``how`` is what the other agent did, ``seq`` the event of it.
    """

    what: str
    id: str
    by: str
    how: str
    seq: int


def check_agent(session: Session, agent: str, point: Point) -> None:
    """Raise when there is no such agent, or the point is not on this timeline."""
    known = {*_mapping(session.state.get(AGENTS)), *_mapping(session.state.at(point).get(AGENTS))}
    if agent not in known:
        names = ", ".join(sorted(known)) or "none"
        raise PathNotFound(
            f"There is no agent {agent!r} in session {session.name!r}; there are: {names}.",
            hint="`mulligan status` lists the agents.",
        )
    if point.session != session.name:
        raise UnknownPoint(
            f"#{point.seq} of {point.session!r} is not on the timeline of {session.name!r}.",
            hint="One agent can only be brought back from its own session.",
        )


def own_mailbox(session: Session, agent: str, point: Point) -> Record | None:
    """Return the mailbox as it was at the point, with what was sent to it since.

    So the agent receives again what it had not processed then, and nothing is lost. None if it
    was never sent anything.
    """
    now = _mapping(session.state.get((MAILBOX, agent)))
    if not now:
        return None
    then = _mapping(session.state.at(point).get((MAILBOX, agent)))
    sent = _sent_to(agent, session.events(since=point))
    inbox = {**_mapping(then.get("inbox")), **_mapping(now.get("inbox")), **sent}
    return {
        "inbox": {name: _undelivered(record) for name, record in inbox.items()},
        "done": _mapping(then.get("done")),
        "position": then.get("position", 0),
        "count": now.get("count", 0),
    }


def with_new_mail(mailbox: Record, now: Record) -> Record:
    """Return the result of ``own_mailbox`` with the messages that arrived meanwhile."""
    new = {name: _undelivered(record) for name, record in _mapping(now.get("inbox")).items()}
    inbox = {**mailbox["inbox"], **new}
    return {**mailbox, "inbox": inbox, "count": now.get("count", mailbox["count"])}


def consumed(session: Session, agent: str, point: Point) -> list[Consumed]:
    """Return what an agent produced after a point and others have used."""
    tasks = {task.id: task for task in session.tasks}
    sent: set[tuple[str, str]] = set()
    added: set[str] = set()
    done: set[str] = set()
    found: list[Consumed] = []
    for event in session.events(since=point):
        payload = event.payload
        if event.actor == agent:
            if event.kind == "mail.sent":
                sent.add((payload["to"], payload["message"]))
            elif event.kind == "task.added":
                added.update(payload["tasks"])
            elif event.kind in ("task.completed", "task.skipped"):
                done.update(_done_with(event))
        elif event.kind in ("mail.received", "mail.acked"):
            if (event.actor, payload["message"]) in sent:
                found.append(_mail(event))
        elif event.kind == "task.claimed":
            if payload["task"] in added:
                found.append(_taken(event))
            before = done & _before(tasks, payload["task"])
            found += [_built_on(task, event) for task in sorted(before)]
    return _newest(found)


def _sent_to(agent: str, events: Iterable[Event]) -> dict[str, Record]:
    """Return the messages that were sent to an agent and that no restore has reverted since."""
    found: dict[str, Record] = {}
    mail = [event for event in events if _is_sent_to(agent, event) or _goes_back(agent, event)]
    until = mail[-1].seq if mail else 0
    for event in reversed(mail):
        if event.seq > until:
            continue  # a restore went to before it
        if event.kind == RESTORED:
            until = event.payload["seq"]
            continue
        for name, record in _messages(agent, event):
            found.setdefault(name, record)
    return found


def _is_sent_to(agent: str, event: Event) -> bool:
    return event.kind == "mail.sent" and event.payload.get("to") == agent


def _goes_back(agent: str, event: Event) -> bool:
    """Whether an event brings back the whole mailbox of an agent as it was."""
    if event.kind != RESTORED:
        return False
    only, place = event.payload["only"], [MAILBOX, agent]
    return only is None or any(path == place[: len(path)] for path in only)


def _messages(agent: str, event: Event) -> Iterable[tuple[str, Record]]:
    place = [MAILBOX, agent, "inbox", event.payload["message"]]
    for path, *value in event.payload.get("changes", ()):
        if path == place and value:
            yield event.payload["message"], value[0]


def _undelivered(record: Record) -> Record:
    return {key: value for key, value in record.items() if key != "delivered"}


def _before(tasks: dict[str, Task], name: str) -> set[str]:
    """Return the tasks that a task and its parents had to wait for."""
    before: set[str] = set()
    task = tasks.get(name)
    while task is not None:
        before.update(task.after)
        task = tasks.get(task.parent) if task.parent else None
    return before


def _done_with(event: Event) -> Iterable[str]:
    """Yield the task that an event ended, and its parents that ended with it."""
    for path, *value in event.payload.get("changes", ()):
        if path[0] == TASKS and path[2:] == ["status"] and value[0] in DONE:
            yield path[1]


def _taken(event: Event) -> Consumed:
    return Consumed("task", event.payload["task"], event.actor, "claimed", event.seq)


def _mail(event: Event) -> Consumed:
    how = event.kind.removeprefix("mail.")
    return Consumed("mail", event.payload["message"], event.actor, how, event.seq)


def _built_on(task: str, event: Event) -> Consumed:
    return Consumed("task", task, event.actor, f"claimed {event.payload['task']}", event.seq)


def _newest(found: list[Consumed]) -> list[Consumed]:
    """Return each item once per agent that used it, with its last use."""
    latest = {(one.what, one.id, one.by): one for one in found}
    return sorted(latest.values(), key=lambda one: one.seq)


def _mapping(value: Any) -> Record:
    return value if isinstance(value, dict) else {}
