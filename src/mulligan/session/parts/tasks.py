"""Tasks: a tree of subtasks with dependencies, claimed by one agent at a time.

Every decision is made on the newest document inside the write transaction, so two agents never
claim the same task, and a resumed session continues at the first one that is not done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from mulligan.decoding import ready
from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE, event_change
from mulligan.document.values import freeze
from mulligan.errors import (
    ApprovalPending,
    Conflict,
    EffectInDoubt,
    InvalidTask,
    UnknownTask,
)
from mulligan.model import Task
from mulligan.session import arguments
from mulligan.session.components import AGENTS, TASKS
from mulligan.session.names import check_name
from mulligan.session.occurrences import Scope

if TYPE_CHECKING:
    from mulligan.session.write.decisions import Changes
    from mulligan.session.write.writer import Writer

PENDING: Final = "pending"
IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
DONE = (COMPLETED, SKIPPED)

QUARANTINED = "quarantined: "
"""The prefix of a quarantined task's error: the supervisor gave up on it."""

_ONE = "Nothing was written. Put one into a list: [...]."

_WORDS = r"[^\W_]+"
_MAX_SLUG = 60
_FIELDS = frozenset(Task.__struct_fields__) - {"id"}

Record = Mapping[str, Any]
"""A task as the document holds it."""


class Tasks:
    """The tasks of a session, as one agent sees and changes them."""

    def __init__(self, writer: Writer, scope: Scope | None = None) -> None:
        self._writer = writer
        self._scope = scope or Scope(writer.actor)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks, each after its parent, in the order they were added."""
        document = self._writer.document()
        board = Board(document)
        return iter([_task(document, name, board.records[name]) for name in board.in_order()])

    def __len__(self) -> int:
        return len(Board(self._writer.document()).records)

    def get(self, id: str) -> Task:
        """Return a task; raises ``UnknownTask``."""
        document = self._writer.document()
        return _task(document, id, Board(document).known(id))

    def add(
        self,
        title: str,
        *,
        id: str | None = None,
        parent: str | None = None,
        after: Iterable[str] = (),
        data: Any = None,
    ) -> Task:
        """Add a task and return it; an existing task with this id stays unchanged.

        ``id`` defaults to the words of the title, so adding a plan again at every start is safe.
        ``after`` names the tasks that must be done first, ``parent`` the task it is part of.
        """
        wanted = {"title": title, "id": id, "parent": parent, "after": after, "data": data}
        return self.plan([wanted])[0]

    def plan(self, items: Iterable[str | Mapping[str, Any]]) -> list[Task]:
        """Add several tasks in one transaction: titles, or dicts of the arguments of ``add``."""
        given = arguments.items(items, "A plan is a list of titles or dicts", InvalidTask, _ONE)
        wanted = [_wanted(item) for item in given]

        def decide(work: Changes) -> None:
            board = Board(work.document)
            new = {name: record for name, record in wanted if name not in board.records}
            for order, (name, record) in enumerate(new.items(), board.next_order()):
                board.records[name] = {**record, "order": order}
            board.check(new)
            changes = [[_path(name), board.records[name]] for name in new]
            if new:
                work.add(event_change("task.added", changes, tasks=list(new)))

        self._writer.write(decide)
        return [self.get(name) for name, _ in wanted]

    def next(self) -> Task | None:
        """Return the task that ``claim`` would return, without claiming it."""
        document = self._writer.document()
        board = Board(document)
        name = board.next_for(self._writer.actor)
        return None if name is None else _task(document, name, board.records[name])

    def claim(self, id: str | None = None) -> Task | None:
        """Claim a task to work on: the named one, or the first incomplete one that is ready.

        A task that this agent claimed before a crash comes first. Returns None when nothing is
        ready. A named task that is done, not ready or claimed by another agent raises
        ``Conflict``. The agent's record then names the task.
        """
        # Not inside a batch: the caller would start work on a task that another agent may have
        # claimed by the end of the batch.
        self._writer.check_alone("A claim")
        actor = self._writer.actor

        def decide(work: Changes) -> str | None:
            board = Board(work.document)
            # Chosen inside the decision: of two agents that claim at once, the second run sees the
            # claim of the first and takes the next task.
            name = board.next_for(actor) if id is None else board.claimable(id, actor)
            if name is None:
                return None
            fields = {
                "status": IN_PROGRESS,
                "owner": actor,
                "attempts": board.records[name].get("attempts", 0) + 1,
            }
            changes = _set(name, fields) + _started(work.document, actor, name)
            work.add(event_change("task.claimed", changes, task=name, agent=actor))
            return name

        # Committed before the task is returned: from then on no other agent gets it, and a crash
        # leaves it with this one.
        claimed = self._writer.write(decide)
        if claimed is None:
            return None
        self._scope.claimed(claimed)
        return self.get(claimed)

    @contextmanager
    def working(self, id: str | None = None) -> Iterator[Task | None]:
        """Claim a task for a ``with`` block: completed at its end, failed if it raises.

        A task whose effect waits for approval, or is in doubt, stays claimed.
        """
        task = self.claim(id)
        try:
            yield task
        except (ApprovalPending, EffectInDoubt):
            raise  # it has not failed: the agent goes on with it once the effect is settled
        except Exception as error:
            if task is not None:
                self.fail(task.id, f"{type(error).__name__}: {error}")
            raise
        # The body may have ended the task itself, or another process released it.
        if task is not None and self.get(task.id).status == IN_PROGRESS:
            self.complete(task.id)

    def update(self, id: str, *, progress: float | None = None, note: str | None = None) -> None:
        """Record the progress of a task, from 0 to 1, and the step under way."""
        is_number = isinstance(progress, int | float) and not isinstance(progress, bool)
        if progress is not None and not (is_number and 0 <= progress <= 1):
            raise InvalidTask(f"The progress of {id!r} is between 0 and 1, not {progress!r}.")
        arguments.optional_text(note, "A note")
        given = {"progress": progress, "note": note}
        fields = {key: freeze(value) for key, value in given.items() if value is not None}

        def decide(work: Changes) -> None:
            Board(work.document).mine(id, self._writer.actor)
            if fields:
                work.add(event_change("task.updated", _set(id, fields), task=id))

        self._writer.write(decide)

    def complete(self, id: str, result: Any = None) -> None:
        """Mark a task as completed; a parent completes with the last of its children."""
        self._end(id, "task.completed", {"status": COMPLETED, "result": result, "progress": 1.0})

    def fail(self, id: str, error: str) -> None:
        """Mark a task as failed; ``retry`` makes it pending again."""
        said = arguments.text(error, "An error")
        self._end(id, "task.failed", {"status": FAILED, "error": said})

    def skip(self, id: str, note: str | None = None) -> None:
        """Skip a task; tasks after it no longer wait for it."""
        said = arguments.optional_text(note, "A note")
        self._end(id, "task.skipped", {"status": SKIPPED, "note": said})

    def release(self, id: str, note: str | None = None) -> None:
        """Release a claimed task, whichever agent holds it, so that any agent can claim it."""
        self._again(id, "task.released", (IN_PROGRESS,), arguments.optional_text(note, "A note"))

    def retry(self, id: str) -> None:
        """Make a failed or skipped task pending again, and reset its attempts."""
        self._again(id, "task.retried", (FAILED, SKIPPED), None)

    def _end(self, id: str, kind: str, fields: Mapping[str, Any]) -> None:
        frozen = {key: freeze(value) for key, value in fields.items() if value is not None}

        def decide(work: Changes) -> None:
            board = Board(work.document)
            board.mine(id, self._writer.actor)
            changes = _set(id, frozen)
            for parent in board.done_with(id) if fields["status"] in DONE else ():
                changes += _set(parent, {"status": COMPLETED, "progress": 1.0})
            changes += _ended(work.document, self._writer.actor, id, fields["status"])
            work.add(event_change(kind, changes, task=id, agent=self._writer.actor))

        self._writer.write(decide)
        self._scope.ended(id)

    def _again(self, id: str, kind: str, statuses: tuple[str, ...], note: str | None) -> None:
        def decide(work: Changes) -> None:
            record = Board(work.document).known(id)
            if record["status"] not in statuses:
                raise Conflict(f"Task {id!r} is {record['status']}.")
            fields: dict[str, Any] = {"status": PENDING, "owner": None, "note": note}
            if FAILED in statuses:
                fields |= {"attempts": 0, "crashes": [], "error": None}
            work.add(event_change(kind, _set(id, fields), task=id))

        self._writer.write(decide)
        self._scope.ended(id)


class Board:
    """The tasks of one document, and what can be derived from them."""

    def __init__(self, document: Document) -> None:
        self._document = document

    @cached_property
    def records(self) -> dict[str, Record]:
        """All tasks; loaded only when a single one is not enough."""
        found = self._document.find((*STATE, TASKS))
        resolve = self._document.resolved
        node = {} if found is MISSING else resolve(found)
        entries = nodes.map_items(node, resolve) if nodes.is_map(node) else ()
        resolved = ((name, resolve(value)) for name, value in entries)
        return {name: record for name, record in resolved if _is_task(record)}

    def known(self, id: str) -> Record:
        """Return a task's record; raises ``UnknownTask``."""
        found = self._document.find((*STATE, TASKS, id))
        record: Any = None if found is MISSING else self._document.resolved(found)
        if not _is_task(record):
            some = ", ".join(self.in_order()[:8])
            others = f"; some that are: {some}." if some else ", nor any other."
            raise UnknownTask(f"There is no task {id!r}{others}")
        known: Record = record
        return known

    def next_order(self) -> int:
        """Return an order after all existing tasks."""
        return max((record["order"] for record in self.records.values()), default=-1) + 1

    def in_order(self) -> list[str]:
        """Return the ids, each after its parent."""
        below = self._children()
        ordered: list[str] = []
        pending = below.get(None, [])[::-1]
        while pending:
            name = pending.pop()
            ordered.append(name)
            pending += below.get(name, [])[::-1]
        return ordered

    def next_for(self, actor: str) -> str | None:
        """Return what an agent should work on: its unfinished task, or the first ready one."""
        inner = {record.get("parent") for record in self.records.values()}
        first: tuple[int, str] | None = None
        for name, record in self.records.items():
            status, place = record["status"], (record["order"], name)
            if status == IN_PROGRESS and record.get("owner") == actor:
                return name
            if status != PENDING or name in inner or (first is not None and place > first):
                continue
            if self._is_ready(name):
                first = place
        return None if first is None else first[1]

    def claimable(self, id: str, actor: str) -> str:
        """Return the id if the agent may claim the task; raises ``Conflict``."""
        record = self.known(id)
        if record["status"] == IN_PROGRESS and record.get("owner") == actor:
            return id
        if record["status"] != PENDING:
            by = f" by {record['owner']}" if record.get("owner") else ""
            raise Conflict(f"Task {id!r} is {record['status']}{by}.")
        if not self._is_ready(id):
            missing = ", ".join(self._waiting_for(id))
            raise Conflict(f"Task {id!r} has to wait for {missing}.")
        return id

    def mine(self, id: str, actor: str) -> Record:
        """Return a task that the agent may change; raises ``Conflict``."""
        record = self.known(id)
        if record["status"] not in (PENDING, IN_PROGRESS):
            raise Conflict(f"Task {id!r} is {record['status']} already.")
        if record.get("owner") not in (None, actor):
            raise Conflict(f"Task {id!r} is being worked on by {record['owner']}.")
        return record

    def done_with(self, id: str) -> list[str]:
        """Return the parents that are complete once this task is done."""
        ended, done = id, []
        if self.known(id).get("parent") is None:
            return []
        below = self._children()
        while (parent := self._parent(ended)) is not None:
            others = [name for name in below[parent] if name != ended]
            if any(self.records[name]["status"] not in DONE for name in others):
                break
            if self.records[parent]["status"] not in (PENDING, IN_PROGRESS):
                break
            done.append(parent)
            ended = parent
        return done

    def check(self, names: Iterable[str]) -> None:
        """Raise ``InvalidTask`` if new tasks depend on missing tasks, or on themselves."""
        for name in names:
            record = self.records[name]
            for other in (*record["after"], *([record["parent"]] if "parent" in record else ())):
                if other not in self.records:
                    raise InvalidTask(f"Task {name!r} depends on {other!r}, which does not exist.")
            if self._leads_back(name):
                raise InvalidTask(f"Task {name!r} would have to wait for itself.")

    def _leads_back(self, name: str) -> bool:
        seen: set[str] = set()
        pending = self._before(name)
        while pending:
            other = pending.pop()
            if other == name:
                return True
            if other not in seen:
                seen.add(other)
                pending += self._before(other)
        return False

    def _before(self, name: str) -> list[str]:
        parent = self._parent(name)
        known = [other for other in self.records[name]["after"] if other in self.records]
        return [*known, *([] if parent is None else [parent])]

    def _parent(self, name: str) -> str | None:
        """Return the parent of a task, unless it was removed from the state."""
        parent = self.records[name].get("parent")
        return parent if parent in self.records else None

    def _is_ready(self, name: str) -> bool:
        return not self._waiting_for(name)

    def _waiting_for(self, name: str | None) -> list[str]:
        """Return the unfinished tasks that a task, or one of its parents, depends on."""
        waiting: list[str] = []
        while name is not None:
            before = (o for o in self.records[name]["after"] if o in self.records)
            waiting += [other for other in before if self.records[other]["status"] not in DONE]
            name = self._parent(name)
        return waiting

    def _children(self) -> dict[str | None, list[str]]:
        below: dict[str | None, list[str]] = {}
        for name in sorted(self.records, key=lambda name: (self.records[name]["order"], name)):
            below.setdefault(self._parent(name), []).append(name)
        return below


def _is_task(record: Any) -> bool:
    """Whether a value under ``tasks`` is a task; an older store may hold anything there."""
    return isinstance(record, dict) and {"title", "status", "order", "after"} <= record.keys()


def _task(document: Document, id: str, record: Record) -> Task:
    plain = document.plain(record)
    return msgspec.convert({"id": id, **{k: plain[k] for k in _FIELDS & plain.keys()}}, ready(Task))


def _wanted(item: str | Mapping[str, Any]) -> tuple[str, Record]:
    if not isinstance(item, str | Mapping):
        raise InvalidTask(f"A task is a title or a dict, not {item!r}.")
    given = {"title": item} if isinstance(item, str) else dict(item)
    title, name = given.get("title"), given.get("id")
    if not isinstance(title, str) or not title.strip():
        raise InvalidTask(f"A task needs a title, not {title!r}.")
    unknown = given.keys() - {"title", "id", "parent", "after", "data"}
    if unknown:
        raise InvalidTask(f"A task has no {', '.join(sorted(map(str, unknown)))}.")
    after = arguments.items(
        given.get("after") or (),
        f"after= of the task {title!r} is a list of ids",
        InvalidTask,
        _ONE,
    )
    for id in (*after, given.get("parent")):
        arguments.optional_text(id, "The id of a task")
    if len(after) > nodes.FAN:
        raise InvalidTask(
            f"Task {title!r} waits for {len(after)} others; {nodes.FAN} may be named."
        )
    record: dict[str, Any] = {"title": title, "status": PENDING, "after": after}
    record |= {key: given[key] for key in ("parent", "data") if given.get(key) is not None}
    return check_name(name or slug(title), "task id"), freeze(record)


def slug(title: str) -> str:
    """Return the words of a title as an id."""
    words = "-".join(re.findall(_WORDS, title.lower()))
    return words[:_MAX_SLUG].rstrip("-") or "task"


def _path(name: str) -> list[str | int]:
    return [TASKS, name]


def _set(name: str, fields: Mapping[str, Any]) -> list[list[Any]]:
    return [[[*_path(name), key], value] for key, value in fields.items()]


def _started(document: Document, agent: str, id: str) -> list[list[Any]]:
    """Return the changes that put the task into the record of its agent, if it has one."""
    if not _has_record(document, agent):
        return []
    changes: list[list[Any]] = [[[AGENTS, agent, "working_on"], id]]
    if document.find((*STATE, AGENTS, agent, "state")) == "starting":
        changes.append([[AGENTS, agent, "state"], "working"])
    return changes


def _ended(document: Document, agent: str, id: str, status: str) -> list[list[Any]]:
    """Return the changes that record in the agent's record how its last task ended."""
    if not _has_record(document, agent):
        return []
    changes: list[list[Any]] = [[[AGENTS, agent, "last_action"], f"{status} {id}"]]
    if document.find((*STATE, AGENTS, agent, "working_on")) == id:
        changes.append([[AGENTS, agent, "working_on"], None])
    return changes


def _has_record(document: Document, agent: str) -> bool:
    found = document.find((*STATE, AGENTS, agent))
    return found is not MISSING and nodes.is_map(document.resolved(found))


def quarantined(tasks: Iterable[Task]) -> list[str]:
    """Return the ids of the tasks in quarantine; a retry takes a task out of it."""
    failed = (task for task in tasks if task.status == FAILED)
    return [task.id for task in failed if (task.error or "").startswith(QUARANTINED)]


def health(tasks: Iterable[Task]) -> Literal["healthy", "degraded", "unhealthy"]:
    """Return ``healthy``, ``degraded`` above 20 % failed tasks, ``unhealthy`` above 50 %.

    Only tasks that ended count. With a task in quarantine it is ``degraded`` at least.
    """
    known = list(tasks)
    inner = {task.parent for task in known}
    statuses = [task.status for task in known if task.id not in inner]
    failed, ended = statuses.count(FAILED), sum(s in (COMPLETED, FAILED) for s in statuses)
    share = failed / ended if ended else 0.0
    if share > 0.5:
        return "unhealthy"
    return "degraded" if share > 0.2 or quarantined(known) else "healthy"
