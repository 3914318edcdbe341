"""Rewinding a coding agent: its files, its conversation, or both, to an earlier point.

The agent's own session is left as it is. Its conversation up to the point becomes a transcript of a
new session, and a fork of the Mulligan session is made for it, under the name that the next hook
looks for. So both branches are recorded, and the new one knows its parent.

The order: the fork, the transcript, the files. Until the transcript is published, nothing of it is
visible to the agent. Files come last: they are what a person sees, and their restore can be undone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from mulligan.coding.agent_session import (
    AGENT_SESSION,
    CONVERSATION,
    SUBAGENTS,
    AgentSession,
    Transcript,
)
from mulligan.coding.rewind.own_restore import (
    find_restore,
    is_interrupted,
    restore_files,
    undo_interrupted,
    undo_restore,
)
from mulligan.coding.rewind.target import Conversation, Target
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.transcript_draft import (
    Draft,
    remove_empty_folder,
    remove_left_drafts,
)
from mulligan.coding.transcripts.transcript_format import (
    AgentFolder,
    Entry,
    Move,
    NewSession,
    Rewritten,
    SideFile,
    encode,
    is_plain_id,
)
from mulligan.decoding import ready
from mulligan.errors import CannotRewind, RestoreBusy
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.model import EffectPlan, Plan, Point, Restored, ToolCall
from mulligan.session.components import AGENTS
from mulligan.session.names import WORKSPACE, session_name
from mulligan.session.write.delete import delete_session

if TYPE_CHECKING:
    from mulligan.session import Session

What = Literal["files", "chat", "both"]

REWOUND = "rewound"
"""The component of the state that says where a rewound session comes from: a ``Rewound``."""


class Rewound(msgspec.Struct, frozen=True):
    """Where a rewound session comes from.

    ``session`` and ``seq`` are the point that was gone back to, ``left`` and ``agent_id`` the
    session that was left, and the agent's id of it. ``since`` is the last event of that before its
    files were restored, ``restore`` the restore; both are None if there was none, and the second
    one if its end was not noted. ``length`` and ``digest`` are those of the transcript as it was
    written, and ``beside`` are the files that were written for it.
    """

    session: str
    seq: int
    left: str
    agent_id: str
    what: What
    length: int = 0
    digest: str = ""
    restore: int | None = None
    undone: bool = False
    beside: list[str] = []
    since: int | None = None

    @property
    def point(self) -> Point:
        """The point that was gone back to."""
        return Point(self.session, self.seq)


class RewindPlan(msgspec.Struct, frozen=True):
    """What a rewind would do, computed without doing it.

    ``transcript`` is where the new one is written, ``entries`` what is in it: both None if the
    conversation is not taken back. An empty one means that nothing had been said then, and no file
    is written. ``closed`` are calls that get a result because they had none. ``files`` is None if
    files are not taken back in place. ``start`` is the directory in which the agent continues.
    ``effects`` are those after the point; see ``undoes_effects``. ``is_live`` says that a process
    of the agent runs. ``in_doubt`` are calls whose end was not recorded: the commands of an agent
    that was killed go on without it.
    """

    session: str
    agent: AgentSession
    what: What
    target: Target
    id: str
    start: Path
    transcript: Path | None = None
    entries: list[Entry] | None = None
    subagents: dict[str, list[Entry]] = {}
    side_files: tuple[SideFile, ...] = ()
    closed: int = 0
    files: Plan | None = None
    fork: Path | None = None
    effects: EffectPlan = EffectPlan()
    is_live: bool = False
    in_doubt: tuple[ToolCall, ...] = ()

    @property
    def point(self) -> Point:
        """The point that is gone back to."""
        return self.target.point

    @property
    def undoes_effects(self) -> bool:
        """Whether effects after the point are undone, as by a restore of everything.

        With files or conversation alone, as with a restore of parts, and with a fork, they stay.
        """
        return self.what == "both" and self.fork is None


class RewindResult(msgspec.Struct, frozen=True):
    """What a rewind did: the new session, if the conversation was taken back, and the restore."""

    plan: RewindPlan
    session: str | None = None
    restored: Restored | None = None


class RewindOptions(msgspec.Struct, frozen=True):
    """How to rewind: what, where the files are, and where a fork of them goes."""

    what: What
    directory: Path | None
    folder: AgentFolder | None
    fork: Path | None = None


def plan_rewind(
    conversation: Conversation, to: str, options: RewindOptions, new_id: Callable[[], str]
) -> RewindPlan:
    """Work out what a rewind would do; nothing is changed."""
    session, agent = conversation.session, conversation.agent
    format, folder = conversation.format, options.folder
    if options.what != "files" and (format is None or folder is None):
        raise CannotRewind(
            f"The transcripts of {agent.agent} are not understood; only its files can be taken "
            "back.",
            hint="Nothing was changed. Add --files.",
        )
    target = conversation.target(to)
    if options.what != "chat":
        _check_files(session, target, options)
    made = RewindPlan(
        session=session.name,
        agent=agent,
        what=options.what,
        target=target,
        id=new_id(),
        start=_present(conversation.started_in, options.directory),
        fork=options.fork,
        effects=_effects_after(session, target.point),
        is_live=session.internal.is_held(agent.agent),
        in_doubt=tuple(session.tools.list(in_doubt=True)),
    )
    if options.what != "files" and format is not None and folder is not None:
        time = _now(session.internal.clock.now())
        id = format.session_id(made.id)
        new = NewSession(id, time, _move(options), agent.id, agent.transcript)
        rewritten = format.rewound(target.entries, new, new_id)
        made = _with_conversation(made, new, rewritten, conversation, folder)
    if options.what != "chat" and options.fork is None:
        files = session.files.plan(target.point, (WORKSPACE,))
        made = msgspec.structs.replace(made, files=files)
    return made


def rewind(
    session: Session,
    plan: RewindPlan,
    folder: AgentFolder | None,
    *,
    accept_left_behind: bool = False,
) -> RewindResult:
    """Do what a plan says; durable when this returns.

    Raises ``LeftBehind``, and changes nothing, if files and conversation go back in place behind
    effects that cannot be undone, unless that is accepted; and ``RestoreBusy``, if another process
    restores files in the directory: then no session of the rewind is left, either.
    """
    # Pinned: upkeep must not remove what is about to be restored.
    with session.internal.engine.pin():
        if plan.files is not None:
            session.internal.refuse_beside_restore()  # before effects are undone
        if plan.undoes_effects:
            session.internal.undo_effects(plan.point, accept_left_behind)
        if plan.entries is None or folder is None:
            return RewindResult(plan, restored=_restore_files(session, plan))
        with _fork(session, plan) as made:
            try:
                restored = _continue(session, made, plan, folder)
            except RestoreBusy:
                # Another restore began meanwhile, so this one has changed nothing. After any other
                # error the session stays: with it, an undo finds what was restored.
                delete_session(session.internal.engine, made.name)
                raise
            return RewindResult(plan, made.name, restored)


def undo_rewind(session: Session, rewound: Session) -> Restored | None:
    """Bring the files back as they were before a rewind, and remove its transcript if unused.

    ``session`` is the one that was rewound, ``rewound`` the one that was made for it. The session
    that was made stays: what was said and done in it is not lost.
    """
    known = rewound_from(rewound)
    if known is None or known.undone:
        said = "was not made by a rewind" if known is None else "is of a rewind that was undone"
        raise CannotRewind(f"The session {rewound.name!r} {said}.")
    done = _undo_files(session, known)
    _remove_unused(rewound, known)
    # Last: an undo that failed, or was killed, can be asked for again.
    rewound.state.set((REWOUND, "undone"), True)
    return done


def _undo_files(session: Session, known: Rewound) -> Restored | None:
    """Bring the files back, also from where the rewind was interrupted."""
    restore = known.restore
    if restore is None and known.since is not None:
        restore = find_restore(session, known.point, known.since)
        if restore is None and is_interrupted(session, known.point):
            return undo_interrupted(session)
    return None if restore is None else undo_restore(session, restore)


def was_continued(rewound: Session) -> bool:
    """Whether an agent went on in a session whose rewind was undone: hooks or a transcript say so.

    The undo removes a transcript that was not continued.
    """
    found = rewound.state.get((AGENT_SESSION, "transcript"), None)
    if isinstance(found, str) and Path(found).exists():
        return True
    return any(one.session == rewound.name for one in rewound.checkpoints(limit=1, reverse=True))


def rewound_from(session: Session) -> Rewound | None:
    """Return where a rewound session comes from; None for any other session."""
    try:
        return msgspec.convert(session.state.get(REWOUND), ready(Rewound))
    except msgspec.ValidationError:
        return None


def _present(start: Path, directory: Path | None) -> Path:
    """Return where the directory in which an agent was started is now, if the project was moved."""
    if directory is None or start.is_dir():
        return start
    ends = (directory.joinpath(*start.parts[at:]) for at in range(1, len(start.parts)))
    return next((end for end in ends if end.is_dir()), directory)


def _effects_after(session: Session, point: Point) -> EffectPlan:
    """Return what going back means for the acts on the outside world after a point."""
    return session.effects.plan(point) if session.internal.has_acts else EffectPlan()


def _check_files(session: Session, target: Target, options: RewindOptions) -> None:
    if options.directory is None:
        raise CannotRewind(f"The session {session.name!r} has no directory of files.")
    if not target.has_files or session.internal.files_at(target.point) is None:
        raise CannotRewind(
            "No checkpoint has the files of then.",
            hint="Nothing was changed. --chat takes the conversation back alone.",
        )


def _move(options: RewindOptions) -> Move | None:
    if options.fork is None or options.directory is None:
        return None
    return Move(os.path.realpath(options.directory), os.path.realpath(options.fork))


def _with_conversation(
    plan: RewindPlan,
    new: NewSession,
    rewritten: Rewritten,
    conversation: Conversation,
    folder: AgentFolder,
) -> RewindPlan:
    """Add the conversation to a plan, as a transcript of a new session."""
    start = plan.start if new.move is None else Path(new.move.path(str(plan.start)))
    path = folder.transcript(start, new)
    placed = folder.placed(path, new, rewritten.entries, conversation.tool_result)
    subagents = conversation.format.subagent if conversation.format else lambda known, new: []
    return msgspec.structs.replace(
        plan,
        id=new.id,
        start=start,
        entries=placed.entries,
        transcript=path,
        closed=rewritten.closed,
        side_files=placed.side_files,
        subagents={
            id: found
            for id, known in plan.target.subagents.items()
            if is_plain_id(id) and (found := subagents(known, new))
        },
    )


def _fork(session: Session, plan: RewindPlan) -> Session:
    """Make the session that hooks of the new branch will write to."""
    name = session_name(f"{plan.agent.agent}-{plan.id}")
    made = session.fork(plan.point, name, plan.fork, pointer=plan.fork is not None)
    session.internal.engine.failpoint(Failpoint.REWIND_FORKED)
    return made


def _continue(
    session: Session, made: Session, plan: RewindPlan, folder: AgentFolder
) -> Restored | None:
    """Record the conversation in the fork, publish its transcript, and restore the files."""
    failpoint = session.internal.engine.failpoint
    with _drafts(plan) as drafts:
        with _writing(plan):
            _write_drafts(drafts, plan, folder, failpoint)
        # Before the transcripts are published: the first hook of the new conversation must find how
        # far its transcript is known, or it would record all of it again.
        since = session.head.seq if _restores_files(session, plan) else None
        _record(made, plan, drafts, since)
        failpoint(Failpoint.REWIND_RECORDED)
        with _writing(plan):
            # The main transcript comes last: with it, the program finds the others.
            for draft in drafts.values():
                draft.publish()
        # Last, because it alone changes what a person works on: if anything before it fails, the
        # project is as it was.
        restored = _restore_files(session, plan)
    if restored is not None:
        # Not needed to finish: without it, the undo of the rewind looks for the restore.
        made.state.set((REWOUND, "restore"), restored.seq)
        failpoint(Failpoint.REWIND_NOTED)
    return restored


@contextmanager
def _drafts(plan: RewindPlan) -> Iterator[dict[str, Draft]]:
    """Collect drafts, and remove what was written if the rewind fails."""
    drafts: dict[str, Draft] = {}
    try:
        yield drafts
    except BaseException:
        for draft in drafts.values():
            draft.remove()
        if plan.transcript is not None:
            remove_empty_folder(plan.transcript)
        raise
    finally:
        for draft in drafts.values():
            draft.close()


def _write_drafts(
    drafts: dict[str, Draft], plan: RewindPlan, folder: AgentFolder, failpoint: FailpointHook
) -> None:
    """Write the transcripts under draft names; the main one has the id "", and is the last."""
    if plan.transcript is None or not (plan.entries or plan.side_files):
        return
    entries = plan.entries or []
    folder.prepare(NewSession(plan.id, "", old=plan.agent.id), entries)
    # Left by rewinds that were killed; the lock of a draft tells whether its writer lives.
    remove_left_drafts(plan.transcript.parent)
    for file in plan.side_files:
        drafts[str(file.path)] = Draft(file.path, file.data, failpoint)
    for id, said in plan.subagents.items():
        path = folder.subagent(plan.transcript, id)
        if path is not None:
            drafts[id] = Draft(path, encode(said), failpoint)
    drafts[""] = Draft(plan.transcript, encode(entries), failpoint)


@contextmanager
def _writing(plan: RewindPlan) -> Iterator[None]:
    """Say which transcript the system refused to write, and that no file was changed."""
    try:
        yield
    except OSError as error:
        raise CannotRewind(
            f"The transcript {plan.transcript} cannot be written: {error.strerror or error}.",
            hint="No file of the project was changed. --files takes the files back alone.",
        ) from error


def _record(made: Session, plan: RewindPlan, drafts: dict[str, Draft], since: int | None) -> None:
    """Write into the fork what the next hook needs to continue."""
    kept = {id: one for id, one in drafts.items() if id in plan.subagents or not id}
    read = {id: transcript.read_new(one.draft) for id, one in kept.items()}
    progress = read[""].progress if read else transcript.START
    known = AgentSession(
        agent=plan.agent.agent,
        id=plan.id,
        cwd=str(plan.start),
        transcript=str(plan.transcript) if read else None,
        offset=progress.offset,
        digest=progress.digest,
        entries=progress.entries,
        prompts=plan.target.kept,
        subagents={
            id: Transcript(str(drafts[id].path), **msgspec.structs.asdict(found.progress))
            for id, found in read.items()
            if id
        },
    )
    rewound = Rewound(
        session=plan.point.session,
        seq=plan.point.seq,
        left=plan.session,
        agent_id=plan.agent.id,
        what=plan.what,
        length=progress.offset,
        digest=progress.digest,
        beside=[str(draft.path) for id, draft in drafts.items() if id],
        since=since,
    )
    with made.batch():
        made.state.put(CONVERSATION, read[""].entries if read else [])
        made.state.put(SUBAGENTS, {id: found.entries for id, found in read.items() if id})
        made.state.set(AGENT_SESSION, msgspec.to_builtins(known))
        made.state.set(REWOUND, msgspec.to_builtins(rewound))
        # At a prompt, the agent is recorded as at work; in this branch it has not started yet.
        if made.state.get((AGENTS, known.agent)) is not None:
            made.internal.state.set((AGENTS, known.agent, "state"), "waiting")


def _restores_files(session: Session, plan: RewindPlan) -> bool:
    """Whether files are restored: a restore that was interrupted may have written them all."""
    return plan.files is not None and (bool(plan.files) or is_interrupted(session, plan.point))


def _restore_files(session: Session, plan: RewindPlan) -> Restored | None:
    return restore_files(session, plan.point) if _restores_files(session, plan) else None


def _remove_unused(rewound: Session, known: Rewound) -> None:
    """Remove a transcript if it was not continued."""
    found = rewound.state.get((AGENT_SESSION, "transcript"))
    if not isinstance(found, str) or not known.length:
        return
    now = transcript.read_new(found).progress
    # A transcript that the agent has continued is a person's conversation, and stays.
    if (now.offset, now.digest) == (known.length, known.digest):
        for path in (found, *known.beside):
            Path(path).unlink(missing_ok=True)
        remove_empty_folder(Path(found))


def _now(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03}Z"
