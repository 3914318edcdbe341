"""What tools return. Each shape is a part of a view of ``mulligan.views``, field by field."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from mulligan.decoding import ready
from mulligan.views.encoding import jsonable

S = TypeVar("S", bound=msgspec.Struct)


def shaped(view: Any, shape: type[S]) -> S:
    """Return the fields of a view that a shape has; a missing one raises ``ValidationError``."""
    return msgspec.convert(jsonable(view), ready(shape))


class PointOutput(msgspec.Struct, frozen=True):
    """A point: session and sequence number."""

    session: str
    seq: int
    checkpoint_id: str | None = None


class CheckpointOutput(msgspec.Struct, frozen=True):
    """A checkpoint; ``files`` is how many files it holds, None if it holds the state alone."""

    checkpoint_id: str
    timestamp: str
    kind: str
    session: str
    seq: int
    label: str | None
    note: str | None
    actor: str
    verdict: str | None
    files: int | None
    left_out: int | None


class SessionStatus(msgspec.Struct, frozen=True):
    """A session: ``status`` is running, paused, done, failed or interrupted, or None."""

    name: str
    seq: int
    created: str
    updated: str
    status: str | None
    directory: str | None
    checkpoint: CheckpointOutput | None
    parent: PointOutput | None
    tasks: dict[str, int]
    effects: dict[str, int]


class StatusOutput(msgspec.Struct, frozen=True):
    """A store and its sessions; ``current_session`` is used when a call names none."""

    store: str
    directory: str | None
    size_bytes: int
    current_session: str | None
    sessions: list[SessionStatus]


class FileOutput(msgspec.Struct, frozen=True):
    """A stretch of a file; ``encoding`` is utf-8 or base64, ``size`` that of the whole file."""

    path: str
    point: PointOutput
    content: str
    encoding: str
    size: int
    offset: int
    truncated: bool


class LogEntry(msgspec.Struct, frozen=True):
    """A checkpoint, a restore or a fork; the fields of another type are None."""

    type: str
    seq: int
    timestamp: str
    actor: str
    checkpoint_id: str | None = None
    kind: str | None = None
    label: str | None = None
    note: str | None = None
    verdict: str | None = None
    files: int | None = None
    mode: str | None = None
    to: PointOutput | None = None


class LogOutput(msgspec.Struct, frozen=True):
    """The newest entries, newest first; ``more`` if there are earlier ones."""

    session: str
    entries: list[LogEntry]
    more: bool


class FileChangeOutput(msgspec.Struct, frozen=True):
    """A path that differs; ``patch`` is its unified diff, if one was asked for."""

    path: str
    change: str
    kind: str
    old_path: str | None = None
    old_size: int | None = None
    size: int | None = None
    patch: str | None = None


class StateChange(msgspec.Struct, frozen=True):
    """A value of the state that differs; long values are cut."""

    path: str
    change: str
    before: str | None = None
    after: str | None = None


class DiffOutput(msgspec.Struct, frozen=True):
    """What differs; ``truncated`` if there is more than is listed."""

    before: PointOutput
    after: PointOutput
    files: list[FileChangeOutput]
    state: list[StateChange]
    truncated: bool


class PathNote(msgspec.Struct, frozen=True):
    """A path that stays as it is, and why."""

    path: str
    rule: str


class OpenFileOutput(msgspec.Struct, frozen=True):
    """A file that changes while a program has it open."""

    pid: int
    command: str
    path: str
    mode: str


class PlanOutput(msgspec.Struct, frozen=True):
    """What a restore would do; nothing was changed. ``head`` is what it was computed on.

    ``effects_left_behind`` counts effects on the outside world that would stay.
    """

    plan_id: str
    session: str
    head: int
    to: PointOutput
    what: str
    files: list[FileChangeOutput]
    state: list[StateChange]
    left_alone: list[PathNote]
    conflicts: list[str]
    open_files: list[OpenFileOutput]
    effects_left_behind: int
    truncated: bool


class ProblemOutput(msgspec.Struct, frozen=True):
    """Something that could not be restored."""

    what: str
    where: str
    detail: str


class RestoredOutput(msgspec.Struct, frozen=True):
    """A restore that was done; ``safety`` is the checkpoint of what was there before."""

    mode: str
    to: PointOutput
    seq: int
    safety: str
    directory: str | None
    restored_files: int
    problems: list[ProblemOutput]


class ForkOutput(msgspec.Struct, frozen=True):
    """A session that was forked, and the directory of its own, if it got one."""

    session: str
    parent: PointOutput | None
    seq: int
    directory: str | None


class TaskOutput(msgspec.Struct, frozen=True):
    """A task."""

    id: str
    title: str
    status: str
    after: list[str]
    parent: str | None
    owner: str | None
    progress: float | None
    note: str | None
    error: str | None


class TasksOutput(msgspec.Struct, frozen=True):
    """The tasks of a session: all that are to be done, and the last ones that are done."""

    session: str
    tasks: list[TaskOutput]
    truncated: bool


class EffectOutput(msgspec.Struct, frozen=True):
    """An effect on the outside world."""

    id: str
    name: str
    kind: str
    status: str
    is_pending: bool
    agent: str
    at: str | None
    seq: int
    error: str | None


class EffectsOutput(msgspec.Struct, frozen=True):
    """The newest effects of a session, oldest first."""

    session: str
    effects: list[EffectOutput]
    truncated: bool


class Match(msgspec.Struct, frozen=True):
    """An event that has the text, or a checkpoint that changed the path.

    ``checkpoint_id`` is the first checkpoint that holds it, for `read_file` and `plan_restore`.
    """

    seq: int
    timestamp: str
    actor: str
    kind: str
    excerpt: str
    checkpoint_id: str | None = None


class SearchOutput(msgspec.Struct, frozen=True):
    """What was found, newest first; ``complete`` is false if older history was not searched."""

    session: str
    matches: list[Match]
    complete: bool
