"""Following the transcripts of agents that have no hooks: a checkpoint at every prompt they show.

An agent writes a prompt into its transcript and then acts on it. So a prompt that is new there is a
moment to take a checkpoint, a little late: what the agent changed before the next look is in it.
Everything is recorded as its hooks would: in a session of its own, with the lines of the
transcript, so that `mulligan rewind` works on it. A prompt that hooks have recorded is left alone,
and so is all that an agent says whose hooks hold a lease for it, as those of Claude Code do.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mulligan.coding.agent_json import whole_characters
from mulligan.coding.agent_session import agent_session
from mulligan.coding.hook_input import OPENCODE, HookEvent, HookKind
from mulligan.coding.hooks import session_of
from mulligan.coding.recorder import PROMPT, record
from mulligan.coding.rewind.target import Conversation
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.opencode_database import OpenCodeDatabase
from mulligan.coding.transcripts.transcript import Stamp
from mulligan.coding.transcripts.transcript_format import Prompt, TranscriptFormat, TranscriptOwner
from mulligan.coding.transcripts.transcript_formats import FORMATS

if TYPE_CHECKING:
    from mulligan.model import Checkpoint
    from mulligan.session import Session
    from mulligan.store import Store

EVENT = "transcript"
"""The name of the events that were seen in a transcript."""


class Followed(msgspec.Struct, frozen=True):
    """A transcript that is followed."""

    path: Path
    agent: str
    owner: TranscriptOwner


class TranscriptFollower:
    """Records what agents write into their transcripts; call :meth:`look` now and then.

    ``patterns`` are files to follow, or patterns of their names; without any, those of known agents
    in the directory ``root`` are found by themselves. What was written before is not recorded,
    unless its transcript goes on. From one thread.
    """

    def __init__(
        self, store: Store, root: Path, variables: Mapping[str, str], patterns: Sequence[str] = ()
    ) -> None:
        self._store, self._root, self._variables = store, root, variables
        self._patterns = patterns
        self._database = OpenCodeDatabase(variables, root)
        self._stamps = dict(self._candidates())
        self._sessions: dict[str, Session] = {}
        self._known: dict[Path, Followed] = {}
        self._followed: dict[Path, Followed] = {}
        self._others: set[Path] = set()
        self._unknown: set[Path] = set()

    def look(self) -> list[Checkpoint]:
        """Record what is new; return the checkpoints that were taken.

        One that fails, such as of a session that another process writes, keeps no other waiting:
        its error is raised after all.
        """
        taken: list[Checkpoint] = []
        failed: Exception | None = None
        for path, stamp in self._candidates():
            if self._stamps.get(path) == stamp:
                continue
            # Also of one that is not followed. It may not have been written far enough: then it
            # changes, and is looked at again.
            self._stamps[path] = stamp
            try:
                taken += self._look_at(path)
            except BaseException as error:
                del self._stamps[path]  # so that the next look tries again
                if not isinstance(error, Exception):
                    raise
                failed = failed or error
        if failed is not None:
            raise failed
        return taken

    def _look_at(self, path: Path) -> list[Checkpoint]:
        found = self._known.get(path) or self._recognised(path)
        if found is None:
            self._unknown.add(path)
            return []
        self._known[path] = found
        if not self._is_written_out(path) or self._is_recorded(found):
            del self._stamps[path]  # so that the next look tries again
            return []
        self._followed[path] = found
        return self._record(found)

    def unmatched(self) -> list[str]:
        """Return the patterns that no file matches yet."""
        return [one for one in self._patterns if next(self._matching(one), None) is None]

    def unread(self) -> list[str]:
        """Return the patterns whose files have changed, and of which none could be followed."""
        return [
            one
            for one in self._patterns
            if (files := set(self._matching(one))) & self._unknown and not files & {*self._followed}
        ]

    def close(self) -> list[Checkpoint]:
        """Record what was written last, and that the agents have ended; return the checkpoints."""
        taken = self.look()
        for found in self._followed.values():
            if not self._is_recorded(found):
                record(self._session(found), self._event(found, HookKind.SESSION_END))
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        return taken

    def _candidates(self) -> Iterator[tuple[Path, Stamp]]:
        for path in self._paths():
            if (stamp := transcript.stamp(path)) is not None:
                yield path, stamp
        if not self._patterns:
            yield from self._database.stamps()

    def _paths(self) -> Iterator[Path]:
        for pattern in self._patterns:
            yield from self._matching(pattern)
        if not self._patterns:
            for format in FORMATS.values():
                yield from format.transcripts(self._variables, self._root)

    def _matching(self, pattern: str) -> Iterator[Path]:
        return map(Path, glob.iglob(str(self._root / pattern), recursive=True))

    def _recognised(self, path: Path) -> Followed | None:
        """Return whose transcript a file is; None if that of no known agent in the directory."""
        if path in self._others:
            return None
        if (owner := self._database.owner(path)) is not None:
            return Followed(path, OPENCODE, owner)
        entries = transcript.read_new(path).entries
        for agent, format in FORMATS.items():
            owner = format.owner(path, entries)
            if owner is not None and self._is_ours(owner):
                return Followed(path, agent, owner)
            if owner is not None:
                # It stays that of another directory, however large it gets.
                self._others.add(path)
        return None

    def _is_ours(self, owner: TranscriptOwner) -> bool:
        try:
            return Path(os.path.realpath(owner.cwd)).is_relative_to(os.path.realpath(self._root))
        except ValueError:
            return False  # what the transcript says is no path

    def _is_written_out(self, path: Path) -> bool:
        """Whether the file has what its agent has said: its agent may keep that elsewhere."""
        return self._database.owner(path) is None or self._database.write_out(path)

    def _is_recorded(self, found: Followed) -> bool:
        """Whether hooks record it: they hold a lease for the agent, so nothing else may write."""
        return self._session(found).internal.is_held(found.agent)

    def _record(self, found: Followed) -> list[Checkpoint]:
        session, format = self._session(found), FORMATS[found.agent]
        before = session.head.seq
        record(session, self._news(found, session, format))
        return [one for one in session.checkpoints(since=before) if one.seq > before]

    def _news(self, found: Followed, session: Session, format: TranscriptFormat) -> HookEvent:
        """Return the event that the new lines of a transcript tell of."""
        known = agent_session(session)
        since = transcript.START if known is None else known.progress
        new = transcript.read_new(found.path, since)
        prompts = format.prompts(format.parsed(new.entries), ())
        newest = self._unrecorded(session, prompts, is_whole=new.is_whole) if prompts else None
        if newest is None:
            return self._event(found, HookKind.BATCH_END)
        prompt = whole_characters(newest.text)
        return self._event(found, HookKind.PROMPT, prompt=prompt, prompt_id=newest.asked)

    def _unrecorded(
        self, session: Session, prompts: Sequence[Prompt], *, is_whole: bool
    ) -> Prompt | None:
        """Return the newest prompt, unless it has a checkpoint, such as that of a hook."""
        last = prompts[-1]
        if agent_session(session) is None:
            return last
        if is_whole and last.asked is not None:
            # The file was written again, and what is recorded of it does not have this prompt yet.
            taken = (one.data.get("prompt_id") for one in session.checkpoints(kind=PROMPT))
            return None if last.asked in taken else last
        known = Conversation(session).prompts
        return known[-1].prompt if known and known[-1].checkpoint is None else None

    def _event(self, found: Followed, kind: HookKind, **fields: str | None) -> HookEvent:
        return HookEvent(
            agent=found.agent,
            kind=kind,
            name=EVENT,
            session_id=found.owner.id,
            cwd=found.owner.cwd,
            transcript=str(found.path),
            prompt=fields.get("prompt"),
            prompt_id=fields.get("prompt_id"),
        )

    def _session(self, found: Followed) -> Session:
        name = session_of(found.agent, found.owner.id)
        if name not in self._sessions:
            self._sessions[name] = self._store.session(
                name, actor=found.agent, workspace=self._root
            )
        return self._sessions[name]
