"""What tools take; a field that is not known is refused, so that a mistyped one is noticed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Point = Annotated[
    str,
    Meta(
        description="A checkpoint's id or the beginning of one, a label, @latest, @latest~2, "
        "@good, #SEQ, or a time such as '10m ago'."
    ),
]
SessionName = Annotated[
    str | None, Meta(description="The session; by default the one of this conversation.")
]
FilePath = Annotated[str, Meta(description="A path from the top of the project.")]
Count = Annotated[int, Meta(ge=1, le=500)]


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The field that every tool takes."""

    session: SessionName = None


class CheckpointInput(Input, frozen=True, kw_only=True):
    """A checkpoint to take."""

    note: Annotated[str | None, Meta(description="Why, in one sentence.")] = None
    label: Annotated[
        str | None, Meta(description="A name for it; one that is in use moves here.")
    ] = None


class StatusInput(Input, frozen=True, kw_only=True):
    """The session to describe; all of them without one."""


class MarkInput(Input, frozen=True, kw_only=True):
    """A verdict on a checkpoint."""

    verdict: Literal["good", "bad"]
    point: Point = "@latest"
    note: Annotated[str | None, Meta(description="How you know.")] = None


class ReadFileInput(Input, frozen=True, kw_only=True):
    """A file as it was at a point."""

    path: FilePath
    point: Point = "@latest"
    offset: Annotated[int, Meta(ge=0, description="The first byte.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000_000, description="How many bytes.")] = 100_000


class LogInput(Input, frozen=True, kw_only=True):
    """How much of the log."""

    count: Count = 20


class DiffInput(Input, frozen=True, kw_only=True):
    """Two points to compare."""

    before: Point = "@latest"
    after: Annotated[str | None, Meta(description="Another point; the present without one.")] = None
    paths: Annotated[
        list[str] | None, Meta(description="Compare only these files or directories.")
    ] = None
    patch: Annotated[bool, Meta(description="Include unified diffs of text files.")] = True


What = Literal["files", "state", "both"]


class PlanInput(Input, frozen=True, kw_only=True):
    """A restore to preview."""

    point: Point
    what: Annotated[
        What,
        Meta(
            description="files: the files of the project. state: the recorded state of the "
            "session, such as tasks and memory. both: all of it."
        ),
    ] = "files"
    paths: Annotated[
        list[str] | None, Meta(description="Only these files or directories, with what=files.")
    ] = None


AcceptLeftBehind = Annotated[
    bool,
    Meta(description="Go back although effects on the outside world cannot be taken back."),
]


class RestoreInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan to apply."""

    plan_id: Annotated[str, Meta(description="The plan_id that plan_restore returned.")]
    accept_left_behind: AcceptLeftBehind = False


class UndoInput(Input, frozen=True, kw_only=True):
    """The last restore is undone."""

    accept_left_behind: AcceptLeftBehind = False


class ForkInput(Input, frozen=True, kw_only=True):
    """A new session that continues from a point."""

    point: Point = "@latest"
    name: Annotated[str | None, Meta(description="Its name; generated without one.")] = None
    directory: Annotated[
        str | None,
        Meta(description="A new or empty directory that gets the files of the point."),
    ] = None


class TasksInput(Input, frozen=True, kw_only=True):
    """The session whose tasks are listed."""


class EffectsInput(Input, frozen=True, kw_only=True):
    """Which effects to list."""

    pending: Annotated[bool, Meta(description="Only those that wait for approval.")] = False
    in_doubt: Annotated[bool, Meta(description="Only those that may have happened.")] = False


class SearchInput(Input, frozen=True, kw_only=True):
    """What to look for: a text, a path, or both."""

    text: Annotated[
        str | None,
        Meta(description="A text in messages, tool calls, notes and other events; any case."),
    ] = None
    path: Annotated[
        str | None, Meta(description="A file or directory: which checkpoints changed it.")
    ] = None
    limit: Count = 20
